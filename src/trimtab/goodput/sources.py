"""What to read for the account of a run: logs, a guard's run directory, a supervisor's folder."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ReadError
from trimtab.goodput.account import GoodputAccount, Mark, account_for, sum_of_steps
from trimtab.goodput.lines import LogMarks, marks_of_log, thinned
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.text import number

__all__ = ["goodput"]

_QUARTER_S = 900.0
"""Time zones differ by quarters of an hour."""
_LONGEST_S = 2 * 366 * 86_400.0
"""No run is longer than this to either side of its middle row."""
_MOST_ROWS = 400_000
_ACTS = ("action", "rollback")
_NO_TIMES = (
    "{}: no row has a time, so wall time, restarts and hangs cannot be told; log with times"
    " (Python's logging prints them with %(asctime)s), or run it under trimtab supervise"
)


def goodput(paths: Sequence[Path]) -> GoodputAccount:
    """Return where the time of one run went.

    Args:
        paths: Logs, run directories and supervisor's folders of one run, in any order.

    Returns:
        Seconds by cause. Without any time `wall_s` is 0 and `untold` says why.

    Raises:
        ReadError: A path cannot be read.
        ChronicleError: A journal cannot be read.
    """
    supervised: list[Mark] = []
    timed: list[LogMarks] = []
    records: list[RunRecord] = []
    untold: list[str] = []
    for path in paths:
        if not path.exists():
            raise ReadError(f"{path}: there is no such file or folder; give a log or a run")
        if path.is_dir() and (path / "journal.jsonl").is_file():
            events = read_journal(path / "journal.jsonl")[0]
            if RunDirectory(path).signals.is_dir():
                timed.append(LogMarks(_guard_marks(events, path), has_zone=True))
                continue
            supervised += _supervisor_marks(events)
            copies = [p for p in (path / "output.log.1", path / "output.log") if p.is_file()]
            timed += [m for m in map(marks_of_log, copies) if m.num_steps > 1]
            continue
        found = LogMarks() if path.is_dir() else marks_of_log(path)
        if found.num_steps > 1:
            timed.append(found)
            continue
        record = read_run(path)
        marks = _record_marks(record)
        if marks:
            timed.append(LogMarks(marks, has_zone=True))
        else:
            records.append(record)
            untold.append(_NO_TIMES.format(path))
    marks, told = _of_one_time(_together(supervised, timed))
    if marks:
        untold += told
        if any(found.elapsed for found in timed):
            untold.append("times count from each start: what lay between two starts is not told")
        return account_for(marks, untold=tuple(untold))
    for record in records:
        by_steps = _logged_times(record)
        if by_steps is not None:
            return by_steps
    return account_for((), untold=tuple(untold))


def _together(supervised: list[Mark], timed: list[LogMarks]) -> list[Mark]:
    """Return the marks of all sources on one clock.

    Rows of a log are nearer to what happened than what a supervisor saw of them.
    """
    if not supervised:
        return [mark for found in timed for mark in found.marks]
    first, last = min(m.at for m in supervised), max(m.at for m in supervised)
    rows: list[Mark] = []
    for found in timed:
        shift = 0.0 if found.has_zone else _shift(found.marks, first, last)
        rows += [
            replace(mark, at=min(max(mark.at + shift, first), last))
            for mark in found.marks
            if mark.kind not in ("start", "stop")
        ]
    if not any(mark.kind == "step" for mark in rows):
        return supervised + rows
    return [mark for mark in supervised if mark.kind != "step"] + rows


def _of_one_time(marks: list[Mark]) -> tuple[list[Mark], list[str]]:
    """Leave out marks whose date is years from that of the rest: a clock that was not set."""
    usual = statistics.median_low(m.at for m in marks) if marks else 0.0
    near = [m for m in marks if abs(m.at - usual) <= _LONGEST_S]
    far = [m.at for m in marks if abs(m.at - usual) > _LONGEST_S]
    if not far:
        return near, []
    years = number(abs(far[0] - usual) / (365.25 * 86_400.0), digits=2)
    return near, [f"{len(far)} times lie {years} years from the others: they are left out"]


def _shift(marks: Sequence[Mark], first: float, last: float) -> float:
    """Return what brings times of an unknown zone between two known ones, in quarter hours."""
    if not marks:
        return 0.0
    middle = (marks[0].at + marks[-1].at) / 2
    return round(((first + last) / 2 - middle) / _QUARTER_S) * _QUARTER_S


def _at(event: Event) -> float | None:
    try:
        return datetime.fromisoformat(event.t).timestamp()
    except ValueError:
        return None


def _timed(events: Iterable[Event]) -> list[tuple[float, Event]]:
    found = [(at, event) for event in events if (at := _at(event)) is not None]
    return sorted(found, key=lambda pair: pair[0])


def _seconds(event: Event, name: str) -> float:
    value = event.data.get(name)
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return max(float(value), 0.0) if ok and value is not None else 0.0


def _supervisor_marks(events: Sequence[Event]) -> list[Mark]:
    """Return when commands began, showed steps and ended, from a supervisor's journal.

    `restart`, `gave-up` and `end` say how long the attempt took to its first step, was in steps,
    and was silent; an older journal without these tells only when attempts ended.
    """
    marks: list[Mark] = []
    for at, event in _timed(events):
        if event.event == "start":
            marks.append(Mark(at=at, kind="start"))
        if event.event not in ("restart", "gave-up", "end"):
            continue
        silent, trained = _seconds(event, "silent_s"), _seconds(event, "trained_s")
        first, last = event.data.get("first_step"), event.data.get("last_step")
        if isinstance(first, int | float) and isinstance(last, int | float):
            if marks and marks[-1].kind == "start":
                marks[-1] = replace(marks[-1], step=float(first) - 1.0)
            marks.append(Mark(at=at - silent - trained, kind="step", step=float(first)))
            if last > first:
                marks.append(Mark(at=at - silent, kind="step", step=float(last)))
        cause = str(event.data.get("class") or "")
        done = event.event == "end"
        told = "done" if done else cause if cause in ("hang", "numeric") else "restart"
        marks.append(Mark(at=at, kind="stop", cause=told))
        if event.event == "restart":
            marks.append(Mark(at=at + _seconds(event, "wait_s"), kind="start"))
    return marks


def _guard_marks(events: Sequence[Event], path: Path) -> list[Mark]:
    """Return marks of a guard's run: its journal has the times, its samples the time of steps."""
    times = _Times(read_run(path))
    marks: list[Mark] = []
    step, attempt = 0.0, ""
    numeric = False
    for at, event in _timed(events):
        if event.event in ("start", "resume"):
            marks.append(Mark(at=at, kind="start"))
            step, attempt = float(event.step), event.attempt
            continue
        if event.event == "attempt":
            numeric = numeric or bool(event.data.get("trial"))
            parent = event.data.get("parent_step")
            back = float(parent) if isinstance(parent, int | float) else step
            if marks and attempt and back < step:
                marks.append(Mark(at=at, kind="back", step=back, cause="numeric"))
            attempt, step = event.attempt, back
            continue
        if event.event == "end":
            marks.append(Mark(at=at, kind="stop", cause="done"))
            continue
        took, slow = times.between(event.attempt, step, float(event.step))
        if event.event == "checkpoint":
            marks.append(Mark(at=at, kind="section", cause="checkpoint"))
        if event.step > step and took is not None:
            step = float(event.step)
            marks.append(Mark(at=at, kind="step", step=step, took_s=took, slow_s=slow))
        if event.event in _ACTS and event.step < step:
            marks.append(Mark(at=at, kind="back", step=float(event.step), cause="numeric"))
            step = float(event.step)
    return marks


class _Times:
    """Sums of the times of steps, by attempt."""

    def __init__(self, record: RunRecord) -> None:
        column = record.columns.get("step_time_s")
        self._sums: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        if column is None or not column.present.any():
            return
        seconds = np.nan_to_num(np.where(column.present, column.values, 0.0), posinf=0.0)
        usual = float(statistics.median(seconds[seconds > 0].tolist() or [0.0]))
        slow = np.where(seconds > 1.25 * usual, seconds - usual, 0.0)
        for i, attempt in enumerate(record.attempts):
            rows = record.rows_of(i)
            whole = np.concatenate([[0.0], np.cumsum(seconds[rows])])
            late = np.concatenate([[0.0], np.cumsum(slow[rows])])
            self._sums[attempt.number] = (record.step[rows], whole, late)

    def between(self, attempt: str, after: float, upto: float) -> tuple[float | None, float]:
        """Return the time in the steps (after, upto] of an attempt, and its slow part, seconds."""
        if attempt not in self._sums:
            return None, 0.0
        steps, whole, late = self._sums[attempt]
        first, stop = np.searchsorted(steps, [after, upto], side="right")
        return float(whole[stop] - whole[first]), float(late[stop] - late[first])


def _record_marks(record: RunRecord) -> list[Mark]:
    """Return the rows of a record that have a time of day, as TensorBoard's do."""
    column = record.columns.get("wall_time_s")
    if column is None:
        return []
    rows = np.flatnonzero(column.present & np.isfinite(column.values))
    if len(rows) < 2:
        return []
    marks = [
        Mark(at=float(column.values[r]), kind="step", step=float(record.step[r])) for r in rows
    ]
    marks = [marks[0], *(b for a, b in pairwise(marks) if b.step != a.step)]
    if len(marks) > _MOST_ROWS:
        marks = thinned(marks, (marks[-1].at - marks[0].at) / _MOST_ROWS)
    return marks


def _logged_times(record: RunRecord) -> GoodputAccount | None:
    """Return what the logged times of steps tell, where there is no time of day."""
    column = record.columns.get("step_time_s")
    if column is None:
        return None
    rows = np.flatnonzero(column.present)
    return sum_of_steps([(float(record.step[r]), float(column.values[r])) for r in rows])
