"""Batches of an epoch that are fed once more after a resume: known by their fingerprints.

A stream that says it is back at its place, and begins again or elsewhere, repeats what was trained
on. Kept are the fingerprints of the first and of the newest batches of the epoch, with the saved
position; the batches after a resume or a rollback are looked up among them.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FedBefore"]

_FIRST, _NEWEST = 64, 256
"""Fingerprints that are kept, and batches after a resume that are looked up. Ours."""
_LEAST = 3
"""Batches in a row that must be known: two alike may stand in the data. Ours."""


class FedBefore:
    """The fingerprints of one epoch's batches."""

    def __init__(self) -> None:
        """Know of no batch."""
        self._first: list[int] = []
        self._newest: deque[int] = deque(maxlen=_NEWEST)
        self._known: frozenset[int] = frozenset()
        """Of before the resume."""
        self._left = 0
        """Batches that are still looked up."""
        self._in_a_row = 0
        self._told = ""

    def see(self, fingerprint: int) -> None:
        """Take in a batch, and look it up after a resume; 0: it has no fingerprint."""
        if not fingerprint:
            return
        if self._left:
            self._left -= 1
            self._in_a_row = self._in_a_row + 1 if fingerprint in self._known else 0
            if self._in_a_row == _LEAST:
                self._left = 0
                self._told = (
                    f"samples are fed again: {_LEAST} batches in a row after the resume are those of"
                    " before it, in the same epoch; the data does not go on from its place. Have its"
                    " state_dict say where it was, or let the guard read the epoch again"
                )
        if len(self._first) < _FIRST:
            self._first.append(fingerprint)
        self._newest.append(fingerprint)

    def take_told(self) -> str:
        """Return, once, that batches were fed again; else empty."""
        told, self._told = self._told, ""
        return told

    def begin_epoch(self) -> None:
        """Forget all: an epoch has what the one before had."""
        self._first, self._known = [], frozenset()
        self._newest.clear()
        self._left = self._in_a_row = 0

    def state(self) -> list[int]:
        """Return what `go_on_from` takes: the first fingerprints and the newest, at most 320."""
        return [len(self._first), *self._first, *self._newest]

    def go_on_from(self, state: Iterable[int]) -> None:
        """Go on from a saved position, and look the next batches up."""
        self.begin_epoch()
        count, *rest = [*state] or [0]
        self._first = rest[:count]
        self._newest.extend(rest[count:])
        self._known = frozenset(rest)
        self._left = _NEWEST if rest else 0
