"""A signal that goes on under another key: a trainer that was updated, or a second script."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import counted, shown
from trimtab.readers.writers import UNREAD_NOTE

__all__ = ["Renamed", "renamed"]

_FEWEST, _SHARE = 8, 0.1
"""Values under the other key, and their share of those under the first, for a part of a log."""
_APART = 0.5
"""Of the larger of both levels at the seam, by which they may differ for one series to go on.
Ours: names alone do not say that both mean the same, of a mean and of a sum, say."""

Floats = NDArray[np.float64]


def _goes_on_at(
    place: NDArray[np.generic],
    values: Floats,
    other_place: NDArray[np.generic],
    other: Floats,
) -> int:
    """Return 1 where values under another key follow those of the first, -1 where they lead up to it.

    0 where they stand among them, or are too few to be a part of the log: a result at its end.

    Args:
        place: Of each value under the first key, rising.
        values: (rows,), NaN and Inf included.
        other_place: Of each under the other.
        other: (other rows,).
    """
    if len(other) < max(_FEWEST, _SHARE * len(values)) or not len(values):
        return 0
    if other_place[0] > place[-1]:
        return 1
    return -1 if other_place[-1] < place[0] else 0


def _told_apart(values: Floats, other: Floats, where: int) -> bool:
    """Whether the levels on both sides of a seam are those of two things.

    Args:
        values: Under the first key.
        other: Under the other.
        where: As of `_goes_on_at`.
    """
    first, then = (values, other) if where > 0 else (other, values)
    first, then = first[np.isfinite(first)][-_FEWEST:], then[np.isfinite(then)][:_FEWEST]
    if not len(first) or not len(then):
        return False
    a, b = float(np.median(first)), float(np.median(then))
    return abs(a - b) > _APART * max(abs(a), abs(b))


@dataclass(frozen=True)
class Renamed:
    """Under which other keys a signal stands, before or behind the rows of its first."""

    before: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    note: str = ""
    """What to say of it; empty: there is no such key."""


def renamed(
    name: str,
    key: str,
    place: NDArray[np.generic],
    values: Floats,
    others: Mapping[str, tuple[NDArray[np.generic], Floats]],
) -> Renamed:
    """Return the keys that a signal goes on under, and what to say of those of another level.

    Args:
        name: The signal.
        key: That it is read from.
        place: Of each value there, rising.
        values: (rows,), NaN and Inf included.
        others: By key, the same of each other that may mean the signal.
    """
    found: dict[int, list[str]] = {-1: [], 1: []}
    apart: list[str] = []
    for other, (at, these) in others.items():
        where = _goes_on_at(place, values, at, these)
        if not where:
            continue
        if found[where] or _told_apart(values, these, where):
            apart.append(f"{shown(other)} ({counted(len(these), 'value')})")
        else:
            found[where].append(other)
    before, behind = tuple(found[-1]), tuple(found[1])
    said: list[str] = []
    if apart and name == "loss":
        said.append(
            f"{UNREAD_NOTE}{', '.join(apart)} before or behind {shown(key)} may be {name}, too, and"
            " has another level: give those rows as a file of their own, or name one with --columns"
        )
    if before or behind:
        keys = ", then from ".join(map(shown, (*before, key, *behind)))
        said.append(f"{name} is read from {keys}: one behind the other")
    return Renamed(before, behind, "; ".join(said))
