"""A second place for what a resume needs: on another disk or machine, kept up in the background.

    COPY_TO/NAME/     NAME is the run directory's
      journal.jsonl, signals/, run.toml, skip.json     copied forward, never rewritten
      journal.head                                     as it was before the journal was copied
      checkpoints/step-00001200/                       copied whole, verified against its manifest

It is a run directory itself and is read like one. One thread copies, one checkpoint at a time; of
those that wait, the newest goes first where the place is slower than they come. Nothing here
raises: a place that fails is reported once, and the run continues.
"""

from __future__ import annotations

import shutil
import threading
from collections import deque
from typing import TYPE_CHECKING

from trimtab.checkpoints.manifest import (
    CheckpointOnDisk,
    list_checkpoints,
    read_checkpoint,
    remove,
    set_grade,
    verify,
)
from trimtab.chronicle.journal_head import head_path
from trimtab.chronicle.rundir import RunDirectory
from trimtab.durable import make_folder, move, sync_file, sync_folder, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from trimtab.checkpoints.manifest import Grade

__all__ = ["Mirror", "bring_back", "copy_checkpoint", "copy_of", "newest_trusted"]

_CHUNK_BYTES = 1 << 20
RETRY_S = (0.5, 5.0)
"""Waits before the second and the third try: a share that hiccups is back by then. Ours."""
_WAIT_S = 120.0
"""Longest wait for the second place at the end of a run. Ours: a checkpoint of some gigabytes."""


def copy_of(run: RunDirectory, copy_to: Path) -> RunDirectory:
    """Return where the copies of a run lie."""
    return RunDirectory(copy_to / run.root.resolve().name)


class Mirror:
    """Copies one run's checkpoints and records to a second place."""

    def __init__(self, run: RunDirectory, copy_to: Path, *, keep: int) -> None:
        """Nothing is copied yet.

        Args:
            run: The run directory.
            copy_to: Folder in which the run gets a folder of its own.
            keep: Healthy checkpoints kept there, besides pinned ones.
        """
        self._run = run
        self.place = copy_of(run, copy_to)
        self._keep = keep
        self._queue: deque[tuple[str, Callable[[], None]]] = deque()
        self._doing = ""
        self._trouble: str | None = None
        self._told = self._ending = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def copy(self, checkpoint: Path) -> None:
        """Copy a whole checkpoint, and the records so far, in the background."""
        with self._changed:
            stale = [task for task in self._queue if task[0]]
            for task in stale:  # slower than checkpoints come: only the newest waits
                self._queue.remove(task)
        self._do(checkpoint.name, lambda: self._copy(checkpoint))

    def copy_records(self) -> None:
        """Copy what was written down since the last checkpoint, in the background."""
        self._do("", lambda: _copy_records(self._run, self.place))

    def grade(self, name: str, grade: Grade, why: str, *, pinned: bool | None = None) -> None:
        """Give a copy, where there is one, the grade that the checkpoint has now."""
        path = self.place.checkpoints / name

        def revise() -> None:
            if path.exists():
                set_grade(path, grade, why, pinned=pinned)

        self._do("", revise)

    def needs(self, name: str) -> bool:
        """Whether a checkpoint is still to be copied: it may not be removed now."""
        with self._changed:
            return name == self._doing or any(name == waiting for waiting, _ in self._queue)

    def take_trouble(self) -> str:
        """Return what failed, the first time that something did; an empty string otherwise."""
        with self._changed:
            if self._trouble is None or self._told:
                return ""
            self._told = True
            return self._trouble

    def wait(self, timeout_s: float = _WAIT_S) -> bool:
        """Wait until all is copied; return whether it is."""
        with self._changed:
            self._ending = True  # what waits for another try gets it now
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._queue and self._thread is None, timeout_s
            )
            if not done:
                self._trouble = self._trouble or f"{self.place.root}: still copying at the end"
            return done

    def _do(self, name: str, work: Callable[[], None]) -> None:
        with self._changed:
            self._queue.append((name, work))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="trimtab-mirror", daemon=True
                )
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._thread, self._doing = None, ""
                    self._changed.notify_all()
                    return
                self._doing, work = self._queue.popleft()
            for wait_s in (*RETRY_S, None):
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - whatever fails there, the run continues
                    with self._changed:
                        self._trouble = self._trouble or f"{self.place.root}: {error}"
                        if wait_s is not None:  # at the end of the run, at once
                            self._changed.wait_for(lambda: self._ending, wait_s)
                            continue
                break

    def _copy(self, checkpoint: Path) -> None:
        _copy_records(self._run, self.place)
        copied = read_checkpoint(copy_checkpoint(checkpoint, self.place.checkpoints))
        if copied is None:  # the place fails: nothing older is given up for it
            raise OSError(f"{checkpoint.name} cannot be read back")
        kept = [
            c
            for c in list_checkpoints(self.place.checkpoints)
            if c.grade == "healthy" and c.lineage == copied.lineage
        ]
        for old in [c for c in kept if not c.pinned][: -self._keep]:
            remove(old.path)


def copy_checkpoint(source: Path, folder: Path) -> Path:
    """Copy a checkpoint into a folder, whole or not at all; one of that name there is replaced.

    Raises:
        OSError: It cannot be read or written.
        ValueError: What arrived does not match the manifest.
    """
    final = folder / source.name
    partial = folder / f"{source.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(folder)
    shutil.copytree(source, partial, symlinks=True)
    for path in partial.rglob("*"):
        if path.is_dir():
            sync_folder(path)
        elif not path.is_symlink():
            sync_file(path)
    sync_folder(partial)
    problem = verify(partial)
    if problem:
        shutil.rmtree(partial, ignore_errors=True)
        raise ValueError(f"{final}: the copy is not whole ({problem})")
    if final.exists():
        remove(final)
    move(partial, final)
    return final


def _records(run: RunDirectory) -> Iterator[Path]:
    """Yield what a resume needs besides checkpoints, the journal last: with it, a run is there."""
    if run.signals.is_dir():
        yield from sorted(p for p in run.signals.rglob("*.jsonl") if p.is_file())
    head = head_path(run.journal)
    yield from (p for p in (run.settings, run.skip_list, head, run.journal) if p.is_file())


def _copy_records(run: RunDirectory, place: RunDirectory) -> None:
    """Copy forward what has grown.

    Raises:
        ValueError: Another run's records lie there.
        OSError: They cannot be read or written.
    """
    if _first_line(place.journal) not in (b"", _first_line(run.journal)):
        raise ValueError("holds another run of that name; copy to another folder")
    head = head_path(run.journal)
    # Read before the journal and written after it: it names no line that the copy lacks.
    known = head.read_bytes() if head.is_file() else b""
    for path in _records(run):
        target = place.root / path.relative_to(run.root)
        make_folder(target.parent)
        if path == head:
            continue
        if path.suffix == ".jsonl":
            _copy_tail(path, target)
            sync_file(target)
            sync_folder(target.parent)
        else:
            write_whole(target, path.read_bytes())
    if known:
        write_whole(head_path(place.journal), known)


def _copy_tail(path: Path, target: Path) -> None:
    with path.open("rb") as source, target.open("ab") as copy:
        source.seek(copy.tell())
        while chunk := source.read(_CHUNK_BYTES):
            copy.write(chunk)


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.readline(_CHUNK_BYTES)
    except FileNotFoundError:
        return b""


def bring_back(run: RunDirectory, copy_to: Path) -> bool:
    """Restore the records of a lost run from the copy; return whether it did.

    Checkpoints stay in the copy and are read from there. A run that still exists is left alone.

    Raises:
        OSError: They cannot be read or written.
    """
    place = copy_of(run, copy_to)
    if run.journal.exists() or not place.journal.is_file():
        return False
    for path in _records(place):
        target = run.root / path.relative_to(place.root)
        make_folder(target.parent)
        partial = target.with_name(target.name + ".partial")
        shutil.copyfile(path, partial)
        sync_file(partial)
        move(partial, target)
    return True


def newest_trusted(
    place: RunDirectory, trusted: Mapping[str, str], *, after: int
) -> CheckpointOnDisk | None:
    """Return the newest whole and healthy copy of a later step than `after`; None without one.

    Args:
        place: The second place.
        trusted: The attempt that saved it, by name, of each checkpoint that the run's journal calls
            healthy or removed, of the lineage that goes on. No other copy is taken, even where the
            second place did not answer in time.
        after: Step of the newest one in the first place; below 0: there is none.

    Raises:
        ReadError: The folder of the copies cannot be listed.
    """
    for copy in reversed(list_checkpoints(place.checkpoints)):
        if copy.step <= after:
            return None
        known = trusted.get(copy.path.name)
        if copy.grade == "healthy" and known == copy.attempt and not verify(copy.path):
            return copy
    return None
