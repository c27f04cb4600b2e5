"""Sentences for what was staged, answered, announced, or changed without being announced."""

from collections.abc import Iterable, Mapping

from trimtab.chronicle.journal import Event
from trimtab.text import number, plain

__all__ = ["AUTHORITY_EVENTS", "authority_words", "unannounced_changes"]

AUTHORITY_EVENTS = ("staged", "answered", "setting-changed", "expected", "shadow")
"""Events that `authority_words` has a sentence for."""


def authority_words(event: Event) -> str:
    """Return one line for such an event; fields that are missing are left out."""
    d = event.data
    why = plain(d.get("why"))
    because = f" — {why}" if why else ""
    match event.event:
        case "staged":
            cost = d.get("cost_steps")
            told = f", about {number(cost)} steps" if isinstance(cost, int) else ""
            return (
                f"waits for approval, {plain(d.get('id'))}: {plain(d.get('what'))}{told}{because}"
            )
        case "answered":
            by = f" by {plain(d['by'], limit=80)}" if d.get("by") else ""
            return f"{plain(d.get('id'))} {plain(d.get('answer'))}{by}{because}"
        case "setting-changed":
            return f"changed and not announced: {_change(d)}"
        case "expected":
            until = d.get("until_step")
            told = f" to {number(until)}" if isinstance(until, int) else " on"
            return (
                f"announced: {plain(d.get('what'))}, from step"
                f" {number(d.get('from_step', event.step))}{told}{because}"
            )
        case "shadow" if d.get("state") == "would":
            return f"act would have: {plain(d.get('what'))} ({plain(d.get('why'))} only)"
        case "shadow":
            return (
                f"instead: {plain(d.get('what'))} after {number(d.get('steps_in_trouble'))} steps;"
                f" acting would have saved {number(d.get('saved_steps'))} and wasted"
                f" {number(d.get('wasted_steps'))}"
            )
    return ""


def unannounced_changes(events: Iterable[Event]) -> tuple[str, ...]:
    """Return the settings that changed without being announced, each with its step, in order.

    A step that was done again after a rollback tells the same change once.
    """
    told = (
        f"{_change(e.data)} at step {number(e.step)}"
        for e in events
        if e.event == "setting-changed" and not e.data.get("announced")
    )
    return tuple(dict.fromkeys(told))


def _change(d: Mapping[str, object]) -> str:
    name, where = plain(d.get("setting")), plain(d.get("where"))
    return f"{name} {plain(d.get('old'))} → {plain(d.get('new'))}" + (
        f" ({where})" if where else ""
    )
