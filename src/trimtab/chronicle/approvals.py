"""Actions that wait for a person: staged in the journal, answered through a mailbox.

A guard that may not act by itself journals `staged`, with what it would do, the steps that costs
and what undoes it. `trimtab approve RUN ID` appends one line to `approvals.jsonl` in the run
directory; the guard reads it through a descriptor it holds open, and journals `answered`. The
mailbox is append-only, so an answer given while no guard runs is found by the next one.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import ChronicleError, ConfigError, ReadError

__all__ = [
    "Answer",
    "Mailbox",
    "Said",
    "StagedAction",
    "mailbox_of",
    "read_staged",
    "staged_actions",
]

_MOST_LINE_BYTES = 4096
_MOST_READ_BYTES = 1 << 16
"""Most bytes of the mailbox that are looked at at once."""


@dataclass(frozen=True, kw_only=True)
class StagedAction:
    """One action that waits, or waited, for a person."""

    id: str
    classes: tuple[str, ...]
    """Classes of action that are asked for, as in `plan.authority.ACTION_CLASSES`."""
    kind: str
    """Kind of the incident it answers."""
    what: str
    cost_steps: int
    """Steps that are lost by doing it, trials included, as expected when it was staged."""
    undo: str
    step: int
    staged_at: str
    """UTC, ISO 8601."""
    deadline_s: float
    at_deadline: str
    raise_by: float = 1.0
    """Factor by which it raises the learning rate; 1: it does something else."""
    answer: str = ""
    """approved, denied, withdrawn, or empty while it waits."""
    why: str = ""


@dataclass(frozen=True)
class Answer:
    """What a person said to one staged action."""

    id: str
    approved: bool
    why: str
    author: str = ""


def mailbox_of(root: Path) -> Path:
    """Return the file through which a run is answered."""
    return root / "approvals.jsonl"


def staged_actions(events: Iterable[Event]) -> tuple[StagedAction, ...]:
    """Return the staged actions of a journal in order, each with its answer.

    A line that lacks a field, or holds another type, is passed over: people edit journals.
    """
    found: dict[str, StagedAction] = {}
    for event in events:
        d = event.data
        if event.event == "staged":
            staged = _staged(event)
            if staged is not None:
                found[staged.id] = staged
        elif event.event == "answered" and str(d.get("id")) in found:
            name = str(d.get("id"))
            found[name] = replace(
                found[name], answer=str(d.get("answer", "")), why=str(d.get("why", ""))
            )
    return tuple(found.values())


def read_staged(root: Path) -> tuple[StagedAction, ...]:
    """Return the staged actions of a run directory.

    Raises:
        ReadError: It holds no journal.
    """
    journal = RunDirectory(root).journal
    if not journal.is_file():
        raise ReadError(f"{root}: has no journal.jsonl; give the directory of a guarded run")
    return staged_actions(read_journal(journal)[0])


def _staged(event: Event) -> StagedAction | None:
    d = event.data
    try:
        return StagedAction(
            id=str(d["id"]),
            classes=tuple(map(str, d["classes"])),
            kind=str(d["kind"]),
            what=str(d["what"]),
            cost_steps=int(d["cost_steps"]),
            undo=str(d["undo"]),
            step=event.step,
            staged_at=event.t,
            deadline_s=float(d["deadline_s"]),
            at_deadline=str(d["at_deadline"]),
            raise_by=float(d.get("raise_by", 1.0)),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


class Mailbox:
    """The end of the mailbox that a guard reads: one descriptor, no file opened while training."""

    def __init__(self, path: Path) -> None:
        """Open the mailbox, which is made where it is missing.

        Raises:
            OSError: It cannot be opened.
        """
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self._offset = 0

    def read(self) -> tuple[Answer, ...]:
        """Return the answers that came since the last call; one `fstat` where there is none.

        Half a line is left for the next call; what is no answer is passed over.
        """
        found = os.fstat(self._descriptor)
        if not found.st_nlink:  # somebody put another file in its place
            again = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.close(self._descriptor)
            self._descriptor, self._offset, found = again, 0, os.fstat(again)
        size = found.st_size
        if size < self._offset:  # somebody cut it: what stands there now was not read
            self._offset = 0
        if size <= self._offset:
            return ()
        data = os.pread(self._descriptor, min(size - self._offset, _MOST_READ_BYTES), self._offset)
        end = data.rfind(b"\n") + 1
        if not end and len(data) >= _MOST_LINE_BYTES:  # no line of ours is so long
            end = len(data)
        self._offset += end
        return tuple(a for a in map(_answer, data[:end].splitlines()) if a is not None)

    def close(self) -> None:
        """Close it; done again, it changes nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @staticmethod
    def put(root: Path, answer: Answer) -> Path:
        """Append an answer to a run's mailbox and bring it to disk; return the file.

        Raises:
            ChronicleError: It cannot be written.
            ConfigError: The reason is longer than a line may be.
        """
        path = mailbox_of(root)
        line = json.dumps(
            {
                "t": datetime.now(UTC).isoformat(timespec="seconds"),
                "id": answer.id,
                "answer": "approve" if answer.approved else "deny",
                "why": answer.why,
                "author": answer.author,
            }
        ).encode()
        if len(line) >= _MOST_LINE_BYTES:
            raise ConfigError(f"--reason has {len(answer.why):,} characters; say it in fewer")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                size = os.fstat(file).st_size
                torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
                os.write(file, (b"\n" if torn else b"") + line + b"\n")
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise ChronicleError(
                f"{path}: cannot be written ({error.strerror}); answer as the user who owns the run"
            ) from error
        return path


def _answer(line: bytes) -> Answer | None:
    try:
        data = json.loads(line)
        said = data["answer"]
        if said not in ("approve", "deny"):
            return None
        why, author = str(data.get("why", "")), str(data.get("author", ""))
        return Answer(str(data["id"]), said == "approve", why, author)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


Said = Literal["approved", "denied", "deadline", "withdrawn"]
"""How a staged action was answered: by a person, by its deadline, or not at all any more."""
