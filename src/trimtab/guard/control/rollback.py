"""Taking a change back, and going back by hand: told first, done only when it is confirmed.

What raises a learning rate or gives up steps is a dry run unless `confirm=True`; both are
journalled, so that it can be read who was warned of what.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.errors import ActError, ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.loop.loss_accumulator import Batches
from trimtab.guard.state.decisions import Decisions
from trimtab.guard.step import actuators

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


__all__ = ["Undoing"]

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
)
"""Remedies that can be taken back."""


@dataclass(frozen=True)
class _Inverse:
    """One thing to take back."""

    what: str
    do: Callable[[], object]
    raises_lr: bool = False


class Undoing(Batches):
    """The part of `Guard` that takes changes back."""

    _rng_at_start: dict[str, Any] | None
    """Random states that the loop begins with; None: those in force."""

    def undo(self, remedy: str, *, why: str, confirm: bool = False) -> str:
        """Take back the last change of a kind that stands; return what was, or would be, done.

        A lowered rate comes back to the schedule's, which raises it: that is only told and
        journalled, unless it is confirmed. Weights and moments stay as they are; what a rollback
        moved aside lies in `aside/` and is moved back by hand. Call it between steps, on all ranks.

        Args:
            remedy: As in the action: lower-lr, tighten-clip, lower-clip, skip-data, adam-beta2,
                adam-eps, set-optimizer, loss-scaler-reset, fp32, bf16.
            why: For the journal.
            confirm: Do it although it raises the learning rate.

        Raises:
            ConfigError: No reason is given, no such change stands, it cannot be undone, or the run
                has ended.
        """
        self._check_call("undo", why)
        engine = self._engine
        found, others = engine.ranks.agree(
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
            return self._only_tell(
                f"undo {remedy}", inverse.what, "it raises the learning rate", why
            )
        inverse.do()
        values = {"undid": inverse.what, "id": found["id"], "confirmed": confirm}
        self._note_action(f"undo {remedy}", values, why, told=inverse.what)
        return inverse.what

    def roll_back(
        self, step: int, *, why: str, lr_factor: float = 1.0, confirm: bool = False
    ) -> str:
        """Go back to the newest state at or before a step, and lower the rate with it if asked to.

        One action with one record. It gives up steps, so it is only told and journalled unless it
        is confirmed. Checkpoints after it are moved aside, not deleted. Call it between steps, on
        all ranks.

        Args:
            step: Where to go back to, at the latest.
            why: For the journal.
            lr_factor: Factor on the learning rate from there on; at most 1.
            confirm: Do it.

        Raises:
            ConfigError: No reason is given, the step is still to come, the factor is not in (0, 1],
                a trial is under way, or the run has ended.
            ActError: There is no state so far back, it does not fit what is trained now, or the
                disk refuses; then nothing was put back.
        """
        self._check_call("roll_back", why)
        engine, now = self._engine, self._engine.counters.step
        step = arguments.whole("roll_back", step)
        lr_factor = arguments.number("roll_back: lr_factor=", lr_factor)
        if step > now:
            raise ConfigError(
                f"roll_back({step}): the run is at step {now}; expected a step before it"
            )
        if not 0 < lr_factor <= 1:
            raise ConfigError(
                f"roll_back(lr_factor={lr_factor!r}): expected above 0 and at most 1: a rate is"
                " never raised"
            )
        target = engine.restore_point(step)
        if target is None:
            oldest = engine.oldest_step()
            there = "there is none yet" if oldest is None else f"the oldest is of step {oldest}"
            raise ActError(
                f"roll_back({step}): no whole and healthy state lies at or before it; {there}"
            )
        problem = engine.misfit(target)
        if problem:
            raise ActError(f"roll_back({step}): {problem}; nothing was changed")
        what = f"go back from step {now} to {target.step}, {now - target.step} steps given up"
        what += f", learning rate x {lr_factor:g}" if lr_factor < 1 else ""
        if not confirm:
            return self._only_tell("roll back", what, "it gives up steps", why)
        raised = engine.raised_by(target)
        if raised:
            engine.store.notes.append(raised)
        engine.store.set_aside_after(target.step, first_sign=target.step + 1, now=now, why=why)
        engine.ring.drop_after(target.step)
        engine.restore(target)
        if self._rng_at_start is not None:  # the loop has not begun: it begins from here
            self._rng_at_start = target.payload["rng"]
        if lr_factor < 1:
            engine.decisions.lr_cuts.append((target.step + 1, lr_factor))
        engine.decisions.rollbacks += 1
        engine.begin_attempt(
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
        self._note_action(remedy, values, why, told=what)
        return what

    def start_over(self, *, why: str, confirm: bool = False) -> str:
        """Give this lineage up: the next launch begins at step 0, as the next major number.

        All checkpoints are moved aside, changes of rates and settings are dropped, skipped data
        stays skipped. It is only told and journalled unless it is confirmed; then the loop ends.
        Call it between steps, on all ranks.

        Raises:
            ConfigError: No reason is given, a trial is under way, or the run has ended.
        """
        self._check_call("start_over", why)
        engine, step = self._engine, self._engine.counters.step
        next_major = engine.decisions.major + 1
        what = f"start over as {next_major}.0: all {step} steps given up, checkpoints moved aside"
        if not confirm:
            return self._only_tell("start over", what, "it gives up the whole lineage", why)
        engine.store.set_aside_after(-1, first_sign=math.inf, now=step, why=why)
        engine.decisions = Decisions(row=engine.decisions.row, major=next_major)
        self._note_action("start-over", {"from_step": step, "confirmed": True}, why, told=what)
        engine.saved_step = step  # nothing of it is saved at the end
        self._end("started over")
        self._say(f"run the script again: it begins as {next_major}.0")
        return what

    def _end(self, reason: str) -> None:
        raise NotImplementedError

    def _check_call(self, call: str, why: str) -> None:
        self._check_asked(call, why)
        if self._fed:
            raise ConfigError(
                f"{call}(): a step is under way; call it after guard.step(), or after"
                " guard.drop_batch(why=...)"
            )
        if self._recovery.busy:
            raise ConfigError(
                f"{call}(): a {self._recovery.phase} is under way; wait until guard.phase is calm"
            )

    def _only_tell(self, name: str, what: str, because: str, why: str) -> str:
        """Journal what would be done; the line that an audit looks for."""
        self._edge.run(
            "journal",
            lambda: self._engine.recorder.event(
                "decision",
                step=self._engine.counters.step,
                what=f"dry run: {name}",
                why=f"{what}; not done: {because}, so it needs confirm=True ({why})",
                evidence=[],
            ),
        )
        told = f"dry run: {what}; {because}: call it with confirm=True"
        self._say(f"step {self._engine.counters.step:>6,}  {told}")
        return told

    def _last_standing(self, remedy: str) -> dict[str, Any] | None:
        """Return the values of the last action with a remedy that was not undone; `id` names it."""
        undone: set[int] = set()
        standing: dict[str, Any] | None = None
        actions = self._engine.recorder.live.events("action")
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
        limits = self._engine.decisions.lr_limits
        held = next((c for c in reversed(limits) if math.isclose(c[1], limit)), None)
        if held is None:
            return None
        return _Inverse(
            f"no longer hold the learning rate at {limit:g}",
            lambda: limits.remove(held),
            raises_lr=True,
        )

    def _inverse(self, remedy: str, values: Mapping[str, Any]) -> _Inverse | None:
        """Return how to take back what `values` set; None where there is no way."""
        engine, decisions = self._engine, self._engine.decisions
        if remedy == "lower-lr":
            if values.get("lr_limit") is not None:
                return self._without_limit(float(values["lr_limit"]))
            factor = float(values.get("factor", math.nan))
            cut = next((c for c in reversed(decisions.lr_cuts) if math.isclose(c[1], factor)), None)
            if cut is None:
                return None
            return _Inverse(
                f"take the factor {factor:g} off the learning rate",
                lambda: decisions.lr_cuts.remove(cut),
                raises_lr=True,
            )
        if remedy in ("tighten-clip", "lower-clip") and values.get("clip_factor"):
            factor = float(values["clip_factor"])
            return _Inverse(
                f"divide the clip's factor by {factor:g}",
                lambda: setattr(decisions, "clip_factor", min(decisions.clip_factor / factor, 1.0)),
            )
        if remedy == "skip-data" and values.get("skip_samples") and engine.data is not None:
            first, last = map(int, values["skip_samples"])
            data = engine.data
            return _Inverse(
                f"feed samples {first}-{last} when their place comes again",
                lambda: data.unskip(first, last),
            )
        names = [n for n in actuators.OPTIMIZER_SETTINGS if n in values]
        if names and remedy in ("adam-beta2", "adam-eps", "set-optimizer"):
            # decided on, and not only dropped: what was saved meanwhile would bring it back
            launched = {n: actuators.launched_setting(engine, n) for n in names}
            kept = {**decisions.optimizer_settings, **launched}
            return _Inverse(
                f"{', '.join(names)} as launched", lambda: actuators.withdraw(engine, names, kept)
            )
        if remedy == "loss-scaler-reset" and values.get("before"):
            before = float(values["before"])
            return _Inverse(
                f"loss scale back to {before:g}", lambda: actuators.set_scaler(engine, before)
            )
        if remedy in ("fp32", "bf16"):
            return _Inverse("the forward pass in its own format", lambda: engine.set_precision(""))
        return None
