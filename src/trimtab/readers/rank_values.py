"""What the other ranks of one file log, laid beside the rank that is read.

One rank gives the signals. Of each other rank the loss, the gradient norm and the time of a step
stand in columns `rank 2/loss` at the same rows, so that no rank is judged by another's values:
`detectors.ranks` compares them. A value that is not finite on another rank alone counts in
`nonfinite`, where it is told at once.
"""

import re
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import counted
from trimtab.record import Column

__all__ = [
    "COMPARED",
    "RANK_FACT",
    "RankColumns",
    "is_of_rank",
    "names_rank",
    "part_ranks",
    "ranks_of_keys",
]

COMPARED = ("loss", "grad_norm", "step_time_s")
"""Signals that every rank has for itself."""
RANK_FACT = "rank"
"""Name of the fact that says which rank is read."""
_MAX_RANKS = 256
"""Ranks beyond it are left out, and a note says so."""
_MAX_TOLD = 4
_LEAST_MATCHED = 0.5
_BROKEN = "nonfinite"
_OF_RANK = re.compile(r"rank[_/ .-]?(\d{1,4})(?!\d)", re.IGNORECASE)
_NAMED = re.compile(r"loss of ranks? \d")


@dataclass
class RankColumns:
    """The rank that is read, and what the others log, at its rows."""

    here: float
    keep: NDArray[np.bool_]
    """Which rows are its own, or of no rank."""
    columns: dict[str, Column] = field(default_factory=dict)
    """`rank N/SIGNAL`, of as many rows as the file has."""
    broken: Column | None = None
    """On how many other ranks the loss is not finite while it is on this one."""
    broken_key: str = ""
    notes: list[str] = field(default_factory=list)
    num_alone: int = 0
    """Rows in which the loss of this rank alone is not finite."""

    def put(self, signals: MutableMapping[str, Column], keys: MutableMapping[str, str]) -> None:
        """Add the columns to signals of the same rows."""
        for name, column in self.columns.items():
            signals[name], keys[name] = column, name
        if self.broken is None:
            return
        known = signals.get(_BROKEN)
        if known is not None:
            total = np.nansum([known.values, self.broken.values], axis=0)
            present = known.present | self.broken.present
            signals[_BROKEN] = Column(np.where(present, total, np.nan), present)
        else:
            signals[_BROKEN] = self.broken
        keys[_BROKEN] = self.broken_key

    def rows(self, mask: NDArray[np.bool_]) -> "RankColumns":
        """Return the same at some of the rows."""
        columns = {n: Column(c.values[mask], c.present[mask]) for n, c in self.columns.items()}
        broken = self.broken
        if broken is not None:
            broken = Column(broken.values[mask], broken.present[mask])
        return RankColumns(self.here, self.keep[mask], columns, broken, self.broken_key, self.notes)


def ranks_of_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return rank -> key of the keys that name the rank they are of.

    Example:
        >>> ranks_of_keys(("loss_rank3", "loss_mean", "rank_0/loss"))
        {'3': 'loss_rank3', '0': 'rank_0/loss'}
    """
    named: dict[str, str] = {}
    for key in keys:
        if (found := _OF_RANK.search(key)) is not None and len(named) < _MAX_RANKS:
            named.setdefault(str(int(found[1])), key)
    return named


def is_of_rank(name: str) -> bool:
    """Whether a column is of another rank than the one that is read."""
    return name.startswith("rank ") and "/" in name


def names_rank(key: str) -> bool:
    """Whether the key of `nonfinite` says that it counts other ranks."""
    return bool(_NAMED.match(key))


def part_ranks(
    rank: Column, counts: Sequence[Column], signals: Mapping[str, Column]
) -> RankColumns | None:
    """Return the rank to read and what the others log; None where there is but one.

    It is the lowest that computes a loss. Rows of one step belong together; where that matches few
    of them, those of the same place in the order of each rank.

    Args:
        rank: Who logged each row [n_rows].
        counts: Steps and epochs, as far as they are logged [n_rows].
        signals: By canonical name [n_rows].
    """
    numbers = np.unique(rank.values[rank.present & np.isfinite(rank.values)])
    if len(numbers) < 2:
        return None
    loss = signals.get("loss")
    computing = [r for r in numbers.tolist() if loss is None or _computes(loss, rank, r)]
    here = computing[0] if computing else float(numbers[0])
    result = RankColumns(here, ~rank.present | (rank.values == here))
    others = [r for r in computing if r != here]
    num_left = int((~result.keep).sum()) - sum(
        int((rank.present & (rank.values == r)).sum()) for r in others[:_MAX_RANKS]
    )
    if others:
        beside = counted(len(others[:_MAX_RANKS]), "other rank")
        result.notes.append(f"rank {here:g} is judged, {beside} compared with it")
    if num_left:
        result.notes.append(f"{counted(num_left, 'row')} of ranks without a loss left out")
    own = np.flatnonzero(rank.present & (rank.values == here))
    places = _codes(rank, counts)
    broken: dict[float, NDArray[np.bool_]] = {}
    for number in others[:_MAX_RANKS]:
        theirs = np.flatnonzero(rank.present & (rank.values == number))
        left, right = _matched(places, own, theirs)
        for name in COMPARED:
            source = signals.get(name)
            if source is None or not source.present[theirs].any():
                continue
            laid = Column(np.full(len(rank.values), np.nan), np.zeros(len(rank.values), np.bool_))
            laid.values[left], laid.present[left] = source.values[right], source.present[right]
            if not np.isfinite(laid.values).any():
                result.notes.append(f"ranks differ: {name} of rank {number:g} is never finite")
                continue
            result.columns[f"rank {number:g}/{name}"] = laid
            if name == "loss":
                finite = ~source.present | np.isfinite(source.values)
                alone = result.keep & laid.present & ~finite & np.isfinite(laid.values)
                result.num_alone = max(result.num_alone, int(alone.sum()))
                bad = laid.present & ~np.isfinite(laid.values) & finite
                if bad.any():
                    broken[number] = bad
    _note_broken(result, broken, result.keep)
    if result.num_alone:
        result.notes.append(
            f"the loss of rank {here:g} is NaN or Inf in {counted(result.num_alone, 'row')} in"
            " which that of another rank is finite"
        )
    return result


def _note_broken(
    result: RankColumns, broken: Mapping[float, NDArray[np.bool_]], own: NDArray[np.bool_]
) -> None:
    if not broken:
        return
    count = np.sum(list(broken.values()), axis=0, dtype=np.float64)
    result.broken = Column(np.where(own, count, np.nan), own.copy())
    names = ", ".join(f"{r:g}" for r in list(broken)[:_MAX_TOLD])
    more = " and others" if len(broken) > _MAX_TOLD else ""
    result.broken_key = f"loss of rank{'s' if len(broken) > 1 else ''} {names}{more}"
    for number, bad in list(broken.items())[:_MAX_TOLD]:
        result.notes.append(
            f"the loss of rank {number:g} is NaN or Inf in {counted(int(bad.sum()), 'row')} in"
            f" which that of rank {result.here:g} is finite"
        )


def _codes(rank: Column, counts: Sequence[Column]) -> NDArray[np.int64]:
    """Return a number for each row, the same for the n-th row of each rank at one place."""
    keys = [np.where(c.present, c.values, -1.0) for c in counts]
    if not keys:
        return _nth(np.zeros(len(rank.values), dtype=np.int64), rank.values)
    _, code = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)
    code = code.reshape(-1).astype(np.int64)
    nth = _nth(code, rank.values)
    return np.asarray(code * (int(nth.max(initial=0)) + 1) + nth)


def _nth(code: NDArray[np.int64], rank: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return how many rows before each have its code and its rank, int64 [n_rows]."""
    order = np.lexsort((np.arange(len(code)), rank, code))
    new = np.ones(len(code), dtype=np.bool_)
    new[1:] = (np.diff(code[order]) != 0) | (np.diff(rank[order]) != 0)
    starts = np.flatnonzero(new)
    nth = np.empty(len(code), dtype=np.int64)
    nth[order] = np.arange(len(code)) - np.repeat(starts, np.diff([*starts, len(code)]))
    return nth


def _matched(
    places: NDArray[np.int64], own: NDArray[np.intp], theirs: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return rows of the rank that is read, and the rows of another that belong to them."""
    _, left, right = np.intersect1d(places[own], places[theirs], return_indices=True)
    if len(left) < _LEAST_MATCHED * min(len(own), len(theirs)):
        num = min(len(own), len(theirs))
        return own[:num], theirs[:num]
    return own[left], theirs[right]


def _computes(loss: Column, rank: Column, number: float) -> bool:
    values = loss.values[loss.present & (rank.values == number)]
    # With pipeline parallelism only the last stage has the loss; the others print -1 or 0.
    return len(values) > 0 and not (np.all(values == -1.0) or np.all(values == 0.0))
