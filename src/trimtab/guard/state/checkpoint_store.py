"""The checkpoints of one run: saved, kept few, set aside, found again; and what the journal adds.

A checkpoint holds the guard's decisions as they were when it was saved. Later ones (a rate cut,
data left out) stand in the journal's `action` events and are added when a run is resumed. Of
several ranks the first looks at the folder, and all go by what it sees.

A scheduled checkpoint is copied at once and written in a thread; it counts, in the journal too,
once it is whole. Whatever needs to know which checkpoints there are waits for it. Where something
was done between the copy and its event, the event says so: the checkpoint does not hold it.

A checkpoint is saved as healthy where no alarm is open and weights and moments are finite. Where an
onset is estimated later that lies before it, its grade is revised: it becomes suspect, and a resume
passes it over.
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from trimtab.checkpoints.manifest import (
    CheckpointOnDisk,
    FilesSeen,
    Grade,
    files_seen,
    list_checkpoints,
    move_aside,
    newest_healthy,
    read_checkpoint,
    regrade,
    verify,
)
from trimtab.checkpoints.mirror import Mirror, bring_back, copy_checkpoint, copy_of, newest_trusted
from trimtab.chronicle.journal import read_journal
from trimtab.errors import ActError, ConfigError
from trimtab.guard.state.async_save import Pending
from trimtab.guard.state.checkpoint_io import load_state, save_state

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.contract import Finding
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.training_state import StateDict, Training

__all__ = ["Store", "bring_records", "holds_run"]


def holds_run(directory: RunDirectory) -> bool:
    """Whether a run is in a directory: a journal, or checkpoints whose journal is gone."""
    return directory.journal.exists() or bool(list_checkpoints(directory.checkpoints))


def bring_records(directory: RunDirectory, copy_to: str, *, resume: bool) -> list[str]:
    """Bring the records of a run that is lost back from the second place; return what to say of it.

    Raises:
        ConfigError: A copy of a run of that name is there, and nothing may be resumed.
        ActError: It cannot be brought back.
    """
    if not copy_to or directory.journal.exists():
        return []
    place = copy_of(directory, Path(copy_to)).root
    if not resume and (place / directory.journal.name).exists():
        raise ConfigError(
            f"{place}: holds a copy of a run of that name; choose another directory or copy_to, or "
            "resume=True to go on with it"
        )
    try:
        found = bring_back(directory, Path(copy_to))
    except OSError as error:
        raise ActError(
            f"{place}: the run cannot be brought back from its copy ({error.strerror}); copy it by"
            " hand"
        ) from error
    return [f"{directory.root} held no run; brought back from {place}"] if found else []


class Store:
    """The checkpoints folder of a run directory, with its events."""

    def __init__(
        self, recorder: Recorder, *, ranks: Ranks, keep: int, copy_to: Path | None = None
    ) -> None:
        """Use a run's recorder.

        Args:
            recorder: It names the run directory.
            ranks: All ranks of the run.
            keep: Retention keeps so many of the newest healthy checkpoints, and all that are
                pinned.
            copy_to: A second place, see `trimtab.checkpoints.mirror`; None: there is none.
        """
        self._recorder = recorder
        self._directory = recorder.directory
        self._ranks = ranks
        self._keep = keep
        self.whole_step = -1
        """Step of the newest checkpoint that is whole and healthy, this process' own or loaded:
        what a restart would go on from, as far as the first rank knows."""
        self._beside: Ranks | None = None
        self._pending: Pending | None = None
        self._notes: list[str] = []
        self._known: dict[Path, tuple[FilesSeen, CheckpointOnDisk | None]] = {}
        """What was read of each folder, and how its files stood then."""
        if ranks.chief:
            self._listed()
        self.mirror: Mirror | None = None
        """Keeps up the second place; None without one, and on all ranks but the first."""
        if copy_to is not None and ranks.chief:
            self.mirror = Mirror(recorder.directory, copy_to, keep=keep)

    def save(
        self,
        shared: StateDict,
        own: StateDict,
        *,
        step: int,
        why: str,
        background: bool = False,
        doubt: str = "",
    ) -> None:
        """Write a checkpoint, whole or not at all, and say so; retention spares pinned ones.

        Args:
            shared: What all ranks hold alike, but for shards.
            own: What is this rank's own.
            step: Last step whose update it holds.
            why: For the journal.
            background: Return once the state is copied, and tell at a later `finish`.
            doubt: Why it is saved as suspect; empty: it is saved as healthy.

        Raises:
            ActError: It, or the one before it, cannot be saved.
            OwnerLost: Another process took the run.
        """
        self.finish(wait=True)
        self._ranks.on_chief(self._recorder.check_owner)
        path, attempt = self._directory.checkpoint_of(step), self._recorder.attempt
        if background and self._beside is None:
            self._beside = self._ranks.beside()
        # The writing thread has a group of its own: collectives of two threads on one group would
        # pair up differently from rank to rank.
        ranks = self._beside if background and self._beside is not None else self._ranks

        def write() -> None:
            save_state(
                shared,
                own,
                path,
                step=step,
                attempt=attempt,
                aside=self._directory.aside,
                ranks=ranks,
                doubt=doubt,
            )

        self._pending = Pending(write, path.name, step, why, self._recorder.num_actions)
        self._pending.suspect = doubt
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
        since = self._recorder.num_actions - pending.num_actions
        self._recorder.event(
            "checkpoint",
            step=pending.step,
            path=pending.name,
            grade="suspect" if pending.suspect else "healthy",
            why=f"{pending.why}: {pending.suspect}" if pending.suspect else pending.why,
            **({"actions_since": since} if since else {}),
        )
        # `doubt` was found while the folder was being written, `suspect` was known before.
        if not (pending.doubt or pending.suspect):
            self.whole_step = pending.step
        if not self._ranks.chief or self._recorder.lost:
            return
        path = self._directory.checkpoint_of(pending.step)
        saved = read_checkpoint(path)  # looked at once more, as a restart would
        if saved is not None:
            self._know(saved)
        if saved is not None and pending.doubt and not pending.suspect:
            self._regrade(saved, "suspect", pending.doubt, now=pending.step)
        elif self.mirror is not None and not pending.suspect:
            self.mirror.copy(path)
        self._thin_out(pending.step)

    def note(self, text: str) -> None:
        """Keep a sentence that the user should read; `take_notes` hands it on."""
        self._notes.append(text)

    def adopt(self, step: int) -> None:
        """Take note that the run goes on from the checkpoint of a step."""
        self.whole_step = step

    def take_notes(self) -> list[str]:
        """Return what the user should hear of now, each once."""
        trouble = self.mirror.take_trouble() if self.mirror is not None else ""
        if trouble:
            self._notes.append(
                f"the second place for checkpoints fails, the run goes on: {trouble}"
            )
        notes, self._notes = self._notes, []
        return notes

    def close(self) -> None:
        """Wait for what is being written or copied, the second place for two minutes at most.

        Raises:
            ActError: It cannot be saved.
        """
        self.finish(wait=True)
        if self.mirror is not None:
            if not self._recorder.lost:
                self.mirror.copy_records()
            self.mirror.wait()

    def _thin_out(self, step: int) -> None:
        """Remove old healthy checkpoints, and suspect ones older than all that are kept."""
        listed = self._listed()
        healthy = [c for c in listed if c.grade == "healthy" and not c.pinned]
        kept = healthy[-self._keep :]
        old = healthy[: -self._keep]
        if len(kept) == self._keep:
            old += [c for c in listed if c.grade == "suspect" and c.step < kept[0].step]
        for checkpoint in old:
            if self.mirror is not None and self.mirror.needs(checkpoint.path.name):
                continue  # next time
            shutil.rmtree(checkpoint.path)
            self._recorder.event(
                "checkpoint",
                step=step,
                path=checkpoint.path.name,
                grade="removed",
                why="older than the newest kept ones",
            )

    # -- the grade, revised -----------------------------------------------------------------

    def doubt(self, findings: Sequence[Finding]) -> None:
        """Call the checkpoints suspect that were saved under a condition found only now.

        Those from its onset on, to its end where it is over. The newest healthy one before it is
        pinned. It costs nothing where no checkpoint lies after the onset. The first rank writes; no
        rank waits for another.

        Args:
            findings: Those that put the weights in doubt: a plateau, a slow drift or a spike of
                another signal undoes no saved work.
        """
        for finding in findings:
            self._doubt(finding)

    def _doubt(self, finding: Finding) -> None:
        if not self._ranks.chief or self._recorder.lost:
            return
        pending, last = self._pending, finding.end if finding.end is not None else math.inf
        why = f"{finding.kind} since step {finding.onset:g}, told at step {finding.step:g}"
        if pending is not None and finding.onset <= pending.step <= last:
            pending.doubt = pending.doubt or why
        if self.whole_step < finding.onset:
            return
        healthy = [c for c in self._listed() if c.grade == "healthy"]
        doubtful = [c for c in healthy if finding.onset <= c.step <= last]
        before = [c for c in healthy if c.step < finding.onset]
        self.whole_step = max((c.step for c in healthy if c not in doubtful), default=-1)
        for checkpoint in doubtful:
            self._regrade(checkpoint, "suspect", why, now=int(finding.step))
        if doubtful and before and not before[-1].pinned:
            self._pin(before[-1])

    def _regrade(self, checkpoint: CheckpointOnDisk, grade: Grade, why: str, *, now: int) -> None:
        self._know(regrade(checkpoint, grade, why))
        name = checkpoint.path.name
        if self.mirror is not None:
            self.mirror.grade(name, grade, why)
        self._recorder.event("checkpoint", step=now, path=name, grade=grade, why=why)

    def _pin(self, checkpoint: CheckpointOnDisk) -> None:
        why = "last one before trouble"
        self._know(regrade(checkpoint, checkpoint.grade, why, pinned=True))
        if self.mirror is not None:
            self.mirror.grade(checkpoint.path.name, checkpoint.grade, why, pinned=True)

    # -- found again ------------------------------------------------------------------------

    def newest(self) -> CheckpointOnDisk | None:
        """Return the newest whole and healthy checkpoint; None where there is none.

        A later copy in the second place is brought back and counts.
        """
        self.finish(wait=True)
        # The first rank looks for all: each by itself could find another one the newest.
        found = self._ranks.agree(self._newest)
        self.whole_step = -1 if found is None else found.step
        return found

    def _newest(self) -> CheckpointOnDisk | None:
        here = newest_healthy(self._directory.checkpoints)
        if self.mirror is None:
            return here
        after = -1 if here is None else here.step
        copy = newest_trusted(self.mirror.place, self._graded(), after=after)
        if copy is None:
            return here
        path = self._directory.checkpoint_of(copy.step)
        if path.exists():  # damaged, or it would have been found
            move_aside(path, self._directory.aside)
        path = copy_checkpoint(copy.path, self._directory.checkpoints)
        self._notes.append(f"{path.name} was not whole here and is brought back from {copy.path}")
        return replace(copy, path=path)

    def _graded(self) -> dict[str, tuple[str, str]]:
        """Return the newest record of each checkpoint: its grade, and the attempt that saved it.

        The journal is read first; a grade in the folder itself, perhaps set by hand, overrides it.
        """
        graded: dict[str, tuple[str, str]] = {}
        for event in read_journal(self._directory.journal)[0]:
            if event.event == "checkpoint":
                name, grade = (
                    PurePath(str(event.data.get("path"))).name,
                    str(event.data.get("grade")),
                )
                saver = event.attempt if grade == "healthy" else graded.get(name, ("", ""))[1]
                graded[name] = (grade, saver)
        doubted = {
            c.path.name: (str(c.grade), c.attempt) for c in self._listed() if c.grade != "healthy"
        }
        return graded | doubted

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
        """Return the step of the oldest healthy checkpoint, hashes not compared; or None."""
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

    def load(self, checkpoint: CheckpointOnDisk, training: Training) -> StateDict:
        """Return the state that a checkpoint holds, this rank's shards of it.

        Raises:
            ReadError: It is not whole.
        """
        return load_state(checkpoint.path, training, ranks=self._ranks)

    def set_aside_after(self, step: int, *, first_sign: float, now: int, why: str) -> None:
        """Move the checkpoints after `step` aside; pin the one before, the last before trouble.

        From the first sign on they are graded poisoned, before it suspect. Nothing is
        deleted.

        Raises:
            ActError: The disk refuses.
        """
        self.finish(wait=True)

        def work() -> None:
            self._recorder.check_owner()
            try:
                self._set_aside_after(step, first_sign=first_sign, now=now, why=why)
            except OSError as error:
                raise ActError(
                    f"{self._directory.checkpoints}: the checkpoints after step {step} cannot be"
                    f" moved aside ({error.strerror}); free space, then go back again"
                ) from error

        self._ranks.on_chief(work)

    def _set_aside_after(self, step: int, *, first_sign: float, now: int, why: str) -> None:
        last: CheckpointOnDisk | None = None
        for checkpoint in self._listed():
            if checkpoint.step <= step:
                last = checkpoint
                continue
            grade: Grade = "poisoned" if checkpoint.step >= first_sign else "suspect"
            regrade(checkpoint, grade, why)
            if self.mirror is not None:
                self.mirror.grade(checkpoint.path.name, grade, why)
            target = move_aside(checkpoint.path, self._directory.aside)
            self._recorder.event(
                "checkpoint",
                step=now,
                path=str(target.relative_to(self._directory.root)),
                grade=grade,
                why=why,
            )
        healthy = [c.step for c in self._listed() if c.grade == "healthy"]
        self.whole_step = max(healthy, default=-1)
        if last is not None and not last.pinned:
            self._pin(last)

    def decided_since(self, checkpoint: CheckpointOnDisk | None) -> StateDict | None:
        """Return the decisions that the journal's last action left standing, where it is newer.

        Args:
            checkpoint: The one that is resumed from; None: any action is newer.
        """
        return self._ranks.agree(lambda: self._decided_since(checkpoint))

    def _decided_since(self, checkpoint: CheckpointOnDisk | None) -> StateDict | None:
        if not self._directory.journal.exists():
            return None
        standing: StateDict | None = None
        for event in read_journal(self._directory.journal)[0]:
            d = event.data
            if event.event == "action" and isinstance(d.get("standing"), dict):
                standing = d["standing"]
            elif (
                event.event == "checkpoint"
                and checkpoint is not None
                and d.get("path") == checkpoint.path.name
                and d.get("grade") == "healthy"
                and not d.get("actions_since")
            ):
                standing = None  # the checkpoint holds all that was decided until here
        return standing

    def _listed(self) -> tuple[CheckpointOnDisk, ...]:
        """Return the whole checkpoints, oldest first.

        A folder is read again only where its files are not those that were read: a step knows its
        checkpoints without opening a file, and people may grade or remove one at any time.
        """
        folder, before = self._directory.checkpoints, self._known
        self._known = {}
        for path in folder.iterdir() if folder.is_dir() else ():
            seen = files_seen(path)
            known = before.get(path)
            if known is None or known[0] != seen:
                known = (seen, read_checkpoint(path))
            self._known[path] = known
        there = (c for _, c in self._known.values() if c is not None)
        return tuple(sorted(there, key=lambda c: c.step))

    def _know(self, checkpoint: CheckpointOnDisk) -> None:
        self._known[checkpoint.path] = (files_seen(checkpoint.path), checkpoint)
