"""Checkpoints on disk: what is whole, what is healthy, and what comes first after a crash.

A checkpoint is a folder `step-00001200/`. It is written under a name that ends in `.partial`,
its `manifest.json` (every file with size and SHA-256) is written last, and only then is the folder
renamed: a process killed at any byte leaves either the whole checkpoint or none. Files, folders and
names are on disk before the call returns.

A folder is whole, damaged (it does not match its manifest, or holds a file that the manifest does
not list), or unreadable (the disk or its rights refuse, or a newer trimtab wrote it): what is
unreadable now may come back, so it is never taken for missing.

The grade of a checkpoint is decided by the estimated onset of trouble, not by its age, so it can
change after the save: it is kept in `health.json` beside the manifest.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trimtab.durable import make_folder, move, sync_file, sync_folder, write_whole
from trimtab.errors import ActError, ReadError
from trimtab.plan.rollback import Grade

__all__ = [
    "CheckpointOnDisk",
    "FilesSeen",
    "Grade",
    "InspectedFolder",
    "clear_leftovers",
    "commit",
    "files_seen",
    "inspect_folder",
    "list_checkpoints",
    "listed_hashes",
    "move_aside",
    "named_folders",
    "newest_healthy",
    "place_aside",
    "read_checkpoint",
    "regrade",
    "remove",
    "set_grade",
    "step_of",
    "verify",
]

FilesSeen = tuple[tuple[str, int, int], ...]
"""Path, size in bytes and time of change of each file of a folder."""

Condition = Literal["whole", "damaged", "unreadable"]

_SCHEMA = 1
"""Of the folder, in `manifest.json`; and of `health.json`. One without it is of the first form."""
_NAME = re.compile(r"step-([0-9]{8,})")
_LEFTOVER = re.compile(r"step-[0-9]{8,}\.(?:partial|removing)(?:\.[0-9]+)?")
_CHUNK_BYTES = 1 << 20
_OURS = ("manifest.json", "health.json", "health.json.partial", "health.tmp")
"""Files of a checkpoint that its manifest does not list: itself, the grade, and what a kill while
the grade was written leaves behind."""
_NOT_THERE = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EILSEQ,
)
"""What a disk answers that works, of a file that is not there or cannot be."""


@dataclass(frozen=True, kw_only=True)
class CheckpointOnDisk:
    """One whole checkpoint."""

    step: int
    """Last step whose update it holds."""
    attempt: str
    path: Path
    grade: Grade
    pinned: bool
    why: str
    """Why it has this grade."""

    @property
    def lineage(self) -> str:
        """The first part of its attempt's number: each start at step 0 begins a new one."""
        return self.attempt.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class InspectedFolder:
    """What a look at a folder that is named like a checkpoint gave."""

    path: Path
    condition: Condition
    why: str = ""
    """Why it is not whole; or, of a whole one, why its grade is not known."""
    checkpoint: CheckpointOnDisk | None = None
    """Known where it is whole."""


class _DamagedError(ValueError):
    """It can be read, and is not what was written."""


class _NewerError(Exception):
    """A newer version of trimtab wrote it."""


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_json(path: Path, data: object) -> None:
    write_whole(path, json.dumps(data, indent=1).encode())


# -- written --------------------------------------------------------------------------------


def commit(
    partial: Path,
    final: Path,
    *,
    step: int,
    attempt: str,
    doubt: str = "",
    aside: Path | None = None,
) -> None:
    """Turn a fully written folder into a checkpoint: hash, manifest, fsync, rename.

    Its grade is healthy, or suspect where there is a `doubt`, which is kept as the reason. Where
    one of that name is there, it is moved to `aside` once the new one is ready.

    Raises:
        ActError: `final` exists already and there is no `aside`, or the disk refuses.
    """
    if aside is None and final.exists():
        raise ActError(f"{final}: exists already; move it aside first")
    try:
        _write_manifest(
            partial,
            step=step,
            attempt=attempt,
            grade="suspect" if doubt else "healthy",
            why=doubt or "saved while calm",
        )
        older = move_aside(final, aside) if aside is not None and final.exists() else None
        try:
            move(partial, final)
        except OSError:
            if older is not None:
                move(older, final)
            raise
    except OSError as error:
        raise ActError(
            f"{partial}: cannot be committed ({error.strerror}); training goes on without this"
            " checkpoint"
        ) from error


def _write_manifest(folder: Path, *, step: int, attempt: str, grade: Grade, why: str) -> None:
    """Hash and fsync every file and folder, then write the grade and, last, the manifest."""
    files = {}
    for name in _entries(folder):
        path = folder / name
        sync_file(path)
        files[name] = {"size_bytes": path.stat().st_size, "sha256": sha256_of(path)}
    for inside, _, _ in os.walk(folder):
        sync_folder(Path(inside))
    _write_json(
        folder / "health.json", {"schema": _SCHEMA, "grade": grade, "pinned": False, "why": why}
    )
    manifest = {"schema": _SCHEMA, "step": step, "attempt": attempt, "files": files}
    _write_json(folder / "manifest.json", {**manifest, "sha256": _own_hash(manifest)})


def _own_hash(manifest: Mapping[str, Any]) -> str:
    """Return the hash of a manifest's own fields: nothing else protects step and attempt."""
    fields = {k: v for k, v in manifest.items() if k != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


# -- looked at ------------------------------------------------------------------------------


def step_of(name: str) -> int | None:
    """Return the step that the name of a checkpoint's folder says; None for any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else int(found[1])


def named_folders(folder: Path) -> tuple[Path, ...] | None:
    """Return what is named like a checkpoint, oldest first; None where there is no such folder.

    Raises:
        ReadError: The folder cannot be listed: what is in it is not known.
    """
    try:
        names = [entry.name for entry in folder.iterdir()]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadError(
            f"{folder}: cannot be listed ({error.strerror}); mount the disk or restore its rights"
        ) from error
    steps = {name: step for name in names if (step := step_of(name)) is not None}
    return tuple(folder / name for name in sorted(steps, key=lambda n: (steps[n], n)))


def inspect_folder(path: Path, *, hashes: bool = True) -> InspectedFolder:
    """Look at a folder that is named like a checkpoint.

    Args:
        path: The folder.
        hashes: Also compare SHA-256 (reads every byte); sizes are always compared.
    """
    try:
        manifest = _manifest(path)
        _compare(path, manifest, hashes=hashes)
        grade, pinned, why, trouble = _health(path)
    except _DamagedError as error:
        return InspectedFolder(path=path, condition="damaged", why=str(error))
    except _NewerError as error:
        return InspectedFolder(path=path, condition="unreadable", why=str(error))
    except OSError as error:
        name = Path(error.filename).name if isinstance(error.filename, str) else path.name
        return InspectedFolder(
            path=path,
            condition="unreadable",
            why=f"{name} cannot be read ({error.strerror or type(error).__name__})",
        )
    checkpoint = CheckpointOnDisk(
        step=manifest["step"],
        attempt=manifest["attempt"],
        path=path,
        grade=grade,
        pinned=pinned,
        why=why,
    )
    return InspectedFolder(path=path, condition="whole", why=trouble, checkpoint=checkpoint)


def verify(path: Path, *, hashes: bool = True) -> str:
    """Return why a folder is not a whole checkpoint; an empty string if it is one.

    Args:
        path: The folder.
        hashes: Also compare SHA-256 (reads every byte); sizes are always compared.
    """
    found = inspect_folder(path, hashes=hashes)
    return "" if found.condition == "whole" else found.why


def listed_hashes(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a checkpoint by name, as its manifest lists them.

    Raises:
        ReadError: It has no manifest that can be read.
    """
    try:
        return {name: str(known["sha256"]) for name, known in _manifest(path)["files"].items()}
    except (_DamagedError, _NewerError, OSError, LookupError, TypeError) as error:
        raise ReadError(f"{path}: {error}; resume from an older checkpoint") from error


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, its fields of the right types."""
    if path.is_symlink():
        raise _DamagedError("a link, not a checkpoint")
    data = _read_json(path / "manifest.json")
    if not isinstance(data, dict):
        raise _DamagedError("no readable manifest.json (no JSON object)")
    _check_schema(data.get("schema", _SCHEMA), "manifest.json")
    step, attempt, files = (data.get(key) for key in ("step", "attempt", "files"))
    is_step = isinstance(step, int) and not isinstance(step, bool)
    if not (is_step and isinstance(attempt, str) and isinstance(files, dict)):
        raise _DamagedError(
            "no readable manifest.json (step, attempt or files are missing or of a wrong type)"
        )
    if not files:
        raise _DamagedError("manifest.json names no files")
    named = step_of(path.name)
    if named is not None and named != step:
        raise _DamagedError(f"manifest.json is of another step than {path.name}")
    if "sha256" in data and data["sha256"] != _own_hash(data):
        raise _DamagedError("manifest.json does not match its own hash")
    return data


def _check_schema(schema: object, name: str) -> None:
    if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
        raise _DamagedError(f"{name} has no schema that trimtab ever wrote ({schema!r:.40})")
    if schema > _SCHEMA:
        raise _NewerError(
            f"{name} is of schema {schema!r:.40}, this version of trimtab reads up to {_SCHEMA}"
        )


def _read_json(path: Path) -> Any:
    try:
        is_file = stat.S_ISREG(path.lstat().st_mode)
        if is_file:  # a pipe would be waited on
            return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise _DamagedError(f"no readable {path.name} ({type(error).__name__})") from error
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        raise _DamagedError(f"no readable {path.name} ({type(error).__name__})") from error
    raise _DamagedError(f"no readable {path.name} (not a file)")


def _entries(folder: Path, inside: str = "") -> Iterator[str]:
    """Yield the names of the files of a checkpoint but our own; anything but a file is refused."""
    with os.scandir(folder / inside) as found:
        entries = sorted(found, key=lambda e: e.name)
    for entry in entries:
        name = f"{inside}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(folder, f"{name}/")
        elif not entry.is_file(follow_symlinks=False):
            raise _DamagedError(
                f"{name[:80]!r} is a link or no file; a checkpoint holds files only"
            )
        elif inside or entry.name not in _OURS:
            yield name


def _compare(folder: Path, manifest: Mapping[str, Any], *, hashes: bool) -> None:
    """Compare the files of a checkpoint with its manifest, and refuse what it does not list."""
    files = manifest["files"]
    for name, known in files.items():
        try:
            problem = _verify_file(folder, name, known, hashes=hashes)
        except ValueError as error:  # a name no disk takes
            problem = f"{name[:80]!r} cannot be read ({type(error).__name__})"
        if problem:
            raise _DamagedError(problem)
    for name in _entries(folder):
        if name not in files:
            raise _DamagedError(f"{name[:80]!r} is not listed in manifest.json")


def _verify_file(folder: Path, name: str, known: Any, *, hashes: bool) -> str:
    """Return why a file is not the one that is known; raises OSError where the disk refuses."""
    file = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        return f"manifest names a file outside the checkpoint: {name[:80]!r}"
    if not isinstance(known, dict) or not isinstance(known.get("size_bytes"), int):
        return f"manifest.json does not give the size of {name[:80]!r}"
    try:
        status = file.lstat()
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return f"{name[:80]} is missing"
    if not stat.S_ISREG(status.st_mode):
        return f"{name[:80]} is no file"
    if status.st_size != known["size_bytes"]:
        return f"{name} has {status.st_size} bytes, expected {known['size_bytes']}"
    if hashes and sha256_of(file) != known.get("sha256"):
        return f"{name} does not match its hash"
    return ""


def list_checkpoints(folder: Path, *, hashes: bool = False) -> tuple[CheckpointOnDisk, ...]:
    """Return the whole checkpoints in a folder, oldest first.

    Partial and damaged ones are left out.

    Raises:
        ReadError: The folder cannot be listed.
    """
    read = (read_checkpoint(path, hashes=hashes) for path in named_folders(folder) or ())
    return tuple(sorted((c for c in read if c is not None), key=lambda c: c.step))


def read_checkpoint(path: Path, *, hashes: bool = False) -> CheckpointOnDisk | None:
    """Return the whole checkpoint in a folder; None where there is none."""
    if step_of(path.name) is None:
        return None
    return inspect_folder(path, hashes=hashes).checkpoint


def files_seen(path: Path) -> FilesSeen:
    """Return how the files of a folder stand, to know later whether any has changed.

    No file is opened.
    """
    found: list[tuple[str, int, int]] = []
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):  # it went away between the two looks
                status = (Path(folder) / name).lstat()
                found.append((f"{folder}/{name}", status.st_size, status.st_mtime_ns))
    return tuple(sorted(found))


def _health(path: Path) -> tuple[Grade, bool, str, str]:
    """Return grade, pin and reason; last, why the grade is not known, empty where it is."""
    unknown = "health.json is missing or unreadable"
    try:
        data = _read_json(path / "health.json")
        if isinstance(data, dict) and data.get("grade") in ("healthy", "suspect", "poisoned"):
            _check_schema(data.get("schema", _SCHEMA), "health.json")
            return data["grade"], bool(data.get("pinned")), str(data.get("why", "")), ""
    except _DamagedError:
        pass
    return "suspect", False, unknown, unknown


def newest_healthy(folder: Path) -> CheckpointOnDisk | None:
    """Return the newest whole, healthy checkpoint with matching hashes; None if there is none.

    Raises:
        ReadError: The folder, or a newer checkpoint in it, cannot be read.
    """
    for path in reversed(named_folders(folder) or ()):
        found = inspect_folder(path, hashes=False)
        if found.checkpoint is not None and found.checkpoint.grade == "healthy":
            found = inspect_folder(path)
            if found.checkpoint is not None:
                return found.checkpoint
        if found.condition == "unreadable":
            raise ReadError(f"{path}: {found.why}; mount the disk or restore its rights")
    return None


# -- graded, moved, removed -----------------------------------------------------------------


def set_grade(path: Path, grade: Grade, why: str, *, pinned: bool | None = None) -> None:
    """Revise the grade of a checkpoint; pinned ones are never removed by retention.

    Raises:
        ReadError: The folder is not a checkpoint.
    """
    found = inspect_folder(path, hashes=False)
    if found.checkpoint is None:
        raise ReadError(f"{path}: {found.why}; it cannot be graded")
    regrade(found.checkpoint, grade, why, pinned=pinned)


def regrade(
    checkpoint: CheckpointOnDisk, grade: Grade, why: str, *, pinned: bool | None = None
) -> CheckpointOnDisk:
    """Revise the grade of a checkpoint that is known, and return it so; nothing is read.

    Raises:
        ReadError: The folder is gone.
    """
    if not (checkpoint.path / "manifest.json").is_file():
        raise ReadError(f"{checkpoint.path}: no manifest.json; it cannot be graded")
    keep = checkpoint.pinned if pinned is None else pinned
    _write_json(
        checkpoint.path / "health.json",
        {"schema": _SCHEMA, "grade": grade, "pinned": keep, "why": why},
    )
    return replace(checkpoint, grade=grade, why=why, pinned=keep)


def place_aside(path: Path, aside: Path) -> Path:
    """Return where `move_aside` puts a checkpoint."""
    target = aside / path.name
    number = 1
    while os.path.lexists(target):
        number += 1
        target = aside / f"{path.name}.{number}"
    return target


def move_aside(path: Path, aside: Path) -> Path:
    """Move a checkpoint out of the way, under a name that is free; nothing is deleted.

    Raises:
        OSError: The disk refuses; the checkpoint is where it was.
    """
    make_folder(aside)
    target = place_aside(path, aside)
    try:
        move(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(path, target)  # `checkpoints` is a link to another disk
        sync_folder(aside)
    return target


def remove(path: Path) -> None:
    """Remove a checkpoint: renamed first, so that a kill leaves no half of one under its name.

    Raises:
        OSError: The disk refuses; the checkpoint is whole, where it was.
    """
    removing = path.with_name(f"{path.name}.removing")
    shutil.rmtree(removing, ignore_errors=True)
    move(path, removing)
    shutil.rmtree(removing, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Remove what a kill in the middle of a save or a removal has left in a folder.

    What the disk does not let go stays: it is no checkpoint, and nothing reads it.
    """
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if _LEFTOVER.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
