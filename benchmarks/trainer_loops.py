"""Training loops of each trainer: bare, guarded, and with the trainer's own monitors.

Every function trains for ever and calls `pause()` after each step; `lab.bench_trainers` times them.
Packages are imported where a loop begins, so that what is missing leaves out one trainer.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from benchmarks.peer_monitors import PEERS
from trimtab.guard import Guard
from trimtab.lab.model import next_token_loss
from trimtab.plan.policy import Mode, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from trimtab.lab.model import Transformer
    from trimtab.lab.train import Parts

__all__ = ["LOOPS", "Loop", "TrainingPlace"]


@dataclass(frozen=True, kw_only=True)
class TrainingPlace:
    """What a loop is given."""

    parts: Parts
    folder: Path
    pause: Callable[[], None]
    mode: Mode | None = None
    """Of the guard; None: no guard."""

    @property
    def guard(self) -> dict[str, Any]:
        """Settings of a guard: checkpoints are timed apart."""
        return {
            "run": self.folder / "run",
            "mode": self.mode,
            "policy": Policy(checkpoint_every_steps=10**9),
            "say": lambda _line: None,
        }

    @property
    def steps(self) -> int:
        """More than will be timed."""
        return self.parts.scenario.steps


@dataclass(frozen=True, kw_only=True)
class Loop:
    """One trainer."""

    name: str
    packages: tuple[str, ...]
    """It needs these."""
    train: Callable[[TrainingPlace], None]
    """Bare, or under the guard."""
    beside: dict[str, Callable[[TrainingPlace], None]]
    """The same with what others watch a run with, by what it is."""


class _Step(nn.Module):
    """The model with its loss, as trainers want it."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        return {"loss": next_token_loss(self.model, tokens)}


# -- the plain loop -----------------------------------------------------------------------------


def _plain(place: TrainingPlace, peer: Any = None) -> None:
    parts = place.parts
    limit = parts.scenario.clip_norm or float("inf")
    if place.mode is not None:
        _plain_guarded(place)
        return
    watch = None if peer is None else peer(parts, place.folder)
    for batch in parts.loader:
        parts.optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(parts.model, batch["tokens"])
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(parts.model.parameters(), limit)
        if watch is not None:
            watch(loss, norm)
        parts.optimizer.step()
        parts.scheduler.step()
        loss.item(), norm.item()
        place.pause()


def _plain_guarded(place: TrainingPlace) -> None:
    parts = place.parts
    guard = Guard(
        parts.model,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        clip=parts.scenario.clip_norm,
        steps=place.steps,
        **place.guard,
    )
    with contextlib.closing(guard):
        for batch in guard:
            step = guard.step_number
            guard.backward(next_token_loss(parts.model, batch["tokens"]))
            guard.step()
            if guard.step_number > step:  # a reading of the yardstick is part of the next step
                place.pause()


def _with_peer(peer: Any) -> Callable[[TrainingPlace], None]:
    return lambda place: _plain(place, peer)


# -- Hugging Face -------------------------------------------------------------------------------


def _hf(place: TrainingPlace, *, logs: bool = False) -> None:
    from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

    from trimtab.integrations.huggingface.trainer import GuardedTrainer, GuardSettings

    class Pause(TrainerCallback):
        def on_step_end(self, *_args: Any, **_more: Any) -> None:
            place.pause()

    logging_settings: dict[str, Any] = {"logging_strategy": "no", "report_to": []}
    if logs:
        logging_settings = {"logging_steps": 1, "report_to": ["tensorboard"]}
    arguments = TrainingArguments(
        output_dir=str(place.folder),
        max_steps=place.steps,
        save_strategy="no",
        disable_tqdm=True,
        per_device_train_batch_size=place.parts.scenario.batch_size,
        remove_unused_columns=False,
        train_sampling_strategy="sequential",
        use_cpu=True,
        **logging_settings,
    )
    kind: Any = Trainer
    more: dict[str, Any] = {}
    if place.mode is not None:
        kind, more = GuardedTrainer, {"guard": GuardSettings(**place.guard)}
    trainer = kind(
        model=_Step(place.parts.model),
        args=arguments,
        train_dataset=place.parts.loader.dataset,
        optimizers=(place.parts.optimizer, place.parts.scheduler),
        callbacks=[Pause()],
        **more,
    )
    trainer.pop_callback(PrinterCallback)
    trainer.train()


def _accelerate(place: TrainingPlace, *, logs: bool = False) -> None:
    from accelerate import Accelerator

    from trimtab.integrations.accelerate import guard_loop

    trackers: dict[str, Any] = {}
    if logs:
        trackers = {"log_with": "tensorboard", "project_dir": str(place.folder)}
    accelerator = Accelerator(cpu=True, **trackers)
    if logs:
        accelerator.init_trackers("bench")
    parts = place.parts
    prepared = accelerator.prepare(parts.model, parts.optimizer, parts.loader, parts.scheduler)
    model, optimizer, loader, scheduler = prepared
    stack = contextlib.ExitStack()
    if place.mode is not None:
        optimizer, loader, scheduler = guard_loop(
            accelerator, model, optimizer, loader, scheduler, steps=place.steps, **place.guard
        )
        stack.callback(loader.guard.close)
    with stack:
        _accelerated(place, accelerator, model, optimizer, loader, scheduler, logs=logs)


def _accelerated(
    place: TrainingPlace,
    accelerator: Any,
    model: Any,
    optimizer: Any,
    loader: Any,
    scheduler: Any,
    *,
    logs: bool,
) -> None:
    limit = place.parts.scenario.clip_norm or float("inf")
    for step, batch in enumerate(loader):
        loss = next_token_loss(model, batch["tokens"])
        accelerator.backward(loss)
        norm = accelerator.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if logs:
            rate = scheduler.get_last_lr()[0]
            accelerator.log({"loss": loss.item(), "norm": float(norm), "rate": rate}, step=step)
        place.pause()


# -- Lightning ----------------------------------------------------------------------------------


def _lightning(place: TrainingPlace, *, monitors: str = "") -> None:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.utilities import grad_norm

    from trimtab.integrations.lightning import GuardCallback

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _Step(place.parts.model)

        def training_step(self, batch: dict[str, Tensor], _batch_idx: int) -> Tensor:
            loss = self.net(**batch)["loss"]
            if monitors == "all":
                self.log("loss", loss)
            return loss  # type: ignore[no-any-return]

        def on_before_optimizer_step(self, _optimizer: Any) -> None:
            if monitors == "all":
                self.log_dict(grad_norm(self, norm_type=2))

        def configure_optimizers(self) -> Any:
            schedule = {"scheduler": place.parts.scheduler, "interval": "step"}
            return {"optimizer": place.parts.optimizer, "lr_scheduler": schedule}

    class Pause(Callback):
        def on_train_batch_end(self, *_args: Any) -> None:
            place.pause()

    callbacks = [] if place.mode is None else [GuardCallback(**place.guard)]
    callbacks += _lightnings_own(monitors, place)
    with _quiet():
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=place.steps,
            log_every_n_steps=10,
            gradient_clip_val=place.parts.scenario.clip_norm,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=place.folder,
            logger=CSVLogger(place.folder) if monitors == "all" else False,
            callbacks=[*callbacks, Pause()],
        )
        trainer.fit(Module(), place.parts.loader)


def _lightnings_own(monitors: str, place: TrainingPlace) -> list[Any]:
    from lightning.pytorch.callbacks import (
        DeviceStatsMonitor,
        LearningRateMonitor,
        SpikeDetection,
        ThroughputMonitor,
    )

    if monitors == "spike":
        return [SpikeDetection(warmup=10, exclude_batches_path=str(place.folder))]
    if monitors == "all":
        throughput = ThroughputMonitor(batch_size_fn=lambda batch: len(batch["tokens"]))
        return [LearningRateMonitor("step"), DeviceStatsMonitor(cpu_stats=True), throughput]
    return []


def _fabric(place: TrainingPlace, *, spikes: bool = False) -> None:
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.spike import SpikeDetection

    from trimtab.integrations.fabric import FabricGuard

    parts, limit = place.parts, place.parts.scenario.clip_norm
    with _quiet():
        fabric = Fabric(accelerator="cpu", devices=1)
        model, optimizer = fabric.setup(parts.model, parts.optimizer)
        loader: Any = fabric.setup_dataloaders(parts.loader)
        detection = SpikeDetection(warmup=10, exclude_batches_path=str(place.folder))
        if place.mode is not None:
            guard = FabricGuard(
                fabric,
                model,
                optimizer,
                data=loader,
                scheduler=parts.scheduler,
                clip=limit,
                steps=place.steps,
                **place.guard,
            )
            with contextlib.closing(guard):
                for batch in guard:
                    guard.backward(next_token_loss(model, batch["tokens"]))
                    guard.step()
                    place.pause()
        for step, batch in enumerate(loader):
            loss = next_token_loss(model, batch["tokens"])
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=limit)
            optimizer.step()
            parts.scheduler.step()
            optimizer.zero_grad()
            if spikes:
                detection.on_train_batch_end(fabric, loss.detach(), batch, step)
            place.pause()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Lightning greets every Trainer and warns of what is meant here."""
    for name in ("pytorch", "fabric"):
        logging.getLogger(f"lightning.{name}.utilities.rank_zero").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


LOOPS: tuple[Loop, ...] = (
    Loop(
        name="plain loop",
        packages=(),
        train=_plain,
        beside={name: _with_peer(make) for name, _, make in PEERS},
    ),
    Loop(
        name="HF Trainer",
        packages=("transformers", "accelerate"),
        train=_hf,
        beside={"its log to TensorBoard, every step": lambda place: _hf(place, logs=True)},
    ),
    Loop(
        name="Accelerate",
        packages=("accelerate",),
        train=_accelerate,
        beside={
            "accelerator.log to TensorBoard, every step": lambda place: _accelerate(
                place, logs=True
            )
        },
    ),
    Loop(
        name="Lightning Trainer",
        packages=("lightning",),
        train=_lightning,
        beside={
            "SpikeDetection": lambda place: _lightning(place, monitors="spike"),
            "rate, device, throughput monitors, grad_norm, CSVLogger": lambda place: _lightning(
                place, monitors="all"
            ),
        },
    ),
    Loop(
        name="Lightning Fabric",
        packages=("lightning",),
        train=_fabric,
        beside={"SpikeDetection": lambda place: _fabric(place, spikes=True)},
    ),
)
"""Trainers, and what each brings to watch a run with."""
