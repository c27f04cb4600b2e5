"""Documents that come more than once, exactly or nearly, within bounded memory.

Exact: a 64-bit hash of the bytes. Near: MinHash over all 8-byte shingles (5-token shingles for
token ids), of documents from 1 KiB on a quarter of them kept by their hash, in 64 bins by
one-permutation hashing; each 8 neighbouring bins make one of 8 keys, and a document two of whose
keys were seen before is a near duplicate. For two documents of Jaccard similarity J that is
P(Binomial(8, J^8) >= 2): 0.92 at 0.9, 0.40 at 0.8, 0.0004 at 0.5. One key alone would do for a
shared header among many documents.

Sources: Broder (1997), On the resemblance and containment of documents; Li, Owen, Zhang (2012), One
permutation hashing, arXiv:1208.1259.
"""

import hashlib
import itertools
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import DataBlock, Elements
from trimtab.data_scan.source_counts import SourceCounts

__all__ = ["CounterState", "Duplicates", "DuplicatesState", "HashCounter"]

_BINS, _ROWS = 64, 8
_SHORTEST_BYTES = 128
"""Shorter documents have too few shingles for 64 bins, and are not compared."""
_COMPARED_BYTES = 1 << 22
"""Of a longer document only this much is compared: its hashes take eight times its size."""
_HEAD_BYTES = 64
_HEADS_SEEN = 20
"""A beginning that came so often before is a template's."""
_SAMPLED_BYTES = 1024
"""From here on a quarter of the shingles is enough for 64 bins; of shorter documents all are taken.
"""
_KEYS_SHARED = 2
_MOST_EMPTY = 2
_EMPTY = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_MIX = np.uint64(0x9E37_79B9_7F4A_7C15)
_SHINGLE_TOKENS = 5


class CounterState(TypedDict):
    """State of a `HashCounter`; the two arrays run in parallel."""

    bits: int
    hashes: NDArray[np.uint64]
    times: NDArray[np.int64]


class DuplicatesState(TypedDict):
    """State of `Duplicates`; `keys` is None where near duplicates are not looked for."""

    exact: CounterState
    keys: CounterState | None
    heads: CounterState
    num_short: int


class HashCounter:
    """Hashes and how often each came, for at most `capacity` of them.

    When it is full, a hash is kept only if its lowest bit is 0, then its lowest two, and so on: a
    hash is either counted always or never, so shares stay right and only fewer are looked at.
    """

    def __init__(self, capacity: int = 1 << 21) -> None:
        """Start empty; a hash takes about 100 bytes."""
        self.capacity = capacity
        self.bits = 0
        self.times: dict[int, int] = {}

    def add(self, value: int) -> int:
        """Count a hash; return how often it came before, or -1 if it is not among those counted."""
        if value & ((1 << self.bits) - 1):
            return -1
        before = self.times.get(value, 0)
        self.times[value] = before + 1
        while len(self.times) > self.capacity:
            self.bits += 1
            mask = (1 << self.bits) - 1
            self.times = {h: n for h, n in self.times.items() if not h & mask}
        return before

    def state(self) -> CounterState:
        """Return it as arrays."""
        return {
            "bits": self.bits,
            "hashes": np.fromiter(self.times, np.uint64, len(self.times)),
            "times": np.fromiter(self.times.values(), np.int64, len(self.times)),
        }

    def load(self, state: CounterState) -> None:
        """Go back to a state."""
        self.bits = int(state["bits"])
        self.times = dict(zip(state["hashes"].tolist(), state["times"].tolist(), strict=True))


class Duplicates:
    """Exact and near duplicates over all sources of a scan."""

    def __init__(self, *, near: bool = True, capacity: int = 1 << 21) -> None:
        """Start empty; `capacity` bounds each of the two tables."""
        self.exact = HashCounter(capacity)
        self.keys = HashCounter(capacity * 4) if near else None
        self.heads = HashCounter(capacity)
        self.num_short = 0

    def update(self, block: DataBlock, account: SourceCounts) -> None:
        """Take in the documents of a block.

        Units of a repeated one are noted, but for its first time.
        """
        raw = memoryview(block.data.tobytes())
        width = block.data.itemsize
        edges = block.doc_starts.tolist()
        again: list[int] = []
        alike: list[int] = []
        fresh: list[int] = []
        for doc, (start, end) in enumerate(itertools.pairwise(edges)):
            if start == end:
                account.add_total("docs_hashed", 1)
                continue
            before = self.exact.add(_digest(raw[start * width : end * width]))
            # A hash that is not sampled (-1) counts on neither side, so the share stays unbiased.
            if before >= 0:
                account.add_total("docs_hashed", 1)
            if before > 0:
                again.append(doc)
            elif (end - start) * width >= _SHORTEST_BYTES:
                fresh.append(doc)
                if account.unit == "document":
                    head = self.heads.add(_digest(raw[start : start + _HEAD_BYTES]))
                    if head >= _HEADS_SEEN:
                        alike.append(doc)
            else:
                self.num_short += 1
        account.add_total("exact_duplicates", len(again))
        _note(account, "exact-duplicates", block, again)
        _note(account, "same-beginning", block, alike)
        if self.keys is not None:
            near = self._near(block, np.array(fresh, np.int64))
            account.add_total("near_duplicates", len(near))
            _note(account, "near-duplicates", block, near)

    def _near(self, block: DataBlock, docs: NDArray[np.int64]) -> list[int]:
        assert self.keys is not None
        block = _trimmed(block)
        found = []
        for doc, keys in zip(docs.tolist(), band_keys(block, docs).tolist(), strict=True):
            before = [self.keys.add(key) for key in {k for k in keys if k}]
            if sum(b > 0 for b in before) >= _KEYS_SHARED:
                found.append(doc)
        return found

    def notes(self) -> tuple[str, ...]:
        """Say where not everything was kept in mind."""
        notes = []
        if self.exact.bits:
            notes.append(
                f"exact duplicates were counted on one document in {1 << self.exact.bits}, chosen"
                " by its hash"
            )
        if self.keys and self.keys.bits:
            notes.append(
                f"near duplicates were looked for by one key in {1 << self.keys.bits}: there are"
                " more than found"
            )
        if self.keys and self.num_short:
            are = "document is" if self.num_short == 1 else "documents are"
            were = "was" if self.num_short == 1 else "were"
            notes.append(
                f"{self.num_short:,} {are} shorter than {_SHORTEST_BYTES} bytes and {were} not"
                " looked at for near duplicates"
            )
        return tuple(notes)

    def state(self) -> DuplicatesState:
        """Return both tables as arrays."""
        return {
            "exact": self.exact.state(),
            "keys": self.keys.state() if self.keys else None,
            "heads": self.heads.state(),
            "num_short": self.num_short,
        }

    def load(self, state: DuplicatesState) -> None:
        """Go back to a state."""
        self.exact.load(state["exact"])
        self.heads.load(state["heads"])
        self.num_short = int(state["num_short"])
        if self.keys is not None and state["keys"] is not None:
            self.keys.load(state["keys"])


def _note(account: SourceCounts, rule: str, block: DataBlock, docs: list[int]) -> None:
    """Note the units that documents cover."""
    if not docs:
        return
    chosen = np.array(docs, np.int64)
    first = block.unit_at(block.doc_starts[chosen])
    last = block.unit_at(block.doc_starts[chosen + 1] - 1)
    units = np.unique(
        np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last, strict=True)])
    )
    at = np.maximum(block.starts[units], block.doc_starts[chosen[0]])
    account.hit(rule, block, units, at)


def shingle_hashes(data: Elements) -> NDArray[np.uint64]:
    """Return a 64-bit hash of the shingle that starts at each element, uint64 [n - shingle + 1]."""
    if data.dtype == np.uint8:
        n = len(data) - 7
        whole = (
            np.ndarray((max(n, 0),), "<u8", np.ascontiguousarray(data).data, strides=(1,))
            if n > 0
            else np.zeros(0, np.uint64)
        )
        hashes = whole * _MIX
    else:
        n = max(len(data) - _SHINGLE_TOKENS + 1, 0)
        hashes = np.zeros(n, np.uint64)
        for i in range(_SHINGLE_TOKENS):
            hashes = (hashes + data[i : i + n].astype(np.uint64)) * _MIX
    # A multiplication mixes upwards only; the fold brings high bits down before the second one.
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MIX
    return hashes


def band_keys(block: DataBlock, docs: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the 8 keys of each document, uint64 [docs, 8]; near duplicates share one.

    0 stands for a key that too few different shingles went into, as in a run of one character.
    """
    if not len(docs):
        return np.zeros((0, _BINS // _ROWS), np.uint64)
    hashes = shingle_hashes(block.data)
    row = np.full(len(block.doc_starts), -1, np.int64)
    row[docs] = np.arange(len(docs))
    kept = _kept(hashes, block, docs)
    reach = 8 if block.is_text else _SHINGLE_TOKENS
    doc = np.searchsorted(block.doc_starts, kept, side="right") - 1
    inside = (kept + reach <= block.doc_starts[doc + 1]) & (row[doc] >= 0)
    kept, doc = kept[inside], doc[inside]
    values = hashes[kept]
    bins = ((values >> np.uint64(56)) & np.uint64(_BINS - 1)).astype(np.int64)
    least = np.full(len(docs) * _BINS, _EMPTY, np.uint64)
    np.minimum.at(least, row[doc] * _BINS + bins, values << np.uint64(8))
    # The top 8 bits chose the bin, so they are shifted out of the value that is compared.
    bands = least.reshape(len(docs), _BINS // _ROWS, _ROWS)
    keys = np.zeros(bands.shape[:2], np.uint64) + np.arange(_BINS // _ROWS, dtype=np.uint64)
    for i in range(_ROWS):
        keys = (keys ^ bands[:, :, i]) * _MIX
        keys ^= keys >> np.uint64(29)
    keys[(bands == _EMPTY).sum(axis=2) > _MOST_EMPTY] = 0
    return keys


def _trimmed(block: DataBlock) -> DataBlock:
    """Return a block whose documents are no longer than what is compared of them."""
    lengths = np.minimum(np.diff(block.doc_starts), _COMPARED_BYTES // block.data.itemsize)
    if lengths.sum() == len(block.data):
        return block
    parts = [block.data[s : s + n] for s, n in zip(block.doc_starts, lengths, strict=False)]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    return DataBlock(np.concatenate(parts), starts, block.ids, starts)


def _kept(
    hashes: NDArray[np.uint64], block: DataBlock, docs: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the places of the shingles taken: of long documents a quarter, of short ones all."""
    chosen = hashes >> np.uint64(62) == 0
    sizes = (block.doc_starts[docs + 1] - block.doc_starts[docs]) * block.data.itemsize
    for doc in docs[sizes < _SAMPLED_BYTES].tolist():
        chosen[block.doc_starts[doc] : block.doc_starts[doc + 1]] = True
    return np.flatnonzero(chosen)


def _digest(raw: memoryview) -> int:
    return int.from_bytes(hashlib.blake2b(raw, digest_size=8).digest(), "little")
