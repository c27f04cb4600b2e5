"""Which remedies worked before, in this run and in the past runs that the policy names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.errors import TrimtabError
from trimtab.plan.memory import what_worked

if TYPE_CHECKING:
    from trimtab.guard.step.engine import Engine

__all__ = ["arms_that_worked"]


def arms_that_worked(engine: Engine, kind: str) -> tuple[str, ...]:
    """Return the arms that worked in incidents of a kind, the latest first, this run's foremost.

    The first rank reads the journals, and all go by it. A past run that cannot be read counts as
    one without experience.
    """
    return engine.ranks.agree(lambda: _read(engine, kind))


def _read(engine: Engine, kind: str) -> tuple[str, ...]:
    found: list[str] = []
    for root in (engine.directory.root, *map(Path, engine.policy.past_runs)):
        try:
            events, _ = read_journal(RunDirectory(root).journal)
        except TrimtabError:
            continue
        found += what_worked((e.event, e.data) for e in events).get(kind, ())
    return tuple(dict.fromkeys(found))
