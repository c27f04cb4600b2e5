"""Where a Trainer is, as the guard saves it and rolls it back.

Its counters, its running loss, its callbacks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from transformers.trainer_callback import ExportableState

if TYPE_CHECKING:
    from trimtab.integrations.huggingface.trainer import GuardMixin

__all__ = ["Place"]

_OF_STATE = (
    "total_flos",
    "num_input_tokens_seen",
    "best_metric",
    "best_model_checkpoint",
    "best_global_step",
)
_OF_TRAINER = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_OF_TRL = ("_step", "_buffered_inputs", "_total_train_tokens")
"""Of TRL's trainers: batches seen, the completions that they are still made of, tokens counted."""


class Place:
    """State of a Trainer besides model, optimizer and schedule."""

    def __init__(self, trainer: GuardMixin) -> None:
        """Look at a trainer; nothing is read yet."""
        self._trainer: Any = trainer
        self._loss_before = 0.0
        """Sum of the losses of the steps before this call of `train`."""

    def count_from_here(self) -> None:
        """Let the mean loss that the Trainer tells at its end be that of this call's steps.

        As its own.
        """
        trainer = self._trainer
        carried = float(trainer._tr_loss)  # not logged yet, and counted when it is
        self._loss_before += trainer._total_loss_scalar + carried
        trainer._total_loss_scalar = -carried

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        trainer = self._trainer
        loss = getattr(trainer, "_tr_loss", None)
        counters: dict[str, Any] = {name: getattr(trainer, name, None) for name in _OF_TRAINER}
        counters["_total_loss_scalar"] = counters["_total_loss_scalar"] + self._loss_before
        return {
            "state": {name: getattr(trainer.state, name, None) for name in _OF_STATE},
            "trainer": counters,
            "running_loss": None if loss is None else float(loss),
            "callbacks": self._callbacks(),
            "trl": {name: getattr(trainer, name) for name in _OF_TRL if hasattr(trainer, name)},
            "metrics": {
                mode: {name: list(values) for name, values in kept.items()}
                for mode, kept in getattr(trainer, "_metrics", {}).items()
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back; what was logged after that step leaves the history."""
        trainer = self._trainer
        for owner, values in (
            (trainer.state, state_dict["state"]),
            (trainer, state_dict["trainer"]),
            (trainer, state_dict.get("trl", {})),
        ):
            for name, value in values.items():
                setattr(owner, name, value)
        trainer._total_loss_scalar -= self._loss_before
        for mode, kept in state_dict.get("metrics", {}).items():
            trainer._metrics[mode].clear()
            trainer._metrics[mode].update(kept)
        if state_dict["running_loss"] is not None:
            trainer._tr_loss = torch.full_like(trainer._tr_loss, state_dict["running_loss"])
        for callback in trainer.callback_handler.callbacks:
            for name, value in state_dict["callbacks"].get(type(callback).__name__, {}).items():
                setattr(callback, name, value)

    def _callbacks(self) -> dict[str, dict[str, Any]]:
        """Return the attributes that callbacks export, where they are plain."""
        found = {}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                attributes = callback.state().get("attributes", {})
                try:
                    json.dumps(attributes)
                except (TypeError, ValueError):
                    continue
                found[type(callback).__name__] = attributes
        return found
