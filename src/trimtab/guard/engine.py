"""The engine of the guard: one optimizer step measured, done, judged, written down; and going back.

It knows no policy: `recovery` decides when to go back, what to leave out and which factor to use.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from trimtab.detectors.judge import Judge
from trimtab.errors import ActError, ConfigError, ReadError
from trimtab.guard.codec import clone
from trimtab.guard.probes import ActivationProbe, UpdateProbe, adam_second_moment, global_grad_norm
from trimtab.guard.snapshots import Snapshot, SnapshotRing, capture_rng, restore_rng
from trimtab.guard.standing import Counters, Decisions, lr_factor, safe_exp, trained_parameters
from trimtab.guard.store import Store
from trimtab.readers.rundir import read_run_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.checkpoints.manifest import CheckpointOnDisk
    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.contract import Finding
    from trimtab.guard.data import DataOrder
    from trimtab.guard.recorder import Recorder
    from trimtab.guard.snapshots import Training
    from trimtab.plan.policy import Policy

__all__ = ["Engine"]

THIN_PROBES_EVERY = 10
"""Steps between readings of Adam's moments and the update norm; their cost stays below 1 % so."""


class Engine:
    """See the module. One process; one optimizer."""

    def __init__(
        self,
        training: Training,
        data: DataOrder | None,
        policy: Policy,
        recorder: Recorder,
        *,
        clip: float | None,
        judge: Judge | None = None,
        output_layer: torch.nn.Module | None = None,
    ) -> None:
        """Take over the objects; nothing is changed until the first step."""
        self.training = training
        self.data = data
        self.policy = policy
        self.recorder = recorder
        self.clip = clip
        self.judge = judge or Judge()
        self.judge_state = self.judge.start()
        self.counters = Counters()
        self.decisions = Decisions()
        self.ring = SnapshotRing(policy.snapshots_kept)
        self.store = Store(recorder, keep=policy.checkpoints_kept)
        self.saved_step = -1
        """Step of the newest checkpoint that this process saved or loaded."""
        self.resumed: list[tuple[str, dict[str, Any]]] = []
        """Events of a resume, its own last; written once the attempt it begins has its number."""
        self.lr_override: Callable[[int], float] | None = None
        self.lr_undone: tuple[float, float] | None = None
        self.parameters = trained_parameters(training)
        self.names = {id(p): n for n, p in training.model.named_parameters()}
        self.activation = ActivationProbe(training.model, output_layer)
        self.update_probe = UpdateProbe(self.parameters)
        self._step_started = time.perf_counter()

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return self.recorder.directory

    # -- one step ---------------------------------------------------------------------------

    def step(
        self, loss: float, samples: int, tokens: int, *, skip_nonfinite: bool
    ) -> dict[str, float]:
        """Clip, update or skip, advance the scheduler; return what was measured.

        Args:
            loss: Mean loss of the step.
            samples: Samples in it.
            tokens: Tokens in it.
            skip_nonfinite: Leave out an update whose gradient is not finite; the states of model
                and optimizer stay bit for bit.
        """
        training, scaler = self.training, self._live_scaler()
        if scaler is not None:
            scaler.unscale_(training.optimizer)
        limit = None if self.clip is None else self.clip * self.decisions.clip_factor
        if limit is None:
            norm = float(global_grad_norm(self.parameters))
        else:
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        skip = skip_nonfinite and not math.isfinite(norm)
        scale = scaler.get_scale() if scaler is not None else None
        lr, skipped = self._apply(scale, skip=skip)
        values: dict[str, float] = {
            "loss": loss,
            "perplexity": safe_exp(loss),
            "grad_norm": norm,
            "lr": lr,
        }
        if scale is not None:
            values["loss_scale"] = scale
        self._count(values, norm, limit, samples, tokens)
        values["skipped"] = float(skipped)
        values["nonfinite"] = float(not (math.isfinite(loss) and math.isfinite(norm)))
        return values

    def _live_scaler(self) -> Any | None:
        scaler = self.training.scaler
        return scaler if scaler is not None and scaler.is_enabled() else None

    def _apply(self, scale: float | None, *, skip: bool) -> tuple[float, bool]:
        """Update at the rate asked for; return that rate, as the optimizer has it, and if skipped.

        The scheduler's own values are put back before it is advanced: it never sees ours.
        """
        training, scaler = self.training, self._live_scaler()
        groups = training.optimizer.param_groups
        planned = [g["lr"] for g in groups]
        asked = self.rates(planned)
        for g, lr in zip(groups, asked, strict=True):
            g["lr"] = lr
        effective = float(groups[0]["lr"])
        skipped = skip
        if not skip:
            if scaler is not None:
                scaler.step(training.optimizer)
            else:
                training.optimizer.step()
        if scaler is not None:
            scaler.update()
            assert scale is not None
            skipped = skip or bool(scaler.get_scale() < scale)
        self.lr_undone = None
        if asked != planned and [g["lr"] for g in groups] != asked:
            self.lr_undone = (effective, float(groups[0]["lr"]))
        for g, lr in zip(groups, planned, strict=True):
            g["lr"] = lr
        if training.scheduler is not None:
            with warnings.catch_warnings() if skipped else contextlib.nullcontext():
                if skipped:  # torch warns where the first update of all was skipped
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                training.scheduler.step()
        training.optimizer.zero_grad(set_to_none=True)
        return effective, skipped

    def rates(self, planned: list[Any]) -> list[Any]:
        """Return the rates of the next step, by group: the override's or the scheduler's, times
        the guard's factor.

        Raises:
            ConfigError: The override gives something that is not a rate.
        """  # noqa: D205
        factor = lr_factor(self.decisions.lr_cuts, self.counters.step + 1)
        if self.lr_override is not None:
            rate: object = self.lr_override(self.counters.step + 1)
            if not isinstance(rate, int | float) or not (math.isfinite(rate) and rate >= 0):
                raise ConfigError(
                    f"override_lr: the schedule gives {rate!r} for step {self.counters.step + 1}, "
                    "expected a finite number of at least 0"
                )
            planned = [rate * share for share in self._group_shares()]
        return planned if factor == 1.0 else [lr * factor for lr in planned]

    def _group_shares(self) -> list[float]:
        """Return each group's rate as launched, over the first group's."""
        first, *_ = base = [
            float(g.get("initial_lr", g["lr"])) for g in self.training.optimizer.param_groups
        ]
        return [lr / first if first > 0 else 1.0 for lr in base]

    def _count(
        self, values: dict[str, float], norm: float, limit: float | None, samples: int, tokens: int
    ) -> None:
        c = self.counters
        c.step += 1
        c.samples += samples
        c.tokens += tokens
        self.decisions.executed_steps += 1
        if limit is not None:
            clipped = norm > limit
            c.measured += 1
            c.clipped += int(clipped)
            values["clipped"] = float(clipped)
            values["clip_frequency"] = c.clipped / c.measured
        values["batch_size"] = float(samples)
        values["samples_seen"] = float(c.samples)
        values["tokens_seen"] = float(c.tokens)

    def before_step(self) -> None:
        """Remember what the update will change, every `THIN_PROBES_EVERY` steps."""
        if (self.counters.step + 1) % THIN_PROBES_EVERY == 0:
            self.update_probe.before()

    def probe(self, values: dict[str, float], labels: dict[str, str]) -> None:
        """Add what the probes saw of the step just done.

        Raises:
            ActError: The rate that was asked for did not stay in force through the step.
        """
        hidden = self.activation.take()
        if hidden is not None:
            values["activation_norm"] = hidden
        if self.counters.step % THIN_PROBES_EVERY == 0:
            update = self.update_probe.after()
            if update is not None:
                values["update_norm"] = update
            moment = adam_second_moment(self.training.optimizer, self.names)
            if moment is not None:
                values["adam_v_l1"], values["adam_v_max"], labels["adam_v_max_at"] = moment
        if self.lr_undone is not None:
            asked, found = self.lr_undone
            raise ActError(
                f"step {self.counters.step}: learning rate {asked:g} was asked for and the "
                f"optimizer holds {found:g} after its step; something else sets it"
            )

    def start_clock(self) -> None:
        """Begin to measure the time of a step."""
        self._step_started = time.perf_counter()

    def record(self, values: dict[str, float], labels: Mapping[str, str]) -> None:
        """Append the row to the signals, with the time since the last one."""
        now = time.perf_counter()
        values["step_time_s"], self._step_started = now - self._step_started, now
        self.recorder.sample(self.counters.step, values, labels)
        self.decisions.row += 1

    def judge_row(self, values: Mapping[str, float]) -> tuple[Finding, ...]:
        """Judge the row that was recorded last."""
        self.judge_state, findings = self.judge.update(
            self.judge_state, self.decisions.row - 1, float(self.counters.step), values
        )
        return findings

    # -- state ------------------------------------------------------------------------------

    def _payload(self) -> dict[str, Any]:
        return {
            "training": self.training.state(),
            "rng": capture_rng(),
            "data": self.data.state_dict() if self.data is not None else None,
            "judge": self.judge_state,
            "counters": asdict(self.counters),
            "position": self.data.position if self.data is not None else 0,
        }

    def snapshot(self) -> Snapshot:
        """Copy the whole state into memory and keep it in the ring."""
        payload = clone(self._payload())
        snapshot = Snapshot(self.counters.step, self.recorder.attempt, payload["position"], payload)
        self.ring.add(snapshot)
        return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; what the guard decided stays."""
        payload = snapshot.payload
        self.training.load(payload["training"])
        restore_rng(payload["rng"])
        if self.data is not None:
            self.data.load_state_dict(payload["data"])
        self.judge_state = payload["judge"]
        self.counters = Counters(**payload["counters"])
        self.training.optimizer.zero_grad(set_to_none=True)
        self._step_started = time.perf_counter()

    def begin_attempt(
        self, *, parent: str | None, parent_step: int | None, why: str, trial: bool, **more: Any
    ) -> None:
        """Number and open a new attempt."""
        d = self.decisions
        number = f"{d.major}.{d.minor}"
        d.minor += 1
        self.recorder.start_attempt(
            number,
            step=self.counters.step,
            parent=parent,
            parent_step=parent_step,
            why=why,
            trial=trial,
            **more,
        )

    # -- disk -------------------------------------------------------------------------------

    def save_checkpoint(self, why: str) -> None:
        """Write the state to disk, whole or not at all, and say so.

        Raises:
            ActError: It cannot be saved.
        """
        payload = self._payload()
        payload["judge"] = self.judge_state.to_json(self.judge)
        payload["standing"] = self.standing()
        payload["settings"] = self.training.settings
        payload["data_shape"] = self.data.shape if self.data is not None else None
        self.store.save(payload, step=self.counters.step, why=why)
        self.saved_step = self.counters.step

    def standing(self) -> dict[str, Any]:
        """Return the decisions in force, as JSON values: they outlive rollbacks and restarts."""
        skips = self.data.skips if self.data is not None else ()
        return {**asdict(self.decisions), "skips": [list(s) for s in skips]}

    def restore_point(self, step: int) -> Snapshot | None:
        """Return the newest state at or before `step`, from memory or else from disk."""
        snapshot = self.ring.before(step)
        return snapshot or self._from_disk(self.store.newest_before(step))

    def oldest_restore_point(self) -> Snapshot | None:
        """Return the oldest state there is."""
        oldest, on_disk = self.oldest_step(), self.store.oldest_step()
        if on_disk is not None and on_disk == oldest:
            found = self._from_disk(self.store.newest_before(on_disk))
            if found is not None:
                return found
        return self.ring.items[0] if self.ring.items else None

    def oldest_step(self) -> int | None:
        """Return the step of the oldest state there is; None without any."""
        steps = [s.step for s in self.ring.items[:1]]
        on_disk = self.store.oldest_step()
        return min([*steps, *([] if on_disk is None else [on_disk])], default=None)

    def _from_disk(self, checkpoint: CheckpointOnDisk | None) -> Snapshot | None:
        if checkpoint is None:
            return None
        state = self.store.load(checkpoint)
        state["judge"] = self.judge.state_from_json(state["judge"])
        position = 0 if state["data"] is None else int(state["position"])
        return Snapshot(checkpoint.step, checkpoint.attempt, position, state)

    def resume(self) -> dict[str, Any] | None:
        """Load the newest whole and healthy checkpoint; return its random states, None without one.

        Raises:
            ActError: It does not fit this run's objects; the message names the difference.
        """
        checkpoint = self.store.newest()
        decided = self.store.decided_since(checkpoint)
        if checkpoint is None:
            self._take_over(decided)
            return None
        state = self.store.load(checkpoint)
        try:
            self._put_back(state, decided)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ActError(
                f"{checkpoint.path}: does not fit this model or optimizer ({error}); use the settings of the run, or another run directory"
            ) from error
        self.saved_step = checkpoint.step
        other = self.data.differs(state.get("data_shape")) if self.data is not None else ""
        if other:
            self.resumed.append(("note", {"author": "trimtab", "text": other}))
        seen = {"checkpoint": checkpoint.path.name, "from_attempt": checkpoint.attempt}
        self.resumed.append(("resume", seen))
        rng: dict[str, Any] = state["rng"]
        return rng

    def _put_back(self, state: dict[str, Any], decided: dict[str, Any] | None) -> None:
        """Put a loaded state into this run's objects."""
        self.training.check_settings(state["settings"])
        try:
            self.judge_state = self.judge.state_from_json(state["judge"])
        except ReadError as error:
            self.judge_state = self.judge.start()
            text = f"detectors start anew: {error}"
            self.resumed.append(("note", {"author": "trimtab", "text": text}))
        self.training.load(state["training"])
        self.counters = Counters(**state["counters"])
        self._take_over(decided or state["standing"])
        if self.data is not None and state["data"] is not None:
            self.data.load_state_dict(state["data"])
        restore_rng(state["rng"])

    def _take_over(self, decided: dict[str, Any] | None) -> None:
        """Put decisions in force again, and count on from the rows that are on disk."""
        saved = dict(decided or {})
        skips = saved.pop("skips", [])
        self.decisions = Decisions(**saved)
        try:
            self.decisions.row = read_run_directory(self.directory.root).num_rows
        except ReadError:  # no rows yet
            self.decisions.row = 0
        if self.data is not None:
            for first, last in skips:
                self.data.skip(int(first), int(last))
