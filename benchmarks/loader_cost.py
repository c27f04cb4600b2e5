"""Throughput of a loader with workers, through the guard over without it, on a loader-bound run.

Rounds of both are interleaved in one process, each round a whole epoch with fresh workers; the
figure is the median of the ratios of pairs. Only the time from the first to the last batch counts:
starting processes is the loader's own cost in both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from trimtab.guard import Guard
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["run_loader_bench"]

_BATCH = 16
_BATCHES = 120


class Slow(Dataset[torch.Tensor]):
    """Items that take a while to come: a wait, as for a disk, and a random crop."""

    def __init__(self, item_ms: float) -> None:
        """Take so long for each item."""
        self._seconds = item_ms / 1e3

    def __len__(self) -> int:
        """Return the items."""
        return _BATCH * _BATCHES

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return an image of noise."""
        time.sleep(self._seconds)
        item = torch.full((3, 32, 32), float(index % 7))
        item[0, int(torch.randint(32, ()))] = 0.0
        return item


def run_loader_bench(
    *, pairs: int = 5, workers: int = 2, item_ms: float = 0.6, say: Callable[[str], None]
) -> dict[str, Any]:
    """Measure and say the figures; return JSON values.

    Args:
        pairs: Rounds of both.
        workers: Worker processes.
        item_ms: What an item takes in a worker.
        say: Shows one line to the user.
    """
    ratios, plain, guarded = [], [], []
    for number in range(pairs):
        first = number % 2 == 0
        a = _plain(workers, item_ms) if first else None
        b = _guarded(workers, item_ms)
        a = _plain(workers, item_ms) if a is None else a
        plain.append(a)
        guarded.append(b)
        ratios.append(b / a)
        say(f"  pair {number + 1}: {a:8.1f} batches/s plain   {b:8.1f} guarded   {b / a:.4f}")
    ratio = statistics.median(ratios)
    say(
        f"{workers} workers, {item_ms:g} ms an item: throughput through the guard is {ratio:.4f} of"
        f" the plain loader's (median of {pairs} pairs, {min(ratios):.4f} to {max(ratios):.4f})"
    )
    return {
        "schema": 1,
        "workers": workers,
        "item_ms": item_ms,
        "ratio": ratio,
        "ratios": ratios,
        "plain_batches_s": statistics.median(plain),
        "guarded_batches_s": statistics.median(guarded),
    }


def _loader(workers: int, item_ms: float) -> DataLoader[torch.Tensor]:
    return DataLoader(Slow(item_ms), batch_size=_BATCH, shuffle=True, num_workers=workers)


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 1))
    return model, torch.optim.SGD(model.parameters(), lr=1e-6)


def _rate(batches: Iterable[torch.Tensor], step: Callable[[torch.Tensor], None]) -> float:
    count, started = 0, 0.0
    for batch in batches:
        if not count:
            started = time.perf_counter()
        step(batch)
        count += 1
    return (count - 1) / (time.perf_counter() - started)


def _plain(workers: int, item_ms: float) -> float:
    model, optimizer = _model()

    def step(batch: torch.Tensor) -> None:
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return _rate(_loader(workers, item_ms), step)


def _guarded(workers: int, item_ms: float) -> float:
    model, optimizer = _model()
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(
            model,
            optimizer,
            data=_loader(workers, item_ms),
            run=Path(folder) / "run",
            mode="observe",
            policy=Policy(checkpoint_every_steps=10**9),
            say=lambda _line: None,
        )

        def step(batch: torch.Tensor) -> None:
            guard.backward(model(batch).square().mean())
            guard.step()

        return _rate(_but_the_end(guard), step)


def _but_the_end(guard: Guard) -> Iterable[torch.Tensor]:
    """Yield all batches but the last: the end of a run saves and reports."""
    for number, batch in enumerate(guard, start=1):
        yield batch
        if number == _BATCHES - 1:
            return
