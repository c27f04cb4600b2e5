"""The journal as a logbook in Markdown: what people once kept by hand.

One section per attempt: where it came from and why, what differs, what happened, what was decided
and why, what was done and what came of it. Then what worked, what did not, and the learning rate
as it really was. Derived from the journal alone (and the record, where given); missing fields are
left out, and text from the run is escaped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.chronicle.authority_words import AUTHORITY_EVENTS, authority_words
from trimtab.chronicle.changes import changes_of
from trimtab.chronicle.coverage import coverage_of, rearmed_words
from trimtab.chronicle.journal import Event
from trimtab.chronicle.lineage import Lineage
from trimtab.chronicle.logbook_parts import (
    attempt_header,
    attempt_outcomes,
    note_lines,
    overview,
    register,
)
from trimtab.chronicle.markdown import md
from trimtab.masking import masked
from trimtab.record import Attempt, RunRecord
from trimtab.text import (
    action_words,
    is_number,
    number,
    plain,
    reworded,
    values_text,
    verdict_text,
    words,
)

__all__ = ["event_lines", "render_logbook"]

_MOST_MOVED = 8
"""Files of a rollback that a line names; the record of the rollback has all."""


@dataclass
class _Chapter:
    """One attempt and the events in it."""

    number: str
    opening: Event | None = None
    events: list[Event] = field(default_factory=list)


def render_logbook(
    events: Iterable[Event],
    record: RunRecord | None = None,
    *,
    files: str = "",
    lineage: Lineage | None = None,
    pictures: Mapping[str, str] | None = None,
) -> str:
    """Return the logbook of a run as Markdown.

    Args:
        events: The journal, in order.
        record: Samples of the run, for steps, settings and the learning rate in force; None if
            there are none at hand.
        files: Where raw logs and curves lie, as Markdown; see `trimtab.chronicle.links`.
        lineage: With it each attempt has a header, and the tables of attempts, hypotheses, bugs,
            failures and lost time are there.
        pictures: Number of an attempt -> address of its picture; "" is the picture of all.
    """
    told = tuple(events)
    shots = pictures or {}
    blocks = [_title(told, record)]
    if lineage is not None:
        blocks.append(overview(lineage, shots.get("", "")))
    known = {a.number: a for a in record.attempts} if record is not None else {}
    kept = {str(e.data["kept_attempt"]) for e in told if e.data.get("kept_attempt")}
    shown = _one_per_incident(told)
    blocks += [
        _chapter(c, known, kept=kept, lineage=lineage, picture=shots.get(c.number, ""))
        for c in _chapters(shown)
    ]
    blocks.append(_verdicts("What worked", told, ("worked",), lineage))
    blocks.append(_verdicts("What did not", told, ("did not",), lineage))
    blocks.append(_verdicts("Unclear", told, ("unclear", ""), lineage))
    blocks.append(_changes(told))
    if lineage is not None:
        blocks.append(register(lineage))
    blocks.append(_learning_rate(record))
    blocks.append(files)
    return "\n\n".join(b for b in blocks if b) + "\n"


def _one_per_incident(events: Iterable[Event]) -> list[Event]:
    """Return the events with each incident once: where it was opened, with its last explanation.

    What the trials showed is journalled under the trial; it belongs to the incident opened last.
    """
    shown: list[Event] = []
    opened: dict[tuple[str, float], int] = {}
    for event in events:
        onset = event.data.get("onset")
        known = isinstance(onset, int | float) and event.data.get("state") != "closed"
        if event.event != "incident" or not known:
            shown.append(event)
            continue
        key = (plain(event.data.get("kind")), onset or 0.0)
        at = opened.get(key)
        before = shown[at] if at is not None else None
        explains = event.data.get("state") == "explained"
        if at is None or before is None or not (explains or before.attempt == event.attempt):
            opened[key] = len(shown)
            shown.append(event)
        else:
            shown[at] = replace(before, data=event.data)
    return shown


def _title(events: Sequence[Event], record: RunRecord | None) -> str:
    start = next((e for e in events if e.event == "start"), None)
    end = next((e for e in reversed(events) if e.event in ("end", "gave-up")), None)
    lines = ["# Logbook" + (f" of {md(record.source)}" if record is not None else "")]
    facts = []
    if start is not None and start.data.get("adopted"):
        paths = _several(start.data.get("paths"))
        shown = ", ".join(md(p) for p in paths[:4]) + (" …" if len(paths) > 4 else "")
        facts.append(f"adopted from {shown} on {md(start.t[:10])}")
        events = [e for e in events if e.event in ("end",)]
    if events:
        facts.append(f"{_when(events[0])} to {_when(events[-1])} UTC")
    if end is not None:
        told = end.data.get("why" if end.event == "gave-up" else "reason")
        reason = f": {md(told)}" if told else ""
        facts.append(
            f"{'ended' if end.event == 'end' else 'given up'} at step"
            f" {number(end.data.get('final_step', end.step))}{reason}"
        )
    elif events:
        facts.append(f"no end is recorded; last event at step {number(events[-1].step)}")
    elif not facts:
        facts.append("The journal holds no events.")
    judged = not any(e.data.get("supervised") for e in events)
    if record is not None and record.num_rows and events and judged:
        facts.append(md(coverage_of(events, int(record.step[-1])).text()))
    facts = [fact for fact in facts if fact]
    lines.append(" · ".join(facts))
    if start is not None:
        settings, around = start.data.get("settings"), start.data.get("environment")
        if isinstance(settings, Mapping) and isinstance(around, Mapping):
            around = {k: v for k, v in around.items() if settings.get(k) != v}
        lines += [t for t in (_listed("Settings", settings), _listed("Environment", around)) if t]
    return "\n\n".join(lines)


def _listed(title: str, values: object) -> str:
    """Return settings as a list: a line of what is plain, and one for each group."""
    if not isinstance(values, Mapping):
        text = values_text(values)
        return f"{title}: {md(text)}" if text else ""
    groups = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    rest = values_text({k: v for k, v in values.items() if k not in groups})
    if not groups:
        return f"{title}: {md(rest)}" if rest else ""
    items = [rest] if rest else []
    for name, group in groups.items():
        parts = [t for t in (values_text({k: v}) for k, v in group.items()) if t]
        packed = [", ".join(parts[i : i + 6]) for i in range(0, len(parts), 6)]
        items += [f"{plain(name)}: {line}" for line in packed]
    return f"{title}:\n\n" + "\n".join(f"- {md(item)}" for item in items)


def _when(event: Event) -> str:
    return md(event.t[:19].replace("T", " "))


def _chapters(events: Iterable[Event]) -> list[_Chapter]:
    """Group events by the attempt that they name; those of the run as a whole open no chapter."""
    chapters: dict[str, _Chapter] = {}
    waiting: list[Event] = []
    for event in events:
        if event.event in ("start", "end"):
            continue
        name = (
            str(event.data.get("number") or event.attempt)
            if event.event == "attempt"
            else event.attempt
        )
        if not name:
            waiting.append(event)
            continue
        chapter = chapters.setdefault(name, _Chapter(name))
        chapter.events += waiting  # said before the attempt that follows had a number
        waiting = []
        if event.event == "attempt":
            chapter.opening = event
        else:
            chapter.events.append(event)
    start = [_Chapter("", events=waiting)] if waiting else []
    return [*start, *chapters.values()]


def _chapter(
    chapter: _Chapter,
    known: Mapping[str, Attempt],
    *,
    kept: AbstractSet[str] = frozenset(),
    lineage: Lineage | None = None,
    picture: str = "",
) -> str:
    opening: Mapping[str, object] = chapter.opening.data if chapter.opening is not None else {}
    recorded = known.get(chapter.number)
    parent = opening.get("parent") or (recorded.parent if recorded else None)
    parent_step = opening.get("parent_step")
    if parent_step is None and recorded is not None:
        parent_step = recorded.parent_step
    kind = "Trial" if opening.get("trial", recorded is not None and recorded.trial) else "Attempt"
    at = f" @ {number(parent_step)}" if parent_step is not None else ""
    title = f"{kind} {md(chapter.number)}" if chapter.number else "Start"
    if chapter.number in kept and kind == "Trial":
        title += ", kept"
    told = lineage.get(chapter.number) if lineage is not None else None
    if told is not None and told.kind == "ablation":
        title = title.replace("Trial", "Ablation", 1)
    parts = [f"## {title}" + (f" (parent {md(parent)}{at})" if parent else "")]
    if told is not None and lineage is not None:
        parts.append(attempt_header(told, lineage))
    if picture:
        parts.append(f"![{md(title)}]({picture})")
    why = opening.get("why") or (recorded.why if recorded else "")
    if told is not None and told.why:
        why = told.why + (f" ({told.decided_by})" if told.decided_by else "")
    if why:
        parts.append(f"Why: {md(why)}")
    differs = _differences(recorded, known.get(str(parent))) if told is None else ""
    if differs:
        parts.append(f"{'Same but' if parent else 'Settings'}: {differs}")
    lines = [line for event in chapter.events for line in event_lines(event)]
    folded = _checkpoints(chapter.events)
    if folded:
        lines.append(folded)
    if lines:
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _differences(attempt: Attempt | None, parent: Attempt | None) -> str:
    own = attempt.settings if attempt is not None else {}
    before = parent.settings if parent is not None else {}
    changed = {k: v for k, v in own.items() if before.get(k) != v}
    return ", ".join(
        f"{md(plain(k).replace('_', ' '))} "
        f"{md(masked(before[k], name=k)) + ' → ' if k in before else ''}{md(masked(v, name=k))}"
        for k, v in changed.items()
    )


def event_lines(event: Event) -> Iterator[str]:
    """Yield the Markdown bullets of one event; findings and checkpoints are counted elsewhere."""
    d = event.data
    at = f"- **{number(event.step)}**"
    if event.event == "incident":
        yield from _incident(at, d)
    elif event.event == "decision":
        yield f"{at} decided: {md(d.get('what', 'unsaid'))}" + _because(d.get("why"))
        yield from (f"  - evidence: {md(reworded(e))}" for e in _several(d.get("evidence")))
    elif event.event == "action":
        yield f"{at} done: {md(action_words(event.step, d)) or 'unsaid'}" + _because(d.get("why"))
    elif event.event == "outcome":
        yield (
            f"{at} outcome of {md(words(d.get('remedy')) or 'this')}:"
            f" **{md(verdict_text(d)[0])}**" + _because(_result(d))
        )
    elif event.event == "fault":
        where = f" in {md(d['where'])}" if d.get("where") else ""
        old = "" if "why" in d else "; the guard dropped to observe"
        yield f"{at} fault of trimtab's own{where}: {md(d.get('error', 'unsaid'))}{old}"
    elif event.event == "rearmed":
        yield f"{at} {md(rearmed_words(d))}"
    elif event.event in AUTHORITY_EVENTS:
        yield f"{at} {md(authority_words(event))}"
    elif event.event == "repair":
        back = ", ".join(md(name) for name in _several(d.get("brought_back")))
        yield f"{at} the journal was repaired" + (f"; brought back: {back}" if back else "")
        yield from (f"  - lost: {md(text)}" for text in _several(d.get("lost")))
    elif event.event == "resume":
        yield f"{at} resumed" + _because(values_text(d))
    elif event.event == "dismiss":
        onset = f"the {md(words(d.get('kind')))} of {md(number(d.get('onset')))}"
        said = f"no longer dismissed: {onset}" if d.get("undo") else f"dismissed: {onset}"
        author = f" ({md(d['author'])})" if d.get("author") else ""
        yield f"{at} {said}" + _because(d.get("why")) + author
    elif event.event == "note":
        yield from note_lines(at, d)
    elif event.event in ("restart", "gave-up", "hang"):
        failure = f" after {md(words(d['class']))}" if d.get("class") else ""
        yield f"{at} {md(words(event.event))}{failure}" + _because(d.get("why"))
    elif event.event == "rollback":
        yield from _surgery(at, event)


def _incident(at: str, d: Mapping[str, object]) -> Iterator[str]:
    headline = md(d.get("headline") or words(d.get("kind")) or "incident")
    if d.get("state") == "closed":
        yield f"{at} over: {headline}"
        return
    severity = f"{md(d['severity'])}: " if d.get("severity") else ""
    yield f"{at} {severity}{headline}"
    if d.get("precursor") is not None:
        yield f"  - first sign at {md(number(d['precursor']))}"
    for cause in _several(d.get("causes")):
        if isinstance(cause, Mapping):
            confidence = cause.get("confidence")
            share = f" ({confidence:.2f})" if is_number(confidence) else ""
            yield f"  - perhaps {md(words(cause.get('cause', 'unknown')))}{share}" + _because(
                "; ".join(reworded(e) for e in _several(cause.get("evidence")))
            )


def _several(value: object) -> tuple[object, ...]:
    if value is None or value == "":
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _because(why: object) -> str:
    return f" — {md(why)}" if why else ""


def _result(d: Mapping[str, object]) -> str:
    return "; ".join(p for p in (verdict_text(d)[1], values_text(d.get("figures"))) if p)


def _checkpoints(events: Sequence[Event]) -> str:
    saved = [e for e in events if e.event == "checkpoint"]
    if not saved:
        return ""
    grades: dict[str, int] = {}
    for e in saved:
        grade = plain(e.data.get("grade") or "ungraded")
        grades[grade] = grades.get(grade, 0) + 1
    graded = ", ".join(f"{count} {md(grade)}" for grade, count in grades.items())
    return (
        f"- {len(saved)} checkpoint{'s' * (len(saved) != 1)} ({graded}), the last at"
        f" {number(saved[-1].step)}"
    )


def _verdicts(
    title: str,
    events: Sequence[Event],
    verdicts: tuple[str, ...],
    lineage: Lineage | None = None,
) -> str:
    rows = [
        f"| {md(words(e.data.get('remedy')) or 'unsaid')} | {md(e.attempt)} @ {number(e.step)} |"
        f" {md(_result(e.data)) or '—'} |"
        for e in events
        if e.event == "outcome" and plain(e.data.get("verdict") or "") in verdicts
    ]
    if lineage is not None:
        rows += attempt_outcomes(lineage, verdicts[0])
    if not rows:
        return ""
    return (
        f"## {title}\n\n| remedy | attempt @ step | what came of it |\n| --- | --- | --- |\n"
        + "\n".join(rows)
    )


def _changes(events: Sequence[Event]) -> str:
    rows = [f"| {' | '.join(md(cell) or '—' for cell in row)} |" for row in changes_of(events)]
    if not rows:
        return ""
    head = "| change | attempt @ step | label | metrics |\n| --- | --- | --- | --- |\n"
    return "## Changes\n\n" + head + "\n".join(rows)


def _without_repeats(
    shown: Sequence[int], attempt: NDArray[np.int32], rate: NDArray[np.float64]
) -> list[int]:
    """Return the rows to show, a rate that stays as it was once, and the last one."""
    kept = list(shown[:1])
    for i in shown[1:]:
        moved = attempt[i] != attempt[kept[-1]] or rate[i] != rate[kept[-1]]
        if moved or i == shown[-1]:
            kept.append(i)
    return kept


def _learning_rate(record: RunRecord | None, *, num_rows: int = 12) -> str:
    """Return the learning rate along the final lineage: at a few steps and at each turn."""
    column = record.columns.get("lr") if record is not None else None
    if record is None or column is None:
        return ""
    rows = record.lineage_rows()
    rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
    if not len(rows):
        return ""
    shown = {int(i) for i in np.linspace(0, len(rows) - 1, min(num_rows, len(rows)))}
    shown.add(int(column.values[rows].argmax()))
    changed = np.flatnonzero(np.diff(record.attempt[rows]))
    shown.update(int(i) for i in changed)
    shown.update(int(i) + 1 for i in changed)
    lines = [
        f"| {number(float(record.step[rows[i]]))} |"
        f" {md(record.attempts[int(record.attempt[rows[i]])].number)} |"
        f" {number(float(column.values[rows[i]]))} |"
        for i in _without_repeats(sorted(shown), record.attempt[rows], column.values[rows])
    ]
    return (
        "## Learning rate as it was\n\n| step | attempt | learning rate |\n| ---: | --- | ---: |\n"
        + "\n".join(lines)
    )


def _surgery(at: str, event: Event) -> Iterator[str]:
    """Yield what `trimtab rollback` did to the folders of a run."""
    d = event.data
    back = f" from {md(number(d['from_step']))}" if is_number(d.get("from_step")) else ""
    undone = str(d.get("state", "")).startswith("und")
    deed = "rollback taken back: it went" if undone else "rolled back"
    by = f" by {md(d['by'])}" if d.get("by") else ""
    to = md(number(d.get("to_step", event.step)))
    yield f"{at} {deed}{back} to {to}{by}" + _because(d.get("why"))
    moved = [m for m in _several(d.get("moved")) if isinstance(m, Mapping)]
    if moved:
        names = [md(plain(m.get("from"), limit=120)) for m in moved[:_MOST_MOVED]]
        more = f" and {len(moved) - _MOST_MOVED} more" if len(moved) > _MOST_MOVED else ""
        yield f"  - moved aside: {', '.join(names)}{more}"
    for pointer in _several(d.get("pointers")):
        if isinstance(pointer, Mapping):
            yield f"  - {md(pointer.get('path'))}: {md(pointer.get('told'))}"
    for key, said in (("archive", "events archived in"), ("commit", "committed as")):
        if d.get(key):
            yield f"  - {said} {md(d[key])}"
    cut = [md(plain(x, limit=120)) for x in _several(d.get("logs_cut"))]
    if cut:
        yield f"  - events after it left: {', '.join(cut[:_MOST_MOVED])}"
