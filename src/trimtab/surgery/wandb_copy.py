"""A clean copy of a W&B run up to a step: the run's own log without what came after it.

`run-ID.wandb` is LevelDB's framing around protobuf records. The copy has the same records in the
same order, but for those from the first history row after the step on, until a row at or before it
comes again. So it is what W&B would have written had the process stopped there, and it can be
sent with `wandb sync`.
"""

import mmap
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.leveldb_log import LogDamage, log_records
from trimtab.readers.numbers import BadNumberError, parse_number
from trimtab.readers.protobuf import WireError, fields
from trimtab.readers.wandb import TRAINER_STEPS, history_row
from trimtab.vocabulary import normalise

__all__ = ["CleanCopy", "clean_copy", "frame_records"]

_HEADER_BYTES = 7
_BLOCK_BYTES = 1 << 15
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_HISTORY = 2
_MAX_BYTES = 1 << 31
"""A log beyond this is not copied; W&B's logs of long runs are some hundred megabytes."""


@dataclass(frozen=True, kw_only=True)
class CleanCopy:
    """The log up to a step."""

    data: bytes
    num_rows: int
    """History rows in it."""
    num_removed: int
    """History rows left out."""


def clean_copy(path: Path, step: int) -> CleanCopy:
    """Return a W&B log without what was logged after `step`.

    The step of a row is the trainer's own where it logs one, else W&B's.

    Raises:
        ReadError: It cannot be read, or is too large.
    """
    try:
        status = path.stat()
        if status.st_size > _MAX_BYTES:
            raise ReadError(f"{path}: has {status.st_size} bytes, more than can be copied clean")
        return _copy_once(path, step, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror}); check its rights") from error


@lru_cache(maxsize=2)
def _copy_once(path: Path, step: int, _mtime_ns: int, size: int) -> CleanCopy:
    if size < _HEADER_BYTES:
        return CleanCopy(data=path.read_bytes(), num_rows=0, num_removed=0)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        kept: list[bytes] = []
        num_rows = num_removed = 0
        past = False
        records = log_records(data, _HEADER_BYTES, LogDamage())  # type: ignore[arg-type]
        for record in records:
            at = _row_step(record)
            if at is not None:
                past = at > step
                num_rows += not past
                num_removed += past
            if not past:
                kept.append(record)
        header = data[:_HEADER_BYTES]
    return CleanCopy(data=frame_records(header, kept), num_rows=num_rows, num_removed=num_removed)


def _row_step(record: bytes) -> float | None:
    """Return the step of a history row; None for any other record."""
    try:
        if not any(part.number == _HISTORY for part in fields(record)):
            return None
        row = history_row(record)
    except WireError:
        return None
    found: dict[str, float] = {}
    for key, value in row:
        name = "_step" if key == "_step" else normalise(key)
        if name == "_step" or name in TRAINER_STEPS:
            try:
                number = parse_number(value)
            except (BadNumberError, OverflowError):
                continue
            if number is not None:
                found[name] = number
    trainer = [number for name, number in found.items() if name != "_step"]
    return trainer[0] if trainer else found.get("_step")


def frame_records(header: bytes, records: Sequence[bytes]) -> bytes:
    """Return records in LevelDB's framing: blocks of 32 KiB, each fragment with its CRC."""
    log = bytearray(header)
    for record in records:
        at, kind = 0, 0
        while kind not in (_FULL, _LAST):
            room = _BLOCK_BYTES - len(log) % _BLOCK_BYTES
            if room < _HEADER_BYTES:
                log.extend(bytes(room))
                continue
            part = record[at : at + room - _HEADER_BYTES]
            at += len(part)
            ends = at == len(record)
            kind = (_LAST if kind else _FULL) if ends else (_MIDDLE if kind else _FIRST)
            log += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind)
            log += part
    return bytes(log)
