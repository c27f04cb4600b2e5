"""Per-block readings for the page: a heat map of steps by blocks, few enough columns to draw.

Columns are made by keeping, of each few readings and for each block, the worst: the highest value,
of an entropy the lowest. What is not finite stays so.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.layers import LayerReadings
from trimtab.record import RunRecord
from trimtab.text import plain, signal_label

__all__ = ["Heat", "HeatPart", "make_heats", "worst_columns"]

COLUMNS = 500
"""Columns per attempt; two pixels each at the usual width."""

MAX_LAYERS_DRAWN = 200
"""Rows of pixels that the map has; with more blocks, neighbours share one and show their worst."""

_TITLES = {
    "grad_norm": "Gradient norm per block",
    "activation_rms": "Activation RMS per block",
    "activation_max": "Largest activation per block",
    "attention_logit_max": "Largest attention logit per block",
    "attention_entropy": "Attention entropy per block",
}
"""In this order on the page; what else was recorded follows under its own name."""


@dataclass(frozen=True, kw_only=True)
class HeatPart:
    """The columns of one attempt."""

    attempt: int
    """Index into the record's attempts."""
    live: bool
    """On the final lineage."""
    first: NDArray[np.float64]
    """float64 [n_columns], the step at which a column begins."""
    last: float
    """The last step that was read."""
    values: NDArray[np.float64]
    """float64 [n_columns, n_layers]; NaN where a reading was not finite."""


@dataclass(frozen=True, kw_only=True)
class Heat:
    """One quantity of all blocks."""

    name: str
    title: str
    low_is_bad: bool
    num_layers: int
    """Blocks of the model."""
    medians: NDArray[np.float64]
    """float64 [n_layers as drawn], of all readings of a block; NaN where none was finite."""
    parts: tuple[HeatPart, ...]


def make_heats(
    record: RunRecord, readings: Sequence[LayerReadings], *, columns: int = COLUMNS
) -> tuple[Heat, ...]:
    """Return the heat maps of a run, in the order in which the page shows them."""
    index = {a.number: i for i, a in enumerate(record.attempts)}
    live = set(record.final_lineage())
    ends = _ends(record)
    by_name: dict[str, list[LayerReadings]] = {}
    for r in readings:
        if r.attempt in index and len(r.step):
            by_name.setdefault(r.name, []).append(r)
    order = [*_TITLES, *sorted(set(by_name) - set(_TITLES))]
    heats = []
    for name in (n for n in order if n in by_name):
        low = "entropy" in name
        found = sorted(by_name[name], key=lambda r: index[r.attempt])
        parts = []
        for r in found:
            i = index[r.attempt]
            keep = r.step <= ends[i] if i in live else np.ones(len(r.step), dtype=np.bool_)
            for is_live, rows in ((i in live, keep), (False, ~keep)):
                if rows.any():
                    parts.append(_part(r, i, rows, columns, live=is_live, low=low))
        heats.append(
            Heat(
                name=name,
                title=_TITLES.get(name, plain(f"{signal_label(name)} per block", limit=60)),
                low_is_bad=low,
                num_layers=max(r.values.shape[1] for r in found),
                medians=_medians(found, low=low),
                parts=tuple(parts),
            )
        )
    return tuple(heats)


def _part(
    r: LayerReadings,
    attempt: int,
    rows: NDArray[np.bool_],
    columns: int,
    *,
    live: bool,
    low: bool,
) -> HeatPart:
    step, values = r.step[rows], r.values[rows]
    first, worst = worst_columns(step, values, budget=columns, low=low)
    drawn = _drawn_layers(worst, low=low)
    return HeatPart(attempt=attempt, live=live, first=first, last=float(step[-1]), values=drawn)


def _drawn_layers(values: NDArray[np.float64], *, low: bool) -> NDArray[np.float64]:
    layers = np.arange(float(values.shape[1]))
    return worst_columns(layers, values.T, budget=MAX_LAYERS_DRAWN, low=low)[1].T


def _medians(found: Sequence[LayerReadings], *, low: bool) -> NDArray[np.float64]:
    """Return of each block the median of what was finite, attempts weighed by their length."""
    width = max(r.values.shape[1] for r in found)
    whole = np.full((sum(len(r.step) for r in found), width), np.nan)
    at = 0
    for r in found:
        whole[at : at + len(r.step), : r.values.shape[1]] = r.values
        at += len(r.step)
    columns = (c[np.isfinite(c)] for c in whole.T)
    medians = np.asarray([float(np.median(c)) if len(c) else np.nan for c in columns])
    drawn: NDArray[np.float64] = _drawn_layers(medians[None, :], low=low)[0]
    return drawn


def _ends(record: RunRecord) -> dict[int, float]:
    """Return up to which step each attempt of the final lineage is on it."""
    chain = record.final_lineage()
    ends = dict.fromkeys(chain, np.inf)
    for here, child in pairwise(chain):
        parent_step = record.attempts[child].parent_step
        ends[here] = np.inf if parent_step is None else parent_step
    return ends


def worst_columns(
    step: NDArray[np.float64], values: NDArray[np.float64], *, budget: int, low: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (first step, worst values) of at most `budget` groups of neighbouring readings.

    Args:
        step: float64 [n_readings], rising.
        values: float64 [n_readings, n_layers].
        budget: Most groups to return.
        low: Whether the lowest value is the worst.

    Returns:
        float64 [n_groups] and float64 [n_groups, n_layers]. A group in which a block was NaN or Inf
        has NaN for it, whatever else it held.

    Example:
        >>> worst_columns(np.arange(4.0), np.array([[1.0], [9.0], [2.0], [3.0]]), budget=2)[1]
        array([[9.], [3.]])
    """
    n = len(step)
    size = -(-n // max(budget, 1))
    starts = np.arange(0, n, size)
    clean = np.where(np.isfinite(values), values, np.nan)
    pick = np.minimum if low else np.maximum  # both hand NaN on
    return step[starts].astype(np.float64), pick.reduceat(clean, starts, axis=0)
