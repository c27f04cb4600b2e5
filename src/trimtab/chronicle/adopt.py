"""A run that began without trimtab, as one lineage: its logs, wherever they lie, put together.

Attempts, restarts and overlaps are found in the rows; settings come from whatever states them
beside a log. Nothing in the paths is executed, and nothing is written there.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import orjson

from trimtab.chronicle.journal import Event, Journal, read_journal
from trimtab.chronicle.numbering import next_number, number_key, stated_number
from trimtab.chronicle.rundir import RunDirectory
from trimtab.chronicle.segments import Segment, put_together, segments_of
from trimtab.chronicle.settings_record import canonical_settings, differences, is_new_family
from trimtab.chronicle.stated import Stated, stated_beside
from trimtab.crash import classify
from trimtab.durable import make_folder
from trimtab.errors import ConfigError, ReadError
from trimtab.incidents import Incident
from trimtab.readers import read_each
from trimtab.record import RecordBuilder, RunRecord

__all__ = ["Adopted", "adopt", "incident_events", "write_run"]

_ABLATION = re.compile(r"(?<![a-z])ablat", re.IGNORECASE)
_CHECKPOINT = re.compile(r"(?:global_?step|iter_|checkpoint-|step[-_]?)0*(\d{1,12})")
_NO_REASON = re.compile("a new event file begins|a session starts")
_FROM_SCRATCH = 1.5
"""First rows at most this many spacings above the first of the run begin from scratch. Ours."""
_MAX_FILES = 20_000


@dataclass(frozen=True, kw_only=True)
class Adopted:
    """A lineage that was found."""

    record: RunRecord
    """All rows, attempts in the order of time."""
    events: tuple[Event, ...]
    """The journal that it would have, had trimtab been there."""
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Paths that could not be read, and why."""


@dataclass
class _Part:
    """One attempt while the lineage is put together."""

    segment: Segment
    stated: Stated
    settings: dict[str, str] = field(default_factory=dict)
    number: str = ""
    parent: str | None = None
    parent_step: float | None = None
    ablation: bool = False
    label: str = ""


def adopt(paths: Sequence[str | os.PathLike[str]]) -> Adopted:
    """Read logs and folders as one run.

    Args:
        paths: Logs, TensorBoard directories, folders of a run. What they hold is put in the order
            of the clock where all rows have one, else of the numbers in their names, else as
            given and, within a folder, by name.

    Raises:
        ReadError: Nothing in them can be read as a log, or their rows are not counted in steps.
    """
    segments: list[Segment] = []
    left_out: list[str] = []
    notes: list[str] = []
    roots: dict[str, Path] = {}
    for path in paths:
        for source, outcome in read_each(path):
            if isinstance(outcome, ReadError):
                if Path(source).name == "journal.jsonl":  # what commands wrote; see `_rollbacks`
                    continue
                left_out.append(str(outcome))
                continue
            if not any(c in outcome.columns for c in ("loss", "val_loss")):
                left_out.append(f"{source}: has no loss")
                continue
            if outcome.axis != "step":
                left_out.append(f"{source}: its rows are counted by {outcome.axis}, not by step")
                continue
            roots[outcome.source] = Path(path)
            segments += segments_of(outcome, len(segments))
    if not segments:
        why = f" ({left_out[0]})" if left_out else ""
        raise ReadError(
            f"{', '.join(str(p) for p in paths)}: no log that counts steps{why}; give training"
            " logs, or the folder that holds them"
        )
    joined, told = put_together(segments)
    notes += told
    ordered, how = _in_order(joined)
    notes.append(how)
    parts = [_part(s, roots) for s in ordered]
    saved = _checkpoint_steps(paths)
    _number(parts, saved)
    record = _record(parts, paths, notes)
    events = [*_events(parts, record, [str(p) for p in paths]), *_rollbacks(parts, paths)]
    return Adopted(
        record=record,
        events=tuple(events),
        notes=tuple(notes),
        left_out=tuple(left_out),
    )


def _in_order(segments: Sequence[Segment]) -> tuple[list[Segment], str]:
    """Return segments in the order of time, and by what they were ordered."""
    if all(s.begun_s is not None for s in segments):
        return sorted(segments, key=lambda s: (s.begun_s, s.order)), "ordered by the clock"
    numbers = [_stated_number(s) for s in segments]
    if all(numbers):
        found = sorted(segments, key=lambda s: (number_key(_stated_number(s)), s.order))
        return found, "ordered by the numbers in their names"
    natural = sorted(segments, key=lambda s: s.order)
    return natural, "ordered by the names of the logs, since not all rows have a time"


def _stated_number(segment: Segment) -> str:
    if segment.number:
        return segment.number
    for source in segment.sources:
        path = Path(source)
        found = stated_number(path.name) or stated_number(path.parent.name)
        if found:
            return found
    return ""


def _part(segment: Segment, roots: Mapping[str, Path]) -> _Part:
    told = [stated_beside(s, roots[s]) for s in segment.sources if s in roots]
    best = max(told, key=lambda t: len(t.settings), default=Stated())
    environment: dict[str, str] = {}
    for one in told:
        environment |= one.environment
    best = replace(best, environment=environment)
    # What a log prints at this launch wins over a file that may have been edited since.
    settings = {**best.settings, **canonical_settings(segment.settings)}
    label = next((Path(s.partition("#")[0]).name for s in segment.sources), "")
    aside = any(_ABLATION.search(_below(s, roots.get(s))) for s in segment.sources)
    return _Part(segment, best, settings, label=label, ablation=aside)


def _below(source: str, root: Path | None) -> str:
    """Return the part of a path that lies below what was given, or its name."""
    try:
        return str(Path(source).relative_to(root)) if root is not None else source
    except ValueError:
        return Path(source).name


def _checkpoint_steps(paths: Sequence[str | os.PathLike[str]]) -> frozenset[int]:
    """Return the steps in the names of checkpoint folders below the paths."""
    steps: set[int] = set()
    looked = 0
    for path in paths:
        waiting = [(Path(path), 0)] if Path(path).is_dir() else []
        while waiting and looked < _MAX_FILES:
            here, depth = waiting.pop()
            try:
                entries = list(os.scandir(here))
            except OSError:
                continue
            looked += len(entries)
            for entry in entries:
                if (match := _CHECKPOINT.fullmatch(entry.name)) is not None:
                    steps.add(int(match[1]))
                elif depth < 4 and entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
    return frozenset(steps)


def _number(parts: Sequence[_Part], saved: frozenset[int]) -> None:
    """Give each part its parent and its number."""
    taken: set[str] = set()
    stated = [_stated_number(p.segment) for p in parts]
    by_name = all(stated) and len(set(stated)) == len(stated)
    done: list[_Part] = []
    for index, part in enumerate(parts):
        owner = None if part.ablation and not part.segment.follows else _owner(part, done, saved)
        previous = next((p for p in reversed(done) if not p.ablation), None)
        compared = owner or previous
        other = compared is not None and is_new_family(
            differences(compared.settings, part.settings)
        )
        # Weights of another shape cannot be loaded: it begins anew whatever its first step is.
        if owner is not None and other and part.segment.parent_step is None:
            owner, part.parent_step = None, None
        if owner is not None:
            part.parent = owner.number
        last = done[-1].number if done else ""
        part.number = (
            stated[index]
            if by_name
            else next_number(last, taken, new_family=other or owner is None)
        )
        taken.add(part.number)
        done.append(part)


def _owner(part: _Part, done: Sequence[_Part], saved: frozenset[int]) -> _Part | None:
    """Return the attempt whose checkpoint a part goes on from; None: it begins from scratch."""
    if not done:
        return None
    segment = part.segment
    first, spacing = float(segment.step[0]), segment.spacing
    resumed = segment.parent_step
    if resumed is None:
        origin = min(float(p.segment.step[0]) for p in done)
        if first <= origin + (_FROM_SCRATCH - 1) * spacing or first <= _FROM_SCRATCH * spacing:
            return None
        near = [s for s in saved if first - spacing <= s < first]
        resumed = float(max(near)) if near else max(first - spacing, 0.0)
    elif resumed <= 0:
        return None
    part.parent_step = resumed
    # Along the line that was last in force, the attempt in which that step was made.
    chain: list[_Part] = []
    by_number = {p.number: p for p in done}
    main = [p for p in done if not p.ablation] or list(done)
    current: _Part | None = main[-1]
    limit = math.inf
    while current is not None and current not in chain:
        chain.append(current)
        end = min(limit, float(current.segment.step[-1]))
        begins = float(current.segment.step[0]) - current.segment.spacing
        if begins < resumed <= end + 1e-9:
            return current
        limit = current.parent_step if current.parent_step is not None else math.inf
        current = by_number.get(current.parent or "")
    # Nothing covers it: after the end of the line rows are missing, else it is another line.
    reached = [p for p in main if float(p.segment.step[0]) <= resumed]
    return (
        max(reached, key=lambda p: (float(p.segment.step[-1]) >= resumed, p.segment.order))
        if reached
        else main[-1]
    )


def _record(
    parts: Sequence[_Part], paths: Sequence[str | os.PathLike[str]], notes: Sequence[str]
) -> RunRecord:
    source = str(paths[0]) if len(paths) == 1 else f"{len(paths)} logs"
    builder = RecordBuilder(source, "adopted")
    builder.notes.extend(notes)
    for part in parts:
        builder.facts.update(part.segment.facts)
        builder.start_attempt(
            number=part.number,
            parent=part.parent,
            parent_step=part.parent_step,
            settings=part.settings,
            why=_why(part.segment),
            trial=part.ablation,
        )
        builder.extend(part.segment.step, part.segment.columns)
    record = builder.build()
    # The builder takes the attempt before as parent of what begins from scratch, too.
    parents = {p.number: p.parent for p in parts}
    attempts = tuple(replace(a, parent=parents.get(a.number)) for a in record.attempts)
    return replace(record, attempts=attempts)


def _events(parts: Sequence[_Part], record: RunRecord, paths: Sequence[str]) -> Iterator[Event]:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    first = int(record.step[0]) if record.num_rows else 0
    yield Event(now, "start", parts[0].number, first, {"adopted": True, "paths": list(paths)})
    for part in parts:
        segment = part.segment
        data: dict[str, object] = {
            "number": part.number,
            "parent": part.parent,
            "parent_step": part.parent_step,
            "why": _why(segment),
            "trial": part.ablation,
            "adopted": True,
            "label": part.label,
            "sources": list(segment.sources),
            "settings": part.settings,
            "config": dict(part.stated.config),
            "config_from": list(part.stated.sources),
            "config_hash": part.stated.config_hash,
            "environment": dict(part.stated.environment),
            "begun": _iso(segment.begun_s),
            "ended": _iso(segment.ended_s),
            "ended_by": _ended_by(segment),
        }
        if part.ablation:
            data["mark"] = "ablation"
        shown = {k: v for k, v in data.items() if v not in ("", [], {}, None)}
        shown |= {"parent": part.parent, "parent_step": part.parent_step}
        yield Event(now, "attempt", part.number, int(segment.step[0]), shown)


def _why(segment: Segment) -> str:
    """Return why an attempt was begun; what a reader noticed of the files is no reason."""
    return "" if _NO_REASON.match(segment.why) else segment.why


def _rollbacks(parts: Sequence[_Part], paths: Sequence[str | os.PathLike[str]]) -> Iterator[Event]:
    """Yield what `trimtab rollback` wrote down in the folders, each under the attempt it ended."""
    told = [
        event
        for path in paths
        if (journal := RunDirectory(Path(path)).journal).is_file()
        for event in read_journal(journal)[0]
        if event.event == "rollback"
    ]
    followed: set[int] = set()
    for event in told:
        # The n-th rollback to a step is the one that the n-th attempt from there follows.
        child = next(
            (
                i
                for i, p in enumerate(parts)
                if i and i not in followed and p.parent_step == event.data.get("to_step")
            ),
            None,
        )
        if child is None or event.data.get("state") == "undone":
            yield replace(event, attempt=parts[-1].number)
            continue
        followed.add(child)
        yield replace(event, attempt=parts[child - 1].number)


def _iso(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _ended_by(segment: Segment) -> str:
    """Return the class of the failure that the last lines of a log tell; empty for none."""
    if not segment.tail:
        return ""
    found = classify(list(segment.tail))
    return "" if found is None else found.crash_class


def incident_events(incidents: Sequence[Incident], t: str) -> tuple[Event, ...]:
    """Return incidents that a reading afterwards found, as events of the journal."""
    return tuple(
        Event(
            t,
            "incident",
            i.attempt,
            int(i.onset),
            {
                "kind": i.kind,
                "severity": i.severity,
                "headline": i.headline,
                "onset": i.onset,
                "end": i.end,
                "state": "open" if i.end is None else "closed",
                "afterwards": True,
            },
        )
        for i in sorted(incidents, key=lambda i: i.onset_row)
    )


def write_run(adopted: Adopted, incidents: Sequence[Event], out: Path) -> None:
    """Write a lineage as a run directory: journal and samples.

    Raises:
        ConfigError: Something is there already, or it cannot be written.
    """
    directory = RunDirectory(out)
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise ConfigError(
                f"{out}: is not an empty folder; give a new one with --out, nothing is overwritten"
            )
        make_folder(directory.signals)
        for index, attempt in enumerate(adopted.record.attempts):
            _write_rows(adopted.record, index, directory.signals_of(attempt.number))
        if adopted.record.facts:
            lines = [
                f"{name} = {value!r}\n"
                for name, value in adopted.record.facts.items()
                if math.isfinite(value) and re.fullmatch(r"\w+", name)
            ]
            directory.settings.write_text("".join(lines), encoding="utf-8")
        journal = Journal(directory.journal)
        try:
            for event in _with_incidents(adopted.events, incidents):
                journal.append(event.event, attempt=event.attempt, step=event.step, **event.data)
        finally:
            journal.close()
    except OSError as error:
        raise ConfigError(
            f"{error.filename or out}: cannot be written ({error.strerror}); choose another --out"
        ) from error


def _with_incidents(events: Sequence[Event], incidents: Sequence[Event]) -> Iterator[Event]:
    """Yield each attempt with its incidents, and the rollback that ended it, behind it."""
    later = [*incidents, *(e for e in events if e.event == "rollback")]
    for event in events:
        if event.event != "rollback":
            yield event
        if event.event == "attempt":
            yield from (e for e in later if e.attempt == event.attempt)


def _write_rows(record: RunRecord, index: int, path: Path) -> None:
    rows = record.rows_of(index)
    names = [n for n, c in record.columns.items() if c.present[rows].any()]
    columns = [(n, record.columns[n]) for n in names]
    with path.open("wb") as file:
        for row in range(rows.start, rows.stop):
            step = float(record.step[row])
            said: dict[str, object] = {"step": int(step) if step.is_integer() else step}
            for name, column in columns:
                if column.present[row]:
                    value = float(column.values[row])
                    said[name] = value if math.isfinite(value) else _word(value)
            file.write(orjson.dumps(said) + b"\n")


def _word(value: float) -> str:
    return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
