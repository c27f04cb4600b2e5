"""What recovery may do to a run: a narrow, typed face over its parts.

Recovery decides when to go back, what to leave out and which factor to use; it does so through this
class alone, and so needs to know no other part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trimtab.chronicle.rundir import RunDirectory
    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.distributed.step_reduction import StepSum
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.checkpoint_store import Store
    from trimtab.guard.state.decisions import Counters, Decisions
    from trimtab.guard.state.run_state import ScriptChange
    from trimtab.guard.state.training_state import Snapshot, SnapshotRing, StateDict, Training
    from trimtab.guard.step.precision import Precision
    from trimtab.guard.step.run_context import RunContext
    from trimtab.plan.policy import Policy
    from trimtab.plan.trials import SettingPutBack

__all__ = ["Engine"]


class Engine:
    """See the module; it holds no state of its own."""

    def __init__(self, parts: RunContext) -> None:
        """Stand before the parts of a run."""
        self._parts = parts

    # -- what it is -------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """Settings of the guard."""
        return self._parts.policy

    @property
    def ranks(self) -> Ranks:
        """Those that train together."""
        return self._parts.ranks

    @property
    def recorder(self) -> Recorder:
        """Writes rows and events."""
        return self._parts.recorder

    @property
    def directory(self) -> RunDirectory:
        """The run directory."""
        return self._parts.recorder.directory

    @property
    def training(self) -> Training:
        """The trained objects."""
        return self._parts.training

    @property
    def data(self) -> Order | None:
        """The order of the data."""
        return self._parts.data

    @property
    def store(self) -> Store:
        """The checkpoints on disk."""
        return self._parts.points.store

    @property
    def ring(self) -> SnapshotRing:
        """The snapshots in memory."""
        return self._parts.points.ring

    @property
    def precision(self) -> Precision:
        """The number format of the forward pass."""
        return self._parts.precision

    # -- where it is ------------------------------------------------------------------------

    @property
    def counters(self) -> Counters:
        """Where the run is."""
        return self._parts.state.counters

    @property
    def decisions(self) -> Decisions:
        """What was decided and spent."""
        return self._parts.state.decisions

    @property
    def position(self) -> int:
        """Sample id that came next after the last finished step."""
        return self._parts.state.position

    @property
    def poisoned_step(self) -> int | None:
        """Step of an update with a gradient that was not finite, which nothing has undone since."""
        return self._parts.state.poisoned_step

    @property
    def step_sum(self) -> StepSum:
        """The last step, of all ranks together."""
        return self._parts.pool.whole

    @property
    def clip(self) -> float | None:
        """Largest global gradient norm before the guard's own factor; None: no clipping."""
        return self._parts.optimizer_step.clip

    @property
    def has_scaler(self) -> bool:
        """Whether a loss scaler is in use, for which a gradient that overflows is normal."""
        return self._parts.precision.has_scaler

    @property
    def low_precision(self) -> str:
        """fp16 or bf16 where the forward pass runs in it and can run in another; or empty."""
        return self._parts.precision.low

    def standing(self) -> StateDict:
        """Return the decisions in force, as JSON values."""
        return self._parts.state.standing()

    # -- going back -------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Copy the whole state into memory, and keep it in the ring where it is finite."""
        return self._parts.points.snapshot()

    def capture(self) -> Snapshot:
        """Copy the whole state into memory."""
        return self._parts.points.capture()

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot; what the guard decided stays.

        Raises:
            ActError: It does not fit what is trained now.
        """
        self._parts.state.restore(snapshot)

    def keep_script_changes(self, changes: Callable[[], Iterable[ScriptChange]]) -> None:
        """Save these with each checkpoint."""
        self._parts.state.script_changes = changes

    @property
    def saved_script_changes(self) -> tuple[ScriptChange, ...]:
        """Those in the checkpoint that the run went on from."""
        return self._parts.state.saved_script_changes

    def on_restore(self, callback: Callable[[int], None]) -> None:
        """Call `callback(step)` each time a state was put back."""
        self._parts.state.on_restore(callback)

    def set_aside_after(self, point: Snapshot, *, first_sign: int, now: int, why: str) -> None:
        """Move the checkpoints after a state aside; a healthy one to go back to is on disk first.

        Raises:
            ActError: The disk refuses.
        """
        self._parts.points.set_aside_after(point, first_sign=first_sign, now=now, why=why)

    def restore_point(self, step: int) -> Snapshot | None:
        """Return the newest state at or before `step`, from memory or else from disk."""
        return self._parts.points.at_or_before(step)

    def restore_point_on_disk(self, step: int) -> Snapshot | None:
        """Return the newest state on disk at or before `step`."""
        return self._parts.points.on_disk(step)

    def oldest_restore_point(self) -> Snapshot | None:
        """Return the oldest state there is."""
        return self._parts.points.oldest()

    def oldest_step(self) -> int | None:
        """Return the step of the oldest state there is; None without any."""
        return self._parts.points.oldest_step()

    def misfit(self, snapshot: Snapshot) -> str:
        """Return why a snapshot cannot be put back; empty where it can. All ranks must call it."""
        return self._parts.state.misfit(snapshot)

    def raised_by(self, snapshot: Snapshot) -> str:
        """Return what to say where going back undoes a rate that the user's own loop lowered."""
        return self._parts.state.raised_by(snapshot)

    # -- going on ---------------------------------------------------------------------------

    def begin_attempt(
        self,
        *,
        parent: str | None,
        parent_step: int | None,
        why: str,
        trial: bool,
        **more: object,
    ) -> None:
        """Number and open a new attempt."""
        self._parts.state.begin_attempt(
            parent=parent, parent_step=parent_step, why=why, trial=trial, **more
        )

    def save_checkpoint(self, why: str, *, background: bool = False, doubt: str = "") -> None:
        """Write the state to disk, whole or not at all; all ranks must call it.

        Raises:
            ActError: It, or the one before it, cannot be saved.
        """
        self._parts.points.save(why, background=background, doubt=doubt)

    def set_precision(self, precision: str) -> None:
        """Run the forward pass in fp32 or bf16, without the loss scaler; empty: its own format."""
        self._parts.precision.set(precision)

    def hold_settings(self, values: Mapping[str, tuple[float, ...]]) -> None:
        """Put settings back and hold them there, whatever the loop sets; a restart holds them too.

        Raises:
            ActError: One of them is no longer there, or has other places than its values.
        """
        failed = self._parts.settings.put_back(values)
        if failed:
            raise ActError(f"cannot be put back: {', '.join(failed)}")
        self.decisions.held_settings |= {name: list(v) for name, v in values.items()}

    def release_settings(self, values: Mapping[str, tuple[float, ...]]) -> None:
        """Hold settings no longer; set those that have values here to them."""
        self._parts.settings.release(values)
        for name in values:
            self.decisions.held_settings.pop(name, None)

    def own_settings(self) -> None:
        """Take the settings as they are now as set by the guard, and not by the script."""
        self._parts.settings.accept()

    def clear_setting(self, name: str, step: int, why: str) -> None:
        """Suspect a change of a setting no longer, also when its step is done again."""
        self._parts.settings.announce(name, step, why)

    @property
    def script_lr(self) -> float:
        """Rate that the script asks for in the next step, before anything of ours."""
        return self._parts.rates.script_lr

    @property
    def lr_scheduled(self) -> bool:
        """Whether a schedule gives the rate: the scheduler, a function, or the script's own."""
        parts = self._parts
        return parts.rates.follows_schedule or parts.settings.moves_rate(self.counters.step + 1)

    @property
    def parts_differ(self) -> bool:
        """Whether ranks hold different parts of the model."""
        return self._parts.holders.differ

    def changed_since(self, step: int) -> tuple[SettingPutBack, ...]:
        """Return the settings that changed after a step and were not announced; oldest first."""
        return self._parts.settings.unannounced_since(step)
