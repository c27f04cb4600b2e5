"""What the audit says of a model: each rule fires on the fault and is silent without it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.model_checks.models import Scaled, StableEmbedding, decayed, embedded, twin
from trimtab.config_rules.lint import ConfigFinding
from trimtab.errors import ConfigError
from trimtab.model_checks.model_audit import Audit, audit
from trimtab.model_checks.twin import sinusoids

pytestmark = pytest.mark.torch


def said(done: Audit, rule: str) -> list[ConfigFinding]:
    return [f for f in done if f.rule == rule]


def test_a_sound_model_is_passed_in_silence_and_left_as_it_was() -> None:
    model = twin()
    optimizer = decayed(model)
    before = {n: w.clone() for n, w in model.state_dict().items()}
    state = torch.random.get_rng_state()
    model.eval()
    done = audit(model, optimizer)
    assert [f for f in done if f.severity != "info"] == []
    done.check()
    assert all(torch.equal(before[n], w) for n, w in model.state_dict().items())
    assert torch.equal(state, torch.random.get_rng_state())
    assert not model.training
    assert all(w.grad is None for w in model.parameters())
    assert not optimizer.state


def test_findings_have_the_shape_of_the_config_rules() -> None:
    found = audit(Scaled(1.0, std=1.0)).findings[0]
    for text in (found.rule, found.title, found.message, found.why, found.source, found.cost):
        assert text


# ------------------------------------------------------------ first weights


@pytest.mark.covers("S175")
def test_output_layers_are_held_against_sigma_over_depth() -> None:
    model = twin(layers=3, hidden=128)
    sigma = model.twin.init_std
    rows = {t.name: t for t in audit(model).tensors}
    for name in ("blocks.0.attention.out.weight", "blocks.2.ffn.down.weight"):
        assert rows[name].role == "residual output"
        assert rows[name].expected["σ/√(2L)"] == pytest.approx(sigma / math.sqrt(6), rel=0.02)
        assert rows[name].std == pytest.approx(sigma / math.sqrt(6), rel=0.05)
        assert rows[name].follows == "σ/√(2L)"
    assert not said(audit(model), "L02")
    with torch.no_grad():
        model.get_parameter("blocks.2.ffn.down.weight").mul_(1.15)
    (found,) = said(audit(model), "L02")
    assert found.values["tensors"] == ["blocks.2.ffn.down.weight"]


def test_depth_makes_unscaled_outputs_a_warning() -> None:
    model = twin(layers=24, hidden=16, heads=2)
    for name, weight in model.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            nn.init.normal_(weight, std=model.twin.init_std)
    (found,) = said(audit(model), "L02")
    assert found.severity == "warning"


def test_matrices_are_held_against_small_init() -> None:
    assert not said(audit(twin()), "L01")
    small = math.sqrt(2 / (5 * 64))
    (found,) = said(audit(twin(init_std=6 * small)), "L01")
    assert found.severity == "error"
    assert found.values["ratio"] == pytest.approx(6, rel=0.1)
    assert not said(audit(twin(init_std=6 * small), trained=True), "L01")
    (tamed,) = said(audit(twin(init_std=6 * small, qk_norm=True)), "L01")
    assert tamed.severity == "info"


@pytest.mark.covers("S178")
def test_a_token_embedding_of_std_1_is_an_error() -> None:
    (found,) = said(audit(Scaled(1.0, std=1.0)), "L03")
    assert found.severity == "error"
    assert found.values["std"] == pytest.approx(1.0, rel=0.05)
    assert not said(audit(Scaled(1.0, std=0.02)), "L03")


@pytest.mark.covers("S179")
@pytest.mark.parametrize("factor", [1.0, 8.0, 50.0])
def test_the_effective_std_of_embeddings(factor: float) -> None:
    done = audit(Scaled(factor))
    assert done.facts["effective_embedding_std"] == pytest.approx(0.02 * factor, rel=0.1)
    assert bool(said(done, "L03")) == (factor == 50.0)


@pytest.mark.covers("S177")
def test_a_stable_embedding_is_recognised() -> None:
    def kind(model: nn.Module) -> str:
        return str(audit(model).facts["embedding"])

    assert kind(embedded(StableEmbedding(128, 64))) == "StableEmbedding"
    assert kind(embedded(StableEmbedding(128, 64, xavier=False))) == "embedding with LayerNorm"
    assert kind(Scaled(1.0)) == "plain embedding"
    assert kind(twin(embed_norm=True)) == "embedding with LayerNorm"
    plain = nn.Embedding(128, 64)
    nn.init.xavier_uniform_(plain.weight)
    assert kind(embedded(plain)) == "plain embedding"


def test_a_norm_behind_the_embedding_takes_its_scale_out() -> None:
    done = audit(embedded(StableEmbedding(128, 64)))
    assert not said(done, "L03")


@pytest.mark.covers("S176")
def test_an_embedding_norm_added_after_step_0() -> None:
    old, new = twin(), twin(embed_norm=True)
    (found,) = said(audit(new, checkpoint=old.state_dict()), "L05")
    assert found.severity == "error"
    assert "embed.norm.weight" in found.message
    assert not said(audit(new, checkpoint=new.state_dict()), "L05")
    assert not said(audit(old, checkpoint=old.state_dict()), "L05")


def test_any_other_new_layer_is_a_warning() -> None:
    state = twin(layers=1).state_dict()
    (found,) = said(audit(twin(layers=2), checkpoint=state), "UNTOUCHED")
    assert found.severity == "warning"
    assert "blocks.1.attention.q.weight" in found.values["tensors"]


# ------------------------------------------------------------ positions


@pytest.mark.covers("S180")
def test_kinds_of_positions_and_their_gradient() -> None:
    learned = twin()
    done = audit(learned, position="learned")
    assert done.facts["positions"] == "learned"
    assert not said(done, "L04")
    learned.embed.positions.weight.requires_grad_(False)  # type: ignore[union-attr]
    done = audit(learned, position="learned")
    assert done.facts["positions"] == "frozen"
    assert [f.severity for f in said(done, "L04")] == ["error"]

    waves = twin()
    with torch.no_grad():
        waves.embed.positions.weight.copy_(sinusoids(32, 64))  # type: ignore[union-attr]
    done = audit(waves)
    assert done.facts["positions"] == "learned, starts sinusoidal"
    waves.embed.positions.weight.requires_grad_(False)  # type: ignore[union-attr]
    assert [f.severity for f in said(audit(waves, position="learned"), "L04")] == ["error"]
    assert not said(audit(waves, position="sinusoidal"), "L04")
    assert audit(waves, position="sinusoidal").facts["positions"] == "sinusoidal"
    assert audit(twin(position="rotary")).facts["positions"] == "none found"
    assert said(audit(twin(position="rotary"), position="learned"), "L04")


def test_positions_that_are_used_without_a_gradient() -> None:
    model = twin()
    positions = model.embed.positions
    assert positions is not None
    positions.register_forward_hook(lambda _m, _i, out: out.detach())
    (found,) = said(audit(model), "L04")
    assert found.severity == "error"
    assert "no gradient" in found.message


# ------------------------------------------------------------ gradients and the first loss


def test_frozen_and_unused_parameters() -> None:
    model = twin()
    model.register_parameter("unused", nn.Parameter(torch.ones(4, 4)))
    model.get_parameter("blocks.0.ffn.up.weight").requires_grad_(False)
    told = said(audit(model), "UNTOUCHED")
    assert {name for f in told for name in f.values["tensors"]} == {
        "unused",
        "blocks.0.ffn.up.weight",
    }


def test_a_zero_output_layer_hides_nothing() -> None:
    model = twin()
    nn.init.zeros_(model.lm_head.weight)
    assert not said(audit(model), "UNTOUCHED")
    assert not model.lm_head.weight.any()


def test_the_first_loss() -> None:
    done = audit(twin())
    assert done.facts["first_loss"] == pytest.approx(math.log(256), abs=0.4)
    assert not said(done, "LOSS0")
    loud = twin()
    with torch.no_grad():
        loud.lm_head.weight.mul_(40)
    (found,) = said(audit(loud), "LOSS0")
    assert found.severity == "error"
    broken = twin()
    with torch.no_grad():
        broken.lm_head.weight[0, 0] = math.nan
    assert said(audit(broken), "LOSS0")[0].severity == "error"


def test_a_leak_of_the_target() -> None:
    class Leaks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(64, 64)
            nn.init.normal_(self.wte.weight, std=0.3)
            self.sharp = nn.Parameter(torch.tensor(1.0))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            seen = functional.pad(tokens[:, 1:], (0, 1))
            logits: torch.Tensor = functional.one_hot(seen, 64) * 10 * self.sharp
            return torch.add(logits, 0 * self.wte(tokens))

    assert "leaks" in said(audit(Leaks()), "LOSS0")[0].message


def test_a_model_that_cannot_be_run_is_still_judged() -> None:
    class Odd(Scaled):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            raise ValueError("two inputs are needed")

    done = audit(Odd(1.0, std=1.0))
    assert "two inputs are needed" in done.facts["notes"][0]
    assert said(done, "L03")


def test_the_users_own_batch_and_loss() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    done = audit(model, batch=torch.ones(2, 3), loss=lambda m, x: m(x).square().mean())
    assert done.facts["first_loss"] is not None
    assert not said(done, "UNTOUCHED")


def test_a_model_without_parameters() -> None:
    with pytest.raises(ConfigError, match="no parameters"):
        audit(nn.ReLU())


def test_nan_weights_are_no_std() -> None:
    model = twin()
    with torch.no_grad():
        model.get_parameter("blocks.0.attention.q.weight").fill_(math.nan)
    done = audit(model)
    assert math.isnan({t.name: t for t in done.tensors}["blocks.0.attention.q.weight"].std)
    assert any(f.severity == "error" for f in done)
