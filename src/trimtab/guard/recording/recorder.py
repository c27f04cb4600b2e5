"""Writes the run directory while the run goes on: samples, events, the settings as launched.

What is written is kept in memory too, as a `LiveRecord`: nothing is read back from the directory.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import orjson

from trimtab.chronicle.journal import Event, Journal
from trimtab.durable import write_whole
from trimtab.errors import ChronicleError, OwnerLost
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.recording.live_record import LiveRecord
from trimtab.guard.recording.row_writer import RowWriter
from trimtab.masking import masked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trimtab.chronicle.run_lock import RunLock
    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.contract import Finding
    from trimtab.guard.recording.row_sync import RowSync

__all__ = ["Listener", "Recorder"]

_MOST_HELD_EVENTS = 10_000
"""Events that are kept in memory while the journal cannot be written."""
_GIVEN_UP_FIRST = ("finding", "note")
"""Of those, what goes where they are too many."""


class Listener(Protocol):
    """Receives what is recorded, when it is recorded; on the first rank only.

    A listener that raises is removed, which is journalled; training goes on.
    """

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Receive the signals of one step; steps fall back in a rollback. NaN is a value."""

    def event(self, event: Event) -> None:
        """Receive an event of the journal."""

    def close(self) -> None:
        """Close: nothing more follows."""


class Recorder:
    """The only writer of a run directory's journal and signals.

    Where the disk refuses, rows and events are kept in memory and written, in their order, when it
    takes them again. `hold_events` begins that for events; before it a failed event is an error.
    """

    def __init__(
        self,
        directory: RunDirectory,
        *,
        writes: bool = True,
        lock: RunLock | None = None,
        row_sync: RowSync | None = None,
    ) -> None:
        """Open the run directory for writing, and make it where it does not exist.

        Args:
            directory: The run directory.
            writes: False on all ranks but the first: nothing is opened, nothing is written.
            lock: Compared before each event: nothing is written once another process took the run.
            row_sync: Says when rows are brought to disk; None: by its defaults.

        Raises:
            ChronicleError: The directory cannot be written, or another guard is writing to it.
        """
        self.directory = directory
        self.journal = Journal(directory.journal) if writes else None
        self._lock = lock
        self._signed = lock is None
        if lock is not None:
            lock.hold_journal()
        self.on_lost: Callable[[OwnerLost], None] | None = None
        """Told once when another process took the run; None: the error is raised."""
        self.lost = ""
        """Who took the run; from then on all goes to memory and to the listeners alone."""
        self.attempt = ""
        self.closed = False
        self.num_actions = 0
        """`action` events of this process; counted on all ranks, written on the first."""
        self.listeners: list[Listener] = []
        self.live = LiveRecord(directory)
        """What was recorded, in memory; it stays empty on ranks that write nothing."""
        if writes:
            self.live.fill()
        self._settings_known: set[str] | None = None
        """Keys in `run.toml`; None before `settings`."""
        self._settings_text = b""
        """`run.toml` as it stands: what is added later is written with it, whole."""
        self._rows = RowWriter(row_sync)
        self._file: tuple[str, Path] | None = None
        """Attempt and file of the last row."""
        self._held: deque[tuple[str, str, int, dict[str, object]]] = deque()
        """Events that are not on disk: event, attempt, step, fields."""
        self._num_given_up = 0
        """Events that memory did not hold, since the journal was last written."""
        self._on_refused: Callable[[Exception], None] | None = None

    def hold_events(self, on_refused: Callable[[Exception], None]) -> None:
        """From now on keep an event that the disk refuses, and call `on_refused` with the error."""
        self._on_refused = on_refused

    def start_attempt(
        self,
        number: str,
        *,
        step: int,
        parent: str | None,
        parent_step: int | None,
        why: str,
        trial: bool,
        **more: object,
    ) -> None:
        """Begin a new attempt: its own file of samples, and an event with all of these fields.

        Raises:
            ChronicleError: The disk refuses the file or the event, and did not do so before.
        """
        self.attempt = number
        if self.journal is None or self.lost:
            return
        refused = bool(self._held or self._rows.num_held)
        path = self.directory.signals_of(number)
        try:
            if not refused:  # else it is opened when its rows are written
                self._rows.open(path)
        except OSError as error:
            raise ChronicleError(
                f"{path}: cannot be opened for writing ({error.strerror})"
            ) from error
        settings = more.get("settings")
        self.live.start_attempt(
            number,
            parent=parent,
            parent_step=parent_step,
            why=why,
            trial=trial,
            settings=settings if isinstance(settings, Mapping) else None,
        )
        (self.event if refused else self.decide)(
            "attempt",
            step=step,
            number=number,
            parent=parent,
            parent_step=parent_step,
            why=why,
            trial=trial,
            **more,
        )
        if not self._signed and self._lock is not None:
            self._signed = True
            self.event("owner", step=step, **self._lock.identity)

    def check_owner(self) -> None:
        """Make sure that this process still holds the run; done before all that is written.

        Raises:
            OwnerLost: Another process took it.
        """
        if self._lock is None:
            return
        try:
            self._lock.check()
        except OwnerLost as error:
            if self.lost:
                raise
            self.lost = str(error)
            self._rows.close()
            if self.on_lost is None:
                raise
            self.on_lost(error)
            raise

    def _is_ours(self) -> bool:
        """Whether this process still holds the run, and may write to it."""
        if self.on_lost is None:
            self.check_owner()
        else:
            with contextlib.suppress(OwnerLost):  # told already; who asked need not handle it
                self.check_owner()
        return not self.lost

    def sample(self, step: int, values: Mapping[str, float], labels: Mapping[str, str]) -> None:
        """Take in one step; `write_rows` brings it to disk.

        NaN and Inf are written as strings, because JSON has neither.
        """
        if self.journal is None:
            return
        row: dict[str, object] = {"step": step}
        for name, value in values.items():
            row[name] = value if math.isfinite(value) else _word(value)
        row.update(labels)
        row["step"] = step  # a signal or a label of that name must not hide it
        if not self.lost:
            line = orjson.dumps(row) + b"\n"
            if self._file is None or self._file[0] != self.attempt:
                self._file = self.attempt, self.directory.signals_of(self.attempt)
            self._rows.add(self._file[1], step, line)
        self.live.add(step, values)
        self._pass_on(lambda listener: listener.sample(step, values, attempt=self.attempt), step)

    def write_rows(self) -> None:
        """Write the rows that are not on disk.

        Raises:
            OSError: The disk refuses; they are kept, and written by a later call.
        """
        if self._rows.num_held and self._is_ours():
            self._rows.write()

    @property
    def held_steps(self) -> tuple[int, ...]:
        """Steps whose rows are in memory only."""
        return self._rows.held_steps

    def take_thinned(self) -> tuple[int, ...]:
        """Return the steps whose rows were given up because too many waited, each once."""
        return self._rows.take_thinned()

    def layers(self, step: int, layers: Mapping[str, list[float]]) -> None:
        """Append what was measured per layer, to a file of its own with one line per reading."""
        if self.journal is None or not self._is_ours():
            return
        folder = self.directory.signals / "layers"
        folder.mkdir(exist_ok=True)
        row = {"step": step} | {
            name: [v if math.isfinite(v) else None if math.isnan(v) else _word(v) for v in values]
            for name, values in layers.items()
        }
        with (folder / f"{self.attempt}.jsonl").open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")

    def event(self, event: str, *, step: int, **data: object) -> None:
        """Append one event to the journal; where the disk refuses, keep it until it does not.

        Raises:
            ChronicleError: It cannot be written as JSON, the run has ended, or the disk refuses
                before `hold_events`.
        """
        self._check_open()
        if self.journal is not None:
            if self._held:
                self._hold(event, step, data)
            else:
                try:
                    self._append(self.journal, event, step, data)
                except (OSError, ChronicleError) as error:
                    if self._on_refused is None or not _is_of_disk(error):
                        raise
                    self._hold(event, step, data)
                    self._on_refused(error)
        self._take_note(event, step, data)

    def decide(self, event: str, *, step: int, **data: object) -> None:
        """Append an event that something is about to rest on: it is on disk, or it is an error.

        Raises:
            ChronicleError: It, or one before it, cannot be written.
            OwnerLost: Another process took the run.
        """
        self._check_open()
        if self.journal is not None:
            try:
                self.write_events()
                self._append(self.journal, event, step, data)
                if self.lost:
                    raise OwnerLost(self.lost)
            except OSError as error:
                raise ChronicleError(
                    f"{self.directory.journal}: cannot be written ({error.strerror}); free space"
                ) from error
        self._take_note(event, step, data)

    def write_events(self) -> None:
        """Write the events that are not on disk, in their order.

        Raises:
            OSError: The disk refuses; they are kept, and written by a later call.
            ChronicleError: As above.
            OwnerLost: Another process took the run: nothing is written any more.
        """
        if self._held:
            with contextlib.suppress(OwnerLost):
                self.check_owner()
        if self.lost:
            raise OwnerLost(self.lost)
        while self._held and self.journal is not None:
            event, attempt, step, data = self._held[0]
            try:
                self.sync_rows()
                self.journal.append(event, attempt=attempt, step=step, **data)
            except (OSError, ChronicleError) as error:
                if _is_of_disk(error):
                    raise
                to_stderr(f"trimtab: an event is left out of the journal: {error}")
            self._held.popleft()
            if not self._held and self._num_given_up:
                number, self._num_given_up = self._num_given_up, 0
                text = (
                    f"{number} events are not in the journal: the disk took none, and memory holds"
                    f" {_MOST_HELD_EVENTS:,}; findings and notes went first"
                )
                to_stderr(f"trimtab: {text}")
                self._held.append(("note", attempt, step, {"author": "trimtab", "text": text}))

    def _append(self, journal: Journal, event: str, step: int, data: Mapping[str, object]) -> None:
        """Append to the journal, unless another process took the run."""
        if not self._is_ours():
            return
        before = journal.trouble
        self.sync_rows()
        journal.append(event, attempt=self.attempt, step=step, **data)
        self._tell_owner(journal, step, known=bool(before))

    def sync_rows(self) -> None:
        """Wait until the rows so far are on disk; an event speaks of none that could be lost.

        Raises:
            ChronicleError: The disk fails.
        """
        try:
            self._rows.sync()
        except OSError as error:
            raise ChronicleError(
                f"{self.directory.signals_of(self.attempt)}: the rows cannot be brought to disk"
                f" ({error.strerror}); free space or look at the disk"
            ) from error

    def _tell_owner(self, journal: Journal, step: int, *, known: bool) -> None:
        """Say what the lock has to say, and who else writes to the journal."""
        texts = self._lock.take_notes() if self._lock is not None else []
        if journal.trouble and not known:
            texts.append(f"{journal.trouble}; stop one of the two")
        for text in texts:
            to_stderr(f"trimtab: {text}")
            journal.append("note", attempt=self.attempt, step=step, author="trimtab", text=text)

    def _check_open(self) -> None:
        if self.closed:
            raise ChronicleError(f"{self.directory.root}: is closed for writing; open a new Guard")

    def _hold(self, event: str, step: int, data: dict[str, object]) -> None:
        self._held.append((event, self.attempt, step, data))
        if len(self._held) > _MOST_HELD_EVENTS:
            kept = [e for e in self._held if e[0] not in _GIVEN_UP_FIRST][-_MOST_HELD_EVENTS:]
            self._num_given_up += len(self._held) - len(kept)
            self._held = deque(kept)

    def _take_note(self, event: str, step: int, data: dict[str, object]) -> None:
        """Count an event, and pass it on."""
        if self.journal is not None:
            self.live.note_event(event, self.attempt, step, data)
        self.num_actions += event == "action"
        if self.listeners:
            passed = Event(
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                event,
                self.attempt,
                step,
                data,
            )
            self._pass_on(lambda listener: listener.event(passed), step)

    def _pass_on(self, pass_to: Callable[[Listener], None], step: int) -> None:
        """Call each listener; one that raises is removed."""
        for listener in tuple(self.listeners):
            try:
                pass_to(listener)
            except Exception as error:  # noqa: BLE001 - somebody else's logger stops no run
                if listener not in self.listeners:
                    continue  # removed already, by the note about another one below
                self.listeners.remove(listener)
                text = (
                    f"{type(listener).__name__} failed and is left out from here on:"
                    f" {type(error).__name__}: {error}"
                )
                to_stderr(f"trimtab: {text}")
                self.event("note", step=step, author="trimtab", text=text)

    def finding(self, finding: Finding, *, step: int) -> None:
        """Append one detector's claim to the journal.

        Raises:
            ChronicleError: As for `event`.
        """
        self.event(
            "finding",
            step=step,
            kind=finding.kind,
            signal=finding.signal,
            severity=finding.severity,
            onset=finding.onset,
            row=finding.row,
            text=finding.text,
            closed=finding.closed,
        )
        self.live.mark((finding.onset_row, finding.peak_row))

    def settings(self, settings: Mapping[str, object]) -> None:
        """Write `run.toml` at the first launch; a later launch leaves it as it is.

        Raises:
            ChronicleError: It cannot be written or read.
        """
        path = self.directory.settings
        if self.journal is None or self.lost:
            return
        lines = [
            f"{key} = {_toml(masked(value, name=key))}"
            for key, value in settings.items()
            if value is not None
        ]
        try:
            try:
                self._settings_text = path.read_bytes()
            except FileNotFoundError:
                self._settings_text = ("\n".join(lines) + "\n").encode()
                write_whole(path, self._settings_text)
            known = self._settings_text.decode(errors="replace").splitlines()
            self._settings_known = {line.partition(" = ")[0] for line in known}
            self.live.read_facts(path)
        except OSError as error:
            raise ChronicleError(
                f"{path}: cannot be read or written ({error.strerror}); free space, look at the"
                " disk, or choose another run directory"
            ) from error

    def add_setting(self, key: str, value: object) -> None:
        """Add a setting to `run.toml` that is known only later; one of that name stays."""
        known = self._settings_known
        if known is None or key in known or not self._is_ours():
            return
        if not self.directory.settings.exists():
            return
        known.add(key)
        if self._settings_text and not self._settings_text.endswith(b"\n"):
            self._settings_text += b"\n"
        self._settings_text += f"{key} = {_toml(masked(value, name=key))}\n".encode()
        write_whole(self.directory.settings, self._settings_text)
        self.live.note_fact(key, value)

    def close(self) -> None:
        """Close the journal and the file of samples; nothing can be written afterwards."""
        if not self.closed:
            self.closed = True
            self._rows.close()
            if self.journal is not None:
                for listener in self.listeners:
                    with contextlib.suppress(Exception):
                        listener.close()
                self.journal.close()


def _is_of_disk(error: Exception) -> bool:
    """Whether it is the system that refused a write, which may take it at another time."""
    return isinstance(error, OSError) or isinstance(error.__cause__, OSError)


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)
