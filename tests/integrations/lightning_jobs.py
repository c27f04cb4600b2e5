"""Lightning runs in processes of their own: killed and resumed, alone or as ranks under DDP.

Each rank writes the losses of its steps to `folder/TAG-RANK.txt`, bit for bit, and its end to a
`.pt`.
"""

import dataclasses
import importlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from tests.guard.crowd import whole
from tests.guard.tiny import Sequences, Tiny
from tests.integrations.lightning_lab import quiet, trainer
from trimtab.integrations.lightning import GuardCallback
from trimtab.plan.policy import Mode, Policy

BATCH = 4


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    steps: int
    tag: str = "out"
    mode: Mode | None = "act"
    """None: no guard."""
    kill_at: int | None = None
    """Step after which rank 0 is killed with SIGKILL."""
    ckpt_path: str | None = None
    """Lightning checkpoint to go on from; None: what the guard has."""
    own_checkpoints: int | None = None
    """Steps between Lightning's own checkpoints; None: none."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of the Trainer."""
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    num_samples: int = 42
    stream: str = ""
    """Of `STREAMS`; empty: data with a length."""
    sharded: bool = False
    """FSDP2 in place of DDP."""
    spoil: Callable[["TinyModule", int, int], None] | None = None
    """Called after the backward pass with module, step and rank, to plant a fault."""


class Forwards(IterableDataset[Tensor]):
    """Sequences in an order drawn anew each time, that can only be read from their beginning."""

    def __init__(self, rows: Sequences) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return (self.rows[int(i)] for i in torch.randperm(len(self.rows)))


def _of_datasets(rows: Sequences) -> DataLoader[Any]:
    table = (
        importlib.import_module("datasets")
        .Dataset.from_dict({"tokens": rows.tokens.tolist()})
        .to_iterable_dataset(num_shards=3)
    )
    shuffled = table.shuffle(seed=7, buffer_size=1).with_format("torch")
    return DataLoader(
        shuffled,
        batch_size=BATCH,
        collate_fn=lambda items: torch.stack([item["tokens"] for item in items]),
    )


def _stateful(rows: Sequences) -> Any:
    torchdata = importlib.import_module("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(rows, batch_size=BATCH, shuffle=True)


STREAMS: dict[str, Callable[[Sequences], Any]] = {
    "IterableDataset": lambda rows: DataLoader(Forwards(rows), batch_size=BATCH),
    "datasets": _of_datasets,
    "torchdata": _stateful,
}
"""Loaders over data that is read forwards, by the package that they need."""


class TinyModule(LightningModule):
    """The tiny model with dropout.

    Data in shuffled order, a one-cycle schedule, a validation each epoch.
    """

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.net = Tiny(0.2)
        self.job = job

    def _loss(self, batch: Tensor) -> Tensor:
        logits = self.net(batch[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def on_after_backward(self) -> None:
        if self.job.spoil is not None:
            self.job.spoil(self, self.trainer.global_step + 1, self.trainer.global_rank)

    def configure_model(self) -> None:
        if self.job.sharded and self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            fully_shard(self.net.hidden, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3, foreach=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=400)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> Any:
        if self.job.stream:
            return STREAMS[self.job.stream](Sequences(self.job.num_samples))
        return DataLoader(Sequences(self.job.num_samples), batch_size=BATCH, shuffle=True)

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(Sequences(8), batch_size=BATCH)


class _Log(Callback):
    """Writes each loss down; dies where it is told to."""

    def __init__(self, path: Path, job: Job) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._job = job

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        loss = float(outputs["loss"])
        self._file.write(
            f"{trainer.global_step} {trainer.current_epoch} {batch_idx} {loss.hex()}\n"
        )
        self._file.flush()
        if trainer.global_step == self._job.kill_at and trainer.global_rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def join(rank: int, world: int, store: str) -> None:
    """Be a rank as under torchrun, but for the port: Lightning uses the group that is there."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch.utilities.rank_zero").setLevel(logging.ERROR)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        os.environ |= {
            "TORCHELASTIC_RUN_ID": "test",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            "GROUP_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "1",
        }


def strategy_of(job: Job, world: int) -> Any:
    """What the Trainer is told."""
    if job.sharded:
        return ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1)
    return "ddp" if world > 1 else "auto"


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    """One rank of a job."""
    join(rank, world, store)
    torch.manual_seed(3)
    module = TinyModule(job)
    callbacks: list[Callback] = [_Log(folder / f"{job.tag}-{rank}.txt", job)]
    guard = None
    if job.mode is not None:
        policy = {
            "checkpoint_every_steps": 10,
            "snapshot_every_steps": 5,
            "checkpoint_in_background": False,
            **job.policy,
        }
        guard = GuardCallback(
            folder / "run",
            mode=job.mode,
            policy=Policy(**policy),
            say=lambda _: None,
        )
        callbacks.append(guard)
    if job.own_checkpoints is not None:
        callbacks.append(
            ModelCheckpoint(
                folder / "own",
                filename="{step}",
                every_n_train_steps=job.own_checkpoints,
                save_top_k=-1,
            )
        )
    settings = {
        "max_steps": job.steps,
        "gradient_clip_val": 1.0,
        "num_sanity_val_steps": 0,
        "devices": world,
        "strategy": strategy_of(job, world),
        "enable_checkpointing": job.own_checkpoints is not None,
        **job.settings,
    }
    with quiet():
        used = trainer(*callbacks, **settings)
        used.fit(module, ckpt_path=job.ckpt_path)
    end: dict[str, Any] = {
        "model": whole(module.net.state_dict()),
        "optimizer": whole(used.optimizers[0].state_dict()),
        "rng": torch.get_rng_state(),
        "epoch": used.current_epoch,
        "batches": used.fit_loop.epoch_loop.batch_progress.total.completed,
    }
    if guard is not None and guard.guard is not None:
        end["actions"] = [str(a["remedy"]) for a in guard.guard.actions]
    torch.save(end, folder / f"{job.tag}-{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


def losses_of(folder: Path, tag: str, rank: int = 0) -> dict[int, str]:
    """Last loss of each step, with epoch and batch, as text."""
    lines = (folder / f"{tag}-{rank}.txt").read_text(encoding="utf-8").splitlines()
    return {int(step): rest for step, _, rest in (line.partition(" ") for line in lines)}


def end_of(folder: Path, tag: str, rank: int = 0) -> dict[str, Any]:
    """What a rank wrote at its end."""
    found: dict[str, Any] = torch.load(folder / f"{tag}-{rank}.pt", weights_only=True)
    return found
