"""The engine of the guard: one optimizer step measured, done, judged, written down; and going back.

It knows no policy: `recovery` decides when to go back, what to leave out and which factor to use.
"""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from trimtab.checkpoints.manifest import list_checkpoints, move_aside, newest_healthy, set_grade
from trimtab.detectors.judge import Judge
from trimtab.errors import ActError, ReadError
from trimtab.guard.codec import clone
from trimtab.guard.probes import ActivationProbe, UpdateProbe, adam_second_moment, global_grad_norm
from trimtab.guard.saving import load_state, save_state
from trimtab.guard.snapshots import Snapshot, SnapshotRing, capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.contract import Finding
    from trimtab.guard.data import DataOrder
    from trimtab.guard.recorder import Recorder
    from trimtab.guard.snapshots import Training
    from trimtab.plan.policy import Policy

__all__ = ["Counters", "Decisions", "Engine"]

THIN_PROBES_EVERY = 10
"""Steps between readings of Adam's moments and the update norm; their cost stays below 1 % so."""


@dataclass
class Counters:
    """Where the run is; rolled back with it."""

    step: int = 0
    """Last finished step."""
    samples: int = 0
    tokens: int = 0
    clipped: int = 0
    measured: int = 0


@dataclass
class Decisions:
    """What the guard decided and has spent; a rollback does not undo it."""

    lr_factor: float = 1.0
    clip_factor: float = 1.0
    skips: list[tuple[int, int]] = field(default_factory=list)
    rollbacks: int = 0
    executed_steps: int = 0
    """Optimizer steps done in all, trials and what was rolled back included."""
    probed_batches: int = 0
    """Forward passes without an update."""
    last_onsets: list[int] = field(default_factory=list)
    row: int = 0
    """Rows written, over all attempts."""
    minor: int = 0
    major: int = 1


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
        self.parameters = [p for g in training.optimizer.param_groups for p in g["params"]]
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
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Clip, update or skip, advance the scheduler; return what was measured.

        Args:
            loss: Mean loss of the step.
            samples: Samples in it.
            tokens: Tokens in it.
            skip_nonfinite: Leave out an update whose gradient is not finite; the states of model
                and optimizer stay bit for bit.
        """
        training, scaler = self.training, self.training.scaler
        if scaler is not None:
            scaler.unscale_(training.optimizer)
        limit = None if self.clip is None else self.clip * self.decisions.clip_factor
        if limit is None:
            norm = float(global_grad_norm(self.parameters))
        else:
            norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        finite = math.isfinite(norm)
        thin = (self.counters.step + 1) % THIN_PROBES_EVERY == 0
        if thin:
            self.update_probe.before()
        scale = scaler.get_scale() if scaler is not None else None
        lr = self._apply(skip=not finite and skip_nonfinite)
        skipped = (not finite and skip_nonfinite) or (scaler is not None and not finite)
        values: dict[str, float] = {
            "loss": loss,
            "perplexity": _exp(loss),
            "grad_norm": norm,
            "lr": lr,
        }
        if scale is not None:
            values["loss_scale"] = scale
        self._count(values, norm, limit, samples, tokens)
        values["skipped"] = float(skipped)
        values["nonfinite"] = float(not math.isfinite(loss)) + float(not finite)
        hidden = self.activation.take()
        if hidden is not None:
            values["activation_norm"] = float(hidden)
        labels = self._thin_probes(values) if thin else {}
        now = time.perf_counter()
        values["step_time_s"], self._step_started = now - self._step_started, now
        return values, labels

    def _apply(self, *, skip: bool) -> float:
        """Update with the guard's factor around the scheduler's rates; return the rate in force."""
        training = self.training
        groups = training.optimizer.param_groups
        planned = [g["lr"] for g in groups]
        factor = self.decisions.lr_factor
        for g in groups:
            g["lr"] = g["lr"] * factor if factor != 1.0 else g["lr"]
        effective = float(groups[0]["lr"])
        if training.scaler is not None:
            training.scaler.step(training.optimizer)
            training.scaler.update()
        elif not skip:
            training.optimizer.step()
        for g, lr in zip(groups, planned, strict=True):
            g["lr"] = lr
        if training.scheduler is not None:
            training.scheduler.step()
        training.optimizer.zero_grad(set_to_none=True)
        return effective

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

    def _thin_probes(self, values: dict[str, float]) -> dict[str, str]:
        update = self.update_probe.after()
        if update is not None:
            values["update_norm"] = update
        moment = adam_second_moment(self.training.optimizer, self.names)
        if moment is None:
            return {}
        values["adam_v_l1"], values["adam_v_max"], where = moment
        return {"adam_v_max_at": where}

    def write_and_judge(
        self, values: Mapping[str, float], labels: Mapping[str, str]
    ) -> tuple[Finding, ...]:
        """Append the row to the signals and judge it."""
        self.recorder.sample(self.counters.step, values, labels)
        self.judge_state, findings = self.judge.update(
            self.judge_state, self.decisions.row, float(self.counters.step), values
        )
        self.decisions.row += 1
        return findings

    # -- state ------------------------------------------------------------------------------

    def _payload(self) -> dict[str, Any]:
        return {
            "training": self.training.state(),
            "rng": capture_rng(),
            "data": self.data.state_dict() if self.data is not None else None,
            "judge": self.judge_state,
            "counters": asdict(self.counters),
        }

    def snapshot(self) -> Snapshot:
        """Copy the whole state into memory and keep it in the ring."""
        payload = clone(self._payload())
        position = self.data.position if self.data is not None else 0
        snapshot = Snapshot(self.counters.step, self.recorder.attempt, position, payload)
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
        """Write the state to disk, whole or not at all, and say so; retention spares pinned ones."""
        path = self.directory.checkpoint_of(self.counters.step)
        if path.exists():
            move_aside(path, self.directory.aside)
        payload = self._payload()
        payload["judge"] = self.judge_state.to_json(self.judge)
        payload["decisions"] = asdict(self.decisions)
        payload["skips"] = [list(s) for s in (self.data.skips if self.data is not None else ())]
        save_state(payload, path, step=self.counters.step, attempt=self.recorder.attempt)
        self.recorder.event(
            "checkpoint", step=self.counters.step, path=path.name, grade="healthy", why=why
        )
        self._retain()

    def _retain(self) -> None:
        whole = [
            c
            for c in list_checkpoints(self.directory.checkpoints)
            if c.grade == "healthy" and not c.pinned
        ]
        for old in whole[: -self.policy.checkpoints_kept]:
            shutil.rmtree(old.path)
            self.recorder.event(
                "checkpoint",
                step=self.counters.step,
                path=old.path.name,
                grade="removed",
                why="older than the newest kept ones",
            )

    def set_aside_after(self, step: int, why: str) -> None:
        """Grade the checkpoints after `step` poisoned and move them aside; pin the one before."""
        last: Any = None
        for checkpoint in list_checkpoints(self.directory.checkpoints):
            if checkpoint.step <= step:
                last = checkpoint
                continue
            set_grade(checkpoint.path, "poisoned", why)
            target = move_aside(checkpoint.path, self.directory.aside)
            self.recorder.event(
                "checkpoint",
                step=self.counters.step,
                path=str(target.relative_to(self.directory.root)),
                grade="poisoned",
                why=why,
            )
        if last is not None and not last.pinned:
            set_grade(last.path, last.grade, "last one before trouble", pinned=True)

    def resume(self) -> bool:
        """Load the newest whole and healthy checkpoint; False where there is none.

        Raises:
            ActError: It does not fit this run's objects; the message names the difference.
        """
        checkpoint = newest_healthy(self.directory.checkpoints)
        if checkpoint is None:
            return False
        state = load_state(checkpoint.path)
        try:
            self.judge_state = self.judge.state_from_json(state["judge"])
        except ReadError as error:
            self.judge_state = self.judge.start()
            self.recorder.attempt = checkpoint.attempt
            self.recorder.event(
                "note",
                step=checkpoint.step,
                author="trimtab",
                text=f"detectors start anew: {error}",
            )
        try:
            self.training.load(state["training"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise ActError(
                f"{checkpoint.path}: does not fit this model or optimizer ({error}); use the settings of the run, or another run directory"
            ) from error
        self._resume_decisions(state)
        restore_rng(state["rng"])
        self.recorder.event(
            "resume",
            step=checkpoint.step,
            checkpoint=checkpoint.path.name,
            from_attempt=checkpoint.attempt,
        )
        return True

    def _resume_decisions(self, state: dict[str, Any]) -> None:
        self.counters = Counters(**state["counters"])
        saved = dict(state["decisions"])
        saved["skips"] = [tuple(s) for s in saved["skips"]]
        self.decisions = Decisions(**saved)
        if self.data is not None and state["data"] is not None:
            for first, last in state["skips"]:
                self.data.skip(int(first), int(last))
            self.data.load_state_dict(state["data"])


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf
