"""A block: a few MiB of documents or token samples end to end, so that passes are vectorized."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from trimtab.text import visible

__all__ = [
    "BLOCK_BYTES",
    "MAX_DOC_BYTES",
    "BlockReader",
    "DataBlock",
    "Elements",
    "Unit",
    "block_of",
    "show",
]

BLOCK_BYTES = 1 << 21
"""Bytes gathered into one block; a few fit into the caches of a core."""
MAX_DOC_BYTES = 1 << 28
"""A longer line or member is refused: nothing that is text is so long, and it would fill memory."""
_SHOWN_CHARS = 60

Unit = Literal["document", "sample"]
Elements: TypeAlias = NDArray[np.integer]
"""Bytes of text as uint8, or token ids as wider integers."""


@dataclass(frozen=True)
class DataBlock:
    """Units end to end: unit u is `data[starts[u]:starts[u + 1]]`.

    `data` is uint8 [n] for text, an integer array [n] for tokens; `starts` int64 [units + 1];
    `ids` int64 [units], rising: the unit's number in its source. `doc_starts` int64 [docs + 1] has
    the documents where they are not the units (token files with an index), else it is `starts`.
    """

    data: Elements
    starts: NDArray[np.int64]
    ids: NDArray[np.int64]
    doc_starts: NDArray[np.int64]
    num_unreadable: int = 0
    """Records among them that could not be read and stand here empty."""
    size_bytes: int = 0
    """What was read from the source for it."""
    origins: tuple[str, ...] = ()
    """Origin of each unit as its record states it; empty where records state none."""

    @property
    def is_text(self) -> bool:
        """Whether the elements are bytes of text, and not token ids."""
        return self.data.dtype == np.uint8

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Elements of each unit, int64 [units]."""
        return np.diff(self.starts)

    def unit_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which unit of the block each position lies in."""
        return np.searchsorted(self.starts, positions, side="right") - 1

    def per_unit(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many of the positions, which rise, lie in each unit, int64 [units]."""
        return np.diff(np.searchsorted(positions, self.starts)).astype(np.int64)

    def first_in_units(
        self, positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the units that positions, which rise, lie in, and the first position in each.

        Two int64 [hit].
        """
        # One search of all edges replaces a loop over the units.
        places = np.searchsorted(positions, self.starts)
        units = np.flatnonzero(np.diff(places))
        return units, positions[places[units]]


class BlockReader(Protocol):
    """One source; `blocks` yields each block with the cursor that the next one begins at."""

    @property
    def unit(self) -> Unit:
        """What its numbers count."""

    @property
    def context(self) -> int | None:
        """Elements of one sample; None where units are documents."""

    @property
    def total(self) -> int:
        """Size of the file, in the measure of the cursor; 0 where nobody knows."""

    @property
    def notes(self) -> list[str]:
        """What is to be said about the reading of it."""

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield from `cursor` on; the first unit has the number `next_id`."""


def block_of(
    docs: Sequence[bytes],
    first_id: int,
    *,
    num_unreadable: int,
    size_bytes: int,
    origins: Sequence[str] = (),
) -> DataBlock:
    """Return a block of text documents."""
    starts = np.zeros(len(docs) + 1, np.int64)
    np.cumsum([len(d) for d in docs], out=starts[1:])
    data = np.frombuffer(b"".join(docs), np.uint8)
    ids = np.arange(first_id, first_id + len(docs), dtype=np.int64)
    return DataBlock(data, starts, ids, starts, num_unreadable, size_bytes, tuple(origins))


def show(data: Elements, start: int, end: int) -> str:
    """Return a short printable form of a stretch; what does not print is escaped."""
    end = min(end, start + _SHOWN_CHARS, len(data))
    if data.dtype != np.uint8:
        more = " …" if end - start > 12 else ""
        return " ".join(str(int(t)) for t in data[start : min(end, start + 12)]) + more
    text = data[start:end].tobytes().decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else visible(c) for c in text)
