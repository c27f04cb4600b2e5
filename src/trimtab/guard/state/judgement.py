"""The judge of a run with its state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from trimtab.detectors.contract import state_to_json
from trimtab.detectors.judge import DETECTORS, JudgeState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.detectors.contract import AnyDetector, Finding
    from trimtab.detectors.judge import Judge
    from trimtab.guard.state.training_state import StateDict

__all__ = ["Judgement"]


class Judgement:
    """Judges row after row; its state is rolled back and saved with the run."""

    def __init__(self, judge: Judge) -> None:
        """Start a judge that has seen no row."""
        self._judge = judge
        self._state = judge.start()
        self._dropped: dict[str, str] = {}
        self._on_drop: Callable[[str, Exception], None] = lambda _name, _error: None

    @property
    def judge(self) -> Judge:
        """The detectors, without those that were dropped."""
        return self._judge.without(self._dropped)

    def on_drop(self, told: Callable[[str, Exception], None]) -> None:
        """Call `told(name, error)` when a detector that is not built in raised and is left out."""
        self._on_drop = told

    @property
    def state(self) -> JudgeState:
        """The states of all detectors; a value, never changed in place."""
        return self._state

    def judge_row(self, row: int, step: int, values: Mapping[str, float]) -> tuple[Finding, ...]:
        """Return the findings of one recorded row.

        Args:
            row: Number of the row over all attempts, from 0.
            step: Its step.
            values: Its signals.
        """
        dropped: list[tuple[AnyDetector, Exception]] = []
        self._state, findings = self._judge.update(
            self._state,
            row,
            float(step),
            values,
            spare=lambda detector, error: dropped.append((detector, error)),
            skip=self._dropped,
        )
        for detector, error in dropped:
            self._dropped[detector.name] = str(error)
            self._on_drop(detector.name, error)
        return findings

    def to_json(self) -> StateDict:
        """Return the state as JSON values.

        A detector of the user's whose state cannot be one is left out from here on: it must not
        cost the run its checkpoints.
        """
        states = list(self._state.states)
        for i, detector in enumerate(self._judge.detectors):
            if detector in DETECTORS:
                continue
            try:
                json.dumps(state_to_json(states[i]))
            except (TypeError, ValueError, RecursionError) as error:
                states[i] = detector.start()
                if detector.name not in self._dropped:
                    self._dropped[detector.name] = str(error)
                    self._on_drop(detector.name, error)
        self._state = JudgeState(tuple(states))
        return self._state.to_json(self._judge)

    def from_json(self, saved: StateDict) -> JudgeState:
        """Return a state as it was saved.

        Raises:
            ReadError: It is of other detectors, or damaged.
        """
        return self._judge.state_from_json(saved)

    def restore(self, state: JudgeState) -> None:
        """Go back to an earlier state."""
        self._state = state

    def start_over(self) -> None:
        """Begin as before the first row."""
        self._state = self._judge.start()
