"""Which remedies worked before, in this run and in the past runs that the policy names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.plan.memory import what_worked

if TYPE_CHECKING:
    from trimtab.guard.step.engine import Engine

__all__ = ["arms_that_worked"]


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
