"""Settings that no object holds: the scale of batches, the count of the loss, the peak of a rate."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tests.guard.inner import inner
from tests.guard.tiny import events_of, guard_of, make
from trimtab.guard import Guard
from trimtab.guard.recovery import both_ways
from trimtab.guard.settings.ledger import SettingsLedger
from trimtab.guard.settings.measured import BatchScales, LossCount, RatePeak
from trimtab.guard.settings.reader import SettingsReader
from trimtab.guard.state.training_state import Training
from trimtab.plan.expected import ExpectedChanges
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS, CHANGE = 150, 90
POLICY = Policy(
    trial_steps=16,
    patience_steps=6,
    verify_steps=16,
    cooldown_steps=16,
    max_wasted_share=4.0,
    checkpoint_in_background=False,
)


def images(seed: int) -> list[Tensor]:
    made = torch.Generator().manual_seed(seed)
    return [torch.rand(16, 8, 8, generator=made), torch.zeros(16, dtype=torch.long)]


def test_scale_of_batches_is_seen_once_and_taken_out_only_where_it_is_other() -> None:
    scales = BatchScales()
    assert not any(scales.see(images(i), i) for i in range(40))
    x, y = images(50)
    for changed in (1.3 * x, -x, x + 0.5):
        assert not scales.see([changed, y], 40)
    found = [f for i in range(40, 46) for f in scales.see([255 * images(i)[0], images(i)[1]], i)]
    assert [(name, step) for name, step, *_ in found] == [("batch[0]", 40)]
    assert scales.ratio == pytest.approx(255, rel=0.05)
    scales.hold({"batch[0]": scales.values_to_hold("batch[0]")})
    mended = scales.apply([255 * x, y])
    assert torch.allclose(mended[0], x, rtol=0.05)
    assert mended[1] is y
    usual = [x, y]
    assert scales.apply(usual) is usual


def losses(factor: Callable[[int], float], *, spread: float = 0.3) -> list[tuple[int, float]]:
    """Return what a stream of losses with noise of its own is said to be multiplied by, and when."""
    rng, count = np.random.default_rng(0), LossCount()
    found = []
    for step in range(120):
        loss = factor(step) * math.exp(spread * rng.normal())
        norm = abs(factor(step)) * math.exp(spread * rng.normal())
        found += [(f[1], f[3][0]) for f in count.see(loss, norm, step, counts=True)]
    return found


def test_count_of_the_loss_is_told_by_loss_and_norm_together() -> None:
    assert losses(lambda t: -1.0 if t >= 60 else 1.0) == [(60, -1.0)]
    ((step, factor),) = losses(lambda t: 16.0 if t >= 60 else 1.0)
    assert step == 60
    assert factor == pytest.approx(16, rel=0.5)
    for harmless in (
        lambda t: 2.0 if t >= 60 else 1.0,
        lambda t: 1 - t / 60.5,  # falls through zero
        lambda t: math.exp(-t / 10),
    ):
        assert losses(harmless, spread=0.05) == []


def test_rate_is_beyond_its_peak_only_once_it_has_come_down_and_climbs() -> None:
    def beyond(rate: Callable[[int], float]) -> list[int]:
        peak = RatePeak()
        return [t for t in range(300) if peak.see(rate(t), t) is not None]

    def cosine(t: int) -> float:
        return min(t / 20, 1.0) * (0.55 + 0.45 * math.cos(math.pi * t / 300))

    assert beyond(cosine) == []
    assert beyond(lambda t: cosine(t % 100)) == []  # restarts
    assert beyond(lambda t: t / 300) == []  # a warm-up that does not end
    assert beyond(lambda t: cosine(t) * (2.5 if t > 150 else 1)) == []  # a jump, for its own rules
    assert beyond(lambda t: cosine(t) * (10 if t > 150 else 1)) == [151]
    assert len(beyond(lambda t: cosine(t) * min(1.03 ** max(t - 100, 0), 300))) == 1


def scaled(x: Tensor, model: nn.Module) -> Tensor:
    return torch.as_tensor(nn.functional.mse_loss(model(x), torch.tanh(x[:, :4])))


def train(run: Path | None, what: str) -> tuple[nn.Module, list[str]]:
    """Train in act, or in a plain loop; from CHANGE on the sign is turned, or most is frozen."""
    torch.manual_seed(0)
    x = torch.randn(32 * STEPS * 2, 16)
    layers = [m for _ in range(4) for m in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    rate = 0.0 if what == "frozen, at rate 0" else 1e-3
    lower: dict[str, Any] = {"params": nn.Sequential(*layers).parameters(), "lr": rate}
    optimizer = torch.optim.AdamW([{"params": list(model[-1].parameters())}, lower], lr=1e-3)
    data = DataLoader(TensorDataset(x), batch_size=32)

    def loss_of(inputs: Tensor, step: int) -> Tensor:
        if what.startswith("frozen") and step == CHANGE:
            for p in list(model.parameters())[:-2]:
                p.requires_grad_(False)
        return scaled(inputs, model) * (-1 if what == "sign" and step >= CHANGE else 1)

    if run is None:
        for step, (inputs,) in zip(range(1, STEPS + 1), data, strict=False):
            optimizer.zero_grad()
            torch.autograd.backward([loss_of(inputs, step)])
            optimizer.step()
        return model, []
    guard = Guard(
        model, optimizer, data=data, run=run, mode="act", steps=STEPS, policy=POLICY,
        say=lambda _: None,
    )  # fmt: skip
    for (inputs,) in guard:
        guard.backward(loss_of(inputs, guard.step_number + 1 if guard.phase != "probe" else 0))
        guard.step()
    return model, [str(a["remedy"]) for a in guard.actions]


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.slow
def test_turned_sign_is_put_back(tmp_path: Path) -> None:
    model, done = train(tmp_path / "run", "sign")
    assert done == ["roll-back+put-back"]
    assert float(scaled(torch.randn(256, 16), model).detach()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["frozen", "frozen, at rate 0"])
def test_frozen_parameters_are_tried_both_ways_and_left_where_that_is_no_worse(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        both_ways, "SLOWER_SPEED", 10.0
    )  # as where the run learns more slowly since
    run = tmp_path / "run"
    model, done = train(run, what)
    trials = [e for e in events_of(run, "attempt") if str(e.data["why"]).startswith("trial")]
    assert len(trials) == 1
    assert done == (["roll-back+put-back"] if what == "frozen" else [])
    # put back it is the run that was never frozen; left alone it is the loop's own, to the bit
    assert same(model, train(None, "" if what == "frozen" else what)[0])
    assert "requires_grad" in (run / "verdict.json").read_text()


@pytest.mark.parametrize("then", ["the same", "others"])
def test_hold_ends_where_the_script_goes_on_by_a_plan_of_its_own(then: str) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    reader = SettingsReader(Training(model, optimizer, None, None, {}), clip=lambda: None)
    ledger = SettingsLedger(reader, ExpectedChanges())

    def step(number: int, trained: range | None) -> dict[str, str]:
        if trained is not None:
            for i, p in enumerate(model.parameters()):
                p.requires_grad_(i in trained)
        model(torch.ones(1, 2))
        ledger.before_update(number)
        return ledger.ended_holds(number)

    step(1, None)
    step(2, range(2))
    ledger.put_back({"requires_grad": (1.0,) * 16})
    assert not step(3, range(2))  # as after a rollback: the same change again
    assert not step(4, None)
    ended = step(60, range(2) if then == "the same" else range(2, 4))
    assert ended.keys() == {"requires_grad"}
    assert sum(p.requires_grad for p in model.parameters()) == 2
    assert not step(61, None)


def test_settings_that_were_held_in_a_trial_are_those_of_their_step_after_another_rollback() -> (
    None
):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    reader = SettingsReader(Training(model, optimizer, None, None, {}), clip=lambda: None)
    ledger = SettingsLedger(reader, ExpectedChanges())

    def run(first: int, last: int) -> list[int]:
        for step in range(first, last + 1):
            if step == 15:
                model[0].requires_grad_(False)
            ledger.before_update(step)
        return [sum(p.requires_grad for p in model.parameters())]

    assert run(1, 20) == [2]
    ledger.went_back(10)
    ledger.put_back({"requires_grad": (1.0,) * 4})  # a trial, past the step of the change
    assert run(11, 20) == [4]
    ledger.release({"requires_grad": (0.0, 0.0, 1.0, 1.0)})
    ledger.went_back(5)
    assert run(6, 14) == [4]
    assert run(15, 20) == [2]


def test_hold_of_a_setting_ends_where_a_loop_that_set_it_no_longer_does(tmp_path: Path) -> None:
    s, run, held = make(dropout=0.0), tmp_path / "run", dict[int, bool]()
    guard = guard_of(s, run, mode="act", steps=24, policy=POLICY)
    for batch in guard:
        if guard.step_number == 2:
            inner(guard).engine.hold_settings({"Dropout.p": (0.0,)})
        if guard.step_number < 10:
            s.model.dropout.p = 0.5
        guard.backward(s.loss(batch))
        guard.step()
        held[guard.step_number] = "Dropout.p" in inner(guard).engine.decisions.held_settings
    assert held[16]
    assert not held[24]
    (ended,) = [e for e in events_of(run, "decision") if "no longer hold" in str(e.data["what"])]
    assert "Dropout.p" in str(ended.data["what"])
