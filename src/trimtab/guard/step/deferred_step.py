"""A step whose values are read when the next one is about to be applied; see `deferred_read`."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.step_reduction import StepShare
from trimtab.guard.step.deferred_read import DeviceReading, LateRow, skips_on_device
from trimtab.guard.step.step_recorder import StepRow

if TYPE_CHECKING:
    from trimtab.guard.data.order import Fed
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.probes.suite import Probes
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.step_clock import StepClock
    from trimtab.guard.step.optimizer_step import OptimizerStep
    from trimtab.guard.step.precision import Precision
    from trimtab.guard.step.step_pool import StepPool
    from trimtab.guard.step.step_recorder import StepRecorder

__all__ = ["DeferredStep"]


class DeferredStep:
    """Does a step without reading the device, and reads it later."""

    def __init__(
        self,
        state: RunState,
        *,
        ranks: Ranks,
        probes: Probes,
        precision: Precision,
        pool: StepPool,
        update: OptimizerStep,
        rows: StepRecorder,
        clock: StepClock,
    ) -> None:
        """Work with the parts of a step; see each of them."""
        self._state = state
        self._ranks = ranks
        self._probes = probes
        self._precision = precision
        self._pool = pool
        self._update = update
        self._rows = rows
        self._clock = clock

    def can_wait(self, *, skip_nonfinite: bool) -> bool:
        """Whether all that the step under way gives can be read later.

        Args:
            skip_nonfinite: Whether an update whose gradient is not finite must be left out.
        """
        return (
            self._probes.quiet
            and not self._precision.has_scaler
            and not (self._pool.has_noted and self._ranks.count > 1)
            and (not skip_nonfinite or skips_on_device(self._state.training.optimizer))
        )

    def step(self, loss: torch.Tensor, fed: Fed, *, skip_nonfinite: bool) -> LateRow:
        """Clip, update or skip on the device, and read nothing; `read` gives the values later.

        Call it only where `can_wait`. Cost: one more pass over the gradients, to name those that
        are not finite.

        Args:
            loss: Mean loss of this rank's part of the step, one element.
            fed: What was handed out for it.
            skip_nonfinite: Leave an update out on the device where a norm is not finite.
        """
        # Before clipping, which makes every gradient NaN where the norm is NaN.
        names, flags = self._update.finite_flags()
        norm, limit = self._update.take_clipped(look=False)
        held = self._probes.hold()
        seen = {"loss": loss, "norm": norm}
        if self._ranks.count > 1 and held.root is not None:
            seen["hidden"] = held.numbers[0].double() / held.root
        # The collective comes before the update: one table decides on all ranks what is skipped.
        table = self._pool.pool_on_device(fed.samples, fed.tokens, **seen)
        # The flag stays on the device: reading it here would be the sync that this path avoids.
        broken = (~table[:, 1].isfinite().all()).float() if skip_nonfinite else None
        applied = self._update.apply(skip=False, broken=broken)
        self._state.count_step()
        # One vector and one copy for all values of the step; `read` splits it again in this order.
        parts = [table.flatten(), flags, *held.numbers]
        return LateRow(
            reading=DeviceReading(
                torch.cat([x.to(self._pool.device, torch.float64) for x in parts])
            ),
            lr=applied.lr,
            scheduled=applied.scheduled,
            limit=limit,
            noted=self._pool.take_noted(),
            fed=fed,
            position=self._state.position,
            may_skip=skip_nonfinite,
            names=names,
            held=held,
        )

    def read(self, late: LateRow) -> StepRow:
        """Wait for a late step, and return its row."""
        numbers = late.reading.read()
        self._clock.note_done(late.reading.done_at)
        size = self._ranks.count * len(fields(StepShare))
        whole = self._pool.read(numbers[:size].reshape(self._ranks.count, -1))
        labels: dict[str, str] = {}
        finite = math.isfinite(whole.norm)
        flags, rest = numbers[size : size + len(late.names)], numbers[size + len(late.names) :]
        bad = [name for name, good in zip(late.names, flags.tolist(), strict=True) if not good]
        if not finite and bad:
            labels["nonfinite_at"] = bad[0]
            labels["nonfinite_tensors"] = f"{len(bad)} of {len(self._update.parameters)}"
        self._pool.find_elsewhere(whole, labels)
        values = self._rows.values(
            whole,
            lr=late.lr,
            scheduled=late.scheduled,
            limit=late.limit,
            noted=late.noted,
            skipped=late.may_skip and not finite,
        )
        return StepRow(late.fed, values, labels, seen=self._probes.read(late.held, rest))

    def drop(self) -> None:
        """Throw away the step under way: its gradients, and what was measured of it."""
        self._update.drop_gradients()
        self._pool.forget_noted()
        self._probes.drop()
