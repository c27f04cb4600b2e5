"""What falls inside a trial: logged, evaluated and saved once the trial is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import Trainer, TrainerControl

__all__ = ["TrialRows"]


@dataclass(frozen=True)
class _Row:
    step: int
    epoch: float | None
    logs: dict[str, float]
    metrics: dict[str, list[float]]
    """What TRL's trainers average into the row."""


class TrialRows:
    """Holds the rows of a trial, and what was due in it."""

    def __init__(self, trainer: Trainer) -> None:
        """Hold nothing."""
        self._trainer = trainer
        self._rows: list[_Row] = []
        self._evaluate: list[int] = []
        self._save: list[int] = []

    def note_due(self, control: TrainerControl, step: int) -> None:
        """Put off what is due at a step of a trial."""
        if control.should_evaluate:
            self._evaluate.append(step)
        if control.should_save:
            self._save.append(step)
        control.should_evaluate = control.should_save = False

    def hold(self, logs: dict[str, float]) -> None:
        """Hold a row that the Trainer logs in a trial."""
        state, metrics = self._trainer.state, self._metrics
        means = {name: list(values) for name, values in metrics.items()}
        metrics.clear()
        self._rows.append(_Row(state.global_step, state.epoch, logs, means))

    def drop_after(self, step: int) -> None:
        """Forget what came after a step that the run goes back to."""
        self._rows = [row for row in self._rows if row.step <= step]
        self._evaluate = [at for at in self._evaluate if at <= step]
        self._save = [at for at in self._save if at <= step]

    def release(self, control: TrainerControl, log: Callable[[dict[str, float]], None]) -> None:
        """Log the rows of a trial that was kept, each at its step; then do what was due in it."""
        state, metrics = self._trainer.state, self._metrics
        rows, self._rows = self._rows, []
        should_log = control.should_log  # which each log sets back
        step, epoch = state.global_step, state.epoch
        before = {name: list(v) for name, v in metrics.items()}
        for row in rows:
            state.global_step, state.epoch = row.step, row.epoch  # type: ignore[assignment]
            metrics.clear()
            metrics.update(row.metrics)
            log(row.logs)
        if rows:
            control.should_log = should_log
            state.global_step, state.epoch = step, epoch
            metrics.clear()
            metrics.update(before)
        control.should_evaluate |= bool(self._evaluate)
        control.should_save |= bool(self._save)
        self._evaluate, self._save = [], []

    @property
    def _metrics(self) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self._trainer, "_metrics", {}).get("train", {})
        return found
