"""The table of remedies and the flags that carry them out."""

import dataclasses

import pytest

from trimtab.diagnosis.experiments import EXPERIMENT_BY_ID
from trimtab.errors import ConfigError
from trimtab.plan.flag_table import DIALECTS, REMEDY_FLAGS, TEST_FLAGS
from trimtab.plan.flags import TRAPS, dialect, experiment_flags, flags_for
from trimtab.plan.remedies import Remedy
from trimtab.plan.remedy_table import REMEDIES, REMEDY_BY_ID


@pytest.mark.covers("S247")
def test_every_remedy_says_what_it_costs() -> None:
    assert all(r.cost.strip() for r in REMEDIES)
    assert "slower but more stable" in REMEDY_BY_ID["adam-beta2"].cost
    for empty in ("", "  "):
        with pytest.raises(ConfigError, match="has no cost"):
            dataclasses.replace(REMEDIES[0], cost=empty)


@pytest.mark.covers("S248")
def test_every_remedy_says_whether_it_may_be_made_in_mid_run() -> None:
    when = {r.id: r.when for r in REMEDIES}
    assert when["embedding-layernorm"] == when["init-std"] == "from scratch"
    assert when["lower-lr"] == when["lower-clip"] == when["skip-data"] == "mid-run"
    assert when["adam-beta2"] == "unsure"


@pytest.mark.covers("S239")
def test_remedies_link_to_the_runs_that_used_them() -> None:
    scaling = REMEDY_BY_ID["stable-attention-scaling"]  # BigScience's change, adopted by OPT
    assert {e.run.split()[0] for e in scaling.failed} == {"tr8-104B", "OPT-175B"}
    for remedy in REMEDIES:
        for entry in (*remedy.worked, *remedy.failed):
            assert entry.run
            assert entry.source


def test_mixed_evidence_is_kept_on_both_sides() -> None:
    clip = REMEDY_BY_ID["lower-clip"]
    assert clip.worked
    assert clip.failed
    planned = clip.planned("because", {"clip": 0.3})
    assert any("they could not tell" in text for text in planned.worked)
    assert any("Marin" in text for text in planned.failed)


def test_ids_are_unique_and_no_field_is_empty() -> None:
    assert len(REMEDY_BY_ID) == len(REMEDIES)
    with pytest.raises(ConfigError, match="has no undo"):
        Remedy(id="x", title="t", changes="c", cost="c", undo="", when="mid-run")


def test_flags_belong_to_known_remedies() -> None:
    for table in REMEDY_FLAGS.values():
        assert set(table) <= set(REMEDY_BY_ID)
    assert {remedy for _, remedy in TRAPS} <= set(REMEDY_BY_ID)


@pytest.mark.parametrize(
    ("log_format", "remedy", "values", "flags"),
    [
        ("megatron", "lower-lr", {"lr": 3e-5}, "--override-opt_param-scheduler --lr 3e-05"),
        ("megatron", "roll-back", {"to_step": 3000}, "--load CHECKPOINTS --ckpt-step 3000"),
        ("megatron", "roll-back", {"before_step": 3000.0}, ""),
        ("megatron", "init-std", {"std": 0.00587}, "--init-method-std 0.00587"),
        ("megatron", "init-std", {"std": "sqrt(2 / (5 x hidden size))"}, ""),
        ("megatron-deepspeed", "lower-lr", {"lr": 3e-5}, "--override-lr-scheduler --lr 3e-05"),
        (
            "megatron-deepspeed",
            "skip-data",
            {"first_step": 8401.0, "last_step": 8800.0},
            "--skip-train-iteration-range 8401-8800",
        ),
        ("hf-trainer-state", "lower-clip", {"clip": 0.3}, "--max_grad_norm 0.3"),
        ("csv", "lower-lr", {"lr": 3e-5}, ""),
    ],
)
def test_flags(
    log_format: str, remedy: str, values: dict[str, float | str | bool | None], flags: str
) -> None:
    assert flags_for(log_format, remedy, values) == flags


KNOWN = {
    "at": "3000",
    "earlier": "2000",
    "first": "3100",
    "last": "3200",
    "half_lr": "3e-05",
    "old_lr": "6e-05",
    "parent": "1.0",
    "attempt": "1.1",
    "log": "train.log",
}


@pytest.mark.parametrize("framework", ["", *sorted(REMEDY_FLAGS)])
@pytest.mark.parametrize(
    "experiment", ["replay", "half-rate", "old-rate", "other-precision", "earlier-state"]
)
def test_each_framework_has_a_command_for_each_replay(framework: str, experiment: str) -> None:
    said = experiment_flags(framework, experiment, KNOWN)
    wanted = {"half-rate": "3e-05", "old-rate": "6e-05", "earlier-state": "2000"}
    if framework:
        assert wanted.get(experiment, "3000") in said
    assert "{" not in said.replace('{"', "")
    assert said.count("{") == said.count("}")


def test_the_tables_name_only_what_exists() -> None:
    assert {whose for _, whose in DIALECTS} - {""} == set(REMEDY_FLAGS) == set(TEST_FLAGS) - {""}
    for tests in TEST_FLAGS.values():
        assert set(tests) <= set(EXPERIMENT_BY_ID)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("megatron", "megatron"),
        ("megatron-deepspeed", "megatron-deepspeed"),
        ("hf-stdout", "hf-trainer"),
        ("hf-trainer-state", "hf-trainer"),
        ("fairseq", "metaseq"),
        ("metaseq", "metaseq"),
        ("torchtitan", "torchtitan"),
        ("olmo", "olmo"),
        ("nanogpt", "nanogpt"),
        ("lightning", "lightning"),
        ("deepspeed", "deepspeed"),
        ("csv", ""),
    ],
)
def test_dialects(name: str, whose: str) -> None:
    assert dialect(name) == whose


def test_a_config_entry_keeps_its_braces() -> None:
    assert (
        flags_for("deepspeed", "lower-lr", {"lr": 3e-5})
        == 'ds_config: "optimizer": {"params": {"lr": 3e-05}}'
    )
    assert "(0.9, 0.95)" in flags_for("metaseq", "adam-beta2", {})
