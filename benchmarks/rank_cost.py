"""Measures the one small reduction of each step that keeps all ranks in agreement."""

from __future__ import annotations

import statistics
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.distributed.step_reduction import StepShare
from trimtab.lab.ranks import on_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["run_rank_bench"]

COUNTS = (1, 2, 4)
_ROUNDS = 300
_WARM_UP = 20
_LAYERS = 32
"""Blocks of the model whose full reading is timed: one of 7 billion parameters has so many."""
_NUMBERS = 17 + 5 * _LAYERS
"""Doubles in it: those of the whole model and five for each block."""


def run_rank_bench(*, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, say a line per number of ranks, and return the figures as JSON values."""
    say("one verdict on all ranks: the reduction, gloo, processes of this machine")
    rows = []
    for count in COUNTS:
        small, full = on_ranks(count, _time_gathers)
        rows.append({"ranks": count, "step_us": 1e6 * small, "reading_us": 1e6 * full})
        say(
            f"  {count} rank{'s' if count > 1 else ' '}   every step {1e6 * small:8.0f} us   "
            f"full reading of {_LAYERS} layers, every tenth step {1e6 * full:8.0f} us"
        )
    return {"reduction": rows}


def _time_gathers() -> tuple[float, float]:
    """Return the median time of both reductions on this rank, seconds."""
    ranks = Ranks()
    return (
        _time(ranks, [0.5] * len(fields(StepShare))),
        _time(ranks, [0.5] * _NUMBERS),
    )


def _time(ranks: Ranks, numbers: list[float]) -> float:
    taken = []
    for _ in range(_ROUNDS + _WARM_UP):
        started = time.perf_counter()
        ranks.gather(numbers)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[_WARM_UP:])
