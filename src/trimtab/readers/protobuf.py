"""The protobuf wire format, as far as logs need it: the fields of a message with their offsets.

TensorBoard's events and W&B's records are both built of it; what a field means is for them to say.
"""

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["WireError", "WireField", "fields", "read_varint", "signed"]

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_SIZES = {FIXED64: 8, FIXED32: 4}


class WireError(ValueError):
    """Bytes that are no protobuf message; only inside `readers/`."""


class WireField(NamedTuple):
    """One field of a message."""

    number: int
    kind: int
    """Wire type: 0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes."""
    start: int
    """Where its payload begins; for a varint, where the varint does."""
    end: int
    value: int
    """The value of a varint; 0 for other kinds."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a varint and the place after it.

    Raises:
        WireError: It runs over the end, or is longer than ten bytes.
    """
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise WireError(f"no whole varint before byte {end}")


def signed(value: int) -> int:
    """Return a varint's 64 bits as the signed number that they stand for."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, start: int = 0, end: int | None = None) -> Iterator[WireField]:
    """Yield the fields of the message in data[start:end].

    Raises:
        WireError: The bytes are no message.
    """
    at = start
    stop = len(data) if end is None else end
    while at < stop:
        key, at = read_varint(data, at, stop)
        number, kind = key >> 3, key & 7
        value = 0
        first = at
        if kind == VARINT:
            value, at = read_varint(data, at, stop)
        elif kind == BYTES:
            size, first = read_varint(data, at, stop)
            at = first + size
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            raise WireError(f"wire type {kind} at byte {first}")
        if at > stop or number == 0:
            raise WireError(f"field {number} runs over its end at byte {first}")
        yield WireField(number, kind, first, at, value)
