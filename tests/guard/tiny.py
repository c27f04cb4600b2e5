"""A model that trains in milliseconds, the plain loop it is trained in, and the guarded one."""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from trimtab.chronicle.journal import Event, read_journal
from trimtab.guard import Guard
from trimtab.plan.policy import Policy

VOCAB = 13
LENGTH = 6

DEVICE = os.environ.get("TRIMTAB_TEST_DEVICE", "cpu")
"""Where models of tests are trained; `cuda` runs the same tests there."""

Precision = Literal["fp32", "bf16", "fp16"]

SHORT_TRIALS = Policy(
    trial_steps=16,
    patience_steps=4,
    healing_steps=0,
    verify_steps=16,
    cooldown_steps=16,
    snapshot_every_steps=10,
    max_wasted_share=4.0,
    checkpoint_in_background=False,
    # dropout does not show in eval mode: here the training loss alone says that it hurts
    yardstick_share=0.0,
)


class Sequences(Dataset[Tensor]):
    """Sample i is always the same: a counting sequence with a little noise."""

    def __init__(self, num_samples: int) -> None:
        rows = torch.arange(num_samples)[:, None] * 7 + torch.arange(LENGTH + 1) * 3
        noise = torch.randint(0, 2, rows.shape, generator=torch.Generator().manual_seed(1))
        self.tokens = (rows + noise) % VOCAB

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index]


class Tiny(nn.Module):
    """Embedding, one hidden layer, dropout, output layer."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 16)
        self.hidden = nn.Linear(16, 24)
        self.norm = nn.LayerNorm(24)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(24, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.norm(functional.gelu(self.hidden(self.embedding(tokens))))
        logits: Tensor = self.output(self.dropout(hidden))
        return logits


@dataclass
class Setup:
    """What a loop is made of."""

    model: Tiny
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: torch.amp.GradScaler | None
    loader: DataLoader[Tensor]
    dtype: torch.dtype | None

    def loss(self, batch: Tensor) -> Tensor:
        batch = batch.to(DEVICE)
        cast = torch.autocast(DEVICE, dtype=self.dtype) if self.dtype else contextlib.nullcontext()
        with cast:
            logits = self.model(batch[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "none": lambda _: None,
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda done: min(1.0, (done + 1) / 5)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=60),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.97),
    "milestones": lambda o: lr_scheduler.MultiStepLR(o, [6, 11], 0.5),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1e-2, total_steps=400),
    "chained": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(o, 0.1, total_iters=8), lr_scheduler.ExponentialLR(o, 0.98)]
    ),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o,
        [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 40)],
        milestones=[5],
    ),
}


def make(
    *,
    precision: Precision = "fp32",
    dropout: float = 0.1,
    shuffle: bool = False,
    generator: bool = False,
    schedule: str = "lambda",
    num_samples: int = 42,
    batch_size: int = 4,
    seed: int = 3,
    lr: float = 3e-3,
    init_scale: float = 2.0**16,
) -> Setup:
    """Return a fresh setup; seeds torch's global generator."""
    torch.manual_seed(seed)
    model = Tiny(dropout).to(DEVICE)
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, foreach=True)
    types = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    return Setup(
        model=model,
        optimizer=optimizer,
        scheduler=SCHEDULES[schedule](optimizer),
        scaler=(
            torch.amp.GradScaler(DEVICE, init_scale=init_scale, growth_interval=7)
            if precision == "fp16"
            else None
        ),
        loader=DataLoader(
            Sequences(num_samples),
            batch_size=batch_size,
            shuffle=shuffle,
            generator=torch.Generator().manual_seed(5) if generator else None,
        ),
        dtype=types[precision],
    )


def parts_of(batch: Tensor, accumulate: int) -> list[Tensor]:
    return [part for part in batch.chunk(accumulate) if len(part)]


def train_plain(
    s: Setup, steps: int, *, clip: float | None = 1.0, accumulate: int = 1
) -> list[float]:
    """The loop as anyone writes it; returns the loss of each step's last part."""
    losses: list[float] = []
    while True:
        for batch in s.loader:
            s.optimizer.zero_grad(set_to_none=True)
            losses.append(_backward(s, batch, accumulate, s.scaler))
            if s.scaler is not None and clip is not None:
                s.scaler.unscale_(s.optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(s.model.parameters(), clip)
            if s.scaler is None:
                s.optimizer.step()
            else:
                s.scaler.step(s.optimizer)
                s.scaler.update()
            if s.scheduler is not None:
                s.scheduler.step()
            if len(losses) == steps:
                return losses


def _backward(
    s: Setup, batch: Tensor, accumulate: int, scaler: torch.amp.GradScaler | None
) -> float:
    last = math.nan
    parts = parts_of(batch, accumulate)
    for part in parts:
        loss = s.loss(part) / len(parts)
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
        last = float(loss.detach())
    return last


def guard_of(s: Setup, run: Path, **settings: Any) -> Guard:
    settings = {"clip": 1.0, "say": lambda _line: None, **settings}
    if "policy" not in settings:
        settings["policy"] = Policy(checkpoint_in_background=False)
    settings["policy"] = replace(settings["policy"], act_uncertified=True)
    return Guard(
        s.model,
        s.optimizer,
        data=s.loader,
        scheduler=s.scheduler,
        scaler=s.scaler,
        run=run,
        **settings,
    )


def copy_of_run(name: str, run: Path, train: Callable[[Path], object]) -> Path:
    """Have `run`, a folder within `tmp_path`, hold what `train` makes; it is trained only once."""
    original = run.parents[1] / name
    if not original.exists():
        train(original)
    return Path(shutil.copytree(original, run))


def train_guarded(
    s: Setup,
    guard: Guard,
    *,
    accumulate: int = 1,
    on_batch: Callable[[Guard, Tensor], None] | None = None,
    until: int | None = None,
) -> list[float]:
    """The guarded loop; returns the loss of every step that was run, trials included."""
    losses: list[float] = []
    for batch in guard:
        if on_batch is not None:
            on_batch(guard, batch)
        parts = parts_of(batch, accumulate)
        last = math.nan
        for part in parts:
            loss = s.loss(part) / len(parts)
            guard.backward(loss)
            last = float(loss.detach())
        guard.step()
        losses.append(last)
        if until is not None and guard.step_number >= until:
            break
    return losses


def state_of(s: Setup) -> dict[str, Any]:
    """Everything that decides the future of a run, copied."""
    import copy

    state = {
        "model": s.model.state_dict(),
        "optimizer": s.optimizer.state_dict(),
        "scheduler": None if s.scheduler is None else s.scheduler.state_dict(),
        "scaler": None if s.scaler is None else s.scaler.state_dict(),
        "rng": torch.get_rng_state(),
    }
    return copy.deepcopy(state)


def differences(a: Any, b: Any, where: str = "state") -> list[str]:
    """Name every leaf in which two nested states differ, bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        same = (
            a.dtype == b.dtype
            and a.shape == b.shape
            and bool(
                ((a == b) | (a.isnan() & b.isnan()) if a.is_floating_point() else a == b).all()
            )
        )
        return [] if same else [where]
    if type(a) is not type(b):
        return [f"{where}: {type(a).__name__} and {type(b).__name__}"]
    if isinstance(a, dict):
        if list(a) != list(b):
            return [f"{where}: keys"]
        return [d for k in a for d in differences(a[k], b[k], f"{where}.{k}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [f"{where}: length"]
        return [
            d
            for i, (x, y) in enumerate(zip(a, b, strict=True))
            for d in differences(x, y, f"{where}[{i}]")
        ]
    return [] if a == b or (a != a and b != b) else [where]


def events_of(run: Path, *names: str) -> list[Event]:
    """The events of a run, of these kinds; all without names."""
    return [e for e in read_journal(run / "journal.jsonl")[0] if not names or e.event in names]


def rows_of(run: Path, attempt: str = "1.0") -> list[dict[str, Any]]:
    """The samples of one attempt, as written."""
    return list(_rows(run / "signals" / f"{attempt}.jsonl"))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield {
            k: math.nan if v == "NaN" else math.inf if v == "Infinity" else v
            for k, v in json.loads(line).items()
        }
