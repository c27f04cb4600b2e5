"""Checkpoints on disk: what is whole, what is healthy, and what comes first after a crash.

A checkpoint is a folder `step-00001200/`. It is written under a name that ends in `.partial`,
its `manifest.json` (every file with size and SHA-256) is written last, and only then is the folder
renamed: a process killed at any byte leaves either the whole checkpoint or none. A folder whose
files do not match its manifest is not a checkpoint.

The grade of a checkpoint is decided by the estimated onset of trouble, not by its age, so it can
change after the save: it is kept in `health.json` beside the manifest.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from trimtab.errors import ActError, ReadError

__all__ = [
    "CheckpointOnDisk",
    "FilesSeen",
    "Grade",
    "commit",
    "files_seen",
    "list_checkpoints",
    "move_aside",
    "newest_healthy",
    "read_checkpoint",
    "regrade",
    "set_grade",
    "verify",
]

Grade = Literal["healthy", "suspect", "poisoned"]

FilesSeen = tuple[tuple[str, int, int], ...]
"""Path, size in bytes and time of change of each file of a folder."""

_NAME = re.compile(r"step-([0-9]{8,})")
_CHUNK_BYTES = 1 << 20
_OURS = ("manifest.json", "health.json")


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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _write_json(path: Path, data: object) -> None:
    """Write JSON beside `path`, wait until it is on disk, then rename it into place."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def commit(partial: Path, final: Path, *, step: int, attempt: str, doubt: str = "") -> None:
    """Turn a fully written folder into a checkpoint: hash, manifest, fsync, rename.

    Its grade is healthy, or suspect where there is a `doubt`, which is kept as the reason.

    Raises:
        ActError: `final` exists already, or the disk refuses.
    """
    if final.exists():
        raise ActError(f"{final}: exists already; move it aside first")
    try:
        _write_manifest(
            partial,
            step=step,
            attempt=attempt,
            grade="suspect" if doubt else "healthy",
            why=doubt or "saved while calm",
        )
        partial.rename(final)
        folder = os.open(final.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise ActError(
            f"{partial}: cannot be committed ({error.strerror}); training goes on without this"
            " checkpoint"
        ) from error


def _write_manifest(folder: Path, *, step: int, attempt: str, grade: Grade, why: str) -> None:
    """Hash and fsync every file, then write the grade and, last of all, the manifest."""
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name not in _OURS):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        files[path.relative_to(folder).as_posix()] = {
            "size_bytes": path.stat().st_size,
            "sha256": _sha256(path),
        }
    _write_json(folder / "health.json", {"grade": grade, "pinned": False, "why": why})
    _write_json(
        folder / "manifest.json", {"schema": 1, "step": step, "attempt": attempt, "files": files}
    )


def verify(path: Path, *, hashes: bool = True) -> str:
    """Return why a folder is not a whole checkpoint; an empty string if it is one.

    Args:
        path: The folder.
        hashes: Also compare SHA-256 (reads every byte); sizes are always compared.
    """
    manifest = _manifest(path)
    if isinstance(manifest, str):
        return manifest
    for name, known in manifest["files"].items():
        try:
            problem = _verify_file(path, name, known, hashes=hashes)
        except (OSError, ValueError) as error:  # a name no disk takes, a file that may not be read
            problem = f"{name[:80]!r} cannot be read ({type(error).__name__})"
        if problem:
            return problem
    return ""


def _manifest(path: Path) -> dict[str, Any] | str:
    """Return the manifest of a checkpoint, its fields of the right types, or why there is none."""
    if path.is_symlink():
        return "a link, not a checkpoint"
    try:
        data = _read_json(path / "manifest.json")
        step, attempt, files = data["step"], data["attempt"], data["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"no readable manifest.json ({type(error).__name__})"
    is_step = isinstance(step, int) and not isinstance(step, bool)
    if not (is_step and isinstance(attempt, str) and isinstance(files, dict)):
        return "no readable manifest.json (step, attempt or files are of a wrong type)"
    if not files:
        return "manifest.json names no files"
    name = _NAME.fullmatch(path.name)
    if name is not None and int(name[1]) != step:
        return f"manifest.json is of another step than {path.name}"
    manifest: dict[str, Any] = data
    return manifest


def _read_json(path: Path) -> Any:
    if not path.is_file():  # a pipe would be waited on
        raise FileNotFoundError(path)
    return json.loads(path.read_text(encoding="utf-8"))


def _verify_file(folder: Path, name: str, known: Any, *, hashes: bool) -> str:
    file = folder / name
    if ".." in Path(name).parts or Path(name).is_absolute():
        return f"manifest names a file outside the checkpoint: {name}"
    if not isinstance(known, dict) or not isinstance(known.get("size_bytes"), int):
        return f"manifest.json does not give the size of {name}"
    if not file.is_file():
        return f"{name} is missing"
    size = file.stat().st_size
    if size != known["size_bytes"]:
        return f"{name} has {size} bytes, expected {known['size_bytes']}"
    if hashes and _sha256(file) != known.get("sha256"):
        return f"{name} does not match its hash"
    return ""


def list_checkpoints(folder: Path, *, hashes: bool = False) -> tuple[CheckpointOnDisk, ...]:
    """Return the whole checkpoints in a folder, oldest first.

    Partial and damaged ones are left out.
    """
    paths = sorted(folder.iterdir()) if folder.is_dir() else ()
    read = (read_checkpoint(path, hashes=hashes) for path in paths)
    return tuple(sorted((c for c in read if c is not None), key=lambda c: c.step))


def read_checkpoint(path: Path, *, hashes: bool = False) -> CheckpointOnDisk | None:
    """Return the whole checkpoint in a folder; None where there is none."""
    named = _NAME.fullmatch(path.name) is not None
    if not named or not path.is_dir() or verify(path, hashes=hashes):
        return None
    manifest = _manifest(path)
    if isinstance(manifest, str):  # it went away between the two looks
        return None
    grade, pinned, why = _health(path)
    return CheckpointOnDisk(
        step=manifest["step"],
        attempt=manifest["attempt"],
        path=path,
        grade=grade,
        pinned=pinned,
        why=why,
    )


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


def _health(path: Path) -> tuple[Grade, bool, str]:
    try:
        data = _read_json(path / "health.json")
        grade = data["grade"]
        if grade in ("healthy", "suspect", "poisoned"):
            return grade, bool(data.get("pinned")), str(data.get("why", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return "suspect", False, "health.json is missing or unreadable"


def newest_healthy(folder: Path) -> CheckpointOnDisk | None:
    """Return the newest whole, healthy checkpoint with matching hashes; None if there is none."""
    for checkpoint in reversed(list_checkpoints(folder)):
        if checkpoint.grade == "healthy" and not verify(checkpoint.path):
            return checkpoint
    return None


def set_grade(path: Path, grade: Grade, why: str, *, pinned: bool | None = None) -> None:
    """Revise the grade of a checkpoint; pinned ones are never removed by retention.

    Raises:
        ReadError: The folder is not a checkpoint.
    """
    problem = verify(path, hashes=False)
    if problem:
        raise ReadError(f"{path}: {problem}; it cannot be graded")
    keep = _health(path)[1] if pinned is None else pinned
    _write_json(path / "health.json", {"grade": grade, "pinned": keep, "why": why})


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
    _write_json(checkpoint.path / "health.json", {"grade": grade, "pinned": keep, "why": why})
    return replace(checkpoint, grade=grade, why=why, pinned=keep)


def move_aside(path: Path, aside: Path) -> Path:
    """Move a checkpoint out of the way, under a name that is free; nothing is deleted."""
    aside.mkdir(parents=True, exist_ok=True)
    target = aside / path.name
    number = 1
    while target.exists():
        number += 1
        target = aside / f"{path.name}.{number}"
    shutil.move(path, target)
    return target
