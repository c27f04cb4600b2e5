"""Phases of the learning-rate schedule, and the trend of a signal in each.

In a healthy run the norm of the last hidden state rises at first and falls with the learning rate;
one that rises again while the rate falls is a warning (S. Zhang on OPT-175B, 2022). So the slope is
reported by phase, and not over the run as a whole.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord
from trimtab.signals.ranks import spearman

__all__ = ["Phase", "Slope", "phases_of", "slope_notes", "slopes_of"]

PhaseName = Literal["warm-up", "constant", "decay"]

_MIN_ROWS = 16
_MIN_CHANGE = 0.01
"""Share of its size that a signal must move within a phase; less counts as flat. Ours."""
_MIN_RHO = 0.3
"""Rank correlation with the step below which a signal wanders; chosen on white noise of 16 rows and
more, of which 1 in 5 of the shortest and none of the longer ones pass."""
_NOISE = 1e-6
"""Relative step of a rate that is rounding."""


@dataclass(frozen=True)
class Phase:
    """A stretch in which the rate rises, stays or falls; rows [first, stop) of those given."""

    name: PhaseName
    first: int
    stop: int


@dataclass(frozen=True)
class Slope:
    """Which way a signal went in a phase."""

    phase: PhaseName
    first_step: float
    last_step: float
    sign: Literal[-1, 0, 1]
    """0: it wandered, or moved by less than 1 %."""
    change: float
    """Of the straight line through its logarithm, from the phase's start to its end."""


def phases_of(lr: NDArray[np.float64]) -> tuple[Phase, ...]:
    """Return the phases of finite rates, float64 [n], in their order.

    Short ones join the one before.

    Example:
        >>> lr = np.concatenate([np.linspace(0, 1, 50), np.ones(40), np.linspace(1, 0.1, 60)])
        >>> [(p.name, p.first, p.stop) for p in phases_of(lr)]
        [('warm-up', 0, 50), ('constant', 50, 91), ('decay', 91, 150)]
    """
    if len(lr) < _MIN_ROWS:
        return ()
    steps = np.diff(lr)
    # Rounding moves a constant rate in its last digits.
    moves = np.sign(np.where(np.abs(steps) > _NOISE * np.abs(lr[:-1]), steps, 0.0))
    cuts = [0, *(np.flatnonzero(np.diff(moves)) + 1).tolist(), len(moves)]
    found: list[Phase] = []
    for first, stop in pairwise(cuts):
        name: PhaseName = ("constant", "warm-up", "decay")[int(moves[first])]
        begins = first + 1 if found else 0  # a step belongs to the row it leads to
        short = stop - first < _MIN_ROWS
        # A few rows of another direction within a phase are noise of the log, not a phase.
        if found and (short or found[-1].name == name):
            found[-1] = Phase(found[-1].name, found[-1].first, stop + 1)
        elif not short:
            found.append(Phase(name, begins, stop + 1))
    return tuple(found)


def slopes_of(record: RunRecord, signal: str) -> tuple[Slope, ...]:
    """Return which way a signal above 0 went in each phase of the schedule.

    Rows of the final lineage where the rate is finite; empty without a rate or the signal. A phase
    with fewer than 16 readings is left out. NaN and Inf readings are left out too.
    """
    if "lr" not in record.columns or signal not in record.columns:
        return ()
    rows = record.lineage_rows()
    rows = rows[np.isfinite(record.columns["lr"].values[rows])]
    values = record.columns[signal].values[rows]
    usable = np.isfinite(values) & (values > 0)
    found = []
    for phase in phases_of(record.columns["lr"].values[rows]):
        here = np.flatnonzero(usable[phase.first : phase.stop]) + phase.first
        if len(here) < _MIN_ROWS:
            continue
        steps, y = record.step[rows[here]], np.log(values[here])
        width = float(steps[-1] - steps[0])
        change = float(np.polyfit(steps - steps[0], y, 1)[0]) * width if width > 0 else 0.0
        # A line through noise always has some slope; the ranks say whether it is a trend.
        sure = abs(change) >= _MIN_CHANGE and abs(spearman(steps, y)) >= _MIN_RHO
        sign: Literal[-1, 0, 1] = (1 if change > 0 else -1) if sure else 0
        found.append(
            Slope(phase.name, float(steps[0]), float(steps[-1]), sign, float(np.expm1(change)))
        )
    return tuple(found)


def slope_notes(record: RunRecord) -> tuple[str, ...]:
    """Return a sentence on the last hidden state's norm by phase; none where it is not logged."""
    slopes = slopes_of(record, "activation_norm")
    if not slopes:
        return ()
    word = {1: "rises", 0: "stays", -1: "falls"}
    parts = [
        f"{word[s.sign]} in the {'constant phase' if s.phase == 'constant' else s.phase} "
        f"({s.first_step:,.0f} to {s.last_step:,.0f}: {s.change:+.0%})"
        for s in slopes
    ]
    return (f"activation_norm {', '.join(parts)}",)
