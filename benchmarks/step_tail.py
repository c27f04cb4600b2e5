"""The slowest step of a guarded run over its median step, and whether steps cost more with time.

A small model is trained under the guard in `observe`, with a spike of the loss every so many steps.
A step is timed from the moment the loop asks for a batch to the end of `guard.step()`, less the
forward and the backward pass of the model, which are not the guard's. Python's garbage collection
is left on and counted as it falls; its longest pause is told beside. No checkpoint and no probe is
due, and the first steps, in which torch imports and allocates, are left out.

Two clocks are read: the wall clock, which counts what the disk takes and what other processes take,
and the time of this thread on the processor, which counts the guard alone. On a machine that does
nothing else they tell the same but for the disk.

Whether steps cost more with time is measured in pairs: a run far on and a new one are stepped in
turn.
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

__all__ = ["Growth", "StepTail", "measure_growth", "measure_step_tail", "table"]

LIMIT = 10.0
"""Most that the slowest step may take, in median steps."""
_WARM_UP_STEPS = 200
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
        gc_pause_ms=1e3 * pauses.longest_s,
        gc_full=pauses.full,
    )


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What a step late in a run costs over one early in a run, processor time."""

    early_step: int
    late_step: int
    early_ms: float
    """Median of the steps that follow `early_step`."""
    late_ms: float
    ratio: float
    """Median of the ratios of pairs: late over early."""
    low: float
    high: float
    """Ratios of the medians of ten parts of the pairs: least and largest."""

    def to_json(self) -> dict[str, float]:
        """Return the figures."""
        return {
            "early_step": self.early_step,
            "late_step": self.late_step,
            "early_ms": self.early_ms,
            "late_ms": self.late_ms,
            "growth": self.ratio,
            "growth_least": self.low,
            "growth_largest": self.high,
        }


def measure_growth(
    *, early: int = 1000, late: int = 100_000, pairs: int = 2000, threads: int = 1
) -> Growth:
    """Bring one run to a late step and another to an early one, then step both in turn.

    In pairs, because what else the machine does changes the time of a step more within seconds
    than a run's length does in hours.

    Args:
        early: Step that the one run has done.
        late: Step that the other has done.
        pairs: Steps of each after that.
        threads: Of torch.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder:
            old = _Run(Path(folder) / "late", late + pairs, 0)
            for _ in range(late):
                old.step()
            new = _Run(Path(folder) / "early", early + pairs, 0)
            for _ in range(early):
                new.step()
            times = np.zeros((pairs, 2))
            for pair in range(pairs):
                # Each comes first in every second pair: the first one finds a colder cache.
                order = ((new, 0), (old, 1)) if pair % 2 else ((old, 1), (new, 0))
                for run, column in order:
                    times[pair, column] = 1e3 * run.step()[1]
            old.close()
            new.close()
    finally:
        torch.set_num_threads(before)
    early_ms, late_ms = np.median(times, axis=0).tolist()
    ratios = times[:, 1] / times[:, 0]
    parts = [float(np.median(part)) for part in np.array_split(ratios, 10)]
    return Growth(
        early_step=early,
        late_step=late,
        early_ms=early_ms,
        late_ms=late_ms,
        ratio=float(np.median(ratios)),
        low=min(parts),
        high=max(parts),
    )


class _Run:
    """A small model in training under the guard."""

    def __init__(self, folder: Path, steps: int, incidents: int) -> None:
        torch.manual_seed(0)
        self._model = nn.Sequential(
            nn.Embedding(_CLASSES, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, _CLASSES)
        )
        self._guard = Guard(
            self._model,
            torch.optim.AdamW(self._model.parameters(), lr=1e-3, foreach=True),
            data=DataLoader(_Tokens(4096), batch_size=8),
            clip=1.0,
            steps=steps,
            run=folder,
            say=lambda _line: None,
            policy=Policy(
                mode="observe",
                checkpoint_every_steps=10**9,
                checkpoint_every_steps_unsettled=10**9,
                probes_off=PROBES,
            ),
        )
        self._every = max(steps // incidents, _SPIKE_ROWS + 1) if incidents else steps + 1
        self._batches = iter(self._guard)
        self._num_done = 0

    def step(self) -> tuple[float, float]:
        """Train one step; return the guard's part of it on the wall clock and the processor, s."""
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        batch = next(self._batches)
        fetched, fetched_cpu = time.perf_counter(), time.thread_time()
        logits = self._model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        if self._num_done % self._every >= self._every - _SPIKE_ROWS:
            loss = loss + 3.0
        self._num_done += 1
        self._guard.backward(loss)
        ready, ready_cpu = time.perf_counter(), time.thread_time()
        self._guard.step()
        return (
            time.perf_counter() - ready + fetched - begun,
            time.thread_time() - ready_cpu + fetched_cpu - begun_cpu,
        )

    def close(self) -> None:
        """End the run."""
        self._guard.close()


def _train(
    folder: Path, steps: int, incidents: int, pauses: _Pauses
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the guard's part of each step on both clocks, s, and the number of incidents told."""
    run = _Run(folder, steps, incidents)
    wall, cpu = np.zeros(steps), np.zeros(steps)
    for step in range(steps):
        if step == _WARM_UP_STEPS:
            pauses.forget()
        wall[step], cpu[step] = run.step()
    run.close()
    events, _ = read_journal(RunDirectory(folder).journal)
    return wall, cpu, sum(event.event == "incident" for event in events)


def table(found: StepTail, *, growth: Growth | None = None) -> str:
    """Return the figures as text.

    Args:
        found: The run whose slowest step counts.
        growth: Late steps over early ones, in pairs; None: left out.
    """
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
    ]
    if growth is not None:
        lines.append(
            f"  growth from step {growth.early_step:,} to step {growth.late_step:,}, in pairs:"
            f" {growth.early_ms:.2f} ms and {growth.late_ms:.2f} ms, x {growth.ratio:.3f}"
            f" ({growth.low:.3f} to {growth.high:.3f} over ten parts; processor)"
        )
    return "\n".join(lines)
