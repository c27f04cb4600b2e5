"""What a cause is, as data. The tables are `causes` and `outside_causes`."""

from dataclasses import dataclass
from typing import Literal

from trimtab.diagnosis.evidence import EvidenceRule

__all__ = ["CauseEntry"]


@dataclass(frozen=True, kw_only=True)
class CauseEntry:
    """One row of the table."""

    id: str
    title: str
    modes: tuple[str, ...]
    """Failure modes that it covers."""
    prior: float
    """Share of incidents before anything is known."""
    rules: tuple[EvidenceRule, ...]
    look_alikes: tuple[str, ...]
    """Causes that look the same in a loss curve."""
    test: str
    """Cheapest test that would confirm or exclude it."""
    remedies: tuple[str, ...]
    """Ids in the table of remedies, in the order to try them."""
    go_back: Literal["by kind", "always", "never"] = "by kind"
    """Whether the weights are to be gone back for: as the kind of incident has it, or in any case.
    """
