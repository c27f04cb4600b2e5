"""A rough start that heals by itself: of the run, and of parameters that are set free later."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from trimtab.guard.recovery.curves import recorded_curve
from trimtab.guard.recovery.learning_rate import lr_at
from trimtab.guard.recovery.triage import saturates
from trimtab.plan.ladder import Wait

if TYPE_CHECKING:
    from trimtab.guard.recovery.case import Case
    from trimtab.record import RunRecord

__all__ = ["FREED_STEPS", "freed_step", "wait_for_start"]

_ROUGH_STEPS, _FEWEST_SINCE = 16, 24
"""Steps of the run in which a rough start begins, and after which its way back is judged. Ours."""
FREED_STEPS = 32
"""Steps before trouble within which parameters were set free, for it to be a rough start of theirs.
Ours."""
_NEW_STEPS, _NEW_HALVES = 64, 2.0
"""Steps since then, and share of the excess that may be left in them: it must not run away. Ours:
one verification, and what is noise of so few rows."""
_HALVES, _CUT_HALVES = 0.5, 1.0
"""Share of the excess of the middle third since the onset that is left in the last third, where it
heals; where the script has halved its rate since, it need not rise. Ours."""
_ON_READINGS = ("held-out-worse", "memorised")
"""Kinds that are told when fixed batches are read, which may be long after they began."""
_LONGEST_WAIT = 4
"""Times the patience until such a start is looked at again."""


def wait_for_start(case: Case, patience: int) -> Wait | None:
    """Return a wait where a rough start is on its way back; None where it is not.

    Rough is the start of a run, and of parameters that are trained from some step on: their updates
    are of full size at once, and nothing beside them is used to that.
    """
    # a loss below that of the first rows says nothing of attention that saturates
    if saturates(case.incident):
        return None
    onset = int(case.incident.onset)
    freed = _set_free_before(case.record, shown := _shown_by(case))
    if onset > _ROUGH_STEPS and freed is None:
        return None
    if freed is not None:
        onset = shown
    what = "rough start" if freed is None else f"rough start of what is trained since step {freed}"
    curve = recorded_curve(case.record, after=onset - 1, until=case.seen_step)
    since = list(curve.values())
    third = len(since) // 3
    if not all(math.isfinite(x) for x in since[third:]):
        return None
    if len(since) < _FEWEST_SINCE:
        if freed is None:
            return None
        until = onset + _FEWEST_SINCE
        return Wait(until_step=until, reason=f"the {what} is judged from step {until} on")
    before, now = (median(x) - case.level for x in (since[third:-third], since[-third:]))
    rates = [lr_at(case.record, t, case.before.lr_cuts) for t in curve]
    cut = max(rates) >= 2 * rates[-1] > 0
    left = _CUT_HALVES if cut else _HALVES
    if freed is not None and case.seen_step < freed + _NEW_STEPS:
        left = _NEW_HALVES
    if now > left * max(before, 0.0):
        return None
    until = case.seen_step + min(max(third, 1), _LONGEST_WAIT * max(patience, 1))
    why = ", and the script has cut its rate since" if cut else ""
    return Wait(
        until_step=until,
        reason=f"the {what} heals: {before:+.3g}, then {now:+.3g} from where it began{why}",
    )


def _shown_by(case: Case) -> int:
    """Return the step by which trouble had begun: what is read now and then began before that.

    Spikes that return began with the first of them.
    """
    alarms = [f for f in case.incident.findings if f.severity != "info"]
    steps = (int(f.step if f.kind in _ON_READINGS else f.onset) for f in alarms)
    shown = min(steps, default=int(case.incident.onset))
    return min(shown, case.first_sign) if case.returning else shown


def freed_step(record: RunRecord, until: float = math.inf) -> float:
    """Return the newest step up to one from which more parameters are trained; -Inf: there is none.

    From the rows alone, so that it is the same after a restart.
    """
    column = record.columns.get("trainable_parameters")
    if column is None:
        return -math.inf
    rows = record.lineage_rows()
    rows = rows[column.present[rows] & (record.step[rows] <= until)]  # written where it changed
    grown = np.flatnonzero(np.diff(column.values[rows]) > 0)
    return float(record.step[rows[grown[-1] + 1]]) if len(grown) else -math.inf


def _set_free_before(record: RunRecord, onset: int) -> int | None:
    """Return the step since which more parameters are trained, shortly before; None: there is none."""
    step = freed_step(record, onset)
    return int(step) if step >= max(onset - FREED_STEPS, 0) else None
