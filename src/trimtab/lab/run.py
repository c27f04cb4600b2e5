"""Runs one scenario, seed and guard mode: train, evaluate, compare with the healthy twin."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trimtab.guard import Guard
from trimtab.lab.ranks import on_ranks
from trimtab.lab.scenarios import get_scenario, healthy_twin
from trimtab.lab.train import EVALUATION_BYTES, build, evaluate, forward, train
from trimtab.plan.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from trimtab.lab.scenarios import Scenario
    from trimtab.lab.text import Text
    from trimtab.lab.train import StepReport

__all__ = ["GuardMode", "GuardedRun", "LabResult", "run_guarded", "run_scenario", "run_unguarded"]

GuardMode = Literal["off", "observe", "advise", "act"]


@dataclass(frozen=True, kw_only=True)
class GuardedRun:
    """What a guarded run left."""

    final_loss: float
    """Validation loss of the final weights, nats per token."""
    losses: list[float]
    """Train loss of every step, trials included."""
    wasted_steps: float
    """See `LabResult`."""
    incidents: int
    actions: tuple[dict[str, object], ...]


@dataclass(frozen=True, kw_only=True)
class LabResult:
    """What came of one run; floats as measured, NaN where a run diverged."""

    scenario: str
    seed: int
    guard: GuardMode
    final_loss: float
    """Validation loss of the final weights, nats per token."""
    reference_loss: float
    """The same of the healthy twin."""
    wasted_steps: float
    """Steps not on the final lineage, share of the effective steps."""
    incidents: int
    actions: tuple[dict[str, object], ...]
    wall_s: float
    losses: tuple[float, ...] = field(default=(), repr=False)
    """Train loss of every step that was run, in the order it was run."""

    @property
    def ratio(self) -> float:
        """Final over reference loss; NaN for a diverged run."""
        return self.final_loss / self.reference_loss

    def to_json(self) -> dict[str, object]:
        """Return the public form; NaN and Inf as null."""
        return {
            "schema": 1,
            "scenario": self.scenario,
            "seed": self.seed,
            "guard": self.guard,
            "final_loss": _number(self.final_loss),
            "reference_loss": _number(self.reference_loss),
            "ratio": _number(self.ratio),
            "wasted_steps": _number(self.wasted_steps),
            "incidents": self.incidents,
            "actions": list(self.actions),
            "wall_s": self.wall_s,
        }


def run_scenario(
    name: str,
    seed: int,
    guard: GuardMode,
    text: Text,
    out: Path,
    *,
    reference_loss: float | None = None,
    say: Callable[[str], None] | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> LabResult:
    """Run a scenario and its healthy twin.

    Args:
        name: Scenario.
        seed: Weights, data order and damage.
        guard: off, observe, advise or act.
        text: What to train on.
        out: Run directory of the guarded run; not used with `off`.
        reference_loss: Validation loss of the twin, where it is known already.
        say: Shows the guard's lines.
        on_step: Called with (step, steps of the run, loss).

    Raises:
        ConfigError: No such scenario.
    """
    scenario = get_scenario(name)
    started = time.perf_counter()
    if reference_loss is None:
        reference_loss, _ = run_unguarded(healthy_twin(scenario), seed, text, on_step=on_step)
    if guard == "off":
        final, losses = run_unguarded(scenario, seed, text, on_step=on_step)
        wasted, incidents = 0.0, 0
        actions: tuple[dict[str, object], ...] = ()
    else:
        done = run_guarded(scenario, seed, text, out, guard, say=say, on_step=on_step)
        final, losses = done.final_loss, done.losses
        wasted, incidents, actions = done.wasted_steps, done.incidents, done.actions
    return LabResult(
        scenario=name,
        seed=seed,
        guard=guard,
        final_loss=final,
        reference_loss=reference_loss,
        wasted_steps=wasted,
        incidents=incidents,
        actions=actions,
        wall_s=time.perf_counter() - started,
        losses=tuple(losses),
    )


def run_unguarded(
    scenario: Scenario,
    seed: int,
    text: Text,
    *,
    on_step: Callable[[int, int, float], None] | None = None,
    evaluation_bytes: int = EVALUATION_BYTES,
    device: str = "cpu",
) -> tuple[float, list[float]]:
    """Return validation loss and train losses of the plain loop.

    On several ranks `on_step` is not called.
    """
    if scenario.ranks > 1:
        found: tuple[float, list[float]] = on_ranks(
            scenario.ranks, _train_plain, scenario, seed, text, evaluation_bytes, device
        )
        return found

    def report(step: StepReport) -> None:
        if on_step is not None:
            on_step(step.step, scenario.steps, step.loss)

    return _train_plain(scenario, seed, text, evaluation_bytes, device, report)


def _train_plain(
    scenario: Scenario,
    seed: int,
    text: Text,
    evaluation_bytes: int,
    device: str,
    on_step: Callable[[StepReport], None] | None = None,
) -> tuple[float, list[float]]:
    parts = build(scenario, seed, text, device=device)
    losses = train(parts, on_step=on_step)
    return evaluate(parts.model, text, max_bytes=evaluation_bytes), losses


def run_guarded(
    scenario: Scenario,
    seed: int,
    text: Text,
    out: Path,
    mode: Literal["observe", "advise", "act"],
    *,
    policy: Policy | None = None,
    say: Callable[[str], None] | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
    evaluation_bytes: int = EVALUATION_BYTES,
    device: str = "cpu",
) -> GuardedRun:
    """Return the outcome of a guarded run; on several ranks `say` and `on_step` are not called."""
    if scenario.ranks > 1:
        found: GuardedRun = on_ranks(
            scenario.ranks,
            _train_guarded,
            scenario,
            seed,
            text,
            out,
            mode,
            policy,
            evaluation_bytes,
            device,
        )
        return found
    return _train_guarded(
        scenario, seed, text, out, mode, policy, evaluation_bytes, device, say, on_step
    )


def _train_guarded(
    scenario: Scenario,
    seed: int,
    text: Text,
    out: Path,
    mode: Literal["observe", "advise", "act"],
    policy: Policy | None,
    evaluation_bytes: int,
    device: str,
    say: Callable[[str], None] | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
) -> GuardedRun:
    parts = build(scenario, seed, text, device=device)
    guard = Guard(
        parts.module,
        parts.optimizer,
        data=parts.loader,
        scheduler=parts.scheduler,
        scaler=parts.scaler,
        clip=scenario.clip_norm,
        steps=scenario.steps,
        run=out,
        mode=mode,
        policy=policy or Policy(act_uncertified=device != "cpu"),
        say=say or (lambda _line: None),
    )
    losses: list[float] = []
    for batch in guard:
        loss = forward(parts, batch)
        guard.backward(loss)
        # A probe feeds batches forward to look at their losses: no step is done, and none counts.
        probing = guard.phase == "probe"
        if not probing:
            # The number rises within `step`, and the fault is timed by the step under way.
            parts.planter.on_gradients(guard.step_number + 1)
        guard.step()
        if not probing:
            parts.planter.after_update(guard.step_number)
            losses.append(float(loss.detach()))
            if on_step is not None:
                on_step(guard.step_number, scenario.steps, losses[-1])
    return GuardedRun(
        final_loss=evaluate(parts.model, text, max_bytes=evaluation_bytes),
        losses=losses,
        wasted_steps=guard.wasted_steps,
        incidents=guard.num_incidents,
        actions=guard.actions,
    )


def _number(x: float) -> float | None:
    return x if math.isfinite(x) else None
