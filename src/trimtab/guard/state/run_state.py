"""The state of a guarded run: measured from, put back, saved and found again, as one whole.

Where several ranks train together each of them holds its part of it. What they hold in common is
saved once, sharded tensors shard by shard; random states and the position in the data are saved by
rank. A run goes on with another number of ranks too: see `RunState.resume`.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.errors import ActError, ConfigError, ReadError
from trimtab.guard.data.order import sample_range
from trimtab.guard.probes.finite import unsound
from trimtab.guard.state.checkpoint_store import Store
from trimtab.guard.state.decisions import Counters, Decisions, read_decisions
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.training_state import Snapshot, SnapshotRing, capture_rng, restore_rng
from trimtab.guard.step.actuators import enforce

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.checkpoints.manifest import CheckpointOnDisk
    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.detectors.judge import Judge
    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.training_state import Training
    from trimtab.plan.policy import Policy

__all__ = ["RunState"]

_OWN = ("rng", "data")
"""What differs from rank to rank."""


class RunState:
    """Everything that decides the future of a run, and what was decided about it."""

    def __init__(
        self,
        training: Training,
        data: Order | None,
        policy: Policy,
        recorder: Recorder,
        *,
        ranks: Ranks,
        judge: Judge,
    ) -> None:
        """Take over the objects; nothing is changed."""
        self.training = training
        self.data = data
        self.policy = policy
        self.recorder = recorder
        self.ranks = ranks
        self.judge = judge
        self.judge_state = judge.start()
        self.counters = Counters()
        self.decisions = Decisions()
        self.ring = SnapshotRing(policy.snapshots_kept)
        copy_to = Path(policy.copy_to) if policy.copy_to else None
        self.store = Store(recorder, ranks=ranks, keep=policy.checkpoints_kept, copy_to=copy_to)
        self.saved_step = -1
        """Step of the newest checkpoint that this process saved or loaded."""
        self.resumed: list[tuple[str, dict[str, Any]]] = []
        """Events of a resume, its own last; written once the attempt it begins has its number."""
        self.weight_decay: Callable[[int], float] | None = None
        """Weight decay by step, where it follows one; counted from 1."""
        self._order_noted = False
        self.poisoned_step: int | None = None
        """Step of an update with a gradient that was not finite, which nothing has undone since."""
        self.on_restore: list[Callable[[int], None]] = []
        """Called with the step each time a state was put back."""
        self.step_started = time.perf_counter()

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return self.recorder.directory

    # -- in memory --------------------------------------------------------------------------

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
        """Copy the whole state into memory, and keep it in the ring where it is finite."""
        snapshot = self.capture()
        what = self.unsound()
        if not what:
            self.ring.add(snapshot)
        elif self.counters.step == 0:
            self.store.notes.append(
                f"training begins from a state that is not finite ({what}): there is none to go"
                " back to"
            )
        return snapshot

    def unsound(self) -> str:
        """Return what of the state is not finite on any rank, empty where all is; all must call."""
        everyone = self.ranks.collect(unsound(self.training))
        return next(filter(None, everyone), "")

    def capture(self) -> Snapshot:
        """Copy the whole state into memory."""
        payload = self.ranks.together(lambda: clone(self._payload()))
        return Snapshot(self.counters.step, self.recorder.attempt, payload["position"], payload)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; what the guard decided stays.

        Raises:
            ActError: It does not fit what is trained now, and nothing was changed; or putting it
                back failed half-way, and the message says what is of which step.
        """
        problem = self.misfit(snapshot)
        if problem:
            raise ActError(f"{problem}; nothing was changed")
        payload = snapshot.payload
        self.ranks.together(lambda: self._load(snapshot))
        restore_rng(payload["rng"])
        if self.data is not None:
            self.data.load_state_dict(payload["data"])
        self.judge_state = payload["judge"]
        self.counters = Counters(**payload["counters"])
        self.saved_step = min(self.saved_step, self.counters.step)
        enforce(self)
        self.training.optimizer.zero_grad(set_to_none=True)
        self.poisoned_step = None
        for callback in self.on_restore:
            callback(self.counters.step)
        self.step_started = time.perf_counter()

    def raised_by(self, snapshot: Snapshot) -> str:
        """Return what to say where going back undoes a rate that the user's own loop has
        lowered.
        """
        if self.training.scheduler is not None or self.training.extra:
            return ""  # a schedule's rates go back with it
        then = snapshot.payload["training"]["optimizer"]["param_groups"][0]["lr"]
        now = self.training.optimizer.param_groups[0]["lr"]
        if not float(now) < float(then):
            return ""
        return (
            f"the learning rate that the loop had lowered to {float(now):g} goes back to"
            f" {float(then):g} of step {snapshot.step}; guard.limit_lr({float(now):g}, why=...)"
            " holds it"
        )

    def misfit(self, snapshot: Snapshot) -> str:
        """Return why a snapshot cannot be put back; empty where it can. All ranks must call it."""
        everyone = self.ranks.collect(self.training.misfit(snapshot.payload["training"]))
        why = next(filter(None, everyone), "")
        return f"step {snapshot.step} cannot be gone back to: {why}" if why else ""

    def _load(self, snapshot: Snapshot) -> None:
        try:
            self.training.load(snapshot.payload["training"])
        except Exception as error:
            done = ", ".join(self.training.loaded) or "nothing"
            raise ActError(
                f"going back to step {snapshot.step} failed half-way ({type(error).__name__}:"
                f" {error}): {done} put back, the rest is of step {self.counters.step}; stop the"
                " run and start the same script again, which goes on from the newest checkpoint"
            ) from error

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

    def restore_point(self, step: int) -> Snapshot | None:
        """Return the newest state at or before `step`, from memory or else from disk."""
        snapshot = self.ring.before(step)
        return snapshot or self.restore_point_on_disk(step)

    def restore_point_on_disk(self, step: int) -> Snapshot | None:
        """Return the newest state on disk at or before `step`, read back as a restart would."""
        return self._from_disk(self.store.newest_before(step))

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

    # -- on disk ----------------------------------------------------------------------------

    def save_checkpoint(self, why: str, *, background: bool = False, doubt: str = "") -> None:
        """Write the state to disk, whole or not at all, and say so; all ranks must call it.

        Args:
            why: For the journal.
            background: Copy the state and write it while training goes on.
            doubt: Why it is suspect, where that is known; a state that is not finite always is.

        Raises:
            ActError: It, or the one before it, cannot be saved.
        """
        what = self.unsound()
        if what:
            doubt = f"not finite: {what}"
            self.store.notes.append(
                f"{what} is not finite: the checkpoint of step {self.counters.step} is suspect, a "
                "restart passes it over"
            )
        payload = self.ranks.together(
            lambda: clone(self._payload()) if background else self._payload()
        )
        own = {name: payload.pop(name) for name in _OWN}
        payload["judge"] = self.judge_state.to_json(self.judge)
        payload["standing"] = self.standing()
        payload["settings"] = self.training.settings
        payload["data_shape"] = self.data.shape if self.data is not None else None
        self.store.save(
            payload, own, step=self.counters.step, why=why, background=background, doubt=doubt
        )
        self.saved_step = self.counters.step

    def note_order(self) -> None:
        """Write the fingerprint of the first epoch's order down beside the settings, once."""
        if not self._order_noted and self.data is not None and self.data.epoch >= 0:
            self._order_noted = True
            if self.data.epoch == 0:
                self.recorder.add_setting("data_order", self.data.fingerprint)

    def standing(self) -> dict[str, Any]:
        """Return the decisions in force, as JSON values: they outlive rollbacks and restarts."""
        skips = self.data.skips if self.data is not None else ()
        return {**asdict(self.decisions), "skips": [list(s) for s in skips]}

    def _from_disk(self, checkpoint: CheckpointOnDisk | None) -> Snapshot | None:
        if checkpoint is None:
            return None
        state = self.store.load(checkpoint, self.training)
        state["judge"] = self.judge.state_from_json(state["judge"])
        if state["rng"] is None:  # saved on fewer ranks
            state["rng"] = capture_rng()
        position = 0 if state["data"] is None else int(state["position"])
        return Snapshot(checkpoint.step, checkpoint.attempt, position, state)

    def resume(self) -> dict[str, Any] | None:
        """Load the newest whole and healthy checkpoint; return its random states, None without one.

        On another number of ranks than it was saved on, the shards are dealt out anew, the position
        in the data is kept, and ranks that were not there keep the random states they start with:
        the run goes on, but not bit for bit, and a note says so.

        Raises:
            ActError: It does not fit this run's objects; the message names the difference.
        """
        checkpoint = self.store.newest()
        decided = self.store.decided_since(checkpoint)
        if checkpoint is None:
            self.take_over(decided)
            return None
        fresh = capture_rng()
        state = self.store.load(checkpoint, self.training)
        if state["rng"] is None:
            state["rng"] = fresh
        try:
            self.ranks.together(lambda: self._put_back(state))
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ActError(
                f"{checkpoint.path}: does not fit this model or optimizer ({error}); use the"
                " settings of the run, or another run directory"
            ) from error
        self.take_over(decided or state["standing"])
        self.saved_step = self.store.whole_step = checkpoint.step
        self._note_differences(state)
        seen = {"checkpoint": checkpoint.path.name, "from_attempt": checkpoint.attempt}
        self.resumed.append(("resume", seen))
        rng: dict[str, Any] = state["rng"]
        return rng

    def _note_differences(self, state: dict[str, Any]) -> None:
        notes = self.store.take_notes()
        if self.data is not None:
            notes.append(self.data.differs(state.get("data_shape")) or self.data.reordered)
        if state["num_ranks"] != self.ranks.count:
            notes.append(
                f"saved on {state['num_ranks']} ranks, resumed on {self.ranks.count}: the run goes "
                "on, but not bit for bit"
            )
        for text in filter(None, notes):
            self.resumed.append(("note", {"author": "trimtab", "text": text}))

    def _put_back(self, state: dict[str, Any]) -> None:
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
        if self.data is not None and state["data"] is not None:
            self.data.load_state_dict(state["data"])
        restore_rng(state["rng"])

    def take_over(self, decided: dict[str, Any] | None) -> None:
        """Put decisions in force again, and count on from the rows that are on disk."""
        saved = dict(decided or {})
        skips = saved.pop("skips", [])
        try:
            self.decisions, unknown = read_decisions(saved)
            ranges = [sample_range(first, last) for first, last in skips]
            enforce(self)
        except (ActError, ConfigError, LookupError, TypeError, ValueError) as error:
            raise ActError(
                f"{self.directory.journal}: what stood at the last action, or at the checkpoint,"
                f" cannot be put in force again ({error}); mend or remove that action's line"
            ) from error
        if unknown:
            text = f"decisions of another version of trimtab are not in force: {', '.join(unknown)}"
            self.resumed.append(("note", {"author": "trimtab", "text": text}))
        self.decisions.row = self.ranks.agree(lambda: self.recorder.live.num_rows)
        if self.data is not None:
            for first, last in ranges:
                self.data.skip(first, last)
