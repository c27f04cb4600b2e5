"""Events of the journal as sentences, and the actions taken about each incident."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from trimtab.analysis.account import RunAccount
from trimtab.chronicle.authority_words import AUTHORITY_EVENTS, authority_words
from trimtab.chronicle.coverage import rearmed_words
from trimtab.chronicle.journal import Event
from trimtab.text import (
    action_words,
    number,
    plain,
    values_text,
    verdict_text,
    words,
)

__all__ = [
    "NEAR_STEPS",
    "SKIP_UPDATE",
    "TimelineBar",
    "answers",
    "done_after",
    "event_sentence",
    "timeline_bars",
    "words",
]

NEAR_STEPS = 16
"""An incident event within so many steps of an incident's onset speaks of it: a live guard dates
an onset with fewer rows at hand than a reading afterwards. Ours."""


def done_after(account: RunAccount) -> dict[int, tuple[str, ...]]:
    """Return what was done about each incident in words, by its index in the account."""
    return {
        i: tuple(
            dict.fromkeys(
                f"{plain(e.attempt)} @ {number(e.step)}: {event_sentence(e)}" for e in events
            )
        )
        for i, events in answers(account).items()
    }


def answers(account: RunAccount) -> dict[int, tuple[Event, ...]]:
    """Return the actions and outcomes about each incident, by its index in the account.

    They belong to the last incident that the journal opened before them; an update left out, to the
    one whose values were not finite at its step. A process that was killed
    before it could act, and resumed, meets the same incident again: the answer to that is also
    the answer to the first.
    """
    found: dict[int, list[Event]] = {}
    current: int | None = None
    interrupted: set[int] = set()
    opened: set[int] = set()
    for event in account.events:
        if event.event == "resume":
            interrupted |= opened
            opened = set()
        elif event.event == "incident" and event.data.get("state") != "closed":
            if event.data.get("state") == "explained" and current is not None:
                continue  # told again within a trial, with what the trials showed
            current = _incident_of(event, account)
            opened |= {current} if current is not None else set()
        elif event.data.get("remedy") == SKIP_UPDATE:
            broken = _nonfinite_at(event, account)
            if broken is not None:
                found.setdefault(broken, []).append(event)
        elif event.event in ("action", "outcome") and current is not None:
            found.setdefault(current, []).append(event)
    for first in interrupted - set(found):
        again = next((i for i in sorted(found) if _same(account, first, i)), None)
        if again is not None:
            found[first] = found[again]
    return {i: tuple(events) for i, events in found.items()}


def _same(account: RunAccount, first: int, again: int) -> bool:
    a, b = account.incidents[first].incident, account.incidents[again].incident
    return a.kind == b.kind and abs(a.onset - b.onset) <= NEAR_STEPS


def _nonfinite_at(event: Event, account: RunAccount) -> int | None:
    """Return the incident that has values that are not finite at the step of an event."""
    for i, ia in enumerate(account.incidents):
        end = ia.incident.end
        if (
            ia.incident.attempt == event.attempt
            and "non-finite" in (ia.incident.kind, *ia.incident.also)
            and ia.incident.onset <= event.step
            and (end is None or event.step <= end)
        ):
            return i
    return None


def _incident_of(event: Event, account: RunAccount) -> int | None:
    onset = event.data.get("onset")
    if not isinstance(onset, int | float):
        return None
    gaps = [
        (abs(ia.incident.onset - onset) + 0.5 * (ia.incident.kind != event.data.get("kind")), i)
        for i, ia in enumerate(account.incidents)
        if ia.incident.attempt == event.attempt
    ]
    gap, index = min(gaps, default=(NEAR_STEPS + 1.0, -1))
    return index if gap <= NEAR_STEPS else None


def event_sentence(event: Event) -> str:
    """Return what an event says, in one line."""
    tell = _SENTENCES.get(event.event)
    return values_text(event.data) if tell is None else tell(event)


def _action(event: Event) -> str:
    return _with_why(action_words(event.step, event.data), event.data.get("why"))


def _outcome(event: Event) -> str:
    d = event.data
    remedy = words(d.get("remedy"))
    verdict, detail = verdict_text(d)
    detail = detail or values_text(d.get("figures"))
    return _with_why(f"{remedy}: {verdict}" if remedy else verdict, detail)


def _decision(event: Event) -> str:
    return _with_why(plain(event.data.get("what")), event.data.get("why"))


def _attempt(event: Event) -> str:
    d = event.data
    text = (
        f"{'trial' if d.get('trial') else 'attempt'}"
        f" {plain(d.get('number')) or plain(event.attempt)}"
    )
    if d.get("parent"):
        text += f" from {plain(d['parent'])}"
        if d.get("parent_step") is not None:
            text += f" @ {number(d['parent_step'])}"
    return _with_why(text, d.get("why"))


def _incident(event: Event) -> str:
    d = event.data
    text = plain(d.get("headline")) or words(d.get("kind")) or "incident"
    return f"{text} (over)" if d.get("state") == "closed" else text


def _checkpoint(event: Event) -> str:
    d = event.data
    grade = plain(d.get("grade"))
    return _with_why(
        f"checkpoint at {number(event.step)}" + (f", {grade}" if grade else ""), d.get("why")
    )


def _fault(event: Event) -> str:
    d = event.data
    where = plain(d.get("where"))
    text = (plain(d.get("error")) or "a fault of trimtab's own") + (f" in {where}" if where else "")
    return text if "why" in d else f"{text}; the guard dropped to observe"


def _rearmed(event: Event) -> str:
    return rearmed_words(event.data)


def _end(event: Event) -> str:
    d = event.data
    return _with_why(f"ended at {number(d.get('final_step', event.step))}", d.get("reason"))


_SENTENCES: Mapping[str, Callable[[Event], str]] = {
    "action": _action,
    "attempt": _attempt,
    "checkpoint": _checkpoint,
    "decision": _decision,
    "end": _end,
    "fault": _fault,
    "incident": _incident,
    "outcome": _outcome,
    "rearmed": _rearmed,
    **dict.fromkeys(AUTHORITY_EVENTS, authority_words),
}


def _with_why(text: str, why: object) -> str:
    reason = plain(why)
    return f"{text} — {reason}" if text and reason else text or reason


SKIP_UPDATE = "skip-update"
"""The action of leaving out an update whose gradient is not finite."""


@dataclass(frozen=True, kw_only=True)
class TimelineBar:
    """Something that a guard saw or did, as a bar on the step axis."""

    kind: Literal["noticed", "back", "held", "failed", "kept", "checked", "stopped"]
    first: float
    last: float
    text: str


def timeline_bars(events: Sequence[Event]) -> tuple[TimelineBar, ...]:
    """Return what a guard saw and did, in order: noticed, went back, tried, kept, checked.

    A bar runs over the steps that it took; the one of `back` runs from where the guard stood to
    where it went.
    """
    return tuple(_bars(events))


def _bars(events: Sequence[Event]) -> Iterator[TimelineBar]:
    kept = {str(e.data["kept_attempt"]) for e in events if e.data.get("kept_attempt")}
    stood, base, acted = 0.0, None, 0.0
    begun: dict[str, float] = {}
    for e in events:
        d = e.data
        if e.event == "incident" and d.get("state") == "open":
            first = min(_step(d.get("precursor"), e.step), _step(d.get("onset"), e.step))
            stood, base = float(e.step), None
            yield TimelineBar(
                kind="noticed",
                first=first,
                last=stood,
                text=f"first sign {number(first)}, noticed {number(stood)}",
            )
        elif e.event == "attempt" and d.get("parent_step") is not None:
            begun[e.attempt] = _step(d["parent_step"], e.step)
            if begun[e.attempt] != base:
                base = begun[e.attempt]
                yield TimelineBar(
                    kind="back", first=stood, last=base, text=f"back to {number(base)}"
                )
        elif e.event == "outcome" and d.get("trial"):
            held = d.get("verdict") == "worked"
            kind: Literal["kept", "held", "failed"] = (
                "kept" if e.attempt in kept else "held" if held else "failed"
            )
            yield TimelineBar(
                kind=kind,
                first=begun.get(e.attempt, e.step),
                last=e.step,
                text=(
                    f"{words(d.get('remedy'))}{': held' if held else ': failed'}"
                    f"{', kept' if kind == 'kept' else ''}"
                ),
            )
        elif e.event == "action":
            acted = float(e.step)
        elif e.event == "outcome":
            yield TimelineBar(
                kind="checked",
                first=acted,
                last=e.step,
                text=f"checked: {plain(d.get('verdict')) or 'unclear'}",
            )
        elif e.event == "decision" and d.get("what") in ("stop acting", "advise"):
            yield TimelineBar(kind="stopped", first=e.step, last=e.step, text=_decision(e))


def _step(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else float(default)
