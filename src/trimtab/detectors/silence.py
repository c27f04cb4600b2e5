"""Silences: nothing was logged for long between two rows. Offline, from the times of writing.

A gap between two rows of an attempt is a hang when it is `FACTOR` times the usual one and half an
hour or longer, or two minutes and half of the time of all rows: collectives time out after 10 to
30 minutes, and a save or an evaluation that takes
as long each time is the run's way, so a gap also has to be twice the fourth longest. The log went
on, so it is a warning: the time is lost, and the reason is worth knowing. Of an attempt the longest
is reported. Where held-out values stand at it that most rows have not, or where two or three as long
come at even distances, it is an evaluation or a save as far as anybody knows, and a note.

A hang also grows: the last rows of an attempt each take longer than the one before, `MIN_GROWN` of
them or more, until one takes `FACTOR` times the usual. The time-out may end the run before any of
them lasts half an hour, so `LEAST_GROWN_S` are enough; what a step takes counts, since some logs
print ever more rarely. Where no time of writing is logged, the times of steps tell it.

**Stalls** may each be short and still cost most of the time: from some row on, one row in several takes
`STALL` times the usual or more, `STALLS` of them at least, and together they take `STALL_SHARE` of the
time since, and `STALL_OFTEN` times as much a row as before, of whose rows fewer are slow than chance
has it. Where most of them hold held-out values that other rows have not, or come at equal distances
and take less than half of the time, the run evaluates or saves; it is a note.

**A stretch** of two to `MOST_OF_STRETCH` rows in a row that each take `STALL` times the usual, half an
hour and `OF_ALL` of the time of the attempt in all, is told though the pace came back: evaluations
and saves stand alone.

A log that ends in silence has no row to say so; whether its run is alive is for a watcher to see.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.written_times import rows_in_order
from trimtab.record import HELD_OUT, RunRecord

__all__ = ["growing_hang_findings", "silence_findings", "slow_stretch_findings", "stall_findings"]

FACTOR = 50.0
LEAST_S = 1800.0
LARGE, LEAST_LARGE_S = 0.5, 120.0
"""Share of the time of all rows, from which a gap of two minutes is one. Ours."""
RANK = 3
MIN_ROWS = 30
MIN_GROWN = 3
GROWTH = 1.2
"""Times the row before that each of the last rows takes, at least. Ours."""
SLOW = 5.0
"""Times the usual from which a row belongs to a hang that grows. Ours."""
LEAST_GROWN_S = 300.0
"""Seconds of the longest: half of the shortest usual time-out of collectives."""
STALL, STALLS, STALL_SHARE, STALL_OFTEN = 5.0, 6, 0.25, 5.0
STALL_SIGMA, STALL_EVEN = 5.0, 0.9
"""By which fewer of the rows before are slow than chance has it; and share of equal distances, from
which pauses of less than half of the time are saves or evaluations. All bars of stalls are ours."""
MOST_OF_STRETCH, OF_ALL, EVEN = 16, 0.25, 0.1
"""Rows in a row that are slow and over, their share of the time, and what they differ by if they are of
one stage, as a share. Ours."""
OF_AN_AGENT = ("reward", "episode_length", "completion_length")
"""Where these are logged, steps take as long as its answers do."""
LIKE = 2.0
"""Times its length within which a gap is like another."""
_RARE = 0.5
"""Share of the rows below which held-out values tell where an evaluation was."""


def silence_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding at most per attempt."""
    if "wall_time_s" not in record.columns:
        return ()
    findings: list[Finding] = []
    for index in range(len(record.attempts)):
        rows = rows_in_order(record, index)
        if len(rows) < MIN_ROWS:
            continue
        gaps = np.diff(record.columns["wall_time_s"].values[rows])
        usual = _usual(gaps)
        ranked = np.sort(gaps)[::-1]
        # Up to three long gaps may each be an outage; more of them are saves or evaluations.
        longest, others = float(ranked[0]), float(ranked[RANK])
        # What takes a large part of the whole run is told before it is as long.
        large = longest >= max(LEAST_LARGE_S, LARGE * float(gaps.sum()))
        least_s = LEAST_LARGE_S if large else LEAST_S
        if usual <= 0 or longest < max(least_s, FACTOR * usual, 2.0 * others):
            continue
        at = int(np.argmax(gaps))
        before, after = int(rows[at]), int(rows[at + 1])
        if not _is_slow(record.step[rows], gaps, at):
            continue
        regular = _is_evaluation(record, before, after) or _come_evenly(record, rows, gaps)
        text = (
            f"nothing was logged for {_long(longest)}, where a row comes every {usual:.3g} s;"
            " then the log continues"
        )
        findings.append(
            finding_at(
                record,
                detector="silence",
                kind="hang",
                signal="wall_time_s",
                severity="info" if regular else "warning",
                row=after,
                onset_row=before,
                peak_row=after,
                end_row=after,
                value=longest,
                expected=usual,
                score=longest / usual,
                closed=True,
                text=text,
            )
        )
    return tuple(findings)


def _long(seconds: float) -> str:
    return f"{seconds / 3600:.3g} h" if seconds >= 3600 else f"{seconds / 60:.3g} min"


def _usual(gaps: NDArray[np.float64]) -> float:
    """Return the usual gap, which is not moved by those that are looked for.

    Where most rows share a time, since a clock shows whole seconds or a writer has a buffer, it is
    that of the times.
    """
    usual = float(np.median(gaps))
    passed = gaps[gaps > 0]
    return float(np.median(passed)) if usual <= 0 and len(passed) >= MIN_ROWS else usual


def _is_slow(step: NDArray[np.float64], gaps: NDArray[np.float64], at: int) -> bool:
    """Whether a gap is long for the steps done in it, too: some logs print ever more rarely."""
    steps = np.diff(step)
    known = (steps > 0) & (gaps > 0)
    if not known[at]:
        return True
    return bool(gaps[at] / steps[at] >= SLOW * np.median(gaps[known] / steps[known]))


def _is_evaluation(record: RunRecord, before: int, after: int) -> bool:
    """Whether held-out values stand at a gap that few rows have."""
    for name in HELD_OUT & record.columns.keys():
        present = record.columns[name].present
        if present[before : after + 1].any() and np.mean(present) < _RARE:
            return True
    return False


def _come_evenly(record: RunRecord, rows: NDArray[np.intp], gaps: NDArray[np.float64]) -> bool:
    """Whether gaps as long as the longest come each so many steps, as saves and evaluations do."""
    at = np.flatnonzero(gaps * LIKE >= gaps.max())
    if len(at) < 2:
        return False
    step = record.step[rows]
    # In rows, since a save at step 5000 is told by the row behind it.
    apart = np.diff(np.concatenate([step[:1], step[at + 1]]))[1:]
    since = step[at[0] + 1] % apart[0] if apart[0] > 0 else np.inf
    width = float(np.max(np.diff(step)[at])) * 1.5
    on_grid = min(since, apart[0] - since) <= width
    return bool(np.ptp(apart) <= width and on_grid)


def growing_hang_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return a finding for each attempt whose last rows take ever longer."""
    found = (_growing(record, index) for index in range(len(record.attempts)))
    return tuple(f for f in found if f is not None)


def _growing(record: RunRecord, attempt: int) -> Finding | None:
    timed = _seconds(record, attempt)
    if timed is None:
        return None
    signal, rows, seconds, per_step = timed
    if len(rows) < MIN_ROWS:
        return None
    usual = float(np.median(per_step))
    ends = (per_step[1:] < GROWTH * per_step[:-1]) | (per_step[1:] < SLOW * usual)
    begin = int(np.flatnonzero(ends)[-1]) + 2 if ends.any() else 1
    # The row before the first that grew belongs to it where it is slow itself.
    begin -= bool(per_step[begin - 1] >= SLOW * usual)
    num = len(rows) - begin
    if usual <= 0 or num < MIN_GROWN or begin < MIN_ROWS - MIN_GROWN:
        return None
    others = float(np.sort(per_step[:begin])[::-1][RANK])
    last = float(per_step[-1])
    if seconds[-1] < LEAST_GROWN_S or last < max(FACTOR * usual, 2.0 * others):
        return None
    usual_s = float(np.median(seconds[:begin]))
    shown = ", ".join(f"{s:.0f}" for s in seconds[-min(num, 4) :].tolist())
    text = (
        f"each of the last {num} rows took longer than the one before, at last {shown} s, where a"
        f" row takes {usual_s:.3g} s"
    )
    return finding_at(
        record,
        detector="growing-hang",
        kind="hang",
        signal=signal,
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[begin - 1]),
        peak_row=int(rows[-1]),
        value=float(seconds[-1]),
        expected=usual_s,
        score=last / usual,
        closed=False,
        text=text,
    )


def stall_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return a finding for each attempt in which single rows begin to take most of the time."""
    found = (_stalling(record, index) for index in range(len(record.attempts)))
    return tuple(f for f in found if f is not None)


def _stalling(record: RunRecord, attempt: int) -> Finding | None:
    timed = _seconds(record, attempt)
    if timed is None or len(timed[1]) < 2 * MIN_ROWS:
        return None
    signal, rows, seconds, per_step = timed
    usual = float(np.median(per_step))
    slow = np.flatnonzero(per_step >= STALL * usual)
    # The first rows compile, read and warm up.
    slow = slow[slow >= MIN_ROWS]
    if usual <= 0 or len(slow) < STALLS:
        return None
    lost = np.zeros(len(rows))
    lost[slow] = seconds[slow] - float(np.median(seconds))
    total = np.concatenate([[0.0], np.cumsum(lost)])
    # Seconds lost in each row up to a slow one, and from it on to the end.
    before, since = total[slow] / slow, (total[-1] - total[slow]) / (len(rows) - slow)
    enough = np.arange(len(slow), 0, -1) >= STALLS
    at = int(np.argmax(np.where(enough, since - before, -np.inf)))
    begin = int(slow[at])
    share = (total[-1] - total[begin]) / float(seconds[begin:].sum())
    if not math.isfinite(share):
        return None
    apart = np.diff(slow[at:])
    # A pause that comes each so many rows from the start on is the run's way; so are rows that are
    # slow by chance, of which some stand among the first.
    expected = begin * (len(slow) - at) / (len(rows) - begin)
    too_few = expected - at >= STALL_SIGMA * math.sqrt(expected)
    over = slow[-1] < begin + (len(rows) - begin) * 2 // 3
    if share < STALL_SHARE or since[at] < STALL_OFTEN * before[at] or not too_few or over:
        return None
    if begin < STALL_OFTEN * float(np.median(apart)):
        return None
    evenly = np.mean(np.abs(apart - np.median(apart)) <= 1) >= STALL_EVEN
    by_design = evenly and share < 2 * STALL_SHARE
    evaluates = _evaluates(record, rows, slow[at:])
    num, longest = len(slow) - at, float(seconds[begin:].max())
    return finding_at(
        record,
        detector="stalls",
        kind="slowdown",
        signal=signal,
        severity="info" if evaluates or by_design else "warning",
        row=int(rows[-1]),
        onset_row=int(rows[begin]),
        value=float(seconds[begin:].mean()),
        expected=float(np.median(seconds)),
        score=min(99.0, since[at] / max(float(before[at]), usual)),
        closed=False,
        text=(
            f"{num} of the {len(rows) - begin} rows since take up to {longest:.3g} s, where a row takes"
            f" {float(np.median(seconds)):.3g} s: {share:.0%} of the time (in hindsight)"
        ),
    )


def _evaluates(record: RunRecord, rows: NDArray[np.intp], slow: NDArray[np.intp]) -> bool:
    """Whether most of the slow rows hold held-out values that other rows have not."""
    held_out = [record.columns[n].present for n in HELD_OUT & record.columns.keys()]
    return any(np.mean(present[rows[slow]]) > _RARE > np.mean(present) for present in held_out)


def _of_more_data(record: RunRecord, rows: NDArray[np.intp], first: int, stop: int) -> bool:
    """Whether rows of a stretch stand for many more tokens than the others do."""
    seen = record.columns.get("tokens_seen")
    if seen is None or not seen.present[rows].all():
        return False
    moves = np.diff(seen.values[rows], prepend=np.nan)
    usual = float(np.nanmedian(moves))
    return usual > 0 and float(np.nanmedian(moves[first:stop])) >= 0.5 * STALL * usual


def slow_stretch_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the longest stretch of slow rows of each attempt, where it cost much of the time."""
    found = (_slow_stretch(record, index) for index in range(len(record.attempts)))
    return tuple(f for f in found if f is not None)


def _slow_stretch(record: RunRecord, attempt: int) -> Finding | None:
    timed = None if record.axis == "row" else _seconds(record, attempt)
    if timed is None or len(timed[1]) < MIN_ROWS or timed[0] != "wall_time_s":
        return None
    if any(name in record.columns for name in OF_AN_AGENT):
        return None
    signal, rows, seconds, per_step = timed
    usual = float(np.median(per_step))
    slow = np.concatenate(([False], per_step >= STALL * usual, [False]))
    edges = np.flatnonzero(np.diff(slow))
    stretches = [
        (float(seconds[a:b].sum()), a, b)
        for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
        # The first rows read and compile.
        if 1 < b - a <= MOST_OF_STRETCH and a > 1 and b < len(rows)
    ]
    if not usual > 0 or not stretches:
        return None
    lost, first, stop = max(stretches)
    if lost < max(LEAST_S, OF_ALL * float(seconds.sum())) or _of_more_data(
        record, rows, first, stop
    ):
        return None
    # A stage of larger work takes as long in each of its rows; a machine in trouble does not.
    even = stop - first > 3 and np.ptp(per_step[first:stop]) <= EVEN * np.median(
        per_step[first:stop]
    )
    by_design = even or _evaluates(record, rows, np.arange(first, stop))
    return finding_at(
        record,
        detector="slow-stretch",
        kind="slowdown",
        signal=signal,
        severity="info" if by_design else "warning",
        row=int(rows[stop]),
        onset_row=int(rows[first]),
        end_row=int(rows[stop]),
        value=lost / (stop - first),
        expected=float(np.median(seconds)),
        score=min(99.0, float(np.median(per_step[first:stop])) / usual),
        closed=True,
        text=(
            f"{stop - first} rows in a row take {_long(lost)} in all, where a row takes"
            f" {float(np.median(seconds)):.3g} s: {lost / float(seconds.sum()):.0%} of the time, then"
            " it goes on as before (in hindsight)"
        ),
    )


def _seconds(
    record: RunRecord, attempt: int
) -> tuple[str, NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]] | None:
    """Return what says it, the rows, seconds up to each and how many of them a step took."""
    if "wall_time_s" in record.columns:
        rows = rows_in_order(record, attempt)
        loss = record.columns.get("loss")
        # Scores of several sets at the end of a run come minutes apart.
        rows = rows if loss is None else rows[loss.present[rows]]
        if len(rows) < MIN_ROWS:
            return None
        seconds = np.diff(record.columns["wall_time_s"].values[rows])
        steps = np.diff(record.step[rows])
        rows = rows[1:]
        steps = np.where(steps > 0, steps, np.median(steps))
        return None if not np.all(steps > 0) else ("wall_time_s", rows, seconds, seconds / steps)
    column = record.columns.get("step_time_s")
    if column is None:
        return None
    rows = column.finite_rows(record.rows_of(attempt))
    seconds = column.values[rows]
    return "step_time_s", rows, seconds, seconds
