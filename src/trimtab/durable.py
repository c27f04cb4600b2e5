"""Files that outlive a power cut: written whole, and on disk before the call returns.

A rename is atomic, but neither the bytes nor the name are on disk until the file and its folder are
synced. Every file that a promise rests on (a checkpoint, a journal, a skip list, a verdict) is
written through this module.
"""

import contextlib
import errno
import os
from pathlib import Path

__all__ = ["make_folder", "move", "sync_file", "sync_folder", "write_whole"]

_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EISDIR)
"""What file systems answer that cannot sync a folder; there is nothing more to be done there."""


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole, in place of an older one; a reader sees the one or the other.

    Raises:
        OSError: It cannot be written; an older file stays as it was.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; their names are on disk.

    Raises:
        OSError: It cannot be made.
    """
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def move(source: Path, target: Path) -> None:
    """Rename a file or a folder within one file system; both folders are on disk.

    Raises:
        OSError: It cannot be moved; it stays where it was.
    """
    source.rename(target)
    sync_folder(target.parent)
    if source.parent != target.parent:
        sync_folder(source.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on disk.

    Raises:
        OSError: They cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on disk; where that is not possible, do nothing.

    Raises:
        OSError: The disk fails.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        if error.errno in _NO_SYNC:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)
