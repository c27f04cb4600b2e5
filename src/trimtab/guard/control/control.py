"""`guard.control`: what people do to a run by hand, between two steps.

Every change is journalled with its reason and outlives restarts. Where several ranks train
together, make each change on all of them, at the same step and with the same values: each rank
changes its own optimizer and its own order of the data, and nothing compares them.
"""

from __future__ import annotations

import functools
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.step import actuators
from trimtab.plan.expected import DEFAULT_STEPS, ExpectedChange, check_what
from trimtab.plan.skiplist import SkipList, SkipSource, read_skip_list, write_skip_list

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.utils.data import DataLoader

    from trimtab.guard.control.action_log import ActionLog
    from trimtab.guard.control.gate import CallGate
    from trimtab.guard.control.rollback import Rollbacks
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.step.run_context import RunContext

__all__ = ["Control"]

P = ParamSpec("P")
R = TypeVar("R")


def _once_a_step(
    otherwise: R,
) -> Callable[
    [Callable[Concatenate[Control, P], R]],
    Callable[Concatenate[Control, P], R],
]:
    """Leave a call out while the yardstick's batches are read; it then returns `otherwise`.

    The loop's body runs again for those batches, at the same `step_number`: a change that it made
    after the step itself would be made twice.
    """

    def wrap(
        method: Callable[Concatenate[Control, P], R],
    ) -> Callable[Concatenate[Control, P], R]:
        @functools.wraps(method)
        def called(self: Control, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self._gate.leave_to_step(method.__name__):
                return otherwise
            return method(self, *args, **kwargs)

        return called

    return wrap


class Control:
    """Changes to a run, each with the reason for it."""

    def __init__(
        self,
        parts: RunContext,
        *,
        gate: CallGate,
        log: ActionLog,
        recovery: Recovery,
        rollbacks: Rollbacks,
        drop_batch: Callable[[str], None],
    ) -> None:
        """Act on a run.

        Args:
            parts: Of the run.
            gate: Refuses calls that come at the wrong time.
            log: Writes down what was done.
            recovery: Says whether a state that is saved now is suspect.
            rollbacks: Go back, and take changes back.
            drop_batch: Gives up the batches under way, for a reason.
        """
        self._parts = parts
        self._gate = gate
        self._log = log
        self._recovery = recovery
        self._rollbacks = rollbacks
        self._drop_batch = drop_batch

    @_once_a_step(None)
    def scale_lr(self, factor: float, *, why: str) -> None:
        """Multiply the learning rate from the next step on; no scheduler can undo it.

        Raises:
            ConfigError: The factor is not in (0, 1], or nothing would be trained with it; no reason
                is given, or the run has ended.
        """
        self._gate.check_reason("scale_lr", why)
        factor = arguments.rate_factor("scale_lr", factor)
        together = (self._parts.rates.factor or 1.0) * factor  # 0: the rate is about to rise again
        arguments.rate_factor("scale_lr: all factors together", together)
        self._parts.state.decisions.cut_lr(0, factor)
        self._log.note("lower-lr", {"lr_factor": self._parts.rates.factor, "factor": factor}, why)

    @_once_a_step(None)
    def limit_lr(self, limit: float, *, why: str) -> None:
        """Hold the learning rate at `limit` at most from the next step on.

        The limit is that of the first group, whatever the schedule asks for; the others keep their
        ratio to it. Factors apply on top.

        Raises:
            ConfigError: The limit is no rate above 0, no reason is given, or the run has ended.
        """
        self._gate.check_reason("limit_lr", why)
        limit = arguments.number("limit_lr", limit)
        if not 0 < limit < math.inf:
            raise ConfigError(f"limit_lr({limit!r}): expected a finite rate above 0")
        self._parts.state.decisions.limit_lr(0, float(limit))
        self._log.note("lower-lr", {"lr": self._parts.rates.next_lr, "lr_limit": float(limit)}, why)

    @_once_a_step(None)
    def override_lr(self, schedule: Callable[[int], float] | None, *, why: str) -> None:
        """Take the learning rate from `schedule` from the next step on, not from the scheduler.

        The scheduler is still stepped; its values are not used. Other groups keep their ratio to
        the first one; the guard's factor still applies. A function cannot be saved: when the run is
        resumed, call this again before the loop, or the loop refuses to start.

        Args:
            schedule: Gives the first group's rate at an optimizer step, counted from 1; None goes
                back to the scheduler.
            why: For the journal.

        Raises:
            ConfigError: What it gives for the next step is no rate, no reason is given, or the run
                has ended.
        """
        self._gate.check_reason("override_lr", why)
        _check_function("override_lr", schedule)
        lr = self._parts.rates.override(schedule and arguments.called("override_lr", schedule))
        self._log.note("override-lr", {"lr": lr, "on": schedule is not None}, why)

    @_once_a_step(None)
    def schedule_weight_decay(self, schedule: Callable[[int], float] | None, *, why: str) -> None:
        """Take the weight decay from `schedule` from the next step on; recorded at each step.

        It is set in the groups that were launched with one, over what `set_optimizer` says. A
        function cannot be saved: when the run is resumed, call this again before the loop, or the
        loop refuses to start.

        Args:
            schedule: Gives the weight decay at an optimizer step, counted from 1; None leaves it as
                it is now.
            why: For the journal.

        Raises:
            ConfigError: What it gives for the next step is no weight decay, no reason is given, or
                the run has ended.
        """
        self._gate.check_reason("schedule_weight_decay", why)
        _check_function("schedule_weight_decay", schedule)
        value = self._parts.rates.follow_weight_decay(
            schedule and arguments.called("schedule_weight_decay", schedule)
        )
        values: dict[str, object] = {"on": schedule is not None}
        if value is not None:
            values["weight_decay"] = value
        self._log.note("schedule-weight-decay", values, why)

    @_once_a_step(0)
    def change_data(self, loader: DataLoader[object], *, why: str) -> int:
        """Feed from another loader from the next batch on; return the sample id it begins at.

        A new epoch begins with it; sample ids, the step and everything else go on. After a rollback
        to before that id the old data is fed up to it, and the new from there. The journal has the
        seed of its generator and the hash of the order before it. A loader cannot be
        saved: when the run is resumed, hand the newest one to `Guard(data=...)`; a note says so
        where the order is not the saved one. On several ranks all must call it.

        Raises:
            ConfigError: The loader cannot be rewound, does not fit a skip list in force, no reason
                is given, or the run has ended.
        """
        self._gate.check_reason("change_data", why)
        before = getattr(self._parts.data, "fingerprint", "")
        seed = getattr(getattr(loader, "generator", None), "initial_seed", lambda: None)()
        first = self._parts.data.switch(loader)
        self._parts.settings.announce("batch_size", self._parts.state.counters.step, "change_data")
        self._log.note(
            "change-data",
            {"first_sample": first, "dataset": type(loader.dataset).__name__}
            | ({} if seed is None else {"seed": seed})
            | ({"order_before": before} if before else {}),
            why,
        )
        return first

    @_once_a_step(None)
    def tighten_clip(self, factor: float, *, why: str) -> None:
        """Multiply the clipping threshold from the next step on.

        Raises:
            ConfigError: The factor is not in (0, 1], no reason is given, the run has no clip, or it
                has ended.
        """
        self._gate.check_reason("tighten_clip", why)
        factor = arguments.number("tighten_clip", factor)
        limit, decisions = self._parts.optimizer_step.clip, self._parts.state.decisions
        if not 0 < factor <= 1 or limit is None:
            raise ConfigError(
                f"tighten_clip({factor!r}): expected 0 < factor <= 1, and Guard(clip=...)"
            )
        decisions.scale_clip(factor)
        values: dict[str, object] = {
            "clip": limit * decisions.clip_factor,
            "clip_factor": factor,
            "evidence": "delays only?",  # OPT-175B could not tell; Marin saw no difference
        }
        self._log.note("tighten-clip", values, why)

    @_once_a_step(None)
    def set_optimizer(self, /, *, why: str, **values: float) -> None:
        """Set beta1, beta2, eps or weight_decay from the next step on; no load can undo it.

        Weight decay is set in the groups that have one; a group without keeps none.

        Raises:
            ConfigError: A name or value is impossible, no reason is given, or the run has ended.
        """
        self._gate.check_reason("set_optimizer", why)
        if not values:
            raise ConfigError("set_optimizer(): expected a setting, such as beta2=0.95")
        values = {n: arguments.number(f"set_optimizer: {n}=", v) for n, v in values.items()}
        before = actuators.set_optimizer(self._parts.state, values)
        remedy = {"beta2": "adam-beta2", "eps": "adam-eps"}.get(next(iter(values)), "set-optimizer")
        self._log.note(remedy, {**values, "before": before}, why)

    @_once_a_step(None)
    def reset_moments(self, *, why: str, rewarm_steps: int = 100) -> None:
        """Zero the optimizer's moments and let the rate rise again over some steps.

        Without the rise the first updates after a reset are as large as at the start of a run.

        Raises:
            ConfigError: No reason is given, the number of steps is negative, or the run has ended.
        """
        self._gate.check_reason("reset_moments", why)
        rewarm_steps = arguments.whole("reset_moments: rewarm_steps=", rewarm_steps)
        if rewarm_steps < 0:
            raise ConfigError(
                f"reset_moments(rewarm_steps={rewarm_steps}): expected at least 0 steps"
            )
        count = actuators.reset_moments(self._parts.state)
        state = self._parts.state
        state.decisions.rewarm_from(state.counters.step + 1, rewarm_steps)
        risk = "" if rewarm_steps else "without a rise of the rate a spike is likely"
        values = {"tensors": count, "rewarm_steps": rewarm_steps, "risk": risk}
        self._log.note("optimizer-reset", values, why)

    @_once_a_step(None)
    def set_loss_scale(self, scale: float, *, why: str) -> None:
        """Set the loss scale, on request only: a resume restores the scale that was saved.

        Raises:
            ConfigError: There is no scaler, the scale is impossible, no reason is given, or the run
                has ended.
        """
        self._gate.check_reason("set_loss_scale", why)
        scale = arguments.number("set_loss_scale", scale)
        before = actuators.set_scaler(self._parts.state, scale)
        self._log.note("loss-scaler-reset", {"loss_scale": scale, "before": before}, why)

    @_once_a_step(None)
    def skip_samples(self, first: int, last: int, *, why: str, confirm: bool = False) -> None:
        """Never feed sample ids first..last (absolute positions in the data order) from now on.

        Args:
            first: First sample id.
            last: Last sample id.
            why: For the journal.
            confirm: Do it although it is more than one pass over the data.

        Raises:
            ConfigError: The range is empty or negative, or more than the data there is and not
                confirmed; no reason is given, or the run has ended.
        """
        self._gate.check_reason("skip_samples", why)
        first, last = arguments.whole("skip_samples", first), arguments.whole("skip_samples", last)
        held = getattr(self._parts.data, "shape", {}).get("samples") or _MOST_SKIPPED
        if last - first >= held and not confirm:
            raise ConfigError(
                f"skip_samples({first}, {last}): leaves out more than the {held} samples of one"
                " pass over the data; give a smaller range, or confirm=True"
            )
        self._parts.data.skip(first, last)
        first, last = int(first), int(last)
        values = {"skip_samples": [first, last], "num_samples": last - first + 1}
        self._log.note("skip-data", values, why)

    @_once_a_step(0)
    def skip_list(self, path: str | Path, *, why: str = "the scan of the data") -> int:
        """Never feed the items that a skip list names.

        Return how many those are that were fed before.

        The list is kept in the run directory: after a restart it is in force without this call, and
        calling it again changes nothing. Unlike `skip_samples`, whose ids are positions in the
        order, a list names items of the dataset, whatever the shuffle; other items of the same
        batch stand in for them, so the step, its shape and its ids stay. The paths of several
        sources count as one dataset that holds them in the order of the list, as `ConcatDataset`
        does.

        Raises:
            ReadError: It is no skip list.
            ConfigError: It counts another number of items than the dataset has, or leaves none.
        """
        self._gate.check_reason("skip_list", why)
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(f"skip_list({arguments.shown(path)}): expected a path")
        given = self._parts.ranks.agree(lambda: read_skip_list(Path(path)))
        added = self._parts.data.withhold(given.ranges, of=given.size)
        if added:
            kept = SkipSource(
                path="dataset", unit="item", size=given.size, ids=self._parts.data.withheld
            )
            place = self._parts.recorder.directory.skip_list
            self._parts.ranks.on_chief(lambda: write_skip_list(place, SkipList((kept,))))
            self._log.note("skip-data", {"skip_list": str(path), "num_samples": added}, why)
        return added

    @_once_a_step(None)
    def expect(
        self, what: str, *, from_step: int | None = None, until: int | None = None, why: str = ""
    ) -> None:
        """Announce a change that is planned, so that it is not taken for trouble.

        What begins in the window is written down and dismissed with this reason: the guard does not
        act on it, and a change of the settings that it names is no suspect. Values that are not
        finite, a loss scale that collapses and updates that are all skipped are acted on all the
        same. The detectors learn the new level within the window. A script that is started again
        announces again; a scheduler's rates need no announcement.

        Args:
            what: One of batch size, learning rate, unfreezing, warm restart, curriculum, data mix,
                loss, sequence length, weight decay, optimizer, dropout, evaluation mode.
            from_step: First step of the change; default: the next one.
            until: Last step of the window; default: 200 steps after its first.
            why: For the journal.

        Raises:
            ConfigError: It is no change that can be announced, the window is empty, or the run has
                ended.
        """
        self._gate.check_open("expect")
        what = check_what(what)
        step = self._parts.state.counters.step
        first = step + 1 if from_step is None else arguments.whole("expect: from_step=", from_step)
        last = first + DEFAULT_STEPS if until is None else arguments.whole("expect: until=", until)
        if first < 1 or last < first:
            raise ConfigError(
                f"expect({what!r}): from_step={first}, until={last}; expected 1 <= from_step <="
                " until"
            )
        if why:
            arguments.reason("expect", why)
        change = ExpectedChange(what=what, from_step=first, until_step=last, why=why)
        self._parts.expected.announce(change)
        self._log.expect(change)

    # -- going back -------------------------------------------------------------------------

    @_once_a_step("left to the step itself")
    def undo(self, remedy: str, *, why: str, confirm: bool = False) -> str:
        """Take back the last change of a kind in force; return what was, or would be, done.

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
        return self._rollbacks.undo(remedy, why=why, confirm=confirm)

    @_once_a_step("left to the step itself")
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
        return self._rollbacks.roll_back(step, why=why, lr_factor=lr_factor, confirm=confirm)

    @_once_a_step("left to the step itself")
    def start_over(self, *, why: str, confirm: bool = False) -> str:
        """Give this lineage up: the next launch begins at step 0, as the next major number.

        All checkpoints are moved aside, changes of rates and settings are dropped, skipped data
        stays skipped. It is only told and journalled unless it is confirmed; then the loop ends.
        Call it between steps, on all ranks.

        Raises:
            ConfigError: No reason is given, a trial is under way, or the run has ended.
        """
        return self._rollbacks.start_over(why=why, confirm=confirm)

    # -- the step under way -----------------------------------------------------------------

    @_once_a_step(None)
    def checkpoint(self) -> None:
        """Save the state to disk now, whole or not at all; also done every so many steps.

        Call it between steps. Saved while an alarm is open, or with weights that are not finite, it
        is suspect: a restart passes it over.

        Raises:
            ActError: It cannot be saved.
            ConfigError: The run has ended, or a step is under way.
        """
        self._gate.check_open("checkpoint")
        self._gate.check_between()
        self._parts.points.save("asked for", doubt=self._recovery.doubt)

    def drop_batch(self, *, why: str) -> None:
        """Give up what was handed out since the last step.

        No update is made with it, no step counted.

        For a batch that does not fit into memory, or cannot be used. Its gradients and losses are
        thrown away, its sample ids are written down, and the loop goes on with the next batch,
        after `continue`. On several ranks all must call it.

        Raises:
            ConfigError: No batch was handed out, no reason is given, or the run has ended.
            SystemExit, KeyboardInterrupt: As for `Guard.step`.
        """
        self._gate.check_reason("drop_batch", why)
        if not self._gate.in_step:
            raise ConfigError(
                "guard.drop_batch() needs a batch: call it in a `for batch in guard:` loop, in"
                " place of guard.step()"
            )
        self._drop_batch(why)


_MOST_SKIPPED = 1 << 48
"""Samples that are more than any data, where it does not say how many it holds."""


def _check_function(call: str, schedule: object) -> None:
    if schedule is not None and not callable(schedule):
        raise ConfigError(
            f"{call}({arguments.shown(schedule)}): expected a function of the step, or None"
        )
