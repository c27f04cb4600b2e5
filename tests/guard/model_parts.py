"""Runs whose ranks hold different parts of one model: stages of a pipeline, experts of their own.

The pipeline is torch's, the experts are shared out by collectives in the model. `build` makes the
same model from the same seed whatever the ranks; a rank keeps its part of it.
"""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn import functional as collective
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

from tests.guard.tiny import VOCAB, Sequences
from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy

WIDTH, NUM_BLOCKS, BATCH = 16, 4, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(functional.gelu(self.up(x)))
        return out


class Experts(nn.Module):
    """Four experts with a router; a rank of several holds its share, and sees all tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first, self.group = 0, None

    def share_out(self, rank: int, world: int) -> None:
        self.first, count = rank * 4 // world, 4 // world
        self.experts = nn.ModuleList([*self.experts][self.first : self.first + count])
        for p in self.experts.parameters():
            p.allreduce = False  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        shared = len(self.experts) < 4
        everyone = torch.cat(list(collective.all_gather(x))) if shared else x  # type: ignore[no-untyped-call]
        shares = torch.softmax(self.router(everyone), dim=-1)
        some = [shares[..., self.first + i, None] * e(everyone) for i, e in enumerate(self.experts)]
        together = torch.stack(some).sum(0)
        if shared:
            together = collective.all_reduce(together)  # type: ignore[no-untyped-call]
            together = together.chunk(dist.get_world_size())[dist.get_rank()]
        return x + together


class Model(nn.Module):
    def __init__(self, *, experts: bool = False) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCAB, WIDTH)
        kinds = [Experts if experts and i % 2 else Block for i in range(NUM_BLOCKS)]
        self.blocks = nn.ModuleDict({str(i): kind() for i, kind in enumerate(kinds)})
        self.output: nn.Module | None = nn.Linear(WIDTH, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.output is None else self.output(x)


class Fixed(nn.Module):
    """A matrix that is not trained."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        weight = self.get_buffer("weight")
        return functional.embedding(x, weight) if x.dtype == torch.int64 else x @ weight.T


def prepare(model: Model, job: "Job") -> None:
    """Make the whole model what the job says, the same whatever the ranks."""
    assert isinstance(model.embedding, nn.Embedding)
    assert isinstance(model.output, nn.Linear)
    if job.alike:
        half = NUM_BLOCKS // 2
        for i in range(half):
            model.blocks[str(half + i)].load_state_dict(model.blocks[str(i)].state_dict())
    if job.uniform:
        model.embedding = Fixed(model.embedding.weight)
        model.output = Fixed(model.output.weight)
        return
    if job.zero_head:
        nn.init.zeros_(model.output.weight)
    if job.tied:
        model.output = nn.Linear(WIDTH, VOCAB, bias=False)
        model.output.weight = model.embedding.weight
    if job.frozen:
        for part in (model.embedding, *list(model.blocks.values())[: NUM_BLOCKS // 2]):
            part.requires_grad_(False)


def keep_stage(model: Model, stage: int, num_stages: int, *, renumber: bool) -> None:
    share = NUM_BLOCKS // num_stages
    mine = [str(i) for i in range(stage * share, (stage + 1) * share)]
    kept = [(k, model.blocks[k]) for k in mine]
    model.blocks = nn.ModuleDict({str(i) if renumber else k: b for i, (k, b) in enumerate(kept)})
    if stage:
        model.embedding = None
    if stage < num_stages - 1:
        model.output = None


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


@dataclasses.dataclass(frozen=True)
class Job:
    """What every rank does."""

    num_stages: int = 1
    experts: bool = False
    shard: bool = False
    """Whether the ranks of a stage shard it among them (FSDP2)."""
    renumber: bool = False
    """Whether each stage numbers its blocks from 0."""
    steps: int = 24
    clip: float | None = 1.0
    mode: Mode = "observe"
    schedule: str = "1f1b"
    spoil: Callable[[int, int, nn.Module], None] | None = None
    """Called with rank, step and the part before each step's forward pass."""
    no_loss: bool = False
    """Whether no rank gives a loss."""
    uniform: bool = False
    """Whether only the blocks are trained, so that all stages have the same names and shapes."""
    alike: bool = False
    """Whether both halves begin with the same weights, as ranks of one seed do."""
    frozen: bool = False
    """Whether nothing of the first half is trained."""
    zero_head: bool = False
    """Whether the output layer begins with zeros: the first gradients of all else are 0."""
    tied: bool = False
    """Whether the output layer is the embedding, held twice where there are stages."""
    chunks: int = 1
    """Parts of the model that each rank holds, in turns."""
    stop_at: int = 0


@dataclasses.dataclass
class Place:
    """Where a rank stands."""

    stage: int
    replica: int
    replicas: int
    mesh: DeviceMesh | None


def place_of(rank: int, world: int, job: Job) -> Place:
    if world == 1:
        return Place(0, 0, 1, None)
    shape = (world // job.num_stages, job.num_stages)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("dp", "pp"))
    return Place(rank % job.num_stages, rank // job.num_stages, shape[0], mesh)


def average(model: nn.Module, place: Place) -> None:
    """Reduce what is replicated, as DDP does; each expert has the gradients of all tokens."""
    if place.mesh is None or place.replicas == 1:
        return
    for p in model.parameters():
        if p.grad is None:
            continue
        if getattr(p, "allreduce", True):
            dist.all_reduce(p.grad, group=place.mesh["dp"].get_group())
        p.grad /= place.replicas


def work(rank: int, world: int, store: str, folder: Path, job: Job) -> None:
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    place = place_of(rank, world, job)
    torch.manual_seed(3)
    whole = Model(experts=job.experts)
    prepare(whole, job)
    model: Any = whole
    if job.num_stages > 1 and world > 1:
        mine = range(place.stage, job.num_stages * job.chunks, job.num_stages)
        parts = [copy.deepcopy(whole) for _ in mine]
        for part, stage in zip(parts, mine, strict=True):
            keep_stage(part, stage, job.num_stages * job.chunks, renumber=job.renumber)
        model = parts[0] if job.chunks == 1 else nn.ModuleList(parts)
    if job.experts and world > 1:
        for block in model.blocks.values():
            if isinstance(block, Experts):
                block.share_out(rank, world)
    if job.shard and place.mesh is not None:
        fully_shard(model, mesh=place.mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    data = Sequences(4096)
    sampler: DistributedSampler[Tensor] = DistributedSampler(data, place.replicas, place.replica)
    loader = DataLoader(data, batch_size=BATCH // place.replicas, sampler=sampler)
    said: list[str] = []
    guard = Guard(
        model,
        optimizer,
        data=loader,
        clip=job.clip,
        steps=job.steps,
        run=folder / "run",
        mode=job.mode,
        policy=Policy(checkpoint_every_steps=8, checkpoint_in_background=False),
        say=said.append,
    )
    train = _staged(model, place, job) if world > 1 and job.num_stages > 1 else _whole(model)
    for batch in guard:
        if job.spoil is not None:
            job.spoil(rank, guard.step_number + 1, model)
        loss = train(batch)
        if not job.shard:
            average(model, place)
        if job.tied and place.mesh is not None:
            ends = (model.embedding, model.output)
            shared = next(part.weight for part in ends if part is not None)
            dist.all_reduce(shared.grad)
        guard.note_loss(None if job.no_loss else loss)
        guard.step()
        if guard.step_number == job.stop_at:
            break
    out = {k: _local(v) for k, v in model.state_dict().items()}
    torch.save({"model": out}, folder / f"out-{rank}.pt")
    if rank == 0:
        (folder / "said.txt").write_text("\n".join(said))
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def _local(value: Any) -> Any:
    return (value.to_local() if hasattr(value, "to_local") else value).detach().clone()


def _whole(model: nn.Module) -> Callable[[Tensor], Tensor]:
    def train(batch: Tensor) -> Tensor:
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return train


def _staged(model: nn.Module, place: Place, job: Job) -> Callable[[Tensor], Tensor | None]:
    assert place.mesh is not None
    group, count = place.mesh["pp"].get_group(), job.num_stages * job.chunks
    parts = list(model) if isinstance(model, nn.ModuleList) else [model]
    stages = [
        PipelineStage(
            part, place.stage + i * job.num_stages, count, torch.device("cpu"), group=group
        )
        for i, part in enumerate(parts)
    ]
    schedule: Any
    if job.chunks > 1:
        schedule = ScheduleInterleaved1F1B(list(stages), n_microbatches=2, loss_fn=loss_of)
    else:
        kind = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[job.schedule]
        schedule = kind(stages[0], n_microbatches=2, loss_fn=loss_of)
    last = place.stage == job.num_stages - 1

    def train(batch: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        if not place.stage:
            schedule.step(batch[:, :-1])
        elif last:
            schedule.step(target=batch[:, 1:], losses=losses)
        else:
            schedule.step()
        return torch.stack(losses).mean() if last else None

    return train
