"""Whether a leap of the loss is the loop's own: it comes though the weights stand still.

An unchanged replay that repeats bit for bit rules out the machine, and losses of the batches ahead
that are all alike rule out the data. What is left are updates, of a rate or of moments, and the
loop itself: weights that it prunes or sets anew, a target network that it exchanges, labels or an
objective that it changes. The same steps at a rate next to 0 tell which: where the loss leaps as
well, and stays, no update made it, and nothing that recovery changes undoes it.

What comes without a leap, as an objective that is weighted otherwise, shows in pairs: the same
weights on the same batch, as the look at the data ahead was given them, and as the loop counts them
in its own steps. Where these differ from the onset on, by half of the rise at least, it is the loop.

A run whose first rows are low by themselves (a queue of negatives that begins at random, an easy first
batch) has no rows to compare with: there the whole course from the first row on shows it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trimtab.guard.recovery.curves import as_curve
from trimtab.guard.recovery.data_probe import batch_ids
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.recovery.case import Case

__all__ = ["ROWS_BEHIND", "leap_of", "own_doing"]

_LEAST_SIGMA = 8.0
"""Noise of single rows, from which a rise in one row is a leap. As spikes have it."""
_IN_ONE_ROW = 0.5
"""Of the rise to its highest loss, that the first row of a leap has. Ours."""
_AS_FAR, _STAYS, _STAYS_SIGMA = 0.5, 0.1, 3.0
"""Of the leap of the run, that of weights that stand still; and of that, and in the noise of single
rows, what is left at its end: weights that stand still come back to the level itself. Ours."""
_OF_RISE = 0.5
"""Of the rise of the loss, that equal weights and batches must cost more. Ours."""
_BEFORE, _LAST = 5, 4
"""Rows that a level is the median of."""
_AND_SO = (
    "no rate, no data and no older state undoes that; if it is meant, announce it (guard.expect)"
)
ROWS_BEHIND = 8
"""Rows behind the onset that show whether a leap stays. Ours."""


def leap_of(case: Case) -> tuple[int, float] | None:
    """Return the step at which the loss of the control leaps, and how far; None: it does not."""
    onset = int(case.incident.onset)
    sigma = case.expected.sigma
    for step in (onset, onset + 1):
        found = _rise(case.control, step)
        if found is None or not sigma > 0:
            continue
        level, rise = found
        highest = max(x for t, x in case.control.items() if t >= step and math.isfinite(x)) - level
        if rise >= _LEAST_SIGMA * sigma and rise >= _IN_ONE_ROW * highest:
            return step, rise
    return None


def own_doing(case: Case) -> str:
    """Return why the rise is the loop's own, behind a trial whose weights stood still; or nothing.

    Nothing either where the losses before it are those of the run: then the rate does not act on
    this optimizer.
    """
    curve = as_curve(case.losses, after=case.from_step)
    if case.from_step == 0 and case.incident.onset <= _BEFORE:
        return _own_start(case, curve)
    leap = leap_of(case)
    before = [t for t in curve if t < case.incident.onset and t in case.control]
    if not any(curve[t] != case.control[t] for t in before):
        return ""
    return _own_leap(case, curve, leap) or _own_count(case, curve)


def _own_start(case: Case, curve: Mapping[int, float]) -> str:
    """Return why the loss of the first rows is no level: it leaves it though no weight moves."""
    onset, level = int(case.incident.onset), case.expected.level
    pairs = [(x, case.control[t]) for t, x in curve.items() if t >= onset and t in case.control]
    pairs = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if len(pairs) < 2 * _LAST or all(still == ran for still, ran in pairs):
        return ""
    still, ran = np.median(np.array(pairs[-_LAST:]), axis=0) - level
    if still < max(_AS_FAR * ran, _STAYS_SIGMA * case.expected.sigma):
        return ""
    return (
        f"the loss rises from the first rows by {still:.3g} though the weights stand still, and by"
        f" {ran:.3g} as they train: it began low by itself (a queue or a cache that fills, first"
        " batches that are easier?); no rate and no older state undoes that; if it is meant, announce"
        " it (guard.expect)"
    )


def _own_leap(case: Case, curve: Mapping[int, float], leap: tuple[int, float] | None) -> str:
    found = None if leap is None else _rise(curve, leap[0])
    if leap is None or found is None:
        return ""
    step, (level, rise) = leap[0], found
    last = [x for t, x in curve.items() if t >= step][-_LAST:]
    left = float(np.median(last)) - level
    stays = left >= max(_STAYS * rise, _STAYS_SIGMA * case.expected.sigma)
    if rise < _AS_FAR * leap[1] or len(last) < _LAST or not stays:
        return ""
    return (
        f"the loop itself changes the loss at step {step}: it leaps by {rise:.3g}, and stays, though"
        " the weights stand still and no batch stands out (weights, targets or labels set anew?);"
        f" {_AND_SO}"
    )


def _own_count(case: Case, curve: Mapping[int, float]) -> str:
    """Return why the same weights on the same batches cost more in the steps than ahead of them."""
    if not case.probe_samples:
        return ""
    onset = int(case.incident.onset)
    ahead = {first: loss for first, _, loss in case.probe_samples}
    ids = batch_ids(case)
    more = {
        t: curve[t] - ahead[ids[t]]
        for t in curve
        if ids.get(t) in ahead and math.isfinite(curve[t] - ahead[ids[t]])
    }
    before = [x for t, x in more.items() if t < min(case.first_sign, onset)]
    after = {t: x for t, x in more.items() if t >= onset}
    risen = [case.control[t] for t in after if math.isfinite(case.control.get(t, math.nan))]
    if len(before) < _BEFORE or len(after) < _LAST or len(risen) < _LAST:
        return ""
    usual = float(np.median(before))
    gain = float(np.mean(list(after.values()))) - usual
    rise = float(np.mean(risen)) - case.expected.level
    spread = mad_sigma(np.array(before), center=usual)
    if gain < max(_OF_RISE * rise, _STAYS_SIGMA * max(spread, case.expected.sigma / 2)):
        return ""
    return (
        f"the loop itself counts otherwise from about step {onset} on: the same weights on the same"
        f" batches cost {gain:.3g} more in its steps than in the look ahead (its loss, labels or"
        f" sampling?); {_AND_SO}"
    )


def _rise(curve: Mapping[int, float], step: int) -> tuple[float, float] | None:
    """Return the level before a step, and by how much its loss lies above; None: not known."""
    before = [curve[t] for t in range(step - _BEFORE, step) if t in curve]
    if len(before) < 2 or step not in curve or not math.isfinite(curve[step]):
        return None
    level = float(np.median(before))
    return (level, curve[step] - level) if math.isfinite(level) else None
