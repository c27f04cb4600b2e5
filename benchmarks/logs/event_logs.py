"""Writes TensorBoard event files, about a million events a second, and damaged ones.

The bytes are those of TensorFlow's TFRecord writer: each record with both checksums. Values stand
as `simple_value`, or as a tensor with one element, as TF2 and tensorboardX write them.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.crc32c import crc32c, crc32c_rows, masked

__all__ = ["encode_event", "encode_scalars", "frame", "write_event_file"]

Form = Literal["simple", "tensor", "tensor-content"]
_CHUNK_ROWS = 1 << 16


def write_event_file(
    path: Path,
    columns: Mapping[str, NDArray[np.float64]],
    steps: NDArray[np.int64],
    *,
    first_wall_s: float = 1.7e9,
    form: Form = "simple",
) -> Path:
    """Write a whole event file: its version, then for each step one event per tag.

    Args:
        path: Where to.
        columns: float64 [n] by tag; stored as float32.
        steps: int64 [n], in any order.
        first_wall_s: Wall time of the first step; each further one is half a second later.
        form: How a value stands.
    """
    with path.open("wb") as file:
        file.write(frame(_double(1, first_wall_s) + _bytes(3, b"brain.Event:2")))
        for first in range(0, len(steps), _CHUNK_ROWS):
            part = slice(first, first + _CHUNK_ROWS)
            wall = first_wall_s + 0.5 * np.arange(first, first + len(steps[part]), dtype=np.float64)
            some = {tag: values[part] for tag, values in columns.items()}
            file.write(encode_scalars(some, steps[part], wall, form=form))
    return path


def encode_scalars(
    columns: Mapping[str, NDArray[np.float64]],
    steps: NDArray[np.int64],
    wall_s: NDArray[np.float64],
    *,
    form: Form = "simple",
) -> bytes:
    """Return the records of many steps, all tags of one step after one another."""
    widths = np.array([len(_varint(int(s))) for s in steps], dtype=np.int64)
    cuts = [0, *(np.flatnonzero(np.diff(widths)) + 1).tolist(), len(steps)]
    parts: list[bytes] = []
    for first, end in pairwise(cuts):
        part = slice(first, end)
        blocks = [
            _block(tag, steps[part], wall_s[part], values[part], form)
            for tag, values in columns.items()
        ]
        parts.append(np.concatenate(blocks, axis=1).tobytes() if blocks else b"")
    return b"".join(parts)


def encode_event(
    step: int, values: Sequence[tuple[str, float]], *, wall_s: float = 1.7e9, form: Form = "simple"
) -> bytes:
    """Return one record; several values share the event, as TF1's merged summaries do."""
    summary = b"".join(_bytes(1, _value(tag, value, form)) for tag, value in values)
    return frame(_double(1, wall_s) + b"\x10" + _varint(step) + _bytes(5, summary))


def frame(data: bytes) -> bytes:
    """Return data as a TFRecord."""
    head = struct.pack("<Q", len(data))
    return head + _checksum(head) + data + _checksum(data)


def _block(
    tag: str,
    steps: NDArray[np.int64],
    wall_s: NDArray[np.float64],
    values: NDArray[np.float64],
    form: Form,
) -> NDArray[np.uint8]:
    """Return uint8 [n, record size] for steps whose varints are of one width."""
    width = len(_varint(int(steps[0])))
    model = encode_event(int(steps[0]), [(tag, 0.0)], form=form)
    body = np.tile(np.frombuffer(model, np.uint8)[12:-4], (len(steps), 1))
    body[:, 1:9] = wall_s.astype("<f8").view(np.uint8).reshape(-1, 8)
    unsigned = steps.astype(np.int64).view(np.uint64)
    for k in range(width):
        low = ((unsigned >> np.uint64(7 * k)) & np.uint64(127)).astype(np.uint8)
        body[:, 10 + k] = low | (128 if k < width - 1 else 0)
    at = body.shape[1] - 4 - (0 if form == "simple" else _METADATA_SIZE_BYTES)
    body[:, at : at + 4] = values.astype("<f4").view(np.uint8).reshape(-1, 4)
    head = np.tile(np.frombuffer(model, np.uint8)[:12], (len(steps), 1))
    tail = masked(crc32c_rows(body)).astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.concatenate([head, body, tail], axis=1)


def _value(tag: str, value: float, form: Form) -> bytes:
    number = struct.pack("<f", value)
    if form == "simple":
        return _bytes(1, tag.encode()) + b"\x15" + number
    element = _bytes(5, number) if form == "tensor" else _bytes(4, number)
    tensor = b"\x08\x01" + _bytes(2, b"") + element
    return _bytes(1, tag.encode()) + _bytes(8, tensor) + _METADATA


def _double(number: int, value: float) -> bytes:
    return bytes([number << 3 | 1]) + struct.pack("<d", value)


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _checksum(data: bytes) -> bytes:
    return masked(np.array([crc32c(data)], dtype=np.uint32)).astype("<u4").tobytes()


_METADATA = _bytes(9, _bytes(1, _bytes(1, b"scalars")))
_METADATA_SIZE_BYTES = len(_METADATA)
