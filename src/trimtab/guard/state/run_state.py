"""The state of a guarded run: captured and put back as one whole.

It holds the trained objects, the random states, the position in the data, the judge's state and the
counters. What was decided (a lower rate, skipped data) is held beside it: a rollback does not undo
a decision. Where several ranks train together, each of them holds its part.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING

from trimtab.errors import ActError
from trimtab.guard.probes.finite import unsound
from trimtab.guard.state.decisions import Counters, Decisions
from trimtab.guard.state.optimizer_settings import enforce
from trimtab.guard.state.serialization import AsJson
from trimtab.guard.state.state_copy import StateCopier
from trimtab.guard.state.training_state import (
    Snapshot,
    capture_rng,
    is_out_of_memory,
    restore_rng,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.data_state import DataState
    from trimtab.guard.state.judgement import Judgement
    from trimtab.guard.state.step_clock import StepClock
    from trimtab.guard.state.training_state import StateDict, Training

__all__ = ["RunState", "ScriptChange"]

ScriptChange = tuple[int, tuple[float, ...], str]
"""A step, the factors of the parts of the loss from there on, and a name of what is trained."""


class RunState:
    """Everything that decides the future of a run, and what was decided about it."""

    def __init__(
        self,
        training: Training,
        data: DataState | None,
        *,
        ranks: Ranks,
        recorder: Recorder,
        judgement: Judgement,
        clock: StepClock,
    ) -> None:
        """Take over the objects; nothing is changed.

        Args:
            training: The trained objects.
            data: The order of the data; None: it is not the guard's to put back.
            ranks: Those that train together.
            recorder: Opens the file of a new attempt.
            judgement: The judge and its state.
            clock: Starts the step under way anew when a state was put back.
        """
        self.training = training
        self.copier = StateCopier(training)
        """Copies states, and holds once what does not change between them."""
        self.data = data
        self._ranks = ranks
        self._recorder = recorder
        self._judgement = judgement
        self._clock = clock
        self._counters = Counters()
        self._decisions = Decisions()
        self._poisoned_step: int | None = None
        self._position_then: int | None = None
        self._on_restore: list[Callable[[int], None]] = []
        self.script_changes: Callable[[], Iterable[ScriptChange]] = tuple
        """Gives what the script changed of the loss, step by step: saved with each checkpoint."""
        self.saved_script_changes: tuple[ScriptChange, ...] = ()
        """Those of the checkpoint that the run went on from."""
        self.num_restores = 0
        """How often a state was put back."""

    @property
    def counters(self) -> Counters:
        """Where the run is."""
        return self._counters

    @property
    def decisions(self) -> Decisions:
        """What was decided and spent."""
        return self._decisions

    @property
    def poisoned_step(self) -> int | None:
        """Step of an update with a gradient that was not finite, which nothing has undone since."""
        return self._poisoned_step

    @property
    def position(self) -> int:
        """Sample id that came next after the last finished step; 0 without data."""
        if self._position_then is not None:
            return self._position_then
        return self.data.position if self.data is not None else 0

    @property
    def wasted_steps(self) -> float:
        """Steps run that are not on the final lineage, as a share of the effective steps.

        Trials and what was rolled back count whole; a probed batch (forward only) counts a third.
        """
        d, step = self._decisions, self._counters.step
        return (d.executed_steps - step + d.probed_batches / 3) / max(step, 1)

    @contextlib.contextmanager
    def at_position(self, position: int) -> Iterator[None]:
        """Give `position` as that of an earlier row, which is acted on only now."""
        self._position_then = position
        try:
            yield
        finally:
            self._position_then = None

    # -- counted ----------------------------------------------------------------------------

    def count_step(self) -> None:
        """Count a step whose update was done, or left out."""
        self._counters.step += 1
        self._decisions.executed_steps += 1

    def count_row(self) -> None:
        """Count a row that was written."""
        self._decisions.row += 1

    def note_poisoned(self) -> None:
        """Take note that the update of this step used a gradient that was not finite."""
        if self._poisoned_step is None:
            self._poisoned_step = self._counters.step

    # -- captured and put back --------------------------------------------------------------

    def payload(self) -> StateDict:
        """Return the live state; tensors are not copied."""
        return {
            "training": self.training.state(),
            "rng": capture_rng(),
            "data": self.data.state_dict() if self.data is not None else None,
            "judge": self._judgement.state,
            "counters": asdict(self._counters),
            "position": self.data.position if self.data is not None else 0,
        }

    def saved_payload(self, *, copy: bool) -> StateDict:
        """Return what a checkpoint holds; `copy`: not the live tensors but copies of them."""
        payload = self._ranks.together(
            lambda: self.copier.copy(self.payload()) if copy else self.payload()
        )
        return self._with_decisions(payload)

    def saved_snapshot(self, snapshot: Snapshot) -> StateDict:
        """Return what a checkpoint of an earlier state holds; the decisions are those of now."""
        kept = ("training", "rng", "data", "judge", "counters", "position")
        now = self._judgement.state
        self._judgement.restore(snapshot.payload["judge"])
        try:
            payload = {name: snapshot.payload[name] for name in kept}
            return self._with_decisions({**payload, "training": snapshot.training})
        finally:
            self._judgement.restore(now)

    def _with_decisions(self, payload: StateDict) -> StateDict:
        payload["judge"] = AsJson(self._judgement.to_json())
        payload["script_changes"] = [list(c) for c in self.script_changes()]
        payload["standing"] = self.standing()
        payload["settings"] = self.training.settings
        payload["parameter_order"] = self.training.order_of_parameters()
        payload["data_shape"] = self.data.shape if self.data is not None else None
        return payload

    def snapshot_of(self, step: int, attempt: str, state: StateDict) -> Snapshot:
        """Return a snapshot of what a checkpoint held."""
        state["judge"] = self._judgement.from_json(state["judge"])
        if state["rng"] is None:  # saved on fewer ranks
            state["rng"] = capture_rng()
        position = 0 if state["data"] is None else int(state["position"])
        return Snapshot(step, attempt, position, state)

    def capture(self) -> Snapshot | None:
        """Copy the whole state into memory; None where it does not fit on a rank. All must call."""
        # Copies all tensors to host memory: the host waits for the device here.
        payload = self._ranks.together(self._copied)
        if self._ranks.gather([float(payload is None)]).any() or payload is None:
            return None
        return Snapshot(self._counters.step, self._recorder.attempt, payload["position"], payload)

    def _copied(self) -> StateDict | None:
        try:
            copied = self.copier.copy(self.payload())
        except Exception as error:
            if is_out_of_memory(error):
                return None
            raise
        return copied

    def unsound(self) -> str:
        """Return what of the state is not finite on any rank, empty where all is; all must call."""
        everyone = self._ranks.collect(unsound(self.training))
        return next(filter(None, everyone), "")

    def misfit(self, snapshot: Snapshot) -> str:
        """Return why a snapshot cannot be put back; empty where it can. All ranks must call it."""
        # All ranks answer before any of them loads, so that a refusal leaves all as they were.
        everyone = self._ranks.collect(self.training.misfit(snapshot.outline))
        why = next(filter(None, everyone), "")
        return f"step {snapshot.step} cannot be gone back to: {why}" if why else ""

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
        # All ranks load, or all report the failure: a rank that went on alone would train on other
        # weights and wait in the next collective.
        self._ranks.together(lambda: self._load(snapshot))
        # After the load: a user's own `load_state_dict` may draw random numbers.
        restore_rng(payload["rng"])
        if self.data is not None:
            self.data.load_state_dict(payload["data"])
        self._judgement.restore(payload["judge"])
        self.num_restores += 1
        self._counters = Counters(**payload["counters"])
        # The snapshot brings its own rates and settings; decisions outlive it and override them.
        enforce(self)
        # Gradients of the step that was left would be added to those of the next one.
        self.training.optimizer.zero_grad(set_to_none=True)
        self._poisoned_step = None
        # After the state: a trainer's callback may read the counters and settings now in force.
        for callback in self._on_restore:
            callback(self._counters.step)
        self._clock.restart_step()

    def on_restore(self, callback: Callable[[int], None]) -> None:
        """Call `callback(step)` each time a state was put back, in the order of registration."""
        self._on_restore.append(callback)

    def _load(self, snapshot: Snapshot) -> None:
        try:
            self.training.load(snapshot.training)
        except Exception as error:
            done = ", ".join(self.training.loaded) or "nothing"
            raise ActError(
                f"going back to step {snapshot.step} failed half-way ({type(error).__name__}:"
                f" {error}): {done} put back, the rest is of step {self._counters.step}; stop the"
                " run and start the same script again, which goes on from the newest checkpoint"
            ) from error

    def raised_by(self, snapshot: Snapshot) -> str:
        """Return what to say where going back undoes a rate that the user's own loop lowered."""
        if self.training.scheduler is not None or self.training.extra:
            return ""  # a schedule's rates go back with it
        then = snapshot.outline["optimizer"]["param_groups"][0]["lr"]
        now = self.training.optimizer.param_groups[0]["lr"]
        if not float(now) < float(then):
            return ""
        return (
            f"the learning rate that the loop had lowered to {float(now):g} goes back to"
            f" {float(then):g} of step {snapshot.step}; guard.limit_lr({float(now):g}, why=...)"
            " holds it"
        )

    def adopt_script_changes(self, saved: StateDict) -> None:
        """Take up what a checkpoint holds of the script's changes; one of before holds none."""
        self.saved_script_changes = tuple(
            (int(step), tuple(map(float, terms)), str(trained))
            for step, terms, trained in saved.get("script_changes", ())
        )

    # -- resumed ----------------------------------------------------------------------------

    def set_counters(self, counters: Counters) -> None:
        """Go on from where a checkpoint was."""
        self._counters = counters

    def set_decisions(self, decisions: Decisions) -> None:
        """Put other decisions in the place of those in force."""
        self._decisions = decisions

    def standing(self) -> StateDict:
        """Return the decisions in force, as JSON values: they outlive rollbacks and restarts."""
        skips = self.data.skips if self.data is not None else ()
        return {**asdict(self._decisions), "skips": [list(s) for s in skips]}

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
        d = self._decisions
        number = f"{d.major}.{d.minor}"
        d.minor += 1
        # Where the first rank cannot write it down, no rank goes on as if it were.
        self._ranks.together(
            lambda: self._recorder.start_attempt(
                number,
                step=self._counters.step,
                parent=parent,
                parent_step=parent_step,
                why=why,
                trial=trial,
                **more,
            )
        )
