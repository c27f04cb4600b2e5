"""The engine of the guard: one optimizer step measured, done, judged, written down.

It knows no policy: `recovery` decides when to go back, what to leave out and which factor to use.
Where several ranks train together, what is measured is of all of them, see `pooling`.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
import zlib
from functools import partial
from typing import TYPE_CHECKING, Any

from trimtab.detectors.judge import Judge
from trimtab.errors import ActError, ConfigError
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.distributed.step_reduction import (
    StepShare,
    StepSum,
    pool,
    share_on_device,
    whole_of,
)
from trimtab.guard.probes.batch import batch_statistics
from trimtab.guard.probes.cadence import Cadence
from trimtab.guard.probes.gradients import clip_gradients, first_nonfinite
from trimtab.guard.probes.suite import Probes
from trimtab.guard.state.decisions import (
    lr_factor,
    lr_limit,
    rewarm_factor,
    safe_exp,
    trained_parameters,
)
from trimtab.guard.state.run_state import RunState
from trimtab.guard.step.deferred_read import reads_late, update_unless
from trimtab.guard.step.precision import PrecisionSwitch
from trimtab.guard.step.schedules import apply_weight_decay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch

    from trimtab.detectors.contract import Finding
    from trimtab.guard.data.streams import Order
    from trimtab.guard.probes.suite import Measured
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.training_state import Training
    from trimtab.plan.policy import Policy

__all__ = ["Engine"]


class Engine(RunState):
    """See the module. One optimizer; one process, or several that train together."""

    def __init__(
        self,
        training: Training,
        data: Order | None,
        policy: Policy,
        recorder: Recorder,
        *,
        clip: float | None,
        ranks: Ranks | None = None,
        judge: Judge | None = None,
        output_layer: torch.nn.Module | None = None,
    ) -> None:
        """Take over the objects; nothing is changed until the first step."""
        super().__init__(
            training, data, policy, recorder, ranks=ranks or Ranks(), judge=judge or Judge()
        )
        self.clip = clip
        self.lr_override: Callable[[int], float] | None = None
        self.lr_undone: tuple[float, float] | None = None
        self.keeps_gradients = False
        """Whether the trainer drops the gradients of a step itself, after it."""
        self.faulted = False
        """Whether a fault of ours was noted on this rank; the others hear of it in the next step.
        """
        self.parameters = trained_parameters(training)
        self.names = {id(p): n for n, p in training.bare_model.named_parameters()}
        self.probes = Probes(
            training,
            self.parameters,
            ranks=self.ranks,
            output_layer=output_layer,
            cadence=Cadence.of(
                policy.probes_off,
                every_steps=policy.probe_every_steps,
                signs_every_steps=policy.probe_signs_every_steps,
            ),
        )
        self.batch_seen: dict[str, float] = {}
        """What was known of the batch before the step; the mean, where several make one."""
        self._num_seen = 0
        self._clipped: tuple[torch.Tensor, float | None] | None = None
        self._nonfinite: tuple[str, int] | None = None
        self.noted: dict[str, float] = {}
        """Further signals of the step under way, as this rank knows them."""
        self.on_gradients: Callable[[Callable[[], object]], object] = lambda look: look()
        """Runs what looks at gradients, in the midst of a step, where it cannot do harm."""
        self.looks_closely: Callable[[], bool] = lambda: False
        """Whether something is wrong, and early signs are to be read more often; the same on all
        ranks."""
        self.precision = PrecisionSwitch(training.model)
        self.scales_loss = False
        """Whether the backward pass is run here: else the loss scale is not ours to leave out."""
        self.stop_wanted: Callable[[], bool] = lambda: False
        """Whether this rank was asked to stop."""
        self.step_sum = StepSum(math.nan, math.nan, 0, 0)
        """The last step, of all ranks together."""
        self._shared_at = time.perf_counter()
        self.late = reads_late(policy.reads, self.parameters)
        """Whether the values of a calm step are read when the next one is about to be applied."""
        self._done_at: float | None = None
        """When the last step whose row was recorded was done; None before the first."""
        self._row_done_at: float | None = None
        self.position_then: int | None = None
        """Sample id that came next after a row that is acted upon only now; None: it is the next
        one."""

    @property
    def position(self) -> int:
        """Sample id that came next after the last finished step; 0 without data."""
        if self.position_then is not None:
            return self.position_then
        return self.data.position if self.data is not None else 0

    def set_precision(self, precision: str) -> None:
        """Run the forward pass in fp32 or bf16, without the loss scaler.

        Empty: as the run's own.
        """
        self.decisions.precision = precision
        self.precision.want(precision)

    @property
    def low_precision(self) -> str:
        """fp16 or bf16 where the forward pass was seen in it and can be run in another.

        Else empty.
        """
        changeable = self.scales_loss or not self.has_scaler
        return self.precision.seen if changeable and not self.decisions.precision else ""

    # -- one step ---------------------------------------------------------------------------

    def pool(self, loss: float, norm: float, samples: int, tokens: int) -> StepSum:
        """Return the step of all ranks together; all must call it."""
        hidden = self.probes.hidden.rms() if self.ranks.count > 1 else None
        share = self._share(samples, tokens, loss, norm, hidden)
        if self.late and self.ranks.count > 1:  # by the way of the late steps
            table = self.ranks.gather_tensor(share_on_device(share, self._device))
            self.step_sum = whole_of(table.to("cpu").numpy(), replicas=self._replicas)
        else:
            self.step_sum = pool(share, self.ranks, replicas=self._replicas)
        return self.step_sum

    @property
    def _replicas(self) -> int:
        return self.data.replicas if self.data is not None else 1

    @property
    def _device(self) -> torch.device:
        return self.parameters[0].device

    def _share(
        self,
        samples: int,
        tokens: int,
        loss: float = math.nan,
        norm: float = math.nan,
        hidden: float | None = None,
    ) -> StepShare:
        """Return this rank's share of the step; NaN stands for what is not read yet."""
        now = time.perf_counter()
        if self.late and self._done_at is not None:
            now = self._done_at  # the device may still be at this step
        took, self._shared_at = now - self._shared_at, now
        return StepShare(
            loss,
            norm,
            samples,
            tokens,
            math.nan if hidden is None else hidden,
            self.batch_seen.get("batch_compression", math.nan),
            self.batch_seen.get("batch_entropy", math.nan),
            took,
            float(self.faulted),
            float(self.stop_wanted()),
            float(zlib.crc32("\n".join(sorted(self.noted)).encode())) if self.noted else 0.0,
        )

    def step(
        self, loss: float, samples: int, tokens: int, *, skip_nonfinite: bool
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Clip, update or skip, advance the scheduler; return values and labels, of all ranks.

        Args:
            loss: Mean loss of this rank's part of the step.
            samples: Samples in it.
            tokens: Tokens in it.
            skip_nonfinite: Leave out an update whose gradient is not finite on any rank; the states
                of model and optimizer stay bit for bit.
        """
        scaler = self.live_scaler()
        norm, limit = self._take_clipped(look=True)
        whole = self.pool(loss, float(norm), samples, tokens)
        labels: dict[str, str] = {}
        self.on_gradients(lambda: self._look_at_gradients(whole, limit, labels))
        self._find_elsewhere(whole, labels)
        skip = skip_nonfinite and not math.isfinite(whole.norm)
        scale = scaler.get_scale() if scaler is not None else None
        scheduled = apply_weight_decay(self)
        lr, skipped = self._apply(scale, skip=skip)
        self._count_step()
        noted = self._pool_noted(whole)
        values = self._values(
            whole,
            lr=lr,
            scheduled=scheduled,
            limit=limit,
            noted=noted,
            skipped=skipped,
            scale=scale,
        )
        return values, labels

    def _values(
        self,
        whole: StepSum,
        *,
        lr: float,
        scheduled: Mapping[str, float],
        limit: float | None,
        noted: Mapping[str, float],
        skipped: bool,
        scale: float | None = None,
    ) -> dict[str, float]:
        """Return what is recorded of a step that was done, and count it."""
        values: dict[str, float] = {
            "loss": whole.loss,
            "perplexity": safe_exp(whole.loss),
            "grad_norm": whole.norm,
            "lr": lr,
            **scheduled,
        }
        if scale is not None:
            values["loss_scale"] = scale
        self._count(values, whole, limit)
        values |= {n: v for n, v in noted.items() if n not in values}
        if not skipped and not math.isfinite(whole.norm) and self.poisoned_step is None:
            self.poisoned_step = self.counters.step
        values["skipped"] = float(skipped)
        values["nonfinite"] = float(not (math.isfinite(whole.loss) and math.isfinite(whole.norm)))
        return values

    def _take_clipped(self, *, look: bool) -> tuple[torch.Tensor, float | None]:
        clipped, self._clipped = self._clipped, None
        return clipped or self._clip(look=look)

    def clip_ahead(self) -> tuple[float, float | None]:
        """Unscale and clip the gradients of the step under way; return norm and limit.

        `step` does it where it was not done yet.
        """
        self._clipped = self._clip(look=True)
        return float(self._clipped[0]), self._clipped[1]

    def _clip(self, *, look: bool) -> tuple[torch.Tensor, float | None]:
        """Unscale and clip; `look` for the first tensor that is not finite where the norm is
        not."""
        scaler = self.live_scaler()
        if scaler is not None:
            scaler.unscale_(self.training.optimizer)
        if self.training.note_new_groups():
            self.parameters[:] = trained_parameters(self.training)
        limit = None if self.clip is None else self.clip * self.decisions.clip_factor
        self._nonfinite = None
        find = partial(self.on_gradients, self._find_nonfinite) if look else None
        return clip_gradients(self.parameters, limit, self.ranks, look=find), limit

    def abandon_step(self) -> None:
        """Throw away what was made for the step under way.

        Gradients, and signals that were noted.
        """
        scaler = self.live_scaler()
        if self._clipped is not None and scaler is not None:
            scaler.update()  # it was told to unscale, and would refuse to do so again
        self._clipped = None
        self.noted.clear()
        self.training.optimizer.zero_grad(set_to_none=True)

    def _find_nonfinite(self) -> None:
        self._nonfinite = first_nonfinite(self.parameters, self.names)

    def _pool_noted(self, whole: StepSum) -> dict[str, float]:
        """Return the further signals of the step, means over the ranks; none where ranks differ."""
        noted, self.noted = self.noted, {}
        if self.ranks.count == 1 or not whole.noted:
            return noted if self.ranks.count == 1 else {}
        names = sorted(noted)
        means = self.ranks.gather([noted[name] for name in names]).mean(axis=0)
        return dict(zip(names, means.tolist(), strict=True))

    @property
    def has_scaler(self) -> bool:
        """Whether a loss scaler is in use, for which a gradient that overflows is normal."""
        return self.live_scaler() is not None

    def live_scaler(self) -> Any | None:
        """Return the loss scaler where it is in use.

        Not in a forward pass in fp32 or bf16 of ours.
        """
        scaler = self.training.scaler
        if self.decisions.precision:
            return None
        return scaler if scaler is not None and scaler.is_enabled() else None

    def _apply(
        self, scale: float | None, *, skip: bool, broken: torch.Tensor | None = None
    ) -> tuple[float, bool]:
        """Update at the rate asked for; return that rate, as the optimizer has it, and if skipped.

        With `broken` the device decides whether it is, which is not known here.
        The scheduler's own values are put back before it is advanced: it never sees ours.
        """
        training, scaler = self.training, self.live_scaler()
        groups = training.optimizer.param_groups
        planned = [g["lr"] for g in groups]
        asked = self.rates(planned)
        for g, lr in zip(groups, asked, strict=True):
            g["lr"] = lr
        effective = float(groups[0]["lr"])
        skipped = skip
        try:
            if not skip:
                if scaler is not None:
                    scaler.step(training.optimizer)
                elif broken is not None:
                    update_unless(training.optimizer, broken)
                else:
                    training.optimizer.step()
            if scaler is not None:
                scaler.update()
                assert scale is not None
                skipped = skip or bool(scaler.get_scale() < scale)
            self.lr_undone = None
            if asked != planned and [g["lr"] for g in groups] != asked:
                self.lr_undone = (effective, float(groups[0]["lr"]))
        finally:  # a step that fails under a factor must not leave it in the groups
            for g, lr in zip(groups, planned, strict=True):
                g["lr"] = lr
        if training.scheduler is not None:
            with warnings.catch_warnings() if skipped else contextlib.nullcontext():
                if skipped:  # torch warns where the first update of all was skipped
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                training.scheduler.step()
        if not skipped:
            self.on_gradients(self.probes.at_update)
        if not self.keeps_gradients:
            training.optimizer.zero_grad(set_to_none=True)
        return effective, skipped

    def rates(self, planned: list[Any]) -> list[Any]:
        """Return the rates of the next step, by group: the override's or the scheduler's, times
        the guard's factor.

        Raises:
            ConfigError: The override gives something that is not a rate.
        """  # noqa: D205
        factor = lr_factor(self.decisions.lr_cuts, self.counters.step + 1)
        factor *= rewarm_factor(self.decisions.rewarm, self.counters.step + 1)
        if self.lr_override is not None:
            rate: object = self.lr_override(self.counters.step + 1)
            if not isinstance(rate, int | float) or not (math.isfinite(rate) and rate >= 0):
                raise ConfigError(
                    f"override_lr: the schedule gives {rate!r} for step {self.counters.step + 1}, "
                    "expected a finite number of at least 0"
                )
            planned = [rate * share for share in self._group_shares()]
        limit = lr_limit(self.decisions.lr_limits, self.counters.step + 1)
        if planned[0] > limit:
            factor *= limit / planned[0]
        return planned if factor == 1.0 else [lr * factor for lr in planned]

    def _group_shares(self) -> list[float]:
        """Return each group's rate as launched, over the first group's."""
        first, *_ = base = [
            float(g.get("initial_lr", g["lr"])) for g in self.training.optimizer.param_groups
        ]
        return [lr / first if first > 0 else 1.0 for lr in base]

    def _count_step(self) -> None:
        self.counters.step += 1
        self.decisions.executed_steps += 1

    def _count(self, values: dict[str, float], whole: StepSum, limit: float | None) -> None:
        c = self.counters
        c.samples += whole.samples
        c.tokens += whole.tokens
        if limit is not None:
            clipped = whole.norm > limit
            c.measured += 1
            c.clipped += int(clipped)
            values["clipped"] = float(clipped)
            values["clip_frequency"] = c.clipped / c.measured
        values["batch_size"] = float(whole.samples)
        values["samples_seen"] = float(c.samples)
        values["tokens_seen"] = float(c.tokens)

    def before_forward(self, batch: Any, *, begins: bool) -> None:
        """Make the probes ready for a step where one begins, and look at a batch of it."""
        if begins:
            self.batch_seen, self._num_seen = {}, 0
            self.probes.arm(self.counters.step + 1, closely=self.looks_closely())
        seen = batch_statistics(batch) if self.probes.runs("batch") else {}
        self._num_seen += 1
        for name, value in seen.items():
            before = self.batch_seen.get(name, value)
            self.batch_seen[name] = before + (value - before) / self._num_seen

    def _look_at_gradients(
        self, whole: StepSum, limit: float | None, labels: dict[str, str]
    ) -> None:
        self.probes.at_gradients(whole.norm, limit)
        if self._nonfinite is not None:
            first, count = self._nonfinite
            labels["nonfinite_at"] = first
            labels["nonfinite_tensors"] = f"{count} of {len(self.parameters)}"

    def _find_elsewhere(self, whole: StepSum, labels: dict[str, str]) -> None:
        """Take the tensor that is not finite from the first rank that sees one: it may not be here.

        One collective, at steps whose norm is not finite; all ranks have the same norm and come.
        """
        if self.ranks.count == 1 or math.isfinite(whole.norm):
            return
        names = ("nonfinite_at", "nonfinite_tensors")
        seen: dict[str, str] = {n: labels[n] for n in names if n in labels}
        labels |= next((found for found in self.ranks.collect(seen) if found), {})

    def probe(self, values: dict[str, float], labels: dict[str, str]) -> dict[str, list[float]]:
        """Add what the probes saw of the step just done; return what they saw layer by layer.

        Raises:
            ActError: The rate that was asked for did not stay in force through the step, or what
                recovery rests on cannot be measured.
        """
        if self.step_sum.faulted:
            self.probes.call_off()  # another rank may not come to the collective
        self.probes.note_loss(self.step_sum.loss)
        return self._put_in(self.probes.take(), values, labels)

    def _put_in(
        self, found: Measured, values: dict[str, float], labels: dict[str, str]
    ) -> dict[str, list[float]]:
        whole = self.step_sum
        values |= found.values
        labels |= found.labels
        if self.ranks.count > 1:
            labels |= self._labels_of_ranks()
            if whole.hidden is not None:
                values["activation_norm"] = whole.hidden
        for name in ("batch_compression", "batch_entropy"):
            value = getattr(whole, name)
            if value is not None:
                values[name] = value
        if self.lr_undone is not None:
            asked, got = self.lr_undone
            raise ActError(
                f"step {self.counters.step}: learning rate {asked:g} was asked for and the "
                f"optimizer holds {got:g} after its step; something else sets it"
            )
        return found.layers

    def _labels_of_ranks(self) -> dict[str, str]:
        """Name the ranks that are not like the others, where there are such."""
        whole = self.step_sum
        marked = {"nonfinite_ranks": whole.broken_ranks, "odd_ranks": whole.odd_ranks}
        return {name: " ".join(map(str, found)) for name, found in marked.items() if found}

    def start_clock(self) -> None:
        """Begin to measure the time of a step."""
        self.step_started = self._shared_at = time.perf_counter()

    def record(self, values: dict[str, float], labels: Mapping[str, str]) -> None:
        """Append the row to the signals, with the time since the last one."""
        now = time.perf_counter() if self._row_done_at is None else self._row_done_at
        self._done_at, self._row_done_at = now, None
        values["step_time_s"], self.step_started = now - self.step_started, now
        if self.step_sum.step_time_s is not None:
            values["step_time_s"] = self.step_sum.step_time_s
        if self.step_sum.tokens and values["step_time_s"] > 0:
            values["throughput"] = self.step_sum.tokens / values["step_time_s"]
        self.recorder.sample(self.counters.step, values, labels)
        self.decisions.row += 1

    def judge_row(self, values: Mapping[str, float]) -> tuple[Finding, ...]:
        """Judge the row that was recorded last."""
        self.judge_state, findings = self.judge.update(
            self.judge_state, self.decisions.row - 1, float(self.counters.step), values
        )
        return findings
