"""A tiny GPT on real text as a LightningModule, with faults to plant; small enough for seconds."""

import asyncio
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
from torch.utils.data import DataLoader, IterableDataset

from tests.guard.small_lab import SOUND, bad_data, bad_lr
from trimtab.integrations.lightning import GuardCallback
from trimtab.lab.model import Transformer, next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import Text, load_text
from trimtab.lab.train import Parts, build, evaluate
from trimtab.plan.policy import Policy


class OneByOne(IterableDataset[Any]):
    """A dataset that has forgotten its length."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[i] for i in range(len(self.rows)))


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
        warnings.filterwarnings("always", ".*trimtab")
        yield


def trainer(*callbacks: Callback, **settings: Any) -> Trainer:
    settings = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **settings,
    }
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
    spoil: Callable[["TinyGpt", int], None] | None = None,
    seed: int = 0,
    ckpt_path: str | None = None,
    stream: bool = False,
    **settings: Any,
) -> Fit:
    """Train a scenario in Lightning's Trainer."""
    with quiet():
        parts = build(scenario, seed, text)
        module = TinyGpt(parts, spoil)
        settings = {
            "max_steps": scenario.steps,
            "gradient_clip_val": scenario.clip_norm,
            **settings,
        }
        used = trainer(*callbacks, **settings)
        data: Any = OneByOne(parts.loader.dataset) if stream else None
        loader = DataLoader(data, batch_size=scenario.batch_size) if stream else parts.loader
        used.fit(module, loader, ckpt_path=ckpt_path)
    return Fit(module, used, validation_loss(parts, text))


def validation_loss(parts: Parts, text: Text) -> float:
    """Of the model as it is; NaN where a weight is not finite."""
    finite = all(bool(p.isfinite().all()) for p in parts.model.parameters())
    return evaluate(parts.model, text, max_bytes=32 * 1024) if finite else math.nan


def make_text() -> Text:
    """The sources of one package of the standard library, half a megabyte."""
    return load_text(Path(asyncio.__file__).parent)


def short(scenario: Scenario) -> Scenario:
    return dataclasses.replace(scenario, steps=240)


SHORT = short(SOUND)
BAD_DATA = short(bad_data(140, 12))
BAD_LR = short(bad_lr(140, 300.0))


def nan_gradient(module: TinyGpt, step: int) -> None:
    """One gradient is NaN in step 150."""
    if step == 150:
        first = next(module.model.parameters())
        assert first.grad is not None
        first.grad[0] = math.nan


def share_of_gap_closed(unguarded: float, guarded: float, sound: float) -> float:
    """1: as if the fault had not been; 0: as bad as without a guard."""
    return (unguarded - guarded) / (unguarded - sound)
