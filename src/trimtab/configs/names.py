"""What the settings are called in the wild: which squashed key states which fact.

The table is `names.toml`. Keys are compared without case and separators (`num_layers`,
`--num-layers`, `numLayers` are `numlayers`).
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypedDict, cast

__all__ = ["Fact", "fact_table", "factor_schedules", "read_table"]

Kind = Literal[
    "number", "count", "share", "flag", "bool", "text", "pair", "duration", "precision", "any"
]
Group = Literal["model", "optimizer", "schedule", "batch", "precision", "layout", "any"]


@dataclass(frozen=True, kw_only=True)
class Fact:
    """How a fact is recognized where the framework is not known."""

    group: Group
    """Part of a config that it belongs to."""
    keys: tuple[str, ...] = ()
    """Squashed keys that mean it wherever they stand."""
    weak: tuple[str, ...] = ()
    """Squashed keys that mean it only under a fitting parent, or where nothing better is found."""
    kind: Kind = "number"
    low: float = 0.0
    high: float = 1e18


class FactRow(TypedDict, total=False):
    """One table of `names.toml`."""

    kind: Kind
    range: tuple[float, float]
    keys: str
    weak: str


@cache
def fact_table() -> Mapping[str, Fact]:
    """Return every fact by its name."""
    table = cast("dict[Group, dict[str, FactRow]]", read_table("names.toml"))
    return {name: _fact(group, row) for group, rows in table.items() for name, row in rows.items()}


@cache
def factor_schedules() -> frozenset[str]:
    """Return the squashed names of schedules under which the stated rate is a factor."""
    return frozenset(read_table("frameworks.toml")["factor_schedules"])


def _fact(group: Group, row: FactRow) -> Fact:
    low, high = row.get("range", (0.0, 1e18))
    return Fact(
        group=group,
        keys=tuple(row.get("keys", "").split()),
        weak=tuple(row.get("weak", "").split()),
        kind=row.get("kind", "number"),
        low=float(low),
        high=float(high),
    )


def read_table(name: str) -> dict[str, Any]:
    """Return a data file of this package."""
    return tomllib.loads((files("trimtab.configs") / name).read_text("utf-8"))
