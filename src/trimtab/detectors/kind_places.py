"""What an incident is made of: each of its kinds with a place of its own.

Trouble seldom stays on one signal. A spike of the loss comes with one of the gradient norm a few
rows before, and with a fall of the loss scale a few rows after; the incident is one, but a person
who looks for the gradient's part wants its rows, not those of the loss. Two things give a kind its
place: a finding of a detector that belongs to the incident, and a look at each signal of
`LOOKED_AT` around the incident. That look knows where to look, so it needs less than a detector
that watches every row: four sigma of the rows before, and a factor of three for a norm, two
halvings for a scale.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median

__all__ = ["KindPlace", "kind_places"]

Floats = NDArray[np.float64]

LOOKED_AT = ("loss", "grad_norm", "loss_scale")
MOST = 16
"""Kinds of one incident that are kept."""
PAST_ROWS = 64
WITHIN_ROWS = 256
"""From the onset on; what moves later is another story."""
NEAR_ROWS = 8
"""As `incidents.JOIN_ROWS`."""
SIGMA = 4.0
NORM_RATIO = 3.0
EXPLOSION_RATIO = 10.0
FEW_ROWS = 8
"""Fewer rows before the onset have no spread; all of them must lie clearly lower."""
FEW_RATIO = 1.5
HALVINGS = 2.0
FLOOR = {"loss": 4e-3, "grad_norm": 0.1, "loss_scale": 0.1}
"""Smallest spread believed, in log units."""


@dataclass(frozen=True, kw_only=True)
class KindPlace:
    """One kind of an incident: on which signal, from where to where."""

    kind: str
    signal: str
    onset_row: int
    onset: float
    peak_row: int
    peak: float
    end_row: int | None = None
    """None: it lasts."""
    end: float | None = None


def kind_places(
    record: RunRecord, own: KindPlace, members: Sequence[Finding], attempt: int
) -> tuple[KindPlace, ...]:
    """Return the kinds of an incident with their places: its own first, then by onset.

    Args:
        record: What the run logged.
        own: Kind and place of the incident itself.
        members: Findings that belong to it.
        attempt: Index of its attempt.

    Cost: some 300 rows of three signals, whatever the length of the record.
    """
    found = [_of(f, own) for f in members if f.severity != "info" or f.signal in LOOKED_AT]
    for signal in LOOKED_AT:
        if signal != own.signal and all(p.signal != signal for p in found):
            seen = _look(record, signal, own, attempt)
            found += [] if seen is None else [seen]
    kept: dict[tuple[str, int], KindPlace] = {(own.kind, own.onset_row): own}
    for place in sorted(found, key=lambda p: (p.onset_row, p.kind)):
        kept.setdefault((place.kind, place.onset_row), place)
    return tuple(kept.values())[:MOST]


def _of(f: Finding, own: KindPlace) -> KindPlace:
    kind = f.kind
    if kind == "batch-outlier" and f.signal == "loss" and _goes_with(f, own):
        # An odd batch is over in its own row; this one came with trouble of another signal.
        kind = "spike"
    elif f.signal == "grad_norm" and kind in ("spike", "unrecovered-spike", "batch-outlier"):
        # The spike rule watches every signal under one name; in words it is the norm's.
        kind = _norm_kind(f.value / f.expected if f.expected > 0 else math.inf)
    elif f.signal == "grad_norm" and kind in ("shift", "drift"):
        kind = "grad-drift"
    return KindPlace(
        kind=kind,
        signal=f.signal,
        onset_row=f.onset_row,
        onset=f.onset,
        peak_row=f.peak_row,
        peak=f.peak,
        end_row=f.end_row,
        end=f.end,
    )


def _goes_with(f: Finding, own: KindPlace) -> bool:
    """Whether an outlying loss lies where norm or scale were in trouble; a slow drift is none."""
    last = own.onset_row if own.end_row is None else own.end_row
    near = own.onset_row - NEAR_ROWS <= f.onset_row <= last + NEAR_ROWS
    return near and own.kind in ("scale-collapse", "grad-spike", "grad-explosion")


def _norm_kind(ratio: float) -> str:
    return "grad-explosion" if ratio >= EXPLOSION_RATIO else "grad-spike"


def _look(record: RunRecord, signal: str, own: KindPlace, attempt: int) -> KindPlace | None:
    """Return what a signal did around an incident, where that stands out from the rows before."""
    first, stop = record.attempts[attempt].first_row, record.attempts[attempt].end_row
    last = own.onset_row + WITHIN_ROWS if own.end_row is None else own.end_row + NEAR_ROWS
    begin = max(first, own.onset_row - NEAR_ROWS)
    here = _usable(record, signal, begin, min(stop, last + 1, own.onset_row + WITHIN_ROWS))
    before = _usable(record, signal, max(first, begin - PAST_ROWS), begin)
    if not len(here) or len(before) < (1 if signal == "loss_scale" else 3):
        return None
    values = record.columns[signal].values
    sign = -1.0 if signal == "loss_scale" else 1.0
    y, past = sign * np.log(values[here]), sign * np.log(values[before])
    level = median(past)
    spread = max(mad_sigma(past), FLOOR[signal])
    peak = int(np.argmax(y))
    height = float(y[peak]) - level
    few = len(past) < FEW_ROWS
    if few and float(y[peak]) < float(past.max()) + math.log(FEW_RATIO):
        return None
    least = {"loss": 0.02, "grad_norm": math.log(NORM_RATIO), "loss_scale": math.log(2) * HALVINGS}
    if not few and height < max(SIGMA * spread, least[signal]):
        return None
    if signal == "loss_scale" and height < least[signal]:
        return None
    high = y > level + max(0.25 * height, min(2 * spread, 0.5 * height))
    return _place(record, signal, here, high, peak, math.exp(min(height, 700.0)))


def _place(
    record: RunRecord,
    signal: str,
    here: NDArray[np.intp],
    high: NDArray[np.bool_],
    peak: int,
    ratio: float,
) -> KindPlace:
    """Return the piece of high rows around the peak; two calm rows in it do not end it."""
    rows = np.flatnonzero(high)
    pieces = np.split(rows, np.flatnonzero(np.diff(rows) > 3) + 1)
    piece = next(p for p in pieces if p[0] <= peak <= p[-1])
    onset, end = int(here[piece[0]]), int(here[piece[-1]])
    lasts = piece[-1] == len(here) - 1
    kinds = {"loss": "spike", "loss_scale": "scale-collapse"}
    return KindPlace(
        kind=kinds.get(signal) or _norm_kind(ratio if len(piece) < 3 else math.inf),
        signal=signal,
        onset_row=onset,
        onset=float(record.step[onset]),
        peak_row=int(here[peak]),
        peak=float(record.step[here[peak]]),
        end_row=None if lasts else end,
        end=None if lasts else float(record.step[end]),
    )


def _usable(record: RunRecord, signal: str, first: int, stop: int) -> NDArray[np.intp]:
    column = record.columns.get(signal)
    if column is None or stop <= first:
        return np.zeros(0, dtype=np.intp)
    values = column.values[first:stop]
    return np.flatnonzero(column.present[first:stop] & np.isfinite(values) & (values > 0)) + first
