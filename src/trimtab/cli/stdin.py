"""A log from standard input, kept in a temporary file: the readers read it more than once."""

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trimtab.errors import ConfigError

__all__ = ["STDIN", "GrowingStdin", "kept_stdin"]

STDIN = "-"
MAX_SIZE_BYTES = 1 << 32
"""A pipe that never ends must not fill the disk; 4 GiB is more than any log that we have met. Ours.
"""
_CHUNK_SIZE_BYTES = 1 << 20


@contextmanager
def kept_stdin(*, limit_bytes: int = MAX_SIZE_BYTES) -> Iterator[Path]:
    """Yield a file called `stdin` with all of standard input; it is gone afterwards.

    Raises:
        ConfigError: It is a terminal, is closed, or holds more than the limit.
    """
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        raise ConfigError("-: nothing is piped in; give a path, or `... | trimtab inspect -`")
    with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as file:
            _copy(sys.stdin.buffer, file, limit_bytes)
        yield path


class GrowingStdin:
    """A file that standard input is written to as it comes, for who follows a log."""

    def __init__(self, folder: Path, *, limit_bytes: int = MAX_SIZE_BYTES) -> None:
        """Begin to copy, in a thread that ends with the input or the process.

        Raises:
            ConfigError: It is a terminal, or closed.
        """
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise ConfigError("-: nothing is piped in; give a path, or `... | trimtab watch -`")
        self.path = folder / "stdin"
        self.path.touch()
        self._ended = threading.Event()
        self._seen_to_end = False
        threading.Thread(target=self._follow, args=(limit_bytes,), daemon=True).start()

    def _follow(self, limit_bytes: int) -> None:
        try:
            with self.path.open("wb", buffering=0) as file:
                _copy(sys.stdin.buffer, file, limit_bytes)
        except (ConfigError, OSError, ValueError) as error:  # said once; what came is judged
            print(f"trimtab: {error}", file=sys.stderr)
        finally:
            self._ended.set()

    def sleep(self, seconds: float) -> None:
        """Wait, no longer than until the input ends.

        Raises:
            EOFError: It had ended when this was called last: all of it has been looked at.
        """
        if self._seen_to_end:
            raise EOFError
        self._seen_to_end = self._ended.wait(seconds)


def _copy(source: BinaryIO, file: BinaryIO, limit_bytes: int) -> None:
    left = limit_bytes
    # What there is, at once: a log that grows comes line by line.
    read = getattr(source, "read1", source.read)
    while chunk := read(_CHUNK_SIZE_BYTES):
        left -= len(chunk)
        if left < 0:
            raise ConfigError(
                f"-: more than {limit_bytes / 2**30:.3g} GiB on standard input; save it and give"
                " its path"
            )
        file.write(chunk)
