"""Single operations in low precision."""

import math

import pytest
import torch
from torch import nn

from tests.model_checks.models import Scaled, twin
from trimtab.errors import ConfigError
from trimtab.model_checks.model_audit import audit
from trimtab.model_checks.operations import (
    Scores,
    attention_scores,
    judge_ranking,
    judge_scores,
    rank_modules,
)

pytestmark = pytest.mark.torch


@pytest.mark.covers("S182")
def test_the_scale_belongs_inside_the_product() -> None:
    scores = attention_scores(query=60, key=60, head_dim=128, dtype=torch.float16)
    assert scores.product == 460_800
    assert scores.product > torch.finfo(torch.float16).max
    assert math.isinf(scores.outside)
    assert scores.inside == pytest.approx(460_800 / math.sqrt(128), rel=2e-3)
    assert math.isfinite(scores.inside)
    assert math.isfinite(attention_scores(dtype=torch.bfloat16).outside)


@pytest.mark.covers("S183")
def test_baddbmm_is_run_on_this_backend() -> None:
    scores = attention_scores()
    q = torch.full((1, 1, 128), 60.0, dtype=torch.float16)
    own = torch.baddbmm(
        torch.zeros(1, 1, 1, dtype=torch.float16), q, q.transpose(1, 2), beta=0.0, alpha=128**-0.5
    )
    assert scores.fused_overflows == bool(own.isinf().any())
    (found,) = judge_scores(scores)
    assert ("overflows" in found.message) == scores.fused_overflows


@pytest.mark.gpu
def test_baddbmm_on_cuda() -> None:
    scores = attention_scores(device="cuda")
    assert scores.device == "cuda"
    assert math.isfinite(scores.inside)


def test_both_outcomes_are_told() -> None:
    def scores(fused: float) -> Scores:
        return Scores(
            product=460800, outside=math.inf, inside=40768, fused=fused, device="x", dtype="float16"
        )

    assert [f.severity for f in judge_scores(scores(math.inf))] == ["warning"]
    assert [f.severity for f in judge_scores(scores(40736.0))] == ["info"]


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="cannot multiply"):
        attention_scores(device="xla")


@pytest.mark.covers("S184")
def test_the_cube_in_gelu() -> None:
    assert math.isinf(float(torch.tensor(41.0, dtype=torch.float16) ** 3))

    def told(model: nn.Module, dtype: str) -> list[str]:
        return [
            n
            for f in audit(model, dtype=dtype, scaler=object())
            if f.rule == "L30"
            for n in f.values["tensors"]
        ]  # type: ignore[arg-type]

    assert told(twin(activation="gelu-tanh"), "fp16") == [
        "blocks.0.ffn.activation",
        "blocks.1.ffn.activation",
    ]
    assert told(twin(activation="gelu-tanh"), "bf16") == []
    assert told(twin(activation="gelu"), "fp16") == []
    assert told(twin(activation="relu"), "fp16") == []


def test_modules_are_ranked_by_what_they_lose() -> None:
    model = twin()
    with torch.no_grad():
        model.get_parameter("blocks.1.ffn.up.weight").mul_(1e6)
    tokens = torch.randint(256, (2, 17))
    rows = rank_modules(model, tokens, dtype=torch.float16)
    assert rows[0].module.startswith("blocks.1.ffn")
    assert math.isinf(rows[0].error)
    assert next(iter(judge_ranking(rows))).severity == "error"
    sound = rank_modules(twin(), tokens)
    assert not list(judge_ranking(sound))
    assert all(0 <= r.error < 0.02 for r in sound)
    assert [r.error for r in sound] == sorted((r.error for r in sound), reverse=True)
    better = {r.module: r.error for r in rank_modules(twin(), tokens, dtype=torch.float16)}
    assert better["lm_head"] < {r.module: r.error for r in sound}["lm_head"] / 4  # 3 bits more


def test_ranking_leaves_the_model_as_it_was() -> None:
    model = Scaled(1.0)
    before = {n: w.clone() for n, w in model.state_dict().items()}
    rank_modules(model, torch.randint(128, (2, 17)))
    assert all(torch.equal(before[n], w) for n, w in model.state_dict().items())
    assert all(w.dtype == torch.float32 for w in model.parameters())
