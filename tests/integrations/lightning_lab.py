"""A tiny GPT on real text as a LightningModule, with faults to plant; small enough for seconds."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from trimtab.integrations.lightning import GuardCallback
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text
from trimtab.lab.train import Parts, build, evaluate
from trimtab.plan.policy import Policy


class TinyGpt(LightningModule):
    """A lab scenario's model, optimizer and schedule as a module."""

    def __init__(self, parts: Parts, spoil: Callable[["TinyGpt", int], None] | None = None) -> None:
        super().__init__()
        self.model: Transformer = parts.model
        self.parts = parts
        self.spoil = spoil
        self.losses: list[tuple[int, float]] = []
        """Step and loss of every batch that Lightning trained on."""

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        loss = next_token_loss(self.model, batch["tokens"])
        self.log("train_loss", loss)
        return loss

    def on_after_backward(self) -> None:
        if self.spoil is not None:
            self.spoil(self, self.trainer.global_step + 1)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append((self.trainer.global_step, float(outputs["loss"])))

    def configure_optimizers(self) -> OptimizerLRScheduler:
        schedule = {"scheduler": self.parts.scheduler, "interval": "step"}
        return {"optimizer": self.parts.optimizer, "lr_scheduler": schedule}  # type: ignore[return-value]


@contextmanager
def quiet() -> Iterator[None]:
    """Lightning's own warnings are not ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning.*")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        yield


def trainer(*callbacks: Callback, **settings: Any) -> Trainer:
    settings = {
        "accelerator": "cpu", "devices": 1, "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False, **settings,
    }  # fmt: skip
    return Trainer(callbacks=list(callbacks), **settings)


def guard_callback(run: Path, mode: str = "act", **policy: Any) -> GuardCallback:
    settings = {
        "checkpoint_in_background": False,
        "checkpoint_every_steps": 60,
        "snapshot_every_steps": 10,
        **policy,
    }
    return GuardCallback(run, mode=mode, policy=Policy(**settings), say=lambda _line: None)  # type: ignore[arg-type]


@dataclasses.dataclass
class Fit:
    """What came of a fit."""

    module: TinyGpt
    trainer: Trainer
    validation: float


def fit(
    scenario: Scenario,
    text: Text,
    *callbacks: Callback,
    spoil: Callable[[TinyGpt, int], None] | None = None,
    seed: int = 0,
    ckpt_path: str | None = None,
    **settings: Any,
) -> Fit:
    with quiet():
        parts = build(scenario, seed, text)
        module = TinyGpt(parts, spoil)
        settings = {
            "max_steps": scenario.steps,
            "gradient_clip_val": scenario.clip_norm,
            **settings,
        }
        used = trainer(*callbacks, **settings)
        used.fit(module, parts.loader, ckpt_path=ckpt_path)
    finite = all(bool(p.isfinite().all()) for p in module.parameters())
    validation = evaluate(parts.model, text, max_bytes=32 * 1024) if finite else math.nan
    return Fit(module, used, validation)
