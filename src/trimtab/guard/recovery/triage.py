"""From the judge's open findings to the incident that the guard acts on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trimtab.incidents import newest_unhandled
from trimtab.kinds import KIND_BY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import Key
    from trimtab.incidents import Incident
    from trimtab.record import RunRecord

__all__ = [
    "EARLY_SIGNS",
    "find_incident",
    "is_trouble",
    "loss_level",
    "puts_in_doubt",
    "saturates",
    "speaks_of_state",
    "speaks_of_trial",
]

EARLY_SIGNS = ("saturation", "corrupt")
"""Detectors whose alarm is trouble before the loss says so."""
_AT_ONCE = ("unrecovered-spike", "scale-collapse", "skipped-steps")
"""Kinds that took long enough to be told."""


def speaks_of_state(finding: Finding) -> bool:
    """Whether a finding may put the weights in doubt.

    The pace, the data and the logging do not, and a loss scale that merely sinks is an early
    warning: people are told, checkpoints go on, nothing is rolled back.
    """
    if finding.kind == "skipped-steps":
        return finding.severity == "critical"  # nothing is learnt any more
    kind = KIND_BY_NAME.get(finding.kind)
    return (kind is None or kind.topic == "learning") and finding.detector != "scale-drift"


def puts_in_doubt(finding: Finding) -> bool:
    """Whether a checkpoint that is saved under a finding is suspect.

    Critical findings about the weights, and spikes and shifts of the loss.
    """
    risen = finding.kind in ("spike", "shift") and finding.signal == "loss"
    grave = finding.severity == "critical" or (risen and finding.severity != "info")
    return grave and speaks_of_state(finding)


def speaks_of_trial(finding: Finding) -> bool:
    """Whether an alarm in a trial says that it failed.

    One of the loss, or the sign that leads it.
    """
    return finding.signal == "loss" or finding.detector in EARLY_SIGNS


def saturates(incident: Incident) -> bool:
    """Whether attention saturated before the loss told."""
    return any(f.detector == "saturation" for f in incident.findings)


def is_trouble(
    finding: Finding,
    age: int,
    patience: int,
    *,
    last: bool,
    scaled: bool,
    waits: Callable[[Finding], bool] = lambda _: False,
) -> bool:
    """Whether an alarm has outlasted the patience, so that something must be done.

    Args:
        finding: The alarm, as it stands.
        age: Rows since its onset.
        patience: Rows that a spike is trained through.
        last: Whether the run would end here.
        scaled: Whether there is a loss scaler, for which a gradient that overflows is normal.
        waits: Whether a spike is still given time to heal.
    """
    f = finding
    if f.kind == "non-finite":
        # one skipped update is dealt with; a second in a row needs more. A gradient that never
        # is finite leaves the loss as it is, and a scaler some steps to find its range
        if f.signal == "grad_norm":
            return not f.closed and age >= patience and not scaled
        return f.signal == "loss" and not f.closed and (age >= 2 or last)
    if f.detector.startswith("level") and f.signal == "loss":
        # a spike that heals looks like a change of level for a while, too
        return last or not waits(f)
    if f.detector.startswith(("level", *EARLY_SIGNS)) or f.kind in _AT_ONCE:
        return True
    if f.closed or f.signal != "loss" or age < patience:
        return False
    return last or not waits(f)


def find_incident(
    record: RunRecord, findings: Sequence[Finding], handled: Set[Key]
) -> tuple[Incident, frozenset[Key]] | None:
    """Return the latest incident that is not yet handled, and the keys of its findings."""
    here = [f for f in findings if f.onset_row < record.num_rows]
    found = newest_unhandled(record, here, handled)
    return None if found is None else (found[0], frozenset(found[1]))


def loss_level(record: RunRecord, step: int, *, window_rows: int = 64) -> tuple[float, float]:
    """Return mean and spread of the loss over the rows up to a step, nats per token.

    The spread is a robust standard deviation of single rows; finite losses only. Before the first
    row there is no past: the first losses of the record stand in for it.
    """
    rows = record.lineage_rows()
    column = record.columns["loss"]
    rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
    before = rows[record.step[rows] <= step][-window_rows:]
    losses = column.values[before if len(before) else rows[:8]]
    if not len(losses):
        return math.nan, math.nan
    level = float(losses.mean())
    spread = 1.4826 * float(np.median(np.abs(losses - np.median(losses))))
    return level, max(spread, 2e-3 * abs(level))
