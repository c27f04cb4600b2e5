"""What a run goes on from: its folder of checkpoints, held against what its journal says of them.

A run begins at step 0 again only where its journal was read and names no checkpoint that should be
there. A checkpoint that is missing or damaged is passed over for an older one, and that is said;
one that cannot be read now may come back, so the start is refused until somebody has looked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from trimtab.checkpoints.manifest import inspect_folder, named_folders, step_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from trimtab.checkpoints.manifest import CheckpointOnDisk, InspectedFolder
    from trimtab.chronicle.journal import Event

__all__ = [
    "Journaled",
    "ResumeChoice",
    "choose",
    "finished_at",
    "journaled",
    "lineage_of",
    "trusted_attempts",
]

_UNFINISHED = ("interrupted", "started over", "given up")
"""Reasons of an `end` after which the same script is meant to go on."""


@dataclass(frozen=True, kw_only=True)
class Journaled:
    """What the journal says last of one checkpoint."""

    step: int
    grade: str
    """healthy, suspect, poisoned or removed."""
    attempt: str
    """The attempt that saved it."""
    aside: bool
    """Whether it was moved aside."""

    @property
    def expected(self) -> bool:
        """Whether it should be in the folder of checkpoints."""
        return not self.aside and self.grade != "removed"


@dataclass(frozen=True, kw_only=True)
class ResumeChoice:
    """What to go on from, and what stands against it."""

    checkpoint: CheckpointOnDisk | None = None
    """The newest whole and healthy one; None: there is none."""
    passed_over: tuple[str, ...] = ()
    """Newer ones that are missing or damaged, with the reason."""
    lost: tuple[str, ...] = ()
    """Checkpoints without which the run may not begin at step 0, with the reason."""
    doubtful: tuple[str, ...] = ()
    """Whole ones that are not healthy, with the reason, where there is none to go on from."""
    unreadable: str = ""
    """What cannot be read now and may come back: no older one is gone on from."""


def journaled(events: Iterable[Event]) -> dict[str, Journaled]:
    """Return what the journal says last of each checkpoint, by the name of its folder."""
    found: dict[str, Journaled] = {}
    for event in events:
        if event.event == "rollback":
            _move(found, event)
        if event.event != "checkpoint":
            continue
        path, grade = PurePath(str(event.data.get("path"))), str(event.data.get("grade"))
        name = path.name.partition(".")[0]  # moved aside, a second one of a step gets a number
        step, before = step_of(name), found.get(name)
        if step is None:
            continue
        saved = grade == "healthy" or before is None
        found[name] = Journaled(
            step=step,
            grade=grade,
            attempt=event.attempt if saved or before is None else before.attempt,
            aside=len(path.parts) > 1,
        )
    return found


def _move(found: dict[str, Journaled], event: Event) -> None:
    """Note what `trimtab rollback` moved aside, or brought back."""
    moved = event.data.get("moved")
    for entry in moved if isinstance(moved, list) else ():
        name = PurePath(str(entry.get("from"))).name if isinstance(entry, dict) else ""
        if name in found:
            aside = event.data.get("state") == "applied"
            found[name] = replace(found[name], aside=aside)


def lineage_of(events: Iterable[Event]) -> str:
    """Return the lineage that was begun last; empty where no attempt is known."""
    numbers = [str(e.data.get("number", "")) for e in events if e.event == "attempt"]
    return numbers[-1].partition(".")[0] if numbers else ""


def finished_at(events: Iterable[Event]) -> int | None:
    """Return the step at which a run ended that is done; None where it is not."""
    last = [e for e in events if e.event in ("start", "resume", "attempt", "end")][-1:]
    done = [e.step for e in last if e.event == "end" and e.data.get("reason") not in _UNFINISHED]
    return done[0] if done else None


def choose(folder: Path, events: Iterable[Event]) -> ResumeChoice:
    """Return what a run goes on from.

    Args:
        folder: Its checkpoints.
        events: Its journal; empty where that is gone.

    Raises:
        ReadError: The folder cannot be listed.
    """
    events = tuple(events)
    lineage = lineage_of(events)
    told = journaled(events)
    known = {n: j for n, j in told.items() if _is_of(j.attempt, lineage)}
    paths = named_folders(folder)
    if paths is None and any(j.expected for j in known.values()):
        names = ", ".join(sorted(n for n, j in known.items() if j.expected))
        return ResumeChoice(lost=(f"{folder} is missing; the journal names {names} in it",))
    passed_over: list[str] = []
    lost: list[str] = []
    doubtful: list[str] = []
    there = {p.name for p in paths or ()}
    missing = {folder / n for n, j in known.items() if j.grade == "healthy" and j.expected}
    for path in sorted({*(paths or ()), *missing}, key=_age, reverse=True):
        if path.name not in there:
            passed_over.append(f"{path.name} is not there, and the journal names it")
            lost.append(passed_over[-1])
            continue
        found = _look(path, told.get(path.name), lineage)
        if found is None:
            continue
        graded = found.checkpoint
        lacks_grade = _lacks_grade(found, told.get(path.name))
        if graded is not None and graded.grade != "healthy" and not lacks_grade:
            doubtful.append(f"{path.name} is {graded.grade} ({graded.why})")
            continue
        if found.condition == "unreadable":
            return ResumeChoice(unreadable=f"{path}: {found.why}", passed_over=tuple(passed_over))
        if found.condition == "whole" and not found.why:
            return ResumeChoice(checkpoint=found.checkpoint, passed_over=tuple(passed_over))
        passed_over.append(f"{path.name}: {found.why}")
        lost.append(passed_over[-1])
    return ResumeChoice(passed_over=tuple(passed_over), lost=tuple(lost), doubtful=tuple(doubtful))


def _look(path: Path, told: Journaled | None, lineage: str) -> InspectedFolder | None:
    """Look at one folder; None: it is none to go on from, and was never meant to be."""
    found = inspect_folder(path, hashes=False)
    if found.checkpoint is None:
        # of what cannot be read, the journal knows whether it would be gone on from
        wanted = told is None or (told.grade == "healthy" and told.expected)
        return found if wanted and (told is None or _is_of(told.attempt, lineage)) else None
    if not _is_of(found.checkpoint.attempt, lineage):
        return None
    if found.checkpoint.grade != "healthy":
        return found
    return inspect_folder(path)


def _lacks_grade(found: InspectedFolder, told: Journaled | None) -> bool:
    """Whether the grade of a whole checkpoint is lost, which the journal does not call doubtful."""
    return bool(found.why) and (told is None or told.grade == "healthy")


def _is_of(attempt: str, lineage: str) -> bool:
    return not lineage or attempt.partition(".")[0] == lineage


def _age(path: Path) -> tuple[int, str]:
    return step_of(path.name) or 0, path.name


def trusted_attempts(events: Iterable[Event], here: Mapping[str, str]) -> dict[str, str]:
    """Return the attempt that saved each checkpoint whose copy may be gone on from, by name.

    Args:
        events: The run's journal.
        here: Grades in the folder itself, by name: one set by hand overrides the journal's.
    """
    events = tuple(events)
    lineage = lineage_of(events)
    return {
        name: j.attempt
        for name, j in journaled(events).items()
        if j.grade in ("healthy", "removed")
        and not j.aside
        and _is_of(j.attempt, lineage)
        and here.get(name, "healthy") == "healthy"
    }
