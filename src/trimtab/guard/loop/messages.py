"""Notes of the guard's own, besides incidents: on screen and in the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.state.checkpoint_store import Store
    from trimtab.guard.state.run_state import RunState

__all__ = ["Messages"]


class Messages:
    """Shows and journals sentences, each with the step it belongs to."""

    def __init__(
        self,
        state: RunState,
        *,
        store: Store,
        recovery: Recovery,
        edge: Edge,
        say: Callable[[str], None],
    ) -> None:
        """Tell of a run.

        Args:
            state: Gives the step.
            store: Has notes of its own on checkpoints.
            recovery: Writes notes into the journal.
            edge: Keeps a fault of ours from stopping the run.
            say: Shows one line to the user.
        """
        self.say = say
        self._state = state
        self._store = store
        self._recovery = recovery
        self._edge = edge

    def note(self, text: str) -> None:
        """Journal and show a sentence."""
        line = f"step {self._state.counters.step:>6,}  {text}"
        self._edge.run("journal", lambda: self._recovery.note(text))
        self._edge.run("journal", lambda: self.say(line))

    def tell(self, text: str) -> None:
        """Show a sentence that is journalled elsewhere."""
        line = f"step {self._state.counters.step:>6,}  {text}"
        self._edge.run("journal", lambda: self.say(line))

    def pass_on_notes(self) -> None:
        """Show and journal what the store of checkpoints has to say."""
        self._edge.run("journal", self._pass_on_notes)

    def _pass_on_notes(self) -> None:
        for text in self._store.take_notes():
            self.say(f"step {self._state.counters.step:>6,}  {text}")
            self._recovery.note(text)
