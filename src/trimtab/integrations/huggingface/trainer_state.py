"""A Trainer's counters, running loss and callbacks, as the guard saves and rolls them back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NotRequired, TypedDict, cast

import torch
from transformers.trainer_callback import ExportableState

from trimtab.guard.port import TrainerPort
from trimtab.integrations.huggingface.validation import reload_generation

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["TrainerProgress"]

_OF_STATE = (
    "total_flos",
    "num_input_tokens_seen",
    "best_metric",
    "best_model_checkpoint",
    "best_global_step",
)
_OF_TRAINER = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos")
_OF_TRL = (
    "_step",
    "_buffered_inputs",
    "_total_train_tokens",
    "entropy_coef",
    "_last_world_entropy",
    "_entropy_window_stats",
)
"""Of TRL's trainers: batches seen, the completions that they are still made of, tokens counted, and
the weight of the entropy where it adapts."""


class _Saved(TypedDict):
    """The state as it is saved."""

    state: dict[str, object]
    """Attributes of the `TrainerState`."""
    trainer: dict[str, object]
    running_loss: float | None
    """Sum of the losses that are not logged yet."""
    callbacks: dict[str, dict[str, object]]
    trl: NotRequired[dict[str, object]]
    metrics: NotRequired[dict[str, dict[str, list[float]]]]
    """TRL's means under way, by mode and name."""
    step: NotRequired[int]
    """Steps done."""


class TrainerProgress:
    """State of a Trainer besides model, optimizer and schedule."""

    def __init__(self, trainer: Trainer) -> None:
        """Keep a trainer; nothing is read yet."""
        self._trainer = trainer
        self._loss_before = 0.0
        """Sum of the losses of the steps before this call of `train`."""

    def count_from_here(self) -> None:
        """Count the mean loss that the Trainer reports at its end from this call's steps only.

        The Trainer does so itself when it resumes from a checkpoint of its own.
        """
        trainer = self._trainer
        carried = float(trainer._tr_loss)  # not logged yet, and counted when it is
        self._loss_before += trainer._total_loss_scalar + carried
        trainer._total_loss_scalar = -carried

    def state_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        trainer = self._trainer
        loss = getattr(trainer, "_tr_loss", None)
        counters: dict[str, object] = {name: getattr(trainer, name, None) for name in _OF_TRAINER}
        counters["_total_loss_scalar"] = trainer._total_loss_scalar + self._loss_before
        saved: _Saved = {
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
        port = getattr(trainer, "port", None)
        if isinstance(port, TrainerPort):
            saved["step"] = port.step_number
        return dict(saved)

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Restore it; what was logged after that step leaves the history."""
        trainer, saved = self._trainer, cast("_Saved", state_dict)
        for owner, values in (
            (trainer.state, saved["state"]),
            (trainer, saved["trainer"]),
            (trainer, saved.get("trl", {})),
        ):
            for name, value in values.items():
                setattr(owner, name, value)
        reload_generation(trainer)
        # Saved as the sum of the whole run; the Trainer divides it by the steps of this call only.
        trainer._total_loss_scalar -= self._loss_before
        for mode, kept in saved.get("metrics", {}).items():
            metrics = getattr(trainer, "_metrics")[mode]  # noqa: B009 - of TRL's trainers only
            metrics.clear()
            metrics.update(kept)
        if saved["running_loss"] is not None:
            # A tensor on the device, which the Trainer adds to without a sync.
            trainer._tr_loss = torch.full_like(trainer._tr_loss, saved["running_loss"])
        if "step" in saved:
            # `trainer_state.json` and a Trainer's own curves are then those of one lineage.
            history, step = trainer.state.log_history, saved["step"]
            history[:] = [row for row in history if row.get("step", 0) <= step]
            if any(row.get("step") == step and "loss" in row for row in history):
                # saved before that row was logged: its losses are not of the next row
                trainer._total_loss_scalar += float(trainer._tr_loss)
                trainer._tr_loss = torch.zeros_like(trainer._tr_loss)
                trainer._globalstep_last_logged = step
                getattr(trainer, "_metrics", {}).get("train", {}).clear()
        for callback in trainer.callback_handler.callbacks:
            for name, value in saved["callbacks"].get(type(callback).__name__, {}).items():
                setattr(callback, name, value)

    def _callbacks(self) -> dict[str, dict[str, object]]:
        """Return the attributes that callbacks export, where they are plain."""
        found = {}
        for callback in self._trainer.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                attributes = callback.state().get("attributes", {})
                try:
                    # Only plain data: states are saved without pickles.
                    json.dumps(attributes)
                except (TypeError, ValueError):
                    continue
                found[type(callback).__name__] = attributes
        return found
