"""The run that things happen to: a model that trains in milliseconds, with data that go bad once."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trimtab.guard import Guard
from trimtab.plan.policy import Mode, Policy

__all__ = ["BATCH", "Outcome", "Plan", "Precision", "train", "warm_up"]

VOCABULARY = 13
LENGTH = 6
BATCH = 4

Precision = Literal["fp32", "fp16"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is trained, and how it is guarded."""

    name: str
    steps: int
    mode: Mode = "act"
    bad_steps: tuple[int, int] | None = None
    """First and last step whose data are noise, where nothing is skipped before."""
    save_every: int = 5
    snapshot_every: int = 5
    kept: int = 3
    background: bool = False
    copies: bool = False
    """Whether the run is copied to a second place."""
    precision: Precision = "fp32"
    rate: float = 1e-2
    ranks: int = 1
    device: str = "cpu"


@dataclass
class Outcome:
    """What the script itself saw of its run; the guard is not asked."""

    losses: list[tuple[int, int, str]] = field(default_factory=list)
    """Of each batch: the step it is for, its first sample id, the loss bit for bit."""
    said: list[str] = field(default_factory=list)
    """Lines that the guard showed."""
    weights: str = ""
    """Checksum of the weights at the end."""
    steps: int = 0
    started_at: int = -1
    """Step before the first batch; -1: none was handed out."""
    in_loop: bool = False
    """Whether the guard had been made."""


class _Sequences(Dataset[tuple[int, Tensor]]):
    """Sample i is always the same: its id, and a counting sequence with a little noise."""

    def __init__(self, number: int) -> None:
        rows = torch.arange(number)[:, None] * 7 + torch.arange(LENGTH + 1) * 3
        noise = torch.randint(0, 2, rows.shape, generator=torch.Generator().manual_seed(1))
        self.tokens = (rows + noise) % VOCABULARY

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return index, self.tokens[index]


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.hidden = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(24)
        self.dropout = nn.Dropout(0.1)
        self.output = nn.Linear(24, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(functional.gelu(self.hidden(self.embedding(tokens))))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


def train(
    plan: Plan,
    folder: Path,
    outcome: Outcome,
    *,
    before_step: Callable[[int, Guard], None] = lambda _step, _guard: None,
    after_step: Callable[[int, Guard], None] = lambda _step, _guard: None,
    until: int | None = None,
    rank: int = 0,
) -> None:
    """Start a run in `folder/run` or go on with it, to its end or to the step `until`.

    Where a plan has several ranks, each calls this, with the process group made.
    """
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model: nn.Module = _Model().to(plan.device)
    if plan.ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.rate, foreach=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 5))
    half = plan.precision == "fp16"
    scaler = torch.amp.GradScaler(plan.device, growth_interval=7) if half else None
    guard = Guard(
        model,
        optimizer,
        data=_loader(plan, rank),
        scheduler=scheduler,
        scaler=scaler,
        clip=1.0,
        steps=plan.steps,
        run=folder / "run",
        mode=plan.mode,
        policy=policy_of(plan, folder),
        say=outcome.said.append,
    )
    outcome.in_loop = True
    outcome.started_at = guard.step_number
    for ids, tokens in guard:
        first = int(ids[0])
        before_step(guard.step_number, guard)
        if plan.bad_steps is not None and _is_bad(first, plan.bad_steps):
            tokens = torch.randint(
                0, VOCABULARY, tokens.shape, generator=torch.Generator().manual_seed(first)
            )
        tokens = tokens.to(plan.device)
        with torch.autocast(plan.device, dtype=torch.float16, enabled=half):
            logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        if model.training:  # the yardstick's batches come in eval mode, and train nothing
            outcome.losses.append((guard.step_number + 1, first, float(loss.detach()).hex()))
        guard.backward(loss)
        guard.step()
        outcome.steps = guard.step_number
        after_step(guard.step_number, guard)
        if guard.step_number == until:
            break
    guard.close()
    outcome.weights = _checksum(
        model.state_dict(),
        optimizer.state_dict(),
        scaler.state_dict() if scaler is not None else None,
        torch.get_rng_state(),
    )


def _loader(plan: Plan, rank: int) -> DataLoader[tuple[int, Tensor]]:
    data = _Sequences(4000)
    if plan.ranks == 1:
        return DataLoader(data, batch_size=BATCH)
    sampler: DistributedSampler[tuple[int, Tensor]] = DistributedSampler(data, plan.ranks, rank)
    return DataLoader(data, batch_size=BATCH // plan.ranks, sampler=sampler)


def policy_of(plan: Plan, folder: Path) -> Policy:
    """Return how a plan is guarded."""
    return Policy(
        checkpoint_every_steps=plan.save_every,
        checkpoints_kept=plan.kept,
        snapshot_every_steps=plan.snapshot_every,
        checkpoint_in_background=plan.background,
        act_uncertified=plan.device != "cpu",
        copy_to=str(folder / "copies") if plan.copies else "",
    )


def _is_bad(first: int, bad: tuple[int, int]) -> bool:
    return (bad[0] - 1) * BATCH <= first < bad[1] * BATCH


def _checksum(*parts: object) -> str:
    """Return a checksum of every tensor and number in nested states, bit for bit."""
    digest = hashlib.sha256()
    _digest(parts, digest.update)
    return digest.hexdigest()[:16]


def _digest(value: object, add: Callable[[bytes], object]) -> None:
    if isinstance(value, Tensor):
        add(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, dict):
        for name in value:
            add(str(name).encode())
            _digest(value[name], add)
    elif isinstance(value, list | tuple):
        for part in value:
            _digest(part, add)
    else:
        add(repr(value).encode())


def warm_up(folder: Path) -> None:
    """Import what torch imports at the first step and save, without a backward pass.

    A process in which a backward pass has run cannot be forked.
    """
    torch.set_num_threads(1)
    model = _Model()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    optimizer.step()
    guard = Guard(
        model,
        optimizer,
        data=DataLoader(_Sequences(40), batch_size=BATCH),
        steps=1,
        run=folder / "run",
        policy=Policy(checkpoint_in_background=False),
        say=lambda _line: None,
    )
    guard.checkpoint()
    guard.close()
    assert math.isfinite(sum(float(p.detach().sum()) for p in model.parameters()))
