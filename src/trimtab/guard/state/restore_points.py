"""The states that a run can go back to: a ring of snapshots in memory, and checkpoints on disk."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.guard.distributed.sharding import local
from trimtab.guard.state.checkpoint_store import Store
from trimtab.guard.state.snapshot_budget import Needed, SnapshotBudget, needed_for
from trimtab.guard.state.snapshot_pace import SnapshotPace
from trimtab.guard.state.spill import Spill, spill_folder
from trimtab.guard.state.state_copy import state_bytes
from trimtab.guard.state.training_state import SnapshotRing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trimtab.checkpoints.manifest import CheckpointOnDisk
    from trimtab.detectors.contract import Finding
    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.training_state import Snapshot, StateDict
    from trimtab.plan.policy import Policy

__all__ = ["RestorePoints"]

_OF_RANK = ("rng", "data")
"""What differs from rank to rank."""
_OF_PART = ("training", "settings", "parameter_order")
"""The same, where ranks hold different parts of the model."""


class RestorePoints:
    """Takes and saves states of a run, and finds them again.

    Where several ranks train together, what they hold in common is saved once, sharded tensors
    shard by shard; random states and the position in the data are saved by rank. Where they hold
    different parts of the model, so are these.
    """

    def __init__(
        self,
        state: RunState,
        policy: Policy,
        *,
        recorder: Recorder,
        ranks: Ranks,
        holders: Holders,
    ) -> None:
        """Open the checkpoints of a run; nothing is read.

        Args:
            state: What is saved.
            policy: How many states are kept, and where a second copy goes.
            recorder: Writes down what was saved.
            ranks: Those that train together.
            holders: Which of them hold which part of the model.
        """
        copy_to = Path(policy.copy_to) if policy.copy_to else None
        self.ring = SnapshotRing(policy.snapshots_kept)
        self.store = Store(recorder, ranks=ranks, keep=policy.checkpoints_kept, copy_to=copy_to)
        self.pace = SnapshotPace(policy, ranks)
        self._state = state
        self._ranks = ranks
        self._holders = holders
        self._policy = policy
        self._budget: SnapshotBudget | None = None
        self._spill: Spill | None = None
        self._fits = policy.snapshots_kept + 1
        self._told_fits = 0
        self._taken: list[weakref.ref[Snapshot]] = []
        self._saved_step = -1
        state.on_restore(self._went_back)
        self._find_doubt: Callable[[int], str] = lambda _step: ""

    def doubt_if(self, find: Callable[[int], str]) -> None:
        """Have `find(step)` say why the state is suspect, if what was judged since that step says.

        The step is that of the last healthy checkpoint; the answer of the first rank counts.
        """
        self._find_doubt = find

    @property
    def saved_step(self) -> int:
        """Step of the newest checkpoint that this process saved or loaded."""
        return self._saved_step

    # -- taken ------------------------------------------------------------------------------

    def plan_memory(self) -> None:
        """Settle how many snapshots are within the policy's budget; before the first. A collective.

        Raises:
            ConfigError: Not even one is, or there is no folder to spill to.
        """
        policy = self._policy
        if policy.spill_to:
            self._spill = self._ranks.together(
                lambda: Spill(spill_folder(policy.spill_to, self._ranks.index))
            )
        self._budget = SnapshotBudget(policy, self._ranks)
        needed = self._ranks.together(lambda: needed_for(self._state.training))
        self._settle_on(self._budget.check(needed), needed)

    def _settle_on(self, fits: int, needed: Needed) -> None:
        assert self._budget is not None
        self._fits = max(fits, 1)
        # one more than are kept is held while a new one is taken
        kept = min(self._fits, self._policy.snapshots_kept)
        if kept < self._policy.snapshots_kept and kept != self._told_fits and self._spill is None:
            self._told_fits = kept
            more = "" if kept > 1 else "; while a case is open one more is held"
            self.store.note(
                f"snapshots: {kept} of {self._policy.snapshots_kept} are kept in memory:"
                f" {self._budget.text(needed)}{more}. spill_to names a fast local disk for all"
            )

    def _count_in_memory(self) -> int:
        alive = [(ref, ref()) for ref in self._taken]
        self._taken = [ref for ref, s in alive if s is not None and s.in_memory]
        return len(self._taken)

    def _make_room(self, *, least: int) -> None:
        """Have the next snapshot be within the budget, as far as the ring can help it.

        Args:
            least: Snapshots that stay in the ring.
        """
        if self._spill is not None and self._count_in_memory() >= self._fits:
            self._spill.wait()
        while self._count_in_memory() >= self._fits and len(self.ring.items) > least:
            self.ring.thin()

    def _note_taken(self, snapshot: Snapshot) -> None:
        """Count a snapshot, and settle the budget anew where it holds more than was expected."""
        self._taken.append(weakref.ref(snapshot))
        if self._budget is None:
            return
        shared = self._state.copier.held
        needed = Needed(
            own=state_bytes(snapshot.payload, without=shared), shared=state_bytes(shared)
        )
        fits = self._budget.fits(needed)
        if fits < self._fits:
            self._settle_on(fits, needed)

    def capture(self) -> Snapshot:
        """Copy the whole state into memory; where it does not fit, older snapshots make room.

        A collective.

        Raises:
            MemoryError: It does not fit without them either.
        """
        self._make_room(least=1)
        return self._capture()

    def _capture(self) -> Snapshot:
        snapshot = self._state.capture()
        if snapshot is None:
            kept = self.ring.make_room()
            snapshot = self._state.capture()
            if snapshot is None:
                raise MemoryError(
                    f"no room for a snapshot of step {self._state.counters.step};"
                    " recovery goes back to checkpoints on disk, or to older snapshots"
                )
            self.store.note(
                f"out of memory in a snapshot: from here on {kept} are kept; give the process more"
                " host memory, or set snapshots_kept lower"
            )
        self._note_taken(snapshot)
        return snapshot

    def snapshot(self) -> Snapshot:
        """Copy the whole state into memory, and keep it in the ring where it is finite.

        Where a folder to spill to is named, its tensors are on the way there when this returns.

        Raises:
            MemoryError: As for `capture`.
        """
        # A collective, so on all ranks: a ring that differs between ranks could not be restored.
        what = self._state.unsound()
        self._make_room(least=1 if what or self._fits > 1 else 0)
        snapshot = self._capture()
        wider = self.pace.note_taken(snapshot.step, self._state.copier.seconds)
        if wider:
            self.store.note(wider)
        if not what:
            self.ring.add(snapshot)
            self._begin_to_spill(snapshot)
        elif self._state.counters.step == 0:
            self.store.note(
                f"training begins from a state that is not finite ({what}): there is none to go"
                " back to"
            )
        return snapshot

    def _begin_to_spill(self, snapshot: Snapshot) -> None:
        if self._spill is None:
            return
        shared = {local(t).untyped_storage().data_ptr() for t in self._state.copier.held}
        self._spill.begin(snapshot.payload, keep=shared)
        trouble = self._spill.take_trouble()
        if trouble:
            self.store.note(
                f"a snapshot could not be written to spill_to and stays in memory: {trouble}"
            )

    def save(self, why: str, *, background: bool = False, doubt: str = "") -> None:
        """Write the state to disk, whole or not at all, and say so; all ranks must call it.

        Args:
            why: For the journal.
            background: Copy the state and write it while training goes on.
            doubt: Why it is suspect, where that is known; a state that is not finite always is.

        Raises:
            ActError: It, or the one before it, cannot be saved.
        """
        state, step = self._state, self._state.counters.step
        what = state.unsound()
        if what:
            doubt = f"not finite: {what}"
            self.store.note(
                f"{what} is not finite: the checkpoint of step {step} is suspect, a "
                "restart passes it over"
            )
        elif not doubt:
            doubt = self._ranks.agree(lambda: self._find_doubt(self.store.whole_step))
            if doubt:
                self.store.note(f"the checkpoint of step {step} is suspect: {doubt}")
        # In the background training changes the live tensors while they are written: copies only.
        payload = state.saved_payload(copy=background)
        own = self._taken_out(payload)
        self.store.save(payload, own, step=step, why=why, background=background, doubt=doubt)
        self._saved_step = step

    def _taken_out(self, payload: StateDict) -> StateDict:
        """Return what of a payload is this rank's own, and take it out of it."""
        mine = (*_OF_RANK, *(_OF_PART if self._holders.differ else ()))
        return {name: payload.pop(name) for name in mine}

    def adopt(self, step: int) -> None:
        """Take note that the run goes on from a checkpoint on disk, or needs no newer one."""
        self._saved_step = step

    def _went_back(self, step: int) -> None:
        self._saved_step = min(self._saved_step, step)

    def set_aside_after(self, point: Snapshot, *, first_sign: float, now: int, why: str) -> None:
        """Move the checkpoints after a state aside, which is about to be gone back to.

        First a healthy state that is not after it is on disk: where none is, this one is saved. A
        kill at any later moment then finds something to go on from. All ranks must call it.

        Args:
            point: The state that is gone back to.
            first_sign: Step of the first sign of trouble; what lies from there on is poisoned.
            now: Where the run is.
            why: For the journal.

        Raises:
            ActError: The disk refuses; the checkpoints are where they were.
        """
        if self.store.newest_before(point.step) is None:
            late = point.step >= first_sign
            told = f"not before the first sign of trouble at step {first_sign:g}"
            self._save_earlier(point, doubt=told if late else "")
        self.store.set_aside_after(point.step, first_sign=first_sign, now=now, why=why)

    def doubt(self, findings: Sequence[Finding]) -> None:
        """Call the checkpoints suspect that were saved under a condition found only now.

        Where that leaves no healthy one on disk, a snapshot from before it is saved first: a kill
        finds something to go on from. As `Store.doubt` otherwise.
        """
        onsets = [f.onset for f in findings if math.isfinite(f.onset)]
        if onsets:  # first, because the disk may not answer below
            self.store.spare_before(min(onsets))
        if onsets and self.store.leaves_none(findings):
            point = self.ring.before(math.ceil(min(onsets)) - 1)
            if point is not None:
                self._save_earlier(point)
        self.store.doubt(findings)

    def _save_earlier(self, point: Snapshot, *, doubt: str = "") -> None:
        payload = self._state.saved_snapshot(point)
        own = self._taken_out(payload)
        self.store.save(
            payload,
            own,
            step=point.step,
            why="to go back to",
            doubt=doubt,
            attempt=point.attempt,
        )

    # -- found again ------------------------------------------------------------------------

    def at_or_before(self, step: int) -> Snapshot | None:
        """Return the newest state at or before `step`, from memory or else from disk."""
        return self.ring.before(step) or self.on_disk(step)

    def on_disk(self, step: int) -> Snapshot | None:
        """Return the newest state on disk at or before `step`, read back as a restart would."""
        return self._read(self.store.newest_before(step))

    def oldest(self) -> Snapshot | None:
        """Return the oldest state there is."""
        oldest, on_disk = self.oldest_step(), self.store.oldest_step()
        if on_disk is not None and on_disk == oldest:
            found = self._read(self.store.newest_before(on_disk))
            if found is not None:
                return found
        return self.ring.items[0] if self.ring.items else None

    def oldest_step(self) -> int | None:
        """Return the step of the oldest state there is; None without any."""
        steps = [s.step for s in self.ring.items[:1]]
        on_disk = self.store.oldest_step()
        return min([*steps, *([] if on_disk is None else [on_disk])], default=None)

    def _read(self, checkpoint: CheckpointOnDisk | None) -> Snapshot | None:
        if checkpoint is None:
            return None
        held = self.store.load(checkpoint, self._state.training)
        return self._state.snapshot_of(checkpoint.step, checkpoint.attempt, held)
