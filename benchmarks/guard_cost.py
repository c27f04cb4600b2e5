"""Measures what the guard costs: the same step with and without it, interleaved in one process.

Three copies of a model are trained side by side on the same batches, two in the plain loop and one
under the guard in `observe`, in turns that rotate. What is read at every tenth step must count, so
the ratio is that of ten steps in a row; it cancels what else the machine does. Its median is the
figure, with a 95 % interval from 2,000 bootstrap resamples. The ratio of the two plain copies says
what of it is the machine's. The steps are the first
ones of a run, in which early signs are read most often. Checkpoints, and the batches of the
yardstick that come on top of a step, are left out of the paired figure and timed apart.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trimtab.guard import Guard
from trimtab.lab.config import ModelConfig
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import Parts, build, train_step
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trimtab.lab.text import Text

__all__ = ["BLOCK_STEPS", "CostSize", "block_ratios", "interval", "run_bench"]

_WARM_UP_PAIRS = 5
BLOCK_STEPS = 10
"""As many as lie between two full readings of the guard."""
_RESAMPLES = 2000
_BUDGET = 1.03


@dataclass(frozen=True, kw_only=True)
class CostSize:
    """One model to measure on."""

    name: str
    model: ModelConfig
    batch_size: int
    pairs: int


def run_bench(*, pairs: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, say a line per size, and return the figures as JSON values.

    Args:
        pairs: Pairs of steps on the demo's model; half of them on the next, a quarter on the
            largest.
        say: Shows one line to the user.
    """
    sizes = (
        CostSize(name="demo, d=64, 3 layers", model=ModelConfig(), batch_size=16, pairs=pairs),
        CostSize(
            name="d=128, 4 layers",
            model=ModelConfig(width=128, num_layers=4, context_tokens=128),
            batch_size=16,
            pairs=max(pairs // 2, 40),
        ),
        CostSize(
            name="d=512, 6 layers",
            model=ModelConfig(width=512, num_layers=6, num_heads=8, context_tokens=128),
            batch_size=8,
            pairs=max(pairs // 4, 40),
        ),
    )
    text = load_text(None)
    say(
        f"guard in observe against the plain loop, {torch.get_num_threads()} threads, paired and"
        " interleaved"
    )
    rows = [_measure(size, text, say) for size in sizes]
    return {"schema": 1, "threads": torch.get_num_threads(), "budget": _BUDGET, "sizes": rows}


def _measure(size: CostSize, text: Text, say: Callable[[str], None]) -> dict[str, Any]:
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=size.model,
        batch_size=size.batch_size,
        warmup_steps=10,
    )
    with tempfile.TemporaryDirectory() as folder:
        plain, again = (_plain_steps(build(scenario, 0, text)) for _ in range(2))
        parts = build(scenario, 0, text)
        guard = Guard(
            parts.model,
            parts.optimizer,
            data=parts.loader,
            scheduler=parts.scheduler,
            clip=scenario.clip_norm,
            steps=scenario.steps,
            run=Path(folder) / "run",
            say=lambda _line: None,
            policy=Policy(mode="observe", checkpoint_every_steps=10**9),
        )
        guarded = _guarded_steps(parts, guard)
        works = (plain, guarded, again)
        times: list[list[float]] = [[], [], []]
        reading = 0.0
        for turn in range(size.pairs + _WARM_UP_PAIRS):
            for k in ((turn + i) % 3 for i in range(3)):
                taken, apart = _time(works[k])
                if turn >= _WARM_UP_PAIRS:
                    times[k].append(taken - apart)
                    reading += apart
        without, with_guard, control = times
        saving = _time_checkpoints(guard)
        guard.close()
    ratios = block_ratios(with_guard, without)
    low, high = interval(ratios)
    noise = block_ratios(control, without)
    row = {
        "size": size.name,
        "pairs": len(without),
        "step_ms": 1e3 * statistics.median(without),
        "ratio": float(np.median(ratios)),
        "ratio_low": low,
        "ratio_high": high,
        "control": float(np.median(noise)),
        "control_low": interval(noise)[0],
        "control_high": interval(noise)[1],
        "yardstick_share": reading / sum(without),
        "checkpoint_ms": 1e3 * saving,
        "within_budget": high <= _BUDGET,
    }
    say(
        f"  {size.name:<22} step {row['step_ms']:7.1f} ms   ratio {row['ratio']:.4f}  [{low:.4f},"
        f" {high:.4f}] over {len(without)} pairs   plain by plain {row['control']:.4f}"
        f" [{row['control_low']:.4f}, {row['control_high']:.4f}]   yardstick"
        f" {row['yardstick_share']:+.1%}   checkpoint"
        f" {row['checkpoint_ms']:.0f} ms  "
        f" {'within' if row['within_budget'] else 'ABOVE'} {_BUDGET - 1:.0%}"
    )
    return row


def _plain_steps(parts: Parts) -> Callable[[], float]:
    batches = iter(parts.loader)

    def step() -> float:
        train_step(parts, next(batches))
        return 0.0

    return step


def _guarded_steps(parts: Parts, guard: Guard) -> Callable[[], float]:
    """Return what does one step, and returns the seconds that the yardstick took on top of it."""
    batches: Iterator[Any] = iter(guard)

    def step() -> float:
        before, reading = guard.step_number, 0.0
        while guard.step_number == before:
            began = time.perf_counter()
            batch = next(batches)
            probes = guard.phase == "probe"
            loss = next_token_loss(parts.model, batch["tokens"])
            guard.backward(loss)
            guard.step()
            reading += (time.perf_counter() - began) if probes else 0.0
        return reading

    return step


def _time(work: Callable[[], float | None]) -> tuple[float, float]:
    """Return the seconds that it took, and those of them that it says are to be counted apart."""
    started = time.perf_counter()
    apart = work() or 0.0
    return time.perf_counter() - started, apart


def _time_checkpoints(guard: Guard) -> float:
    """Return the median time of one checkpoint to disk, seconds."""
    return statistics.median(_time(guard.checkpoint)[0] for _ in range(3))


def block_ratios(
    these: Sequence[float], those: Sequence[float]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the ratio of the times of ten steps in a row, float64 [len // 10, at least 1]."""
    n = max(len(these) // BLOCK_STEPS, 1)
    sums = [
        np.array([sum(part) for part in np.array_split(np.array(times), n)])
        for times in (these, those)
    ]
    ratios: np.ndarray[tuple[int], np.dtype[np.float64]] = sums[0] / sums[1]
    return ratios


def interval(ratios: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)
