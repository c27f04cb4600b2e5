"""Writes scalars as a TensorBoard event file, without TensorBoard.

One event for each step holds all of its values, so that whole columns are laid out at once: events
of equal length are rows of one array, and their checksums are computed column by column.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.crc32c import crc32c_rows, masked
from trimtab.record import Column

__all__ = ["event_bytes", "write_event_file"]

_VERSION = b"brain.Event:2"


def write_event_file(
    path: Path,
    step: NDArray[np.int64],
    wall_s: NDArray[np.float64],
    columns: Mapping[str, Column],
) -> None:
    """Write a file that TensorBoard shows.

    Args:
        path: The file; its name must hold `tfevents`.
        step: int64 [n], rising, not negative.
        wall_s: float64 [n], seconds since 1970.
        columns: By tag, each [n]; absent values are left out, NaN and Inf are written.
    """
    path.write_bytes(event_bytes(step, wall_s, columns))


def event_bytes(
    step: NDArray[np.int64], wall_s: NDArray[np.float64], columns: Mapping[str, Column]
) -> bytes:
    """Return the bytes of such a file."""
    first = float(wall_s[0]) if len(wall_s) else 0.0
    head = b"\x09" + struct.pack("<d", first) + b"\x1a" + bytes([len(_VERSION)]) + _VERSION
    parts: list[bytes] = [_framed(np.frombuffer(head, np.uint8)[None])[0].tobytes()]
    names = list(columns)
    present = np.column_stack([columns[n].present for n in names]) if names else np.zeros((0, 0))
    rows = np.flatnonzero(present.any(axis=1)) if names else np.zeros(0, dtype=np.intp)
    if not len(rows):
        return parts[0]
    num_bytes = np.maximum(1, -(-_bit_length(step[rows]) // 7))
    kinds = np.column_stack([num_bytes, present[rows]])
    shapes, which = np.unique(kinds, axis=0, return_inverse=True)
    found: list[bytes] = [b""] * len(rows)
    for index, shape in enumerate(shapes):
        at = np.flatnonzero(which.reshape(-1) == index)
        tags = [n for n, there in zip(names, shape[1:], strict=True) if there]
        own = rows[at]
        values = [columns[n].values[own].astype("<f4") for n in tags]
        framed = _framed(_rows(step[own], wall_s[own], int(shape[0]), tags, values))
        for place, row in zip(at.tolist(), framed, strict=True):
            found[place] = row.tobytes()
    return parts[0] + b"".join(found)


def _bit_length(values: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array([int(v).bit_length() for v in values.tolist()], dtype=np.int64)


def _rows(
    step: NDArray[np.int64],
    wall_s: NDArray[np.float64],
    num_bytes: int,
    tags: list[str],
    values: list[NDArray[np.float32]],
) -> NDArray[np.uint8]:
    """Return the events of one shape, uint8 [n, length]."""
    n = len(step)
    pieces: list[NDArray[np.uint8]] = [_constant(b"\x09", n), _bytes_of(wall_s.astype("<f8"), 8)]
    varint = np.empty((n, num_bytes), dtype=np.uint8)
    rest = step.astype(np.uint64)
    for k in range(num_bytes):
        varint[:, k] = (rest & np.uint64(0x7F)).astype(np.uint8) | (
            0x80 if k + 1 < num_bytes else 0
        )
        rest >>= np.uint64(7)
    pieces += [_constant(b"\x10", n), varint]
    summary: list[NDArray[np.uint8]] = []
    size = 0
    for tag, column in zip(tags, values, strict=True):
        name = tag.encode()
        inner = b"\x0a" + _varint(len(name)) + name + b"\x15"
        head = b"\x0a" + _varint(len(inner) + 4) + inner
        summary += [_constant(head, n), _bytes_of(column, 4)]
        size += len(head) + 4
    return np.concatenate([*pieces, _constant(b"\x2a" + _varint(size), n), *summary], axis=1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _constant(text: bytes, n: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.frombuffer(text, np.uint8), (n, len(text)))


def _bytes_of(values: NDArray[np.generic], width: int) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _framed(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return records with their length and checksums, as TFRecord files have them."""
    n, length = rows.shape
    size = np.broadcast_to(np.frombuffer(struct.pack("<Q", length), np.uint8), (n, 8))
    size_crc = masked(crc32c_rows(np.ascontiguousarray(size[:1])))
    data_crc = masked(crc32c_rows(np.ascontiguousarray(rows)))
    return np.concatenate(
        [
            size,
            np.broadcast_to(_bytes_of(size_crc.astype("<u4"), 4), (n, 4)),
            rows,
            _bytes_of(data_crc.astype("<u4"), 4),
        ],
        axis=1,
    )
