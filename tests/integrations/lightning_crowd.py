"""The tiny GPT on several ranks, in Lightning's Trainer or in a Fabric loop, under DDP on gloo."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, DistributedSampler

from tests.integrations.lightning_jobs import join
from tests.integrations.lightning_lab import (
    TinyGpt,
    guard_callback,
    make_text,
    quiet,
    trainer,
    validation_loss,
)
from trimtab.guard import Guard
from trimtab.integrations.fabric import FabricGuard
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.train import Parts, build
from trimtab.plan.policy import Policy


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    scenario: Scenario
    tag: str
    trainer: bool
    """Lightning's Trainer, or else a Fabric loop."""
    guarded: bool = True
    nan_at: int | None = None
    """Step in which rank 1 alone has a NaN in its gradient."""


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    """One rank of a job."""
    join(rank, world, store)
    text = make_text()
    parts = build(job.scenario, 0, text)
    # shuffle=False: the samples keep their order, so that a window of them stays one
    sampler: Any = DistributedSampler(parts.loader.dataset, world, rank, shuffle=False)
    loader = DataLoader(
        parts.loader.dataset, batch_size=job.scenario.batch_size // world, sampler=sampler
    )
    with quiet():
        train = _train if job.trainer else _loop
        guard = train(rank, folder, job, parts, loader)
    out = {
        "validation": validation_loss(parts, text),
        "weights": [p.detach().clone() for p in parts.model.parameters()],
        "actions": [] if guard is None else [str(a["remedy"]) for a in guard.actions],
        "skips": [] if guard is None else list(guard.skipped_samples),
    }
    torch.save(out, folder / f"{job.tag}-{rank}.pt")
    dist.destroy_process_group()


def _train(rank: int, folder: Path, job: Job, parts: Parts, loader: Any) -> Guard | None:
    def spoil(module: TinyGpt, step: int) -> None:
        if rank == 1 and step == job.nan_at:
            _spoil(module.model)

    callback = guard_callback(folder / "run")
    used = trainer(
        *([callback] if job.guarded else []),
        devices=2,
        strategy="ddp",
        max_steps=job.scenario.steps,
        gradient_clip_val=job.scenario.clip_norm,
    )
    used.fit(TinyGpt(parts, spoil), loader)
    return callback.guard


def _loop(rank: int, folder: Path, job: Job, parts: Parts, loader: Any) -> Guard | None:
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model, optimizer = fabric.setup(parts.model, parts.optimizer)
    policy = Policy(
        checkpoint_in_background=False, checkpoint_every_steps=60, snapshot_every_steps=10
    )
    guard = FabricGuard(
        fabric,
        model,
        optimizer,
        data=fabric.setup_dataloaders(loader, use_distributed_sampler=False),
        scheduler=parts.scheduler,
        clip=job.scenario.clip_norm,
        steps=job.scenario.steps,
        run=folder / "run",
        mode="act" if job.guarded else "observe",
        policy=policy,
        say=lambda _line: None,
    )
    for batch in guard:
        loss = next_token_loss(model, batch["tokens"])
        guard.backward(loss)
        if rank == 1 and guard.step_number + 1 == job.nan_at and guard.phase == "calm":
            _spoil(parts.model)
        guard.step()
    return guard


def _spoil(model: torch.nn.Module) -> None:
    first = next(model.parameters())
    assert first.grad is not None
    first.grad[0] = math.nan
