"""Judge a run by a reference run: where its loss lies above that one's beyond noise.

Who is worse at the end is what `compare` says, by what is held out or a reward where that tells.
Compares at equal steps. Blind where the two have no position in common, and to what both do alike.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.analysis.divergence import (
    FEWEST_CHECKS,
    SETTING_SIGNALS,
    FirstDifference,
    Parting,
    Rows,
    common_rows,
    find_partings,
)
from trimtab.analysis.divergence import MIN_ROWS as DIVERGENCE_ROWS
from trimtab.analysis.paired import plural
from trimtab.analysis.side_by_side import Comparison, compare_sides, make_side
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.text import number, signal_label
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["against_findings", "against_note", "compared"]

MIN_ROWS = 64
"""Fewer common rows make too few blocks to call one that passes an incident. Ours."""


def compared(record: RunRecord, reference: RunRecord, name: str) -> Comparison:
    """Return how a run differs from its reference, which is side `a`."""
    return compare_sides(make_side(name, reference, {}), make_side("this run", record, {}))


def against_findings(
    record: RunRecord, reference: RunRecord, name: str, c: Comparison | None = None
) -> tuple[Finding, ...]:
    """Return one finding for each stretch in which the run is worse than the reference.

    Each lasting one, and each that ends after it stood out by 1.5 times as much as it must; one for
    the signal that says at the end that the run is worse, where it is not the loss; and one for
    each logged setting that differs from the reference's in most rows up to its end. A loss that
    lies above to the end where `compare` does not call the run worse is a note.

    Args:
        record: The run to judge.
        reference: The run that it is judged by.
        name: What to call the reference.
        c: How they differ, where that is known.

    NaN and Inf of either are left out; those of the run are findings of their own. Cost:
    O(n log n).
    """
    c = compared(record, reference, name) if c is None else c
    found = list(_of_loss(record, reference, name, c))
    told = any(f.end_row is None and f.severity == "warning" for f in found)
    if c.worse == "b" and not (told and c.loss_worse == "b" and not _telling(c)):
        row = _of_end(record, reference, name, c)
        found += row if not told else row[:1]
    return tuple(found)


def _of_loss(
    record: RunRecord, reference: RunRecord, name: str, c: Comparison
) -> Sequence[Finding]:
    """Return the stretches in which the loss lies above, with the settings that differ there."""
    rows = _loss_rows(record), _loss_rows(reference)
    steps, own, theirs = common_rows(record, reference, *rows)
    if c.common is None or len(steps) < MIN_ROWS or c.of_agent or c.of_players:
        return ()
    skip = 0 if c.first_difference is None else c.first_difference.identical_rows
    b, a = record.columns["loss"].values[own], reference.columns["loss"].values[theirs]
    partings, sigma = find_partings(a, b, skip=skip)
    worse = [p for p in partings if p.gap > 0 and (p.lasts or p.score > _PASSING)]
    found = [_finding(record, own, a, b, p, name, sigma, c) for p in worse]
    for p, f in zip(worse, tuple(found), strict=True):
        upto = slice(p.last + 1)
        gap = (b - a)[max(0, p.first - MIN_ROWS) : p.first]
        before = len(gap) >= MIN_ROWS and float(np.nanmedian(gap)) < _LEADS * p.gap
        # What differed before, when the losses did not, has to be far from the other.
        least = _FAR if before else _DIFFERS
        found += _settings(record, reference, f, own[upto], theirs[upto], name, least)
    return found


def _telling(c: Comparison) -> bool:
    """Whether another signal than the loss says that the run is worse."""
    return any(x.worse == "b" and np.isfinite((x.a, x.b)).all() for x in c.apart)


def _of_end(record: RunRecord, reference: RunRecord, name: str, c: Comparison) -> list[Finding]:
    """Return that the run ends worse, by the first signal that says so, and what setting differs."""
    x = next((x for x in c.apart if x.worse == "b" and np.isfinite((x.a, x.b)).all()), None)
    if x is not None:
        signal, value, expected, since = x.signal, x.b, x.a, x.since
    elif c.loss_worse == "b" and c.worse_by is not None and c.gaps and c.apart_from is not None:
        end = c.gaps[-1]
        signal, value, expected, since = "loss", end.a + c.worse_by, end.a, c.apart_from
    else:  # it is not finite any more, which is told by itself
        return []
    column, rows = record.columns[signal], record.lineage_rows()
    rows = rows[column.present[rows]]
    after = rows[record.step[rows] >= since]
    after = rows[-1:] if not len(after) else after
    down = SIGNAL_BY_NAME[signal.split("/")[0]].bad == "down"
    worst = np.nanargmin if down else np.nanargmax
    label = signal_label(signal)
    found = finding_at(
        record,
        detector="against-reference",
        kind="behind-reference",
        signal=signal,
        severity="warning",
        row=int(after[-1]),
        onset_row=int(after[0]),
        peak_row=int(after[int(worst(column.values[after]))]),
        value=value,
        expected=expected,
        score=_LEAST_SCORE,
        direction="down" if down else "up",
        closed=False,
        text=(
            f"{label} {number(value)} at the end, where {name} has {number(expected)}, apart from"
            f" {c.axis} {number(since)} on (in hindsight)"
        ),
    )
    _, own, theirs = common_rows(record, reference, record.lineage_rows(), reference.lineage_rows())
    return [found, *_settings(record, reference, found, own, theirs, name, _DIFFERS)]


_LEAST_SCORE = 5.0
"""Times the noise that a signal must end apart by, as in `divergence`."""
_LEADS = 0.1
"""Of the gap, by which the losses lie apart just before they part, where a setting parts them. Ours."""
_DIFFERS, _FAR = 0.02, 0.4
"""Share by which a setting must differ, less is a schedule that is a row further; and the logarithm
of 1.5, where it did so while the losses were equal. Ours."""
_END_ROWS = 32
"""Common rows, the median of whose differences is the gap at the end."""
_EQUAL = 5e-4
"""Share of the loss below which a gap at the end rounds to nothing in three digits."""
_NO_NOISE = 1e-6
"""Share of a gap up to which noise is rounding. Ours."""
_PASSING = 7.5
"""Block noises by which a stretch that ended must have stood out; 1.5 times the limit."""


def against_note(
    record: RunRecord, reference: RunRecord, name: str, c: Comparison | None = None
) -> str:
    """Return over which rows the two were compared, or why they could not be."""
    c = compared(record, reference, name) if c is None else c
    if c.other_axis:
        counted = plural(reference.axis), plural(record.axis)
        return f"not judged by {name}: it counts {counted[0]}, this log {counted[1]}"
    steps, own, theirs = common_rows(record, reference, _loss_rows(record), _loss_rows(reference))
    few = len(steps) < DIVERGENCE_ROWS
    axis, ends = plural(c.axis), _ends_text(c)
    why = ""
    if c.of_agent or c.of_players:
        why = "a loss like its own has no good direction"
    elif few and c.noise is None:
        why = f"{len(steps)} {axis} with a loss in common, {DIVERGENCE_ROWS} are needed"
    if why:
        return f"judged by {name} too: {ends}; {why}" if ends else f"not judged by {name}: {why}"
    low, high = (float(steps[0]), float(steps[-1])) if not few else c.common or (0.0, 0.0)
    over = f"between its {axis}" if few else f"over {len(steps)} common {axis}"
    said = f"judged by {name} too, {over} from {number(low)} to {number(high)}"
    said += _until(c.first_difference)
    last = slice(-_END_ROWS, None)
    loss = record.columns["loss"].values[own[last]], reference.columns["loss"].values[theirs[last]]
    gap = c.end_gap or 0.0 if few else float(np.median(loss[0] - loss[1]))
    size = 0.0 if few else float(np.nanmedian(np.abs(loss[1])))
    if np.isfinite(gap) and abs(gap) > _EQUAL * size:
        side = "above" if gap > 0 else "below"
        said += f"; at their end its loss lies {number(abs(gap), digits=3)} {side}"
    if c.loss_worse == "b" and c.worse != "b":
        return f"{said}, for which it is not worse: {c.verdict}"
    return f"{said}; {ends}" if ends else said


def _ends_text(c: Comparison) -> str:
    """Return how what tells how good a run is ends in both; empty where too little is in common."""
    return ", ".join(
        f"{signal_label(e.signal)} {number(e.b)} where that has {number(e.a)}"
        for e in [e for e in c.ends if e.num >= FEWEST_CHECKS][:2]
    )


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
    c: Comparison,
) -> Finding:
    part = slice(p.first, p.last + 1)
    noted = p.lasts and c.worse != "b"
    noise = f"noise ±{number(2 * sigma)}, " if sigma > _NO_NOISE * p.gap else ""
    at = f"at equal {plural(c.axis)} ({noise}in hindsight)"
    return finding_at(
        record,
        detector="against-reference",
        kind="behind-reference",
        signal="loss",
        severity="info" if noted else "warning",
        row=int(own[p.last]),
        onset_row=int(own[p.first]),
        peak_row=int(own[p.peak]),
        end_row=None if p.lasts else int(own[p.last]),
        value=float(np.nanmedian(b[part])),
        expected=float(np.nanmedian(a[part])),
        score=min(p.score, 1e6),
        closed=not p.lasts,
        text=(
            f"loss {number(p.gap)} above {name} {at}"
            + (", which alone makes it no worse" if noted else "")
        ),
    )
