"""Writes W&B's offline transaction log: protobuf records in LevelDB's log framing.

History rows as protobuf records in LevelDB's log framing.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Mapping

__all__ = ["encode_wandb_log"]

_BLOCK_SIZE_BYTES = 1 << 15
_HEADER_SIZE_BYTES = 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def encode_wandb_log(
    rows: Iterable[Mapping[str, object]], *, nested: bool = False, output_lines: int = 0
) -> bytes:
    """Return a log with one history record per row.

    Args:
        rows: Each with `_step` and whatever was logged.
        nested: Write keys as later versions of W&B do, as a path of one or more parts.
        output_lines: Records of printed output to put before each row.
    """
    log = bytearray(b":W&B" + struct.pack("<HB", 0xBEE1, 0))
    for number, row in enumerate(rows):
        for _ in range(output_lines):
            _append(log, _field(4, _field(2, b"some output\n" * 20)))
        items = b"".join(_item(key, value, nested=nested) for key, value in row.items())
        _append(log, b"\x08" + _varint(number) + _field(2, items))
    return bytes(log)


def _item(key: str, value: object, *, nested: bool) -> bytes:
    name = b"".join(_field(2, p.encode()) for p in key.split("/")) if nested else b""
    return _field(1, (name or _field(1, key.encode())) + _field(16, json.dumps(value).encode()))


def _append(log: bytearray, record: bytes) -> None:
    kind = 0
    at = 0
    while kind not in (_FULL, _LAST):
        room = _BLOCK_SIZE_BYTES - len(log) % _BLOCK_SIZE_BYTES
        if room < _HEADER_SIZE_BYTES:
            log.extend(bytes(room))
            continue
        part = record[at : at + room - _HEADER_SIZE_BYTES]
        at += len(part)
        is_last = at == len(record)
        kind = (_LAST if is_last else _MIDDLE) if kind else (_FULL if is_last else _FIRST)
        log.extend(struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
