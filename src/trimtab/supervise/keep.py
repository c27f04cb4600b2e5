"""Copies of a checkpoint that each save overwrites, so that there is one to go back to.

A script such as nanoGPT's saves to one file. Once the numbers broke, its next save replaces the
last state that was sound, and a kill while it saves leaves half a file. The supervisor copies each
whole save to its own folder, keeps the newest few, and puts one back where a restart needs it.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from trimtab.checkpoints.stated_step import step_in_checkpoint
from trimtab.durable import make_folder, move, sync_file
from trimtab.supervise.resume import Restore, is_whole

__all__ = ["LAYOUT", "KeptCopies"]

LAYOUT = "one-file"
_NAME = re.compile(r"step-(\d+)")


class KeptCopies:
    """The copies of one file."""

    def __init__(self, file: Path, folder: Path, *, count: int) -> None:
        """Keep where the file and its copies lie.

        Args:
            file: The checkpoint that is overwritten.
            folder: Of the copies.
            count: Most that are kept.
        """
        self.file, self._folder, self._count = file, folder, count
        self.trouble = ""
        """Why no copy could be made; empty: it could."""
        self._last = self._signature()
        self._seen: object = None

    def _signature(self) -> object:
        try:
            stat = self.file.stat()
        except OSError:
            return None
        return stat.st_size, stat.st_mtime_ns, stat.st_ino

    def look(self, step: float | None) -> None:
        """Copy the file where it is a new whole one, and did not change since the last look.

        Args:
            step: The newest step of the log: the state that was saved is of no later one.
        """
        found = self._signature()
        settled, self._seen = found == self._seen, found
        if not settled or found is None or found == self._last or step is None:
            return
        if not is_whole(self.file):
            return
        told = step_in_checkpoint(self.file)
        step = step if told is None else told
        place = self._folder / f"step-{int(step)}{self.file.suffix}"
        partial = place.with_name("partial")
        try:
            make_folder(self._folder)
            shutil.copyfile(self.file, partial)
            sync_file(partial)
            if self._signature() != found:  # it was overwritten meanwhile
                return
            move(partial, place)
        except OSError as error:
            self.trouble = f"{place}: no copy of {self.file} is kept ({error.strerror})"
            return
        self._last, self.trouble = found, ""
        self._thin()

    def _thin(self) -> None:
        """Drop copies, so that those left lie the further apart the older they are.

        A fault is seen some saves after its first sign: the newest ones alone may all be broken.
        """
        there = self._steps()
        while len(there) > self._count:
            newest = there[-1][0]
            gaps = [
                (there[i + 1][0] - there[i - 1][0]) / (newest - there[i - 1][0])
                for i in range(1, len(there) - 1)
            ]
            _, path = there.pop(1 + gaps.index(min(gaps)))
            with contextlib.suppress(OSError):
                path.unlink()

    def _steps(self) -> list[tuple[int, Path]]:
        """Return the copies, oldest first."""
        with contextlib.suppress(OSError):
            found = [(_NAME.match(p.name), p) for p in self._folder.iterdir()]
            return sorted((int(m[1]), p) for m, p in found if m is not None)
        return []

    def newest(self, before: float | None, refused: Collection[str]) -> Restore | None:
        """Return the newest state before a step; None where there is none.

        Args:
            before: Step that it must not lie at or after; None: any, also what lies in the file.
            refused: Paths that must not be loaded.
        """
        if before is None and str(self.file) not in refused and is_whole(self.file):
            step = step_in_checkpoint(self.file) if self.file.is_file() else None
            if step is not None:
                return Restore(step=step, path=str(self.file), layout=LAYOUT)
        for step, path in reversed(self._steps()):
            if (before is None or step < before) and str(path) not in refused:
                return Restore(step=step, path=str(path), layout=LAYOUT)
        return None

    def put_in_place(self, restore: Restore) -> str:
        """Let the trainer find a copy where it looks; what lies there goes beside the copies.

        Returns:
            Why that could not be done; empty: it is.
        """
        try:
            if self.file.exists():
                # A copy: the two may lie on different disks.
                shutil.copyfile(self.file, self._folder / f"replaced{self.file.suffix}")
            partial = self.file.with_name(self.file.name + ".partial")
            shutil.copyfile(restore.path, partial)
            sync_file(partial)
            os.replace(partial, self.file)  # noqa: PTH105 - one call, as the copy before it
        except OSError as error:
            return f"{self.file}: the copy of step {restore.step} cannot be put there ({error})"
        # Copies of later steps are of a state that is left.
        for step, path in self._steps():
            if step > restore.step:
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(f"left-{path.name}"))
        self._last = self._seen = self._signature()
        return ""
