"""The random states that a loop begins with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.guard.state.training_state import restore_rng

if TYPE_CHECKING:
    from trimtab.guard.state.training_state import StateDict

__all__ = ["StartingRng"]


class StartingRng:
    """Puts saved random states in force where the loop begins.

    What a script draws between making the guard and its loop was drawn before the run was stopped,
    too; without this it would be drawn twice.
    """

    def __init__(self, saved: StateDict | None) -> None:
        """Begin with saved states; None: with those in force."""
        self._saved = saved

    def begin_from(self, saved: StateDict) -> None:
        """Begin with other saved states, where any were to be put in force."""
        if self._saved is not None:
            self._saved = saved

    def keep_current(self) -> None:
        """Begin with the states in force."""
        self._saved = None

    def enforce(self) -> None:
        """Put the saved states in force; the loop begins."""
        if self._saved is not None:
            restore_rng(self._saved)
