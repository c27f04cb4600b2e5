"""A plan: remedies with values, cost and undo. Data only; `guard/` carries it out."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Plan", "PlannedRemedy"]


@dataclass(frozen=True, kw_only=True)
class PlannedRemedy:
    """One step of a plan."""

    remedy: str
    """Id in the table of remedies, such as `roll-back`."""
    values: Mapping[str, float | str | bool | None]
    """What to set: steps, factors, sample ids."""
    why: str
    cost: str
    undo: str
    when: Literal["mid-run", "from scratch", "unsure"]
    flags: str = ""
    """Command-line flags of the framework that wrote the log, where known."""
    labels: tuple[str, ...] = ()
    """What must be known of it besides its cost: "may mask", "evidence: delays only?"."""
    worked: tuple[str, ...] = ()
    """Runs where it helped, with source."""
    failed: tuple[str, ...] = ()
    """Runs where it did not, with source."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Chosen remedies, in the order to take them."""

    remedies: tuple[PlannedRemedy, ...] = field(default=())
    next_test: str = ""
    """The cheapest test that separates the leading causes; empty where none is needed."""
    next_test_flags: str = ""
    """Command or flags that run it, for the framework that wrote the log."""
