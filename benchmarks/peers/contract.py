"""The form of a published rule: columns of a log in, one mark per row out.

A rule sees the values as they were logged, NaN and Inf included, and never a later row than the one
it marks. What its authors do with a mark (skip, roll back, stop) cannot be done to a log.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["GRAD", "LOSS", "QUIET", "RESUME", "Floats", "LogColumns", "Marks", "Peer", "Unfed"]

Floats = NDArray[np.float64]
Marks = NDArray[np.int8]

QUIET, LOSS, GRAD, RESUME = 0, 1, 2, 3
"""A row is let pass, or marked for its loss, for a norm, or because a resumed run does not fit."""


@dataclass(frozen=True)
class LogColumns:
    """The rows that a rule is fed: those in which all its signals were logged."""

    values: Mapping[str, Floats]
    """By canonical name, float64 [n] each; NaN means that NaN was logged."""
    attempt: NDArray[np.int32]
    """int32 [n]: changes where the run was started anew."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.attempt)


class Peer(Protocol):
    """One published rule with its settings."""

    @property
    def name(self) -> str:
        """Short name, unique in the table."""
        ...

    @property
    def needs(self) -> tuple[str, ...]:
        """Signals without which it cannot run."""
        ...

    @property
    def uses(self) -> tuple[str, ...]:
        """Signals that it also looks at, where a log has them."""
        ...

    @property
    def keeps_state(self) -> bool:
        """Whether it goes on over a restart; most lose what they learnt."""
        ...

    def mark(self, stream: LogColumns) -> Marks:
        """Return int8 [n]: QUIET, LOSS, GRAD or RESUME per row."""
        ...


@dataclass(frozen=True, kw_only=True)
class Unfed:
    """A published rule that a log of scalars cannot feed, or that never speaks at its defaults."""

    name: str
    why: str
