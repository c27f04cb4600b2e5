"""Measures what each probe of the guard and each monitor of other projects costs.

Every variant trains its own copy of the demo's model on the same batches; a round is one step of
each, in an order that turns. A variant's figure is the time of ten of its steps over that of ten
steps of the plain loop, and of a probe, that of the guard with it alone less that of the guard
without any. Medians, with 95 % intervals as in `bench`.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from benchmarks.guard_cost import BLOCK_STEPS, block_ratios, interval
from benchmarks.peer_monitors import PEERS, is_installed
from trimtab.guard import Guard
from trimtab.guard.probes.cadence import PROBES
from trimtab.lab.config import ModelConfig
from trimtab.lab.model import next_token_loss
from trimtab.lab.scenarios import Scenario
from trimtab.lab.text import load_text
from trimtab.lab.train import build
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.lab.train import Parts

__all__ = ["run_probe_bench"]

_WARM_UP_ROUNDS = 5
_PLAIN = "plain loop"
_NONE = "guard, no probes"
_ALL = "guard, all probes"


def run_probe_bench(*, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, say a line per variant, and return the figures as JSON values.

    Args:
        rounds: Steps of each variant; two of these make a reading of what is read every tenth step
            count for little, so give at least 40.
        say: Shows one line to the user.
    """
    scenario = Scenario(
        name="bench",
        title="",
        expect="untouched",
        expected_minutes=1.0,
        model=ModelConfig(),
        warmup_steps=10,
    )
    text = load_text(None)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_guards:
        steps: dict[str, Callable[[], None]] = {_PLAIN: _watched(build(scenario, 0, text), None)}
        for name, off in _variants().items():
            run = Path(folder) / str(len(steps))
            steps[name] = _guarded(build(scenario, 0, text), run, off, open_guards)
        for name, package, make in PEERS:
            if not is_installed(package):
                say(f"  {name:<58} not installed: pip install 'trimtab[bench]'")
                rows.append({"variant": name, "installed": False})
                continue
            place = Path(folder) / f"peer-{len(steps)}"
            place.mkdir()
            parts = build(scenario, 0, text)
            steps[name] = _watched(parts, make(parts, place))
        times = _rounds(steps, rounds)
    say(f"each probe and others' monitors, demo model, {rounds} steps each, share of a plain step")
    for name in steps:
        if name == _PLAIN:
            continue
        ratios = block_ratios(times[name], times[_PLAIN]) - 1.0
        if name in PROBES:
            ratios -= block_ratios(times[_NONE], times[_PLAIN]) - 1.0
        low, high = interval(ratios)
        middle = float(np.median(ratios))
        label = f"  probe {name}" if name in PROBES else name
        say(f"  {label:<58} {middle:+7.1%}  [{low:+.1%}, {high:+.1%}]")
        rows.append({"variant": name, "share": middle, "low": low, "high": high})
    return {"probes": rows, "probe_rounds": rounds, "block_steps": BLOCK_STEPS}


def _variants() -> dict[str, tuple[str, ...]]:
    """Return name and the probes that are off; what runs only after a broken loss has no cost."""
    alone = {
        name: tuple(p for p in PROBES if p != name)
        for name in PROBES
        if name not in ("overflow", "samples")
    }
    return {_NONE: PROBES, **alone, _ALL: ()}


def _rounds(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each step by variant."""
    names = list(steps)
    times: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds + _WARM_UP_ROUNDS):
        turn = i % len(names)
        for name in (*names[turn:], *names[:turn]):
            started = time.perf_counter()
            steps[name]()
            if i >= _WARM_UP_ROUNDS:
                times[name].append(time.perf_counter() - started)
    return times


def _guarded(
    parts: Parts, run: Path, off: tuple[str, ...], open_guards: contextlib.ExitStack
) -> Callable[[], None]:
    guard = Guard(
        parts.model,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        clip=parts.scenario.clip_norm,
        steps=parts.scenario.steps,
        run=run,
        say=lambda _line: None,
        policy=Policy(checkpoint_every_steps=10**9, probes_off=off),
    )
    open_guards.callback(guard.close)
    batches = iter(guard)

    def step() -> None:
        before = guard.step_number
        while guard.step_number == before:  # a reading of the yardstick comes on top of a step
            batch = next(batches)
            guard.backward(next_token_loss(parts.model, batch["tokens"]))
            guard.step()

    return step


def _watched(
    parts: Parts, watch: Callable[[torch.Tensor, torch.Tensor], None] | None
) -> Callable[[], None]:
    """The plain loop, with a monitor of another project in it or none."""
    batches = iter(parts.loader)
    clip = parts.scenario.clip_norm or float("inf")

    def step() -> None:
        batch = next(batches)
        parts.optimizer.zero_grad(set_to_none=True)
        loss = next_token_loss(parts.model, batch["tokens"])
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(parts.model.parameters(), clip)
        if watch is not None:
            watch(loss, norm)
        parts.optimizer.step()
        parts.scheduler.step()
        loss.item(), norm.item()

    return step
