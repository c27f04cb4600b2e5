"""What the guard sees and does, in the loggers that a Trainer has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trimtab.integrations.loggers import MLflow, TensorBoard, Thinned, WandB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.chronicle.journal import Event

__all__ = ["listeners_of"]

_COUNTED = {"finding": "findings", "action": "actions", "fault": "faults"}


class Numbers(Thinned):
    """Writes to any logger of Lightning's: signals, and of events how many there were so far."""

    def __init__(self, logger: Any, *, every_steps: int) -> None:
        """Take a logger; signals of every `every_steps` steps."""
        super().__init__(every_steps)
        self._logger = logger
        self._seen: dict[str, int] = {}

    def event(self, event: Event) -> None:
        """Count it; of incidents only their beginning."""
        name = _COUNTED.get(event.event, "")
        if event.event == "incident" and event.data.get("state") == "open":
            name = "incidents"
        if name:
            self._seen[name] = self._seen.get(name, 0) + 1
            self._logger.log_metrics({f"trimtab/{name}": float(self._seen[name])}, step=event.step)

    def _values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        del attempt
        self._logger.log_metrics(dict(values), step=step)


def listeners_of(trainer: Any) -> list[Any]:
    """Return what to hand to `Guard.listen`; signals come as often as the Trainer logs.

    TensorBoard, MLflow and Weights & Biases get events as text; any other logger gets numbers.
    """
    made: list[Any] = []
    every = max(int(trainer.log_every_n_steps), 1)
    for logger in trainer.loggers:
        kinds = {kind.__name__ for kind in type(logger).__mro__}
        if "TensorBoardLogger" in kinds:
            made.append(TensorBoard(logger.experiment, every_steps=every))
        elif "MLFlowLogger" in kinds:
            made.append(MLflow(logger.experiment, logger.run_id, every_steps=every))
        elif "WandbLogger" in kinds:
            made.append(WandB(logger.experiment, every_steps=every))
        else:
            made.append(Numbers(logger, every_steps=every))
    return made
