"""Whether a trial held, from its losses alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trimtab.diagnosis.probes import TrialResult
from trimtab.guard.recovery.curves import as_curve, recorded_curve, repeats
from trimtab.guard.recovery.standstill import own_doing
from trimtab.guard.recovery.triage import saturates
from trimtab.guard.recovery.values import JobNoise
from trimtab.guard.state.decisions import is_back
from trimtab.guard.yardstick.reading import compare
from trimtab.plan.effects import effect_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.guard.recovery.case import Case
    from trimtab.guard.recovery.expectation import Expectation
    from trimtab.guard.yardstick.reading import BatchComparison, Reading
    from trimtab.plan.trials import Trial

__all__ = [
    "can_be_compared",
    "conclude_trial",
    "is_better_without",
    "is_beyond_noise",
    "noise_of",
    "reading_of",
    "settings_at_fault",
    "trial_is_lost",
]

_NOISE_SHARE = 0.1
"""Most that the noise of a trial's losses may lift what counts as held, share of the unit."""
_FEWEST_REPLAYS = 3
"""Of calm steps, from one state, that show how far a job repeats itself."""
_PAIRED = 1 / 3
"""Of what is tolerated, that matters where losses are paired: single rows, whose noise bounds the
unit from below, are noisier. Ours."""
_CLEAR = 0.25
"""Share of what is noise of fixed batches elsewhere, beyond which they say something of two states
that have seen the same data. Ours."""
_OF_90 = 1.645 / 1.96
"""Half-width of a 90 % interval over that of a 95 % one."""
_MEASURED = ("batch", "loss.")
"""How names of what is measured begin: to put it back changes what the losses are counted in."""
_FEWEST_PAIRS = 3
_OF_RISE = 0.25
"""Share of the rise of the loss that settings which are to blame make. Ours."""
_LOST_SHARE = 0.15
"""Distance above the level from which a trial is lost, share of the unit."""


def trial_is_lost(case: Case) -> bool:
    """Whether the last losses of a trial are so high that more steps would show nothing new."""
    if len(case.losses) < 16:
        return False
    recent = [x for x in case.losses[-8:] if math.isfinite(x)]
    e = case.expect
    limit = e.level + max(8 * e.sigma, _LOST_SHARE * e.unit)
    return not recent or float(np.median(recent)) > limit


def reading_of(
    losses: Sequence[float], r: Reading, scale: Expectation, *, tolerance: float
) -> BatchComparison:
    """Return how fixed batches compare with those of a reading's older state."""
    sigma, unit = scale.sigma, scale.unit
    if r.sigma is not None:
        sigma, unit = r.sigma, 30 * r.sigma
    return compare(losses, r.base, sigma=sigma, unit=unit, tolerance=tolerance)


def conclude_trial(
    case: Case, trial: Trial, *, tolerance: float, reading: Reading | None = None
) -> TrialResult:
    """Return whether a trial held.

    It held where there was no alarm, losses are finite, and the fixed batches are no worse than at
    the restore point; without a reading of them, where the training loss is back at the level
    before.
    """
    # the first half is left out: a remedy may need some steps to take effect
    tail = np.array(case.losses[-max(len(case.losses) // 2, 8) :])
    end = float(tail.mean()) if np.isfinite(tail).all() else math.nan
    e = case.expect
    error = float(tail.std()) / math.sqrt(len(tail)) if len(tail) > 1 else e.sigma
    noise = 3 * max(error, e.sigma / math.sqrt(len(tail)))
    if trial.unchanged and case.incident.kind == "non-finite":
        # What is finite now has not come back: the level need not be that of a cure.
        noise = math.hypot(noise, 3 * e.error)
    limit = e.level + tolerance * e.unit + min(noise, _NOISE_SHARE * e.unit)
    held = not case.alarmed and math.isfinite(end) and end <= limit
    level, unit = e.level, e.unit
    if reading is not None and reading.base:
        found = reading_of(reading.losses, reading, e, tolerance=tolerance)
        held = not case.alarmed and not found.worse and bool(np.isfinite(case.losses[-1:]).all())
        end, level = reading.mean, reading.base_mean
        unit = unit if reading.sigma is None else 30 * reading.sigma
    if trial.stands_still:
        held = not own_doing(case)
    return TrialResult(
        name=trial.name,
        held=held,
        loss=end,
        expected_loss=level,
        unit=unit,
        steps=len(case.losses),
        skipped=trial.skip is not None,
        only_asks=trial.only_asks,
        lr_factor=1.0 if trial.stands_still else trial.lr_factor,
        lr_limit=_rate_that_was_back(case, trial) or trial.lr_limit,
        changed=tuple(a for a in trial.arms if a not in ("replay", "other-data", "lower-lr")),
        bitwise=_repeats_bitwise(case) if trial.unchanged else None,
    )


def is_better_without(
    case: Case, trial: Trial, reading: Reading | None, *, tolerance: float
) -> tuple[bool, str]:
    """Return whether the branch without a change is better than the run with it, and the figures.

    It is where it has learned the same batches better, over the second half of the steps since the
    change: by more than the 95 % interval of the paired losses, and by more than a share of the
    descent; the fixed batches, which are few, must not say otherwise: where each of them is better,
    too, the 90 % interval is enough. Or where each of those is better, by more than a share of what
    is their noise, and the paired losses do not say otherwise.
    Either way far beyond what the steps before the change, which are replayed, differ by.
    """
    now = case.both
    if reading is None or len(now) != len(reading.losses):
        return False, "the fixed batches were not read"
    found = reading_of(reading.losses, replace(reading, base=now), case.expect, tolerance=tolerance)
    curve = as_curve(case.losses, after=case.from_step)
    half = (max(case.first_sign, case.from_step) + case.seen_step) // 2
    paired = effect_of(curve, {t: x for t, x in case.control.items() if t > half})
    # a setting that is put back is as it was in the steps before; a rate that is held is not
    calm = _calm_part(case, curve) if trial.put_back else {}
    apart = max((abs(x - case.control.get(t, x)) for t, x in calm.items()), default=0.0)
    told = (
        f"{paired} in training, by step; {reading.mean:.4g} against {sum(now) / len(now):.4g} on"
        " the fixed batches"
    )
    clear = _CLEAR * found.limit
    each = all(a < b for a, b in zip(reading.losses, now, strict=True))
    high = paired.size + (_OF_90 if each else 1.0) * (paired.high - paired.size)
    by_step = high < 0 and -paired.size > _PAIRED * tolerance * case.expect.unit
    by_batches = each and found.rise < -clear and paired.size < 0
    gain = max(-paired.size, -found.rise)
    better = (by_step and found.rise <= clear) or by_batches
    return better and JobNoise(apart, apart).is_far_below(gain), told


def can_be_compared(case: Case, trial: Trial) -> bool:
    """Whether losses say what settings do that a branch puts back."""
    told = (c.values and not c.name.startswith(_MEASURED) for c in trial.put_back)
    return all(told) and not saturates(case.incident)


def settings_at_fault(case: Case, trial: Trial, *, tolerance: float) -> bool | None:
    """Return whether a branch that puts settings back is clearly better than the run with them.

    By the losses of the same steps, in the second half of the trouble: none is higher, and together
    they are lower by more than is tolerated of noise and by a share of the rise, far beyond what the steps before
    the change differ by, which are replayed. None: losses do not say it.
    """
    if not can_be_compared(case, trial):
        return None
    half = (int(case.incident.onset) + case.seen_step) // 2
    curve = as_curve(case.losses, after=case.from_step)
    pairs = [(curve[t], x) for t, x in case.control.items() if t >= half and t in curve]
    if len(pairs) < _FEWEST_PAIRS:
        return None
    ours, theirs = np.array(pairs).T
    if not np.isfinite(theirs).all():
        return bool(np.isfinite(ours).all())
    gain = float((theirs - ours).mean())
    least = _PAIRED * tolerance * case.expect.unit
    rise = float(theirs.mean()) - case.expect.level
    if not (bool((ours <= theirs).all()) and gain > max(least, _OF_RISE * rise)):
        return False
    calm = _calm_part(case, curve)
    apart = max((abs(x - case.control.get(t, x)) for t, x in calm.items()), default=0.0)
    return True if JobNoise(apart, apart).is_far_below(gain) else None


def _rate_that_was_back(case: Case, trial: Trial) -> float | None:
    """Return the rate that an unchanged replay ran at where the script raised it no more.

    Such a replay is no control: it is the trial that puts the rate back.
    """
    jump = case.lr_jump
    if jump is None or not trial.unchanged or not case.lr_peak > 0:
        return None
    return jump.before if is_back(case.lr_peak, jump.before) else None


def _repeats_bitwise(case: Case) -> bool | None:
    """Whether the replay repeated the record bit for bit before the first sign; None: no rows."""
    said = repeats(_calm_part(case, as_curve(case.losses, after=case.from_step)), case.control)
    return None if said == "" else said == "bit-equal"


def _calm_part(case: Case, curve: Mapping[int, float]) -> dict[int, float]:
    """Return the losses before all signs of the trouble."""
    before = min(case.first_sign, case.incident.first_step)
    return {t: x for t, x in curve.items() if t < before}


def noise_of(case: Case, known: JobNoise | None) -> JobNoise | None:
    """Return how far the job repeats itself; what is known stays, but for a replay that is exact.

    Two runs of calm steps that are equal bit for bit, the record and a replay, show that it does.
    Else three replays from one state are asked for.
    """
    recorded = recorded_curve(case.record, after=case.base.step, until=case.seen_step)
    replays = [_calm_part(case, c) for c in case.calm]
    if case.trial is not None and case.trial.unchanged:
        control = _calm_part(case, as_curve(case.losses, after=case.from_step))
        if len(control) > 1 and repeats(control, recorded) == "bit-equal":
            return JobNoise(0.0, 0.0)
        if known == JobNoise(0.0, 0.0):  # it did once, and does not any more
            return None
    if len(replays) + 1 < _FEWEST_REPLAYS or known is not None:
        return known
    replays.append(_calm_part(case, case.control))
    steps = [t for t in replays[0] if all(t in c for c in (*replays, recorded))]
    spread = apart = 0.0
    for t in steps:
        losses = [c[t] for c in replays]
        spread = max(spread, max(losses) - min(losses))
        apart = max(apart, *(abs(x - recorded[t]) for x in losses))
    # a value that is not finite is as far from the others as can be
    whole = math.isfinite(spread) and math.isfinite(apart) and bool(steps)
    return JobNoise(spread, apart) if whole else JobNoise(math.inf, math.inf)


def is_beyond_noise(case: Case, noise: JobNoise | None) -> bool | None:
    """Whether the trouble is far beyond what the job does by itself; None: that is not known."""
    if noise is None:
        return None
    onset = int(case.incident.onset)
    found = recorded_curve(case.record, after=onset - 1, until=case.seen_step).values()
    worst = max((abs(x - case.level) for x in found if math.isfinite(x)), default=0.0)
    broken = any(not math.isfinite(x) for x in found) or not found
    return noise.is_far_below(math.inf if broken else worst)
