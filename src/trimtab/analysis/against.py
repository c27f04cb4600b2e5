"""Judge a run by a reference run: where its loss lies above that one's beyond noise.

Compares at equal steps. Blind where the two log no step in common, and to what both do alike.
"""

from dataclasses import replace

import numpy as np

from trimtab.analysis.divergence import (
    SETTING_SIGNALS,
    FirstDifference,
    Parting,
    Rows,
    common_rows,
    find_partings,
    first_difference,
    measured_by_both,
)
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.text import number, signal_label

__all__ = ["against_findings", "against_note"]

MIN_ROWS = 64
"""Fewer common rows make too few blocks to call one of them an incident. Ours."""


def against_findings(record: RunRecord, reference: RunRecord, name: str) -> tuple[Finding, ...]:
    """Return one finding for each stretch in which the run is worse than the reference.

    Each lasting one, and each that ends after it stood out by 1.5 times as much as it must; and one
    for each logged setting that differs from the reference's in most rows up to its end.

    Args:
        record: The run to judge.
        reference: The run that it is judged by.
        name: What to call the reference.

    NaN and Inf of either are left out; those of the run are findings of their own. Cost:
    O(n log n).
    """
    rows = _loss_rows(record), _loss_rows(reference)
    steps, own, theirs = common_rows(record, reference, *rows)
    if len(steps) < MIN_ROWS or _of_agent(record, reference):
        return ()
    first = first_difference(reference, record, steps, theirs, own)
    skip = 0 if first is None else first.identical_rows
    b, a = record.columns["loss"].values[own], reference.columns["loss"].values[theirs]
    partings, sigma = find_partings(a, b, skip=skip)
    worse = [p for p in partings if p.gap > 0 and (p.lasts or p.score > _PASSING)]
    found = [_finding(record, own, a, b, p, name, sigma) for p in worse]
    for p, f in zip(worse, tuple(found), strict=True):
        upto = slice(p.last + 1)
        gap = (b - a)[max(0, p.first - MIN_ROWS) : p.first]
        before = len(gap) >= MIN_ROWS and float(np.nanmedian(gap)) < _LEADS * p.gap
        # What differed before, when the losses did not, has to be far from the other.
        least = _FAR if before else _DIFFERS
        found += _settings(record, reference, f, own[upto], theirs[upto], name, least)
    return tuple(found)


_LEADS = 0.1
"""Of the gap, by which the losses lie apart just before they part, where a setting parts them. Ours."""
_DIFFERS, _FAR = 0.02, 0.4
"""Share by which a setting must differ, less is a schedule that is a row further; and the logarithm
of 1.5, where it did so while the losses were equal. Ours."""
_END_ROWS = 32
"""Common rows, the median of whose differences is the gap at the end."""
_EQUAL = 5e-4
"""Share of the loss below which a gap at the end rounds to nothing in three digits."""
_PASSING = 7.5
"""Block noises by which a stretch that ended must have stood out; 1.5 times the limit."""


def against_note(record: RunRecord, reference: RunRecord, name: str) -> str:
    """Return over which rows the two were compared, or why they could not be."""
    rows = _loss_rows(record), _loss_rows(reference)
    steps, own, theirs = common_rows(record, reference, *rows)
    if len(steps) < MIN_ROWS:
        return (
            f"not judged by {name}: {len(steps)} steps with a loss in common, {MIN_ROWS} are needed"
        )
    if _of_agent(record, reference):
        return f"not judged by {name}: the loss of an agent says little; compare shows the rewards"
    said = (
        f"judged by {name} too, over {len(steps)} common steps from {number(float(steps[0]))} to"
        f" {number(float(steps[-1]))}"
    )
    said += _until(first_difference(reference, record, steps, theirs, own))
    last = slice(-_END_ROWS, None)
    loss = record.columns["loss"].values[own[last]], reference.columns["loss"].values[theirs[last]]
    gap = float(np.median(loss[0] - loss[1]))
    if not np.isfinite(gap):
        return said
    if abs(gap) < _EQUAL * float(np.nanmedian(np.abs(loss[1]))):
        return said
    side = "above" if gap > 0 else "below"
    return f"{said}; at their end its loss lies {number(abs(gap), digits=3)} {side}"


def _until(first: FirstDifference | None) -> str:
    """Return until where two runs log the same, and what differs first; empty where they never do."""
    if first is None or first.at is None or first.identical_until is None:
        return ""
    names = ", ".join(signal_label(s.signal) for s in first.signals[:3])
    return (
        f"; identical until {number(first.identical_until)}, and from {number(first.at)} on {names}"
        f" differ{'s' * (len(first.signals) == 1)}"
    )


def _settings(
    record: RunRecord,
    reference: RunRecord,
    f: Finding,
    own: Rows,
    theirs: Rows,
    name: str,
    least: float,
) -> list[Finding]:
    """Return the logged settings that differ in most common rows up to the end of a stretch.

    By `least` at least, as a logarithm.
    """
    found = []
    for signal in SETTING_SIGNALS:
        mine, other = record.columns.get(signal), reference.columns.get(signal)
        if mine is None or other is None:
            continue
        x, y = mine.values[own], other.values[theirs]
        rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0))
        ratio = x[rows] / y[rows]
        apart = np.abs(np.log(ratio)) > least
        if len(rows) < MIN_ROWS or apart.mean() <= 0.5:
            continue
        order = np.argsort(ratio[apart], kind="stable")
        first, middle = rows[apart][0], rows[apart][order[len(order) // 2]]
        times = float(x[middle] / y[middle])
        found.append(
            replace(
                f,
                detector="reference-setting",
                signal=signal,
                value=float(x[middle]),
                expected=float(y[middle]),
                direction="up" if times > 1 else "down",
                text=(
                    f"{signal.replace('_', ' ')} {number(times, digits=3)} times that of {name}"
                    f" from {number(float(record.step[own[first]]))} on"
                ),
            )
        )
    return found


def _of_agent(a: RunRecord, b: RunRecord) -> bool:
    """Whether both log a reward."""
    return "reward" in measured_by_both(a, b)


def _loss_rows(record: RunRecord) -> Rows:
    rows = record.lineage_rows()
    column = record.columns.get("loss")
    return rows[:0] if column is None else rows[column.present[rows]]


def _finding(
    record: RunRecord,
    own: Rows,
    a: np.ndarray[tuple[int], np.dtype[np.float64]],
    b: np.ndarray[tuple[int], np.dtype[np.float64]],
    p: Parting,
    name: str,
    sigma: float,
) -> Finding:
    part = slice(p.first, p.last + 1)
    return finding_at(
        record,
        detector="against-reference",
        kind="behind-reference",
        signal="loss",
        severity="warning",
        row=int(own[p.last]),
        onset_row=int(own[p.first]),
        peak_row=int(own[p.peak]),
        end_row=None if p.lasts else int(own[p.last]),
        value=float(np.nanmedian(b[part])),
        expected=float(np.nanmedian(a[part])),
        score=min(p.score, 1e6),
        closed=not p.lasts,
        text=(
            f"loss {number(p.gap)} above {name} at equal steps (noise ±{number(2 * sigma)},"
            " in hindsight)"
        ),
    )
