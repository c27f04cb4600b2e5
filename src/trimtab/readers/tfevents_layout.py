"""The byte layout of one TensorBoard event: which bytes are time, step, values, and which fixed.

Events of one tag differ only in those bytes, so the layout of one of them reads thousands at once.
Both forms of a scalar are known: `simple_value`, and a tensor with one element (TF2, tensorboardX,
`add_scalar(new_style=True)`).
"""

import struct
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.protobuf import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    WireError,
    WireField,
    fields,
    read_varint,
    signed,
)

__all__ = ["EventLayout", "Slot", "lay_out"]

_WALL, _STEP, _SUMMARY, _SESSION = 1, 2, 5, 7
_TAG, _SIMPLE, _TENSOR, _METADATA = 1, 2, 8, 9
_SESSION_START = 1
_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8"}
"""TensorFlow's DataType -> numpy's, where the elements may stand as raw bytes."""
_HALF, _BFLOAT16 = 19, 14
_ELEMENTS = {5: "<f4", 6: "<f8"}
_VARINT_ELEMENTS = {7: 3, 10: 9, 11: 10, 13: 0}
"""Field of TensorProto with varints -> DataType it goes with (0: half precision, by its bits)."""


@dataclass(frozen=True)
class Slot:
    """The place of one scalar in an event."""

    tag: str
    at: int
    kind: str
    """Numpy's name of its type; empty where `value` was read from a varint."""
    value: float = 0.0


@dataclass
class EventLayout:
    """The layout of an event of one length."""

    wall: int = -1
    """First byte of the wall time; -1: not there."""
    step_at: int = -1
    step_end: int = -1
    slots: list[Slot] = field(default_factory=list)
    starts_session: bool = False
    """Whether it says that a session (re)starts here."""
    loose: list[tuple[int, int, int]] = field(default_factory=list)
    """(start, end, bits that are fixed) of what may differ between events of this layout."""

    def mask(self, size: int) -> NDArray[np.uint8]:
        """Return the fixed bits of each byte, uint8 [size]."""
        mask = np.full(size, 0xFF, dtype=np.uint8)
        for start, end, bits in self.loose:
            mask[start:end] = bits
        return mask

    def step(self, data: bytes) -> int:
        """Return the step of one event."""
        return 0 if self.step_at < 0 else signed(read_varint(data, self.step_at, self.step_end)[0])

    def wall_time(self, data: bytes) -> float:
        """Return the wall time of one event."""
        return 0.0 if self.wall < 0 else float(struct.unpack_from("<d", data, self.wall)[0])


def lay_out(data: bytes) -> EventLayout:
    """Return the layout of an event.

    Raises:
        WireError: The bytes are no event.
    """
    layout = EventLayout()
    for part in fields(data):
        if part.number == _WALL and part.kind == FIXED64:
            layout.wall = part.start
            layout.loose.append((part.start, part.end, 0))
        elif part.number == _STEP and part.kind == VARINT:
            layout.step_at, layout.step_end = part.start, part.end
            layout.loose.append((part.start, part.end, 0x80))
        elif part.number == _SUMMARY and part.kind == BYTES:
            for value in fields(data, part.start, part.end):
                if value.number == 1 and value.kind == BYTES:
                    _lay_out_value(data, value, layout)
        elif part.number == _SESSION and part.kind == BYTES:
            status = fields(data, part.start, part.end)
            layout.starts_session = any(s.number == 1 and s.value == _SESSION_START for s in status)
        elif part.kind == BYTES:
            layout.loose.append((part.start, part.end, 0))
    return layout


def _lay_out_value(data: bytes, whole: WireField, layout: EventLayout) -> None:
    parts = {p.number: p for p in fields(data, whole.start, whole.end)}
    tag_part = parts.get(_TAG)
    if tag_part is None or tag_part.kind != BYTES:
        return
    tag = data[tag_part.start : tag_part.end].decode("utf-8", errors="replace")
    slot: Slot | None = None
    simple, tensor = parts.get(_SIMPLE), parts.get(_TENSOR)
    if simple is not None and simple.kind == FIXED32:
        slot = Slot(tag, simple.start, "<f4")
    elif tensor is not None and tensor.kind == BYTES and _is_scalar_plugin(data, parts):
        slot = _tensor_slot(data, tensor, tag)
    if slot is not None:
        layout.slots.append(slot)
        if slot.kind:
            layout.loose.append((slot.at, slot.at + np.dtype(slot.kind).itemsize, 0))
        return
    for number, part in parts.items():
        if number > _SIMPLE and part.kind == BYTES:
            layout.loose.append((part.start, part.end, 0))


def _is_scalar_plugin(data: bytes, parts: dict[int, WireField]) -> bool:
    """Whether a tensor is for the scalars dashboard, or says nothing of where it is for."""
    metadata = parts.get(_METADATA)
    if metadata is None or metadata.kind != BYTES:
        return True
    for plugin in fields(data, metadata.start, metadata.end):
        if plugin.number == 1 and plugin.kind == BYTES:
            for name in fields(data, plugin.start, plugin.end):
                if name.number == 1 and name.kind == BYTES:
                    return data[name.start : name.end] == b"scalars"
    return True


def _tensor_slot(data: bytes, tensor: WireField, tag: str) -> Slot | None:
    """Return the slot of a tensor with one number; None for any other."""
    dtype = 0
    for part in fields(data, tensor.start, tensor.end):
        size = part.end - part.start
        if part.number == 1 and part.kind == VARINT:
            dtype = part.value
        elif part.number == 4 and part.kind == BYTES and dtype in _DTYPES and size:
            kind = _DTYPES[dtype]
            return Slot(tag, part.start, kind) if size == np.dtype(kind).itemsize else None
        elif part.number in _ELEMENTS and part.kind in (BYTES, FIXED32, FIXED64):
            kind = _ELEMENTS[part.number]
            return Slot(tag, part.start, kind) if size == np.dtype(kind).itemsize else None
        elif part.number in _VARINT_ELEMENTS and part.kind in (BYTES, VARINT):
            return _varint_slot(data, part, tag, dtype)
    return None


def _varint_slot(data: bytes, part: WireField, tag: str, dtype: int) -> Slot | None:
    bits, after = read_varint(data, part.start, part.end)
    if after != part.end:
        return None
    value = float(signed(bits))
    if dtype == _HALF:
        value = float(np.array([bits & 0xFFFF], np.uint16).view(np.float16)[0])
    elif dtype == _BFLOAT16:
        value = float(np.array([(bits & 0xFFFF) << 16], np.uint32).view(np.float32)[0])
    return Slot(tag, part.start, "", value)


def scalars_of(data: bytes, layout: EventLayout) -> list[tuple[str, float]]:
    """Return (tag, value) of all scalars in one event."""
    found: list[tuple[str, float]] = []
    for slot in layout.slots:
        value = slot.value
        if slot.kind:
            size = np.dtype(slot.kind).itemsize
            if slot.at + size > len(data):
                raise WireError(f"value runs over the end at byte {slot.at}")
            value = float(np.frombuffer(data, slot.kind, 1, slot.at)[0])
        found.append((slot.tag, value))
    return found
