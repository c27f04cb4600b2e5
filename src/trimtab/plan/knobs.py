"""Effect of settings: every change that one attempt made alone, judged by four metrics."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.plan.changes import change_set
from trimtab.plan.labels import ChangeLabel, StepWindow, label_change
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma

__all__ = ["Toggle", "knob_ledger"]


@dataclass(frozen=True, kw_only=True)
class Toggle:
    """One change of settings and its effect."""

    attempt: str
    parent: str
    keys: tuple[str, ...]
    """What changed; more than one: which of them did it is not known."""
    was: tuple[str, ...]
    now: tuple[str, ...]
    steps: int
    """Steps compared on either side."""
    label: ChangeLabel

    @property
    def text(self) -> str:
        """The change as a clause."""
        return ", ".join(
            f"{k} {a} to {b}" for k, a, b in zip(self.keys, self.was, self.now, strict=True)
        )


def knob_ledger(record: RunRecord, *, window_rows: int = 200) -> tuple[Toggle, ...]:
    """Return every change of settings from a parent attempt to its child, in order.

    Compared are the child's rows with the parent's at the same steps, where the parent continued;
    else with the parent's last rows before the branch. What the child does not state is no change:
    a guard's trial states what it sets, and nothing else.

    Args:
        record: A run whose attempts state their settings.
        window_rows: Most rows compared on either side.
    """
    by_number = {a.number: i for i, a in enumerate(record.attempts)}
    found = []
    for index, child in enumerate(record.attempts):
        parent = by_number.get(child.parent or "")
        if parent is None:
            continue
        both = change_set(record.attempts[parent].settings, child.settings).changes
        changes = tuple(c for c in both if c.now is not None)
        if not changes:
            continue
        mine = np.flatnonzero(record.attempt == index)[:window_rows]
        theirs = np.flatnonzero(record.attempt == parent)
        beside = theirs[np.isin(record.step[theirs], record.step[mine])]
        # The same steps on both sides take the trend of the loss out of the comparison.
        if len(beside) >= 8:
            mine = mine[np.isin(record.step[mine], record.step[beside])]
        else:
            limit = np.inf if child.parent_step is None else child.parent_step
            beside = theirs[record.step[theirs] <= limit][-window_rows:]
        found.append(
            Toggle(
                attempt=child.number,
                parent=record.attempts[parent].number,
                keys=tuple(c.key for c in changes),
                was=tuple(_said(c.was) for c in changes),
                now=tuple(_said(c.now) for c in changes),
                steps=min(len(mine), len(beside)),
                label=label_change(_stretch(record, beside), _stretch(record, mine)),
            )
        )
    return tuple(found)


def _said(value: str | None) -> str:
    return "not stated" if value is None else value


def _stretch(record: RunRecord, rows: NDArray[np.intp]) -> StepWindow:
    columns = {
        name: record.columns[name].values[rows]
        for name in ("loss", "grad_norm")
        if name in record.columns
    }
    nothing = np.full(len(rows), np.nan)
    losses = columns.get("loss", nothing)
    stretch = StepWindow()
    level = np.nanmedian(losses) if np.isfinite(losses).any() else np.nan
    known = losses[~np.isnan(losses)]  # an infinite loss counts as far away, a NaN as not logged
    spread = mad_sigma(known, center=float(level)) if np.isfinite(level) else np.nan
    # float32 resolves no less, where all losses of a stretch are alike
    floor = 1e-6 * float(np.abs(known).max(initial=0, where=np.isfinite(known)))
    for loss, norm in zip(losses, columns.get("grad_norm", nothing), strict=True):
        # 8 sigma as in `spike`
        odd = not np.isfinite(loss) or abs(loss - level) > max(8 * spread, floor)
        stretch.add(float(loss), float(norm), alarms=int(odd))
    return stretch
