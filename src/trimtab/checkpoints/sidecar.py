"""Manifest and grade of a checkpoint that another trainer wrote: a JSON file beside it.

`last.ckpt` gets `last.ckpt.trimtab.json`, a folder `checkpoint-500` gets
`checkpoint-500.trimtab.json`: the trainer's own files stay as they are. It holds step, attempt,
every file with size and SHA-256, and the grade, which can change later. It is written after the
checkpoint, in one rename: a checkpoint without it was not seen whole by us.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from trimtab.checkpoints.manifest import Grade, _read_json, _verify_file, _write_json, sha256_of
from trimtab.errors import ActError, ReadError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SUFFIX", "Stamp", "read_stamp", "regrade", "sidecar_of", "stamp", "verify_stamped"]

SUFFIX = ".trimtab.json"


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The manifest and grade that trimtab keeps beside another trainer's checkpoint."""

    step: int
    """Last step whose update it holds."""
    attempt: str
    grade: Grade
    why: str
    """Why it has this grade."""


def sidecar_of(path: Path) -> Path:
    """Return the path of the manifest of a checkpoint."""
    return path.with_name(path.name + SUFFIX)


def stamp(path: Path, *, step: int, attempt: str, grade: Grade, why: str) -> None:
    """Write manifest and grade of a checkpoint that is whole; reads every byte of it.

    Raises:
        ActError: It cannot be read, or the disk refuses.
    """
    try:
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        files = {
            p.relative_to(path.parent).as_posix(): {
                "size_bytes": p.stat().st_size,
                "sha256": sha256_of(p),
            }
            for p in inside
        }
        data = {"schema": 1, "step": step, "attempt": attempt, "files": files}
        _write_json(sidecar_of(path), {**data, "grade": grade, "why": why})
    except OSError as error:
        raise ActError(
            f"{path}: cannot be given a manifest ({error.strerror}); training goes on"
        ) from error


def read_stamp(path: Path) -> Stamp | None:
    """Return the stamp beside a checkpoint; None where there is no legible one."""
    data = _data_of(path)
    if data is None:
        return None
    return Stamp(
        step=data["step"], attempt=data["attempt"], grade=data["grade"], why=str(data.get("why"))
    )


def verify_stamped(path: Path) -> str:
    """Return why a checkpoint is not what was seen whole; an empty string where it is."""
    data = _data_of(path)
    if data is None:
        return f"no readable {sidecar_of(path).name}"
    for name, known in data["files"].items():
        try:
            problem = _verify_file(path.parent, name, known, hashes=True)
        except (OSError, ValueError) as error:
            problem = f"{name[:80]!r} cannot be read ({type(error).__name__})"
        if problem:
            return problem
    return ""


def regrade(path: Path, grade: Grade, why: str) -> None:
    """Revise the grade of a checkpoint.

    Raises:
        ReadError: It has no legible manifest.
    """
    data = _data_of(path)
    if data is None:
        raise ReadError(f"{path}: no readable {sidecar_of(path).name}; it cannot be graded")
    _write_json(sidecar_of(path), {**data, "grade": grade, "why": why})


def _data_of(path: Path) -> dict[str, Any] | None:
    try:
        data = _read_json(sidecar_of(path))
        kinds = (("step", int), ("attempt", str), ("files", dict))
        right = all(isinstance(data[k], t) for k, t in kinds) and data["grade"] in get_args(Grade)
        if right and data.get("schema", 1) == 1:
            return dict(data)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None
