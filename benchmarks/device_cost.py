"""Measures what the guard costs on a GPU: steps in blocks, plain, observed and acting by turns.

Each way has a copy of the model of its own; blocks of ten steps, which the device is waited for at
both ends of, take turns within one process. The ratio of the blocks of one round cancels what else
the machine does. Snapshots, yardstick and checkpoints are off in the paired figure, timed apart,
and given as the share of the time that the defaults come to. Waits for the device are counted by
torch's own warnings.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import math
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from benchmarks.guard_cost import interval
from trimtab.guard import Guard
from trimtab.lab.config import ModelConfig
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import build, forward, train_step
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from trimtab.lab.text import Text
    from trimtab.lab.train import Parts

__all__ = ["run_device_bench"]

_BLOCK_STEPS = 10
_WARM_UP_BLOCKS = 1
_WARM_UP_STEPS = 15
_LARGEST_SAVED_GIB = 8.0
"""States above it are not written to disk: that would take most of the time of the rest."""
_WAYS = ("plain", "observe", "observe now", "act")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Size:
    name: str
    model: ModelConfig
    batch_size: int
    compiled: bool = False


_SIZES = (
    _Size(
        name="d=1280, 18 layers",
        model=ModelConfig(width=1280, num_layers=18, num_heads=20, context_tokens=1024),
        batch_size=16,
    ),
    _Size(
        name="d=2048, 24 layers",
        model=ModelConfig(width=2048, num_layers=24, num_heads=16, context_tokens=1024),
        batch_size=8,
    ),
    _Size(
        name="d=512, 6 layers",
        model=ModelConfig(width=512, num_layers=6, num_heads=8, context_tokens=512),
        batch_size=16,
    ),
    _Size(
        name="d=1024, 12 layers",
        model=ModelConfig(width=1024, num_layers=12, num_heads=16, context_tokens=512),
        batch_size=16,
        compiled=True,
    ),
)


def run_device_bench(*, pairs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure each size, say a line per way, and return the figures as JSON values.

    Args:
        pairs: Steps of each way, in blocks of ten; fewer on larger models.
        say: Shows one line to the user.
    """
    text, rows = load_text(None), []
    name = torch.cuda.get_device_name()
    say(f"{name}, torch {torch.__version__}, bf16 autocast, fused AdamW")
    for number, size in enumerate(_SIZES):
        rows += _measure(size, text, max(pairs // (_BLOCK_STEPS * (number + 1)), 6), say)
        gc.collect()
        torch.cuda.empty_cache()
    return {"schema": 1, "device": name, "torch": str(torch.__version__), "rows": rows}


def _measure(
    size: _Size, text: Text, blocks: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=size.model,
        batch_size=size.batch_size,
        precision="bf16",
        warmup_steps=10,
        peak_lr=3e-4,
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        steps: dict[str, Callable[[], None]] = {}
        memory: dict[str, float] = {}
        guards: dict[str, Guard] = {}
        for way in _WAYS:
            gc.collect()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            parts = _parts(scenario, text, compiled=size.compiled)
            if way == "plain":
                batches = iter(parts.loader)
                steps[way] = _plain(parts, batches)
            else:
                guards[way] = stack.enter_context(
                    contextlib.closing(_guard(parts, Path(folder) / way, way))
                )
                steps[way] = _guarded(parts, guards[way])
            for _ in range(_WARM_UP_STEPS):
                steps[way]()
            memory[way] = (torch.cuda.max_memory_allocated() - before) / 2**20
        times: dict[str, list[float]] = {way: [] for way in _WAYS}
        for block in range(blocks + _WARM_UP_BLOCKS):
            for way in _WAYS if block % 2 else reversed(_WAYS):
                times[way].append(_time(steps[way]))
        waits = {way: _waits(steps[way]) for way in _WAYS}
        kinds = _by_kind(steps["observe"], guards["observe"])
        apart = _apart(guards["act"])
    rows = []
    kept = {way: np.array(t[_WARM_UP_BLOCKS:]) for way, t in times.items()}
    step_ms = 1e3 * float(np.median(kept["plain"])) / _BLOCK_STEPS
    million = apart.pop("parameters") / 1e6
    for way in _WAYS:
        ratios = kept[way] / kept["plain"]
        low, high = interval(ratios)
        row = {
            "size": size.name,
            "million_parameters": million,
            "compiled": size.compiled,
            "way": way,
            "step_ms": 1e3 * float(np.median(kept[way])) / _BLOCK_STEPS,
            "ratio": float(np.median(ratios)),
            "ratio_low": low,
            "ratio_high": high,
            "waits_per_step": waits[way][0],
            "waits_in_calm_step": waits[way][1],
            "peak_mib": memory[way],
        }
        rows.append(row)
        say(
            f"  {size.name:<18} {million:6.0f} M  {way:<13} step {row['step_ms']:7.2f} ms  ratio"
            f" {row['ratio']:.3f} [{low:.3f}, {high:.3f}]  waits {waits[way][0]:.1f} (median"
            f" {waits[way][1]:.0f})  peak {memory[way]:.0f} MiB"
        )
    every = Policy().snapshot_every_steps
    share = apart["snapshot_ms"] / (every * step_ms)
    rows.append({"size": size.name, "snapshot_share": share, **apart, "observed_ms": kinds})
    say(
        f"  {size.name:<18} observe by what is read: "
        + ", ".join(f"{name} {ms:.2f} ms" for name, ms in kinds.items())
    )
    say(
        f"  {size.name:<18} snapshot {apart['snapshot_ms']:.0f} ms ({apart['gib']:.2f} GiB), every"
        f" {every} steps {share:.1%} of the time (copying {apart['copy_ms']:.0f} ms; the first"
        f" {apart['first_snapshot_ms']:.0f} ms); put back {apart['restore_ms']:.0f} ms; checkpoint"
        f" {apart.get('checkpoint_ms', math.nan):.0f} ms"
    )
    return rows


def _parts(scenario: Scenario, text: Text, *, compiled: bool) -> Parts:
    parts = build(scenario, 0, text, device="cuda")
    optimizer = torch.optim.AdamW(
        [dict(g) for g in parts.optimizer.param_groups], lr=scenario.peak_lr, fused=True
    )
    for group in optimizer.param_groups:
        group["foreach"], group["fused"] = False, True
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    module = cast("nn.Module", torch.compile(parts.model)) if compiled else parts.module
    return dataclasses.replace(parts, module=module, optimizer=optimizer, scheduler=schedule)


def _guard(parts: Parts, run: Path, way: str) -> Guard:
    return Guard(
        parts.module,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        clip=parts.scenario.clip_norm,
        steps=parts.scenario.steps,
        run=run,
        say=lambda _line: None,
        policy=Policy(
            mode="act" if way == "act" else "observe",
            reads="now" if way == "observe now" else "auto",
            act_uncertified=True,
            checkpoint_every_steps=10**9,
            snapshot_every_steps=10**9,
            yardstick_share=0,
        ),
    )


def _plain(parts: Parts, batches: Any) -> Callable[[], None]:
    def step() -> None:
        train_step(parts, next(batches), read=False)

    return step


def _guarded(parts: Parts, guard: Guard) -> Callable[[], None]:
    batches = iter(guard)

    def step() -> None:
        guard.backward(forward(parts, next(batches)))
        guard.step()

    return step


def _time(step: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_BLOCK_STEPS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def _by_kind(step: Callable[[], None], guard: Guard) -> dict[str, float]:
    """Return the median time of a step on the device, ms, by what the guard reads in it."""
    device: Any = torch.cuda
    marks = [device.Event(enable_timing=True)]
    marks[0].record()
    kinds = []
    for _ in range(40):
        number = guard.step_number + 1
        cadence = guard._parts.probes.cadence
        kinds.append(
            "all" if cadence.reads_all(number) else "signs" if cadence.reads_signs(number) else "no"
        )
        step()
        marks.append(device.Event(enable_timing=True))
        marks[-1].record()
    torch.cuda.synchronize()
    took = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return {
        kind: statistics.median(t for t, k in zip(took[1:], kinds[1:], strict=True) if k == kind)
        for kind in sorted(set(kinds[1:]))
    }


def _waits(step: Callable[[], None]) -> tuple[float, float]:
    """Return how often a step waits for the device: mean and median of twenty."""
    counts = collections.Counter[int]()
    for number in range(20):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            step()
            torch.cuda.set_sync_debug_mode("default")
        counts[number] = sum("synchroniz" in str(w.message) for w in heard)
    return statistics.mean(counts.values()), statistics.median(counts.values())


def _apart(guard: Guard) -> dict[str, float]:
    """Time a snapshot, what puts one back, and a checkpoint, each the median of three."""
    engine = guard._engine
    found: dict[str, list[float]] = {"snapshot_ms": [], "restore_ms": [], "checkpoint_ms": []}
    size = 0
    for _ in range(4):
        torch.cuda.synchronize()
        began = time.perf_counter()
        snapshot = engine.capture()
        torch.cuda.synchronize()
        middle = time.perf_counter()
        engine.restore(snapshot)
        torch.cuda.synchronize()
        found["snapshot_ms"].append(1e3 * (middle - began))
        found["restore_ms"].append(1e3 * (time.perf_counter() - middle))
        size = sum(p.numel() for p in engine.training.parameters)
    found["copy_ms"] = [1e3 * guard._parts.state.copier.seconds]
    if 12 * size / 2**30 <= _LARGEST_SAVED_GIB:
        began = time.perf_counter()
        guard.checkpoint()
        found["checkpoint_ms"].append(1e3 * (time.perf_counter() - began))
    medians = {name: statistics.median(x[1:] or x) for name, x in found.items() if x}
    medians["first_snapshot_ms"] = found["snapshot_ms"][0]
    return {**medians, "gib": 12 * size / 2**30, "parameters": size}
