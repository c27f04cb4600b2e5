"""The framing of TFRecord files: length, CRC of the length, data, CRC of the data.

A torn last record is normal while a run writes. A damaged length breaks the chain of records; it is
resumed at the next length that earlier records had, with a valid checksum.
"""

import re
import struct
from array import array
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.crc32c import crc32c_rows, masked

__all__ = ["Frames", "find_frames", "starts_like_tfrecord"]

HEADER_SIZE_BYTES = 12
FRAME_SIZE_BYTES = 16
_MAX_RESUMES = 200
_MAX_HEADERS = 64
_LOOK_BEHIND = 64
"""Records followed one by one before their lengths are looked at for a period."""
_MAX_PERIOD = 32
_FIRST_JUMP_ROWS = 1 << 10


@dataclass(frozen=True)
class Frames:
    """Where the records of a file are."""

    start: NDArray[np.int64]
    """int64 [n], first byte of the data of each record, in file order."""
    size: NDArray[np.int64]
    """int64 [n], bytes of data."""
    torn: bool
    """Whether the last record was cut off."""
    lost_bytes: int
    """Bytes passed over because a length was damaged."""


def starts_like_tfrecord(raw: bytes) -> bool:
    """Whether the bytes begin with a length and its right checksum."""
    return _size_in(raw[:HEADER_SIZE_BYTES]) is not None


def find_frames(data: bytes) -> Frames:
    """Return the records of a file.

    Cost: where lengths repeat with a period (a trainer logs the same tags each step) whole
    stretches at once, else one Python step per record. Each distinct length has its checksum
    checked once, and every record must carry the same bytes.
    """
    chain = _Chain(data)
    lost = 0
    torn = False
    for _ in range(_MAX_RESUMES):
        if chain.follow():
            torn = chain.at < len(data)
            break
        broken = chain.at
        chain.at = _resume(data, broken + 1, chain.sizes)
        lost += chain.at - broken
        if chain.at >= len(data):
            break
    else:
        lost += len(data) - chain.at
    place, size = chain.records()
    return Frames(place + HEADER_SIZE_BYTES, size, torn, lost)


def _size_in(head: bytes) -> int | None:
    """Return the length that a header states, None where its checksum is wrong."""
    if len(head) < HEADER_SIZE_BYTES:
        return None
    row = np.frombuffer(head, np.uint8, 8)[None]
    if int(masked(crc32c_rows(row))[0]) != int.from_bytes(head[8:], "little"):
        return None
    return int.from_bytes(head[:8], "little")


@dataclass
class _Chain:
    """Follows records from length to length."""

    data: bytes
    at: int = 0
    sizes: dict[bytes, int] = field(default_factory=dict)
    """Header -> length, for headers whose checksum is right."""
    places: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)

    def follow(self) -> bool:
        """Go on to the end of the file; False where a damaged length stops it."""
        while True:
            heads: list[bytes] = []
            stopped = self._step_by_step(heads)
            if stopped is not None:
                return stopped
            self._jump(heads)

    def _step_by_step(self, heads: list[bytes]) -> bool | None:
        """Follow some records; True at the end, False at a damaged length, else None."""
        data, at, end = self.data, self.at, len(self.data)
        sizes = self.sizes
        for _ in range(_LOOK_BEHIND):
            if at + HEADER_SIZE_BYTES > end:
                return True
            head = data[at : at + HEADER_SIZE_BYTES]
            size = sizes.get(head)
            if size is None:
                size = _size_in(head)
                if size is None:
                    return False
                sizes[head] = size
            following = at + size + FRAME_SIZE_BYTES
            if following > end:
                return True
            self.places.append(at)
            self.lengths.append(size)
            heads.append(head)
            self.at = at = following
        return None

    def _jump(self, heads: list[bytes]) -> None:
        """Follow as many whole periods of the headers just seen as come next."""
        period = next((k for k in range(1, _MAX_PERIOD + 1) if heads[k:] == heads[:-k]), None)
        if period is None:
            return
        cycle = heads[-period:]
        size = np.array([self.sizes[h] for h in cycle], dtype=np.int64)
        steps = size + FRAME_SIZE_BYTES
        stride = int(steps.sum())
        offset = np.concatenate([[0], np.cumsum(steps)[:-1]])
        rows = _FIRST_JUMP_ROWS
        while (rows := min(rows, (len(self.data) - self.at) // stride)) > 0:
            same = self._num_like(cycle, offset.tolist(), stride, rows)
            if same:
                self._flush()
                first = self.at + np.arange(same, dtype=np.int64) * stride
                self.parts.append(((first[:, None] + offset).ravel(), np.tile(size, same)))
                self.at += same * stride
            if same < rows:
                return
            rows *= 4

    def _num_like(self, cycle: list[bytes], offset: list[int], stride: int, rows: int) -> int:
        """Return how many of the next periods carry exactly these headers."""
        same = np.ones(rows, dtype=np.bool_)
        for head, place in zip(cycle, offset, strict=True):
            for kind, part in (("<Q", head[:8]), ("<I", head[8:])):
                found: NDArray[np.unsignedinteger] = np.ndarray(
                    (rows,), np.dtype(kind), self.data, self.at + place, (stride,)
                )
                same &= found == struct.unpack(kind, part)[0]
                place += 8
        return rows if same.all() else int(np.argmin(same))

    def _flush(self) -> None:
        if self.places:
            self.parts.append((np.array(self.places), np.array(self.lengths)))
            self.places, self.lengths = array("q"), array("q")

    def records(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return place and length of all records so far."""
        self._flush()
        if not self.parts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        return np.concatenate([p for p, _ in self.parts]), np.concatenate(
            [s for _, s in self.parts]
        )


def _resume(data: bytes, at: int, sizes: dict[bytes, int]) -> int:
    """Return where a header that was seen before comes next; the end where none does."""
    if not sizes:
        return len(data)
    known = list(sizes)[-_MAX_HEADERS:]
    found = re.compile(b"|".join(map(re.escape, known)), re.DOTALL).search(data, at)
    return len(data) if found is None else found.start()
