"""What earlier processes and runs leave: remedies that worked, and what was left alone."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.guard.recovery.early_cut import ASKED
from trimtab.guard.recovery.permission import RISES
from trimtab.plan.memory import what_worked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trimtab.chronicle.journal import Event
    from trimtab.guard.step.engine import Engine

_Cut = tuple[int, dict[str, object]]

__all__ = ["LeftBefore", "arms_that_worked", "left_before"]

_MOST_LEFT = 256


@dataclass
class LeftBefore:
    """What earlier processes of a run have found to need nothing."""

    settings: dict[str, int] = field(default_factory=dict)
    """Those that were cleared, each with the first step of its change."""
    findings: list[tuple[str, str, int]] = field(default_factory=list)
    """Detector, signal and onset of what was left alone, the last `_MOST_LEFT`."""
    slow_until: int = 0
    recounted_until: int = 0
    times: int = 0
    rises: list[tuple[int, float]] = field(default_factory=list)
    """First steps of a rate that was raised on purpose, each with the factor; NaN: by hand."""
    asked: set[str] = field(default_factory=set)
    """Ids of requests to raise the rate."""
    cut: tuple[int, dict[str, object]] | None = None
    """Step and values of the newest cut of the rate that still stands and nobody has decided on."""

    def refuses(self, event: Event) -> bool:
        """Tell whether a person, or a deadline, refuses to give a cut back; takes note of requests."""
        name = str(event.data.get("id", ""))
        if event.event == "staged" and "raise-rate" in (event.data.get("classes") or ()):
            self.asked.add(name)
        refused = event.data.get("answer") in ("denied", "deadline") and not event.data.get("done")
        return event.event == "answered" and refused and name in self.asked


def left_before(events: Iterable[Event], lineage: int) -> LeftBefore:
    """Return what the journal says was left alone since a lineage began.

    What is not as we write it is passed over: people edit journals.
    """
    found = LeftBefore()
    for event in events:
        if event.attempt.partition(".")[0] == str(lineage):
            found.cut = None if found.refuses(event) else _cut_after(event, found.cut)
            if event.event == "action" and event.data.get("remedy") in RISES:
                values = event.data.get("values")
                factor = values.get("factor") if isinstance(values, dict) else None
                factor = float(factor) if isinstance(factor, int | float) else math.nan
                found.rises = [*found.rises, (event.step + 1, factor)][-_MOST_LEFT:]
        left = event.data.get("leaves")
        if not isinstance(left, dict) or event.attempt.partition(".")[0] != str(lineage):
            continue
        if left.get("no_longer"):
            found.findings.clear()
        with contextlib.suppress(TypeError, ValueError, AttributeError, OverflowError):
            found.settings |= {str(k): int(v) for k, v in left.get("settings", {}).items()}
            new = [(str(a), str(b), int(t)) for a, b, t in left.get("findings", ())]
            found.findings = (found.findings + new)[-_MOST_LEFT:]
            found.times += bool(new)
            found.slow_until = max(found.slow_until, int(left.get("slow_until", 0)))
            found.recounted_until = max(found.recounted_until, int(left.get("recounted_until", 0)))
    return found


def _cut_after(event: Event, cut: _Cut | None) -> _Cut | None:
    """Return the cut of the rate that is to be asked about after an event of the journal."""
    remedy, values = str(event.data.get("remedy", "")), event.data.get("values")
    if event.event == "decision" and event.data.get("what") == ASKED:
        return None
    if event.event == "action" and remedy == "raise-lr":
        return None
    if event.event != "action" or "lower-lr" not in remedy or not isinstance(values, dict):
        return cut
    if remedy.startswith("undo "):
        return None
    by_hand = values.get("confirmed") or not remedy.startswith("roll-back+")
    return cut if by_hand else (event.step, values)


def arms_that_worked(engine: Engine, kind: str) -> tuple[str, ...]:
    """Return the arms that worked in incidents of a kind, the latest first, this run's foremost.

    The first rank knows them, and all go by it.
    """
    return engine.ranks.agree(lambda: _read(engine, kind))


def _read(engine: Engine, kind: str) -> tuple[str, ...]:
    found: list[str] = []
    live = engine.recorder.live
    for events in (live.events(), *live.past_events()):
        found += what_worked((e.event, e.data) for e in events).get(kind, ())
    return tuple(dict.fromkeys(found))
