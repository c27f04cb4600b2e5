"""The slowest step of a guarded run over its median step, and whether steps cost more with time.

A small model is trained under the guard in `observe`, with a spike of the loss every so many steps.
A step is timed from the moment the loop asks for a batch to the end of `guard.step()`, less the
forward and the backward pass of the model, which are not the guard's. Python's garbage collection
is left on and counted as it falls; its longest pause is told beside. No checkpoint and no probe is
due, and the first steps, in which torch imports and allocates, are left out.

Two clocks are read: the wall clock, which counts what the disk takes and what other processes take,
and the time of this thread on the processor, which counts the guard alone. On a machine that does
nothing else they tell the same but for the disk.
"""

from __future__ import annotations

import gc
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.guard import Guard
from trimtab.plan.policy import Policy
from trimtab.plan.probe_names import PROBES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["StepTail", "measure_step_tail", "table"]

LIMIT = 10.0
"""Most that the slowest step may take, in median steps."""
_WARM_UP_STEPS = 200
_WINDOW_STEPS = 1000
_SPIKE_ROWS = 6
_CLASSES = 32


@dataclass(frozen=True, kw_only=True)
class StepTail:
    """Times of the steps of one run, milliseconds."""

    steps: int
    incidents: int
    """Spikes that were put into the loss."""
    told: int
    """Incidents that the guard told of; it leaves a growing distance between two."""
    median_ms: float
    slowest_ms: float
    slowest_step: int
    median_cpu_ms: float
    slowest_cpu_ms: float
    p999_ms: float
    early_ms: float
    """Median of 1,000 steps from step 1,000 on, processor time."""
    late_ms: float
    """Median of the last 1,000 steps, processor time."""
    gc_pause_ms: float
    """Longest garbage collection."""
    gc_full: int
    """Collections of the oldest generation."""

    @property
    def tail(self) -> float:
        """The slowest step over the median step, on the wall clock."""
        return self.slowest_ms / self.median_ms

    @property
    def cpu_tail(self) -> float:
        """The same in processor time."""
        return self.slowest_cpu_ms / self.median_cpu_ms

    @property
    def growth(self) -> float:
        """The late steps over the early ones."""
        return self.late_ms / self.early_ms

    def to_json(self) -> dict[str, float]:
        """Return the figures."""
        return {
            "steps": self.steps,
            "incidents": self.incidents,
            "incidents_told": self.told,
            "median_ms": self.median_ms,
            "slowest_ms": self.slowest_ms,
            "slowest_step": self.slowest_step,
            "tail": self.tail,
            "median_cpu_ms": self.median_cpu_ms,
            "slowest_cpu_ms": self.slowest_cpu_ms,
            "cpu_tail": self.cpu_tail,
            "p999_ms": self.p999_ms,
            "early_ms": self.early_ms,
            "late_ms": self.late_ms,
            "growth": self.growth,
            "gc_pause_ms": self.gc_pause_ms,
            "gc_full": self.gc_full,
            "limit": LIMIT,
        }


class _Tokens(Dataset[Tensor]):
    """Sample i is always the same."""

    def __init__(self, num_samples: int) -> None:
        made = torch.Generator().manual_seed(1)
        self._tokens = torch.randint(0, _CLASSES, (num_samples, 9), generator=made)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> Tensor:
        return self._tokens[index]


class _Pauses:
    """Times the garbage collections inside a block."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.full = 0
        self._began = 0.0

    def forget(self) -> None:
        """Count from here on."""
        self.longest_s, self.full = 0.0, 0

    def __enter__(self) -> _Pauses:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.longest_s = max(self.longest_s, time.perf_counter() - self._began)
            self.full += info["generation"] == 2


def measure_step_tail(*, steps: int = 20_000, incidents: int = 100, threads: int = 1) -> StepTail:
    """Train and return the times of the steps.

    Args:
        steps: Of the run; at least 4,000.
        incidents: Spikes of the loss, spread evenly over the run.
        threads: Of torch; more than one are slower on a model so small.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder, _Pauses() as pauses:
            wall, cpu, told = _train(Path(folder) / "run", steps, incidents, pauses)
    finally:
        torch.set_num_threads(before)
    counted, on_cpu = 1e3 * wall[_WARM_UP_STEPS:], 1e3 * cpu[_WARM_UP_STEPS:]
    early = slice(_WINDOW_STEPS, 2 * _WINDOW_STEPS)
    return StepTail(
        steps=steps,
        incidents=incidents,
        told=told,
        median_ms=float(np.median(counted)),
        slowest_ms=float(counted.max()),
        slowest_step=int(counted.argmax()) + _WARM_UP_STEPS + 1,
        median_cpu_ms=float(np.median(on_cpu)),
        slowest_cpu_ms=float(on_cpu.max()),
        p999_ms=float(np.quantile(counted, 0.999)),
        early_ms=float(np.median(1e3 * cpu[early])),
        late_ms=float(np.median(1e3 * cpu[-_WINDOW_STEPS:])),
        gc_pause_ms=1e3 * pauses.longest_s,
        gc_full=pauses.full,
    )


def _train(
    run: Path, steps: int, incidents: int, pauses: _Pauses
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the guard's part of each step on both clocks, s, and the number of incidents told."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(_CLASSES, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, _CLASSES)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    guard = Guard(
        model,
        optimizer,
        data=DataLoader(_Tokens(4096), batch_size=8),
        clip=1.0,
        steps=steps,
        run=run,
        say=lambda _line: None,
        policy=Policy(
            mode="observe",
            checkpoint_every_steps=10**9,
            checkpoint_every_steps_unsettled=10**9,
            probes_off=PROBES,
        ),
    )
    every = max(steps // incidents, _SPIKE_ROWS + 1) if incidents else steps + 1
    wall, cpu = np.zeros(steps), np.zeros(steps)
    batches = iter(guard)
    for step in range(steps):
        if step == _WARM_UP_STEPS:
            pauses.forget()
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        batch = next(batches)
        fetched, fetched_cpu = time.perf_counter(), time.thread_time()
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if step % every >= every - _SPIKE_ROWS:
            loss = loss + 3.0
        guard.backward(loss)
        ready, ready_cpu = time.perf_counter(), time.thread_time()
        guard.step()
        wall[step] = time.perf_counter() - ready + fetched - begun
        cpu[step] = time.thread_time() - ready_cpu + fetched_cpu - begun_cpu
    guard.close()
    events, _ = read_journal(RunDirectory(run).journal)
    return wall, cpu, sum(event.event == "incident" for event in events)


def table(found: StepTail, *, long: StepTail | None = None) -> str:
    """Return the figures as text.

    Args:
        found: The run whose slowest step counts.
        long: A longer one, for the growth; None: the growth within the first.
    """
    grown = long or found
    lines = [
        f"steps of {found.steps:,} in observe, {found.incidents} incidents ({found.told} told of),"
        " no checkpoint and no probe due",
        f"  {'':<22}{'wall clock':>12}{'processor':>12}",
        f"  {'median step':<22}{found.median_ms:>9.2f} ms{found.median_cpu_ms:>9.2f} ms",
        f"  {'slowest step':<22}{found.slowest_ms:>9.2f} ms{found.slowest_cpu_ms:>9.2f} ms",
        f"  {'slowest / median':<22}{found.tail:>9.1f}   {found.cpu_tail:>9.1f}   "
        f" {'within' if found.tail <= LIMIT else 'ABOVE'} {LIMIT:g}",
        f"  99.9 % of the steps within {found.p999_ms:.2f} ms; longest garbage collection"
        f" {found.gc_pause_ms:.1f} ms, {found.gc_full} full ones",
        f"  growth to step {grown.steps:,}: {grown.early_ms:.2f} ms at step 1,000,"
        f" {grown.late_ms:.2f} ms at the end, x {grown.growth:.2f} (processor)",
    ]
    return "\n".join(lines)
