"""The checkpoints of one run: saved, kept few, set aside, found again; and what the journal adds.

A checkpoint holds the guard's decisions as they were when it was saved. Later ones (a rate cut, data
left out) stand in the journal's `action` events and are added when a run is resumed. Of several ranks
the first looks at the folder, and all go by what it sees.

A scheduled checkpoint is copied at once and written in a thread; it counts, in the journal too, once
it is whole. Whatever needs to know which checkpoints there are waits for it.
"""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

from trimtab.checkpoints.manifest import (
    CheckpointOnDisk,
    Grade,
    list_checkpoints,
    move_aside,
    newest_healthy,
    set_grade,
    verify,
)
from trimtab.chronicle.journal import read_journal
from trimtab.guard.saving import load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.ranks import Ranks
    from trimtab.guard.recorder import Recorder
    from trimtab.guard.snapshots import Training

__all__ = ["Store"]


class _Pending:
    """A checkpoint that is being written, in this thread or in one of its own."""

    def __init__(self, write: Callable[[], None], name: str, step: int, why: str) -> None:
        self.name, self.step, self.why = name, step, why
        self.error: BaseException | None = None
        self._write = write
        self._thread: threading.Thread | None = None

    @property
    def done(self) -> bool:
        """Whether nothing is written any more."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run, name="trimtab-checkpoint", daemon=True)
        self._thread.start()

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:  # noqa: BLE001 - raised again where it can be dealt with
            self.error = error

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


class Store:
    """The checkpoints folder of a run directory, with its events."""

    def __init__(self, recorder: Recorder, *, ranks: Ranks, keep: int) -> None:
        """Use a run's recorder; retention keeps the newest `keep` healthy checkpoints."""
        self._recorder = recorder
        self._directory = recorder.directory
        self._ranks = ranks
        self._keep = keep
        self.whole_step = -1
        """Step of the newest checkpoint that is known to be whole, this process' own or loaded."""
        self._beside: Ranks | None = None
        self._pending: _Pending | None = None

    def save(
        self,
        shared: dict[str, Any],
        own: dict[str, Any],
        *,
        step: int,
        why: str,
        background: bool = False,
    ) -> None:
        """Write a checkpoint, whole or not at all, and say so; retention spares pinned ones.

        Args:
            shared: What all ranks hold alike, but for shards.
            own: What is this rank's own.
            step: Last step whose update it holds.
            why: For the journal.
            background: Return once the state is copied, and tell at a later `finish`.

        Raises:
            ActError: It, or the one before it, cannot be saved.
        """
        self.finish(wait=True)
        path, attempt = self._directory.checkpoint_of(step), self._recorder.attempt
        if background and self._beside is None:
            self._beside = self._ranks.beside()
        ranks = self._beside if background and self._beside is not None else self._ranks

        def write() -> None:
            save_state(
                shared, own, path, step=step, attempt=attempt, aside=self._directory.aside,
                ranks=ranks,
            )  # fmt: skip

        self._pending = _Pending(write, path.name, step, why)
        if background:
            self._pending.start()
        else:
            self._pending.run()
            self.finish(wait=True)

    def finish(self, *, wait: bool) -> None:
        """Take note of a checkpoint that is whole now.

        Args:
            wait: Wait for one that is being written; else it is left for the next time.

        Raises:
            ActError: It cannot be saved.
        """
        pending = self._pending
        if pending is None or not (wait or pending.done):
            return
        self._pending = None
        pending.join()
        if pending.error is not None:
            raise pending.error
        self.whole_step = pending.step
        self._recorder.event(
            "checkpoint", step=pending.step, path=pending.name, grade="healthy", why=pending.why
        )
        if self._ranks.chief:
            self._thin_out(pending.step)

    def _thin_out(self, step: int) -> None:
        whole = [c for c in self._listed() if c.grade == "healthy" and not c.pinned]
        for old in whole[: -self._keep]:
            shutil.rmtree(old.path)
            self._recorder.event(
                "checkpoint",
                step=step,
                path=old.path.name,
                grade="removed",
                why="older than the newest kept ones",
            )

    def newest(self) -> CheckpointOnDisk | None:
        """Return the newest whole and healthy checkpoint; None where there is none."""
        self.finish(wait=True)
        return self._ranks.agree(lambda: newest_healthy(self._directory.checkpoints))

    def newest_before(self, step: int) -> CheckpointOnDisk | None:
        """Return the newest whole and healthy checkpoint at or before `step`; None without one."""
        self.finish(wait=True)
        return self._ranks.agree(lambda: self._newest_before(step))

    def _newest_before(self, step: int) -> CheckpointOnDisk | None:
        for checkpoint in reversed(self._listed()):
            if checkpoint.step <= step and checkpoint.grade == "healthy":
                if verify(checkpoint.path):
                    continue
                return checkpoint
        return None

    def oldest_step(self) -> int | None:
        """Return the step of the oldest healthy checkpoint, hashes not compared; None without one."""
        self.finish(wait=True)
        return self._ranks.agree(
            lambda: next((c.step for c in self._listed() if c.grade == "healthy"), None)
        )

    def num_found(self) -> int:
        """Return how many checkpoint folders there are, whole or not."""
        folder = self._directory.checkpoints
        return self._ranks.agree(
            lambda: sum(1 for p in folder.glob("step-*")) if folder.is_dir() else 0
        )

    def load(self, checkpoint: CheckpointOnDisk, training: Training) -> dict[str, Any]:
        """Return the state that a checkpoint holds, this rank's shards of it.

        Raises:
            ReadError: It is not whole.
        """
        return load_state(checkpoint.path, training, ranks=self._ranks)

    def set_aside_after(self, step: int, *, first_sign: float, now: int, why: str) -> None:
        """Move the checkpoints after `step` aside; pin the one before, the last before trouble.

        Those from the first sign on are graded poisoned, those between are suspect. Nothing is
        deleted.
        """
        self.finish(wait=True)
        self._ranks.on_chief(
            lambda: self._set_aside_after(step, first_sign=first_sign, now=now, why=why)
        )

    def _set_aside_after(self, step: int, *, first_sign: float, now: int, why: str) -> None:
        last: CheckpointOnDisk | None = None
        for checkpoint in self._listed():
            if checkpoint.step <= step:
                last = checkpoint
                continue
            grade: Grade = "poisoned" if checkpoint.step >= first_sign else "suspect"
            set_grade(checkpoint.path, grade, why)
            target = move_aside(checkpoint.path, self._directory.aside)
            self._recorder.event(
                "checkpoint",
                step=now,
                path=str(target.relative_to(self._directory.root)),
                grade=grade,
                why=why,
            )
        if last is not None and not last.pinned:
            set_grade(last.path, last.grade, "last one before trouble", pinned=True)

    def decided_since(self, checkpoint: CheckpointOnDisk | None) -> dict[str, Any] | None:
        """Return the decisions that the journal's last action left standing, where it is newer.

        Args:
            checkpoint: The one that is resumed from; None: any action is newer.
        """
        return self._ranks.agree(lambda: self._decided_since(checkpoint))

    def _decided_since(self, checkpoint: CheckpointOnDisk | None) -> dict[str, Any] | None:
        if not self._directory.journal.exists():
            return None
        standing: dict[str, Any] | None = None
        for event in read_journal(self._directory.journal)[0]:
            d = event.data
            if event.event == "action" and isinstance(d.get("standing"), dict):
                standing = d["standing"]
            elif (
                event.event == "checkpoint"
                and checkpoint is not None
                and d.get("path") == checkpoint.path.name
                and d.get("grade") == "healthy"
            ):
                standing = None  # the checkpoint holds all that was decided until here
        return standing

    def _listed(self) -> tuple[CheckpointOnDisk, ...]:
        return list_checkpoints(self._directory.checkpoints)
