"""A signal that goes on under another key: a trainer that was updated, or a second script.

Two keys of one signal that hardly ever stand in the same row, and take turns a few times, are parts
of one series, if they say the same (`loss`, `train_loss`) and go on at about one level. Under words
that say something else (`lm_loss`, `total_loss`) another loss may stand: it is not joined, and said
to be left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import counted, shown
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.vocabulary import normalise

__all__ = ["Renamed", "renamed"]

_FEWEST, _SHARE = 8, 0.1
"""Values under the other key, and their share of those under the first, for a part of a log."""
_SHARED, _TURNS = 0.02, 6
"""Share of the fewer values at places of the others, and turns that the two keys take, at most."""
_APART = 0.35
"""Of the larger of both levels at a seam, by which they may differ for one series to go on. Ours:
names alone do not say that both mean the same, of a mean and of a sum, say."""
_SAYS_NOTHING = re.compile(r"\b(?:train(?:ing|er)?|tr|step|iter(?:ation)?|batch|global)\b|[ /_.-]+")

Floats = NDArray[np.float64]
Places = NDArray[np.generic]


@dataclass(frozen=True)
class Renamed:
    """Under which other keys a signal stands, in rows that its first does not have."""

    joined: tuple[str, ...] = ()
    note: str = ""
    """What to say of it; empty: there is no such key."""


def renamed(
    name: str,
    key: str,
    place: Places,
    values: Floats,
    others: Mapping[str, tuple[Places, Floats]],
) -> Renamed:
    """Return the keys that a signal goes on under, and what to say of those of another level.

    Args:
        name: The signal.
        key: That it is read from.
        place: Of each value there, rising.
        values: (rows,), NaN and Inf included.
        others: By key, the same of each other that may mean the signal.
    """
    joined: list[str] = []
    apart: list[str] = []
    for other, (at, these) in others.items():
        if not _takes_turns(place, at):
            continue
        alike = _says(key) == _says(other) and not _told_apart(place, values, at, these)
        if alike and not joined:
            joined.append(other)
        else:
            apart.append(f"{shown(other)} ({counted(len(these), 'value')})")
    said: list[str] = []
    if apart and name == "loss":
        said.append(
            f"{UNREAD_NOTE}{', '.join(apart)} in rows without {shown(key)} may be {name}, too, or"
            " another: give those rows as a file of their own, or name one with --columns"
        )
    if joined:
        said.append(f"{name} is read from {shown(key)} and, in rows without it, {shown(joined[0])}")
    return Renamed(tuple(joined), "; ".join(said))


def _says(key: str) -> str:
    return _SAYS_NOTHING.sub("", normalise(key))


def _takes_turns(place: Places, other: Places) -> bool:
    """Whether values under two keys are parts of one series, each with a stretch of its own.

    A result at the end, or a mean of each epoch among the steps, is none.
    """
    if len(other) < max(_FEWEST, _SHARE * len(place)) or not len(place):
        return False
    shared = len(np.intersect1d(place, other))
    if shared > max(1.0, _SHARED * min(len(place), len(other))):
        return False
    where = np.concatenate([place, other])
    mine = np.concatenate([np.ones(len(place), bool), np.zeros(len(other), bool)])
    turns = np.diff(mine[np.argsort(where, kind="stable")].astype(np.int8)) != 0
    return 0 < int(turns.sum()) <= _TURNS


def _told_apart(place: Places, values: Floats, other_place: Places, other: Floats) -> bool:
    """Whether the levels on both sides of a seam are those of two things."""
    where = np.concatenate([place, other_place])
    order = np.argsort(where, kind="stable")
    mine = np.concatenate([np.ones(len(place), bool), np.zeros(len(other), bool)])[order]
    y = np.concatenate([values, other])[order]
    for seam in (np.flatnonzero(np.diff(mine.astype(np.int8))) + 1).tolist():
        before, after = y[max(0, seam - _FEWEST) : seam], y[seam : seam + _FEWEST]
        before, after = before[np.isfinite(before)], after[np.isfinite(after)]
        if not len(before) or not len(after):
            continue
        a, b = float(np.median(before)), float(np.median(after))
        if abs(a - b) > _APART * max(abs(a), abs(b)):
            return True
    return False
