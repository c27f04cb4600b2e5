"""Measures what it costs that rows outlive a power cut, at a step of 100 ms, on one disk.

Two guards train the same small model in one process, one that brings its rows to disk as the policy
says by default and one that leaves that to the system. A step is a real one and a wait, so that it
lasts 100 ms: what other programs do to the processor would hide a difference of a thousandth. The
order within a pair alternates. A sync falls on every 50th step, so a ratio is that of 50 pairs in a
row.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.guard_cost import interval
from trimtab.checkpoints.manifest import commit
from trimtab.chronicle.journal import Journal
from trimtab.durable import write_whole
from trimtab.guard import Guard
from trimtab.lab.config import ModelConfig
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import build
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

__all__ = ["DurabilityCost", "durability_table", "measure_durability"]

STEP_S = 0.1
BUDGET = 1.01
_WARM_UP_PAIRS = 20
_BLOCK_STEPS = Policy().sync_rows_every_steps
_NEVER = {"sync_rows_every_steps": 10**9, "sync_rows_every_s": 1e6}
_CHECKPOINT_MB = 10


@dataclass(frozen=True, kw_only=True)
class DurabilityCost:
    """What was measured on one disk."""

    pairs: int
    step_ms: float
    """Median step whose rows are left to the system."""
    ratio: float
    """Time of 50 steps whose rows are brought to disk over that of 50 whose rows are not."""
    ratio_low: float
    ratio_high: float
    append_ms: float
    """One event of the journal: the call returns when it is on disk."""
    verdict_ms: float
    """One small file written whole."""
    commit_ms: float
    """One checkpoint of `commit_mb` that is written already: hashed, synced, renamed."""
    commit_mb: int = _CHECKPOINT_MB

    @property
    def within_budget(self) -> bool:
        """Whether even the upper end of the interval is at most 1 %."""
        return self.ratio_high <= BUDGET

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values."""
        return asdict(self) | {"budget": BUDGET, "within_budget": self.within_budget}


def measure_durability(where: Path, *, pairs: int) -> DurabilityCost:
    """Measure on the disk that holds a folder.

    Args:
        where: The folder; a folder inside it is made and removed.
        pairs: Pairs of steps, rounded up to whole blocks; 0.2 s each.
    """
    with tempfile.TemporaryDirectory(dir=where, prefix="trimtab-durability-") as folder:
        synced, unsynced = _steps(Path(folder), -(-pairs // _BLOCK_STEPS) * _BLOCK_STEPS)
        blocks = np.array([synced, unsynced]).reshape(2, -1, _BLOCK_STEPS).sum(axis=2)
        ratios = blocks[0] / blocks[1]
        low, high = interval(ratios)
        return DurabilityCost(
            pairs=len(synced),
            step_ms=1e3 * statistics.median(unsynced),
            ratio=float(np.median(ratios)),
            ratio_low=low,
            ratio_high=high,
            append_ms=_time_append(Path(folder) / "journal.jsonl"),
            verdict_ms=_median_ms(lambda: write_whole(Path(folder) / "verdict.json", bytes(400))),
            commit_ms=_time_commit(Path(folder) / "checkpoints"),
        )


def _steps(folder: Path, pairs: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each step, rows synced and not."""
    guards, steps = [], []
    for name, settings in (("synced", {}), ("unsynced", _NEVER)):
        guard, step = _guarded(folder / name, settings)
        guards.append(guard)
        steps.append(step)
    bare = [_seconds(step) for _ in range(_WARM_UP_PAIRS) for step in steps]
    wait = max(STEP_S - statistics.median(bare), 0.0)
    times: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 else (1, 0):
            started = time.perf_counter()
            time.sleep(wait)
            steps[which]()
            times[which].append(time.perf_counter() - started)
    for guard in guards:
        guard.close()
    return times


def _guarded(run: Path, settings: dict[str, Any]) -> tuple[Guard, Callable[[], None]]:
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=ModelConfig(width=32, num_layers=1, context_tokens=32),
        batch_size=4,
        warmup_steps=10,
    )
    parts = build(scenario, 0, load_text(None))
    guard = Guard(
        parts.model,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        clip=scenario.clip_norm,
        steps=10**6,
        run=run,
        say=lambda _line: None,
        policy=Policy(checkpoint_every_steps=10**9, **settings),
    )
    batches: Iterator[Any] = iter(guard)

    def step() -> None:
        guard.backward(next_token_loss(parts.model, next(batches)["tokens"]))
        guard.step()

    return guard, step


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _median_ms(work: Callable[[], object], times: int = 200) -> float:
    return 1e3 * statistics.median(_seconds(work) for _ in range(times))


def _time_append(path: Path) -> float:
    journal = Journal(path)
    event = {"author": "trimtab", "text": "x" * 200}
    cost = _median_ms(lambda: journal.append("note", attempt="1.0", step=1, **event))
    journal.close()
    return cost


def _time_commit(folder: Path) -> float:
    """Return the median milliseconds in which a written folder becomes a checkpoint."""
    found = []
    for step in range(1, 11):
        partial, final = folder / f"{step}.partial", folder / f"step-{step:08d}"
        (partial / "tensors").mkdir(parents=True)
        data = np.random.default_rng(step).bytes(_CHECKPOINT_MB * 10**6)
        (partial / "tensors" / "0.distcp").write_bytes(data)
        (partial / "state.json").write_text("{}", encoding="utf-8")
        began = time.perf_counter()
        commit(partial, final, step=step, attempt="1.0")
        found.append(time.perf_counter() - began)
    return 1e3 * statistics.median(found)


def durability_table(cost: DurabilityCost) -> str:
    """Return the figures as lines."""
    verdict = "within" if cost.within_budget else "ABOVE"
    return "\n".join(
        (
            f"rows synced as by default over left to the system, step {cost.step_ms:.1f} ms:",
            f"  ratio {cost.ratio:.4f} [{cost.ratio_low:.4f}, {cost.ratio_high:.4f}] over"
            f" {cost.pairs} pairs in blocks of {_BLOCK_STEPS}, {verdict} {BUDGET - 1:.0%}",
            f"  one event of the journal    {cost.append_ms:8.2f} ms",
            f"  one verdict.json            {cost.verdict_ms:8.2f} ms",
            f"  one commit of {cost.commit_mb} MB         {cost.commit_ms:8.1f} ms",
        )
    )
