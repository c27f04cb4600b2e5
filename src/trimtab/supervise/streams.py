"""The output of a command: handed on byte for byte, its end kept, a copy written."""

import os
import threading
import time
from collections import deque
from pathlib import Path

__all__ = ["Output", "Pump"]

_CHUNK_BYTES = 1 << 16
_TAIL_BYTES = 1 << 20
"""Most output kept in memory for the classifier of crashes."""
_TOGETHER_S = 0.5
"""What comes within this time of the end of the output came at once, for all we know. Ours."""


class Output:
    """What a command printed last, of both streams in the order of arrival; for several threads."""

    def __init__(self, copy: Path | None, *, size_bytes: int) -> None:
        """Keep where a copy is written.

        Args:
            copy: File that the output is appended to; None: none. A file that cannot be written
                is given up, and `trouble` says so: the command goes on.
            size_bytes: Size at which the copy is moved to `NAME.1`, in place of the one before.
        """
        self.path, self._size_bytes = copy, size_bytes
        self.trouble = ""
        self.heard = 0.0
        """When the last bytes came, by the monotonic clock."""
        self.num_bytes = 0
        self._chunks: deque[tuple[float, int, bytes]] = deque()
        """When they came, on which stream, and the bytes."""
        self._kept = 0
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._written = 0
        self._open()

    def _open(self) -> None:
        if self.path is None:
            return
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            self._fd = os.open(self.path, flags, 0o644)
            self._written = os.fstat(self._fd).st_size
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.trouble = (
            f"{self.path}: the copy of the output cannot be written ({error.strerror});"
            " it is judged no further, the command goes on"
        )
        self._close()

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def add(self, data: bytes, stream: int = 1) -> None:
        """Take bytes that the command printed on a stream: 1 stdout, 2 stderr."""
        with self._lock:
            self.heard = time.monotonic()
            self.num_bytes += len(data)
            self._chunks.append((self.heard, stream, data))
            self._kept += len(data)
            while self._kept - len(self._chunks[0][2]) >= _TAIL_BYTES:
                self._kept -= len(self._chunks.popleft()[2])
            self._copy(data)

    def _copy(self, data: bytes) -> None:
        if self._fd is None or self.path is None:
            return
        try:
            if self._written >= self._size_bytes:
                self._close()
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self._open()
            rest = memoryview(data)
            while rest and self._fd is not None:
                num_written = os.write(self._fd, rest)
                rest = rest[num_written:]
            self._written += len(data)
        except OSError as error:
            self._give_up(error)

    def begin(self) -> None:
        """Forget the end of the attempt before; a line that it left open is closed in the copy."""
        with self._lock:
            if self._chunks and not self._chunks[-1][2].endswith(b"\n"):
                self._copy(b"\n")
            self._chunks.clear()
            self._kept = 0

    def tail(self, size_bytes: int = _TAIL_BYTES) -> bytes:
        """Return the last bytes of this attempt, at most that many."""
        with self._lock:
            parts: list[bytes] = []
            size = 0
            for _, _, chunk in reversed(self._chunks):
                parts.append(chunk)
                size += len(chunk)
                if size >= size_bytes:
                    break
        return b"".join(reversed(parts))[-size_bytes:]

    def lines(self) -> list[str]:
        """Return the last lines of this attempt, each whole, in the order in which they came.

        Two pipes have no common order: of what came in the last moment, stderr is the end.
        """
        with self._lock:
            chunks = list(self._chunks)
        end = chunks[-1][0] if chunks else 0.0
        found: list[tuple[float, str]] = []
        for stream in sorted({stream for _, stream, _ in chunks}):
            begun = b""
            for at, of, data in chunks:
                if of == stream:
                    *whole, begun = (begun + data).split(b"\n")
                    place = min(at, end - _TOGETHER_S)
                    found += [(place, line.decode("utf-8", "replace")) for line in whole]
            if begun:
                found.append((end - _TOGETHER_S, begun.decode("utf-8", "replace")))
        found.sort(key=lambda line: line[0])  # stable: stdout before stderr in the last moment
        return [part for _, line in found for part in (line.splitlines() or [""])]

    def close(self) -> None:
        """Close the copy."""
        with self._lock:
            self._close()


class Pump(threading.Thread):
    """Copies one stream of the command to one of ours as it comes, without waiting for lines."""

    def __init__(self, source: int, target: int, output: Output, stream: int = 1) -> None:
        """Keep the descriptors; `source` is closed at its end; `stream` is 2 for stderr."""
        super().__init__(daemon=True)
        self._source, self._target, self._output = source, target, output
        self._stream = stream
        self._broken = False
        self.waits_for_reader = False
        """Whether bytes are being handed on, which a slow reader holds up."""

    def run(self) -> None:
        """Copy until every writer has closed the stream."""
        try:
            while data := os.read(self._source, _CHUNK_BYTES):
                # first: what a slow reader holds up is judged all the same
                self._output.add(data, self._stream)
                self.waits_for_reader = True
                self._pass_on(data)
                self.waits_for_reader = False
        except OSError:  # a pseudo-terminal or a process that is gone
            pass
        finally:
            os.close(self._source)

    def _pass_on(self, data: bytes) -> None:
        """Write all of it; once our own reader is gone, the command prints for the copy only."""
        rest = memoryview(data)
        while rest and not self._broken:
            try:
                rest = rest[os.write(self._target, rest) :]
            except BlockingIOError:
                time.sleep(0.001)
            except OSError:
                self._broken = True
