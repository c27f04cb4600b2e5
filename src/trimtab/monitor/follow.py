"""Follow one log: an iterator over what is new, for `trimtab.watch` and `trimtab watch`."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.json_form import incident_to_json
from trimtab.analysis.self_test import SelfTester
from trimtab.analysis.source import Beside, account_or_fault
from trimtab.detectors.judge import Judge
from trimtab.errors import ConfigError
from trimtab.masking import masked, masked_text
from trimtab.monitor.follower import Notice, NoticeEvent, Watcher
from trimtab.readers import read_newest
from trimtab.record import RunRecord
from trimtab.text import finite_json, plain

__all__ = ["DEFAULT_HANG_FACTOR", "DEFAULT_INTERVAL_S", "Update", "Watch"]

DEFAULT_INTERVAL_S = 5.0
"""Seconds between looks at the log. Ours."""
DEFAULT_HANG_FACTOR = 20.0
"""A silence of so many usual rows is a hang. Ours."""
_LONGEST_S = 1e7
_BUSY_SHARE = 0.1
"""Largest share of the time that goes into reading: after a reading of 2 s the next waits 20 s."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """One thing that is new about a log; its `repr` leaves out what it holds of the log."""

    path: str = field(repr=False)
    """As given."""
    event: NoticeEvent
    """`found`, `changed` and `withdrawn` are about an incident, the others about the log."""
    text: str
    """One line for people."""
    id: int = 0
    """Number of the incident, from 1; 0 where the update is about none."""
    incident: IncidentAccount | None = field(default=None, repr=False)
    generation: int = field(default=0, repr=False)
    """Rises when another log stands at the path; ids are unique within one generation."""
    first_reading: bool = field(default=False, repr=False)
    """Whether it comes from the first reading that found rows."""
    record: RunRecord | None = field(default=None, repr=False)
    """The log as it was read; None before the first reading."""

    def to_dict(self) -> dict[str, object]:
        """Return the document that `trimtab watch --json` prints as one line."""
        incident = None
        if self.incident is not None and self.record is not None:
            incident = finite_json(masked(incident_to_json(self.record, self.incident)))
        return {
            "schema": 1,
            "path": masked_text(self.path),
            "event": self.event,
            "id": self.id or None,
            "text": plain(self.text),
            "incident": incident,
        }

    def __str__(self) -> str:
        """Return the line that `trimtab watch` prints."""
        if self.incident is None:
            return f"○ {self.event}  {plain(self.text)}"
        severity = self.incident.incident.severity
        label = "dismissed" if self.incident.dismissed else severity
        alarm = label in ("warning", "critical") and self.event != "withdrawn"
        return f"{'●' if alarm else '○'} {self.event} #{self.id}  {label}  {plain(self.text)}"


class Watch:
    """Iterates over the updates of one log until it is idle; without a limit it never ends."""

    def __init__(
        self,
        path: str,
        *,
        interval_s: float = DEFAULT_INTERVAL_S,
        until_idle_s: float | None = None,
        hang_factor: float = DEFAULT_HANG_FACTOR,
        beside: Beside | None = None,
        judge: Judge | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep what to watch; nothing is read before the first update is asked for.

        Args:
            path: A log or a run directory; it need not exist yet.
            interval_s: Seconds between looks.
            until_idle_s: Stop when nothing was new for so many seconds; None: never.
            hang_factor: A silence of so many usual rows, at least a minute, is a hang; 0: never.
            beside: What is known of the run beside its log.
            judge: The detectors to use; None: the built-in ones with their own settings.
            clock: Seconds since the epoch, as file times count them.
            sleep: Waits for so many seconds.

        Raises:
            ConfigError: A time is impossible.
        """
        _check(interval_s, until_idle_s, hang_factor)
        self.path = path
        self._interval_s, self._until_idle_s = interval_s, until_idle_s
        self._clock, self._sleep = clock, sleep
        self._first_reading = True
        # One for all looks: it injects a few faults at each, and keeps what the last ones showed.
        # A log that is over is judged as `inspect` does, and so is the judge.
        live, whole = SelfTester(hindsight=False), SelfTester()
        self._watcher = Watcher(
            Path(path),
            lambda: read_newest(path),
            lambda record, settled: account_or_fault(
                record,
                path,
                beside=beside,
                judge=judge,
                grows=not settled,
                tester=whole if settled else live,
            ),
            hang_factor=hang_factor,
        )
        self._updates = self._follow()

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> Update:
        """Return the next update; wait for it."""
        return next(self._updates)

    @property
    def hangs(self) -> bool:
        """Whether a silence was told as a hang and lasts."""
        return self._watcher.hangs

    @property
    def account(self) -> RunAccount | None:
        """The analysis of the log as it was last read; None before the first reading."""
        return self._watcher.account

    @property
    def generation(self) -> int:
        """Rises when another log stands at the path."""
        return self._watcher.generation

    @property
    def incidents(self) -> tuple[tuple[int, IncidentAccount], ...]:
        """The incidents as they stand now, with their ids."""
        return self._watcher.incidents

    @property
    def left(self) -> tuple[IncidentAccount, ...]:
        """Alarms that were not over in rows that are gone: a log rotated away, or cut."""
        return tuple(self._watcher.left)

    def settle(self) -> list[Update]:
        """Read a last line without an end as it is; for a log that nobody writes any more."""
        return [self._update(notice) for notice in self._watcher.settle(self._clock())]

    def _follow(self) -> Iterator[Update]:
        quiet_since = self._clock()
        while True:
            started = self._clock()
            notices = self._watcher.poll(started)
            yield from [self._update(notice) for notice in notices]
            self._first_reading = self._watcher.account is None
            # The caller's own work between two updates counts as busy, too.
            took = self._clock() - started
            if self._watcher.changed or any(
                n.told is None or n.told.incident.kind != "hang" for n in notices
            ):
                quiet_since = self._clock()
            elif (
                self._until_idle_s is not None and self._clock() - quiet_since >= self._until_idle_s
            ):
                yield from self.settle()
                return
            rest_s = took * (1 / _BUSY_SHARE - 1)
            if self._until_idle_s is not None:  # no longer than until it is known to be idle
                quiet_s = self._clock() - quiet_since
                rest_s = min(rest_s, self._until_idle_s - quiet_s)
            self._sleep(max(self._interval_s, rest_s))

    def _update(self, notice: Notice) -> Update:
        account = self._watcher.account
        return Update(
            path=self.path,
            event=notice.event,
            text=notice.text,
            id=notice.id,
            incident=notice.told,
            generation=self._watcher.generation,
            first_reading=self._first_reading,
            record=None if account is None else account.record,
        )


def _check(interval_s: float, until_idle_s: float | None, hang_factor: float) -> None:
    named: dict[str, object] = {"interval": interval_s, "hang": hang_factor}
    if until_idle_s is not None:
        named["until idle"] = until_idle_s
    for name, value in named.items():  # the annotations do not bind a caller
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} {value!r:.60}: expected a number")
    if not 0 < interval_s <= _LONGEST_S:
        raise ConfigError(
            f"interval {interval_s:g}: must be above 0, and at most {_LONGEST_S:g} seconds"
        )
    if not 0 <= hang_factor <= _LONGEST_S:
        raise ConfigError(f"hang {hang_factor:g}: must be a number of rows; 0 for never")
    if until_idle_s is not None and not 0 <= until_idle_s <= _LONGEST_S:
        raise ConfigError(f"until idle {until_idle_s:g}: must be 0 to {_LONGEST_S:g} seconds")
