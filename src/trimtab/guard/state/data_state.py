"""What the state of a run needs of the order of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from trimtab.guard.state.training_state import StateDict

__all__ = ["DataState"]


class DataState(Protocol):
    """A cursor over the data that can be moved, saved and put back."""

    @property
    def position(self) -> int:
        """Sample id that comes next."""

    @property
    def epoch(self) -> int:
        """Number of the epoch under way, from 0; -1 before the first."""

    @property
    def shape(self) -> dict[str, int | None]:
        """Sizes that must be the same when a run is resumed."""

    @property
    def fingerprint(self) -> str:
        """Checksum of the order of the epoch under way."""

    @property
    def reordered(self) -> str:
        """What to note where the order is not the saved one; empty where it is."""

    def take_note(self) -> str:
        """Return, once, that samples of before a resume are fed again; else empty."""

    @property
    def skips(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""

    @property
    def replicas(self) -> int:
        """How many ranks get data of their own."""

    def differs(self, saved: dict[str, int | None] | None) -> str:
        """Return how the data differs from the saved shape; empty where it does not."""

    def skip(self, first: int, last: int) -> None:
        """Never feed these sample ids from now on."""

    def unskip(self, first: int, last: int) -> None:
        """Feed these sample ids again when their place comes."""

    def advance(self, batches: int) -> None:
        """Move on by so many batches without reading them."""

    def forget_order(self) -> None:
        """Draw the order anew at the next `load_state_dict`, as a restart does."""

    def state_dict(self) -> StateDict:
        """Return the position as plain data."""

    def load_state_dict(self, state: StateDict) -> None:
        """Go to a saved position."""
