"""Measures snapshots and checkpoints: memory, disk, background; by size and number of ranks.

Each figure is the median of several rounds in one process, the ranks' slowest. A step is one of the
guarded loop without any of this. On several ranks they train under DDP on this machine, so that
they share its cores: what is read off is what the state adds, not how training scales.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trimtab.guard import Guard
from trimtab.lab.config import ModelConfig
from trimtab.lab.model import next_token_loss
from trimtab.lab.ranks import on_ranks
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import Parts, build
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["SIZES", "StateCost", "measure_state", "parts_of_size", "run_state_bench"]

_WARM_UP_STEPS = 4

SIZES: dict[str, tuple[ModelConfig, int]] = {
    "d=64, 3 layers": (ModelConfig(), 16),
    "d=256, 4 layers": (ModelConfig(width=256, num_layers=4, num_heads=4, context_tokens=128), 8),
    "d=512, 6 layers": (ModelConfig(width=512, num_layers=6, num_heads=8, context_tokens=128), 8),
}
"""Name to model and batch size: about 0.2, 3 and 19 million parameters."""


@dataclass(frozen=True, kw_only=True)
class StateCost:
    """Milliseconds, medians."""

    ranks: int
    parameters: int
    state_mb: float
    """Model and optimizer, 10^6 bytes."""
    step: float
    """A guarded step without any of what follows."""
    snapshot: float
    """Copying the whole state into memory."""
    restore: float
    """Going back to a copy in memory."""
    save: float
    """Writing a checkpoint while training waits: data, hashes, fsync, rename."""
    save_pause: float
    """What training waits for where the same is written in the background."""
    load: float
    """Reading the newest checkpoint back and verifying it."""

    @property
    def restore_in_steps(self) -> float:
        """The time of a restore in steps; the target is less than 1."""
        return self.restore / self.step


def run_state_bench(
    *, rounds: int = 5, ranks: tuple[int, ...] = (1, 2, 4), say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure every size on one rank and the smallest on several, say a line each.

    Return JSON values.

    Args:
        rounds: Times that each thing is done.
        ranks: Numbers of ranks for the smallest model.
        say: Shows one line to the user.
    """
    say(f"the state, {torch.get_num_threads()} threads a rank, medians of {rounds}, ms")
    rows = []
    first = next(iter(SIZES))
    cases = [(name, 1) for name in SIZES] + [(first, count) for count in ranks if count > 1]
    for name, count in cases:
        cost = measure_state(name, ranks=count, rounds=rounds)
        target = "below one step" if cost.restore_in_steps < 1 else "ABOVE ONE STEP"
        say(
            f"  {name:<16} {count} rank{'s' if count > 1 else ' '} {cost.state_mb:7.1f} MB   step"
            f" {cost.step:7.1f}   snapshot {cost.snapshot:6.1f}   restore {cost.restore:6.1f}"
            f" ({cost.restore_in_steps:.2f} steps, {target})   save {cost.save:7.1f}   in the"
            f" background {cost.save_pause:6.1f}   load {cost.load:7.1f}"
        )
        rows.append({"size": name, **asdict(cost), "restore_in_steps": cost.restore_in_steps})
    return {"schema": 1, "threads": torch.get_num_threads(), "rounds": rounds, "state": rows}


def measure_state(size: str, *, ranks: int = 1, rounds: int = 5) -> StateCost:
    """Measure one of `SIZES` on so many ranks of this machine.

    Raises:
        ActError: A rank ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        cost: StateCost = on_ranks(ranks, _measure, size, rounds, folder)
        return cost


def parts_of_size(size: str) -> tuple[Parts, Any]:
    """Return what trains a model of a size, and its loader, which shares the data among ranks."""
    model, batch_size = SIZES[size]
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=model,
        batch_size=batch_size,
        warmup_steps=10,
        steps=10_000,
    )
    parts = build(scenario, 0, load_text(None))
    loader: Any = parts.loader
    if dist.is_initialized():
        sampler: DistributedSampler[Any] = DistributedSampler(loader.dataset)
        loader = DataLoader(loader.dataset, batch_size=batch_size, sampler=sampler)
    return parts, loader


def _measure(size: str, rounds: int, folder: str) -> StateCost:
    parts, loader = parts_of_size(size)
    shared = dist.is_initialized()
    net: Any = DistributedDataParallel(parts.model) if shared else parts.model
    guard = Guard(
        net,
        parts.optimizer,
        data=loader,
        scheduler=parts.scheduler,
        clip=parts.scenario.clip_norm,
        steps=parts.scenario.steps,
        run=Path(folder) / "run",
        say=lambda _line: None,
        policy=Policy(
            mode="act", checkpoint_every_steps=10**9, snapshot_every_steps=10**9, snapshots_kept=2
        ),
    )
    batches: Iterator[Any] = iter(guard)

    def step() -> None:
        guard.backward(next_token_loss(net, next(batches)["tokens"]))
        guard.step()

    for _ in range(_WARM_UP_STEPS):
        step()
    engine = guard._engine
    engine.snapshot()
    figures: dict[str, list[float]] = {
        name: [] for name in ("step", "snapshot", "restore", "save", "save_pause", "load")
    }

    def timed(name: str, work: Callable[[], object]) -> None:
        if shared:
            dist.barrier()
        started = time.perf_counter()
        work()
        figures[name].append(1e3 * (time.perf_counter() - started))

    for _ in range(rounds):
        for _ in range(3):
            timed("step", step)
        timed("snapshot", engine.snapshot)
        timed("restore", lambda: engine.restore(engine.ring.items[-1]))
        step()
        timed("save", lambda: engine.save_checkpoint("bench"))
        timed("load", lambda: engine.restore_point_on_disk(engine.counters.step))
        step()
        timed("save_pause", lambda: engine.save_checkpoint("bench", background=True))
        engine.store.finish(wait=True)
    medians = [statistics.median(values) for values in figures.values()]
    slowest = engine.ranks.gather(medians).max(axis=0).tolist()
    batches.close()  # type: ignore[attr-defined]
    guard.close()
    count = sum(p.numel() for p in parts.model.parameters())
    held = sum(p.numel() * p.element_size() for p in parts.model.parameters())
    held += sum(
        v.numel() * v.element_size()
        for s in parts.optimizer.state.values()
        for v in s.values()
        if isinstance(v, torch.Tensor)
    )
    return StateCost(
        ranks=engine.ranks.count,
        parameters=count,
        state_mb=held / 1e6,
        **dict(zip(figures, slowest, strict=True)),
    )
