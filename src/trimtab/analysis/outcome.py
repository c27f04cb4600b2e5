"""The aftermath of an incident: whether training recovered, and what remains to be done.

Hundreds of rows behind an episode, with the loss lower than before it, nobody wants to go back: the
plan of such an incident waits, and keeps what the next run should do otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.resolution import left_behind
from trimtab.incidents import Incident, topic_of
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.record import RunRecord
from trimtab.text import number

__all__ = ["Aftermath", "aftermath_of", "plan_after"]

MIN_ROWS = 500
"""Rows of loss behind an incident that show that the training went on. Ours."""
MIN_ROWS_LASTING = 2000
"""The same where the condition itself lasts: a norm that rises may yet be a first sign. Ours."""
LEVEL_ROWS = 64
"""Rows whose median is the level before an incident, and at the end."""
_PATIENCE = "patience"


@dataclass(frozen=True, kw_only=True)
class Aftermath:
    """How the training went on."""

    distance: float
    """From the end of the incident, or its onset while it lasts, to the end of the log, on its
    axis."""
    before: float
    """Level of the loss before the incident."""
    last: float
    """Level of the loss at the end of the log, not above `before`."""
    quiet: bool
    """Whether no alarm began since."""
    recovered: bool
    """Whether the incident itself is over."""
    num_high: int = 0
    """Rows since then that rose more than half as far above the level as the incident did."""

    def text(self, axis: str) -> str:
        """Return it as a clause."""
        first = "it is over" if self.recovered else "it lasts, and the loss went on down"
        trouble = " without trouble" if self.quiet and not self.num_high else ""
        if self.num_high:
            rows = "row" if self.num_high == 1 else "rows"
            trouble = f", {number(self.num_high)} {rows} of them half as far up or more"
        return (
            f"{first}; {number(float(round(self.distance)))} {axis}s since then{trouble}, "
            f"loss {self.before:.4g} before it, {self.last:.4g} at the end"
        )


def aftermath_of(
    record: RunRecord, incident: Incident, others: Sequence[Incident]
) -> Aftermath | None:
    """Return how the training went on after an incident.

    None where it did not, or too little is known.

    Args:
        record: The run.
        incident: One of its alarms.
        others: All its incidents.
    """
    if topic_of(incident) not in ("learning", "grad-drift") or incident.kind == "too-good":
        return None
    if "loss" not in record.columns or left_behind(record, incident):
        return None
    over = _over_row(incident)
    rows = _loss_rows(record)
    before = rows[: np.searchsorted(rows, incident.first_row)]
    later = rows[np.searchsorted(rows, over or 0, side="right") :]
    least = MIN_ROWS_LASTING if incident.end_row is None else MIN_ROWS
    if over is None or len(before) < LEVEL_ROWS // 4 or len(later) < least:
        return None
    loss = record.columns["loss"].values
    level = float(np.median(loss[before[-LEVEL_ROWS:]]))
    last = float(np.median(loss[later[-LEVEL_ROWS:]]))
    if last > level:
        return None
    alarms = any(
        o.severity != "info" and o.onset_row > incident.onset_row for o in reversed(others)
    )
    return Aftermath(
        distance=float(record.step[later[-1]] - record.step[over]),
        before=level,
        last=last,
        quiet=not alarms,
        recovered=incident.end_row is not None,
        num_high=_num_high(incident, loss[later], level),
    )


def _num_high(incident: Incident, later: NDArray[np.float64], level: float) -> int:
    """Return how many later losses rose more than half as far as the incident; 0 for a fall."""
    rises = [
        f.value - level
        for f in incident.findings
        if f.signal == "loss" and f.direction == "up" and np.isfinite(f.value)
    ]
    rise = max(rises, default=0.0)
    return int((later > level + rise / 2).sum()) if rise > 0 else 0


def _over_row(incident: Incident) -> int | None:
    """Return the row to count from: the end, or the onset of what lasts.

    None for lasting trouble of the loss.
    """
    if incident.end_row is not None:
        return incident.end_row
    of_loss = [f for f in incident.findings if f.signal == "loss" and f.severity != "info"]
    if any(f.end_row is None for f in of_loss) or incident.kind == "non-finite":
        return None
    return incident.onset_row


def _loss_rows(record: RunRecord) -> NDArray[np.intp]:
    """Return the rows of the lineage with a finite loss; rows rise, as attempts follow another."""
    known = record.memo.get("finite losses of the lineage")
    if isinstance(known, np.ndarray):
        return known  # the same for all incidents of a record
    rows = record.lineage_rows()
    column = record.columns["loss"]
    found = np.sort(rows[column.present[rows] & np.isfinite(column.values[rows])])
    record.memo["finite losses of the lineage"] = found
    return found


def plan_after(plan: Plan, after: Aftermath, axis: str) -> Plan:
    """Return a plan for an incident that the training left behind.

    Wait, and do better in the next run.
    """
    known = REMEDY_BY_ID[_PATIENCE]
    told = next((r for r in plan.remedies if r.remedy == _PATIENCE), None) or PlannedRemedy(
        remedy=_PATIENCE, values={}, why="", cost=known.cost, undo=known.undo, when="mid-run"
    )
    kept = [r for r in plan.remedies if r.when != "mid-run"]
    return replace(plan, remedies=(replace(told, why=after.text(axis)), *kept))
