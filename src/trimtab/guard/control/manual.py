"""What a user may ask of a guard, and tell it to do, between steps.

What changes a run by hand is to be called on all ranks, at the same step and with the same values:
each rank changes its own optimizer and its own order of the data, and nothing compares them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.state.decisions import lr_factor, rewarm_factor
from trimtab.guard.step import actuators
from trimtab.guard.step.schedules import weight_decay_at
from trimtab.plan.skiplist import SkipList, SkipSource, read_skip_list, write_skip_list
from trimtab.text import plain, values_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch.utils.data import DataLoader

    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.loop.fault_barrier import Edge
    from trimtab.guard.recording.recorder import Listener, Recorder
    from trimtab.guard.recovery.recovery import Recovery
    from trimtab.guard.step.deferred_step import LateEngine
    from trimtab.incidents import Incident

__all__ = ["Controls"]


class Controls:
    """The part of `Guard` that is not the loop; every change is journalled and outlives restarts.

    Where several ranks train together, make each change on all of them.
    """

    _engine: LateEngine
    _recovery: Recovery
    _order: Order
    _edge: Edge
    _ranks: Ranks
    _recorder: Recorder
    _ended: bool
    _say: Callable[[str], None]
    _fed: list[Any]
    """Batches of the step under way."""

    @property
    def step_number(self) -> int:
        """Last finished effective step; falls back in a rollback."""
        return self._engine.counters.step

    @property
    def data_epoch(self) -> float:
        """Where the run is in the data.

        Number of the epoch under way, from 0, plus its share done.
        """
        return max(self._order.epoch, 0) + self._order.epoch_share

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch under way has no batch left to hand out."""
        return self._order.at_end

    @property
    def phase(self) -> str:
        """calm, probe or trial."""
        return self._recovery.phase

    @property
    def lr_factor(self) -> float:
        """Factor of the guard on the scheduler's rate of the next step; never above 1."""
        d, step = self._engine.decisions, self._engine.counters.step + 1
        return lr_factor(d.lr_cuts, step) * rewarm_factor(d.rewarm, step)

    @property
    def next_lr(self) -> float:
        """Rate of the first group in the next step.

        The scheduler's or the override's, times ours.
        """
        groups = self._engine.training.optimizer.param_groups
        return float(self._engine.rates([g["lr"] for g in groups])[0])

    @property
    def last_norm(self) -> float:
        """Gradient norm of the last step, before clipping, of all ranks; NaN before the first."""
        self._settle(act=False)
        return self._engine.step_sum.norm

    def covers(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether these are, among those that have a gradient, exactly what is clipped by the
        guard."""
        theirs = {id(p) for p in parameters if p.grad is not None}
        return theirs == {id(p) for p in self._engine.parameters if p.grad is not None}

    @property
    def skipped_samples(self) -> tuple[tuple[int, int], ...]:
        """Ranges [first, last] of sample ids that are never fed again."""
        return self._order.skips

    @property
    def actions(self) -> tuple[dict[str, object], ...]:
        """What was done, in order."""
        return tuple(self._recovery.actions)

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Incidents acted on or advised about in this process, in order."""
        return tuple(self._recovery.incidents)

    @property
    def num_incidents(self) -> int:
        """How many incidents were acted on or advised about in this process."""
        return len(self._recovery.incidents)

    @property
    def wasted_steps(self) -> float:
        """Steps run that are not on the final lineage, as a share of the effective steps.

        Trials and what was rolled back count whole; a probed batch (forward only) counts a third.
        """
        d, step = self._engine.decisions, max(self._engine.counters.step, 1)
        return (d.executed_steps - self._engine.counters.step + d.probed_batches / 3) / step

    def listen(self, *listeners: Listener) -> None:
        """Have loggers of your own told what is written down, such as those of
        `integrations.loggers`.

        On the first rank only. One that fails is left out from then on; the run goes on.
        """
        if self._ranks.chief:
            self._recorder.listeners.extend(listeners)

    def scale_lr(self, factor: float, *, why: str) -> None:
        """Multiply the learning rate from the next step on; no scheduler can undo it.

        Raises:
            ConfigError: The factor is not in (0, 1], no reason is given, or the run has ended.
        """
        self._check_asked("scale_lr", why)
        factor = arguments.number("scale_lr", factor)
        if not 0 < factor <= 1:
            raise ConfigError(
                f"scale_lr({factor!r}): expected 0 < factor <= 1 (a rate is never raised)"
            )
        self._engine.decisions.lr_cuts.append((0, factor))
        self._note_action("lower-lr", {"lr_factor": self.lr_factor, "factor": factor}, why)

    def limit_lr(self, limit: float, *, why: str) -> None:
        """Hold the learning rate at `limit` at most from the next step on, whatever the schedule
        asks.

        For the first group; the others keep their ratio to it. Factors apply on top.

        Raises:
            ConfigError: The limit is no rate above 0, no reason is given, or the run has ended.
        """
        self._check_asked("limit_lr", why)
        limit = arguments.number("limit_lr", limit)
        if not 0 < limit < math.inf:
            raise ConfigError(f"limit_lr({limit!r}): expected a finite rate above 0")
        self._engine.decisions.lr_limits.append((0, float(limit)))
        self._note_action("lower-lr", {"lr": self.next_lr, "lr_limit": float(limit)}, why)

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
        self._check_asked("override_lr", why)
        _check_function("override_lr", schedule)
        engine = self._engine
        kept, engine.lr_override = engine.lr_override, schedule
        try:
            groups = engine.training.optimizer.param_groups
            lr = float(engine.rates([g["lr"] for g in groups])[0])
        except BaseException:
            engine.lr_override = kept
            raise
        since = engine.decisions.override_since
        if schedule is None:
            engine.decisions.override_since = None
        elif since is None:
            engine.decisions.override_since = engine.counters.step + 1
        self._note_action("override-lr", {"lr": lr, "on": schedule is not None}, why)

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
        self._check_asked("schedule_weight_decay", why)
        _check_function("schedule_weight_decay", schedule)
        engine, step = self._engine, self._engine.counters.step + 1
        values: dict[str, object] = {"on": schedule is not None}
        if schedule is not None:
            values["weight_decay"] = weight_decay_at(schedule, step)
            engine.decisions.weight_decay_since = engine.decisions.weight_decay_since or step
        else:
            engine.decisions.weight_decay_since = None
        engine.weight_decay = schedule
        self._note_action("schedule-weight-decay", values, why)

    def _check_schedules(self) -> None:
        """Refuse to begin while a function is missing that the run followed when it was saved."""
        d = self._engine.decisions
        missing = [
            (
                d.override_since,
                self._engine.lr_override,
                "learning rate was taken over by override_lr at",
                "override_lr",
                "go back to the scheduler",
            ),
            (
                d.weight_decay_since,
                self._engine.weight_decay,
                "weight decay follows a schedule since",
                "schedule_weight_decay",
                "leave it as it is",
            ),
        ]
        for since, given, what, call, without in missing:
            if since is not None and given is None:
                raise ConfigError(
                    f"this run's {what} step {since}; call guard.{call}(schedule, why=...) again "
                    f"before the loop, or with None to {without}"
                )

    def change_data(self, loader: DataLoader[Any], *, why: str) -> int:
        """Feed from another loader from the next batch on; return the sample id it begins at.

        A new epoch begins with it; sample ids, the step and everything else go on. After a rollback
        to before that id the old data is fed up to it, and the new from there. A loader cannot be
        saved: when the run is resumed, hand the newest one to `Guard(data=...)`; a note says so
            where
        the order is not the saved one. On several ranks all must call it.

        Raises:
            ConfigError: The loader cannot be rewound, does not fit a skip list in force, no reason
                is given, or the run has ended.
        """
        self._check_asked("change_data", why)
        first = self._order.switch(loader)
        self._note_action(
            "change-data", {"first_sample": first, "dataset": type(loader.dataset).__name__}, why
        )
        return first

    def tighten_clip(self, factor: float, *, why: str) -> None:
        """Multiply the clipping threshold from the next step on.

        Raises:
            ConfigError: The factor is not in (0, 1], no reason is given, the run has no clip, or it
                has ended.
        """
        self._check_asked("tighten_clip", why)
        factor = arguments.number("tighten_clip", factor)
        if not 0 < factor <= 1 or self._engine.clip is None:
            raise ConfigError(
                f"tighten_clip({factor!r}): expected 0 < factor <= 1, and Guard(clip=...)"
            )
        self._engine.decisions.clip_factor *= factor
        clip = self._engine.clip * self._engine.decisions.clip_factor
        evidence = "delays only?"  # OPT-175B could not tell; Marin saw no difference
        values = {"clip": clip, "clip_factor": factor, "evidence": evidence}
        self._note_action("tighten-clip", values, why)

    def set_optimizer(self, *, why: str, **values: float) -> None:
        """Set beta1, beta2, eps or weight_decay from the next step on; no load can undo it.

        Weight decay is set in the groups that have one; a group without keeps none.

        Raises:
            ConfigError: A name or value is impossible, no reason is given, or the run has ended.
        """
        self._check_asked("set_optimizer", why)
        if not values:
            raise ConfigError("set_optimizer(): expected a setting, such as beta2=0.95")
        values = {n: arguments.number(f"set_optimizer: {n}=", v) for n, v in values.items()}
        before = actuators.set_optimizer(self._engine, values)
        remedy = {"beta2": "adam-beta2", "eps": "adam-eps"}.get(next(iter(values)), "set-optimizer")
        self._note_action(remedy, {**values, "before": before}, why)

    def reset_moments(self, *, why: str, rewarm_steps: int = 100) -> None:
        """Zero the optimizer's moments and let the rate rise again over some steps.

        Without the rise the first updates after a reset are as large as at the start of a run.

        Raises:
            ConfigError: No reason is given, the number of steps is negative, or the run has ended.
        """
        self._check_asked("reset_moments", why)
        rewarm_steps = arguments.whole("reset_moments: rewarm_steps=", rewarm_steps)
        if rewarm_steps < 0:
            raise ConfigError(
                f"reset_moments(rewarm_steps={rewarm_steps}): expected at least 0 steps"
            )
        count = actuators.reset_moments(self._engine)
        step = self._engine.counters.step + 1
        self._engine.decisions.rewarm = (step, rewarm_steps) if rewarm_steps else None
        risk = "" if rewarm_steps else "without a rise of the rate a spike is likely"
        values = {"tensors": count, "rewarm_steps": rewarm_steps, "risk": risk}
        self._note_action("optimizer-reset", values, why)

    def set_loss_scale(self, scale: float, *, why: str) -> None:
        """Set the loss scale; a resume restores the scale that was saved.

        So this is on request only.

        Raises:
            ConfigError: There is no scaler, the scale is impossible, no reason is given, or the run
                has ended.
        """
        self._check_asked("set_loss_scale", why)
        scale = arguments.number("set_loss_scale", scale)
        before = actuators.set_scaler(self._engine, scale)
        self._note_action("loss-scaler-reset", {"loss_scale": scale, "before": before}, why)

    def skip_samples(self, first: int, last: int, *, why: str) -> None:
        """Never feed sample ids first..last (absolute positions in the data order) from now on.

        Raises:
            ConfigError: The range is empty or negative, no reason is given, or the run has ended.
        """
        self._check_asked("skip_samples", why)
        first, last = arguments.whole("skip_samples", first), arguments.whole("skip_samples", last)
        self._order.skip(first, last)
        first, last = int(first), int(last)
        values = {"skip_samples": [first, last], "num_samples": last - first + 1}
        self._note_action("skip-data", values, why)

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
        self._check_asked("skip_list", why)
        given = self._ranks.agree(lambda: read_skip_list(Path(path)))
        added = self._order.withhold(given.ranges, of=given.size)
        if added:
            kept = SkipSource(
                path="dataset", unit="item", size=given.size, ids=self._order.withheld
            )
            place = self._recorder.directory.skip_list
            self._ranks.on_chief(lambda: write_skip_list(place, SkipList((kept,))))
            self._note_action("skip-data", {"skip_list": str(path), "num_samples": added}, why)
        return added

    def _resume_skip_list(self) -> None:
        """Withhold again what a skip list of this run named."""
        place = self._recorder.directory.skip_list
        kept = self._ranks.agree(lambda: read_skip_list(place) if place.exists() else None)
        if kept is not None:
            self._order.withhold(kept.ranges, of=kept.size)

    def _check_asked(self, call: str, why: object) -> None:
        """Refuse a change after the end, or one whose reason cannot be written down."""
        self._check_open(call)
        arguments.reason(call, why)

    def _note_action(
        self, remedy: str, values: dict[str, object], why: str, *, told: str = ""
    ) -> None:
        """Journal and say what was done by hand; `told`: what to say of it, default: the values."""
        line = f"by hand: {remedy} · {told or values_text(values)} · {plain(why, limit=200)}"
        self._say(f"step {self._engine.counters.step:>6,}  {line}")
        self._recovery.actions.append(
            {"step": self._engine.counters.step, "remedy": remedy, "values": values, "why": why}
        )
        self._edge.run("recovery", lambda: self._recovery.labels.begin(remedy, by_hand=True))
        self._edge.run(
            "journal",
            lambda: self._engine.recorder.event(
                "action",
                step=self._engine.counters.step,
                remedy=remedy,
                values=values,
                why=why,
                standing=self._engine.standing(),
            ),
        )

    def _check_open(self, call: str) -> None:
        """Refuse a call after the end; before any other, what is known of the last step is read."""
        if self._ended:
            raise ConfigError(
                f"guard.{call}() was called after the end; make a new Guard on the run directory to"
                " go on"
            )
        self._settle(act=not self._fed)

    def _settle(self, *, act: bool = True) -> bool:
        raise NotImplementedError


def _check_function(call: str, schedule: object) -> None:
    if schedule is not None and not callable(schedule):
        raise ConfigError(
            f"{call}({arguments.shown(schedule)}): expected a function of the step, or None"
        )
