"""Joins the marks of a rule on a record into alarms with a kind."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.contract import GRAD, RESUME, LogColumns, Marks, Peer
from trimtab.record import RunRecord

__all__ = ["PeerAlarm", "find_alarms"]

JOIN_ROWS = 8
"""Marks closer than this are one alarm, as with trimtab's own incidents."""


@dataclass(frozen=True, kw_only=True)
class PeerAlarm:
    """One alarm of a rule; rows are rows of the record."""

    kind: str
    """spike, grad-spike, resume-jump; non-finite where the first row marked is not finite."""
    onset_row: int
    end_row: int
    num_rows: int
    """Rows marked within it."""


def find_alarms(peer: Peer, record: RunRecord) -> tuple[PeerAlarm, ...] | None:
    """Return the alarms of a rule in row order; None where the log lacks what the rule needs.

    A rule that loses its state at a restart starts anew with each attempt.
    """
    rows, names = _rows_for(peer, record)
    if not len(rows):
        return None
    alarms: list[PeerAlarm] = []
    for part in _parts(peer, record, rows):
        values = {n: record.columns[n].values[part] for n in names}
        stream = LogColumns(values, record.attempt[part])
        alarms += _joined(stream, peer.mark(stream), part)
    return tuple(alarms)


def _rows_for(peer: Peer, record: RunRecord) -> tuple[NDArray[np.intp], tuple[str, ...]]:
    """Return the rows in which all signals of the rule were logged, and those signals.

    An optional signal counts where at least half of the rows have it.
    """
    if any(n not in record.columns for n in peer.needs):
        return np.zeros(0, np.intp), ()
    present = np.logical_and.reduce([record.columns[n].present for n in peer.needs])
    names = peer.needs
    for name in peer.uses:
        if name in record.columns:
            both = present & record.columns[name].present
            if 2 * both.sum() >= present.sum():
                present, names = both, (*names, name)
    return np.flatnonzero(present), names


def _parts(peer: Peer, record: RunRecord, rows: NDArray[np.intp]) -> Iterator[NDArray[np.intp]]:
    if peer.keeps_state:
        yield rows
        return
    yield from np.split(rows, np.flatnonzero(np.diff(record.attempt[rows])) + 1)


def _joined(stream: LogColumns, marks: Marks, rows: NDArray[np.intp]) -> Iterator[PeerAlarm]:
    marked = np.flatnonzero(marks)
    if not len(marked):
        return
    apart = (np.diff(marked) > JOIN_ROWS) | (np.diff(stream.attempt[marked]) != 0)
    for group in np.split(marked, np.flatnonzero(apart) + 1):
        yield PeerAlarm(
            kind=_kind(stream, marks, int(group[0])),
            onset_row=int(rows[group[0]]),
            end_row=int(rows[group[-1]]),
            num_rows=len(group),
        )


def _kind(stream: LogColumns, marks: Marks, first: int) -> str:
    """Return the kind by what was marked; the rules themselves name nothing."""
    if marks[first] == RESUME:
        return "resume-jump"
    if not all(np.isfinite(v[first]) for v in stream.values.values()):
        return "non-finite"
    return "grad-spike" if marks[first] == GRAD else "spike"
