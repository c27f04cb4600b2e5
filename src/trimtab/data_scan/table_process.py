"""The reading process of tables, as the scan sees it: started once, used again, limited."""

import atexit
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError

__all__ = ["TableBlock", "TableLimits", "limits_of", "read_blocks"]

_START_S = 120.0
"""A cold start from a slow disk takes a while; it says nothing of a file."""
_END_S = 2.0
LEAST_WAIT_S = 8.0
_BYTES_PER_S = 4e6
LEAST_MEMORY_BYTES = 768 << 20
"""Of which libraries take some 300 MB."""
_MEMORY_PER_BYTE = 32
"""Text packs to a tenth; a record batch or a row group is unpacked whole."""
_MOST_MEMORY_BYTES = 8 << 30
_MAX_HEAD_BYTES = 1 << 24
_PIECE_BYTES = 1 << 20

TableBlock = tuple[NDArray[np.int64], NDArray[np.uint8], int, tuple[str, ...], int]
"""Starts int64 [rows + 1], bytes uint8, number of nulls, origins, cursor behind the block."""


class TableLimits:
    """What the reading of one file may take; both rise with its size."""

    def __init__(self, size_bytes: int) -> None:
        """Set the limits for a file of this size."""
        self.wait_s = LEAST_WAIT_S + size_bytes / _BYTES_PER_S
        """Seconds that the scan waits for the reading, in all."""
        self.memory_bytes = min(
            LEAST_MEMORY_BYTES + _MEMORY_PER_BYTE * size_bytes, _MOST_MEMORY_BYTES
        )
        """Memory that the reading process may allocate."""


def limits_of(path: Path) -> TableLimits:
    """Return the limits for a file."""
    return TableLimits(path.stat().st_size)


class _DiedError(Exception):
    """The reading process is gone."""


class _LateError(Exception):
    """The reading process took too long."""


class TableReader:
    """One process; reads one file after the other."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        package = str(Path(__file__).parents[2])
        paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            # -P: no module is taken from the working directory, which may hold the data.
            [sys.executable, "-P", "-m", "trimtab.data_scan.table_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is for the scan, which ends this with it
        )
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        self._in: IO[bytes] = stdin
        self.out = stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.out, selectors.EVENT_READ)
        self.ready = bytearray()
        self._left_s = _START_S
        self.head()

    def ask(self, request: dict[str, object], wait_s: float) -> None:
        self._left_s = wait_s
        try:
            self._in.write(json.dumps(request).encode() + b"\n")
            self._in.flush()
        except OSError as error:
            raise _DiedError from error

    def head(self) -> dict[str, Any]:
        """Return the head of the next frame."""
        at = self.ready.find(b"\n")
        while at < 0:
            if len(self.ready) > _MAX_HEAD_BYTES:
                raise _DiedError
            before = len(self.ready)
            self.ready += self._some(_PIECE_BYTES)
            at = self.ready.find(b"\n", before)
        line = bytes(self.ready[:at])
        del self.ready[: at + 1]
        head = json.loads(line)
        return head if isinstance(head, dict) else {}

    def body(self, size: int) -> bytes:
        """Return the next bytes of a frame."""
        parts = [bytes(self.ready[:size])]
        del self.ready[:size]
        size -= len(parts[0])
        while size:
            parts.append(self._some(min(size, _PIECE_BYTES)))
            size -= len(parts[-1])
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        # Only the waiting counts: what the scan itself does meanwhile is no fault of the file.
        began = time.monotonic()
        if not self._selector.select(max(self._left_s, 0.0)):
            raise _LateError
        part = os.read(self.out, size)
        self._left_s -= time.monotonic() - began
        if not part:
            raise _DiedError
        return part

    def end(self) -> int:
        """Let the process end, which has no more input; return its status, a signal negative."""
        with contextlib.suppress(OSError):
            self._in.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        return self.kill()

    def kill(self) -> int:
        """End the process, whatever it is at; return its status, a signal negative."""
        self.process.kill()  # nothing happens where it has ended by itself
        self.process.wait()
        with contextlib.suppress(OSError):
            self._in.close()
        self._selector.close()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return self.process.returncode


IDLE_READERS: list[TableReader] = []
_lock = threading.Lock()


def _taken() -> TableReader:
    """Return a process that waits for a file, or a new one."""
    with _lock:
        # After a fork the pipes of the parent's process are not ours to talk through.
        for reader in [r for r in IDLE_READERS if r.owner == os.getpid()]:
            IDLE_READERS.remove(reader)
            return reader
    return TableReader()


@atexit.register
def _end_all() -> None:
    for reader in [r for r in IDLE_READERS if r.owner == os.getpid()]:
        IDLE_READERS.remove(reader)
        reader.end()


def read_blocks(path: Path, field: str | None, by: str | None, cursor: int) -> Iterator[TableBlock]:
    """Yield the blocks of a table's text from a cursor on; a process of its own reads the file.

    Raises:
        ReadError: The file is damaged, has no column of text, ends the process that reads it, or
            takes more time or memory than `limits_of` gives.
    """
    limits = limits_of(path)
    request: dict[str, object] = {
        "path": str(path.absolute()),
        "field": field,
        "by": by,
        "cursor": cursor,
        "memory_bytes": limits.memory_bytes,
    }
    reader = _taken()
    whole = False
    try:
        try:
            reader.ask(request, limits.wait_s)
        except _DiedError:  # it ended while it waited; that was no fault of this file
            reader.end()
            reader = _taken()
            reader.ask(request, limits.wait_s)
        while "end" not in (head := reader.head()):
            if "cursor" not in head:
                whole = True
                raise _refused(path, head, limits)
            yield _block(reader, head)
        whole = True
    except _DiedError as error:
        raise ReadError(f"{path}: {_death(reader.end())}") from error
    except _LateError as error:
        raise ReadError(
            f"{path}: pyarrow read it for more than {limits.wait_s:.0f} s without an end; it is"
            " damaged, or lies on a disk that does not answer; write it again, or leave it out"
        ) from error
    finally:
        if whole:
            with _lock:
                IDLE_READERS.append(reader)
        else:
            reader.kill()


def _block(reader: TableReader, head: dict[str, Any]) -> TableBlock:
    """Return a block, its figures compared with each other."""
    count, size = int(head["count"]), int(head["bytes"])
    starts = np.frombuffer(reader.body(8 * (count + 1)), np.int64)
    data = np.frombuffer(reader.body(size), np.uint8)
    if starts[0] != 0 or starts[-1] != size or (np.diff(starts) < 0).any():
        raise _DiedError  # a process whose memory was overwritten may still answer
    return starts, data, int(head["null"]), tuple(map(str, head["origins"])), int(head["cursor"])


def _refused(path: Path, head: dict[str, Any], limits: TableLimits) -> ReadError:
    if "no_column" in head:
        return ReadError(f"{path}: {head['no_column']}")
    if "memory" in head:
        return ReadError(
            f"{path}: reading it takes more than {limits.memory_bytes >> 20:,} MiB of memory, too"
            " much for its size; if it is meant to be so, write it with smaller record batches or"
            " row groups"
        )
    said = " ".join(str(head.get("error")).split())[:200]
    return ReadError(f"{path}: cannot be read as a table ({said}); check the file")


def _death(status: int) -> str:
    """Return what became of the process that read a file."""
    how = f"exit status {status}"
    if status < 0:
        name = ""
        with contextlib.suppress(ValueError):
            name = f", {signal.Signals(-status).name}"
        how = f"signal {-status}{name}"
    return f"pyarrow died reading it ({how}); the file is damaged; write it again, or leave it out"
