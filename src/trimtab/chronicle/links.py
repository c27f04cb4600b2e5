"""Links from a logbook to what it was made from: samples, TensorBoard files, raw logs, the page.

They are relative to the folder in which the logbook stands, so that a run directory can be moved or
put on a web server whole.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ReadError

__all__ = ["LinkedFile", "linked_files", "links_markdown"]

_MOST = 50
_RAW = frozenset({".log", ".out", ".err", ".txt", ".csv", ".wandb"})


@dataclass(frozen=True)
class LinkedFile:
    """One file or folder to link to."""

    what: str
    path: Path


def linked_files(root: Path, further: Sequence[Path] = ()) -> tuple[LinkedFile, ...]:
    """Return what there is to link to in a run directory, and what else was named.

    Raises:
        ReadError: Something named is not there.
    """
    found = [*_own(root), *_around(root)]
    for path in further:
        if not path.exists():
            raise ReadError(f"{path}: not there, so it cannot be linked to; check --link")
        found.append(LinkedFile("TensorBoard" if _is_tensorboard(path) else "raw log", path))
    return tuple(dict.fromkeys(found))


def _own(root: Path) -> Iterator[LinkedFile]:
    run = RunDirectory(root)
    for what, path in (("page", run.report), ("journal", run.journal), ("settings", run.settings)):
        if path.is_file():
            yield LinkedFile(what, path)
    samples = sorted(run.signals.glob("*.jsonl")) if run.signals.is_dir() else []
    yield from (LinkedFile(f"samples of attempt {p.stem}", p) for p in samples[:_MOST])


def _around(root: Path) -> Iterator[LinkedFile]:
    """Yield folders of event files, and raw logs, up to two folders deep."""
    if not root.is_dir():
        return
    skipped = {"checkpoints", "aside", "signals"}
    inside = sorted(
        p for p in root.iterdir() if p.name not in skipped and not p.name.startswith(".")
    )
    deeper = [q for p in inside if p.is_dir() for q in sorted(p.iterdir())]
    folders = [root, *(p for p in (*inside, *deeper) if p.is_dir())]
    yield from (LinkedFile("TensorBoard", p) for p in folders[:_MOST] if _is_tensorboard(p))
    raw = [p for p in (*inside, *deeper) if p.is_file() and p.suffix in _RAW]
    yield from (LinkedFile("raw log", p) for p in raw[:_MOST])


def _is_tensorboard(path: Path) -> bool:
    if path.is_dir():
        return any(".tfevents." in p.name for p in path.iterdir())
    return ".tfevents." in path.name


def links_markdown(files: Sequence[LinkedFile], folder: Path) -> str:
    """Return a section of links relative to `folder`; an empty string where there are none."""
    lines = []
    for file in files:
        relative = os.path.relpath(file.path.absolute(), folder.absolute())
        shown = relative.replace(os.sep, "/")
        label = "".join(
            "\\" + c if c in "\\`*_{}[]<>#|~!&" else c for c in shown if c.isprintable()
        )
        lines.append(f"- {file.what}: [{label}]({quote(shown)})")
    return "## Files\n\n" + "\n".join(lines) if lines else ""
