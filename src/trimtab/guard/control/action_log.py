"""What is done by hand, written down and shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.guard.settings.in_force import in_force
from trimtab.text import plain, values_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.state.run_state import RunState
    from trimtab.plan.expected import ExpectedChange

__all__ = ["ActionLog"]


class ActionLog:
    """Journals changes by hand, each with its reason and what is in force after it."""

    def __init__(
        self,
        state: RunState,
        *,
        recorder: Recorder,
        recovery: Recovery,
        edge: Edge,
        say: Callable[[str], None],
        accept: Callable[[], None],
    ) -> None:
        """Write into a run's journal.

        Args:
            state: Gives the step and what is in force.
            recorder: Writes events.
            recovery: Labels each change by what follows it.
            edge: Keeps a fault of ours from stopping the run.
            say: Shows one line to the user.
            accept: Takes the settings in force as announced.
        """
        self._accept = accept
        self._state = state
        self._recorder = recorder
        self._recovery = recovery
        self._edge = edge
        self._say = say

    def note(self, remedy: str, values: dict[str, object], why: str, *, told: str = "") -> None:
        """Journal and show what was done by hand.

        Args:
            remedy: Id of the change.
            values: What it set.
            why: The caller's reason.
            told: What to show; default: the values.
        """
        step = self._state.counters.step
        line = f"by hand: {remedy} · {told or values_text(values)} · {plain(why, limit=200)}"
        self.show(line)
        self._recovery.actions.append(
            {"step": step, "remedy": remedy, "values": values, "why": why}
        )
        self._edge.run("recovery", lambda: self._recovery.after_change(remedy))
        self._edge.run("probes", self._accept)
        self._edge.run(
            "journal",
            lambda: self._recorder.event(
                "action",
                step=step,
                remedy=remedy,
                values=values,
                why=why,
                standing=self._state.standing(),
                in_force=list(in_force(self._state.decisions, step + 1)),
            ),
        )

    def expect(self, change: ExpectedChange) -> None:
        """Journal and show an announced change."""
        data = {
            "what": change.what,
            "from_step": change.from_step,
            "until_step": change.until_step,
            "why": change.why,
        }
        step = self._state.counters.step
        self._edge.run("journal", lambda: self._recorder.event("expected", step=step, **data))
        self._edge.run("recovery", lambda: self._recovery.announce(change))
        self.show(
            f"announced: {change.what}, steps {change.from_step} to {change.until_step}: what"
            " begins there is not acted on, but for values that are not finite"
        )

    def dry_run(self, name: str, what: str, because: str, why: str) -> str:
        """Journal what would be done, and return the line that says how to confirm it.

        Args:
            name: Of the change.
            what: What it would do.
            because: Why it needs to be confirmed.
            why: The caller's reason.
        """
        self._edge.run(
            "journal",
            lambda: self._recorder.event(
                "decision",
                step=self._state.counters.step,
                what=f"dry run: {name}",
                why=f"{what}; not done: {because}, so it needs confirm=True ({why})",
                evidence=[],
            ),
        )
        told = f"dry run: {what}; {because}: call it with confirm=True"
        self.show(told)
        return told

    def say(self, line: str) -> None:
        """Show one line."""
        self._say(line)

    def show(self, line: str) -> None:
        """Show one line with the step it belongs to."""
        self._say(f"step {self._state.counters.step:>6,}  {line}")
