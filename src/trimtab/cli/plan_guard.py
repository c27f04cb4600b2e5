"""`trimtab plan guard`: what a guard of a run of a given size holds, sends and takes."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TypeAlias

from trimtab.errors import ConfigError
from trimtab.plan.guard_costs import (
    OPTIMIZERS,
    GuardCost,
    GuardLoad,
    bytes_text,
    guard_cost,
)

__all__ = ["add_guard"]

Kinds: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int]

_SIZES = (7e9, 70e9, 175e9)

_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "4bit": 0.5}


def add_guard(kinds: Kinds, run: Run) -> None:
    """Add `plan guard`."""
    parser = kinds.add_parser(
        "guard", help="what the guard of a run will hold, send and cost, by its size"
    )
    parser.add_argument(
        "--params", type=float, metavar="N", help="weights of the model; default: 7e9, 70e9, 175e9"
    )
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adamw")
    parser.add_argument("--world", type=int, default=64, metavar="N", help="ranks; default 64")
    parser.add_argument("--ranks-per-host", type=int, default=8, metavar="N", help="default 8")
    parser.add_argument(
        "--replicated",
        action="store_true",
        help="each rank holds the whole state (DDP); default: it is sharded over all ranks",
    )
    parser.add_argument(
        "--trainable",
        type=float,
        default=1.0,
        metavar="SHARE",
        help="share of the weights that trains; the rest is frozen and held once (LoRA)",
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--frozen-dtype", choices=sorted(_BYTES), default="bf16")
    parser.add_argument(
        "--state-dtype", choices=("fp32", "bf16"), help="of the optimizer's state; default: --dtype"
    )
    parser.add_argument(
        "--host-free-gib",
        type=float,
        default=1024.0,
        metavar="X",
        help="free memory of a host when training starts; default 1024",
    )
    parser.add_argument("--snapshots", type=int, default=16, metavar="N")
    parser.add_argument("--snapshot-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--checkpoint-every", type=int, default=200, metavar="STEPS")
    parser.add_argument("--checkpoints", type=int, default=5, metavar="N", help="kept on disk")
    parser.add_argument("--spill", action="store_true", help="snapshots go to a local disk")
    parser.add_argument(
        "--step-seconds", type=float, metavar="X", help="time of a step; default: not known"
    )
    parser.add_argument(
        "--copy-gb-s",
        type=float,
        default=5.0,
        metavar="X",
        help="speed of a copy from the device to the host, a rank; default 5",
    )
    parser.add_argument(
        "--disk-gb-s", type=float, default=1.0, metavar="X", help="of a checkpoint; default 1"
    )
    parser.set_defaults(run=run, plan=_guard)


def _guard(arguments: argparse.Namespace) -> tuple[list[str], dict[str, object]]:
    a = arguments
    if a.step_seconds is not None and not a.step_seconds > 0:
        raise ConfigError(f"--step-seconds is {a.step_seconds!r}, expected a positive number")
    if not a.host_free_gib > 0:
        raise ConfigError(f"--host-free-gib is {a.host_free_gib!r}, expected a positive number")
    load = GuardLoad(
        params=_SIZES[0] if a.params is None else a.params,
        optimizer=a.optimizer,
        world=a.world,
        ranks_per_host=a.ranks_per_host,
        sharded=not a.replicated,
        trainable=a.trainable,
        weight_bytes=_BYTES[a.dtype],
        frozen_bytes=_BYTES[a.frozen_dtype],
        state_bytes=_BYTES[a.state_dtype] if a.state_dtype else None,
        snapshots=a.snapshots,
        snapshot_every=a.snapshot_every,
        checkpoint_every=a.checkpoint_every,
        checkpoints=a.checkpoints,
        host_free_gib=a.host_free_gib,
        spill=a.spill,
        step_seconds=a.step_seconds,
        copy_gb_s=a.copy_gb_s,
        disk_gb_s=a.disk_gb_s,
    )
    sizes = _SIZES if a.params is None else (a.params,)
    loads = [replace(load, params=size) for size in sizes]
    costs = [guard_cost(one) for one in loads]
    lines = [line for one, cost in zip(loads, costs, strict=True) for line in _told(one, cost)]
    lines += _assumed(load)
    document: dict[str, object] = {
        "runs": [
            {"params": one.params, **_finite(asdict(cost))}
            for one, cost in zip(loads, costs, strict=True)
        ],
        "assumed": asdict(load),
    }
    return lines, document


def _finite(values: dict[str, object]) -> dict[str, object]:
    return {k: None if v == float("inf") else v for k, v in values.items()}


def _told(load: GuardLoad, cost: GuardCost) -> list[str]:
    where = "on the local disk" if load.spill else "in host memory"
    held = f", beside {bytes_text(cost.held_once)} of frozen weights held once"
    lines = [
        f"{load.params:.3g} weights, {load.optimizer}, {load.world} ranks:"
        + (
            f" {cost.kept} of {load.snapshots} snapshots fit {where}"
            if cost.kept
            else " no snapshot fits: act refuses to start"
        ),
        f"  one snapshot      {bytes_text(cost.snapshot)} a rank"
        + (held if cost.held_once else ""),
        f"  host memory       {bytes_text(cost.memory)} a rank, {bytes_text(cost.memory_host)} a"
        f" host, of a budget of {bytes_text(cost.budget)} a rank;"
        f" for a moment {bytes_text(cost.snapshot)} more a rank while a checkpoint is written in"
        f" the background, and {bytes_text(cost.going_back)} while a state is put back",
        f"  reaches back      {cost.kept * cost.snapshot_every} steps in memory, then"
        f" {load.checkpoints} checkpoints"
        if not load.spill
        else f"  reaches back      {cost.kept * cost.snapshot_every} steps, then"
        f" {load.checkpoints} checkpoints",
        f"  checkpoints       {bytes_text(cost.checkpoint)} each on disk,"
        f" {bytes_text(cost.checkpoints)} in all; written in"
        f" {cost.checkpoint_seconds:.3g} s in the background",
        f"  sent              {bytes_text(cost.sent_per_step)} a rank and step",
        f"  training waits    {cost.snapshot_seconds:.3g} s for a snapshot, every"
        f" {cost.snapshot_every} steps",
    ]
    if cost.share_of_step is not None:
        lines[-1] += f": {cost.share_of_step:.2%} of the time with steps of {load.step_seconds:g} s"
    return lines


def _assumed(load: GuardLoad) -> list[str]:
    state = load.state_bytes or load.weight_bytes
    return [
        f"assumed: {OPTIMIZERS[load.optimizer]:g} numbers of {state:g} bytes of optimizer state a"
        f" weight of {load.weight_bytes:g} bytes;"
        f" {'sharded over all ranks' if load.sharded else 'whole on every rank'};"
        f" {load.ranks_per_host} ranks a host with {load.host_free_gib or 0:g} GiB free at the"
        f" start, {load.snapshot_share:g} of it for snapshots; copies at {load.copy_gb_s:g} GB/s,"
        f" the disk at {load.disk_gb_s:g} GB/s a rank",
        "not measured: python -m benchmarks guard-plan compares the model with runs at several"
        " sizes and numbers of ranks",
    ]
