"""What must divide what, by whose word, and where nobody said so."""

from typing import Any

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.lint import ConfigFinding, lint
from trimtab.configs.settings import UNEVEN, Settings


def found(framework: str = "megatron", **values: Any) -> dict[str, ConfigFinding]:
    return {f.rule: f for f in lint(make_settings(framework, **values))}


@pytest.mark.parametrize(
    ("framework", "values", "severity"),
    [
        ("megatron", {"batch_samples": 500, "micro_batch": 1, "data_parallel": 64}, "error"),
        ("nemo", {"batch_samples": 1024, "micro_batch": 3, "data_parallel": 8}, "error"),
        ("deepspeed", {"batch_samples": 2048, "micro_batch": 3, "grad_accum": 10}, "error"),
        ("torchtitan", {"batch_samples": 511, "micro_batch": 2}, "error"),
        ("generic", {"batch_samples": 500, "micro_batch": 3}, "warning"),
        ("megatron", {"batch_samples": 512, "micro_batch": 1, "data_parallel": 64}, None),
        (
            "deepspeed",
            {"batch_samples": 2048, "micro_batch": 4, "grad_accum": 8, "data_parallel": 64},
            None,
        ),
        ("generic", {"batch_samples": 500, "micro_batch": 5, "data_parallel": 64}, None),
        ("megatron", {"batch_samples": 512}, None),
    ],
)
def test_batch(framework: str, values: dict[str, Any], severity: str | None) -> None:
    said = found(framework, **values).get("BATCH")
    assert (said.severity if said else None) == severity


def test_the_nearest_batches_are_named() -> None:
    said = found(batch_samples=2044, micro_batch=1, data_parallel=8)["BATCH"]
    assert "micro-batch 1 × data-parallel ranks 8 = 8" in said.message
    assert said.instead == "the batch: 2040 or 2048"


def test_a_batch_that_was_only_computed_is_not_held_against_the_devices() -> None:
    run = make_settings(default=("batch_samples",), batch_samples=7, micro_batch=2)
    assert "BATCH" not in {f.rule for f in lint(run)}


def test_stages_that_the_file_divides_itself_are_left_alone() -> None:
    run = make_settings(layers=61, pipeline_parallel=16)
    assert "STAGES" in {f.rule for f in lint(run)}
    assert "STAGES" not in {
        f.rule for f in lint(Settings("a.sh", "megatron", run.values, (UNEVEN,)))
    }
    assert "STAGES" not in found("gpt-neox", layers=61, pipeline_parallel=16), "divides by itself"


@pytest.mark.parametrize(
    ("framework", "position", "fires"),
    [
        ("megatron", "rope", True),
        ("nemo", "learned", True),
        ("nemo", "rope", False),
        ("generic", "rotary", False),
        ("generic", "learned_absolute", True),
    ],
)
def test_positions_by_framework(framework: str, position: str, fires: bool) -> None:
    said = found(framework, seq=8192, max_positions=2048, position=position)
    assert ("POSITIONS" in said) == fires


def test_router_of_a_tuned_model_and_saves_of_a_small_one() -> None:
    assert "ROUTER" not in found("hf-trainer", experts=8, router_aux_loss=0, objective="sft")
    assert found(saves=False, hidden=512, layers=4, train_steps=100)["SAVE"].severity == "info"
