r"""What a cleaning step added.

Deduplication only removes text, so an n-gram that became more frequent was inserted.

Two views. N-grams: every byte, pair and (hashed) four bytes is counted on both sides; a count that
grew cannot come from removing documents. Documents: one that is the same as before but for escapes
and signs, and not the same in its bytes, was rewritten. The first sees what is new anywhere; the
second also sees insertions that removals outweigh.
"""

import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from trimtab.data_scan.block import DataBlock, Elements, show
from trimtab.data_scan.source_counts import Example

__all__ = ["CleaningDifference", "NgramCounts", "by_lines"]

_HASH_BITS = 20
_MIX = np.uint32(0x9E3779B1)
_ESCAPED = re.compile(rb"\\+[nrt]")
_SIGNS = bytes(b for b in range(128) if not chr(b).isalnum())
_LEAST = 64
"""Fewer more of an n-gram than this come from joining what was around something cut out."""


class NgramCounts:
    """How often each byte pair (exactly) and each four bytes (hashed into 2^20) occur."""

    def __init__(self) -> None:
        """Start at zero."""
        self.pairs = np.zeros(1 << 16, np.int64)
        self.fours = np.zeros(1 << _HASH_BITS, np.int64)
        self.example = np.zeros(1 << _HASH_BITS, np.uint32)

    def update(self, data: Elements) -> None:
        """Count the n-grams of a block; those over the edges of documents are few and count too."""
        if len(data) < 4:
            return
        raw = np.ascontiguousarray(data)
        # Overlapping views of the bytes: no copy per n-gram.
        pairs = np.ndarray((len(raw) - 1,), "<u2", raw.data, strides=(1,))
        self.pairs += np.bincount(pairs, minlength=1 << 16)
        fours = np.ndarray((len(raw) - 3,), "<u4", raw.data, strides=(1,)).astype(np.uint32)
        places = (fours * _MIX) >> np.uint32(32 - _HASH_BITS)
        self.fours += np.bincount(places, minlength=1 << _HASH_BITS)
        self.example[places] = fours

    def grown(self, before: "NgramCounts") -> list[tuple[bytes, int, int]]:
        """Return n-grams that are more frequent than before, with both counts, most grown first."""
        found = []
        for now, then, size in ((self.pairs, before.pairs, 2), (self.fours, before.fours, 4)):
            more = now - then
            for place in np.argsort(-more)[:8].tolist():
                if more[place] >= _LEAST:
                    value = place if size == 2 else int(self.example[place])
                    found.append(
                        (int(value).to_bytes(size, "little"), int(then[place]), int(now[place]))
                    )
        return sorted(found, key=lambda f: f[1] - f[2])


@dataclass
class CleaningDifference:
    """Compares the text before a cleaning step with the text after it."""

    before: NgramCounts = field(default_factory=NgramCounts)
    after: NgramCounts = field(default_factory=NgramCounts)
    known: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Documents before, by the hash of their letters: hash, length, backslashes."""
    capacity: int = 1 << 22
    num_before: int = 0
    num_after: int = 0
    num_same: int = 0
    num_rewritten: int = 0
    num_new: int = 0
    inserted_bytes: int = 0
    inserted_backslashes: int = 0
    examples: list[Example] = field(default_factory=list)

    def add_before(self, block: DataBlock) -> None:
        """Take in a block of what went into the cleaning."""
        self.before.update(block.data)
        for _, raw in _documents(block):
            self.num_before += 1
            if len(self.known) < self.capacity:
                self.known[_letters(raw)] = (_hash(raw), len(raw), raw.count(b"\\"))

    def add_after(self, block: DataBlock, path: str) -> None:
        """Take in a block of what came out."""
        self.after.update(block.data)
        for unit, raw in _documents(block):
            self.num_after += 1
            then = self.known.get(_letters(raw))
            if then is None:
                self.num_new += 1
            elif then[0] == _hash(raw):
                self.num_same += 1
            else:
                self.num_rewritten += 1
                self.inserted_bytes += max(len(raw) - then[1], 0)
                self.inserted_backslashes += max(raw.count(b"\\") - then[2], 0)
                if len(self.examples) < 3:
                    at = max(raw.find(b"\\"), 0)
                    text = show(
                        block.data, int(block.starts[unit]) + at, int(block.starts[unit + 1])
                    )
                    self.examples.append(
                        {"path": path, "id": int(block.ids[unit]), "offset": at, "text": text}
                    )


def by_lines(block: DataBlock) -> DataBlock:
    """Return a block of plain text with its lines as units, since windows of bytes shift."""
    ends = np.flatnonzero(block.data == ord("\n")) + 1
    starts = np.unique(np.concatenate(([0], ends, [len(block.data)]))).astype(np.int64)
    return DataBlock(block.data, starts, np.arange(len(starts) - 1), starts, 0, block.size_bytes)


def _documents(block: DataBlock) -> Iterator[tuple[int, bytes]]:
    edges = block.starts.tolist()
    raw = block.data.tobytes()
    for unit, (start, end) in enumerate(itertools.pairwise(edges)):
        if start < end:
            yield unit, raw[start:end]


def _letters(raw: bytes) -> int:
    """Hash the letters and digits alone; an escape written out is none."""
    plain = _ESCAPED.sub(b"", raw) if b"\\" in raw else raw
    return _hash(plain.translate(None, _SIGNS))


def _hash(raw: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
