"""Judge a growing log again whenever it changed, and report each change once.

`Watcher.poll` looks at the file's size and time; only when they changed it is read again, whole, by
the same readers and judged by the same code as a finished log. What it knows of
an incident is kept by what it is about and its place, so that a later reading that moves an onset
by a few rows, or calls a spike unrecovered, changes the incident and does not make another.
Incidents on other topics at the same rows (a frozen signal beside a divergence) stay others.

What the rows up to it show is told at once. A rule in hindsight says nothing of the last rows, and
what only it says may be gone with the next ones: it is told when it has stood for `settling_rows`,
or when no row comes any more. So the same is said in the end as of the finished log, each part as
soon as its rule has the rows it needs.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.detectors.offline import settling_rows
from trimtab.diagnosis.diagnose import diagnose
from trimtab.errors import ReadError
from trimtab.incidents import JOIN_ROWS, Incident, leading_finding, topic_of
from trimtab.kinds import severity_rank
from trimtab.plan.planner import make_plan
from trimtab.readers.folders import files_under
from trimtab.readers.writers import UNREAD_NOTE
from trimtab.record import Column, RunRecord, axis_word
from trimtab.text import number

__all__ = ["Notice", "NoticeEvent", "Watcher", "first_rows"]

NoticeEvent = Literal[
    "waiting", "started", "anew", "found", "changed", "withdrawn", "goes-on", "unreadable"
]

LEAST_HANG_S = 60.0
"""A silence shorter than this is no hang, whatever the usual row interval. Ours."""
SETTLED_S = 30.0
"""An incomplete last line that does not change for so long is read as it is. Ours."""
_QUIET_ROWS = 20.0
"""A silence of so many usual rows settles what is held back. Ours; `hang_factor` by default."""
_PREFIX_SIZE_BYTES = 4096
_GAPS = 20
_WORSE = 2.0
"""A rise that grew by this factor since it was last reported is reported again. Ours."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing to say, once."""

    event: NoticeEvent
    text: str
    id: int = 0
    """Of the incident, from 1; 0 where it is about none."""
    told: IncidentAccount | None = None


@dataclass
class _Known:
    """An incident that was told, or is held back."""

    id: int
    """0 while it is held back."""
    told: IncidentAccount
    """As it stands."""
    said: IncidentAccount | None = None
    """As it stood when it was last spoken of; None: as it stands."""
    since: int | None = None
    """Rows of the record when what is held back was first seen; None: nothing is."""

    @property
    def place(self) -> tuple[str, int, float]:
        i = self.told.incident
        return i.attempt, i.first_row, np.inf if i.end_row is None else i.end_row

    @property
    def lasts(self) -> bool:
        """Whether it is an alarm that was not over."""
        return self.told.is_open_alarm and self.told.incident.end_row is None

    def is_of(self, other: Incident) -> bool:
        """Tell whether an incident of a later reading may be this one."""
        if topic_of(self.told.incident) != topic_of(other):
            return False
        attempt, first, end = self.place
        last = np.inf if other.end_row is None else other.end_row
        overlap = other.onset_row <= end + JOIN_ROWS and first <= last + JOIN_ROWS
        return attempt == other.attempt and overlap

    def unlike(self, other: Incident) -> tuple[bool, int]:
        """Sort key: first what holds the same leading finding, then what began nearest."""
        mine = self.told.incident
        lead = leading_finding(mine).key if mine.findings else None
        held = any(f.key == lead for f in other.findings)
        return not held, abs(mine.onset_row - other.onset_row)


@dataclass(frozen=True)
class _Unseen:
    """Whether a log changed is not known."""

    why: str


class Watcher:
    """Follows one log or run directory."""

    def __init__(
        self,
        path: Path,
        read: Callable[[], RunRecord],
        judge: Callable[[RunRecord, bool], RunAccount | ReadError],
        *,
        hang_factor: float = 20.0,
    ) -> None:
        """Keep what to watch; nothing is read yet.

        Args:
            path: A file or a run directory; it need not exist yet.
            read: Reads it as it is now.
            judge: Judges a record, told whether its log stands still; or why it cannot.
            hang_factor: A silence of so many usual rows is a hang; 0: never.
        """
        self.path, self.hang_factor = path, hang_factor
        self._read, self._judge = read, judge
        self.account: RunAccount | None = None
        self.generation = 0
        """Rises when another log stands at the path."""
        self.changed = False
        """Whether the last look found the file changed."""
        self.left: list[IncidentAccount] = []
        """What stood, not over, in rows that are no longer at the path."""
        self._known: list[_Known] = []
        self._num_told = 0
        self._signature: object = None
        self._prefix: tuple[int, bytes] = (0, b"")
        self._problem = ""
        self._as_read: RunAccount | None = None
        """The account of what was read, while what is there now cannot be."""
        self._torn_at: float | None = None
        self._settled = True
        """Whether the last look took the log for one that stands still."""
        self._arrivals: list[float] = []
        self._hung_since: float | None = None
        self._began: float | None = None
        """When it first looked."""

    @property
    def incidents(self) -> tuple[tuple[int, IncidentAccount], ...]:
        """The incidents as they stand, with their ids."""
        return tuple((k.id, k.told) for k in self._known if k.id)

    @property
    def hangs(self) -> bool:
        """Whether a silence was told as a hang and lasts."""
        return self._hung_since is not None

    def poll(self, now: float) -> list[Notice]:
        """Look once and return what is new.

        Args:
            now: Seconds since the epoch, as file times count them.
        """
        self._began = now if self._began is None else self._began
        signature = _signature(self.path)
        if isinstance(signature, _Unseen):
            self.changed = False
            text = f"{self.path}: cannot be looked at ({signature.why}); nothing of it is judged"
            return self._waiting(f"unseen: {signature.why}", text)
        if self._problem.startswith("unseen"):
            self._problem = ""
            self.account, self._as_read = self._as_read or self.account, None
        self.changed = signature not in (None, self._signature)
        if signature is None:
            return self._waiting("absent", f"{self.path}: not there")
        if signature == self._signature:
            return [*(self.settle(now) if self._is_settled(now) else []), *self._silence(now)]
        notices = self._anew() if self._is_another() else []
        self._signature = signature
        self._torn_at = now if _is_torn(self.path) else None
        return [*notices, *self._look(now)]

    def settle(self, now: float) -> list[Notice]:
        """Read the log as one that is no longer written, an incomplete last line with it.

        Args:
            now: As for `poll`.
        """
        if self._torn_at is None and self._settled:
            return []
        self._torn_at = None
        return self._look(now, settled=True)

    def _is_settled(self, now: float) -> bool:
        """Whether the log stands still, as far as its own pace tells."""
        if self._torn_at is not None and now >= self._torn_at + SETTLED_S:
            return True
        if self._settled or self.account is None or not self._arrivals:
            return False
        usual = self._usual_gap_s(self.account.record) or 0.0
        return now - self._arrivals[-1] >= max(SETTLED_S, _QUIET_ROWS * usual)

    def _look(self, now: float, *, settled: bool = False) -> list[Notice]:
        """Read and judge, and return what is new; a line without an end waits for it."""
        notices: list[Notice] = []
        try:
            record = self._read()
        except ReadError as error:
            return self._waiting("unreadable", str(error))
        if self._torn_at is not None:
            record = first_rows(record, max(record.num_rows - 1, 0))
        before = self.account.record.num_rows if self.account is not None else -1
        if before < 0 and record.num_rows:
            first = f"{number(record.num_rows)} rows so far, {record.format}"
            notices.append(Notice(event="started", text=first))
        if record.num_rows != before:
            notices += self._moved(now, fresh=before < 0)
        self._settled = settled
        account = self._judge(record, settled)
        if isinstance(account, ReadError):
            return [*notices, *self._waiting("unjudged", str(account))]
        self._problem = ""
        return [*notices, *self.take(account, settled=settled)]

    def _waiting(self, problem: str, text: str) -> list[Notice]:
        if problem == self._problem:
            return []
        self._problem = problem
        if self.account is None:
            return [Notice(event="waiting", text=text)]
        # What was read says nothing of what is there now.
        self._as_read = self._as_read or self.account
        record = self._as_read.record
        notes = (f"{UNREAD_NOTE}{text}", *record.notes)
        self.account = replace(self._as_read, record=replace(record, notes=notes))
        return [Notice(event="unreadable", text=text)]

    def _is_another(self) -> bool:
        """Tell whether other contents stand at the path.

        A replaced copy that begins alike is the same log.
        """
        size, digest = self._prefix
        fresh = _prefix(self.path, size) if size else digest
        self._prefix = _sized_prefix(self.path)
        return fresh != digest

    def _anew(self) -> list[Notice]:
        lasting = [k for k in self._known if k.id and k.lasts]
        self.left += [k.told for k in lasting]
        self._known, self.account, self._arrivals = [], None, []
        self.generation += 1
        self._hung_since = None
        text = "another log is at this path; judged from its start"
        if lasting:
            named = "; ".join(f"#{k.id} {k.told.incident.headline}" for k in lasting)
            text += f" · not over in the one before: {named}"
        return [Notice(event="anew", text=text)]

    def _moved(self, now: float, *, fresh: bool) -> list[Notice]:
        """Note that rows came, and say so where they had stopped coming."""
        arrived = min(now, _modified(self.path) or now) if fresh else now
        self._arrivals = [*self._arrivals[-_GAPS:], arrived]
        if self._hung_since is None:
            return []
        silent = now - self._hung_since
        self._hung_since = None
        return [Notice(event="goes-on", text=f"rows come again after {number(round(silent))} s")]

    def _silence(self, now: float) -> list[Notice]:
        """Return the alarm that nothing comes any more, once."""
        if self.account is None or not self.hang_factor or self._hung_since is not None:
            return []
        if not self._arrivals or any(e.event == "end" for e in self.account.events[-3:]):
            return []
        usual = self._usual_gap_s(self.account.record)
        silent = now - self._arrivals[-1]
        if usual is None or silent < max(LEAST_HANG_S, self.hang_factor * usual):
            return []
        # A log that was done before anybody looked is no hang at the first look.
        if self._began is None or now - self._began < LEAST_HANG_S:
            return []
        self._hung_since = self._arrivals[-1]
        self._num_told += 1
        told = _hang(self.account.record, silent, self._pace())
        return [Notice(event="found", text=told.incident.headline, id=self._num_told, told=told)]

    def _pace(self) -> str:
        """Return how rows came before, in words; looks are apart, so rows may have come faster."""
        record = self.account.record if self.account is not None else None
        logged = _logged_gap_s(record) if record is not None else None
        if logged is not None:
            return f"usually one every {number(round(logged, 2))} s"
        return (
            f"before, rows came within {number(round(float(np.median(np.diff(self._arrivals)))))} s"
        )

    def _usual_gap_s(self, record: RunRecord) -> float | None:
        """Return the usual time from row to row: as seen, or as the log's own step times say."""
        seen = np.diff(self._arrivals)
        logged = _logged_gap_s(record)
        known = [] if logged is None else [logged]
        if len(seen) >= 3:
            known.append(float(np.median(seen)))
        return max(known) if known else None

    def take(self, account: RunAccount, *, settled: bool = False) -> list[Notice]:
        """Match the log as it is judged now with what was told, and return the differences.

        Args:
            account: Of all rows so far.
            settled: Nothing is held back: these rows are all there is for now.
        """
        stood = self.account is None  # it was there before the first look
        num_before = 0 if self.account is None else self.account.record.num_rows
        self.account, self._as_read = account, None
        rows, incidents = account.record.num_rows, account.incidents
        held = settling_rows(rows)
        known = self._matched(incidents)
        kept: list[_Known] = []
        notices: list[Notice] = []
        for told in sorted(incidents, key=lambda ia: ia.incident.onset_row):
            old = known.get(id(told)) or _Known(0, told)
            fresh = told.incident.onset_row if stood else rows
            since = fresh if old.since is None else old.since
            # A note can wait for the end.
            waits = told.incident.severity == "info" or rows - since < held
            if _rises(old, told) and waits and not settled and _only_in_hindsight(told.incident):
                kept.append(replace(old, told=old.told if old.id else told, since=since))
                continue
            worse = _is_worse(old.said or old.told, told)
            said = None
            if not old.id:
                self._num_told += 1
                old = _Known(self._num_told, told)
                text = told.incident.headline
                notices.append(Notice(event="found", text=text, id=old.id, told=told))
            elif _stands(old.told) != _stands(told) or worse:
                change = _change(old.told.incident, told.incident, worse=worse)
                notices.append(Notice(event="changed", text=change, id=old.id, told=told))
            else:
                said = old.said or old.told
            kept.append(_Known(old.id, told, said))
        for k in self._known:
            if not k.id or any(k is m for m in known.values()):
                continue
            if rows < num_before - 1:  # one row may only have become an incomplete line
                gone = f"the log became shorter ({number(num_before)} rows, now {number(rows)})"
                text = f"{gone}; what it said of this is gone · {k.told.incident.headline}"
                notices.append(Notice(event="changed", text=text, id=k.id, told=k.told))
                self.left += [k.told] if k.lasts else []
                continue
            # What hindsight takes back may stand again a few rows on, and is not told twice.
            lost = rows if k.since is None else k.since
            if _only_in_hindsight(k.told.incident) and not settled and rows - lost < held:
                kept.append(replace(k, since=lost))
            else:
                text = k.told.incident.headline
                notices.append(Notice(event="withdrawn", text=text, id=k.id, told=k.told))
        self._known = kept
        return notices

    def _matched(self, incidents: Sequence[IncidentAccount]) -> dict[int, _Known]:
        """Return what each incident was told as before, by `id`.

        The surest pairs are made first.
        """
        pairs = [
            (k.unlike(ia.incident), n, m)
            for n, k in enumerate(self._known)
            for m, ia in enumerate(incidents)
            if k.is_of(ia.incident)
        ]
        known: dict[int, _Known] = {}
        used: set[int] = set()
        for _, n, m in sorted(pairs):
            if n not in used and id(incidents[m]) not in known:
                used.add(n)
                known[id(incidents[m])] = self._known[n]
        return known


def _rises(known: _Known, told: IncidentAccount) -> bool:
    """Whether there is more to say of an incident than was said."""
    ranks = [severity_rank(x.incident.severity) for x in (known.told, told)]
    return not known.id or ranks[1] > ranks[0]


def _only_in_hindsight(incident: Incident) -> bool:
    """Whether no rule that sees rows as they come says as much of an incident."""
    if not incident.findings:
        return False
    alarms = [f for f in incident.findings if f.severity == incident.severity != "info"]
    return all(f.in_hindsight for f in alarms or (leading_finding(incident),))


def _stands(told: IncidentAccount) -> tuple[object, ...]:
    """Return what of an incident is worth a line when it changes."""
    i = told.incident
    return i.kind, i.severity, i.end_row is None, told.dismissed, told.resolved


def _is_worse(before: IncidentAccount, now: IncidentAccount) -> bool:
    """Tell whether an alarm that lasts rose to `_WORSE` times what was said of it."""
    if now.incident.severity == "info" or now.incident.end_row is not None or now.dismissed:
        return False
    return _rise(now.incident) >= _WORSE * _rise(before.incident) > 0


def _rise(incident: Incident) -> float:
    """Return by how much the loss stands above what was expected, at its worst.

    0 where it does not.
    """
    rises = [f.value - f.expected for f in incident.findings if f.signal == "loss"]
    return max((r for r in rises if np.isfinite(r)), default=0.0)


def _change(before: Incident, now: Incident, *, worse: bool = False) -> str:
    parts = []
    if before.kind != now.kind:
        parts.append(f"{before.kind} is now {now.kind}")
    if before.severity != now.severity:
        parts.append(f"{before.severity} is now {now.severity}")
    if (before.end_row is None) != (now.end_row is None):
        parts.append("not over after all" if now.end is None else f"over at {number(now.end)}")
    if worse and not parts:
        parts.append("worse")
    return f"{', '.join(parts) or 'changed'} · {now.headline}"


def _logged_gap_s(record: RunRecord) -> float | None:
    """Return the time from row to row by the step times that the log states.

    None where it has none.
    """
    times = record.columns.get("step_time_s")
    logged = times.logged()[-100:] if times is not None else np.zeros(0)
    logged = logged[np.isfinite(logged) & (logged > 0)]
    apart = np.diff(record.step[-101:])
    apart = apart[apart > 0]
    return float(np.median(logged) * np.median(apart)) if len(logged) and len(apart) else None


def _hang(record: RunRecord, silent_s: float, pace: str) -> IncidentAccount:
    row = record.num_rows - 1
    step = float(record.step[row])
    incident = Incident(
        kind="hang",
        attempt=record.attempts[int(record.attempt[row])].number,
        severity="critical",
        onset_row=row,
        onset=step,
        peak_row=row,
        peak=step,
        signals=("step_time_s",),
        headline=(
            f"no progress · since {axis_word(record)} {number(step)} · no row for"
            f" {number(round(silent_s))} s, {pace}"
        ),
        confidence=0.9,
    )
    diagnosis = diagnose(record, incident)
    plan = make_plan(record, incident, diagnosis)
    return IncidentAccount(incident=incident, diagnosis=diagnosis, plan=plan)


def first_rows(record: RunRecord, end: int) -> RunRecord:
    """Return a record as it was when it had `end` rows."""
    attempts = tuple(
        replace(a, end_row=min(a.end_row, end)) for a in record.attempts if a.first_row < end
    )
    columns = {n: Column(c.values[:end], c.present[:end]) for n, c in record.columns.items()}
    return replace(
        record,
        attempt=record.attempt[:end],
        step=record.step[:end],
        columns={n: c for n, c in columns.items() if c.present.any()},
        attempts=attempts,
    )


def _signature(path: Path) -> object:
    """Return what changes when a log does.

    Size, time and place of the file, or of all in a directory.
    """
    try:
        if path.is_dir():
            inside = sorted(p for p in files_under(path) if p.suffix != ".pt")
            stats = [(str(p), p.stat()) for p in inside]
            return tuple((name, s.st_size, s.st_mtime_ns) for name, s in stats)
        s = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        return _Unseen(error.strerror or type(error).__name__)
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _sized_prefix(path: Path) -> tuple[int, bytes]:
    try:
        size = min(path.stat().st_size, _PREFIX_SIZE_BYTES) if path.is_file() else 0
    except OSError:
        size = 0
    return size, _prefix(path, size) if size else b""


def _prefix(path: Path, size: int) -> bytes:
    if not path.is_file():  # a pipe would be waited on
        return b""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(file.read(size)).digest()
    except OSError:
        return b""


def _is_torn(path: Path) -> bool:
    """Tell whether a text file ends within a line; a binary or compressed one guards itself."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            start = file.read(512).lstrip(b"\0")  # a rotation leaves NULs in front
            file.seek(-1, os.SEEK_END)
            return b"\0" not in start and file.read(1) not in (b"\n", b"\r", b"}", b"]")
    except OSError:
        return False
