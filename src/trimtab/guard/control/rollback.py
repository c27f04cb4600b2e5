"""Going back by hand, and taking a change back: a dry run first, done once it is confirmed.

What raises a learning rate or gives up steps is a dry run unless `confirm=True`. Both are
journalled, so that the journal shows who was warned of what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.errors import ActError, ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.state.decisions import Decisions
from trimtab.guard.step import actuators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.guard.control.action_log import ActionLog
    from trimtab.guard.control.gate import CallGate
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.state.starting_rng import StartingRng
    from trimtab.guard.step.run_context import RunContext

__all__ = ["Rollbacks"]

_UNDONE = (
    "lower-lr",
    "tighten-clip",
    "lower-clip",
    "skip-data",
    "adam-beta2",
    "adam-eps",
    "set-optimizer",
    "loss-scaler-reset",
    "fp32",
    "bf16",
    "put-back",
)
"""Remedies that can be taken back."""


@dataclass(frozen=True)
class _Inverse:
    """One thing to take back."""

    what: str
    do: Callable[[], object]
    raises_lr: bool = False


class Rollbacks:
    """Goes back, and takes changes back."""

    def __init__(
        self,
        parts: RunContext,
        *,
        gate: CallGate,
        log: ActionLog,
        recovery: Recovery,
        start: StartingRng,
        end: Callable[[str], None],
    ) -> None:
        """Act on a run.

        Args:
            parts: Of the run.
            gate: Refuses calls that come at the wrong time.
            log: Writes down what was done, or would be.
            recovery: Says whether a probe or trial is under way.
            start: Random states that the loop begins with.
            end: Ends the run, for a reason.
        """
        self._parts = parts
        self._gate = gate
        self._log = log
        self._recovery = recovery
        self._start = start
        self._end = end

    def undo(self, remedy: str, *, why: str, confirm: bool = False) -> str:
        """See `Control.undo`."""
        self._check_between("undo", why)
        found, others = self._parts.ranks.agree(
            lambda: (self._last_standing(remedy), [r for r in _UNDONE if self._last_standing(r)])
        )
        if found is None:
            raise ConfigError(
                f"undo({arguments.shown(remedy)}): no such change stands; in force:"
                f" {', '.join(others) or 'none'}; what can be undone: {', '.join(_UNDONE)}"
            )
        inverse = self._inverse(remedy, found)
        if inverse is None:
            raise ConfigError(
                f"undo({remedy!r}): it cannot be taken back in mid-run; go back to a checkpoint "
                "from before it with roll_back(step, why=...)"
            )
        if inverse.raises_lr and not confirm:
            return self._log.dry_run(
                f"undo {remedy}", inverse.what, "it raises the learning rate", why
            )
        inverse.do()
        values = {"undid": inverse.what, "id": found["id"], "confirmed": confirm}
        self._log.note(f"undo {remedy}", values, why, told=inverse.what)
        return inverse.what

    def roll_back(
        self, step: int, *, why: str, lr_factor: float = 1.0, confirm: bool = False
    ) -> str:
        """See `Control.roll_back`."""
        self._check_between("roll_back", why)
        state, points, now = self._parts.state, self._parts.points, self._parts.state.counters.step
        step = arguments.whole("roll_back", step)
        lr_factor = arguments.rate_factor("roll_back: lr_factor=", lr_factor)
        if step > now:
            raise ConfigError(
                f"roll_back({step}): the run is at step {now}; expected a step before it"
            )
        target = points.at_or_before(step)
        if target is None:
            oldest = points.oldest_step()
            there = "there is none yet" if oldest is None else f"the oldest is of step {oldest}"
            raise ActError(
                f"roll_back({step}): no whole and healthy state lies at or before it; {there}"
            )
        problem = state.misfit(target)
        if problem:
            raise ActError(f"roll_back({step}): {problem}; nothing was changed")
        what = f"go back from step {now} to {target.step}, {now - target.step} steps given up"
        what += f", learning rate x {lr_factor:g}" if lr_factor < 1 else ""
        if not confirm:
            return self._log.dry_run("roll back", what, "it gives up steps", why)
        raised = state.raised_by(target)
        if raised:
            points.store.note(raised)
        points.set_aside_after(target, first_sign=target.step + 1, now=now, why=why)
        points.ring.drop_after(target.step)
        state.restore(target)
        self._start.begin_from(target.payload["rng"])
        if lr_factor < 1:
            state.decisions.cut_lr(target.step + 1, lr_factor)
        state.decisions.count_rollback()
        state.begin_attempt(
            parent=target.attempt, parent_step=target.step, why=f"by hand: {why}", trial=False
        )
        self._recovery.begin_branch()
        remedy = "roll-back" + ("+lower-lr" if lr_factor < 1 else "")
        values: dict[str, object] = {
            "to_step": target.step,
            "from_step": now,
            "factor": lr_factor,
            "confirmed": True,
        }
        self._log.note(remedy, values, why, told=what)
        return what

    def start_over(self, *, why: str, confirm: bool = False) -> str:
        """See `Control.start_over`."""
        self._check_between("start_over", why)
        state, points, step = self._parts.state, self._parts.points, self._parts.state.counters.step
        next_major = state.decisions.major + 1
        what = f"start over as {next_major}.0: all {step} steps given up, checkpoints moved aside"
        if not confirm:
            return self._log.dry_run("start over", what, "it gives up the whole lineage", why)
        points.store.set_aside_after(-1, first_sign=math.inf, now=step, why=why)
        ended = state.decisions
        state.set_decisions(Decisions(row=ended.row, major=next_major))
        self._log.note("start-over", {"from_step": step, "confirmed": True}, why, told=what)
        # what this process reports at its end is of the lineage that it trained
        state.set_decisions(ended)
        points.adopt(step)  # nothing of it is saved at the end
        self._end("started over")
        self._log.say(f"run the script again: it begins as {next_major}.0")
        return what

    def _check_between(self, call: str, why: str) -> None:
        self._gate.check_reason(call, why)
        if self._gate.in_step:
            raise ConfigError(
                f"{call}(): a step is under way; call it after guard.step(), or after"
                " guard.drop_batch(why=...)"
            )
        if self._recovery.busy:
            raise ConfigError(
                f"{call}(): a {self._recovery.phase} is under way; wait until guard.phase is calm"
            )

    def _last_standing(self, remedy: str) -> dict[str, Any] | None:
        """Return the values of the last action with a remedy that was not undone; `id` names it."""
        undone: set[int] = set()
        standing: dict[str, Any] | None = None
        actions = self._parts.recorder.live.events("action")
        for e in actions:
            values = e.data.get("values")
            if str(e.data.get("remedy", "")) == f"undo {remedy}" and isinstance(values, dict):
                undone.add(values["id"] if isinstance(values.get("id"), int) else -1)
        for number, e in enumerate(actions):
            values = e.data.get("values")
            parts = str(e.data.get("remedy", "")).split("+")
            if remedy in parts and isinstance(values, dict) and number not in undone:
                standing = {**values, "id": number}
        return standing

    def _without_limit(self, limit: float) -> _Inverse | None:
        decisions = self._parts.state.decisions
        limits, holds = decisions.lr_limits, decisions.lr_holds
        what = f"no longer hold the learning rate at {limit:g}"
        hold = next((h for h in reversed(holds) if math.isclose(h[2], limit)), None)
        if hold is not None:
            return _Inverse(what, lambda: holds.remove(hold), raises_lr=not hold[1])
        held = next((c for c in reversed(limits) if math.isclose(c[1], limit)), None)
        if held is None:
            return None
        return _Inverse(what, lambda: limits.remove(held), raises_lr=True)

    def _release(self) -> None:
        """Hold no setting any longer."""
        held = self._parts.state.decisions.held_settings
        self._parts.settings.release(dict.fromkeys(held, ()))
        held.clear()

    def _inverse(self, remedy: str, values: Mapping[str, Any]) -> _Inverse | None:
        """Return how to take back what `values` set; None where there is no way."""
        state, data = self._parts.state, self._parts.data
        decisions = state.decisions
        if remedy == "lower-lr":
            if values.get("lr_limit") is not None:
                return self._without_limit(float(values["lr_limit"]))
            factor = float(values.get("factor", math.nan))
            cut = next((c for c in reversed(decisions.lr_cuts) if math.isclose(c[1], factor)), None)
            if cut is None:
                return None
            return _Inverse(
                f"take the factor {factor:g} off the learning rate",
                lambda: decisions.uncut_lr(cut),
                raises_lr=True,
            )
        if remedy in ("tighten-clip", "lower-clip") and values.get("clip_factor"):
            factor = float(values["clip_factor"])
            return _Inverse(
                f"divide the clip's factor by {factor:g}",
                lambda: decisions.unscale_clip(factor),
            )
        if remedy == "skip-data" and values.get("skip_samples"):
            first, last = map(int, values["skip_samples"])
            return _Inverse(
                f"feed samples {first}-{last} when their place comes again",
                lambda: data.unskip(first, last),
            )
        names = [n for n in actuators.OPTIMIZER_SETTINGS if n in values]
        if names and remedy in ("adam-beta2", "adam-eps", "set-optimizer"):
            # decided on, and not only dropped: what was saved meanwhile would bring it back
            launched = {n: actuators.launched_setting(state, n) for n in names}
            kept = {**decisions.optimizer_settings, **launched}
            return _Inverse(
                f"{', '.join(names)} as launched", lambda: actuators.withdraw(state, names, kept)
            )
        if remedy == "loss-scaler-reset" and values.get("before"):
            before = float(values["before"])
            return _Inverse(
                f"loss scale back to {before:g}", lambda: actuators.set_scaler(state, before)
            )
        if remedy == "put-back" and decisions.held_settings:
            told = ", ".join(decisions.held_settings)
            return _Inverse(f"no longer hold {told}; what the loop sets next stays", self._release)
        if remedy in ("fp32", "bf16"):
            return _Inverse(
                "the forward pass in its own format", lambda: self._parts.precision.set("")
            )
        return None
