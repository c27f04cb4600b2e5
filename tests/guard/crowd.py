"""Runs on several ranks: one process each, gloo, under DDP, FSDP2, tensor parallel or two of them.

`run_crowd` starts the ranks and waits for them; where one dies the others are killed, as torchrun
does. Each rank writes what a test may want to compare into `folder/TAG-rank.pt`.
"""

import dataclasses
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from tests.guard.inner import inner
from tests.guard.jobs import context
from tests.guard.tiny import VOCAB, Sequences
from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy

Layout = Literal["alone", "ddp", "fsdp", "tp", "fsdp+tp"]
GLOBAL_BATCH = 8


class Deep(nn.Module):
    """Two residual blocks; each first layer is split by columns and each second by rows under
    TP."""

    def __init__(self, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(VOCAB, 16)
        self.up = nn.ModuleList(nn.Linear(16, 32) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(32, 16) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.output = nn.Linear(16, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for up, down in zip(self.up, self.down, strict=True):
            if self.recompute:
                x = x + checkpoint(_block, up, down, x, use_reentrant=False)
            else:
                x = x + _block(up, down, x)
        logits: Tensor = self.output(self.norm(x))
        return logits


def _block(up: nn.Module, down: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = down(functional.gelu(up(x)))
    return out


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    layout: Layout
    steps: int
    tag: str = "out"
    mode: Mode | None = "observe"
    """None: no guard, the plain loop."""
    clip: float | None = 1.0
    lr: float = 3e-3
    policy: dict[str, Any] = dataclasses.field(default_factory=dict)
    spoil: Callable[["Crew", int], None] | None = None
    """Called after the backward pass of each step with its number, to plant a fault."""
    spoil_loss: Callable[["Crew", int, Tensor], Tensor] | None = None
    """Gives the loss to go back from instead of one, with the number of its step."""
    spoil_batch: Callable[["Crew", int, Tensor], Tensor] | None = None
    """Gives the batch to train on instead of one, by its first sample id."""
    before: Callable[["Crew", Guard], None] | None = None
    compiled: str = ""
    """Backend of torch.compile; empty: not compiled."""
    recompute: bool = False
    """Whether activations are computed again in the backward pass."""
    accumulate: int = 1


@dataclasses.dataclass
class Crew:
    """One rank's objects."""

    rank: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    loader: DataLoader[Tensor]
    guard: Guard | None = None


def build(job: Job, rank: int, world: int) -> Crew:
    torch.manual_seed(3)
    model: nn.Module = Deep(recompute=job.recompute)
    replicas = world
    if job.layout in ("tp", "fsdp+tp"):
        shape = (world,) if job.layout == "tp" else (world // 2, 2)
        names = ("tp",) if job.layout == "tp" else ("dp", "tp")
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        plan = {
            f"{way}.{i}": kind()
            for i in range(2)
            for way, kind in (("up", ColwiseParallel), ("down", RowwiseParallel))
        }
        parallelize_module(model, mesh["tp"], plan)  # type: ignore[arg-type]
        replicas = world // 2 if job.layout == "fsdp+tp" else 1
        if job.layout == "fsdp+tp":
            fully_shard(model, mesh=mesh["dp"])
        data_rank = mesh.get_local_rank("dp") if job.layout == "fsdp+tp" else 0
    else:
        data_rank = rank
    if job.layout == "fsdp":
        fully_shard(model)
    if job.layout == "ddp":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=job.lr, foreach=False)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 5))
    if job.compiled:
        model = torch.compile(model, backend=job.compiled)  # type: ignore[assignment]
    data = Sequences(8192)
    sampler: DistributedSampler[Tensor] = DistributedSampler(
        data, replicas, data_rank, shuffle=True
    )
    loader = DataLoader(data, batch_size=GLOBAL_BATCH // replicas, sampler=sampler)
    return Crew(rank, model, optimizer, scheduler, loader)


def loss_of(crew: Crew, batch: Tensor) -> Tensor:
    logits = crew.model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def whole(state: Any) -> Any:
    """Return a state with sharded tensors gathered; all ranks must call."""
    if isinstance(state, DTensor):
        return state.full_tensor().clone()
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {k: whole(v) for k, v in state.items()}
    return [whole(v) for v in state] if isinstance(state, list) else state


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    crew = build(job, rank, world)
    losses: list[str] = []
    if job.mode is None:
        _plain(crew, job, losses)
    else:
        _guarded(crew, job, folder, losses)
    out = {
        "losses": losses,
        "model": whole(
            {
                k.removeprefix("_orig_mod.").removeprefix("module."): v
                for k, v in crew.model.state_dict().items()
            }
        ),
        "optimizer": whole(crew.optimizer.state_dict()),
        "actions": [a["remedy"] for a in crew.guard.actions] if crew.guard else [],
        "skips": list(crew.guard.skipped_samples) if crew.guard else [],
    }
    torch.save(out, folder / f"{job.tag}-{rank}.pt")
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def _plain(crew: Crew, job: Job, losses: list[str]) -> None:
    epoch = parts = 0
    while True:
        crew.loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for batch in crew.loader:
            loss = loss_of(crew, batch)
            (loss / job.accumulate).backward()  # type: ignore[no-untyped-call]
            losses.append(float(loss.detach()).hex())
            parts += 1
            if parts % job.accumulate:
                continue
            if job.clip is not None:
                nn.utils.clip_grad_norm_(crew.model.parameters(), job.clip)
            crew.optimizer.step()
            crew.scheduler.step()
            crew.optimizer.zero_grad(set_to_none=True)
            if parts == job.steps * job.accumulate:
                return
        epoch += 1


def _guarded(crew: Crew, job: Job, folder: Path, losses: list[str]) -> None:
    policy = Policy(
        **{
            "checkpoint_every_steps": 10,
            "snapshot_every_steps": 5,
            "checkpoint_in_background": False,
            **job.policy,
        }
    )
    guard = crew.guard = Guard(
        crew.model,
        crew.optimizer,
        data=crew.loader,
        scheduler=crew.scheduler,
        clip=job.clip,
        steps=job.steps,
        run=folder / "run",
        mode=job.mode,
        policy=policy,
        say=lambda _line: None,
        accumulate=job.accumulate,
    )
    if job.before is not None:
        job.before(crew, guard)
    for number, batch in enumerate(guard, 1):
        first = inner(guard).fed[-1].first
        used = batch if job.spoil_batch is None else job.spoil_batch(crew, first, batch)
        loss = loss_of(crew, used)
        if job.spoil_loss is not None and guard.phase != "probe":
            loss = job.spoil_loss(crew, guard.step_number + 1, loss)
        guard.backward(loss / job.accumulate)
        losses.append(float(loss.detach()).hex())
        if number % job.accumulate:
            continue
        if job.spoil is not None and guard.phase != "probe":
            job.spoil(crew, guard.step_number + 1)
        guard.step()


def run_crowd(
    folder: Path,
    world: int,
    job: Any,
    *,
    timeout_s: float = 120,
    grace_s: float = 0.1,
    work: Callable[[int, int, str, Path, Any], None] = work,
) -> list[int | None]:
    """Run a job on so many ranks, each with `work`; return their exit codes."""
    store = tempfile.mktemp(prefix="store-", dir=folder)
    ranks = [
        context().Process(target=work, args=(r, world, store, folder, job)) for r in range(world)
    ]
    for process in ranks:
        process.start()
    end = time.monotonic() + timeout_s
    while any(p.is_alive() for p in ranks) and time.monotonic() < end:
        if any(p.exitcode not in (None, 0) for p in ranks):
            break
        time.sleep(0.02)
    end = time.monotonic() + grace_s
    for process in ranks:
        process.join(max(end - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
        process.join()
    return [p.exitcode for p in ranks]


def outcome(folder: Path, rank: int = 0, tag: str = "out") -> dict[str, Any]:
    """What a rank wrote at its end."""
    found: dict[str, Any] = torch.load(folder / f"{tag}-{rank}.pt", weights_only=True)
    return found


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
