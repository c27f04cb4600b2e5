"""Fabric loops in processes of their own, to be killed: alone or as ranks, under DDP or FSDP2."""

import dataclasses
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies.model_parallel import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.guard.crowd import whole
from tests.guard.tiny import Sequences, Tiny
from tests.integrations.lightning_jobs import BATCH, join
from tests.integrations.lightning_lab import quiet
from trimtab.integrations.fabric import FabricGuard
from trimtab.plan.policy import Policy


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    steps: int
    tag: str = "out"
    guarded: bool = True
    kill_at: int | None = None
    """Step after which rank 0 is killed with SIGKILL."""
    strategy: str = "auto"
    """auto, ddp or fsdp2."""


def _shard(model: Any, mesh: Any) -> Any:
    fully_shard(model.hidden, mesh=mesh["data_parallel"])
    fully_shard(model, mesh=mesh["data_parallel"])
    return model


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    """One rank of a job: dropout, shuffled data of 11 batches an epoch, a one-cycle schedule."""
    join(rank, world, store)
    torch.manual_seed(3)
    strategy: Any = job.strategy
    if job.strategy == "fsdp2":
        strategy = ModelParallelStrategy(_shard, data_parallel_size=world, tensor_parallel_size=1)
    with quiet():
        fabric = Fabric(accelerator="cpu", devices=world, strategy=strategy)
        fabric.launch()
        net = Tiny(0.2)
        model = fabric.setup_module(net)
        plain = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
        optimizer = fabric.setup_optimizers(plain)
        schedule = torch.optim.lr_scheduler.OneCycleLR(plain, max_lr=1e-2, total_steps=400)
        data = DataLoader(Sequences(42), batch_size=BATCH, shuffle=True)
        loader = fabric.setup_dataloaders(data)
        train = _guarded if job.guarded else _plain
        train(fabric, model, optimizer, schedule, loader, folder, job)
    end = {
        "model": whole(net.state_dict()),
        "optimizer": whole(plain.state_dict()),
        "rng": torch.get_rng_state(),
    }
    torch.save(end, folder / f"{job.tag}-{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def _loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def _guarded(
    fabric: Fabric, model: Any, optimizer: Any, schedule: Any, loader: Any, folder: Path, job: Job
) -> None:
    policy = Policy(
        checkpoint_every_steps=10, snapshot_every_steps=5, checkpoint_in_background=False
    )
    guard = FabricGuard(
        fabric,
        model,
        optimizer,
        data=loader,
        scheduler=schedule,
        clip=1.0,
        steps=job.steps,
        run=folder / "run",
        mode="act",
        policy=policy,
        say=lambda _line: None,
    )
    path = folder / f"{job.tag}-{fabric.global_rank}.txt"
    with path.open("w", encoding="utf-8") as file:
        for batch in guard:
            loss = _loss(model, batch)
            guard.backward(loss)
            guard.step()
            file.write(f"{guard.step_number} {float(loss.detach()).hex()}\n")
            file.flush()
            if guard.step_number == job.kill_at and fabric.global_rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _plain(
    fabric: Fabric, model: Any, optimizer: Any, schedule: Any, loader: Any, folder: Path, job: Job
) -> None:
    path, step, epoch = folder / f"{job.tag}-{fabric.global_rank}.txt", 0, 0
    with path.open("w", encoding="utf-8") as file:
        while True:
            if hasattr(loader.sampler, "set_epoch"):
                loader.sampler.set_epoch(epoch)
            for batch in loader:
                loss = _loss(model, batch)
                fabric.backward(loss)
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                step += 1
                file.write(f"{step} {float(loss.detach()).hex()}\n")
                if step == job.steps:
                    return
            epoch += 1
