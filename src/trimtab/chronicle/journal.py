"""The journal: the truth of a run, one JSON line per event, append-only.

Every line is flushed and fsynced before `append` returns, so an event that was acted on is on
disk. A writer never rewrites; a torn last line (the process died in mid-write) is left where it is
and the next event starts on a new line; a reader skips it and counts it.

Events are objects with `t` (UTC, ISO 8601), `event` (one of `EVENTS`), `attempt`, `step`, and
fields of their own.
"""

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab.detectors.contract import state_to_json
from trimtab.errors import ChronicleError
from trimtab.masking import masked

__all__ = ["EVENTS", "Event", "Journal", "read_journal"]

EVENTS = (
    "start",  # settings as launched, environment
    "resume",  # continued from a checkpoint
    "attempt",  # a new attempt: number, parent, parent_step, why, trial
    "finding",  # one detector's claim
    "incident",  # an episode opened or closed: kind, onset, precursor, headline, causes
    "decision",  # what was decided, why, with the evidence
    "action",  # what was done: remedy, values
    "outcome",  # worked / did not / unclear, with figures
    "checkpoint",  # saved, graded, pinned
    "fault",  # a fault of trimtab's own; the guard dropped to observe
    "note",  # free text with an author
    "dismiss",  # a person called an incident fine: kind, severity, onset, why; undo takes it back
    "end",  # the run finished
)
_MAX_ATTEMPT_CHARS = 100
"""An attempt is a short name like `1.0`; anything longer was not written by a guard."""


@dataclass(frozen=True)
class Event:
    """One line of the journal."""

    t: str
    event: str
    attempt: str
    step: int
    data: Mapping[str, Any]


class Journal:
    """Appends events to one file."""

    def __init__(self, path: Path) -> None:
        """Open `path` for appending; directories are made.

        Raises:
            ChronicleError: The file cannot be opened for writing.
        """
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._torn = False
            self._heal_torn_line()
        except OSError as error:
            raise ChronicleError(
                f"{path}: cannot be opened for writing ({error.strerror}); choose another run"
                " directory"
            ) from error

    def _heal_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            self._write(b"\n")
        self._torn = False

    def _write(self, data: bytes) -> None:
        """Write all of it; a disk may take a part and refuse the rest."""
        rest = memoryview(data)
        while rest:
            num_written = os.write(self._fd, rest)
            if num_written == 0:
                raise OSError(errno.EIO, "nothing more is taken")
            rest = rest[num_written:]

    def append(self, event: str, *, attempt: str, step: int, **data: object) -> None:
        """Write one event and wait until it is on disk.

        Raises:
            ChronicleError: The event is not in `EVENTS`, or the line could not be written.
        """
        if event not in EVENTS:
            raise ChronicleError(f"event {event!r} is not one of {', '.join(EVENTS)}")
        record = {
            "t": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": event,
            "attempt": attempt,
            "step": step,
            **data,
        }
        try:
            document = masked(state_to_json(record))
            text = json.dumps(document, ensure_ascii=False, separators=(", ", ": "))
            line = (text + "\n").encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ChronicleError(
                f"{self.path}: event {event!r} cannot be written as JSON "
                f"({type(error).__name__}: {error}); give numbers, texts, lists and mappings"
            ) from error
        try:
            if self._torn:
                self._heal_torn_line()
            self._torn = True
            self._write(line)
            self._torn = False
            os.fsync(self._fd)
        except OSError as error:
            raise ChronicleError(
                f"{self.path}: cannot be written ({error.strerror}); free space or choose another"
                " run directory"
            ) from error

    def close(self) -> None:
        """Close the file; `append` fails afterwards."""
        os.close(self._fd)


def read_journal(path: Path) -> tuple[tuple[Event, ...], int]:
    """Return the events of a journal and how many lines were torn or not events.

    Raises:
        ChronicleError: The file cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ChronicleError(
            f"{path}: cannot be read ({error.strerror}); give a run directory that holds"
            " journal.jsonl"
        ) from error
    events: list[Event] = []
    num_torn = 0
    for line in raw.splitlines():
        if not line.strip():
            continue
        try:
            data = json.loads(line)
            event = Event(
                str(data.pop("t")),
                str(data.pop("event")),
                str(data.pop("attempt")),
                _step(data.pop("step")),
                data,
            )
            if len(event.attempt) > _MAX_ATTEMPT_CHARS:
                raise ValueError(len(event.attempt))
            events.append(event)
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError):
            num_torn += 1
    return tuple(events), num_torn


def _step(value: str | float) -> int:
    """Return the step of an event; what no float can hold is none (OverflowError)."""
    step = int(value)
    float(step)
    return step
