"""Events of the journal as sentences, and which of them answered which incident."""

from collections.abc import Callable, Mapping

from trimtab.chronicle.journal import Event
from trimtab.chronicle.prose import number, plain, values_text
from trimtab.report.account import RunAccount

__all__ = ["done_after", "event_sentence"]

NEAR = 16
"""An incident event within so many steps of an incident's onset speaks of it: a live guard dates
an onset with fewer rows at hand than a reading afterwards. Ours."""


def done_after(account: RunAccount) -> dict[int, tuple[str, ...]]:
    """Return what was done about each incident, by its index in the account.

    Actions and outcomes belong to the last incident that the journal opened before them.
    """
    done: dict[int, list[str]] = {}
    current: int | None = None
    for event in account.events:
        if event.event == "incident" and event.data.get("state") != "closed":
            current = _incident_of(event, account)
        elif event.event in ("action", "outcome") and current is not None:
            where = f"{plain(event.attempt)} @ {number(event.step)}"
            done.setdefault(current, []).append(f"{where}: {event_sentence(event)}")
    return {i: tuple(dict.fromkeys(texts)) for i, texts in done.items()}


def _incident_of(event: Event, account: RunAccount) -> int | None:
    onset = event.data.get("onset")
    if not isinstance(onset, int | float):
        return None
    gaps = [
        (abs(ia.incident.onset - onset) + 0.5 * (ia.incident.kind != event.data.get("kind")), i)
        for i, ia in enumerate(account.incidents)
        if ia.incident.attempt == event.attempt
    ]
    gap, index = min(gaps, default=(NEAR + 1.0, -1))
    return index if gap <= NEAR else None


def event_sentence(event: Event) -> str:
    """Return what an event says, in one line."""
    tell = _SENTENCES.get(event.event)
    return values_text(event.data) if tell is None else tell(event)


def _action(event: Event) -> str:
    d = event.data
    parts = (_words(d.get("remedy")), values_text(d.get("values")))
    return _with_why(" ".join(p for p in parts if p), d.get("why"))


def _outcome(event: Event) -> str:
    d = event.data
    verdict = plain(d.get("verdict")) or "unclear"
    remedy = _words(d.get("remedy"))
    detail = plain(d.get("text")) or values_text(d.get("figures"))
    return _with_why(f"{remedy}: {verdict}" if remedy else verdict, detail)


def _decision(event: Event) -> str:
    return _with_why(plain(event.data.get("what")), event.data.get("why"))


def _attempt(event: Event) -> str:
    d = event.data
    text = f"{'trial' if d.get('trial') else 'attempt'} {plain(d.get('number')) or plain(event.attempt)}"
    if d.get("parent"):
        text += f" from {plain(d['parent'])}"
        if d.get("parent_step") is not None:
            text += f" @ {number(d['parent_step'])}"
    return _with_why(text, d.get("why"))


def _incident(event: Event) -> str:
    d = event.data
    text = plain(d.get("headline")) or _words(d.get("kind")) or "incident"
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
    return f"{text}; the guard dropped to observe"


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
}


def _words(value: object) -> str:
    return plain(value).replace("-", " ")


def _with_why(text: str, why: object) -> str:
    reason = plain(why)
    return f"{text} — {reason}" if text and reason else text or reason
