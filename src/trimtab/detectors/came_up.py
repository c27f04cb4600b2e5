"""A loss that has risen ever since its lowest point, slowly, where nothing else says so.

Rules over neighboring blocks learn their noise from the steep descent before, and each step of a
slow climb is small; a climb over half of the run passes them all. Here the run is seen whole: as
`POINTS` medians of equal stretches (its rows themselves, where there are 100 or fewer). From the
lowest one on, the points rise by Kendall's test of trend; their level at the end lies above the
lowest

* by 6 times the noise of the points behind it,
* by twice any rise there was before it,
* by a share of the fall to it, and of the level of a loss that is never below 0.

What rose from its first rows on has come down to nothing, and is none of these; nor are losses of
an agent, of nets against each other, or under a weight that is warmed up. Told in hindsight, once
for each attempt, where no other alarm on a rise of the loss lies behind the lowest point. Terms of
a loss whose total nobody logs (`box_loss`, `cls_loss`) are judged one by one; of those beside a
total see `worse_parts`.

Blind to a climb that is younger than a seventh of the run. Source of the test: Kendall, A new
measure of rank correlation, Biometrika 30 (1938). The bars are ours.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.tags import names_whole_loss
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import signal_label
from trimtab.trend import kendall_score

__all__ = ["climb_of", "with_climbs"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

POINTS, FEW = 64, 100
"""Stretches that a longer log is cut into, and rows up to which each row is one. Ours."""
BARS = ((13, 4.5, 1.02, 6.0), (9, 3.0, 1.25, 2.0))
"""Points from the lowest on, normal score of Kendall's S among them, times the lowest and times the
noise that the last come to: one chance in 300,000, or in 700 and a large rise."""
END = 3
"""Points that show the level at the end."""
OVER_EARLIER, OF_FALL = 2.0, 0.06
GRAVE = 0.1
"""Share of the fall, and of the level, from which a climb that goes on to the end is a divergence,
and critical."""
SIGN_SHARE = 0.25
"""Of the rows, at which a loss changes its sign. As in `risen`."""
NO_DESCENT = ("reward", "policy_loss", "generator_loss", "discriminator_loss")
"""Beside these the loss is none that falls as the model learns."""
MAX_PARTS = 64
RISES = ("spike", "unrecovered-spike", "shift", "drift", "divergence", "non-finite")


def with_climbs(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, with the climbs that none of them tells."""
    if "loss" not in record.columns or any(name in record.columns for name in NO_DESCENT):
        return tuple(findings)
    found = list(findings)
    last = {f.key: f for f in findings}  # a later telling replaces those before it
    for signal in ("loss", *_terms(record)):
        column = record.columns[signal]
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            rows = column.finite_rows(span)
            few = len(rows) < BARS[-1][0]
            climb = None if few else climb_of(record, signal, rows, column.values[rows])
            if climb is not None and not any(_tells(f, climb, span) for f in last.values()):
                found = [_beside(f, climb, span) for f in found] + [climb]
    return tuple(found)


def _terms(record: RunRecord) -> list[str]:
    """Return the terms of a loss whose total nobody logs: one of them stands in for it."""
    if names_whole_loss(record.keys.get("loss", "loss")):
        return []
    return sorted(name for name in record.columns if name.startswith("loss/"))[:MAX_PARTS]


def _beside(f: Finding, climb: Finding, span: slice) -> Finding:
    """Return a stall that is the way up itself as a note."""
    stalls = f.kind == "plateau" and f.signal == climb.signal and f.severity != "info"
    if not stalls or not span.start <= f.onset_row < span.stop or f.row < climb.onset_row:
        return f
    return replace(f, severity="info", text=f.text + "; in fact it rises")


def _tells(f: Finding, climb: Finding, span: slice) -> bool:
    rises = f.kind in RISES and f.signal == climb.signal and f.direction != "down"
    lasts = f.end_row is None or f.kind in ("drift", "divergence")
    here = span.start <= f.onset_row < span.stop
    return rises and lasts and here and f.severity != "info" and f.row >= climb.onset_row


def climb_of(record: RunRecord, signal: str, rows: Rows, loss: Floats) -> Finding | None:
    """Return the climb of a loss from its lowest point to the end, None where there is none.

    Args:
        record: What it is of.
        signal: Its name.
        rows: Of the record, in which it is finite.
        loss: float64 [len(rows)].
    """
    if np.mean(np.diff(np.signbit(loss))) >= SIGN_SHARE or _is_warmed_up(record, rows):
        return None
    size = 1 if len(loss) <= FEW else len(loss) // POINTS
    num = len(loss) // size
    # The newest rows are those that count: what is left over is left out at the start.
    first = len(loss) - num * size
    points = np.median(loss[first:].reshape(num, size), axis=1)
    k = int(np.argmin(points))
    behind, low = points[k:], float(points[k])
    if k < 2 or len(behind) < BARS[-1][0]:
        return None
    score, level = kendall_score(behind), median(behind[-END:])
    rise, fall = level - low, median(points[:2]) - low
    ratio = level / low if loss.min() > 0 else np.inf
    bars = BARS if loss.min() > 0 else BARS[:1]
    noise = difference_sigma(np.diff(behind, 2), order=2)
    told = any(
        len(behind) >= n and score >= s and ratio >= times and rise >= sigmas * noise
        for n, s, times, sigmas in bars
    )
    earlier = float((points[:k] - np.minimum.accumulate(points[:k])).max())
    if not told or rise < max(OVER_EARLIER * earlier, OF_FALL * fall):
        return None
    # From where it has left its lowest level for good.
    above = np.flatnonzero(behind <= low + 0.1 * rise)
    onset = first + (k + int(above[-1]) + 1) * size
    onset = min(onset, len(rows) - 1)
    goes_on = kendall_score(behind[-max(len(behind) // 2, 4) :]) > 0
    grave = goes_on and rise > GRAVE * max(fall, 0.0) and ratio > 1 + GRAVE
    grave = grave and score >= BARS[0][1]
    since = f"{len(loss) - onset} rows"
    return finding_at(
        record,
        detector="came-up",
        kind="divergence" if grave else "drift",
        signal=signal,
        severity="critical" if grave else "warning",
        row=int(rows[-1]),
        onset_row=int(rows[onset]),
        peak_row=int(rows[onset + int(np.argmax(loss[onset:]))]),
        value=level,
        expected=low,
        score=min(99.0, rise / max(noise, 1e-12)),
        closed=False,
        text=f"{signal_label(signal)} {low:.4g} → {level:.4g}: it has risen ever since its lowest, for {since}",
    )


def _is_warmed_up(record: RunRecord, rows: Rows) -> bool:
    """Whether the weight of a part of the loss rises over the run."""
    weight = record.columns.get("kl_weight")
    if weight is None:
        return False
    values = weight.values[rows][weight.present[rows]]
    values = values[np.isfinite(values)]
    return len(values) > 1 and bool(values[-1] > values[0])
