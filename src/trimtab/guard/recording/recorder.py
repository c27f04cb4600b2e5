"""Writes a run down while it runs.

Samples of each attempt, events, and the settings as launched.
"""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from trimtab.chronicle.journal import Event, Journal
from trimtab.errors import ChronicleError
from trimtab.guard.recording.fault_barrier import to_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import BinaryIO

    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.contract import Finding

__all__ = ["Listener", "Recorder"]


class Listener(Protocol):
    """Hears what is written down, as it is; on the first rank only.

    A listener that fails is left out from then on, which is journalled; training goes on.
    """

    def sample(self, step: int, values: Mapping[str, float], *, attempt: str) -> None:
        """Take in the signals of one step; steps fall back in a rollback. NaN is a value here."""

    def event(self, event: Event) -> None:
        """Take in an event of the journal."""

    def close(self) -> None:
        """Nothing more will come."""


class Recorder:
    """The only writer of a run directory's journal and signals."""

    def __init__(self, directory: RunDirectory, *, writes: bool = True) -> None:
        """Open the run directory for writing; it is made where it does not exist.

        Args:
            directory: Where to.
            writes: False on all ranks but the first: nothing is opened, nothing is written.

        Raises:
            ChronicleError: It cannot be written.
        """
        self.directory = directory
        self.journal = Journal(directory.journal) if writes else None
        self.attempt = ""
        self.closed = False
        self.num_actions = 0
        """`action` events that this process wrote; on ranks that write nothing, those told of."""
        self.listeners: list[Listener] = []
        self._file: BinaryIO | None = None

    def start_attempt(
        self,
        number: str,
        *,
        step: int,
        parent: str | None,
        parent_step: int | None,
        why: str,
        trial: bool,
        **more: Any,
    ) -> None:
        """Begin a new attempt: its own file of samples, and an event."""
        self._close_file()
        self.attempt = number
        if self.journal is None:
            return
        path = self.directory.signals_of(number)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        except OSError as error:
            raise ChronicleError(
                f"{path}: cannot be opened for writing ({error.strerror})"
            ) from error
        self.event(
            "attempt",
            step=step,
            number=number,
            parent=parent,
            parent_step=parent_step,
            why=why,
            trial=trial,
            **more,
        )

    def sample(self, step: int, values: Mapping[str, float], labels: Mapping[str, str]) -> None:
        """Append one step; NaN and Inf are written as strings, because JSON has none."""
        if self.journal is None:
            return
        row: dict[str, Any] = {"step": step}
        for name, value in values.items():
            row[name] = value if math.isfinite(value) else _word(value)
        row.update(labels)
        row["step"] = step  # whatever else is called so
        assert self._file is not None
        self._file.write(orjson.dumps(row) + b"\n")
        self._file.flush()
        self._pass_on(lambda listener: listener.sample(step, values, attempt=self.attempt), step)

    def layers(self, step: int, layers: Mapping[str, list[float]]) -> None:
        """Append what was measured block by block; a file of its own, one line per reading."""
        if self.journal is None:
            return
        folder = self.directory.signals / "layers"
        folder.mkdir(exist_ok=True)
        row = {"step": step} | {
            name: [v if math.isfinite(v) else None if math.isnan(v) else _word(v) for v in values]
            for name, values in layers.items()
        }
        with (folder / f"{self.attempt}.jsonl").open("ab") as file:
            file.write(orjson.dumps(row) + b"\n")

    def event(self, event: str, *, step: int, **data: Any) -> None:
        """Append one event to the journal.

        Raises:
            ChronicleError: It cannot be written, or the run has ended.
        """
        if self.closed:
            raise ChronicleError(f"{self.directory.root}: is closed for writing; open a new Guard")
        if self.journal is not None:
            self.journal.append(event, attempt=self.attempt, step=step, **data)
        self.num_actions += event == "action"
        if self.listeners:
            told = Event(
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                event,
                self.attempt,
                step,
                data,
            )
            self._pass_on(lambda listener: listener.event(told), step)

    def _pass_on(self, tell: Callable[[Listener], None], step: int) -> None:
        """Tell each listener; one that fails is left out from then on."""
        for listener in tuple(self.listeners):
            try:
                tell(listener)
            except Exception as error:  # noqa: BLE001 - somebody else's logger stops no run
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

    def settings(self, settings: Mapping[str, Any]) -> None:
        """Write `run.toml` once; a later launch leaves the first one in place.

        Raises:
            ChronicleError: It cannot be written.
        """
        path = self.directory.settings
        if self.journal is not None and not path.exists():
            lines = [
                f"{key} = {_toml(value)}" for key, value in settings.items() if value is not None
            ]
            try:
                path.write_text("\n".join(lines) + "\n", encoding="utf-8")
            except OSError as error:
                raise ChronicleError(
                    f"{path}: cannot be written ({error.strerror}); free space or choose another"
                    " run directory"
                ) from error

    def add_setting(self, key: str, value: Any) -> None:
        """Add to `run.toml` what is known only later; what is in it stays."""
        path = self.directory.settings
        if self.journal is None or not path.exists():
            return
        if any(line.startswith(f"{key} = ") for line in path.read_text("utf-8").splitlines()):
            return
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{key} = {_toml(value)}\n")

    def close(self) -> None:
        """Close both files; nothing can be written afterwards."""
        if not self.closed:
            self.closed = True
            self._close_file()
            if self.journal is not None:
                for listener in self.listeners:
                    with contextlib.suppress(Exception):
                        listener.close()
                self.journal.close()

    def _close_file(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk was told of when the row was written
                self._file.close()
            self._file = None


def _word(value: float) -> str:
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)
