"""A log from standard input, kept in a temporary file: the readers read it more than once."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from trimtab.errors import ConfigError

__all__ = ["STDIN", "kept_stdin"]

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


def _copy(source: BinaryIO, file: BinaryIO, limit_bytes: int) -> None:
    left = limit_bytes
    while chunk := source.read(_CHUNK_SIZE_BYTES):
        left -= len(chunk)
        if left < 0:
            raise ConfigError(
                f"-: more than {limit_bytes / 2**30:.3g} GiB on standard input; save it and give"
                " its path"
            )
        file.write(chunk)
