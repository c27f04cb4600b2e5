"""The lineage of a run: its attempts with parent, settings, difference, reason and outcome.

Derived from the journal, and from the record where there is one; nothing of it is stored a second
time. A run that began without trimtab has the same journal once `trimtab adopt` has read it.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trimtab.chronicle.journal import Event
from trimtab.chronicle.notes import NoteBook, notebook_of
from trimtab.chronicle.settings_record import (
    Difference,
    canonical_settings,
    differences,
    differences_text,
    settings_hash,
)
from trimtab.record import Attempt, RunRecord
from trimtab.text import number, plain, words

__all__ = [
    "AttemptIncident",
    "AttemptKind",
    "Lineage",
    "LineageAttempt",
    "Outcome",
    "lineage_of",
    "lineage_to_json",
    "restart_words",
]

AttemptKind = Literal[
    "start", "continued", "restart", "control", "rollback", "change", "trial", "ablation"
]
"""start: no parent; continued: goes on where the parent ended; restart: went back a little, after a
failure or with settings that are not stated; control: went back before an alarm with no change;
rollback: went back with a change; change: goes on with a change; trial: a short branch of a guard;
ablation: aside, by a person's word or its name."""
KINDS: tuple[str, ...] = get_args(AttemptKind)

Outcome = Literal["worked", "did not", "unclear"]

_MIN_ROWS = 30
"""Rows below which an attempt without an alarm is unclear, as for a verdict. Ours."""
_ENDS = ("restart", "gave-up")
"""Events by which a supervisor tells what ended an attempt."""
_GAP_STEPS = 4.0
"""Times the usual spacing of rows beyond which steps are missing. Ours."""
_SECONDS_A_DAY = 86_400.0
_SETTINGS_OF_LAYOUT = (
    ("tensor_parallel", "tensor"),
    ("pipeline_parallel", "pipeline"),
    ("context_parallel", "context"),
    ("data_parallel", "data"),
    ("zero_stage", "ZeRO"),
)
_ENVIRONMENT = {
    "commit": ("commit", "git_commit", "git_sha", "git/commit", "revision"),
    "driver": ("driver", "cuda_driver", "driver_version"),
    "hosts": ("hosts", "host", "hostname", "nodelist"),
    "device": ("device", "gpu", "gpu_type"),
}


@dataclass(frozen=True, kw_only=True)
class AttemptIncident:
    """One incident of the journal."""

    attempt: str
    kind: str
    severity: str
    onset: float
    headline: str
    over: bool
    """Whether the journal closes it, or the reading afterwards saw its end."""
    end: float | None = None


@dataclass(frozen=True, kw_only=True)
class LineageAttempt:
    """One attempt and all that is known of it; None and empty: not known."""

    number: str
    kind: AttemptKind
    parent: str | None
    parent_step: float | None
    checkpoint: str
    """Checkpoint it was begun from, as the journal names it."""
    first_step: float | None
    last_step: float | None
    num_rows: int
    kept_until: float | None
    """Last step that is on the main line; None: none of it is."""
    on_main_line: bool
    begun: str
    """UTC, ISO 8601."""
    ended: str
    state: str
    """`stopped`, `on hold`, `done`, or `open` where no end is recorded."""
    settings: Mapping[str, str]
    config_hash: str
    differs: tuple[Difference, ...]
    """From the parent."""
    like: str
    """The earlier attempt with the fewest differences; of equal ones the latest."""
    but: tuple[Difference, ...]
    """Differences from that one."""
    why: str
    decided_by: str
    outcome: Outcome
    outcome_by: str
    """`rows`, `guard`, `supervisor`, or the author of a note."""
    outcome_why: str
    loss_went: str
    """How its loss went through its first trouble, in words; empty without any."""
    missing: tuple[tuple[float, float], ...]
    """Ranges of steps between its rows of which nothing is logged."""
    bugs: tuple[str, ...]
    mark: str
    sources: tuple[str, ...]
    config_from: tuple[str, ...]
    """Files that state its settings; empty: its log or the journal."""
    label: str
    """What its log or folder calls it."""
    ended_by: str
    """Class of the failure that its log ends with, as of `trimtab.crash.CRASH_CLASSES`."""
    seconds: float | None
    """From the first to the last row by the clock, else rows times the usual time of a step."""
    lost_steps: float
    """Steps after those that are kept."""
    lost_seconds: float | None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> str:
        """Number of nodes; empty where it is not stated."""
        return next(
            (self.settings[k] for k in ("nodes", "num_nodes", "nnodes") if k in self.settings), ""
        )

    @property
    def world_size(self) -> str:
        """Number of ranks; empty where it is not stated."""
        return self.settings.get("world_size", "")

    @property
    def seed(self) -> str:
        """The seed; empty where it is not stated."""
        return self.settings.get("seed", "")

    @property
    def layout(self) -> str:
        """How ranks share the work, such as `tensor 4, pipeline 8, data 8`."""
        s = self.settings
        return ", ".join(
            f"{label} {s[k] if k in s else s[label]}"
            for k, label in _SETTINGS_OF_LAYOUT
            if k in s or label in s
        )

    def fact(self, name: str) -> str:
        """Return `commit`, `driver`, `hosts` or `device`, wherever it is stated."""
        for key in _ENVIRONMENT[name]:
            for table in (self.environment, self.settings):
                if table.get(key):
                    return table[key]
        return ""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The attempts of a run in the order of time."""

    attempts: tuple[LineageAttempt, ...]
    episodes: tuple[AttemptIncident, ...]
    notes: NoteBook
    main_line: tuple[str, ...]
    """Attempts that lead to the last one, the oldest first."""
    failures: Mapping[str, int]
    """Class of failure -> how often it ended an attempt or was noted."""
    lost: tuple[tuple[str, int, float, float | None], ...]
    """Cause, attempts, steps lost, seconds lost (None: not known), the most steps first."""
    days: float | None
    """From the first to the last event of the training by the clock."""

    @property
    def num_restarts(self) -> int:
        """Attempts that were begun from another one, trials left out."""
        return sum(a.parent is not None and a.kind != "trial" for a in self.attempts)

    def get(self, number: str) -> LineageAttempt | None:
        """Return an attempt by its number; None where there is none."""
        return next((a for a in self.attempts if a.number == number), None)


def lineage_of(events: Sequence[Event], record: RunRecord | None = None) -> Lineage:
    """Return the lineage of a run.

    Args:
        events: Its journal, in order.
        record: Its rows; without them steps are those of the events, and nothing is known of time.

    Cost: O(rows + attempts²).
    """
    opened = _opened(events, record)
    book = notebook_of(events)
    episodes = _episodes(events)
    chosen = {str(e.data["kept_attempt"]) for e in events if e.data.get("kept_attempt")}
    chain = _main_line(opened, chosen)
    kept = _kept_until(opened, chain)
    found: list[LineageAttempt] = []
    guard = _guard_outcomes(events)
    ends = _ends(events, opened)
    environments = _environments(events, opened)
    for index, o in enumerate(opened):
        found.append(
            _attempt(
                o,
                record=record,
                before={a.number: a for a in found},
                book=book,
                episodes=[e for e in episodes if e.attempt == o.number],
                troubled=any(
                    e.attempt == o.parent
                    and e.severity in ("warning", "critical")
                    and (o.parent_step is None or e.onset > o.parent_step)
                    for e in episodes
                ),
                kept_until=kept.get(o.number),
                guard=guard.get(o.number),
                state=ends.get(o.number) or ("open" if index == len(opened) - 1 else "stopped"),
                environment=environments.get(o.number, {}),
            )
        )
    return Lineage(
        attempts=tuple(found),
        episodes=tuple(episodes),
        notes=book,
        main_line=tuple(chain),
        failures=_failures(found, book, events),
        lost=_lost(found, episodes),
        days=_days(found, events),
    )


@dataclass
class _Opened:
    """One attempt as the journal and the record have it."""

    number: str
    data: Mapping[str, object]
    recorded: Attempt | None
    event: Event | None
    first_step: float | None = None
    last_step: float | None = None
    checkpoint: str = ""
    crash: str = ""
    """Class of the failure that a supervisor restarted it after, or gave up at."""

    @property
    def ended_by(self) -> str:
        return plain(self.data.get("ended_by") or self.crash, limit=40)

    @property
    def parent(self) -> str | None:
        if "parent" in self.data:  # a record takes the attempt before for the parent
            parent = self.data["parent"]
            return plain(parent, limit=100) or None
        return self.recorded.parent if self.recorded else None

    @property
    def parent_step(self) -> float | None:
        step = self.data.get("parent_step")
        if step is None and self.recorded is not None:
            step = self.recorded.parent_step
        known = isinstance(step, int | float) and abs(step) < 1e15
        return float(step) if known and isinstance(step, int | float) else None

    @property
    def trial(self) -> bool:
        return bool(self.data.get("trial", self.recorded is not None and self.recorded.trial))


def _opened(events: Sequence[Event], record: RunRecord | None) -> list[_Opened]:
    known = {a.number: a for a in record.attempts} if record is not None else {}
    found: dict[str, _Opened] = {}
    saved: dict[tuple[str, int], str] = {}
    for event in events:
        if event.event == "checkpoint":
            saved[event.attempt, event.step] = plain(event.data.get("path"), limit=300)
        if event.event == "attempt":
            name = str(event.data.get("number") or event.attempt)
            found[name] = _Opened(name, event.data, known.get(name), event)
        elif event.attempt in found and event.event != "note":
            here = found[event.attempt]
            here.last_step = max(here.last_step or 0.0, float(event.step))
            if event.event in _ENDS:
                here.crash = plain(event.data.get("class"), limit=40)
    for name, recorded in known.items():
        if name not in found:
            found[name] = _Opened(name, {}, recorded, None)
    for o in found.values():
        if o.recorded is not None and record is not None and o.recorded.end_row:
            rows = record.step[o.recorded.first_row : o.recorded.end_row]
            if len(rows):
                o.first_step, o.last_step = float(rows[0]), float(rows[-1])
        if o.first_step is None and o.parent_step is not None:
            o.first_step = o.parent_step
        if o.parent is not None and o.parent_step is not None:
            o.checkpoint = plain(o.data.get("checkpoint"), limit=300) or saved.get(
                (o.parent, int(o.parent_step)), ""
            )
    return list(found.values())


def _main_line(opened: Sequence[_Opened], chosen: Collection[str]) -> list[str]:
    """Return the attempts that lead to the last one that is no ablation and no left trial.

    `chosen`: trials that were kept.
    """
    by_number = {o.number: o for o in opened}
    ends = [o for o in opened if o.number in chosen or not o.trial]
    ends = [o for o in ends if o.data.get("mark") != "ablation"]
    if not ends:
        return []
    chain: list[str] = []
    current: str | None = ends[-1].number
    while current is not None and current in by_number and current not in chain:
        chain.append(current)
        current = by_number[current].parent
    return chain[::-1]


def _kept_until(opened: Sequence[_Opened], chain: Sequence[str]) -> dict[str, float]:
    by_number = {o.number: o for o in opened}
    kept: dict[str, float] = {}
    for here, name in enumerate(chain):
        last = by_number[name].last_step
        limit = math.inf if last is None else last
        if here + 1 < len(chain):
            child = by_number[chain[here + 1]]
            start = child.parent_step
            if start is None and child.first_step is not None:
                start = child.first_step - 1
            limit = min(limit, math.inf if start is None else start)
        if math.isfinite(limit):
            kept[name] = limit
    return kept


def _episodes(events: Sequence[Event]) -> list[AttemptIncident]:
    """Return each incident once, with its last headline and whether it is over."""
    found: dict[tuple[str, str, float], AttemptIncident] = {}
    for event in events:
        d = event.data
        onset = d.get("onset")
        if event.event != "incident" or not isinstance(onset, int | float):
            continue
        key = (event.attempt, plain(d.get("kind")), float(onset))
        end = d.get("end")
        closed = d.get("state") == "closed" or isinstance(end, int | float)
        before = found.get(key)
        found[key] = AttemptIncident(
            attempt=event.attempt,
            kind=key[1],
            severity=plain(d.get("severity")) or (before.severity if before else ""),
            onset=float(onset),
            headline=plain(d.get("headline"), limit=300) or words(d.get("kind")),
            over=closed or (before.over if before else False),
            end=float(end) if isinstance(end, int | float) else None,
        )
    return list(found.values())


def _guard_outcomes(events: Sequence[Event]) -> dict[str, tuple[Outcome, str]]:
    found: dict[str, tuple[Outcome, str]] = {}
    for event in events:
        verdict = plain(event.data.get("verdict"))
        if event.event == "outcome":
            told = plain(event.data.get("text"), limit=200)
            if verdict == "worked":
                found[event.attempt] = ("worked", told)
            elif verdict == "did not":
                found[event.attempt] = ("did not", told)
            else:
                found[event.attempt] = ("unclear", told)
    return found


def _ends(events: Sequence[Event], opened: Sequence[_Opened]) -> dict[str, str]:
    last = {o.number for o in opened}
    return {e.attempt: "done" for e in events if e.event == "end" and e.attempt in last}


def _environments(events: Sequence[Event], opened: Sequence[_Opened]) -> dict[str, dict[str, str]]:
    """Return the environment of each attempt: what it states, else the last one stated before."""
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for event in events:
        told = event.data.get("environment")
        if event.event in ("start", "resume", "attempt", "owner") and isinstance(told, Mapping):
            current = {str(k): plain(v, limit=200) for k, v in told.items()}
            if event.event == "start":  # it follows the first attempt that it speaks of
                found.setdefault(event.attempt, {}).update(current)
        if event.event == "attempt":
            found[str(event.data.get("number") or event.attempt)] = dict(current)
    return {o.number: found.get(o.number, {}) for o in opened}


def _attempt(
    o: _Opened,
    *,
    record: RunRecord | None,
    before: Mapping[str, LineageAttempt],
    book: NoteBook,
    episodes: Sequence[AttemptIncident],
    troubled: bool,
    kept_until: float | None,
    guard: tuple[Outcome, str] | None,
    state: str,
    environment: Mapping[str, str],
) -> LineageAttempt:
    raw = o.data.get("settings")
    stated = raw if isinstance(raw, Mapping) else (o.recorded.settings if o.recorded else {})
    settings = canonical_settings(stated)
    parent = before.get(o.parent or "")
    differs = differences(parent.settings, settings) if parent is not None else ()
    like, but = _most_alike(settings, before)
    mark, marked_by = book.marks.get(o.number, (plain(o.data.get("mark")), None))
    kind = _kind(o, parent, differs, settings, mark, troubled=troubled)
    rows = _rows_of(o, record)
    seconds, step_s, begun, ended = _times(o, record, rows)
    last = o.last_step
    floor = o.parent_step if o.parent_step is not None else 0.0
    lost = max(last - max(kept_until or 0.0, floor), 0.0) if last is not None else 0.0
    if kept_until is None and o.first_step is not None and last is not None:
        lost = max(last - (o.parent_step if o.parent_step is not None else o.first_step - 1), 0.0)
    note = book.outcomes.get(o.number)
    if note is not None:
        outcome, by, because = _as_outcome(note[0]), note[1].author or "a note", note[1].text
    elif guard is not None:
        by = "supervisor" if o.data.get("supervised") else "guard"
        outcome, because = guard
    else:
        outcome, because = _outcome(o, episodes, kept_until, len(rows), mark, kind)
        by = "rows"
    why = book.whys.get(o.number)
    own_hash = plain(o.data.get("config_hash"), limit=64)
    return LineageAttempt(
        number=o.number,
        kind=kind,
        parent=o.parent,
        parent_step=o.parent_step,
        checkpoint=o.checkpoint,
        first_step=o.first_step,
        last_step=last,
        num_rows=len(rows),
        kept_until=kept_until,
        on_main_line=kept_until is not None,
        begun=begun,
        ended=ended,
        state="on hold" if mark == "hold" else state,
        settings=settings,
        config_hash=own_hash or settings_hash(settings),
        differs=differs,
        like=like,
        but=but,
        why=why.text if why else plain(o.data.get("why") or (o.recorded.why if o.recorded else "")),
        decided_by=(why.author if why else "")
        or plain(o.data.get("decided_by"), limit=80)
        or (marked_by.author if marked_by else ""),
        outcome=outcome,
        outcome_by=by,
        outcome_why=because,
        loss_went=_loss_went(record, rows, episodes),
        missing=_missing(record, rows, o),
        bugs=book.bugs_of(o.number),
        mark=mark,
        sources=_texts(o.data.get("sources")),
        config_from=_texts(o.data.get("config_from")),
        label=plain(o.data.get("label"), limit=120),
        ended_by=o.ended_by,
        seconds=seconds,
        lost_steps=lost,
        lost_seconds=None if step_s is None else lost * step_s,
        environment=environment,
    )


def _as_outcome(text: str) -> Outcome:
    return "worked" if text == "worked" else "did not" if text == "did not" else "unclear"


def _texts(value: object) -> tuple[str, ...]:
    return tuple(plain(v, limit=400) for v in value) if isinstance(value, list | tuple) else ()


def _rows_of(o: _Opened, record: RunRecord | None) -> range:
    if record is None or o.recorded is None:
        return range(0)
    return range(o.recorded.first_row, o.recorded.end_row)


def _most_alike(
    settings: Mapping[str, str], before: Mapping[str, LineageAttempt]
) -> tuple[str, tuple[Difference, ...]]:
    best: tuple[str, tuple[Difference, ...]] = ("", ())
    for name, other in before.items():
        if not other.settings or not settings:
            continue
        found = differences(other.settings, settings)
        if not best[0] or len(found) <= len(best[1]):
            best = (name, found)
    return best


def _kind(
    o: _Opened,
    parent: LineageAttempt | None,
    differs: Sequence[Difference],
    settings: Mapping[str, str],
    mark: str,
    *,
    troubled: bool,
) -> AttemptKind:
    if mark == "ablation":
        return "ablation"
    if o.trial:
        return "trial"
    if o.parent is None:
        return "start"
    if mark == "control":
        return "control"
    resumed = o.parent_step if o.parent_step is not None else o.first_step
    end = parent.last_step if parent is not None else None
    # A restart after a failure goes back to the last checkpoint, a little before the end.
    went_back = resumed is not None and end is not None and resumed < end
    if differs:
        return "rollback" if went_back else "change"
    if not settings or parent is None or not parent.settings:
        return "restart" if went_back else "continued"
    if not went_back:
        return "continued"
    # Whoever goes back with no change wants to see whether it happens again; after a failure of
    # the machine, or without an alarm, it is a restart and no more.
    return "control" if troubled and not parent.ended_by else "restart"


def _times(
    o: _Opened, record: RunRecord | None, rows: range
) -> tuple[float | None, float | None, str, str]:
    """Return seconds, seconds of a step, begin and end."""
    begun, ended = plain(o.data.get("begun"), limit=40), plain(o.data.get("ended"), limit=40)
    seconds = step_s = None
    if record is not None and len(rows) > 1:
        part = slice(rows.start, rows.stop)
        span = float(record.step[rows.stop - 1] - record.step[rows.start])
        wall = record.columns.get("wall_time_s")
        if wall is not None and (at := wall.finite_rows(part)).size > 1:
            first, last = float(wall.values[at[0]]), float(wall.values[at[-1]])
            if last > first:
                seconds = last - first
                step_s = seconds / span if span > 0 else None
                begun, ended = begun or _iso(first), ended or _iso(last)
        times = record.columns.get("step_time_s")
        if seconds is None and times is not None and (at := times.finite_rows(part)).size:
            step_s = float(np.median(times.values[at]))
            seconds = step_s * span
    if not begun and o.event is not None and not o.data.get("adopted"):
        begun = o.event.t
    return seconds, step_s, begun, ended


def _iso(seconds: float) -> str:
    """Return a wall time as UTC; empty where it is no date, as where it counts from the start."""
    if not 946_684_800 <= seconds <= 4_102_444_800:  # 2000 to 2100
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _outcome(
    o: _Opened,
    episodes: Sequence[AttemptIncident],
    kept_until: float | None,
    num_rows: int,
    mark: str,
    kind: AttemptKind,
) -> tuple[Outcome, str]:
    """Return what the rows show: an alarm that was left behind by going back did not work."""
    alarms = [e for e in episodes if e.severity in ("warning", "critical")]
    left = kept_until is None or (o.last_step is not None and kept_until < o.last_step)
    after = [e for e in alarms if kept_until is None or e.onset > kept_until]
    if left and after:
        back = "it was left" if kept_until is None else f"taken up again from {number(kept_until)}"
        return "did not", f"{after[-1].headline}; {back}"
    lasting = [e for e in alarms if not e.over]
    if lasting and not left:
        return "did not", f"{lasting[-1].headline}; not over at the end"
    if mark == "hold":
        return "unclear", "on hold"
    if kind in ("trial", "ablation"):
        return "unclear", f"{'an ablation' if kind == 'ablation' else 'a trial'}; see its outcome"
    if kept_until is None:
        why = f"ended by {o.ended_by}" if o.ended_by else "no alarm says why"
        return "unclear", f"nothing of it is on the main line; {why}"
    if o.ended_by:
        told = o.ended_by.replace("_", " ")
        if o.crash == "numeric":  # a supervisor left it for what its numbers were
            return "did not", "its supervisor ended it for its numbers"
        return "unclear", f"no alarm is open, and it was ended by {told}"
    if num_rows < _MIN_ROWS:
        return "unclear", f"{num_rows} rows"
    if alarms:
        return "worked", f"{len(alarms)} alarm{'s' * (len(alarms) > 1)} passed"
    return "worked", f"no alarm in {num_rows} rows"


def _loss_went(record: RunRecord | None, rows: range, episodes: Sequence[AttemptIncident]) -> str:
    """Return how the loss went through an attempt's first trouble: before, at most, at last."""
    onsets = [e.onset for e in episodes if e.severity in ("warning", "critical")]
    loss = None if record is None else record.columns.get("loss")
    if record is None or loss is None or not onsets or not len(rows):
        return ""
    part = np.arange(rows.start, rows.stop)[loss.present[rows.start : rows.stop]]
    step, values = record.step[part], loss.values[part]
    finite = np.isfinite(values)
    before, after = finite & (step < min(onsets)), finite & (step >= min(onsets))
    picked = (
        ("{} at {} before it", np.flatnonzero(before)[-1:]),
        ("at most {} at {}", _highest(values, after)),
        ("{} at {} at last", np.flatnonzero(after)[-1:]),
        ("{} from {}", np.flatnonzero(~finite & (step >= min(onsets)))[:1]),
    )
    return ", ".join(
        form.format(number(float(values[k])), number(float(step[k])))
        for form, rows_of in picked
        for k in rows_of
    )


def _highest(values: NDArray[np.float64], among: NDArray[np.bool_]) -> NDArray[np.intp]:
    rows = np.flatnonzero(among)
    return rows[values[rows].argmax()][None] if len(rows) else rows


def _missing(record: RunRecord | None, rows: range, o: _Opened) -> tuple[tuple[float, float], ...]:
    """Return the ranges of steps that are not logged; never more than 20."""
    if record is None or len(rows) < 4:
        return ()
    loss = record.columns.get("loss")
    part = slice(rows.start, rows.stop)
    steps = record.step[part] if loss is None else record.step[part][loss.present[part]]
    gaps = np.diff(steps)
    if not len(gaps):
        return ()
    usual = float(np.median(gaps))
    at = np.flatnonzero(gaps > _GAP_STEPS * usual)
    found = [(float(steps[i] + usual), float(steps[i + 1] - usual)) for i in at[:20]]
    resumed = o.parent_step
    if resumed is not None and steps[0] - resumed > _GAP_STEPS * usual:
        found.insert(0, (resumed + usual, float(steps[0]) - usual))
    return tuple(found)


def _failures(
    attempts: Sequence[LineageAttempt], book: NoteBook, events: Sequence[Event]
) -> dict[str, int]:
    own = {a.number for a in attempts if a.ended_by}
    told = [a.ended_by for a in attempts if a.ended_by]
    told += [n.crash for n in book.failures]
    told += [
        plain(e.data.get("class"), limit=40)
        for e in events
        if e.event in _ENDS and e.data.get("class") and e.attempt not in own
    ]
    counts: dict[str, int] = {}
    for name in told:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda c: (-c[1], c[0])))


def _lost(
    attempts: Sequence[LineageAttempt], episodes: Sequence[AttemptIncident]
) -> tuple[tuple[str, int, float, float | None], ...]:
    """Return the steps that are not on the main line, by what ended their attempt."""
    sums: dict[str, list[tuple[float, float | None]]] = {}
    for a in attempts:
        if a.lost_steps > 0:
            sums.setdefault(_cause_of_loss(a, episodes), []).append((a.lost_steps, a.lost_seconds))
    found = []
    for cause, parts in sums.items():
        known = [s for _, s in parts if s is not None]
        seconds = sum(known) if len(known) == len(parts) else None
        found.append((cause, len(parts), sum(n for n, _ in parts), seconds))
    return tuple(sorted(found, key=lambda f: -f[2]))


def _cause_of_loss(a: LineageAttempt, episodes: Sequence[AttemptIncident]) -> str:
    if a.kind in ("trial", "ablation"):
        return a.kind
    if a.ended_by:
        return a.ended_by.replace("_", " ")
    after = [
        e
        for e in episodes
        if e.attempt == a.number
        and e.severity in ("warning", "critical")
        and (a.kept_until is None or e.onset > a.kept_until)
    ]
    if after:
        worst = [e for e in after if e.severity == "critical"] or after
        return words(worst[-1].kind)
    if a.mark == "hold":
        return "on hold"
    return "not stated"


def _days(attempts: Sequence[LineageAttempt], events: Sequence[Event]) -> float | None:
    told = [t for a in attempts for t in (a.begun, a.ended) if t]
    if not any(e.data.get("adopted") for e in events if e.event == "start"):
        told += [e.t for e in events if e.event in ("start", "attempt", "end", "checkpoint")]
    moments = sorted(m for t in told if (m := _seconds(t)) is not None)
    if len(moments) < 2:
        return None
    return (moments[-1] - moments[0]) / _SECONDS_A_DAY


def _seconds(text: str) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def restart_words(lineage: Lineage) -> str:
    """Return a line such as `53 restarts in 56 days, 4 of 54 attempts on the main line`."""
    count = lineage.num_restarts
    text = f"{count} restart{'s' * (count != 1)}"
    if lineage.days is not None:
        days = lineage.days
        hours = days * 24
        short = f" in {hours:.1f} h" if hours >= 1 else f" in {hours * 60:.0f} min"
        text += f" in {days:.0f} days" if days >= 2 else short
    return f"{text}, {len(lineage.main_line)} of {len(lineage.attempts)} attempts on the main line"


def lineage_to_json(lineage: Lineage) -> dict[str, object]:
    """Return the lineage as JSON values; see `docs/formats.md`."""
    book = lineage.notes
    return {
        "main_line": list(lineage.main_line),
        "restarts": lineage.num_restarts,
        "days": lineage.days,
        "failures": dict(lineage.failures),
        "lost": [
            {"cause": cause, "attempts": count, "steps": steps, "seconds": seconds}
            for cause, count, steps, seconds in lineage.lost
        ],
        "attempts": [_attempt_to_json(a) for a in lineage.attempts],
        "hypotheses": [
            {
                "name": h.name,
                "status": h.status,
                "history": [
                    {"t": n.t, "author": n.author, "status": n.status or None, "text": n.text}
                    for n in h.history
                ],
            }
            for h in book.hypotheses.values()
        ],
        "bugs": [
            {
                "name": b.name,
                "affects": [a.number for a in lineage.attempts if b.name in a.bugs],
                "history": [{"t": n.t, "author": n.author, "text": n.text} for n in b.history],
            }
            for b in book.bugs.values()
        ],
        "results": [
            {"name": name, "value": value, "step": n.step, "attempt": n.attempt}
            for name, value, n in book.results
        ],
    }


def _attempt_to_json(a: LineageAttempt) -> dict[str, object]:
    return {
        "number": a.number,
        "kind": a.kind,
        "label": a.label,
        "parent": a.parent,
        "parent_step": a.parent_step,
        "checkpoint": a.checkpoint or None,
        "first_step": a.first_step,
        "last_step": a.last_step,
        "rows": a.num_rows,
        "kept_until": a.kept_until,
        "begun": a.begun or None,
        "ended": a.ended or None,
        "state": a.state,
        "nodes": a.nodes or None,
        "world_size": a.world_size or None,
        "layout": a.layout or None,
        "seed": a.seed or None,
        "commit": a.fact("commit") or None,
        "driver": a.fact("driver") or None,
        "hosts": a.fact("hosts") or None,
        "environment": dict(a.environment),
        "settings": dict(a.settings),
        "config_hash": a.config_hash or None,
        "config_from": list(a.config_from),
        "differs": list(_differences_to_json(a.differs)),
        "like": a.like or None,
        "but": list(_differences_to_json(a.but)),
        "but_text": differences_text(a.but),
        "why": a.why,
        "decided_by": a.decided_by or None,
        "outcome": a.outcome,
        "outcome_by": a.outcome_by,
        "outcome_why": a.outcome_why,
        "missing": [list(m) for m in a.missing],
        "bugs": list(a.bugs),
        "mark": a.mark or None,
        "ended_by": a.ended_by or None,
        "seconds": a.seconds,
        "lost_steps": a.lost_steps,
        "lost_seconds": a.lost_seconds,
        "sources": list(a.sources),
    }


def _differences_to_json(found: Sequence[Difference]) -> Iterator[dict[str, str | None]]:
    for d in found:
        yield {"name": d.name, "before": d.before, "after": d.after}
