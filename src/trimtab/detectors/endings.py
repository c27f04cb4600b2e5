"""Final state of an episode when its record ends: still open, or timed out before it recovered.

A spike that is still open is reported at its present height, and as unrecovered once it is old
enough; one that outlasted the patience of its detector is reported as recovered where the loss came
back.
"""

from dataclasses import replace

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.rough_start import BACK_SHARE
from trimtab.record import RunRecord
from trimtab.text import sigmas

__all__ = ["as_it_ended", "place_text"]

OPEN_ROWS = 50
"""A spike still open at the end of its attempt after this many rows has not recovered."""

START_ROWS = 48
"""A spike that begins within so many rows of fresh weights has no level learned before it to come
back to: it is over where the loss is back at its first level, as after a rough start. The targets
of a critic begin to move so. Ours."""
_FIRST_ROWS = 3

BACK_ROWS = 16
"""Rows whose median tells that a level is back; a block of the level detector."""


_LASTING = ("unrecovered-spike", "divergence", "shift", "drift")


def as_it_ended(f: Finding, record: RunRecord) -> Finding:
    """Return a spike of the loss with its final state: still open, recovered late, or as it was."""
    # Closed without an end: the detector ran out of patience, not the run.
    accepted = f.kind in _LASTING and f.closed and f.end_row is None
    if accepted and f.signal == "loss":
        return _back_late(f, record)
    if f.kind != "spike" or f.signal != "loss" or f.closed:
        return f
    f = _at_its_height(f, record)
    # Within the attempt only: what a restart did after it is no recovery.
    age = record.rows_of(int(record.attempt[f.onset_row])).stop - f.onset_row
    if age <= OPEN_ROWS:
        return f
    text = f.text.replace("still up", f"still up after {age} rows")
    # What is a note where the loss has no direction of its own does not grow graver with its age.
    grave = f.severity != "info"
    return replace(f, kind="unrecovered-spike", severity="critical" if grave else "info", text=text)


def _at_its_height(f: Finding, record: RunRecord) -> Finding:
    """Return an open spike with the highest loss since its onset; NaN is skipped.

    The detector reports a spike when it opens and when it ends; the log may continue long after it
    opened.
    """
    stop = record.attempts[int(record.attempt[f.onset_row])].end_row
    since = record.columns["loss"].values[f.onset_row : stop]
    finite = np.isfinite(since)
    if not finite.any() or f.value <= f.expected:
        return f
    row = int(np.argmax(np.where(finite, since, -np.inf)))
    value = float(since[row])
    if value <= f.value:
        return f
    # The noise unit of the finding is not kept; score over distance gives it back.
    score = f.score * (value - f.expected) / (f.value - f.expected)
    text = f"{f.signal} {f.expected:.4g} → {value:.4g} ({sigmas(score)}), still up"
    row += f.onset_row
    return replace(
        f, value=value, score=score, peak_row=row, peak=float(record.step[row]), text=text
    )


def _back_late(f: Finding, record: RunRecord) -> Finding:
    """Return what outlasted its detector's patience as recovered, if the loss came back.

    A spike or a divergence that came back was a spike; a change of level stays one, with an end.

    It is back at the first stretch of `BACK_ROWS` rows whose median is within two of the spike's
    own noise units of the level before, or at the first level of a run that had just begun, if no later stretch of that length leaves it half-way to
    the peak.
    """
    stop = record.attempts[int(record.attempt[f.onset_row])].end_row
    rows = (
        np.flatnonzero(np.isfinite(record.columns["loss"].values[f.peak_row : stop])) + f.peak_row
    )
    num = len(rows) // BACK_ROWS
    if num < 2 or f.score <= 0:
        return f
    cut = rows[: num * BACK_ROWS].reshape(num, BACK_ROWS)
    levels = np.median(record.columns["loss"].values[cut], axis=1)
    # the score of a rough start is no count of noise units
    rough = f.detector.startswith("rough-start-")
    near = f.expected + (
        BACK_SHARE * abs(f.expected) if rough else 2 * (f.value - f.expected) / f.score
    )
    near = max(near, _first_level(f, record))
    back = np.flatnonzero(levels <= near)
    # One low stretch within a wild phase is no recovery.
    if not len(back) or levels[back[0] :].max() > (f.expected + f.value) / 2:
        return f
    end_row = int(cut[back[0], 0])
    if f.kind in ("shift", "drift"):
        text = f"{f.text}, back after {end_row - f.onset_row} rows (in hindsight)"
        text = text.replace(", lasting", "").replace(", still moving", "")
        return replace(f, end_row=end_row, end=float(record.step[end_row]), text=text)
    phases = (
        f"spiked until {record.axis} {place_text(f.peak)}, recovering, "
        f"recovered after {end_row - f.onset_row} rows (in hindsight)"
    )
    text = f"{f.text.partition(', not back')[0].partition(', still moving')[0]}, {phases}"
    return replace(
        f,
        kind="spike",
        severity="info" if f.severity == "info" else "warning",
        end_row=end_row,
        end=float(record.step[end_row]),
        text=text,
    )


def _first_level(f: Finding, record: RunRecord) -> float:
    """Return the first level of a run whose spike began at its start; -inf for other spikes."""
    attempt = record.attempts[int(record.attempt[f.onset_row])]
    early = f.detector == "spike" and attempt.parent is None
    if not early or f.onset_row - attempt.first_row >= START_ROWS:
        return -np.inf
    column = record.columns["loss"]
    first = column.finite_rows(slice(attempt.first_row, f.onset_row))[:_FIRST_ROWS]
    return float(np.median(column.values[first])) if len(first) else -np.inf


def place_text(position: float) -> str:
    """Return a step, epoch or row as people write it, never as 1.5e+06."""
    return f"{position:.0f}" if position.is_integer() else f"{position:.3f}".rstrip("0")
