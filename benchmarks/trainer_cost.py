"""Measures what the guard costs in each trainer, beside the trainer's own monitors.

All loops of one trainer take turns, one step each. A figure is the time of ten steps over that of
ten steps of the same trainer bare, measured within the same seconds: the median, with a 95 %
interval. Two loops are bare, and their mean is what the others are measured by. Copies of one loop
differ by a few percent by where their memory lies, so all are built anew for each ten steps, and
the one bare loop over the other says what a figure is worth.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.guard_cost import BLOCK_STEPS, block_ratios, interval
from benchmarks.interleave import Paced, time_in_turns
from benchmarks.peer_monitors import PEERS, is_installed
from benchmarks.trainer_loops import LOOPS, Loop, TrainingPlace
from trimtab.lab.config import ModelConfig
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.lab.text import Text
    from trimtab.plan.policy import Mode

__all__ = ["SIZES", "TrainerSize", "run_trainer_bench"]

_BARE = "bare"
_CONTROL = "bare once more, over the first"
_GUARDS: tuple[tuple[str, Mode], ...] = (
    ("guard in observe", "observe"),
    ("guard in act", "act"),
)
_WARM_UP_ROUNDS = 5
_PEER_PACKAGES = {name: package for name, package, _ in PEERS}


@dataclass(frozen=True, kw_only=True)
class TrainerSize:
    """One model to measure on."""

    name: str
    model: ModelConfig
    batch_size: int
    share: float
    """Of the rounds that are asked for."""


SIZES = (
    TrainerSize(name="d=64, 3 layers", model=ModelConfig(), batch_size=16, share=1.0),
    TrainerSize(
        name="d=512, 2 layers",
        model=ModelConfig(width=512, num_layers=2, num_heads=8, context_tokens=128),
        batch_size=4,
        share=0.375,
    ),
)
"""About 0.2 and 6.6 million parameters."""


def run_trainer_bench(*, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, say a line per trainer and what watches it, and return the figures as JSON values.

    Args:
        rounds: Steps of each loop on the small model, 3/8 of it on the large one; at least ten.
        say: Shows one line to the user.
    """
    text = load_text(None)
    rows: list[dict[str, Any]] = []
    say(
        f"time of a step over that of the same trainer bare, {torch.get_num_threads()} threads, in"
        f" turns; load {_load()}"
    )
    for size in SIZES:
        say(f"  {size.name}, {size.batch_size} x {size.model.context_tokens} tokens")
        for loop in LOOPS:
            missing = [p for p in loop.packages if not is_installed(p)]
            if missing:
                say(f"    {loop.name:<18} {' and '.join(missing)} not installed")
                rows.append({"size": size.name, "trainer": loop.name, "installed": False})
                continue
            steps = max(round(rounds * size.share / BLOCK_STEPS), 1) * BLOCK_STEPS
            rows += _measure(loop, size, steps, text, say)
    say(f"load at the end {_load()}")
    return {"trainers": rows, "trainer_rounds": rounds}


def _measure(
    loop: Loop, size: TrainerSize, rounds: int, text: Text, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    times: dict[str, list[float]] = {}
    for _ in range(rounds // BLOCK_STEPS):
        with tempfile.TemporaryDirectory() as folder:
            paced = _loops(loop, size, BLOCK_STEPS, text, Path(folder))
            block = time_in_turns(paced, rounds=BLOCK_STEPS, warm_up=_WARM_UP_ROUNDS)
        for name, seconds in block.items():
            times.setdefault(name, []).extend(seconds)
    bare = [(a + b) / 2 for a, b in zip(times[_BARE], times[_CONTROL], strict=True)]
    step_ms = 1e3 * statistics.median(bare)
    say(f"    {loop.name:<18} a step of {step_ms:.1f} ms")
    rows = []
    for name in times:
        if name == _BARE:
            continue
        ratios = block_ratios(times[name], times[_BARE] if name == _CONTROL else bare)
        low, high = interval(ratios)
        middle = float(np.median(ratios))
        say(f"      {name:<56} {middle:6.3f}  [{low:.3f}, {high:.3f}]")
        rows.append(
            {
                "size": size.name,
                "trainer": loop.name,
                "beside": name,
                "step_ms": step_ms,
                "ratio": middle,
                "low": low,
                "high": high,
                "blocks": len(ratios),
            }
        )
    return rows


def _loops(
    loop: Loop, size: TrainerSize, rounds: int, text: Text, folder: Path
) -> dict[str, Paced]:
    """Return the loops of one trainer, each with a model of its own, for some rounds."""
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=size.model,
        batch_size=size.batch_size,
        warmup_steps=10,
        steps=rounds + _WARM_UP_ROUNDS + 20,
    )
    threads = torch.get_num_threads()
    kinds: dict[str, tuple[Callable[[TrainingPlace], None], Mode | None]] = {
        _BARE: (loop.train, None)
    }
    kinds |= {name: (loop.train, mode) for name, mode in _GUARDS}
    kinds |= {
        name: (train, None)
        for name, train in loop.beside.items()
        if is_installed(_PEER_PACKAGES.get(name, ""))
    }
    kinds[_CONTROL] = (loop.train, None)
    paced = {}
    for number, (name, (train, mode)) in enumerate(kinds.items()):
        place = folder / str(number)
        place.mkdir()

        def run(
            pause: Callable[[], None],
            *,
            train: Callable[[TrainingPlace], None],
            mode: Mode | None,
            place: Path,
        ) -> None:
            train(
                TrainingPlace(parts=build(scenario, 0, text), folder=place, pause=pause, mode=mode)
            )

        paced[name] = Paced(partial(run, train=train, mode=mode, place=place), threads=threads)
    return paced


def _load() -> str:
    """Return how busy the machine is, processes of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"
