"""The optimizer's step: gradients unscaled and clipped, the update done or left out.

It knows no policy: whether an update is to be left out is an argument.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from trimtab.guard.probes.gradients import clip_gradients, finite_flags, first_nonfinite
from trimtab.guard.state.decisions import trained_parameters
from trimtab.guard.step.deferred_read import update_unless
from trimtab.guard.step.forward_buffers import ForwardBuffers
from trimtab.guard.step.outside_steps import OutsideSteps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.distributed.step_reduction import StepSum
    from trimtab.guard.probes.suite import Probes
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.step.precision import Precision
    from trimtab.guard.step.rates import Rates

__all__ = ["Applied", "OptimizerStep", "OutsideUpdate"]


class OutsideUpdate(Protocol):
    """A trainer that clips and updates by itself, in one call."""

    def update(self) -> tuple[torch.Tensor, float | None]:
        """Clip and update; return the norm before clipping, and the limit."""

    def was_applied(self) -> bool:
        """Whether the last update was done, and not left out."""


@dataclass(frozen=True)
class Applied:
    """What came of an update."""

    lr: float
    """Rate of the first group, as the optimizer had it."""
    scheduled: dict[str, float]
    """The weight decay, where it follows a schedule."""
    skipped: bool
    """Whether the update was left out, as far as the host knows."""
    scale: float | None
    """Loss scale before the update; None without a scaler."""


class OptimizerStep:
    """Clips, updates or skips, and advances the scheduler."""

    def __init__(
        self,
        state: RunState,
        *,
        clip: float | None,
        parameters: list[torch.Tensor],
        rates: Rates,
        precision: Precision,
        probes: Probes,
        ranks: Ranks,
        holders: Holders,
        run_probe: Callable[[Callable[[], object]], object],
    ) -> None:
        """Take over an optimizer; nothing is changed before the first step.

        Args:
            state: Of the run.
            clip: Largest global gradient norm; None: no clipping.
            parameters: The trained ones in the model's order; kept up to date in place.
            rates: Give the rates of each step.
            precision: Gives the loss scaler in use.
            probes: Look at gradients and at the update.
            ranks: Those that train together.
            holders: Which of them hold which part of the model.
            run_probe: Runs what looks at gradients, where its failure does no harm.
        """
        self.parameters = parameters
        self._names = {id(p): n for n, p in state.training.bare_model.named_parameters()}
        self._state = state
        self._clip = clip
        self._rates = rates
        self._precision = precision
        self._probes = probes
        self._ranks = ranks
        self._holders = holders
        self._run_probe = run_probe
        self._clipped: tuple[torch.Tensor, float | None] | None = None
        self._nonfinite: tuple[str, int] | None = None
        self._lr_undone: tuple[float, float] | None = None
        self._keeps_gradients = False
        self._frees_late = False
        self._stale = False
        """Whether the gradients are those of a step that is done."""
        self._outside: OutsideUpdate | None = None
        self._buffers = ForwardBuffers(state.training.bare_model)
        self.outside_steps = OutsideSteps(state.training)
        state.on_restore(self.outside_steps.went_back)

    # -- how a trainer sets it up -----------------------------------------------------------

    @property
    def clip(self) -> float | None:
        """Largest global gradient norm before the guard's own factor; None: no clipping."""
        return self._clip

    def set_clip(self, limit: float | None) -> None:
        """Clip to another norm from the next step on."""
        self._clip = limit

    def clip_in_order(self, parameters: Sequence[torch.Tensor]) -> None:
        """Sum the norm in this order: its last bits depend on it."""
        self.parameters[:] = parameters

    def keep_gradients(self) -> None:
        """Leave the gradients of a step in place: the trainer drops them itself, after it."""
        self._keeps_gradients = True

    def free_gradients_late(self, *, late: bool) -> None:
        """Free the gradients of a step by `free_gradients`, and not with its update, on a CPU.

        There the next backward pass takes up to a fiftieth longer where they were freed long before
        it: their memory has gone back to the system. An accelerator's allocator keeps it.
        """
        on_cpu = bool(self.parameters) and self.parameters[0].device.type == "cpu"
        self._frees_late = late and on_cpu
        if not self._frees_late:
            self.free_gradients()

    def free_gradients(self) -> None:
        """Drop the gradients of a step that is done; those of one under way stay."""
        if self._stale:
            self.zero_grad()

    def hand_over(self, update: OutsideUpdate) -> None:
        """Have a trainer clip and update where the guard would clip.

        The guard's own optimizer step follows and must then do nothing.
        """
        self._outside = update

    @property
    def lr_undone(self) -> tuple[float, float] | None:
        """Rate asked for and rate found after the step, where something else set it."""
        return self._lr_undone

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return a parameter's name in the model."""
        return self._names.get(id(parameter), "?")

    def keep_buffers(self) -> None:
        """Remember the buffers that a forward pass may change; before that of a step."""
        self._buffers.keep()

    # -- clipped ----------------------------------------------------------------------------

    def clip_ahead(self) -> tuple[float, float | None]:
        """Unscale and clip the gradients of the step under way; return norm and limit.

        `take_clipped` then does not do it again.
        """
        self._clipped = self._clip_now(look=True)
        return float(self._clipped[0]), self._clipped[1]

    def note_clipped(self, norm: torch.Tensor, limit: float | None) -> None:
        """Take note that a trainer has clipped the gradients of the step under way itself."""
        self._clipped = (norm, limit)

    def take_clipped(self, *, look: bool) -> tuple[torch.Tensor, float | None]:
        """Return norm and limit of the step; clip where that was not done yet.

        Args:
            look: Find the first tensor that is not finite where the norm is not.
        """
        clipped, self._clipped = self._clipped, None
        if clipped is not None:  # maybe by the trainer itself
            self._settle_holders()
        return clipped or self._clip_now(look=look)

    def _clip_now(self, *, look: bool) -> tuple[torch.Tensor, float | None]:
        if self._outside is not None:
            with self.outside_steps:
                return self._outside.update()
        training, scaler = self._state.training, self._precision.scaler
        if scaler is not None:
            scaler.unscale_(training.optimizer)
        # A loop may add or unfreeze groups at any step; they are clipped from that step on.
        if training.note_new_groups():
            self.parameters[:] = trained_parameters(training)
        limit = None if self._clip is None else self._clip * self._state.decisions.clip_factor
        self._nonfinite = None
        self._settle_holders()
        find = partial(self._run_probe, self._find_nonfinite) if look else None
        norm = clip_gradients(self.parameters, limit, self._ranks, self._holders, look=find)
        return norm, limit

    def measure_norm(self) -> float:
        """Return the gradient norm of all ranks without clipping; all ranks must call it."""
        self._settle_holders()
        return float(clip_gradients(self.parameters, None, self._ranks, self._holders))

    def _settle_holders(self) -> None:
        self._holders.settle(self.parameters, gives_loss=self._probes.gives_loss)

    def _find_nonfinite(self) -> None:
        self._nonfinite = first_nonfinite(self.parameters, self._names)

    def finite_flags(self) -> tuple[tuple[str, ...], torch.Tensor]:
        """Return the names of the tensors with a gradient, and which gradients are finite.

        The flags stay on the device. Call it before clipping, which makes all gradients NaN where
        the norm is NaN.
        """
        owners, flags = finite_flags(self.parameters)
        return tuple(map(self.name_of, owners)), flags

    def look_at_gradients(self, whole: StepSum, limit: float | None) -> dict[str, str]:
        """Run the probes of the gradients; return what they name."""
        labels: dict[str, str] = {}

        def look() -> None:
            self._probes.at_gradients(whole.norm, limit)
            if self._nonfinite is not None:
                first, count = self._nonfinite
                labels["nonfinite_at"] = first
                labels["nonfinite_tensors"] = f"{count} of {len(self.parameters)}"

        self._run_probe(look)
        return labels

    # -- applied or left out ----------------------------------------------------------------

    def apply(self, *, skip: bool, broken: torch.Tensor | None = None) -> Applied:
        """Update at the rates of this step, and advance the scheduler.

        The scheduler's own values are put back before it is advanced: it never sees ours.

        Args:
            skip: Leave the update out; states of model and optimizer stay bit for bit, and small
                buffers go back to what they were before the forward pass.
            broken: Float32 scalar on the device; where it is 1 the device leaves the update out,
                which the host does not know yet.
        """
        training, scaler = self._state.training, self._precision.scaler
        # `get_scale` waits for the device. A lowered scale afterwards is the public sign of a skip.
        scale = scaler.get_scale() if scaler is not None and broken is None else None
        scheduled = self._rates.apply_weight_decay()
        groups = training.optimizer.param_groups
        planned = [g["lr"] for g in groups]
        # The guard's rates are in the groups for this one update only; see `finally` below.
        asked = self._rates.next_rates(planned)
        for g, lr in zip(groups, asked, strict=True):
            g["lr"] = lr
        effective = float(groups[0]["lr"])
        skipped = skip
        try:
            if not skip:
                with self.outside_steps:
                    self._update(broken)
            if scaler is not None:
                scaler.update()
                assert scale is not None
                skipped = skip or bool(scaler.get_scale() < scale)
            self._settle_buffers(skip=skip, broken=broken)
            self._lr_undone = None
            if asked != planned and [g["lr"] for g in groups] != asked:
                self._lr_undone = (effective, float(groups[0]["lr"]))
        finally:  # a step that fails under a factor must not leave it in the groups
            for g, lr in zip(groups, planned, strict=True):
                g["lr"] = lr
        if training.scheduler is not None:
            with warnings.catch_warnings() if skipped else contextlib.nullcontext():
                if skipped:  # torch warns where the first update of all was skipped
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                training.scheduler.step()
            self.outside_steps.note_scheduled()
        if not skipped:
            self._run_probe(self._probes.at_update)
        # After the probes: the optimizer's state is compared with the gradients that it has used.
        if not self._keeps_gradients:
            self._stale = True
            if not self._frees_late:
                self.free_gradients()
        if self._outside is not None:
            skipped = skipped or not self._outside.was_applied()
        return Applied(effective, scheduled, skipped, scale)

    def _update(self, broken: torch.Tensor | None) -> None:
        optimizer, scaler = self._state.training.optimizer, self._precision.scaler
        if scaler is not None:
            scaler.step(optimizer)
        elif broken is not None:
            update_unless(optimizer, broken)
        else:
            optimizer.step()

    def _settle_buffers(self, *, skip: bool, broken: torch.Tensor | None) -> None:
        if skip or broken is not None:
            self._buffers.put_back(where=None if skip else broken)
        else:
            self._buffers.forget()

    # -- thrown away ------------------------------------------------------------------------

    def abandon(self) -> None:
        """Throw away the gradients of the step under way, at the user's wish."""
        scaler = self._precision.scaler
        if self._clipped is not None and scaler is not None:
            scaler.update()  # it has unscaled, and refuses to do so again before `update`
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Throw away the gradients of the step under way."""
        self._clipped = None
        self.zero_grad()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self._stale = False
        self._state.training.optimizer.zero_grad(set_to_none=True)
