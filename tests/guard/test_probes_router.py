"""The routers of a mixture of experts: what is measured of them, and what the rules make of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.guard.tiny import Sequences, events_of, rows_of
from trimtab.guard import Guard
from trimtab.guard.probes.router import RouterProbe, router_signals
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

EXPERTS, K, VOCABULARY = 4, 2, 64


class Mixture(nn.Module):
    """A plain linear gate beside its experts, as hand-written models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.gate = nn.Linear(16, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(EXPERTS))
        self.head = nn.Linear(16, VOCABULARY)
        self.top_k = K

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        shares, chosen = torch.softmax(self.gate(x), -1).topk(K)
        outputs = torch.stack([e(x) for e in self.experts], -2)
        picked = outputs.gather(-2, chosen[..., None].expand(*chosen.shape, 16))
        found: Tensor = self.head(x + (shares[..., None] * picked).sum(-2))
        return found


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    scores = model(batch[:, :-1]).flatten(0, 1)
    return functional.cross_entropy(scores, batch[:, 1:].flatten())


def signals_of(model: nn.Module, *batches: Tensor) -> dict[str, float]:
    """As several ranks with one batch each would give them."""
    probe = RouterProbe(model)
    probe.armed, table = True, []
    for batch in batches:
        model(batch)
        table.append(probe.take())
    probe.close()
    return router_signals(np.array(table), probe.sizes)


def test_the_signals_are_those_of_the_definition_over_all_ranks() -> None:
    torch.manual_seed(0)
    model = Mixture()
    batch = torch.randint(0, VOCABULARY, (8, 32))
    found = signals_of(model, batch[:3], batch[3:])
    logits = model.gate(model.embed(batch)).detach().flatten(0, 1).double()
    p = torch.softmax(logits, -1).mean(0)
    load = torch.bincount(logits.topk(K).indices.flatten(), minlength=EXPERTS).double()
    expected = {
        "expert_load_max": load.max() / load.mean(),
        "expert_load_min": load.min() / load.mean(),
        "dead_experts": (load < 0.05 * load.mean()).sum(),
        "router_entropy": -(p * p.log()).sum(),
        "router_z_loss": torch.logsumexp(logits, -1).square().mean(),
        "aux_loss": EXPERTS * (load / load.sum() * p).sum(),
    }
    assert found == {n: pytest.approx(float(x), rel=1e-5) for n, x in expected.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Mixtral", "Qwen3Moe", "Olmoe"])
def test_models_of_transformers_are_watched_with_the_loss_that_they_give(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=EXPERTS,
        num_experts=EXPERTS,
        num_experts_per_tok=K,
        pad_token_id=0,
        output_router_logits=True,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    probe = RouterProbe(model)
    assert probe.sizes == [EXPERTS, EXPERTS]
    probe.armed = True
    batch = torch.randint(1, VOCABULARY, (4, 32))
    output = model(input_ids=batch, labels=batch)
    found = router_signals(np.array([probe.take()]), probe.sizes)
    assert found["aux_loss"] == pytest.approx(float(output.aux_loss.detach()))
    for logits in output.router_logits:
        p = torch.softmax(logits.detach().float(), -1).mean(0)
        assert found["router_entropy"] <= float(-(p * p.log()).sum()) + 1e-4
    assert 1.0 <= found["expert_load_max"] <= EXPERTS / K
    assert found["dead_experts"] == 0


def test_a_router_that_sends_all_tokens_to_two_experts_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, steps, spoilt = Mixture(), 62, 44
    guard = Guard(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        data=torch.utils.data.DataLoader(Sequences(16 * steps), batch_size=16),
        steps=steps,
        run=tmp_path,
        policy=Policy(probe_signs_every_steps=1, checkpoint_in_background=False),
        say=lambda _line: None,
    )
    for batch in guard:
        guard.backward(loss_of(model, batch % VOCABULARY))
        guard.step()
        if guard.step_number == spoilt:
            with torch.no_grad():
                model.gate.bias[:2] += 20  # its update has gone wrong
    found = [e.data for e in events_of(tmp_path, "finding") if e.data["severity"] != "info"]
    assert {f["kind"] for f in found} == {"router-collapse", "expert-imbalance"}
    assert {f["signal"] for f in found} >= {"router_entropy", "dead_experts"}
    assert all(f["onset"] > spoilt for f in found)
    assert [rows_of(tmp_path)[i]["dead_experts"] for i in (20, -1)] == [0, 2]
