"""Loss curves of branches, and of the run as recorded: a control that costs no steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.plan.trial_results import Repeat
    from trimtab.record import RunRecord

__all__ = ["ROUNDING", "as_curve", "recorded_curve", "repeats", "usual_norm"]

ROUNDING = 1e-4
"""Largest relative difference of losses that kernels which add in another order explain."""


def recorded_curve(record: RunRecord, *, after: int, until: int) -> dict[int, float]:
    """Return the losses of the lineage at steps after+1..until, nats per token, by step."""
    rows = record.lineage_rows()
    column = record.columns["loss"]
    rows = rows[column.present[rows] & (record.step[rows] > after) & (record.step[rows] <= until)]
    return {int(record.step[r]): float(column.values[r]) for r in rows}


def as_curve(losses: Sequence[float], *, after: int) -> dict[int, float]:
    """Return the losses of a branch by step; the first is that of step after+1."""
    return {after + 1 + i: x for i, x in enumerate(losses)}


def usual_norm(record: RunRecord, step: int, *, window_rows: int = 64) -> float | None:
    """Return the median gradient norm of the lineage's rows up to `step`; None without any."""
    column = record.columns.get("grad_norm")
    if column is None:
        return None
    rows = record.lineage_rows()
    rows = rows[column.present[rows] & (record.step[rows] <= step)][-window_rows:]
    norms = column.values[rows]
    norms = norms[np.isfinite(norms) & (norms > 0)]
    return float(np.median(norms)) if len(norms) else None


def repeats(branch: Mapping[int, float], recorded: Mapping[int, float]) -> Repeat:
    """Return how a replay compares with the record over the steps that both have.

    bit-equal: every loss is equal; rounding: they differ by no more than kernels that add in
    another order; different: anything else. Empty where there is nothing to compare. NaN counts as
    equal to NaN.
    """
    steps = branch.keys() & recorded.keys()
    if not steps:
        return ""
    pairs = [
        (branch[t], recorded[t])
        for t in steps
        if not (math.isnan(branch[t]) and math.isnan(recorded[t]))
    ]
    if all(a == b for a, b in pairs):
        return "bit-equal"
    near = all(
        # Inf is near nothing: times any share it is within itself of every finite loss.
        a == b
        or (
            math.isfinite(a)
            and math.isfinite(b)
            and abs(a - b) <= ROUNDING * max(abs(a), abs(b), 1e-12)
        )
        for a, b in pairs
    )
    return "rounding" if near else "different"
