"""The probes against computations by hand, in every form that attention comes in."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.guard.tiny import VOCAB, Sequences, events_of, rows_of
from trimtab.cli import main
from trimtab.guard import Guard
from trimtab.guard.distributed.holders import Holders
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.probes.activations import find_blocks
from trimtab.guard.probes.attention import AttentionProbe
from trimtab.guard.probes.batch import batch_statistics
from trimtab.guard.probes.moments import UpdateProbe
from trimtab.guard.probes.overflow import find_overflow

pytestmark = pytest.mark.torch


class Attention(nn.Module):
    """Causal attention in one of the ways people write it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.qkv = nn.Linear(16, 48, bias=False)
        self.dead = nn.Parameter(torch.ones(7))

    def forward(self, x: Tensor) -> Tensor:
        x = x + (0.0 * self.dead).sum()
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        n = x.shape[1]
        keep = torch.ones(n, n).tril().bool()
        if self.how == "causal":
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.how == "bool mask":
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        elif self.how == "float mask":
            mask = torch.zeros(1, 1, n, n).masked_fill(~keep, -1e30)
            y = functional.scaled_dot_product_attention(q, k, v, mask)
        elif self.how == "grouped":
            y = functional.scaled_dot_product_attention(
                q, k[:, :1], v[:, :1], is_causal=True, enable_gqa=True
            )
        else:
            logits = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~keep, -math.inf)
            y = torch.softmax(logits, dim=-1) @ v
        return x + y.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(self, how: str = "causal") -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.blocks = nn.ModuleList(Attention(how) for _ in range(2))
        self.output = nn.Linear(16, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.output(x)
        return logits


def by_hand(model: Model, tokens: Tensor) -> tuple[list[float], list[float], list[Tensor], Tensor]:
    """Largest logit and mean entropy by layer, the outputs of the blocks, and the logits."""
    x = model.embedding(tokens)
    top, entropy, outputs = [], [], []
    for block in model.blocks:
        assert isinstance(block, Attention)
        q, k, _ = block.qkv(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        k = k[:, :1] if block.how == "grouped" else k
        n = x.shape[1]
        logits = q @ k.transpose(-2, -1) / 8**0.5
        logits = logits.masked_fill(~torch.ones(n, n).tril().bool(), -math.inf)
        p = logits.softmax(-1)
        top.append(float(logits[:2].max()))
        entropy.append(float(-(p * p.clamp_min(1e-30).log()).sum(-1)[:2].mean()))
        x = block(x).detach()
        outputs.append(x)
    return top, entropy, outputs, model.output(x)


def guarded(
    tmp_path: Path, model: Model, *, steps: int = 10, batch_size: int = 2, **options: Any
) -> list[Any]:
    """Train for some steps; returns what `by_hand` gives before the last step.

    And its gradients.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.02, betas=(0.9, 0.97))
    loader = DataLoader(Sequences(64), batch_size=batch_size)
    guard = Guard(
        model,
        optimizer,
        data=loader,
        clip=0.05,
        steps=steps,
        run=tmp_path / "run",
        say=lambda _line: None,
        **options,
    )
    known: list[Any] = []
    for batch in guard:
        if guard.step_number == steps - 1:
            with torch.no_grad():
                known = [*by_hand(model, batch[:, :-1])]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        guard.backward(loss)
        if guard.step_number == steps - 1:
            known.append(
                {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            )
            known.append({n: p.detach().clone() for n, p in model.named_parameters()})
        guard.step()
    return known


def layers_of(run: Path) -> list[dict[str, Any]]:
    import json

    path = run / "signals" / "layers" / "1.0.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("how", ["causal", "bool mask", "float mask", "grouped", "softmax"])
def test_attention_is_seen_however_it_is_written(tmp_path: Path, how: str) -> None:
    torch.manual_seed(1)
    top, entropy, *_ = guarded(tmp_path, Model(how))
    (_, row) = layers_of(tmp_path / "run")
    assert row["step"] == 10
    assert row["attention_logit_max"] == pytest.approx(top, rel=1e-5)
    assert row["attention_entropy"] == pytest.approx(entropy, rel=1e-4)
    last = rows_of(tmp_path / "run")[-1]
    assert last["attention_logit_max"] == pytest.approx(max(top), rel=1e-5)
    assert last["attention_entropy"] == pytest.approx(min(entropy), rel=1e-4)
    assert "attention_logit_max" not in rows_of(tmp_path / "run")[-2]


@pytest.mark.covers("S20")
@pytest.mark.parametrize("bar", [1.05, 1e6])
def test_gradients_by_block_are_a_table_with_an_alarm_to_be_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], bar: float
) -> None:
    torch.manual_seed(1)
    model, run = Model(), tmp_path / "run"
    bars = {"layer-gradients.ratio": bar, "layer-gradients.num_readings": 1}
    grads = guarded(tmp_path, model, thresholds=bars)[4]
    first, last = (float(grads[f"blocks.{i}.qkv.weight"].norm()) for i in range(2))
    ratio = max(first / last, last / first)
    assert ratio > 1.05
    main(["inspect", str(run), "--layers", "--columns", "loss=loss"])
    table = capsys.readouterr().out.partition("blocks in attempt")[2]
    place = table.splitlines()[1].split().index("grad_norm")
    shown = {line.split()[0]: line.split()[place] for line in table.splitlines()[2:5]}
    assert float(shown["0"]) == pytest.approx(first, rel=1e-3)
    assert float(shown["first/last"]) == pytest.approx(first / last, rel=1e-3)
    journal = (run / "journal.jsonl").read_text()
    assert ('"signal": "grad_norm_ratio", "severity": "warning"' in journal) is (bar < ratio)


@pytest.mark.covers("S11")
def test_layers_output_and_weights_against_hand_computed_values(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Model()
    _, _, outputs, logits, grads, weights = guarded(tmp_path, model)
    (_, row), last = layers_of(tmp_path / "run"), rows_of(tmp_path / "run")[-1]
    rms = [float(o.square().mean().sqrt()) for o in outputs]
    assert row["activation_rms"] == pytest.approx(rms, rel=1e-5)
    assert row["activation_max"] == pytest.approx([float(o.abs().max()) for o in outputs], rel=1e-5)
    norms = [float(grads[f"blocks.{i}.qkv.weight"].norm()) for i in range(2)]  # dead ones add 0
    assert row["grad_norm"] == pytest.approx(norms, rel=1e-4)
    assert last["grad_norm_ratio"] == pytest.approx(norms[0] / norms[1], rel=1e-4)
    assert last["embedding_grad_norm"] == pytest.approx(
        float(grads["embedding.weight"].norm()), rel=1e-4
    )
    assert last["num_zeros"] >= 14
    assert last["num_zeros"] == sum(int((g == 0).sum()) for g in grads.values())
    log_z = torch.logsumexp(logits.flatten(0, 1), -1).square().mean().sqrt()
    assert last["output_log_z"] == pytest.approx(float(log_z), rel=1e-5)
    weight_norm = math.sqrt(sum(float(w.square().sum()) for w in weights.values()))
    assert last["weight_norm"] == pytest.approx(weight_norm, rel=1e-5)
    after = dict(model.named_parameters())
    moved = math.sqrt(
        sum(float((after[n].detach() - w).square().sum()) for n, w in weights.items())
    )
    assert last["update_ratio"] == pytest.approx(moved / weight_norm, rel=1e-4)
    assert (last["beta1"], last["beta2"], last["weight_decay"]) == (0.9, 0.97, 0.02)
    assert last["throughput"] == pytest.approx(14 / last["step_time_s"])
    assert 0.01 < last["host_memory_gib"] < 100


def test_a_batch_is_known_before_its_step() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (16, 128), generator=generator)
    same = torch.full((16, 128), 92)
    assert batch_statistics({"ids": noise})["batch_compression"] > 0.9
    assert batch_statistics([same])["batch_compression"] < 0.03
    assert batch_statistics(same)["batch_entropy"] == 0.0
    assert batch_statistics(noise)["batch_entropy"] == pytest.approx(math.log(256), rel=0.05)
    big = torch.randint(0, 50_000, (512, 1024), generator=generator)
    assert batch_statistics(big)["batch_entropy"] > 8.0
    assert "batch_entropy" not in batch_statistics(torch.randn(4, 4))
    assert batch_statistics(torch.zeros(0, 5, dtype=torch.long)) == {}
    assert batch_statistics("text") == {}


def test_the_repeated_blocks_are_found() -> None:
    assert list(find_blocks(Model())) == ["blocks.0", "blocks.1"]
    assert find_blocks(nn.Linear(2, 2)) == {}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 3)
    assert list(find_blocks(encoder)) == ["layers.0", "layers.1", "layers.2"]


@pytest.mark.slow
def test_a_compiled_model_is_not_watched_and_trains(tmp_path: Path) -> None:
    model = Model()
    compiled = torch.compile(model, backend="eager")
    assert not AttentionProbe(compiled).possible  # type: ignore[arg-type]
    guarded(tmp_path, compiled)  # type: ignore[arg-type]
    assert "attention_logit_max" not in rows_of(tmp_path / "run")[-1]
    assert layers_of(tmp_path / "run")[0]["grad_norm"][0] > 0


def test_a_probe_that_fails_is_named_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trimtab.guard.probes import attention

    def fail(*_: Any) -> Any:
        raise ValueError("planted")

    monkeypatch.setattr(attention, "of_queries", fail)
    guarded(tmp_path, Model(), steps=30)
    notes = [e.data["text"] for e in events_of(tmp_path / "run", "note")]
    assert notes == ["probe attention is left out from now on: ValueError: planted"]
    assert events_of(tmp_path / "run", "fault") == []
    assert [r["step"] for r in layers_of(tmp_path / "run")] == [1, 10, 20, 30]


@pytest.mark.parametrize("where", ["blocks.1.qkv.weight", "output.bias"])
def test_the_first_tensor_with_a_broken_gradient_is_named(tmp_path: Path, where: str) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = Guard(
        model,
        optimizer,
        data=DataLoader(Sequences(64), batch_size=2),
        clip=1.0,
        steps=5,
        run=tmp_path / "run",
        mode="act",
        say=lambda _line: None,
    )
    for batch in guard:
        logits = model(batch[:, :-1])
        guard.backward(functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        if guard.step_number == 2:
            grad = dict(model.named_parameters())[where].grad
            assert grad is not None
            grad.view(-1)[0] = math.inf
        guard.step()
    marked = [r for r in rows_of(tmp_path / "run") if "nonfinite_at" in r]
    assert [(r["step"], r["nonfinite_at"], r["nonfinite_tensors"]) for r in marked] == [
        (3, where, "1 of 7")
    ]


@pytest.mark.covers("S237")
def test_the_first_module_that_overflows_or_underflows_is_named() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)).half()
    x = torch.ones(2, 4).half()
    assert find_overflow(model, lambda: model(x)) == ()
    with torch.no_grad():
        model[1].get_parameter("weight").fill_(30000.0)
        model[0].get_parameter("weight").fill_(2.0)
    first, *_ = find_overflow(model, lambda: model(x))
    assert (first.name, first.overflows, first.nonfinite) == ("1", True, 8)
    with torch.no_grad():
        model[0].get_parameter("weight").fill_(1e-6)
        model[0].get_parameter("bias").zero_()
        model[1].get_parameter("weight").fill_(1.0)
    first, *_ = find_overflow(model, lambda: model(x))
    assert (first.name, first.underflows, first.overflows) == ("0", True, False)
    assert not any(m._forward_hooks for m in model.modules())


def test_in_a_run_the_module_is_named_in_the_step_after_a_broken_loss(tmp_path: Path) -> None:
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    guard = Guard(
        model,
        optimizer,
        data=DataLoader(Sequences(64), batch_size=2),
        steps=6,
        mode="act",
        run=tmp_path / "run",
        say=lambda _line: None,
    )
    for batch in guard:
        if guard.step_number == 2:
            with torch.no_grad():
                model.blocks[1].get_parameter("qkv.weight").fill_(math.nan)
        logits = model(batch[:, :-1])
        guard.backward(functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        guard.step()
    named = [(r["step"], r.get("nonfinite_module")) for r in rows_of(tmp_path / "run")]
    assert named[:4] == [(1, None), (2, None), (3, None), (4, "blocks.1.qkv")]


@pytest.mark.parametrize(
    ("grows", "seen"),
    [({}, None), ({65: 30.0}, 30.0), ({60: 30.0}, 30.0), ({65: 0.03}, None), ({65: 1.02}, None)],
    ids=["trained", "scaled", "in the step of a reading", "pruned", "a little"],
)
def test_matrix_that_grows_by_no_update_is_seen_at_the_next_reading(
    grows: dict[int, float], seen: float | None
) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(20, 20).requires_grad_(), torch.zeros(20, 4).requires_grad_()]
    probe, jumps = UpdateProbe(weights, Holders(Ranks())), dict[int, float]()
    with torch.no_grad():
        for step in range(1, 101):
            if step % 10 == 0:
                probe.before(step)
            weights[0].mul_(grows.get(step, 1.0))
            for w in weights:
                w += 0.01 * torch.sign(torch.randn_like(w) + 0.5)
            if step % 10 == 0:
                probe.after()
                jumps[step] = probe.jump
    found = {step: jump for step, jump in jumps.items() if jump != 1}
    assert list(found) == ([70] if seen else [])
    assert found.get(70) == (seen and pytest.approx(seen, rel=0.05))


@pytest.mark.parametrize(("rises", "seen"), [(True, False), (False, True)])
def test_a_matrix_that_grows_by_updates_of_a_larger_rate_is_no_jump(
    rises: bool, seen: bool
) -> None:
    torch.manual_seed(0)
    rate = 1e-3
    weight = torch.randn(20, 20).requires_grad_()
    probe, jumps = UpdateProbe([weight], Holders(Ranks()), lambda: rate), dict[int, float]()
    with torch.no_grad():
        for step in range(1, 101):
            larger = step >= 66
            rate = 0.3 if larger and rises else 1e-3
            if step % 10 == 0:
                probe.before(step)
            weight += (0.3 if larger else 1e-3) * torch.sign(weight)
            if step % 10 == 0:
                probe.after()
                jumps[step] = probe.jump
    assert any(jump != 1 for jump in jumps.values()) is seen


def test_an_update_of_a_large_model_is_read_from_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(700, 500), torch.randn(33)]
    probe = UpdateProbe([w.requires_grad_() for w in weights], Holders(Ranks()))
    monkeypatch.setattr("trimtab.guard.probes.moments.MOST_COPIED", 1 << 16)
    probe.before()
    norm = sum(float(w.detach().square().sum()) for w in weights)
    changes = [torch.randn_like(w) for w in weights]
    with torch.no_grad():
        for w, change in zip(weights, changes, strict=True):
            w += change
    found = probe.after()
    assert found is not None
    expected = sum(float(c.square().sum()) for c in changes)
    assert found[0] == pytest.approx(expected, rel=0.02)
    assert found[1] == pytest.approx(norm, rel=0.02)
    assert found[2] == max(float(w.detach().abs().max()) for w in weights)
