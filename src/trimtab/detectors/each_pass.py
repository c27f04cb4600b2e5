"""What comes back at equal distances is one event, not many: alarms told once, in hindsight.

**Spikes**: alarms on the loss that begin one period apart, `LEAST_TEETH` or more of them with at
most one missing between two, are one condition from the first to the last of them: the order of the
data, which is the same in each pass or goes by label or source. Each becomes a note. Rises that
come with most restarts of a logged learning rate are that schedule: each that is over is a note.

**Steps of a staircase**: where the loss steps down at each pass (`epochs`), a fall at such a step
is no leak of targets but that pass.

**Teeth of a saw**: where the loss climbs within each pass (`sawtooth`), what rises and falls with
the teeth is the order of the data.

**What only follows** (`FOLLOWS`): a stall around a step up, a loss next to 0 after a leak, an end in
zeros that is told as such.

Blind to periods that change, and to the first rises of a run that grows.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.explained_rises import restarts_of
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.sawtooth import teeth_of
from trimtab.record import RunRecord

__all__ = ["as_follows", "told_once"]

LEAST_TEETH = 4
LEAST_RESTARTS = 3
LEAST_PERIOD = 8
"""Rows. Ours."""
NEAR_SHARE = 32
"""Of a period, by which a rise may be off its place, and two rows. Ours."""
STEP_SHARE = 20
"""Of a period, by which a fall may be off a step of a staircase. Ours."""
LEAST_IN_PHASE, IN_PHASE, BY_CHANCE = 8, 0.9, 0.25
"""Rises at one place of a period, their share of all, and the share of a period that such a place
takes at most. Ours."""
LEAST_SHARE = 0.75
"""Of the rises, that stand one period apart, and of the periods, that miss none. Ours."""
MOST_ALARMS = 256
UNDER_WAY = 4
"""Times the longest rise before it, that the newest one may last. Ours."""
SPIKES = ("spike", "unrecovered-spike")
KINDS = (*SPIKES, "shift", "drift", "divergence", "grad-spike", "too-good")
"""Alarms at a tooth that are of it."""


def told_once(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, those of each pass as notes beside the one that names the period."""
    notes: dict[int, str] = {}
    added: list[Finding] = []
    for attempt in range(len(record.attempts)):
        rows = record.rows_of(attempt)
        here = [f for f in findings if rows.start <= f.onset_row < rows.stop]
        alarms = [f for f in here if f.severity != "info"]
        stairs = next((f for f in alarms if f.detector == "staircase"), None)
        if stairs is not None:
            steps = (f for f in alarms if _of_a_staircase(f, stairs, rows.start))
            notes |= {id(f): "; a step of the staircase" for f in steps}
        if any(f.detector == "sawtooth" for f in here):
            of_order = _of_a_saw(record, here)
            notes |= {id(f): "; of the order of the data in each pass" for f in of_order}
        spikes = {f.key: f for f in here if f.kind in SPIKES and f.signal == "loss"}
        of_rate = _at_restarts(record, attempt, tuple(spikes.values()))
        notes |= {id(f): "; it comes with each restart of the learning rate" for f in of_rate}
        onsets = {
            f.onset_row for f in spikes.values() if f.severity != "info" and id(f) not in notes
        }
        teeth = _teeth(sorted(onsets))
        if teeth:
            # What is critical stays told: the order of the data does not make a run diverge.
            rises = [
                f
                for f in alarms
                if f.kind in KINDS and f.severity == "warning" and _at_a_tooth(f, teeth)
            ]
            of_them = [spikes[f.key] for f in rises if f.key in spikes]
            if len(of_them) >= LEAST_SHARE * LEAST_TEETH:
                notes |= {id(f): "" for f in rises}
                added.append(_equal_distances(record, teeth, of_them))
    told = (
        replace(f, severity="info", text=f.text + notes[id(f)]) if id(f) in notes else f
        for f in findings
    )
    return (*told, *added)


def _at_a_tooth(f: Finding, teeth: Sequence[int]) -> bool:
    near = max(_reach(_period(teeth)), f.grain_rows)
    return any(abs(f.onset_row - t) <= near for t in teeth)


def _at_restarts(record: RunRecord, attempt: int, spikes: Sequence[Finding]) -> list[Finding]:
    """Return the rises that come with restarts of the learning rate and are over, if most do."""
    restarts = restarts_of(record, attempt)
    if len(restarts) < LEAST_RESTARTS or not spikes:
        return []
    near = _reach(int(np.median(np.diff([r.start for r in restarts]))))

    # The newest restart that each rise may come with.
    places = np.searchsorted(
        [r.start - near for r in restarts], [f.onset_row for f in spikes], "right"
    )
    at = {
        id(f): int(k) - 1
        for f, k in zip(spikes, places, strict=True)
        if k and f.onset_row < restarts[k - 1].stop + near
    }
    if len(set(at.values())) < max(LEAST_RESTARTS, LEAST_SHARE * len(restarts)):
        return []
    over = (f for f in spikes if f.severity == "warning" and f.end_row is not None)
    return [f for f in over if id(f) in at]


def _of_a_staircase(f: Finding, stairs: Finding, first_row: int) -> bool:
    """Whether a fall is one of its steps, or a standstill that ended one of its flats."""
    period = max(1, stairs.onset_row - first_row)
    if f.kind == "plateau":
        return f.end_row is not None and f.end_row - f.onset_row <= period
    if f.kind != "too-good":
        return False
    off = (f.onset_row - first_row) % period
    # A block of rows may begin before the step.
    return min(off, period - off) <= max(f.grain_rows, period // STEP_SHARE)


def _of_a_saw(record: RunRecord, here: Sequence[Finding]) -> list[Finding]:
    """Return the alarms on the loss that are of the teeth of a sawtooth."""
    teeth = teeth_of(record, next(f for f in here if f.detector == "sawtooth"))
    found = (f for f in here if f.severity != "info" and f.detector != "sawtooth")
    kinds = (*KINDS, "memorised", "plateau")
    return [f for f in found if f.kind in kinds and teeth is not None and teeth.explains(f)]


def _teeth(rows: Sequence[int]) -> list[int]:
    """Return the rows that stand at equal distances, none where there are too few of them."""
    best: list[int] = []
    if not LEAST_TEETH <= len(rows) <= MOST_ALARMS:
        return best
    return _in_phase(rows) or _in_a_chain(rows)


def _in_phase(rows: Sequence[int]) -> list[int]:
    """Return the rows that stand at one place of a period, however many periods have none.

    Of `LEAST_IN_PHASE` rows or more, all but a tenth, where chance would put a quarter at most.
    """
    steps = np.diff(rows)
    for period in sorted({int(p) for p in steps if p >= LEAST_PERIOD}):
        near = _reach(period)
        if np.sum(np.abs(steps - period) <= near) < LEAST_IN_PHASE // 2:
            continue
        if 2 * near + 1 > period * BY_CHANCE:
            continue
        off = (np.asarray(rows) - rows[len(rows) // 2] + period // 2) % period - period // 2
        there = np.abs(off - int(np.median(off))) <= near
        if there.sum() >= max(LEAST_IN_PHASE, IN_PHASE * len(rows)):
            return [r for r, is_there in zip(rows, there.tolist(), strict=True) if is_there]
    return []


def _in_a_chain(rows: Sequence[int]) -> list[int]:
    """Return the most rows that follow each other at one distance, or at twice it."""
    best: list[int] = []
    for i, first in enumerate(rows):
        for second in rows[i + 1 : i + 4]:
            period = second - first
            if period < LEAST_PERIOD:
                continue
            found = [first, second]
            # A double step lets one rise be missing; the chain goes on from each, so that small
            # errors do not add up.
            while (after := _next(rows, found[-1], period)) is not None:
                found.append(after)
            if len(found) > len(best):
                best = found
    singles = np.diff(best) < 1.5 * _period(best) if len(best) > 1 else np.zeros(0)
    if len(best) < LEAST_TEETH or singles.mean() < LEAST_SHARE:
        return []
    # Of many rises some are always at equal distances.
    near = [r for r in rows if any(abs(r - t) <= _reach(_period(best)) for t in best)]
    return best if len(near) >= LEAST_SHARE * len(rows) else []


def _next(rows: Sequence[int], last: int, period: int) -> int | None:
    places = (last + period, last + 2 * period)
    near = (r for p in places for r in rows if r > last and abs(r - p) <= _reach(period))
    return next(near, None)


def _period(teeth: Sequence[int]) -> int:
    return int(np.median(np.diff(teeth))) if len(teeth) > 1 else 0


def _reach(period: int) -> int:
    return max(2, period // NEAR_SHARE)


def _equal_distances(
    record: RunRecord, teeth: Sequence[int], of_them: Sequence[Finding]
) -> Finding:
    worst = max(of_them, key=lambda f: f.score)
    last = max(f.row if f.end_row is None else f.end_row for f in of_them)
    period = _period(teeth)
    lasts = _lasts(record, of_them)
    return finding_at(
        record,
        detector="equal-distances",
        kind="spike",
        signal="loss",
        severity="warning",
        row=last,
        onset_row=teeth[0],
        peak_row=worst.peak_row,
        end_row=None if lasts else last,
        value=worst.value,
        expected=worst.expected,
        score=worst.score,
        closed=not lasts,
        text=(
            f"the loss rises {len(teeth)} times, every {period} rows{_pass(record, teeth, period)},"
            f" to {worst.value:.4g} at most: the data comes in that order{_unless(record)}"
        ),
    )


def _unless(record: RunRecord) -> str:
    logged = "lr" in record.columns
    return "" if logged else ", or the learning rate, which is not logged, restarts"


def _lasts(record: RunRecord, of_them: Sequence[Finding]) -> bool:
    """Whether a rise stays; the newest may be under way for some times as long as others took."""
    *others, newest = sorted(of_them, key=lambda f: f.onset_row)
    if any(f.end_row is None for f in others):
        return True
    longest = max(f.end_row - f.onset_row for f in others if f.end_row is not None)
    under_way = record.num_rows - newest.onset_row
    return newest.end_row is None and under_way > UNDER_WAY * max(longest, LEAST_PERIOD)


def _pass(record: RunRecord, teeth: Sequence[int], period: int) -> str:
    """Return how long an epoch is beside the period, where epochs are logged."""
    column = record.columns.get("epochs_seen")
    if column is None:
        return ""
    rows = column.finite_rows(slice(teeth[0], teeth[-1] + 1))
    epochs = float(column.values[rows[-1]] - column.values[rows[0]]) if len(rows) > 1 else 0.0
    if epochs <= 0:
        return ""
    share = period * epochs / float(rows[-1] - rows[0])
    return ", one epoch" if abs(share - 1) < 0.1 else f", {share:.2g} epochs"


FOLLOWS = {
    "plateau": ("spike", "unrecovered-spike", "divergence", "shift", "drift"),
    "memorised": ("too-good",),
    "non-finite": ("frozen-signal",),
}
"""What an alarm on the loss is only the end of: a loss that stepped up falls no further than
promised before, and one that leaks ends next to 0. The first is told, the second is a note."""
LEAKS = ("too-low", "drop")


def as_follows(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, alarms that follow from an earlier or inner one as notes."""
    alarms = [f for f in findings if f.severity != "info" and f.signal == "loss"]
    return tuple(_after(f, alarms) if f in alarms and f.kind in FOLLOWS else f for f in findings)


def _after(f: Finding, alarms: Sequence[Finding]) -> Finding:
    for a in alarms:
        if a.kind not in FOLLOWS[f.kind] or f.end_row is not None:
            continue
        if f.kind == "plateau":
            # What lay flat before it stepped up did so on its own; a stall that goes on did not.
            follows = f.onset_row <= a.onset_row <= f.row and a.end_row is None
        elif f.kind == "non-finite":  # told already, with what it may be
            follows = f.detector == "zero-end" and a.detector == "zero-loss"
        else:
            follows = a.detector in LEAKS and a.onset_row < f.onset_row
        if follows:
            return replace(f, severity="info", text=f"{f.text}; see {a.kind} at {a.onset:g}")
    return f
