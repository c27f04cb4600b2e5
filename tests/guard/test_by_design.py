"""Rises that the script explains: a rate that comes back, a weight that grows, turns."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.guard.inner import design_of
from tests.guard.tiny import events_of
from trimtab.detectors.contract import Finding
from trimtab.guard import Guard
from trimtab.guard.recovery import kept_remedy
from trimtab.guard.recovery.by_design import ByDesign
from trimtab.guard.recovery.case import Verification
from trimtab.guard.recovery.commands import JournalEvent, ReleaseSettings
from trimtab.guard.recovery.expectation import Expectation
from trimtab.guard.recovery.state import RecoveryState
from trimtab.guard.step.loss_terms import terms_of
from trimtab.plan.policy import Policy
from trimtab.plan.trials import SettingPutBack
from trimtab.record import RecordBuilder

pytestmark = pytest.mark.torch

STEPS = 300


def alarm(onset: int, kind: str = "spike", detector: str = "spike") -> Finding:
    return Finding(
        detector=detector, kind=kind, signal="loss", severity="warning", row=onset, step=onset,
        onset_row=onset, onset=onset, peak_row=onset, peak=onset, value=2.0, expected=1.0,
        score=9.0, text="",
    )  # fmt: skip


def fed(
    rate: Callable[[int], float],
    rise: Callable[[int], float] = lambda _: 0.0,
    *,
    until: int = STEPS,
    terms: Callable[[int], tuple[float, ...]] = lambda _: (1.0,),
) -> ByDesign:
    """Return what is known after so many steps of a loss that falls from 4 to 1, and rises."""
    rng, design = np.random.default_rng(0), ByDesign()
    for t in range(1, until + 1):
        design.see_step(t, terms(t), 0)
        loss = 1 + 3 * math.exp(-t / 30) + rise(t) + 0.02 * rng.normal()
        design.take_row(t, loss, rate(t))
    return design


def restarts(t: int) -> float:
    return 0.5 + 0.49 * math.cos(math.pi * ((t - 1) % 100) / 100)


@pytest.mark.parametrize(
    ("rate", "explained"),
    [
        (restarts, True),
        (lambda t: restarts(t) * (10 if t > 200 else 1), False),  # beyond all that were in force
        (lambda t: 1.0 if t < 150 or t > 200 else 0.1, True),  # a milestone that is taken back
        (lambda t: 10.0 if t > 200 else 1.0, False),
        (lambda t: min(t / 20, 1.0) * min(1.03 ** max(t - 180, 0), 300), False),  # climbs for ever
        (lambda t: 1.0, False),
    ],
)
def test_rise_at_a_rate_is_explained_where_the_rate_was_in_force_before(
    rate: Callable[[int], float], explained: bool
) -> None:
    design = fed(rate, until=206)
    assert bool(design.why(alarm(202))) is explained
    assert not design.failed(206)
    assert not design.why(alarm(180))


def test_ramp_that_passes_what_was_in_force_explains_nothing_any_more() -> None:
    def rate(t: int) -> float:
        return (1.0 if t < 100 else 0.3) * 1.05 ** max(t - 200, 0)

    design = fed(rate, until=215)
    assert design.why(alarm(212))
    for t in range(216, 240):
        design.take_row(t, 1.0, rate(t))
    assert design.failed(240) == {alarm(212).key}
    assert not design.why(alarm(212))


@pytest.mark.parametrize(
    ("rise", "fails"),
    [
        (lambda t: 0.5 * math.exp(-((t - 1) % 100) / 30) if t > 100 else 0, False),
        (lambda t: 0.8 * math.exp(-(t - 200) / 30) if t > 200 else 0, True),  # none at 100
        (lambda t: 2.5 if t > 203 else 0, True),  # too far: half of the descent is 1.5
        (lambda t: (0.5 if t > 203 else 0) + (0.4 if 100 < t < 130 else 0), True),  # stays
    ],
)
def test_rise_at_a_restart_is_an_alarm_after_all_where_the_loss_does_not_come_back(
    rise: Callable[[int], float], fails: bool
) -> None:
    found = list[object]()
    rng = np.random.default_rng(1)
    design = fed(restarts, rise, until=202)
    assert design.why(alarm(202))
    for t in range(203, 300):
        design.take_row(t, 1 + rise(t) + 0.02 * rng.normal(), restarts(t))
        found += design.failed(t)
    assert bool(found) is fails


def test_what_is_known_is_built_again_from_rows_and_changes() -> None:
    record = RecordBuilder("", "test")
    turns = [(t, (-0.5,) if t > 100 and t // 5 % 2 else (1.0, 2e-3 * t), 0) for t in range(1, 203)]
    rng, design = np.random.default_rng(0), ByDesign()
    for t, terms, trained in turns:
        loss = 1 + 3 * math.exp(-t / 30) + 0.02 * rng.normal()
        design.see_step(t, terms, trained)
        design.take_row(t, loss, restarts(t))
        record.add(t, {"loss": loss, "lr": restarts(t)})
    record.add(203, {"loss": 99.0})  # given up at the restart
    again = ByDesign.of_rows(record.build(), list(design.changes), until=202)
    assert again.changes == design.changes
    for onset in (101, 150, 180, 201):
        for kind in ("spike", "loss-count"):
            told = alarm(onset, kind, "spike" if kind == "spike" else kind)
            assert again.why(told) == design.why(told)
    assert again.why(alarm(201))


@pytest.mark.slow
def test_turns_are_known_after_a_kill_and_a_restart(tmp_path: Path) -> None:
    killed = train(tmp_path / "killed", 0, 24, "flat", "phases of 5", until=215)
    shutil.copytree(tmp_path / "killed", tmp_path / "again")  # as the kill leaves it
    killed.close()
    again = train(tmp_path / "again", 0, 24, "flat", "phases of 5", until=201)
    design = design_of(again)  # the checkpoint is that of step 200
    assert design.changes[0][0] == 1
    assert design.why(alarm(195))
    assert not again.actions
    again.close()


@pytest.mark.parametrize("level", [0.3, 1.5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_return_explains_no_more_than_the_level_that_the_rate_had(
    level: float, seed: int
) -> None:
    """A milestone that is taken back: the loss may stay where it was at that rate."""
    rng, design = np.random.default_rng(seed), ByDesign()
    for t in range(1, 261):
        low = 100 < t <= 200
        loss = (0.3 if not low else 0.1) + (level - 0.3) * (t > 200) + 4 * math.exp(-t / 15)
        design.take_row(t, loss + 0.02 * rng.normal(), 0.1 if low else 1.0)
        if t == 203:
            assert design.why(alarm(202))
    read = replace(alarm(202, "held-out-worse"), detector="held-out", value=9.0)
    assert not design.why(read)
    assert bool(design.failed(260)) is (level > 1)
    assert not design.why(alarm(240))  # the rate came back long before


def test_growth_over_thousands_of_steps_is_seen_and_bounds_a_rise() -> None:
    def weight(t: int) -> tuple[float, ...]:
        return (1.0, 2e-4 * t)

    slow = fed(lambda _: 1.0, until=700, terms=weight)
    assert slow.why(alarm(550, "drift"))
    assert not slow.failed(700)
    for t in range(701, 720):  # so much more of the part cannot be
        slow.see_step(t, weight(t), 0)
        slow.take_row(t, 2.0, 1.0)
    assert slow.failed(719)
    late = fed(lambda _: 1.0, lambda t: 1.0 if t > 690 else 0.0, until=700, terms=weight)
    assert not late.why(alarm(691))


def test_slow_rise_that_is_told_long_after_a_weight_stands_still_is_explained() -> None:
    """A drift is sure about a hundred rows after it began: here the growth is over by then."""

    def weight(t: int) -> float:
        return 0.08 * min(t / 400, 1.0)

    def late(risen: float) -> ByDesign:
        return fed(
            lambda _: 1.0, lambda t: 2 * weight(t) + risen * (t > 400), until=497,
            terms=lambda t: (1.0, weight(t)),
        )  # fmt: skip

    assert late(0.0).why(alarm(385, "drift"))
    assert not late(0.5).why(alarm(385, "drift"))  # more than it adds


@pytest.mark.parametrize("period", [1, 3])
def test_turns_do_not_explain_a_loss_beyond_all_turns_before(period: int) -> None:
    rng, design = np.random.default_rng(3), ByDesign()
    for t in range(1, 460):
        design.see_step(t, (1.0,), t // period % 2)
        design.take_row(t, (1.1 if t % 2 else 1.0) + 0.02 * rng.normal(), 1.0)
    assert design.why(alarm(459))
    design.see_step(460, (1.0,), 460 // period % 2)
    design.take_row(460, 2.0, 1.0)
    assert design.failed(460) == {alarm(459).key}
    assert not design.why(alarm(459))
    assert not design.why(alarm(460))


def test_memory_is_bounded_over_many_cycles() -> None:
    design, wave = ByDesign(), [0.5 + 0.49 * math.cos(math.pi * t / 10) for t in range(10)]
    for t in range(1, 4001):
        design.see_step(t, (1.0, 1e-3 * (t % 500)), t // 5 % 2)
        design.take_row(t, 1 + wave[t % 10], wave[t % 10])
        if t % 10 == 2:
            design.why(alarm(t))
    sizes = [len(x) for x in vars(design).values() if hasattr(x, "__len__")]
    assert max(sizes) <= 1024


def test_rise_of_what_ranks_do_not_share_is_not_asked_about() -> None:
    assert ByDesign.is_about(alarm(9))
    assert not ByDesign.is_about(replace(alarm(9), signal="throughput"))


def test_weight_that_grows_explains_a_rise_until_it_stands_still() -> None:
    def warm_up(t: int) -> tuple[float, ...]:
        return (1.0, min(max(t - 100, 0) / 80, 1.0))

    assert fed(lambda _: 1.0, until=130, terms=warm_up).why(alarm(125, "drift"))
    late = fed(lambda _: 1.0, terms=warm_up)
    assert not late.why(alarm(280, "drift"))
    at_once = fed(lambda _: 1.0, until=130, terms=lambda t: (1.0, 0.1 if t < 120 else 4.0))
    assert not at_once.why(alarm(121))


@pytest.mark.parametrize("period", [1, 2, 20])
def test_turns_explain_what_begins_where_they_change_over(period: int) -> None:
    def sign(t: int) -> tuple[float, ...]:
        return (-0.5,) if t > 100 and (t // period) % 2 else (1.0,)

    design = fed(lambda _: 1.0, until=200, terms=sign)
    assert design.why(alarm(181))
    assert design.why(alarm(103, "setting-jump", "loss-count"))
    assert bool(design.why(alarm(190))) is (period < 20)
    turned = fed(lambda _: 1.0, until=200, terms=lambda t: (-1.0,) if t > 100 else (1.0,))
    assert not turned.why(alarm(101))  # it has not come back: a fault, for all that is known


def test_terms_are_the_factors_of_the_parts_of_a_loss() -> None:
    x = torch.ones(3, requires_grad=True)
    a, b = x.sum(), x.exp().sum()
    assert terms_of(a - 0.5 * b) == (1.0, -0.5)
    assert terms_of(-(a + 2 * b) / 4) == (-0.25, -0.5)
    assert terms_of(torch.tensor(-3.0) * a) == (-3.0,)
    assert terms_of(1 - a * b) == (-1.0,)
    assert terms_of(a.detach()) == ()


PLANS: dict[str, Callable[[int], float]] = {
    "restarts": lambda s: restarts(s + 1),
    "x10": lambda s: restarts(s + 1) * (10 if s >= 130 else 1),
    "flat": lambda _: 1.0,
}
SIGNS: dict[str, Callable[[int], float]] = {
    "each step": lambda s: -0.5 if s > 100 and s % 2 else 1.0,
    "phases of 5": lambda s: -0.1 if s > 100 and (s // 5) % 2 else 1.0,
}


def train(
    run: Path,
    seed: int,
    width: int,
    rate: str,
    sign: str = "",
    *,
    until: int = STEPS,
    once: Callable[[nn.Sequential], None] | None = None,
) -> Guard:
    """Train a classifier of noisy labels in act, and leave it after a step."""
    torch.manual_seed(seed)
    inputs = torch.randn(6000, 16)
    labels = (inputs @ torch.randn(16, 4) + 0.5 * torch.randn(6000, 4)).argmax(1)
    model = nn.Sequential(
        nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-2)
    guard = Guard(
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, PLANS[rate]),
        data=DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True),
        run=run, mode="act", clip=1.0, steps=STEPS, say=lambda _: None,
    )  # fmt: skip
    for x, y in guard:
        if guard.step_number == 155 and once is not None:
            once(model)
            once = None
        factor = SIGNS[sign](guard.step_number) if sign else 1.0
        guard.backward(factor * nn.functional.cross_entropy(model(x), y))
        guard.step()
        if guard.step_number >= until:
            break
    return guard


def remedies(guard: Guard) -> list[str]:
    return [str(a["remedy"]) for a in guard.actions]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "width"), [(0, 24), (1, 64)])
def test_run_is_left_alone_at_restarts_and_turns_and_not_at_ten_times_the_rate(
    tmp_path: Path, seed: int, width: int
) -> None:
    assert remedies(train(tmp_path / "restarts", seed, width, "restarts")) == []
    for sign in SIGNS:
        run = tmp_path / sign
        assert remedies(train(run, seed, width, "flat", sign)) == []
        assert not [e for e in events_of(run, "attempt") if e.data["why"] != "start"]
    assert "roll-back+lower-lr" in remedies(train(tmp_path / "x10", seed, width, "x10"))


@torch.no_grad()
def scaled(model: nn.Sequential, *, evened: bool) -> None:
    """Scale a layer, and the next one by the inverse: with ReLU between the model is the same."""
    for p in model[2].parameters():
        p.mul_(30.0)
    if evened:
        model[4].get_parameter("weight").div_(30.0)


@pytest.mark.slow
@pytest.mark.parametrize("evened", [False, True])
def test_matrix_that_grew_is_gone_back_from_only_where_fixed_batches_are_worse(
    tmp_path: Path, evened: bool
) -> None:
    guard = train(tmp_path, 0, 24, "flat", once=partial(scaled, evened=evened))
    assert [e.data["setting"] for e in events_of(tmp_path, "setting-changed")] == ["weights"]
    first, *_ = [e.data for e in events_of(tmp_path, "decision") if "fixed batches" in str(e.data)]
    assert first["what"] == ("leave alone" if evened else "read the fixed batches")
    # evened out nothing is worse at first; what Adam makes of such layers later is another matter
    assert evened or remedies(guard) == ["roll-back"]


CHANGED = SettingPutBack(
    name="Dropout.p", step=90, values=(0.1,), changed_to=(0.5,), shown="Dropout.p back to 0.1"
)


@pytest.mark.parametrize(
    ("end", "verdict"), [(0.5, "worked"), (2.0, "did not")], ids=["far below", "above"]
)
def test_verification_lets_a_hold_go_that_did_not_help(end: float, verdict: str) -> None:
    """An alarm about a loss that is far below what it was says nothing against the remedy."""
    expected = Expectation(level=1.0, sigma=0.05, unit=3.0)
    kept = Verification("put-back", 200, expected, losses=(end,) * 12, put_back=(CHANGED,))
    state = RecoveryState(policy=Policy(mode="act"), verification=kept)
    _, commands = kept_remedy.verify_step(state, end, alarmed=True, step=113, failures=0)
    (outcome,) = [c for c in commands if isinstance(c, JournalEvent) and c.event == "outcome"]
    assert outcome.data["verdict"] == verdict
    released = [c for c in commands if isinstance(c, ReleaseSettings)]
    assert released == ([] if verdict == "worked" else [ReleaseSettings((CHANGED,))])
    told = [c for c in commands if isinstance(c, JournalEvent) and c.event == "decision"]
    assert bool(told) is (verdict != "worked")
