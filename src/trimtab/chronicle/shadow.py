"""The shadow ledger of a run: what `act` would have done, and what came instead."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trimtab.chronicle.journal import Event
from trimtab.text import is_number

__all__ = ["ShadowEntry", "shadow_ledger"]


@dataclass(frozen=True, kw_only=True)
class ShadowEntry:
    """One trouble in which nothing was done."""

    number: int
    kind: str
    onset: float
    step: int
    """At which `act` would have begun."""
    why: str
    """Why it did not: observe, advise, ask or paused."""
    would: str
    cost_steps: int
    """What acting was expected to cost, trials included."""
    instead: str = ""
    """What came instead; empty while it lasts."""
    steps_in_trouble: int | None = None
    saved_steps: int = 0
    """Steps in trouble beyond the cost, where it did not heal by itself."""
    wasted_steps: int = 0
    """The cost, where it healed by itself."""


def shadow_ledger(events: Iterable[Event]) -> tuple[ShadowEntry, ...]:
    """Return the entries of a journal in order; numbers begin anew with each process.

    A line that lacks a field, or holds another type, is passed over.
    """
    found: list[ShadowEntry] = []
    open_at: dict[int, int] = {}
    for event in events:
        if event.event in ("start", "resume"):
            open_at = {}
        if event.event != "shadow":
            continue
        d = event.data
        number, cost, onset = d.get("number"), d.get("cost_steps"), d.get("onset")
        if not isinstance(number, int) or not isinstance(cost, int) or not is_number(onset):
            continue
        if d.get("state") == "would":
            open_at[number] = len(found)
            found.append(
                ShadowEntry(
                    number=len(found) + 1,
                    kind=str(d.get("kind", "")),
                    onset=float(onset),
                    step=event.step,
                    why=str(d.get("why", "")),
                    would=str(d.get("what", "")),
                    cost_steps=cost,
                )
            )
        elif number in open_at:
            at = open_at.pop(number)
            found[at] = replace(
                found[at],
                instead=str(d.get("what", "")),
                steps_in_trouble=_count(d.get("steps_in_trouble")),
                saved_steps=_count(d.get("saved_steps")),
                wasted_steps=_count(d.get("wasted_steps")),
            )
    return tuple(found)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
