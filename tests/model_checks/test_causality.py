"""A model that looks ahead is told, a causal one never, whatever it is made of."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.model_checks.models import twin
from trimtab.model_checks.anatomy import dissect
from trimtab.model_checks.causality import look_ahead
from trimtab.model_checks.model_audit import audit

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


@pytest.fixture
def without_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    attend: Callable[..., Tensor] = functional.scaled_dot_product_attention

    def all_see_all(*heads: Tensor, is_causal: bool, **more: Any) -> Tensor:
        return attend(*heads, is_causal=False, **more)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", all_see_all)


@pytest.mark.usefixtures("without_mask")
def test_attention_without_a_mask_is_an_error() -> None:
    (found,) = [f for f in audit(twin(layers=2)) if f.rule == "CAUSAL"]
    assert found.severity == "error"
    assert found.values["own"] > found.values["earlier"] > 1e-3


@pytest.mark.usefixtures("without_mask")
def test_weights_that_start_at_zero_hide_nothing_and_stay_zero() -> None:
    model = twin(layers=2)
    zeros = [p for n, p in model.named_parameters() if n.endswith("out.weight")]
    with torch.no_grad():
        for weight in zeros:
            weight.zero_()
    assert any(f.rule == "CAUSAL" for f in audit(model))
    assert all(not w.any() for w in zeros)


@pytest.mark.parametrize("kind", ["learned", "rotary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_causal_model_changes_by_nothing(kind: str, dtype: torch.dtype) -> None:
    model = twin(layers=2, position=kind).to(dtype)
    seen = look_ahead(model, dissect(model))
    assert seen is not None
    assert (seen.earlier, seen.own > 0.01) == (0.0, True)
    assert model.training


class Odd(nn.Module):
    """Gives what it is told to."""

    def __init__(self, gives: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100)
        self.dropout = nn.Dropout(0.5)
        self.gives = gives

    def forward(self, tokens: Tensor) -> Any:
        logits = self.head(self.dropout(self.embed(tokens)))
        if self.gives == "mean":
            return logits + self.head(self.embed(tokens)).mean(1, keepdim=True)
        if self.gives == "last":
            return logits[:, -1]
        if self.gives == "nan":
            return logits * float("nan")
        if self.gives == "noise":
            return logits + torch.randn_like(logits)
        return (logits, "cache")


def test_a_mean_over_the_sequence_looks_ahead_and_dropout_does_not() -> None:
    assert [f.rule for f in audit(Odd("mean")) if f.rule == "CAUSAL"] == ["CAUSAL"]
    for gives in ("pair", "noise"):
        assert not [f for f in audit(Odd(gives)) if f.rule == "CAUSAL"]


@pytest.mark.parametrize("gives", ["last", "nan"])
def test_where_there_are_no_plain_logits_nothing_is_said(gives: str) -> None:
    assert look_ahead(Odd(gives), dissect(Odd(gives))) is None


@pytest.mark.usefixtures("without_mask")
def test_a_model_with_a_loss_of_its_own_may_look_both_ways() -> None:
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
    done = audit(twin(layers=1), batch=tokens, loss=lambda m, b: m(b).float().square().mean())
    assert not [f for f in done if f.rule == "CAUSAL"]
