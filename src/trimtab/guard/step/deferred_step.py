"""An engine that can also do a step whose values are read when the next one is about to be
applied."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.step_reduction import StepShare, share_on_device, whole_of
from trimtab.guard.probes.gradients import finite_flags
from trimtab.guard.step.deferred_read import LateRow, Reading, skips_on_device
from trimtab.guard.step.engine import Engine
from trimtab.guard.step.schedules import apply_weight_decay

if TYPE_CHECKING:
    from trimtab.guard.data.order import Fed
    from trimtab.guard.probes.suite import Measured

__all__ = ["LateEngine"]


class LateEngine(Engine):
    """See the module; `late` says how the pieces work."""

    def can_wait(self, *, skip_nonfinite: bool) -> bool:
        """Whether all that the step under way gives can be read later; arguments as for `step`."""
        return (
            self.late
            and self.probes.quiet
            and not self.has_scaler
            and not (self.noted and self.ranks.count > 1)
            and (not skip_nonfinite or skips_on_device(self.training.optimizer))
        )

    def step_late(self, loss: torch.Tensor, fed: Fed, *, skip_nonfinite: bool) -> LateRow:
        """Do as `step` does, but read nothing; `read` gives the values later.

        Only where `can_wait`. Cost: one more pass over the gradients, to name those that are not
        finite.

        Args:
            loss: Mean loss of this rank's part of the step, one element.
            fed: What was handed out for it.
            skip_nonfinite: As for `step`; decided on the device.
        """
        owners, flags = finite_flags(self.parameters)  # clipping by NaN makes all of them NaN
        norm, limit = self._take_clipped(look=False)
        held = self.probes.hold()
        seen = {"loss": loss, "norm": norm}
        if self.ranks.count > 1 and held.root is not None:
            seen["hidden"] = held.numbers[0].double() / held.root
        share = share_on_device(self._share(fed.samples, fed.tokens), self._device, **seen)
        table = self.ranks.gather_tensor(share)
        broken = (~table[:, 1].isfinite().all()).float() if skip_nonfinite else None
        scheduled = apply_weight_decay(self)
        lr, _ = self._apply(None, skip=False, broken=broken)
        self._count_step()
        parts = [table.flatten(), flags, *held.numbers]
        noted, self.noted = self.noted, {}
        return LateRow(
            reading=Reading(torch.cat([x.to(self._device, torch.float64) for x in parts])),
            lr=lr,
            scheduled=scheduled,
            limit=limit,
            noted=noted,
            fed=fed,
            position=self.position,
            may_skip=skip_nonfinite,
            names=tuple(self.names.get(id(p), "?") for p in owners),
            held=held,
        )

    def read(self, row: LateRow) -> tuple[dict[str, float], dict[str, str], Measured]:
        """Wait for a late step; return its values and labels, as `step` does.

        And what probes saw.
        """
        numbers = row.reading.read()
        self._row_done_at = row.reading.done_at
        size = self.ranks.count * len(fields(StepShare))
        table = numbers[:size].reshape(self.ranks.count, -1)
        whole = self.step_sum = whole_of(table, replicas=self._replicas)
        labels: dict[str, str] = {}
        finite = math.isfinite(whole.norm)
        flags, rest = numbers[size : size + len(row.names)], numbers[size + len(row.names) :]
        bad = [name for name, good in zip(row.names, flags.tolist(), strict=True) if not good]
        if not finite and bad:
            labels["nonfinite_at"] = bad[0]
            labels["nonfinite_tensors"] = f"{len(bad)} of {len(self.parameters)}"
        self._find_elsewhere(whole, labels)
        values = self._values(
            whole,
            lr=row.lr,
            scheduled=row.scheduled,
            limit=row.limit,
            noted=row.noted,
            skipped=row.may_skip and not finite,
        )
        return values, labels, self.probes.read(row.held, rest)

    def drop_step(self) -> None:
        """Throw away the step under way: its gradients, and what was measured of it."""
        self.training.optimizer.zero_grad(set_to_none=True)
        self._clipped, self.noted = None, {}
        self.probes.drop()

    def put_in_late(
        self, found: Measured, values: dict[str, float], labels: dict[str, str]
    ) -> dict[str, list[float]]:
        """Do as `probe` does with what `read` gave.

        Raises:
            ActError: As for `probe`.
        """
        self.probes.note_loss(self.step_sum.loss)
        return self._put_in(found, values, labels)
