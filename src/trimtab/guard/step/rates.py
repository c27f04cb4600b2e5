"""The rates of the next step: the scheduler's or a function's, times what was decided."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.guard.state.decisions import (
    is_back,
    lr_factor,
    lr_holds_at,
    lr_limit,
    rewarm_factor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trimtab.guard.state.run_state import RunState

__all__ = ["Rates", "weight_decay_at"]


class Rates:
    """Learning rate and weight decay of the step to come."""

    def __init__(self, state: RunState) -> None:
        """Follow the scheduler, with what was decided in `state`."""
        self._state = state
        self._lr_override: Callable[[int], float] | None = None
        self._weight_decay: Callable[[int], float] | None = None

    # -- learning rate ----------------------------------------------------------------------

    @property
    def lr_override(self) -> Callable[[int], float] | None:
        """The first group's rate by step, in place of the scheduler's; None: the scheduler's."""
        return self._lr_override

    @property
    def factor(self) -> float:
        """Factor of the guard on the rate of the next step; never above 1."""
        d, step = self._state.decisions, self._state.counters.step + 1
        return lr_factor(d.lr_cuts, step) * rewarm_factor(d.rewarm, step)

    @property
    def factor_of_script(self) -> float:
        """Rate of the next step over what the script asks for, limits by hand left out."""
        d, step, lr = self._state.decisions, self._state.counters.step + 1, self.script_lr
        shares = [
            min(value / lr, share) if lr > 0 else 1.0
            for _, _, value, share, _ in lr_holds_at(d.lr_holds, step)
        ]
        return self.factor * min([1.0, *shares])

    @property
    def next_lr(self) -> float:
        """Rate of the first group in the next step."""
        groups = self._state.training.optimizer.param_groups
        return float(self.next_rates([g["lr"] for g in groups])[0])

    def next_rates(self, planned: Sequence[float]) -> list[float]:
        """Return the rates of the next step, by group.

        rate = min(planned or override, limit) * factor, and no more than the rate that it is put
        back to. Groups keep their ratio to the first one.

        Args:
            planned: What the scheduler has put into the groups: numbers, or tensors of one
                element, which stay tensors.

        Raises:
            ConfigError: The override gives something that is not a rate.
        """
        decisions, step = self._state.decisions, self._state.counters.step + 1
        rates, factor = list(planned), self.factor
        if self._lr_override is not None:
            first: object = self._lr_override(step)
            if not isinstance(first, int | float) or not (math.isfinite(first) and first >= 0):
                raise ConfigError(
                    f"override_lr: the schedule gives {first!r} for step {step}, "
                    "expected a finite number of at least 0"
                )
            # Shares as launched: the scheduler may have moved the groups' rates apart or to 0.
            rates = [first * share for share in self._group_shares()]
        limit = lr_limit(decisions.lr_limits, step)
        for _, _, value, share, _ in lr_holds_at(decisions.lr_holds, step):
            limit = min(limit, value, rates[0] * share)
        if rates[0] > limit:
            factor *= limit / rates[0]
        return rates if factor == 1.0 else [lr * factor for lr in rates]

    @property
    def script_lr(self) -> float:
        """Rate of the first group that the script asks for in the next step, before any of ours."""
        if self._lr_override is not None:
            return float(self._lr_override(self._state.counters.step + 1))
        return float(self._state.training.optimizer.param_groups[0]["lr"])

    @property
    def follows_schedule(self) -> bool:
        """Whether a scheduler or a function that the guard knows gives the rate."""
        return self._lr_override is not None or self._state.training.scheduler is not None

    def end_holds(self) -> list[tuple[float, float]]:
        """End each hold whose rate the script has put back itself, from the next step on.

        Returns:
            The rate that was held, and the script's own, of each that ended.
        """
        decisions, step = self._state.decisions, self._state.counters.step + 1
        standing = lr_holds_at(decisions.lr_holds, step)
        if not standing:
            return []
        lr, ended = self.script_lr, []
        for hold in standing:
            since, _, value, share, sound = hold
            # From here on the script's own rate holds again; a rollback to a step before brings
            # the hold back with the raised rate. Before its rise the rate says nothing.
            if step >= since and is_back(lr, sound):
                place = [tuple(h) for h in decisions.lr_holds].index(hold)
                decisions.lr_holds[place] = (since, step, value, share, sound)
                ended.append((value, lr))
        return ended

    def override(self, schedule: Callable[[int], float] | None) -> float:
        """Take the first group's rate from a function, or from the scheduler again: None.

        Returns:
            The first group's rate in the next step.

        Raises:
            ConfigError: The function gives no rate for the next step; then nothing is changed.
        """
        kept, self._lr_override = self._lr_override, schedule
        try:
            lr = self.next_lr
        # Also on Ctrl-C in the user's function: no half-checked schedule may stay in force.
        except BaseException:
            self._lr_override = kept
            raise
        decisions = self._state.decisions
        if schedule is None:
            decisions.override_since = None
        elif decisions.override_since is None:
            decisions.override_since = self._state.counters.step + 1
        return lr

    def _group_shares(self) -> list[float]:
        """Return each group's rate as launched, over the first group's."""
        groups = self._state.training.optimizer.param_groups
        first, *_ = base = [float(g.get("initial_lr", g["lr"])) for g in groups]
        return [lr / first if first > 0 else 1.0 for lr in base]

    # -- weight decay -----------------------------------------------------------------------

    @property
    def weight_decay(self) -> Callable[[int], float] | None:
        """Weight decay by step; None: as it is in the groups."""
        return self._weight_decay

    def follow_weight_decay(self, schedule: Callable[[int], float] | None) -> float | None:
        """Take the weight decay from a function; None leaves it as it is now.

        Returns:
            The weight decay of the next step; None without a function.

        Raises:
            ConfigError: The function gives no weight decay for the next step.
        """
        decisions, step = self._state.decisions, self._state.counters.step + 1
        value = None
        if schedule is not None:
            value = weight_decay_at(schedule, step)
            decisions.weight_decay_since = decisions.weight_decay_since or step
        else:
            decisions.weight_decay_since = None
        self._weight_decay = schedule
        return value

    def apply_weight_decay(self) -> dict[str, float]:
        """Set the weight decay of the step under way; return it for the record.

        Empty without a schedule. Groups that were launched without weight decay keep none: norms
        and biases are not decayed.
        """
        if self._weight_decay is None:
            return {}
        training = self._state.training
        value = weight_decay_at(self._weight_decay, self._state.counters.step + 1)
        for launched, group in zip(training.settings, training.optimizer.param_groups, strict=True):
            if launched.get("weight_decay"):
                group["weight_decay"] = value
        return {"weight_decay": value}

    def check_given(self) -> None:
        """Refuse to begin without a function that the run followed when it was saved.

        Raises:
            ConfigError: One is missing; the message names the call that gives it.
        """
        d = self._state.decisions
        followed = [
            (
                d.override_since,
                self._lr_override,
                "learning rate was taken over by override_lr at",
                "override_lr",
                "go back to the scheduler",
            ),
            (
                d.weight_decay_since,
                self._weight_decay,
                "weight decay follows a schedule since",
                "schedule_weight_decay",
                "leave it as it is",
            ),
        ]
        for since, given, what, call, without in followed:
            if since is not None and given is None:
                raise ConfigError(
                    f"this run's {what} step {since}; call guard.{call}(schedule, why=...) again "
                    f"before the loop, or with None to {without}"
                )


def weight_decay_at(schedule: Callable[[int], float], step: int) -> float:
    """Return what a schedule of the weight decay gives for a step, counted from 1.

    Raises:
        ConfigError: It is no weight decay.
    """
    value: object = schedule(step)
    if not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            f"schedule_weight_decay: the schedule gives {value!r} for step {step}, expected a "
            "finite number of at least 0"
        )
    return float(value)
