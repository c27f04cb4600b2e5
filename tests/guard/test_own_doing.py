"""Leaps of the loss that the loop itself makes: found in two branches, told, and left alone."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.guard.tiny import SHORT_TRIALS, Setup, events_of, guard_of, make
from trimtab.guard import Guard
from trimtab.guard.recovery.expectation import Expectation
from trimtab.guard.recovery.standstill import leap_of, own_doing
from trimtab.record import RecordBuilder

pytestmark = pytest.mark.torch

STEPS, AT = 130, 70


def head_anew(s: Setup) -> None:
    """Set the last layer anew, ten times as large, the same each time."""
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        s.model.output.weight.copy_(
            10 * torch.randn(s.model.output.weight.shape, generator=generator)
        )


def moments_lost(s: Setup) -> None:
    """Take the second moments away: the next update is far too large."""
    for held in s.optimizer.state.values():
        held["exp_avg_sq"].mul_(1e-9)


def train(run: Path, change: Any) -> tuple[Guard, list[int]]:
    s = make(num_samples=4 * STEPS, dropout=0.0)
    guard = guard_of(s, run, mode="act", steps=STEPS, policy=SHORT_TRIALS)
    made = []
    for batch in guard:
        if guard.step_number + 1 == AT and guard.phase != "probe":
            change(s)
            made.append(guard.step_number)
        guard.backward(s.loss(batch))
        guard.step()
    return guard, made


def decided(run: Path) -> list[str]:
    return [str(e.data["why"]) for e in events_of(run, "decision")]


def trials(run: Path) -> list[str]:
    return [e.data["remedy"] for e in events_of(run, "outcome") if e.data.get("trial")]


def test_a_layer_that_the_loop_sets_anew_is_told_and_left_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, made = train(run, head_anew)
    assert trials(run) == ["trial: as it was", "trial: with no update"]
    assert len(made) == 4  # the run, two branches, and the run again
    assert any("the loop itself changes the loss at step 70" in why for why in decided(run))
    assert not guard.actions
    guard.close()


def test_an_update_that_is_too_large_is_not_the_loops_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    guard, _ = train(run, moments_lost)
    assert not any("the loop itself" in why for why in decided(run))
    guard.close()


def case(run: list[float], still: list[float], *, onset: int = 20) -> Any:
    return SimpleNamespace(
        incident=SimpleNamespace(onset=onset),
        expected=Expectation(level=1.0, sigma=0.02, unit=1.0),
        control={11 + i: x for i, x in enumerate(run)},
        losses=tuple(still),
        from_step=10,
        first_sign=onset,
        probe_samples=(),
    )


FLAT = [1.0, 1.01, 0.99, 1.0, 1.01, 1.0, 0.99, 1.0, 1.0]


@pytest.mark.parametrize(
    ("still", "own"),
    [
        ([*FLAT, *[3.0] * 9], False),  # bit for bit the run: the rate does not act
        ([*[x + 0.001 for x in FLAT], *[3.0] * 9], True),
        ([*[x + 0.001 for x in FLAT], *[1.0] * 9], False),
        ([*[x + 0.001 for x in FLAT], 3.0, *[1.0] * 8], False),  # it passes by itself
        ([*[x + 0.001 for x in FLAT], 1.3, *[1.3] * 8], False),
        ([*[x + 0.001 for x in FLAT], *[np.nan] * 9], False),
        ([*[x + 0.001 for x in FLAT], 3.0], False),
    ],
)
def test_a_leap_that_comes_and_stays_without_updates_is_the_loops_own(
    still: list[float], own: bool
) -> None:
    assert bool(own_doing(case([*FLAT, *[3.0] * 9], still))) is own


@pytest.mark.parametrize(
    ("still", "own"),
    [
        ([1.0, 2.4, *[3.2] * 9], True),  # a queue of negatives fills
        ([1.0, 2.5, *[3.0] * 9], False),  # bit for bit the run: the rate does not act
        ([1.0] * 11, False),  # the updates raise it
        ([1.0, 2.4, *[1.4] * 9], False),
        ([1.0, 2.4, 3.2, 3.2], False),  # too short
        ([1.0, 2.4, *[np.nan] * 9], False),
    ],
)
def test_a_loss_that_leaves_its_first_rows_without_updates_began_low_by_itself(
    still: list[float], own: bool
) -> None:
    found = case([1.0, 2.5, *[3.0] * 9], still, onset=2)
    found.control = {t - 10: x for t, x in found.control.items()}
    found.from_step = 0
    assert ("began low" in own_doing(found)) is own


@pytest.mark.parametrize(
    ("run", "leaps"),
    [
        ([*FLAT, *[3.0] * 9], True),
        ([*FLAT, *np.linspace(1.1, 3.0, 9)], False),  # it climbs
        ([*FLAT, *[1.05] * 9], False),  # noise
        ([*FLAT, *[np.nan] * 9], False),
        (FLAT[:5], False),
    ],
)
def test_a_leap_comes_in_one_row(run: list[float], leaps: bool) -> None:
    assert (leap_of(case(run, [])) is not None) is leaps


def counted(gain: float, *, noise: float = 0.0, learned: bool = False) -> Any:
    """Return a case without a leap: from step 21 on the loss of the run climbs."""
    rng = np.random.default_rng(0)
    builder = RecordBuilder("made", "made")
    cost = 1.0 + 0.2 * rng.random(40)
    for step in range(1, 41):
        risen = 0.5 * min(max(step - 20, 0), 4) / 4
        seen = {"batch_size": 8.0, "samples_seen": 8.0 * step}
        builder.add(float(step), {"loss": cost[step - 1] + risen, **seen})
    still = cost[10:30] + 1e-3 + noise * rng.standard_normal(20)
    still[10:] += gain
    if learned:  # the data ahead costs as much: it is the data, or the state
        cost[20:] += gain
    return SimpleNamespace(
        incident=SimpleNamespace(onset=21),
        first_sign=21,
        expected=Expectation(level=1.1, sigma=0.06, unit=1.0),
        control={11 + i: float(x) for i, x in enumerate(cost[10:30] + 0.5 * np.repeat([0, 1], 10))},
        losses=tuple(still.tolist()),
        from_step=10,
        base=SimpleNamespace(step=10, samples=80, sample_id=80),
        record=builder.build(),
        probe_samples=tuple((8 * k, 8 * k + 7, float(cost[k])) for k in range(10, 36)),
    )


@pytest.mark.parametrize(
    ("found", "own"),
    [
        (counted(0.5), True),
        (counted(0.5, noise=0.03), True),
        (counted(0.0), False),
        (counted(0.1), False),  # less than half of the rise
        (counted(0.5, learned=True), False),
    ],
)
def test_equal_weights_on_equal_batches_that_cost_more_in_the_steps_are_the_loops_own(
    found: Any, own: bool
) -> None:
    assert ("counts otherwise" in own_doing(found)) is own
