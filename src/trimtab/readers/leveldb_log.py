"""LevelDB's log framing, as W&B writes it: blocks of 32 KiB, records split over blocks.

A fragment is CRC-32 (zlib, of type and data), length and type, then data. A damaged fragment loses
its record; reading continues at the next block.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["LogDamage", "log_records"]

BLOCK_SIZE_BYTES = 1 << 15
_HEADER = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
_CRC_OF_TYPE = tuple(zlib.crc32(bytes([kind])) for kind in range(5))


@dataclass
class LogDamage:
    """What could not be read."""

    num_damaged: int = 0
    """Places where a checksum or the order of fragments is wrong."""
    torn: bool = False
    """Whether the last record was cut off."""


def log_records(data: bytes, start: int, damage: LogDamage) -> Iterator[bytes]:
    """Yield the records of a log whose first block begins at 0 and first fragment at `start`."""
    at, end = start, len(data)
    parts: list[bytes] = []
    while at + _HEADER.size <= end:
        room = BLOCK_SIZE_BYTES - at % BLOCK_SIZE_BYTES
        if room < _HEADER.size:
            at += room
            continue
        crc, size, kind = _HEADER.unpack_from(data, at)
        first = at + _HEADER.size
        fits = size <= room - _HEADER.size
        if fits and first + size > end:
            break
        if not fits or not FULL <= kind <= LAST or _crc(data, first, size, kind) != crc:
            damage.num_damaged += not _is_padding(data, at, room)
            parts.clear()
            at += room
            continue
        at = first + size
        if kind in (FULL, FIRST):
            damage.num_damaged += bool(parts)
            parts = [data[first:at]]
        elif parts:
            parts.append(data[first:at])
        if kind in (FULL, LAST) and parts:
            yield b"".join(parts)
            parts = []
    damage.torn = bool(parts) or at < end


def _crc(data: bytes, first: int, size: int, kind: int) -> int:
    return zlib.crc32(data[first : first + size], _CRC_OF_TYPE[kind])


def _is_padding(data: bytes, at: int, room: int) -> bool:
    return not data[at : at + room].strip(b"\0")
