"""The rules of the scan, as data.

What is said, from which share on, why, by whom it is known, what to do.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

__all__ = ["DataRule", "data_rules"]


@dataclass(frozen=True, kw_only=True)
class DataRule:
    """One rule."""

    name: str
    says: str
    why: str
    source: str
    instead: str
    warning_share: float = 0.0
    """Share of the units from which on it is a warning; below, a remark."""
    error_share: float | None = None
    """Share from which on it is an error; None: it never is."""
    skip: bool = False
    """Whether leaving the units out is the remedy."""
    totals: tuple[str, ...] = ()
    """Counts of the source that belong to it."""

    def severity(self, share: float) -> Literal["error", "warning", "info"]:
        """Return how much a share matters."""
        if self.error_share is not None and share >= self.error_share:
            return "error"
        return "warning" if share >= self.warning_share else "info"


_SKIP = (
    "leave them out: --write-skip FILE, then guard.skip_list(FILE); and correct the step that wrote"
    " them"
)


@cache
def data_rules() -> Mapping[str, DataRule]:
    """Return every rule by its name."""
    rows = tomllib.loads((files("trimtab.data_scan") / "rules.toml").read_text("utf-8"))
    return {name: _rule(name, row) for name, row in rows.items()}


def _rule(name: str, row: dict[str, Any]) -> DataRule:
    totals = tuple(row.pop("totals", ()))
    instead = row.pop("instead", _SKIP)
    return DataRule(name=name, totals=totals, instead=instead, **row)
