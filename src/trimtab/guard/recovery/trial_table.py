"""The table of the trials from one restore point: a row for each, and the conclusion."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trimtab.guard.recovery.curves import as_curve, repeats
from trimtab.plan.effects import effect_of
from trimtab.plan.ladder import CONTROL
from trimtab.plan.trial_results import Readout, TrialRow, read_out

if TYPE_CHECKING:
    from trimtab.diagnosis.probes import TrialResult
    from trimtab.guard.recovery.case import Case
    from trimtab.plan.trials import Trial

__all__ = ["read_case", "with_row"]


def with_row(case: Case, trial: Trial, result: TrialResult) -> Case:
    """Return the case with the row of the trial that has just ended.

    An unchanged trial becomes the control, unless it repeated the record bit for bit. The effect
    of the others is measured against the control from the onset on: before it, all branches are
    alike.
    """
    curve = as_curve(case.losses, after=case.from_step)
    effect = None
    if trial.unchanged:
        repeat = repeats(curve, case.control)
        control = case.control if repeat == "bit-equal" else curve
        case = replace(case, repeat=repeat, control=control)
    elif not trial.older_state:
        onset = min(case.incident.onset, case.seen_step)
        effect = effect_of(curve, {t: x for t, x in case.control.items() if t >= onset})
    row = TrialRow(
        name=trial.name,
        arms=trial.arms,
        held=result.held,
        loss=result.loss,
        expected=result.expected_loss,
        steps=result.steps,
        effect=effect,
        rate_back=trial.unchanged and result.lr_limit is not None,
    )
    return replace(case, rows=(*case.rows, row))


def read_case(case: Case) -> Readout:
    """Return the table of the trials from a case's restore point, with its conclusion."""
    losses = list(case.control.values())
    end = float(np.mean(losses[-8:])) if losses else np.nan
    recorded = TrialRow(
        name="no change",
        arms=("replay",),
        held=False,
        loss=end,
        expected=case.level,
        steps=len(losses),
        recorded=True,
    )
    control = next((t for t in case.trials if t.name == CONTROL.name), None)
    return read_out(
        case.rows,
        recorded=recorded,
        repeat=case.repeat,
        low_precision=case.low_precision,
        counts=control is None or control.counts,
    )
