"""Going on with a run from its newest healthy checkpoint, and with what was decided since."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.errors import ActError, ConfigError, ReadError
from trimtab.guard.state.decisions import Counters, read_decisions, sample_range
from trimtab.guard.state.optimizer_settings import enforce
from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from trimtab.checkpoints.choice import ResumeChoice
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.state.judgement import Judgement
    from trimtab.guard.state.restore_points import RestorePoints
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.training_state import StateDict

__all__ = ["Resumed", "Resumption"]

_MOST_NAMED = 3
"""Checkpoints that a sentence names."""
_CONSENT = "Guard(start_over=True) begins at step 0 again and leaves what is there in its place"


@dataclass
class Resumed:
    """What came of a resume."""

    rng: StateDict | None = None
    """Random states to go on with; None: there was no checkpoint."""
    attempt: str | None = None
    """Attempt that the checkpoint is of; None: of another trainer's."""
    checkpoint: str = ""
    """What the run went on from."""
    load_s: float = 0.0
    """How long that took to find, with its hashes, and to load, seconds."""
    passed_over: tuple[str, ...] = ()
    """What was not, with why, such as a hash that differs."""
    notes: list[str] = field(default_factory=list)
    """What the user should read; written once the attempt that begins has its number."""
    given_up: str = ""
    """What a start at step 0 gives up by the user's consent; empty where it gives up nothing."""


class Resumption:
    """Puts a saved state and saved decisions in force."""

    def __init__(
        self,
        state: RunState,
        points: RestorePoints,
        *,
        judgement: Judgement,
        ranks: Ranks,
        recorder: Recorder,
    ) -> None:
        """Work on a run that has not begun.

        Args:
            state: Of the run.
            points: Its checkpoints.
            judgement: Its judge.
            ranks: Those that train together.
            recorder: It knows the rows and the files of the run.
        """
        self._state = state
        self._points = points
        self._judgement = judgement
        self._ranks = ranks
        self._recorder = recorder

    def resume(self, *, start_over: bool = False) -> Resumed:
        """Load the newest whole and healthy checkpoint, where there is one.

        On another number of ranks than it was saved on, the shards are dealt out anew, the position
        in the data is kept, and ranks that were not there keep the random states they start with:
        the run goes on, but not bit for bit, and a note says so.

        Args:
            start_over: Begin at step 0 where the run cannot be gone on with, instead of refusing.

        Raises:
            ActError: It does not fit this run's objects; the message names the difference.
            ReadError: It cannot be gone on with, and a start at step 0 would give up what is there.
            ChronicleError: The journal cannot be read.
        """
        found, store = Resumed(), self._points.store
        began = time.monotonic()
        choice = store.choose()
        refusal = self._refusal(choice)
        if refusal and not start_over:
            raise ReadError(refusal)
        found.given_up = refusal
        checkpoint = None if refusal else choice.checkpoint
        decided = store.decided_since(checkpoint)
        if checkpoint is None:
            self.take_over(decided, found.notes)
            return found
        found.passed_over = tuple(choice.passed_over)
        if choice.passed_over:
            found.notes.append(
                f"passed over: {'; '.join(choice.passed_over)}; the run goes on from the older"
                f" {checkpoint.path.name}"
            )
        fresh = capture_rng()
        saved = store.load(checkpoint, self._state.training)
        found.load_s = time.monotonic() - began
        if saved["rng"] is None:
            saved["rng"] = fresh
        try:
            self._ranks.together(lambda: self._put_back(saved, found.notes))
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ActError(
                f"{checkpoint.path}: does not fit this model or optimizer ({error}); use the"
                " settings of the run, or another run directory"
            ) from error
        self.take_over(decided or saved["standing"], found.notes)
        self._points.adopt(checkpoint.step)
        store.adopt(checkpoint.step)
        found.notes += self._differences(saved)
        found.rng, found.attempt = saved["rng"], checkpoint.attempt
        found.checkpoint = checkpoint.path.name
        return found

    def _refusal(self, choice: ResumeChoice) -> str:
        """Return why the run may not go on as it is; empty where it may."""
        folder = self._recorder.directory.checkpoints
        if choice.unreadable:
            return (
                f"{choice.unreadable}; mount the disk or restore its rights, then start again;"
                f" where it will not come back, move it out of {folder} to go on from an older"
                f" checkpoint, or {_CONSENT}"
            )
        if choice.checkpoint is not None:
            return ""
        if choice.lost:
            return (
                f"{folder}: no checkpoint of this run can be gone on from, and step 0 is not begun"
                f" unasked: {'; '.join(choice.lost)}; mount the disk or bring the folder back, then"
                f" start again, or {_CONSENT}"
            )
        journal, store = self._recorder.directory.journal, self._points.store
        if store.lacks_journal():
            return (
                f"{journal} is gone, though {self._recorder.directory.signals} holds samples of a"
                f" run: bring it back, then start again, or {_CONSENT}"
            )
        finished, num_found = store.finished_at(), store.num_found()
        if finished is not None and num_found:
            return (
                f"{self._recorder.directory.root}: the run is done, {finished} steps, and none of"
                f" its {num_found} checkpoints is healthy, so there is nothing to go on from and"
                f" nothing is trained again; to go on from one, write healthy into its health.json,"
                f" or {_CONSENT}"
            )
        if choice.doubtful:
            return (
                f"{folder}: none of this run's checkpoints is healthy, and step 0 is not begun"
                f" unasked: {'; '.join(choice.doubtful[:_MOST_NAMED])}; to go on from one, write"
                f" healthy into its health.json, or {_CONSENT}"
            )
        return ""

    def _differences(self, saved: StateDict) -> list[str]:
        notes, data = self._points.store.take_notes(), self._state.data
        if data is not None:
            notes.append(data.differs(saved.get("data_shape")) or data.reordered)
        if saved["num_ranks"] != self._ranks.count:
            notes.append(
                f"saved on {saved['num_ranks']} ranks, resumed on {self._ranks.count}: the run goes"
                " on, but not bit for bit"
            )
        return [text for text in notes if text]

    def _put_back(self, saved: StateDict, notes: list[str]) -> None:
        """Put a loaded state into this run's objects."""
        state = self._state
        # First: the load below silently replaces the settings that are compared here.
        state.training.check_settings(saved["settings"])
        state.training.check_order(saved.get("parameter_order"))
        try:
            self._judgement.restore(self._judgement.from_json(saved["judge"]))
        except ReadError as error:
            self._judgement.start_over()
            notes.append(f"detectors start anew: {error}")
        state.training.load(saved["training"])
        state.adopt_script_changes(saved)
        state.set_counters(Counters(**saved["counters"]))
        if state.data is not None and saved["data"] is not None:
            state.data.load_state_dict(saved["data"])
        # Last: a sampler may draw from any random state when the order is drawn again.
        restore_rng(saved["rng"])

    def take_over(self, decided: StateDict | None, notes: list[str]) -> None:
        """Put decisions in force again, and count on from the rows that are on disk.

        Args:
            decided: As `RunState.standing` gave them; None: nothing was decided.
            notes: What the user should read is added to it.

        Raises:
            ActError: They hold what no guard writes.
        """
        state, saved = self._state, dict(decided or {})
        skips = saved.pop("skips", [])
        try:
            decisions, unknown = read_decisions(saved)
            state.set_decisions(decisions)
            ranges = [sample_range(first, last) for first, last in skips]
            enforce(state)
        except (ActError, ConfigError, LookupError, TypeError, ValueError) as error:
            raise ActError(
                f"{self._recorder.directory.journal}: what stood at the last action, or at the"
                f" checkpoint, cannot be put in force again ({error}); mend or remove that action's"
                " line"
            ) from error
        if unknown:
            notes.append(
                f"decisions of another version of trimtab are not in force: {', '.join(unknown)}"
            )
        # Rows that were written after the checkpoint are on disk too, beyond the saved count.
        decisions.row = self._ranks.agree(lambda: self._recorder.live.num_rows)
        if state.data is not None:
            for first, last in ranges:
                state.data.skip(first, last)
