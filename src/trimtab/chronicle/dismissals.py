"""Incidents that a person marked as expected, stored beside the run or log they belong to.

In a run directory a dismissal is an event of the journal. A log that somebody else's program writes
is left alone: its dismissals stand in one file of the user's own (`store`), one JSON line each,
under the hash of the log's beginning, so that they survive a move of the log and its growth.

A dismissal holds for the incident at that place as long as it is not more severe than it was then:
a warning that was waved through and becomes critical is an alarm again.
"""

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trimtab.chronicle.journal import append_once, read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.durable import make_folder, sync_folder
from trimtab.errors import ChronicleError
from trimtab.incidents import JOIN_ROWS, Incident
from trimtab.kinds import severity_rank

__all__ = ["Dismissal", "dismissal_of", "dismissals", "remember"]

PREFIX_SIZE_BYTES = 1 << 14
"""How much of a log's beginning names it, or all of a shorter one."""


@dataclass(frozen=True, kw_only=True)
class Dismissal:
    """One incident marked as expected, or no longer so."""

    attempt: str
    kind: str
    severity: str
    """At that time."""
    onset: float
    onset_row: int
    why: str
    author: str = ""
    """Who said so; empty in what older versions wrote."""
    undo: bool = False
    signal: str = ""
    """It speaks of what this one shows alone; empty: of all of the incident."""

    def fits(self, incident: Incident) -> bool:
        """Tell whether it speaks of this incident."""
        if self.signal and any(
            f.severity != "info" and f.signal != self.signal for f in incident.findings
        ):
            return False
        return self._same_place(incident.attempt, incident.onset_row) and (
            severity_rank(incident.severity) <= max(severity_rank(self.severity), 0)
        )

    def _same_place(self, attempt: str, onset_row: int) -> bool:
        return self.attempt == attempt and abs(self.onset_row - onset_row) <= JOIN_ROWS

    def undoes(self, other: "Dismissal") -> bool:
        """Tell whether it takes another back."""
        return self.undo and self._same_place(other.attempt, other.onset_row)


def dismissals(source: str, *, store: Path) -> tuple[Dismissal, ...]:
    """Return what was dismissed in a run or log and not taken back since.

    Args:
        source: A run directory, a log, or `FILE#RUN` of a database.
        store: File that keeps the dismissals of foreign logs.
    """
    root = RunDirectory(Path(source))
    if root.journal.is_file():
        events, _ = read_journal(root.journal)
        told = [_of(e.data, e.attempt) for e in events if e.event == "dismiss"]
    else:
        told = [_of(d, str(d.get("attempt"))) for d in _stored(source, store)]
    kept: list[Dismissal] = []
    for dismissal in (d for d in told if d is not None):
        kept = [k for k in kept if not dismissal.undoes(k)]
        if not dismissal.undo:
            kept.append(dismissal)
    return tuple(kept)


def dismissal_of(incident: Incident, known: Sequence[Dismissal]) -> Dismissal | None:
    """Return the dismissal that speaks of an incident; the latest of several."""
    return next((d for d in reversed(known) if d.fits(incident)), None)


def remember(source: str, dismissal: Dismissal, *, store: Path) -> Path:
    """Write a dismissal down and return the file that it now stands in.

    Raises:
        ChronicleError: That file cannot be written, or the log cannot be read.
    """
    root = RunDirectory(Path(source))
    data = {k: v for k, v in asdict(dismissal).items() if k != "attempt"}
    if root.journal.is_file():
        append_once(
            root.journal,
            "dismiss",
            attempt=dismissal.attempt,
            step=int(dismissal.onset),
            **data,
        )
        return root.journal
    size, digest = _key(source, PREFIX_SIZE_BYTES)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    line = {"t": now, "size_bytes": size, "sha256": digest, "attempt": dismissal.attempt, **data}
    try:
        make_folder(store.parent)
        if store.exists() and not store.is_file():
            raise OSError(errno.EINVAL, "not a regular file", str(store))
        file = os.open(store, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size_store = os.fstat(file).st_size
            torn = size_store > 0 and os.pread(file, 1, size_store - 1) != b"\n"
            text = ("\n" if torn else "") + json.dumps(line, allow_nan=False) + "\n"
            os.write(file, text.encode())
            os.fsync(file)
            if not size_store:
                sync_folder(store.parent)
        finally:
            os.close(file)
    except OSError as error:
        raise ChronicleError(
            f"{store}: cannot be written ({error.strerror}); set XDG_STATE_HOME to a folder of"
            " yours"
        ) from error
    return store


def _of(data: Any, attempt: str) -> Dismissal | None:
    """Return a dismissal from a line that anybody may have edited; None where it is none."""
    try:
        return Dismissal(
            attempt=attempt,
            kind=str(data["kind"]),
            severity=str(data["severity"]),
            onset=float(data["onset"]),
            onset_row=int(data["onset_row"]),
            why=str(data["why"]),
            author=str(data.get("author", "")),
            undo=data.get("undo") is True,
            signal=str(data.get("signal", "")),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _stored(source: str, store: Path) -> Iterator[dict[str, object]]:
    """Yield the lines of the store about one log, oldest first."""
    if not store.is_file():  # a pipe would be waited on
        return
    try:
        lines = store.read_bytes().splitlines()
    except OSError:
        return
    keys: dict[int, str] = {}
    for line in lines:
        try:
            data = json.loads(line)
            size, digest = int(data["size_bytes"]), data["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if not 0 < size <= PREFIX_SIZE_BYTES:
            continue
        if size not in keys:
            try:
                keys[size] = _key(source, size)[1]
            except ChronicleError:
                return
        if keys[size] == digest:
            yield data


def _key(source: str, size: int) -> tuple[int, str]:
    """Return how many bytes of the log's beginning were hashed, and their hash."""
    path, _, run = source.partition("#") if not Path(source).exists() else (source, "", "")
    file = Path(path)
    try:
        if file.is_dir():  # the event files of one directory
            file = min(p for p in file.rglob("*") if p.is_file())
        with file.open("rb") as stream:
            start = stream.read(size)
    except (OSError, ValueError) as error:
        raise ChronicleError(
            f"{source}: cannot be read ({error}); give the log that was inspected"
        ) from error
    return len(start), hashlib.sha256(start + b"#" + run.encode()).hexdigest()
