"""Groups, states, precision and reloads of the optimizer."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.model_checks.models import decayed, twin
from tests.model_checks.test_audit import said
from trimtab.errors import ConfigError
from trimtab.model_checks.groups import state_types
from trimtab.model_checks.model_audit import audit
from trimtab.model_checks.reload import check_loaded, check_reload

pytestmark = pytest.mark.torch


# ------------------------------------------------------------ groups


@pytest.mark.covers("S82")
@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ((), []),
        (("blocks.0.ffn.down.weight",), ["blocks.0.ffn.down.weight"]),
        (("blocks.1.attention_norm.weight",), ["blocks.1.attention_norm.weight"]),
        (("embed.norm.weight",), ["embed.norm.weight"]),
    ],
)
def test_a_parameter_in_the_wrong_group_is_named(wrong: tuple[str, ...], names: list[str]) -> None:
    model = twin(embed_norm=True)
    told = list(said(audit(model, decayed(model, wrong=wrong)), "L12"))
    assert [name for f in told for name in f.values["tensors"]] == names
    assert all(f.severity == "warning" for f in told)


def test_decay_on_embeddings_is_a_remark_and_names_the_tied_layer() -> None:
    model = twin(tied=True)
    optimizer = decayed(model, wrong=("embed.tokens.weight",))
    (found,) = said(audit(model, optimizer), "L12")
    assert found.severity == "info"
    assert found.values["tied"] == ["embed.tokens.weight"]


def test_a_parameter_the_optimizer_does_not_hold() -> None:
    model = twin()
    optimizer = torch.optim.AdamW([w for n, w in model.named_parameters() if "ffn.up" not in n])
    (found,) = [f for f in said(audit(model, optimizer), "UNTOUCHED") if f.severity == "error"]
    assert found.values["tensors"] == ["blocks.0.ffn.up.weight", "blocks.1.ffn.up.weight"]


def test_an_optimizer_made_before_the_model_was_exchanged() -> None:
    model = twin()
    done = audit(model, decayed(twin()))
    assert any("does not have" in f.message for f in done)


def test_tied_weights_that_are_updated_twice() -> None:
    model = twin(tied=True)
    with pytest.warns(UserWarning, match="duplicate"):
        optimizer = torch.optim.SGD([*model.parameters(), model.lm_head.weight], weight_decay=0.1)
    assert any("updated twice" in f.message for f in said(audit(model, optimizer), "L12"))


# ------------------------------------------------------------ types


@pytest.mark.covers("S25")
@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize(("dtype", "word"), [(torch.float32, "fp32"), (torch.bfloat16, "bf16")])
def test_the_type_of_adams_states(dtype: torch.dtype, word: str, stepped: bool) -> None:
    model = twin().to(dtype)
    optimizer = decayed(model)
    if stepped:
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    done = audit(model, optimizer)
    assert done.facts["optimizer_states"] == {"exp_avg": word, "exp_avg_sq": word}
    assert [f.severity for f in said(done, "L27")] == ([] if word == "fp32" else ["warning"])


def test_an_optimizer_that_cannot_be_tried_has_no_types() -> None:
    class Strange(torch.optim.SGD):
        def __init__(self, params: Any, *, secret: int) -> None:
            super().__init__(params, lr=0.1)

    assert state_types(Strange(twin().parameters(), secret=1)) == {}


@pytest.mark.covers("S196")
def test_fp16_without_a_scaler_is_refused_before_the_first_step() -> None:
    model = twin()
    done = audit(model, dtype="fp16")
    assert [f.severity for f in said(done, "L25")] == ["error"]
    with pytest.raises(ConfigError, match="fp16 without a loss scaler"):
        done.check()
    off = torch.amp.GradScaler("cpu", enabled=False)
    assert said(audit(model, dtype="fp16", scaler=off), "L25")
    on = torch.amp.GradScaler("cpu")
    audit(model, dtype="fp16", scaler=on).check()
    audit(model, dtype="bf16").check()
    assert said(audit(twin().half()), "L25")
    assert said(audit(twin().half(), scaler=on), "L27")


# ------------------------------------------------------------ after a load


def trained(**settings: Any) -> torch.optim.AdamW:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.AdamW([weight], **settings)
    for _ in range(5):
        weight.grad = torch.randn(4, 4)
        optimizer.step()
    return optimizer


NEW = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


@pytest.mark.covers("S211")
@pytest.mark.parametrize(
    ("field", "old"),
    [("lr", 6e-4), ("betas", (0.9, 0.999)), ("eps", 1e-6), ("weight_decay", 0.01)],
)
def test_a_load_that_overrides_the_config_is_named(field: str, old: Any) -> None:
    saved = trained(**{**NEW, field: old}).state_dict()
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(4, 4))], **NEW)  # type: ignore[arg-type]
    optimizer.load_state_dict(saved)
    (found,) = check_reload(optimizer, NEW, step=5)
    assert (found.rule, found.severity, found.values["field"]) == ("L34", "error", field)
    with pytest.raises(ConfigError, match=f"{field} of group 0"):
        check_loaded(optimizer, NEW, step=5)
    optimizer.param_groups[0][field] = NEW[field]
    assert check_reload(optimizer, NEW, step=5) == ()


def test_settings_by_group_and_a_field_that_is_not_there() -> None:
    optimizer = trained(**NEW)
    assert check_reload(optimizer, [NEW], step=5) == ()
    assert check_reload(optimizer, {"momentum": 0.9})[0].values["field"] == "momentum"
    with pytest.raises(ConfigError, match="2 mappings for 1 groups"):
        check_reload(optimizer, [NEW, NEW])
    assert check_reload(optimizer, {"lr": float("nan")})


@pytest.mark.parametrize("how", ["zero", "absent", "off", "no state"])
def test_adams_step_that_is_lost(how: str) -> None:
    saved = copy.deepcopy(trained(**NEW).state_dict())
    state = saved["state"][0]
    if how == "zero":
        state["step"] = torch.tensor(0.0)
    elif how == "off":
        state["step"] = torch.tensor(3.0)
    elif how == "no state":
        saved["state"] = {}
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(4, 4))], **NEW)  # type: ignore[arg-type]
    optimizer.load_state_dict(saved)
    if how == "absent":
        del next(iter(optimizer.state.values()))["step"]
    (found,) = check_reload(optimizer, NEW, step=5)
    assert (found.rule, found.severity) == ("BIAS", "error")
