"""The framing of TFRecord files: length, CRC of the length, data, CRC of the data.

A torn last record is normal while a run writes. Where a length is damaged the chain of records is
lost; it is picked up again at the next length that earlier records had, checksum and all.
"""

import re
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.crc32c import crc32c_rows, masked

__all__ = ["Frames", "find_frames", "starts_like_tfrecord"]

HEADER_SIZE_BYTES = 12
FRAME_SIZE_BYTES = 16
_MAX_RESUMES = 200
_MAX_HEADERS = 64


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
    if len(raw) < HEADER_SIZE_BYTES:
        return False
    return bool(_headers_hold(np.frombuffer(raw, np.uint8), np.zeros(1, np.int64))[0])


def find_frames(data: bytes) -> Frames:
    """Return the records of a file.

    Cost: one Python step per record to follow the lengths; checksums of lengths at once.
    """
    view = np.frombuffer(data, np.uint8)
    parts: list[NDArray[np.int64]] = []
    headers: dict[bytes, None] = {}
    at = lost = 0
    torn = False
    for _ in range(_MAX_RESUMES):
        chain, at = _follow(data, at)
        good = _headers_hold(view, chain)
        if not good.all():
            first_bad = int(np.argmin(good))
            chain, at = chain[:first_bad], int(chain[first_bad])
        parts.append(chain)
        whole = at + HEADER_SIZE_BYTES <= len(data)
        if not whole or bool(_headers_hold(view, np.array([at]))[0]):
            torn = at < len(data)
            break
        _remember(data, chain, headers)
        resumed = _resume(data, at + 1, headers)
        lost += resumed - at
        at = resumed
        if at >= len(data):
            break
    else:
        lost += len(data) - at
    places = np.concatenate(parts)
    return Frames(places + HEADER_SIZE_BYTES, _sizes(view, places), torn, lost)


def _follow(data: bytes, at: int) -> tuple[NDArray[np.int64], int]:
    """Return the places of records that follow one another, and the place where none follows."""
    unpack = struct.Struct("<Q").unpack_from
    places: list[int] = []
    append = places.append
    end = len(data)
    while at + HEADER_SIZE_BYTES <= end:
        following = at + unpack(data, at)[0] + FRAME_SIZE_BYTES
        if following > end:
            break
        append(at)
        at = following
    return np.array(places, dtype=np.int64), at


def _sizes(view: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    size = np.zeros(len(places), dtype=np.int64)
    for k in range(6):
        size |= view[places + k].astype(np.int64) << (8 * k)
    return size


def _headers_hold(view: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether the checksums of the lengths at these places are right, bool [n]."""
    if not len(places):
        return np.zeros(0, dtype=np.bool_)
    heads = view[places[:, None] + np.arange(HEADER_SIZE_BYTES)].view("<u4")
    key = heads[:, 0].astype(np.uint64) | (heads[:, 1].astype(np.uint64) << np.uint64(32))
    lengths, which = np.unique(key, return_inverse=True)
    expected = masked(crc32c_rows(lengths.astype("<u8").view(np.uint8).reshape(-1, 8)))
    holds: NDArray[np.bool_] = expected[which] == heads[:, 2]
    return holds


def _remember(data: bytes, places: NDArray[np.int64], headers: dict[bytes, None]) -> None:
    for place in places[-4 * _MAX_HEADERS :].tolist():
        headers[data[place : place + HEADER_SIZE_BYTES]] = None


def _resume(data: bytes, at: int, headers: dict[bytes, None]) -> int:
    """Return where a length that was seen before comes next; the end where none does."""
    if not headers:
        return len(data)
    known = list(headers)[-_MAX_HEADERS:]
    found = re.compile(b"|".join(map(re.escape, known)), re.DOTALL).search(data, at)
    return len(data) if found is None else found.start()
