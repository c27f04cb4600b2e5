"""The steps of a rollback, each of which can be done twice, and taken back.

    move     a checkpoint or a file goes aside: one rename
    write    a file gets new content: the old one is kept first, the new one comes by one rename
    relink   a link leads elsewhere: one rename

What state a step is in is read from the disk, by names and hashes, never remembered. So a process
that is killed anywhere leaves a folder in which every step is undone, done, or between the two in
a way that both `carry_out` and `take_back` go on from. What is neither (somebody changed a file
meanwhile) is refused, and nothing is written over it.
"""

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from trimtab.durable import make_folder, move, sync_folder
from trimtab.errors import ActError
from trimtab.surgery.event_files import cut_file
from trimtab.surgery.wandb_copy import clean_copy

__all__ = [
    "Operation",
    "carry_out",
    "check_undo",
    "content_hash",
    "hash_of",
    "inside",
    "operation_from_json",
    "operation_to_json",
    "take_back",
]

_CHUNK_BYTES = 1 << 20

Role = Literal["checkpoint", "pointer", "archive", "log", "copy"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One step; paths are relative to the run, with `/`."""

    do: Literal["move", "write", "relink"]
    role: Role
    """What it is about: a checkpoint, what names the newest one, an archive of curves, a log that
    is cut, a copy made for a person."""
    path: str
    """What changes."""
    to: str = ""
    """Of a move: where it goes."""
    before: str = ""
    """SHA-256 of the content now, empty: nothing is there; of a link, where it leads."""
    after: str = ""
    """The same, afterwards."""
    how: Literal["", "text", "copy", "events", "wandb"] = ""
    """How new content is made: a text, a copy of `source`, or `source` without what comes after
    `step`."""
    source: str = ""
    text: str = ""
    step: int = 0
    size_bytes: int = 0
    """Disk space that it takes."""
    told: str = ""
    """What people read of it beside the paths."""


def operation_to_json(operation: Operation) -> dict[str, object]:
    """Return an operation as JSON holds it; empty fields are left out."""
    return {k: v for k, v in asdict(operation).items() if v not in ("", 0)}


def operation_from_json(data: object) -> Operation:
    """Return an operation as it was written.

    Raises:
        ActError: It is none.
    """
    try:
        assert isinstance(data, dict)
        operation = Operation(**data)
        assert operation.do in ("move", "write", "relink")
        for name in ("path", "to", "before", "after", "how", "source", "text"):
            assert isinstance(getattr(operation, name), str)
        assert isinstance(operation.step, int)
        for name in (operation.path, operation.to, operation.source):
            _parts(name or "x")
    except (AssertionError, TypeError, ActError) as error:
        raise ActError("holds a step that trimtab did not write") from error
    return operation


# -- where ----------------------------------------------------------------------------------


def _parts(name: str) -> tuple[str, ...]:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise ActError(f"{name!r} lies outside the run; nothing was done")
    return path.parts


def inside(root: Path, name: str) -> Path:
    """Return a path in the run, of which no folder on the way is a link.

    Raises:
        ActError: It leads out of the run, or through a link.
    """
    here = root
    parts = _parts(name)
    for part in parts[:-1]:
        here = here / part
        if here.is_symlink():
            raise ActError(
                f"{here}: is a link, and a rollback changes only what lies in the run itself; give"
                f" {os.path.realpath(here)} as the run"
            )
    return here / parts[-1]


# -- what stands there ----------------------------------------------------------------------


def hash_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty where nothing is there.

    Raises:
        ActError: It is no file, or a link.
        OSError: It cannot be read.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(status.st_mode):
        raise ActError(f"{path}: is no file any more; look at it, then try again")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_hash(pieces: Iterable[bytes]) -> str:
    """Return the SHA-256 of content in pieces."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _content(root: Path, operation: Operation) -> Iterator[bytes]:
    """Yield the new content of a file, made anew from what is there."""
    if operation.how == "text":
        yield operation.text.encode("utf-8", "surrogateescape")
        return
    source = inside(root, operation.source)
    if operation.how == "events":
        yield from cut_file(source, operation.step).pieces(source)
    elif operation.how == "wandb":
        yield clean_copy(source, operation.step).data
    else:
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk


# -- done -----------------------------------------------------------------------------------


def carry_out(root: Path, kept: Path, operation: Operation) -> None:
    """Do one step, or what is left of it.

    Args:
        root: The run.
        kept: Folder of this rollback, where the old content of files is kept.
        operation: The step.

    Raises:
        ActError: What stands there is neither what was planned for nor what it becomes.
        OSError: The disk refuses.
    """
    path = inside(root, operation.path)
    if operation.do == "move":
        _rename(path, inside(root, operation.to))
    elif operation.do == "relink":
        _relink(path, operation.before, operation.after)
    else:
        _write(root, kept, operation, path)


def _rename(source: Path, target: Path) -> None:
    has_source, has_target = os.path.lexists(source), os.path.lexists(target)
    if has_target and not has_source:
        return
    if has_target:
        raise ActError(f"{target}: is there already, beside {source}; look at both, then try again")
    if not has_source:
        raise ActError(f"{source}: is gone, and is not at {target} either; look for it")
    make_folder(target.parent)
    try:
        move(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        raise ActError(
            f"{source}: lies on another file system than {target.parent}, so it cannot be moved in"
            " one step; give its own folder as the run"
        ) from error


def _relink(path: Path, before: str, after: str) -> None:
    found = str(path.readlink()) if path.is_symlink() else ""
    if found == after:
        return
    if found != before:
        raise _changed(path)
    new = path.with_name(f"{path.name}.partial")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(after)
    new.replace(path)
    sync_folder(path.parent)


def _write(root: Path, kept: Path, operation: Operation, path: Path) -> None:
    now = hash_of(path)
    if now == operation.after:
        return
    if now != operation.before:
        raise _changed(path)
    if operation.before:
        _keep(path, kept / "before" / operation.path, operation.before)
    staged = kept / "new" / operation.path
    make_folder(staged.parent)
    with staged.open("wb") as file:
        written = _copy_into(file, _content(root, operation))
    if written != operation.after:
        raise _changed(inside(root, operation.source) if operation.source else path)
    likeness = path if operation.before else inside(root, operation.source or operation.path)
    if os.path.lexists(likeness):
        _like(staged, likeness, times=operation.how != "text")
    make_folder(path.parent)
    move(staged, path)
    _remove_empty(staged.parent, kept)


def _copy_into(file: BinaryIO, pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        file.write(piece)
        digest.update(piece)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _keep(path: Path, backup: Path, wanted: str) -> None:
    """Keep a file under a second name; a rename replaces it, so the bytes stay as they are."""
    if os.path.lexists(backup):
        if hash_of(backup) == wanted:
            return
        backup.unlink()  # a copy that was not finished
    make_folder(backup.parent)
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError:  # a file system without second names
        with path.open("rb") as old, backup.open("wb") as new:
            shutil.copyfileobj(old, new, _CHUNK_BYTES)
            new.flush()
            os.fsync(new.fileno())
        _like(backup, path, times=True)
    sync_folder(backup.parent)


def _like(path: Path, other: Path, *, times: bool) -> None:
    """Give a file the rights of another one, and its times."""
    with contextlib.suppress(OSError):
        status = other.stat()
        path.chmod(stat.S_IMODE(status.st_mode))
        if times:
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _changed(path: Path) -> ActError:
    return ActError(
        f"{path}: was changed by another program since the rollback was planned; nothing was"
        " written over it. Stop that program, put the file back, then try again"
    )


# -- taken back -----------------------------------------------------------------------------


def take_back(root: Path, kept: Path, operation: Operation) -> None:
    """Undo one step, as far as it was done.

    Raises:
        ActError: What stands there is neither what the step left nor what was there before it.
        OSError: The disk refuses.
    """
    path = inside(root, operation.path)
    if operation.do == "move":
        target = inside(root, operation.to)
        if os.path.lexists(path) and not os.path.lexists(target):
            return
        _rename(target, path)
    elif operation.do == "relink":
        _relink(path, operation.after, operation.before)
    else:
        _unwrite(root, kept, operation, path)


def _unwrite(root: Path, kept: Path, operation: Operation, path: Path) -> None:
    now = hash_of(path)
    if now == operation.before:
        _remove_empty(path.parent, root)
        return
    if now != operation.after:
        raise _changed(path)
    if operation.before:
        backup = kept / "before" / operation.path
        if hash_of(backup) != operation.before:
            raise ActError(f"{backup}: is not what was kept of {path}; look at both")
        move(backup, path)
    else:
        made = kept / "made" / operation.path  # it did not exist before: nothing is deleted
        make_folder(made.parent)
        move(path, made)
        _remove_empty(path.parent, root)


def _remove_empty(folder: Path, root: Path) -> None:
    """Remove the folders that were made for a file which is gone again."""
    with contextlib.suppress(OSError):
        while folder != root and folder.is_relative_to(root):
            folder.rmdir()
            sync_folder(folder.parent)
            folder = folder.parent


def check_undo(root: Path, kept: Path, operations: Iterable[Operation]) -> Iterator[str]:
    """Yield what stands against taking steps back; nothing is changed."""
    for operation in operations:
        path = inside(root, operation.path)
        if operation.do == "move":
            there = os.path.lexists(inside(root, operation.to))
            if os.path.lexists(path) and there:
                yield f"{path}: was made anew since; move it away first"
            elif not there and not os.path.lexists(path):
                yield f"{inside(root, operation.to)}: is gone; put it back first"
        elif operation.do == "write":
            now = hash_of(path)
            if now not in (operation.before, operation.after):
                yield f"{path}: was changed since; move it away first"
            elif now != operation.before and operation.before:
                backup = kept / "before" / operation.path
                if hash_of(backup) != operation.before:
                    yield f"{backup}: is not what was kept of {path}; put it back first"
        else:
            now = str(path.readlink()) if path.is_symlink() else ""
            if now not in (operation.before, operation.after):
                yield f"{path}: leads elsewhere since; set it back first"
