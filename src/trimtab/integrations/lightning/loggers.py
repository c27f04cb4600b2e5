"""The guard's signals and events, sent to the loggers that a Trainer has."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from trimtab.integrations.loggers import MLflow, TensorBoard, Thinned, WandB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

    from trimtab.chronicle.journal import Event

__all__ = ["listeners_of"]

_COUNTED = {"finding": "findings", "action": "actions", "fault": "faults"}


class Numbers(Thinned):
    """Writes numbers to any logger of Lightning's: signals, and counts of events so far."""

    def __init__(self, logger: Logger, *, every_steps: int) -> None:
        """Take a logger; signals of every `every_steps` steps."""
        super().__init__(every_steps)
        self._logger = logger
        self._counts: dict[str, int] = {}

    def event(self, event: Event) -> None:
        """Count an event; an incident is counted when it opens."""
        name = _COUNTED.get(event.event, "")
        if event.event == "incident" and event.data.get("state") == "open":
            name = "incidents"
        if name:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._logger.log_metrics({f"trimtab/{name}": float(self._counts[name])}, event.step)

    def write_values(self, step: int, values: Mapping[str, float], attempt: str) -> None:
        """Log the signals of a step."""
        del attempt
        self._logger.log_metrics(dict(values), step)


def listeners_of(trainer: Trainer) -> list[Thinned]:
    """Return what to hand to `Guard.listen`; signals come as often as the Trainer logs.

    TensorBoard, MLflow and Weights & Biases get events as text; any other logger gets numbers.
    """
    made: list[Thinned] = []
    every = max(int(getattr(trainer, "log_every_n_steps", 1)), 1)
    for logger in trainer.loggers:
        # By name: importing their classes would import packages that this run does not use.
        kinds = {kind.__name__ for kind in type(logger).__mro__}
        if "TensorBoardLogger" in kinds:
            made.append(
                TensorBoard(cast("TensorBoardLogger", logger).experiment, every_steps=every)
            )
        elif "MLFlowLogger" in kinds:
            mlflow = cast("MLFlowLogger", logger)
            made.append(MLflow(mlflow.experiment, str(mlflow.run_id), every_steps=every))
        elif "WandbLogger" in kinds:
            made.append(WandB(cast("WandbLogger", logger).experiment, every_steps=every))
        else:
            made.append(Numbers(logger, every_steps=every))
    return made
