"""The yardstick of a Trainer: a few samples of its own evaluation data, by its own evaluation loop.

What TRL's trainers measure while they evaluate (reward, KL, entropy, share of pairs told apart)
comes with it: an RL trainer's loss says little, the reward of fixed prompts does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch.utils.data import Subset

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from torch.utils.data import DataLoader, Dataset
    from transformers import Trainer

__all__ = ["FixedEvaluation", "reload_generation"]

_WAYS = {
    "reward": "up",
    "loss": "down",
    "kl": "down",
    "entropy": "up",
    "rewards/accuracies": "up",
    "rewards/margins": "up",
}
"""What is recorded, with its good direction; the first that there is is judged."""


class FixedEvaluation:
    """A function for `Guard(validate=)`."""

    def __init__(self, trainer: Trainer, samples: int) -> None:
        """Take the first samples of a trainer's `eval_dataset`; nothing is evaluated yet.

        Raises:
            ConfigError: It has none, or one that cannot be read by index.
        """
        data: Any = trainer.eval_dataset
        if not hasattr(data, "__getitem__") or isinstance(data, dict):
            raise ConfigError(
                f"validate_samples={samples}: eval_dataset is {type(data).__name__}, expected one"
                " dataset that is read by index; or hand over validate=function"
            )
        self._trainer = trainer
        self._data: Dataset[object] = _first(data, samples)
        self._loader: DataLoader[object] | None = None

    def __call__(self) -> Mapping[str, tuple[float, str]]:
        """Return {name: (value, good direction)} of the model as it is; the first is judged."""
        trainer = self._trainer
        if self._loader is None:  # each is prepared by the accelerator, which keeps it
            self._loader = trainer.get_eval_dataloader(self._data)
        reload_generation(trainer)
        metrics: Any = getattr(trainer, "_metrics", {}).get("eval", {})
        before = dict(metrics)
        metrics.clear()
        try:
            found = trainer.evaluation_loop(self._loader, "yardstick", prediction_loss_only=True)
            measured = {name: _mean(values) for name, values in metrics.items()}
        finally:
            metrics.clear()
            metrics.update(before)
            reload_generation(trainer)
        measured["loss"] = float((found.metrics or {}).get("eval_loss", math.nan))
        return {name: (measured[name], way) for name, way in _WAYS.items() if name in measured}


def reload_generation(trainer: object) -> None:
    """Have TRL load the weights anew into its engine for generation before it is next used.

    TRL loads them once for each value of `global_step`, and a rollback comes back to old values.
    """
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1


def _first(data: Any, samples: int) -> Any:
    count = min(samples, len(data))
    # a `datasets.Dataset` stays one: the Trainer removes its unused columns
    return data.select(range(count)) if hasattr(data, "select") else Subset(data, range(count))


def _mean(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan
