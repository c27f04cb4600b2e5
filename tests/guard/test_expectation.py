"""What the loss should be, and judgements that do not depend on where its zero lies."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from trimtab.guard.recovery import data_probe
from trimtab.guard.recovery.case import Verification
from trimtab.guard.recovery.expectation import Expectation, expected_loss
from trimtab.guard.recovery.trial_verdict import conclude_trial, trial_is_lost
from trimtab.plan.labels import StepWindow, label_change
from trimtab.plan.trials import Trial
from trimtab.record import RecordBuilder, RunRecord

pytestmark = [pytest.mark.torch, pytest.mark.hypothesis]

SCALES = st.tuples(
    st.sampled_from([1e-3, 0.5, 1.0, 7.0, 1e4]), st.sampled_from([-300.0, -4.0, 0.0, 3.0, 300.0])
).map(lambda s: (s[0], s[0] * s[1]))
"""a and b of a loss; b is no larger than float32 can carry the noise on."""


def falling(rng: np.random.Generator, rows: int = 400, noise: float = 0.03) -> NDArray[np.float64]:
    return 2.0 + 3.5 * np.arange(1, rows + 1) ** -0.4 + rng.normal(0, noise, rows)


def record_of(losses: NDArray[np.float64]) -> RunRecord:
    builder = RecordBuilder("made", "made")
    for i, loss in enumerate(losses):
        builder.add(float(i + 1), {"loss": float(loss)})
    return builder.build()


def test_expected_loss_early_in_a_run_is_what_it_had_reached_not_the_mean_of_its_fall() -> None:
    losses = falling(np.random.default_rng(0))
    found = expected_loss(record_of(losses), 60)
    true = 2.0 + 3.5 * 60**-0.4
    assert abs(found.level - true) < 0.08
    assert losses[:60].mean() - true > 0.3  # the mean of the window says something else
    assert 0.02 < found.sigma < 0.06


@pytest.mark.parametrize("offset", [0.0, -300.0])
def test_expected_loss_of_a_fall_that_slows_down_is_none_that_no_row_had(offset: float) -> None:
    # a regression from 8 to .3 within 40 rows: the line through its thirds ends below zero
    rng = np.random.default_rng(3)
    losses = 0.3 + 8 / (1 + np.exp((np.arange(40) - 18) / 2.5)) + rng.normal(0, 0.1, 40)
    losses += offset
    level = expected_loss(record_of(losses), 40).level
    assert losses.min() <= level <= offset + 1.0


def test_expected_loss_is_not_moved_by_first_rows_that_exploded() -> None:
    losses = falling(np.random.default_rng(0))
    losses[:16] = 1e9
    found = expected_loss(record_of(losses), 400)
    assert abs(found.level - losses[-64:].mean()) < 0.05
    assert found.unit <= 200 * found.sigma


@pytest.mark.parametrize("value", [0.0, -3.0, 2.0**99])
def test_expected_loss_of_a_constant_loss_has_scales_above_zero(value: float) -> None:
    found = expected_loss(record_of(np.full(80, value)), 80)
    assert (found.level, found.sigma > 0, found.unit > 0) == (value, True, True)


def test_expected_loss_without_a_finite_loss_is_nan() -> None:
    assert math.isnan(expected_loss(record_of(np.full(8, math.nan)), 8).level)


@given(scale=SCALES, seed=st.integers(0, 50), step=st.integers(20, 400))
@settings(max_examples=30, deadline=None)
def test_expected_loss_follows_a_scaled_and_shifted_loss(
    scale: tuple[float, float], seed: int, step: int
) -> None:
    a, b = scale
    losses = falling(np.random.default_rng(seed))
    one, other = (expected_loss(record_of(x), step) for x in (losses, a * losses + b))
    # the floor of sigma, one part in a million of the largest loss, is all that may differ
    slack = 1e-5 * (abs(b) + 10 * a)
    assert other.level == pytest.approx(a * one.level + b, abs=slack)
    assert other.sigma == pytest.approx(a * one.sigma, rel=1e-3, abs=slack)
    assert other.unit == pytest.approx(a * one.unit, rel=1e-3, abs=200 * slack)


@given(
    scale=SCALES,
    seed=st.integers(0, 50),
    rise=st.sampled_from([-0.5, 0.0, 0.02, 0.08, 0.3, 2.0]),
)
@settings(max_examples=40, deadline=None)
def test_judgements_of_recovery_do_not_depend_on_the_zero_or_the_unit_of_the_loss(
    scale: tuple[float, float], seed: int, rise: float
) -> None:
    rng = np.random.default_rng(seed)
    past, branch = falling(rng), 2.32 + rise + rng.normal(0, 0.03, 48)

    def said(a: float, b: float) -> list[object]:
        expected = expected_loss(record_of(a * past + b), 400)
        losses = tuple((a * branch + b).tolist())
        case: Any = SimpleNamespace(
            expect=expected,
            expected=expected,
            losses=losses,
            alarmed=False,
            first_sign=401,
            from_step=400,
            incident=SimpleNamespace(first_step=401, kind="spike", also=(), findings=()),
            control={},
            lr_jump=None,
            probe_samples=[(i, i, x) for i, x in enumerate((*(a * past + b)[-20:], *losses[:8]))],
        )
        watched = Verification("x", until_step=99, expected=expected, losses=losses[-32:])
        before, after = StepWindow(), StepWindow()
        for x, y in zip((a * past + b)[-48:], losses, strict=True):
            before.add(float(x), 1.0, alarms=0)
            after.add(y, 1.0, alarms=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(data_probe, "onset_sample", lambda _: 20)
            marks = data_probe.outliers(case, margin=20)
        return [
            conclude_trial(case, Trial(name="as it was"), tolerance=0.01).held,
            trial_is_lost(case),
            watched.conclude(tolerance=0.01)[0],
            label_change(before, after).metrics["loss"],
            marks,
        ]

    assert said(*scale) == said(1.0, 0.0)


def test_a_branch_with_exactly_the_old_losses_holds_at_any_level() -> None:
    losses = falling(np.random.default_rng(3))
    for shift in (0.0, -2.3, -4.0, -100.0):
        expected = expected_loss(record_of(losses + shift), 352)
        case: Any = SimpleNamespace(
            expect=expected,
            losses=tuple(losses[352:] + shift),
            alarmed=False,
            first_sign=353,
            from_step=352,
            incident=SimpleNamespace(first_step=353, kind="spike"),
            control={},
            lr_jump=None,
        )
        assert conclude_trial(case, Trial(name="as it was"), tolerance=0.01).held
        watched = Verification("x", 99, Expectation(expected.level, expected.sigma, expected.unit))
        for x in losses[352:] + shift:
            watched = watched.with_step(float(x), alarmed=False)
        assert watched.conclude(tolerance=0.01)[0] == "worked"


@pytest.mark.parametrize(
    ("kind", "lr_factor", "held"),
    [("non-finite", 1.0, True), ("spike", 1.0, False), ("non-finite", 0.5, False)],
)
def test_a_replay_that_stays_finite_holds_though_the_level_was_low_by_chance(
    kind: str, lr_factor: float, held: bool
) -> None:
    rng = np.random.default_rng(11)
    past = 4.5 - 0.01 * np.arange(240) + rng.normal(0, 0.15, 240)
    past[:16] += 2
    expected = expected_loss(record_of(past), 240)
    noise = rng.normal(0, 0.15, 24)
    late = expected.level + 0.18 + noise - noise.mean()  # its tail alone is known to 0.09
    case: Any = SimpleNamespace(
        expect=expected,
        losses=(*late, *late),
        alarmed=False,
        first_sign=251,
        from_step=240,
        incident=SimpleNamespace(first_step=251, kind=kind),
        control={},
        lr_jump=None,
    )
    trial = Trial(name="x", lr_factor=lr_factor)
    assert trial.unchanged == (lr_factor == 1)
    assert conclude_trial(case, trial, tolerance=0.01).held == held
