"""Faults of the guard, and its returns, as events of the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.recording.fault_barrier import Part
    from trimtab.guard.recording.judged_steps import JudgedSteps
    from trimtab.guard.recording.recorder import Recorder

__all__ = ["FaultEvents"]


class FaultEvents:
    """Writes `fault` where a part fails, and `rearmed` where it works again."""

    def __init__(
        self, recorder: Callable[[], Recorder], *, step: Callable[[], int], judged: JudgedSteps
    ) -> None:
        """Write with a run's recorder.

        Args:
            recorder: Gives it.
            step: Gives the step of the run.
            judged: Knows which steps were not judged.
        """
        self._recorder = recorder
        self._step = step
        self._judged = judged

    def fault(self, part: Part, error: str, *, why: str) -> None:
        """Write down that a part failed."""
        self._recorder().event("fault", step=self._step(), error=error, where=part, why=why)

    def rearmed(self, part: Part, *, since_step: int, why: str) -> None:
        """Write down that it works again, with the steps that were not judged because of it."""
        gaps = self._judged.missed_since(since_step) if part in ("record", "judge") else ()
        self._recorder().event(
            "rearmed",
            step=self._step(),
            where=part,
            since_step=since_step,
            steps_not_judged=sum(last - first + 1 for first, last, _ in gaps),
            not_judged=[{"from": a, "to": b, "why": because} for a, b, because in gaps],
            why=why,
        )
