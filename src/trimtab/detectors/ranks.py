"""Ranks that leave the others: in their loss, their gradient norm or the time of their steps.

One rank is judged by all rules; of each other one a log may hold columns `rank N/SIGNAL`. Ranks
move together, so each is held against the median of all (of two: against the other):

    g[k] = loss of the rank - loss of the others, or log of the ratio of norms or times, in blocks

It has left them where its blocks leave their level for good, as a data set does (`data_sets`), where
from an edge on they all lie above all before, where it drifts away until it stands far apart, or where
it has stood apart from the first row on in all but a few blocks. Blind in fewer than 48 rows of a rank, and to a rank that comes back.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.data_sets import leaves
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.rank_times import SLOWER
from trimtab.readers.rank_values import COMPARED, RANK_FACT, is_of_rank
from trimtab.record import RunRecord
from trimtab.signals.robust import dependent_blocks_sigma, median
from trimtab.trend import kendall_score

__all__ = ["rank_findings"]

Floats = NDArray[np.float64]

MIN_ROWS = 48
NUM_BLOCKS = 32
_LEAST = {"loss": 0.05, "grad_norm": float(np.log(1.5)), "step_time_s": float(np.log(SLOWER))}
"""Smallest distance that counts: of the loss a share of its level, else of the log. Ours."""
_LEAST_ALWAYS = {
    "loss": 0.25,
    "grad_norm": float(np.log(3.0)),
    "step_time_s": _LEAST["step_time_s"],
}
"""The same for a rank that stands apart from its first row on: shards of data differ. Ours."""
_ALWAYS_SHARE = 0.9
_CLEAR_BLOCKS = 8
_SIGMAS = 8.0
_GROWN, _STEADY = 2.0, 5.0
"""Times the distance of the first quarter, and normal score of Kendall's S, of one that drifts."""
_WORDS = {"loss": "loss", "grad_norm": "gradient norm", "step_time_s": "time of a step"}


def rank_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return which ranks leave the others, attempt by attempt, in hindsight."""
    by_signal: dict[str, dict[str, Floats]] = {}
    for name, column in record.columns.items():
        if is_of_rank(name):
            rank, _, signal = name.partition("/")
            by_signal.setdefault(signal, {})[rank.removeprefix("rank ")] = column.values
    found: list[Finding] = []
    here = f"{record.facts.get(RANK_FACT, 0):g}"
    for signal in COMPARED:
        if signal not in by_signal or signal not in record.columns:
            continue
        ranks = {here: record.columns[signal].values, **by_signal[signal]}
        for index in range(len(record.attempts)):
            found += _apart(record, signal, ranks, record.rows_of(index))
    return tuple(found)


def _apart(
    record: RunRecord, signal: str, ranks: dict[str, Floats], span: slice
) -> Iterator[Finding]:
    names = list(ranks)
    values = np.stack([ranks[n][span] for n in names])
    is_log = signal != "loss"
    values = np.where(np.isfinite(values) & (~np.equal(values, 0) | (not is_log)), values, np.nan)
    if is_log:
        values = np.log(np.abs(values))
    counts = np.isfinite(values).sum(axis=0)
    rows = np.flatnonzero(counts >= 2)
    if len(rows) < MIN_ROWS:
        return
    values = values[:, rows]
    middle = np.nanmedian(values, axis=0)
    two = counts[rows] == 2
    for k, name in enumerate(names):
        own = np.isfinite(values[k])
        # Of two ranks the median lies half-way: the distance to the other is twice that.
        gap = (values[k] - middle) * np.where(two, 2.0, 1.0)
        kept = np.flatnonzero(own)
        if len(kept) < MIN_ROWS or not gap[kept].any():
            continue
        gap, level = gap[kept], middle[kept]
        edges = np.linspace(0, len(kept), min(NUM_BLOCKS, len(kept) // 3) + 1).astype(np.intp)
        for sign in (1.0, -1.0):
            # Of two ranks nobody knows which one left, and a fast rank does no harm.
            if sign < 0 and (len(names) == 2 or signal == "step_time_s"):
                continue
            # Of two ranks the middle moves half-way with each.
            rest = level - gap / 2 if len(names) == 2 else level
            place = _leaves(signal, sign * gap, level, rest, edges)
            if place is None:
                continue
            first, score, moved, always = place
            row = int(rows[kept[first]]) + span.start
            yield _finding(
                record,
                signal,
                name,
                row=row,
                last=int(rows[kept[-1]]) + span.start,
                moved=sign * moved,
                level=median(level[first:]),
                score=score,
                always=always,
            )
            break


def _leaves(
    signal: str, gap: Floats, level: Floats, rest: Floats, edges: NDArray[np.intp]
) -> tuple[int, float, float, bool] | None:
    """Return (place, score, how far, whether always) where a rank stands above the others."""
    blocks = np.array([median(gap[a:b]) for a, b in pairwise(edges)])
    unit = np.array([median(np.abs(level[a:b])) for a, b in pairwise(edges)])
    share = blocks / np.maximum(unit, 1e-12) if signal == "loss" else blocks
    noise = max(dependent_blocks_sigma(blocks), 1e-12)
    if (share >= _LEAST_ALWAYS[signal]).mean() >= _ALWAYS_SHARE:
        moved = median(blocks)
        if moved >= _SIGMAS * noise:
            return 0, min(99.0, moved / noise), moved, True
    best = leaves(blocks)
    if best is None:
        others = np.array([median(rest[a:b]) for a, b in pairwise(edges)])
        best = _lies_above(blocks, share, noise, others, least=_LEAST_ALWAYS[signal])
    if best is None:
        best = _drifts(blocks, share, noise, bars=(_LEAST[signal], _LEAST_ALWAYS[signal]))
    if best is None:
        return None
    k, score, moved = best
    if median(share[k:]) - median(share[:k]) < _LEAST[signal]:
        return None
    return int(edges[k]), min(99.0, score), moved, False


def _lies_above(
    blocks: Floats, share: Floats, noise: float, others: Floats, *, least: float
) -> tuple[int, float, float] | None:
    """Return (block, score, how far up) from which on every block lies above all before; or None.

    Where single rows swing widely a step is few sigma of them, but eight blocks or more on each side
    that do not overlap are no chance.
    """
    for k in range(_CLEAR_BLOCKS, len(blocks) - _CLEAR_BLOCKS + 1):
        if blocks[k:].min() > blocks[:k].max():
            moved = median(blocks[k:]) - median(blocks[:k])
            far = median(share[k:]) - median(share[:k]) >= least
            # What drifts apart, as the noise of a level that falls, has no edge.
            edge = blocks[k : k + 2].mean() - blocks[k - 2 : k].mean() >= moved / 2
            # Where all step in that row, the data of all has changed.
            alone = abs(median(others[k : k + 4]) - median(others[k - 4 : k])) < moved / 2
            return (k, moved / noise, moved) if far and edge and alone else None
    return None


def _drifts(
    blocks: Floats, share: Floats, noise: float, *, bars: tuple[float, float]
) -> tuple[int, float, float] | None:
    """Return (block, score, how far up) from which on a rank stands apart that drifts away; or None.

    Its distance grows, and not only the share of a level that falls: an edge it has none.
    """
    quarter = max(len(blocks) // 4, 1)
    moved = median(blocks[-quarter:]) - median(blocks[:quarter])
    least, far = bars
    grown = median(blocks[-quarter:]) >= _GROWN * median(blocks[:quarter])
    if share[-quarter:].min() < far or not grown or kendall_score(blocks) < _STEADY:
        return None
    near = np.flatnonzero(share < least)
    k = int(near[-1]) + 1 if len(near) else 0
    return (k, moved / noise, moved) if k > 0 and moved >= _SIGMAS * noise else None


def _finding(
    record: RunRecord,
    signal: str,
    rank: str,
    *,
    row: int,
    last: int,
    moved: float,
    level: float,
    score: float,
    always: bool,
) -> Finding:
    others, value = (level, level + moved)
    if signal != "loss":
        others, value = float(np.exp(level)), float(np.exp(level + moved))
    word = _WORDS[signal]
    since = "from the first row on" if always else "for good"
    name = f"rank {rank}/{signal}" if f"rank {rank}/{signal}" in record.columns else signal
    return finding_at(
        record,
        detector="rank-apart",
        kind="slowdown" if signal == "step_time_s" else "shift",
        signal=name,
        severity="warning",
        row=last,
        onset_row=row,
        value=value,
        expected=others,
        score=score,
        direction="up" if moved > 0 else "down",
        closed=False,
        text=(
            f"{word} of rank {rank} leaves the others {since}: {value:.3g}, that of the others"
            f" {others:.3g} (in hindsight)"
        ),
    )
