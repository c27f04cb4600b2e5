"""One layer's gradient is exactly 0, or no number, while those of the others are not.

A log has the norms layer by layer, columns `grad_norm/LAYER`. Over the rows in which another layer
has a gradient and the rate, where it is logged, is not 0, one is told

* whose norm is exactly 0 from the first of these rows to the last (`LEAST_ROWS` or more), in an
  attempt where fewer than half of the layers are so: as a note where half or more are, since that
  is how adapters and a frozen trunk look;
* whose norm was not 0 and is from some row on, four times longer than it ever was before;
* whose norm is NaN or Inf to the end, for `LEAST_BROKEN` rows or more, while another is finite.

Nothing is told of layers that are freed one after the other: one that was 0 from the first rows on
and no longer is shows that they are. Nor of one that stops where another of these begins. A 0 that
may be a small number in few printed digits is none (`DIGITS`), nor are layers that stop one after
the other, three of them at least. In hindsight.

Blind to gradients that are tiny but not 0, and to a layer that no norm is logged of.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.text import plain
from trimtab.vocabulary import Severity

__all__ = ["layer_findings"]

Floats = NDArray[np.float64]

PREFIX = "grad_norm/"
LEAST_ROWS = 16
"""Rows of exactly 0. As in `frozen`."""
LEAST_BROKEN = 3
AGAIN = 4
"""Times the longest such stretch before. As in `no_gradient`."""
DIGITS = 1000.0
"""Printed units that the other layers' norms come to, so that a 0 beside them is no small number."""
MOST_DIGITS = 12
FROZEN_IN_TURN = 3
"""Rows at which layers stop, each at its own, from which that is a schedule."""
_ADAPTER = re.compile(r"lora|adapter", re.IGNORECASE)
MOST_TOLD = 4
"""Layers told one by one; of more the first is told, with their number. All bars are ours."""


@dataclass(frozen=True)
class _Layers:
    """The norms of one attempt."""

    names: list[str]
    rows: NDArray[np.intp]
    """Of the record, [n_rows]."""
    norms: Floats
    """float64 [n_rows, n_layers]; NaN where none was logged."""
    logged: NDArray[np.bool_]
    """bool [n_rows, n_layers]."""


def layer_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the layers that get no gradient, or one that is no number, attempt by attempt."""
    names = [n for n in record.columns if n.startswith(PREFIX)]
    if len(names) < 2:
        return ()
    return tuple(
        f
        for index in range(len(record.attempts))
        for f in _of_attempt(record, _layers(record, names, record.rows_of(index)))
    )


def _layers(record: RunRecord, names: list[str], span: slice) -> _Layers:
    columns = [record.columns[n] for n in names]
    logged = np.stack([c.present[span] for c in columns], axis=1)
    norms = np.stack([np.where(c.present[span], c.values[span], np.nan) for c in columns], axis=1)
    kept = logged.sum(axis=1) > 1
    rate = record.columns.get("lr")
    if rate is not None:
        kept &= ~(rate.present[span] & (rate.values[span] == 0))
    return _Layers(names, np.flatnonzero(kept) + span.start, norms[kept], logged[kept])


def _of_attempt(record: RunRecord, layers: _Layers) -> Iterator[Finding]:
    yield from _broken(record, layers)
    trained = (np.isfinite(layers.norms) & (layers.norms > 0)).any(axis=1)
    norms = np.where(np.isfinite(layers.norms), layers.norms, np.nan)[trained]
    rows = layers.rows[trained]
    if len(rows) < LEAST_ROWS or _may_be_rounded(norms):
        return
    never, freed, stopped = list[int](), list[int](), dict[int, int]()
    for j in range(len(layers.names)):
        at = np.flatnonzero(np.isfinite(norms[:, j]))
        if len(at) < LEAST_ROWS:
            continue
        zero = norms[at, j] == 0
        if zero.all():
            never.append(j)
            continue
        starts_at_zero = int(np.argmin(zero))
        if starts_at_zero >= LEAST_ROWS:
            freed.append(int(at[starts_at_zero]))
        last = int(np.flatnonzero(~zero)[-1])
        num = len(zero) - last - 1
        # Nets that are trained in turn are without a gradient again and again.
        if (
            num >= max(LEAST_ROWS, AGAIN * _longest(zero[: last + 1]))
            and last + 1 >= LEAST_ROWS // 2
        ):
            stopped[j] = int(at[last + 1])
    # An adapter's own layers are what is trained: the others are its trunk.
    adapters = [j for j, name in enumerate(layers.names) if _ADAPTER.search(name)]
    own = [j for j in never if j in adapters]
    if adapters and 2 * len(own) < len(adapters):
        never = own
    if never and not freed:
        by_design = 2 * len(never) >= len(layers.names)
        yield from _zeros(record, layers, rows, dict.fromkeys(never, 0), by_design=by_design)
    if len(set(stopped.values())) >= FROZEN_IN_TURN:
        return  # frozen one after the other, as FreezeOut does
    handed_over = {j: k for j, k in stopped.items() if any(abs(k - f) <= 1 for f in freed)}
    told = {j: k for j, k in stopped.items() if j not in handed_over}
    yield from _zeros(record, layers, rows, told, by_design=False)


def _may_be_rounded(norms: Floats) -> bool:
    """Whether the digits that are printed are too few to tell 0 from a small norm."""
    values = norms[np.isfinite(norms) & (norms > 0)]
    digits = next(
        (d for d in range(MOST_DIGITS) if np.array_equal(np.round(values, d), values)), None
    )
    return digits is not None and float(np.median(values)) < DIGITS * 10.0**-digits


def _longest(zero: NDArray[np.bool_]) -> int:
    """Return the length of the longest stretch that is set."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], zero, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max()) if len(edges) else 0


def _zeros(
    record: RunRecord,
    layers: _Layers,
    rows: NDArray[np.intp],
    since: dict[int, int],
    *,
    by_design: bool,
) -> Iterator[Finding]:
    """Yield one finding for each layer, or one for all of them where they are many."""
    order = sorted(since, key=lambda j: (since[j], j))
    alone = order if len(order) <= MOST_TOLD and not by_design else order[:1]
    for j in alone:
        first = since[j]
        which = f"layer {plain(layers.names[j].removeprefix(PREFIX), limit=60)!r}"
        if len(alone) < len(order):
            which += f" and {len(order) - 1} more of {len(layers.names)}"
        when = "in every row" if first == 0 else f"since step {record.step[rows[first]]:g}"
        norm = layers.norms[:, j]
        before = norm[np.isfinite(norm) & (norm > 0)]
        why = (
            ": the weights that are not trained, as beside an adapter"
            if by_design
            else ", while those of other layers are not: it is not trained (frozen on purpose, or by"
            " mistake, detached, or left out of the graph)"
        )
        yield _finding(
            record,
            detector="layer-no-gradient",
            kind="signal-abnormal",
            signal=layers.names[j],
            severity="info" if by_design else "warning",
            rows=rows,
            first=first,
            value=0.0,
            expected=float(np.median(before)) if len(before) else 0.0,
            text=f"the gradient of {which} is exactly 0 {when}{why}",
        )


def _broken(record: RunRecord, layers: _Layers) -> Iterator[Finding]:
    """Yield the layers whose norms are no numbers to the end, beside others that are."""
    finite = np.isfinite(layers.norms)
    for j, name in enumerate(layers.names):
        at = np.flatnonzero(layers.logged[:, j] & np.delete(finite, j, axis=1).any(axis=1))
        good = np.flatnonzero(finite[at, j])
        num = len(at) - int(good[-1]) - 1 if len(good) else 0
        if len(good) < LEAST_ROWS // 2 or num < LEAST_BROKEN:
            continue
        which = plain(name.removeprefix(PREFIX), limit=60)
        yield _finding(
            record,
            detector="layer-not-finite",
            kind="non-finite",
            signal=name,
            severity="warning",
            rows=layers.rows[at],
            first=int(good[-1]) + 1,
            value=float(layers.norms[at[-1], j]),
            expected=float(np.median(layers.norms[at[good], j])),
            text=f"the gradient of layer {which!r} is NaN or Inf, while those of other layers are not",
        )


def _finding(
    record: RunRecord,
    *,
    detector: str,
    kind: str,
    signal: str,
    severity: Severity,
    rows: NDArray[np.intp],
    first: int,
    value: float,
    expected: float,
    text: str,
) -> Finding:
    return finding_at(
        record,
        detector=detector,
        kind=kind,
        signal=signal,
        severity=severity,
        row=int(rows[-1]),
        onset_row=int(rows[first]),
        value=value,
        expected=expected,
        score=min(99.0, float(len(rows) - first)),
        direction="down",
        closed=False,
        text=f"{text} (in hindsight)",
    )
