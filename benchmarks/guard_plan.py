"""Holds what `trimtab plan guard` prints against guarded runs: sizes, ranks, layouts, budgets.

Each case trains a small language model with snapshots at every few steps, and reads off what the
plan predicts: bytes of one snapshot, of all that are held, of a checkpoint on disk, what ranks send
each other, and the time of a snapshot at the speed with which this machine copies.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.state_cost import SIZES, parts_of_size
from trimtab.guard import Guard
from trimtab.guard.state.state_copy import state_bytes
from trimtab.lab.model import next_token_loss
from trimtab.lab.ranks import on_ranks
from trimtab.plan.guard_costs import GIB, GuardCost, GuardLoad, guard_cost
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES", "Case", "measure_plan", "run_plan_bench"]

_EVERY = 1
_STEPS = 18


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run to hold the plan against."""

    size: str
    ranks: int = 1
    layout: str = "ddp"
    """ddp: each rank holds all; fsdp: shards."""
    optimizer: str = "adamw"
    frozen: bool = False
    """Whether all but the last block and the norms are frozen."""
    room: float | None = None
    """Budget in snapshots; None: no limit that matters."""


_SMALL, _MIDDLE, _LARGE = SIZES

CASES = (
    Case(size=_SMALL),
    Case(size=_MIDDLE),
    Case(size=_LARGE),
    Case(size=_SMALL, optimizer="muon"),
    Case(size=_MIDDLE, optimizer="sgd-momentum"),
    Case(size=_MIDDLE, frozen=True),
    Case(size=_MIDDLE, room=4.5),
    Case(size=_SMALL, ranks=2),
    Case(size=_MIDDLE, ranks=2),
    Case(size=_MIDDLE, ranks=2, layout="fsdp"),
    Case(size=_SMALL, ranks=4, layout="fsdp"),
)


def run_plan_bench(
    *, say: Callable[[str], None], cases: tuple[Case, ...] = CASES
) -> dict[str, Any]:
    """Measure every case and say a line each; return JSON values.

    Args:
        say: Shows one line to the user.
        cases: What to run.
    """
    say("what the plan prints over what was measured, per rank")
    rows = []
    for case in cases:
        row = measure_plan(case)
        name = f"{case.size}, {case.optimizer}, {case.ranks} x {case.layout}"
        name += ", frozen" if case.frozen else ""
        name += f", room for {case.room:g}" if case.room else ""
        ratios = {k: row["plan"][k] / row["measured"][k] for k in row["plan"] if row["measured"][k]}
        row["ratios"] = ratios
        said = "   ".join(f"{k} {v:.3f}" for k, v in ratios.items())
        say(f"  {name:<46} {row['measured']['snapshot'] / 1e6:8.2f} MB a snapshot   {said}")
        rows.append(row)
    bytes_off = max(
        abs(v - 1) for row in rows for k, v in row["ratios"].items() if k != "snapshot_seconds"
    )
    say(f"  furthest off, but for the time: {bytes_off:.1%}")
    return {"schema": 1, "rows": rows, "furthest_off": bytes_off}


def measure_plan(case: Case) -> dict[str, Any]:
    """Run one case; return what the plan says and what was measured.

    Raises:
        ActError: A rank ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        row: dict[str, Any] = on_ranks(case.ranks, _measure, asdict(case), folder)
        return row


def _measure(given: dict[str, Any], folder: str) -> dict[str, Any]:
    case = Case(**given)
    parts, loader = parts_of_size(case.size)
    net: Any = parts.model
    if case.frozen:
        kept = [p for n, p in net.named_parameters() if "norm" in n or ".0." in n]
        for p in net.parameters():
            p.requires_grad_(any(p is q for q in kept))
    shared = dist.is_initialized()
    if case.layout == "fsdp":
        net = fully_shard(net)
    elif shared:
        net = DistributedDataParallel(net)
    load = _load_of(case, list(parts.model.parameters()))
    plan, room_gib = _plan_of(load, case.room)
    guard = Guard(
        net,
        _optimizers(case, net),
        data=loader,
        clip=1.0,
        steps=parts.scenario.steps,
        run=Path(folder) / "run",
        say=lambda _line: None,
        policy=Policy(
            mode="act",
            checkpoint_every_steps=10**9,
            snapshot_every_steps=_EVERY,
            checkpoint_in_background=False,
            snapshot_memory_gib=room_gib,
        ),
    )
    sent = _count_sent(guard)
    batches = iter(guard)
    points = guard._parts.points
    most = 0
    for step in range(_STEPS):
        guard.backward(next_token_loss(net, next(batches)["tokens"]))
        guard.step()
        if step == 3:
            sent[0] = 0  # the first steps agree on the start
        most = max(most, _held(points, guard))
    steps = guard.step_number - 4
    sent_per_step = sent[0] / max(steps, 1)
    gc.collect()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        points._state.copier.copy(points._state.payload())
        seconds.append(time.perf_counter() - started)
    newest = points.ring.items[-1]
    once = guard._parts.state.copier.held
    own = state_bytes(newest.payload, without=once)
    kept_now = len(points.ring.items)
    guard._engine.save_checkpoint("bench")
    guard._engine.store.finish(wait=True)
    if shared:
        dist.barrier()
    saved = max((Path(folder) / "run" / "checkpoints").glob("step-*"))
    on_disk = sum(f.stat().st_size for f in (saved / "tensors").rglob("*") if f.is_file())
    guard.close()
    measured = {
        "snapshot": own,
        "held_once": state_bytes(once),
        "kept": kept_now,
        "memory": most,
        "checkpoint": on_disk,
        "sent_per_step": sent_per_step,
        "snapshot_seconds": statistics.median(seconds),
    }
    return {
        "case": given,
        "params": load.params,
        "plan": _printed(plan, load),
        "measured": measured,
    }


def _load_of(case: Case, parameters: list[torch.nn.Parameter]) -> GuardLoad:
    """Return a case as the planner takes it."""
    params = sum(p.numel() for p in parameters)
    return GuardLoad(
        params=params,
        optimizer=case.optimizer,
        world=case.ranks,
        sharded=case.layout == "fsdp",
        trainable=sum(p.numel() for p in parameters if p.requires_grad) / params,
        frozen_bytes=4,
        layers=SIZES[case.size][0].num_layers,
        snapshot_every=_EVERY,
        copy_gb_s=_copy_speed(),
    )


def _plan_of(load: GuardLoad, room: float | None) -> tuple[GuardCost, float]:
    """Return the plan, and the budget that leaves room for so many snapshots, GiB; 0: none."""
    plan = guard_cost(load)
    if room is None:
        return plan, 0.0
    limit = plan.held_once + room * plan.snapshot
    here = min(load.ranks_per_host, load.world)
    free = limit * here / load.snapshot_share / GIB
    return guard_cost(replace(load, host_free_gib=free)), limit / GIB


def _printed(plan: GuardCost, load: GuardLoad) -> dict[str, float]:
    """Return the figures of a plan that are measured, too."""
    return {
        "snapshot": plan.snapshot,
        "held_once": plan.held_once,
        "kept": plan.kept,
        # the ring holds one more only while a new one is taken
        "memory": min(plan.kept, load.snapshots) * plan.snapshot + plan.held_once,
        "checkpoint": plan.checkpoint,
        "sent_per_step": plan.sent_per_step,
        "snapshot_seconds": plan.snapshot_seconds,
    }


def _optimizers(case: Case, net: Any) -> Any:
    trained = [p for p in net.parameters() if p.requires_grad]
    if case.optimizer == "muon":
        flat = [p for p in trained if p.dim() != 2]
        muon = torch.optim.Muon([p for p in trained if p.dim() == 2], lr=1e-3)
        return [muon, torch.optim.SGD(flat, lr=1e-3, momentum=0.9)]
    if case.optimizer == "sgd-momentum":
        return torch.optim.SGD(trained, lr=1e-3, momentum=0.9)
    return torch.optim.AdamW(trained, lr=1e-3)


def _held(points: Any, guard: Any) -> int:
    ring = [s.payload for s in points.ring.items]
    once = guard._parts.state.copier.held
    return state_bytes(ring, without=once) + state_bytes(once)


def _count_sent(guard: Any) -> list[int]:
    """Count the bytes that a rank gets from the others; the count is the first element."""
    sent = [0]
    ranks = guard._ranks
    gather, gather_tensor = ranks.gather, ranks.gather_tensor

    def counted(values: Any) -> Any:
        sent[0] += 8 * len(values) * (ranks.count - 1)
        return gather(values)

    def counted_tensor(mine: torch.Tensor) -> torch.Tensor:
        sent[0] += mine.nbytes * (ranks.count - 1)
        found: torch.Tensor = gather_tensor(mine)
        return found

    ranks.gather, ranks.gather_tensor = counted, counted_tensor
    return sent


def _copy_speed() -> float:
    """Return with how many 10^9 bytes a second this process copies into fresh memory."""
    source = torch.rand(1 << 22)
    times = []
    for _ in range(7):
        started = time.perf_counter()
        source.clone()
        times.append(time.perf_counter() - started)
    return source.nbytes / statistics.median(times) / 1e9
