"""`journal.head`: the last decision of the journal, in a second file.

A file cannot tell that its own last line is gone. Two lines of fixed length, one of the guard and
one of the commands that append beside it, name the writer and the number of its last decision;
each is written in place, within one sector, after the journal's line is on disk. Where the head
names a line that the journal lacks, that line is lost; a head that is behind is no harm.
"""

import contextlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from trimtab.durable import sync_folder
from trimtab.errors import ChronicleError
from trimtab.readers.journal_seal import checksum

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["JournalHead", "command_lock", "head_path", "read_head"]

_ROLES = ("guard", "commands")
_SLOT = re.compile(rb"(guard|commands) +([0-9a-f]{8}) (\d{12}) ([0-9a-f]{8})\n")
_SLOT_BYTES = 40
_WAIT_S = 10.0
"""Longest wait of one command for another."""


def head_path(journal: Path) -> Path:
    """Return where the head of a journal lies."""
    return journal.with_name("journal.head")


class JournalHead:
    """Keeps one line of the head up to date."""

    def __init__(self, journal: Path, *, by_command: bool) -> None:
        """Open nothing yet: a journal without a decision has no head."""
        self._path = head_path(journal)
        self._role = _ROLES.index("commands" if by_command else "guard")
        self._fd: int | None = None

    def write(self, writer: str, seq: int) -> None:
        """Name the last decision; where that fails, the one before stands there, which is true."""
        with contextlib.suppress(OSError):
            if self._fd is None:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
                sync_folder(self._path.parent)
            text = f"{_ROLES[self._role]:<8} {writer} {seq:012d}"
            line = f"{text} {checksum(text.encode())}\n".encode()
            os.pwrite(self._fd, line, self._role * _SLOT_BYTES)
            os.fdatasync(self._fd) if hasattr(os, "fdatasync") else os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_head(journal: Path) -> tuple[tuple[tuple[str, int], ...], str]:
    """Return the writer and number of the last decisions, and what the head cannot tell, if so."""
    path = head_path(journal)
    try:
        raw = path.read_bytes()[: len(_ROLES) * _SLOT_BYTES]
    except FileNotFoundError:
        return (), f"{path}: is missing; whether the journal's last lines are there is not known"
    except OSError as error:
        return (), (
            f"{path}: cannot be read ({error.strerror}); whether the journal's last lines are"
            " there is not known"
        )
    found: list[tuple[str, int]] = []
    unclear = ""
    for first in range(0, len(raw), _SLOT_BYTES):
        slot = raw[first : first + _SLOT_BYTES]
        match = _SLOT.fullmatch(slot)
        if match is not None and checksum(slot[:-10]) == match[4].decode():
            found.append((match[2].decode(), int(match[3])))
        elif slot.strip(b"\0"):
            unclear = f"{path}: is damaged; whether the journal's last lines are there is not known"
    return tuple(found), unclear


@contextlib.contextmanager
def command_lock(journal: Path) -> Iterator[None]:
    """Let one command at a time append to a journal; no guard waits for it.

    Raises:
        ChronicleError: Another command has held it for long.
    """
    try:
        descriptor = os.open(head_path(journal), os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ChronicleError(
            f"{head_path(journal)}: cannot be opened for writing ({error.strerror}); free space or"
            " make the run directory writable"
        ) from error
    try:
        _wait_for_lock(descriptor, head_path(journal))
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, path: Path) -> None:
    until = time.monotonic() + _WAIT_S
    while fcntl is not None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                raise ChronicleError(
                    f"{path}: another command has held the journal for {_WAIT_S:g} s; try again"
                ) from error
            time.sleep(0.02)
        except OSError:
            return  # no locks on this file system: one write appends whole lines
        else:
            return
