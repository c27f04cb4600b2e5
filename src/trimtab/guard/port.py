"""The port between a trainer's adapter and a guard: all that an adapter sees of it.

An adapter joins a trainer's loop to a guard: the guard hands out the batches, and the trainer's
optimizer step is the guard's step. `TrainerPort` has what such a loop needs, by use: the order of
the data, the step, the state, the trainer's own checkpoints, the run. Adapters use no other part
of `trimtab.guard` but the class `Guard` itself, so the guard's inside can change without them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Protocol, Required, TypedDict

from trimtab.guard.data.streams import StreamOrder, is_stream
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.loop.setup_checks import count_tokens
from trimtab.guard.recording.fault_barrier import to_stderr
from trimtab.guard.state.external_checkpoint import check_launch
from trimtab.guard.state.external_checkpoint import legible as check_companion
from trimtab.guard.state.training_state import Stateful, Training

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import torch

    from trimtab.guard.guard import Guard
    from trimtab.guard.recording.fault_barrier import Part
    from trimtab.guard.recording.recorder import Listener
    from trimtab.plan.policy import Mode, Policy

__all__ = [
    "EngineUpdate",
    "GuardOptions",
    "LaunchSettings",
    "LoopOptions",
    "Ranks",
    "Stateful",
    "StreamOrder",
    "TrainerPort",
    "check_companion",
    "count_tokens",
    "is_stream",
    "to_stderr",
]


class GuardOptions(TypedDict, total=False):
    """Settings of `Guard` that an adapter passes on as they are; `Guard` explains each."""

    run: Required[str | Path]
    mode: Mode | None
    policy: Policy | None
    steps: int | None
    resume: bool
    check_resume: int
    output_layer: torch.nn.Module | None
    count_tokens: Callable[[Any], int] | None
    extra: Mapping[str, Stateful] | None
    loaded_step: int | None
    companion: Mapping[str, object] | None
    say: Callable[[str], None] | None


class LoopOptions(GuardOptions, total=False):
    """Settings of a `Guard` in a loop that a user writes: clipping and accumulation are its own."""

    scheduler: object | None
    clip: float | None
    accumulate: int


class EngineUpdate(Protocol):
    """A trainer's engine that clips and updates in one call of its own."""

    def update(self) -> tuple[torch.Tensor, float | None]:
        """Update; return the gradient norm before clipping, a scalar, and the limit in force."""

    def was_applied(self) -> bool:
        """Whether the last update was made, or left out by the engine."""

    def before_state(self) -> None:
        """Prepare the engine for its state to be read."""


class LaunchSettings:
    """The optimizer's settings as launched: loading a trainer's checkpoint overwrites them.

    Take them before the trainer loads, so that a resume under other settings is noticed.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy the settings of all parameter groups; tensors are not copied."""
        self._training = Training(model, optimizer)

    def check(self, companion: Mapping[str, object]) -> None:
        """Refuse to resume where a setting is not that of the saved run.

        Raises:
            ActError: A setting differs, and the message names it; or the companion is damaged.
        """
        check_launch(self._training, companion)

    def restore_in(self, training: Training) -> None:
        """Make these the launch settings that a guard knows of."""
        training.settings = self._training.settings


class TrainerPort:
    """What an adapter asks of a guard, and what it reports to it.

    A port holds no state of its own: several ports of one guard are alike.
    """

    def __init__(self, guard: Guard) -> None:
        """Open the port of a guard; a trainer's loop sets the model's mode by itself.

        So the yardstick's batches do not go through it; `validate=` a function still works.
        """
        self._guard = guard
        guard._readings.leave_loop()
        guard._parts.optimizer_step.outside_steps.leave_loop()

    # -- order of the data --------------------------------------------------------------------

    def batches(self) -> Generator[Any]:
        """Return the batches of the whole run, in the guard's order; close it to end early."""
        return _as_generator(iter(self._guard))

    def epoch(self) -> Generator[Any]:
        """Return the batches that are left of one epoch; the next call begins the next epoch."""
        return _as_generator(self._guard.epoch())

    @property
    def data_epoch(self) -> float:
        """Number of the epoch under way, from 0, plus the share of it that is done."""
        return self._guard.data_epoch

    @property
    def epoch_is_over(self) -> bool:
        """Whether the epoch under way has no batch left."""
        return self._guard.epoch_is_over

    @property
    def has_batch(self) -> bool:
        """Whether a batch was handed out since the last step."""
        return bool(self._guard._fed)

    def begin_after(self, batches: int) -> None:
        """Begin after so many batches of this rank, for a checkpoint without a companion."""
        self._guard.go_on_after(batches)

    # -- the step -----------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """Last finished step; it falls in a rollback."""
        return self._guard.step_number

    @property
    def probing(self) -> bool:
        """Whether batches are only measured: no backward pass, no update."""
        return self._guard.probing

    @property
    def is_calm(self) -> bool:
        """Whether steps count as usual: no probe of the data and no trial is under way."""
        return self._guard.phase == "calm"

    @property
    def acting(self) -> bool:
        """Whether the guard intervenes: mode `act`, and no fault of its own has ended that."""
        return self._guard._acting

    @property
    def last_loss(self) -> float:
        """Mean loss of the last step over all ranks; NaN before the first."""
        return self._guard._parts.pool.whole.loss

    def note_loss(self, loss: torch.Tensor, *, samples: torch.Tensor | None = None) -> None:
        """Note the mean loss of a batch, neither scaled nor divided for accumulation."""
        self._guard.note_loss(loss, samples=samples)

    def note_signals(self, **signals: float) -> None:
        """Record further signals with the step under way."""
        self._guard.note_signals(**signals)

    def step(self) -> None:
        """Clip, update or skip, record, judge; go back where that is needed and allowed."""
        self._guard.step()

    def restart_clock(self) -> None:
        """Begin the time of the next step now: what the trainer did since is not part of it."""
        self._guard._parts.clock.start()

    def read_every_step(self) -> None:
        """Read the values of each step at once, for trainers that save between two steps."""
        self._guard._parts.reads_late.switch_off()

    def keep_gradients(self) -> None:
        """Leave it to the trainer to drop the gradients after a step."""
        self._guard._parts.optimizer_step.keep_gradients()

    # -- clipping and rates -------------------------------------------------------------------

    @property
    def next_lr(self) -> float:
        """Learning rate of the first group in the next step, with the guard's factor."""
        return self._guard.next_lr

    def rates(self, planned: Sequence[float]) -> list[float]:
        """Return the rates of the next step, by group, from what the schedule plans."""
        return self._guard._parts.rates.next_rates(planned)

    @contextlib.contextmanager
    def rates_in_force(self, groups: Sequence[dict[str, Any]]) -> Iterator[None]:
        """Set the weight decay and the rates of this step; put the scheduled rates back after it.

        A scheduler computes its next value from the one it left: it must not see the guard's.
        """
        rates = self._guard._parts.rates
        planned = [group["lr"] for group in groups]
        rates.apply_weight_decay()
        for group, rate in zip(groups, rates.next_rates(planned), strict=True):
            group["lr"] = rate
        try:
            yield
        finally:
            for group, rate in zip(groups, planned, strict=True):
                group["lr"] = rate

    def covers(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Whether these are all the parameters that the guard clips."""
        return self._guard.covers(parameters)

    def clip_gradients(self, limit: float | None) -> float:
        """Unscale and clip now; return the norm before clipping. `step` does not clip again."""
        return self._guard.clip_gradients(limit)

    @property
    def clip_factor(self) -> float:
        """Factor of the guard on the trainer's clipping limit; at most 1."""
        return self._guard._parts.state.decisions.clip_factor

    @property
    def clip_limit(self) -> float | None:
        """Limit on the gradient norm in force; None without clipping."""
        limit = self._guard._parts.optimizer_step.clip
        return None if limit is None else limit * self.clip_factor

    def note_clipped(
        self, norm: torch.Tensor, *, own_limit: float | None, limit: float | None
    ) -> None:
        """Take over a norm that the trainer measured while it clipped; `step` does not clip again.

        Args:
            norm: Gradient norm before clipping, a scalar.
            own_limit: The trainer's limit; None without clipping.
            limit: That limit with the guard's factor, to which the gradients were clipped.
        """
        update = self._guard._parts.optimizer_step
        update.set_clip(own_limit)
        update.note_clipped(norm, limit)

    def measure_norm(self) -> float:
        """Return the gradient norm of all ranks without clipping; all ranks must call it."""
        return self._guard._parts.optimizer_step.measure_norm()

    def clip_in_group_order(self) -> None:
        """Sum the norm in the order of the optimizer's groups: its last bits depend on it."""
        self._guard._parts.optimizer_step.clip_in_order(self._guard._training.parameters)

    def let_engine_update(self, engine: EngineUpdate) -> None:
        """Have a trainer's engine clip and update within the guard's step."""
        parts = self._guard._parts
        parts.reads_late.switch_off()  # the engine reads the values before it updates
        parts.optimizer_step.hand_over(engine)
        parts.training.before_state(engine.before_state)

    # -- state ----------------------------------------------------------------------------------

    def on_restore(self, callback: Callable[[int], None]) -> None:
        """Call `callback(step)` after each time that the state of a step was restored."""
        self._guard.on_restore(callback)

    def companion(self) -> dict[str, object]:
        """Return what to save beside the trainer's own state; all ranks must call it."""
        return self._guard.companion()

    def launched_with(self, settings: LaunchSettings) -> None:
        """Use the optimizer's settings as launched, which the trainer's load has overwritten."""
        settings.restore_in(self._guard._training)

    # -- the trainer's checkpoints --------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a recovery is under way: data are probed, or a remedy is on trial."""
        return self._guard._recovery.busy

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is open, so that a checkpoint saved now is suspect."""
        return self._guard._recovery.alarmed

    @property
    def unsettled(self) -> bool:
        """Whether older checkpoints may still be needed: an alarm, or a remedy being verified."""
        return self._guard._recovery.unsettled

    @property
    def attempt(self) -> str:
        """Number of the attempt under way."""
        return self._guard._recorder.attempt

    @property
    def first_sign(self) -> float | None:
        """Step of the first sign of the newest incident; None before any."""
        incidents = self._guard.incidents
        return incidents[-1].first_step if incidents else None

    @property
    def num_actions(self) -> int:
        """How many actions the guard has taken in this process."""
        return len(self._guard.actions)

    @property
    def last_rollback(self) -> int | None:
        """Step that the last action went back to; None where it was no rollback."""
        actions = self._guard.actions
        values = actions[-1].get("values") if actions else None
        if not isinstance(values, dict) or "to_step" not in values:
            return None
        return int(values["to_step"])

    # -- the run --------------------------------------------------------------------------------

    @property
    def is_chief(self) -> bool:
        """Whether this is the rank that writes files."""
        return self._guard._ranks.chief

    def on_chief(self, work: Callable[[], object]) -> None:
        """Work on the first rank only; where it fails, it fails on all. All ranks must call it."""
        self._guard._ranks.on_chief(work)

    def contain(self, part: Part, work: Callable[[], object]) -> bool:
        """Do an adapter's own work, so that a fault in it is journalled and stops no training.

        Returns:
            Whether it was done without a fault.
        """
        return self._guard._edge.run(part, work)

    def listen(self, *listeners: Listener) -> None:
        """Send what the guard records to loggers."""
        self._guard.listen(*listeners)

    def finish(self, reason: str = "") -> None:
        """End the run: saved, reported, written down."""
        self._guard.finish(reason)

    def close(self) -> None:
        """Stop guarding and release the run directory; a second call does nothing."""
        self._guard.close()


def _as_generator(batches: Iterator[object]) -> Generator[object]:
    """Return a guard's iterator as what it is: closing it writes an interrupt down."""
    assert isinstance(batches, Generator)
    return batches
