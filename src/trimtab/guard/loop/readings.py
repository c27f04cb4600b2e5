"""Readings of the yardstick between two steps: asked for, run through the user's loop, used."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from trimtab.guard.yardstick.yardstick import Request
from trimtab.signals.robust import mad_sigma

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.recovery.executor import Recovery
    from trimtab.guard.step.run_context import RunContext
    from trimtab.guard.yardstick.reading import Reading
    from trimtab.guard.yardstick.yardstick import Yardstick

__all__ = ["Readings"]

_NOISE_ROWS = 64
"""Rows of the training loss whose spread stands in for that of a reading."""
_MOST_EVIDENCE = 1e3
"""Evidence that is recorded for a loss that is not finite: rows of NaN say something else."""


class Readings:
    """Between the loop, the yardstick, and those who decide by it."""

    def __init__(
        self,
        parts: RunContext,
        yardstick: Yardstick,
        *,
        recovery: Recovery,
        edge: Edge,
        note: Callable[[str], None],
        steps: int | None,
        accumulate: int,
    ) -> None:
        """Join a yardstick to a run.

        Args:
            parts: Of the run.
            yardstick: Is read.
            recovery: Decides by what was read.
            edge: Keeps a fault of ours from stopping the run.
            note: Tells and journals a sentence.
            steps: Of the whole run, where known.
            accumulate: Most batches that make one step.
        """
        self._parts = parts
        self._yardstick = yardstick
        self._recovery = recovery
        self._edge = edge
        self._note = note
        self._steps = steps
        self._accumulate = accumulate
        self._losses: deque[float] = deque(maxlen=_NOISE_ROWS)
        self._own_loop = False
        self._told_source = False
        parts.state.on_restore(yardstick.test.forget_after)

    @property
    def active(self) -> bool:
        """Whether a reading is under way in the user's loop."""
        return self._yardstick.active

    @property
    def wanted(self) -> bool:
        """Whether a reading is to begin before the next batch is fetched."""
        return self._yardstick.wanted

    @property
    def available(self) -> bool:
        """Whether recovery may ask for a reading now."""
        yard = self._yardstick
        return yard.decides and (self._own_loop or not yard.loops)

    def loop_begins(self, *, own: bool) -> None:
        """Take note of a loop; only one over the guard itself can run the batches in eval mode."""
        self._own_loop = own

    def see_batch(self, batch: object) -> None:
        """Take note of a batch that is handed out for training."""
        self._yardstick.see_batch(batch)

    # -- asked for --------------------------------------------------------------------------

    def after_step(self, loss: float, *, quiet: bool) -> None:
        """Ask for what recovery waits for, or for a reading at its time.

        Args:
            loss: Of the step.
            quiet: Whether nothing is under way.
        """
        if math.isfinite(loss):
            self._losses.append(loss)
        yard, step = self._yardstick, self._parts.state.counters.step
        wanted = self._recovery.state.wants
        if wanted is not None:
            older = self._recovery.snapshot_for(wanted)
            yard.ask(Request("branch" if self._recovery.busy else "alarm", step, older))
        elif quiet and yard.is_due(step) and (self._own_loop or not yard.loops):
            yard.ask(Request("calm", step))

    # -- run --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the reading that is asked for; one that cannot be made counts as not asked for."""
        yard = self._yardstick
        try:
            if yard.loops:
                if not yard.begin():
                    self._answer(None)
                return
            reading = yard.measure()
        except Exception as error:  # noqa: BLE001 - a user's data or function ends no protection
            yard.finish()
            yard.switch_off("it failed")
            self._edge.tell_callback(
                "the yardstick's data" if yard.loops else "the function validate",
                error,
                "the guard goes on without a yardstick",
            )
            self._answer(None)
            return
        self._edge.run("recovery", lambda: self._use(reading))

    def next_batch(self, ahead: int) -> object:
        """Return the next batch; see `Yardstick.next_batch`."""
        return self._yardstick.next_batch(ahead)

    def take_in(self, loss: float, batches: int) -> None:
        """Take in the mean loss of batches that the user's loop has run."""
        reading = self._yardstick.take_in(loss, batches)
        if reading is not None:
            self._edge.run("recovery", lambda: self._use(reading))

    def give_up(self) -> None:
        """End a reading that is under way, without a result; everything is put back."""
        if self._yardstick.active:
            self._yardstick.finish()
            self._answer(None)

    # -- used -------------------------------------------------------------------------------

    def _answer(self, reading: Reading | None) -> None:
        wanted = self._recovery.state.wants
        if wanted is None:
            return
        self._edge.run("recovery", lambda: self._recovery.after_reading(reading))
        if reading is not None and wanted.point is None and not self._recovery.busy:
            # Left alone: what the batches cost from here on is compared with this reading.
            self._yardstick.test.restart()
            self._yardstick.judge(reading, sigma=self._sigma())

    def _use(self, reading: Reading) -> None:
        self._tell_source()
        told: dict[str, object] = {}
        if self._recovery.state.wants is None:
            told = self._judge(reading)
        self._parts.recorder.event(
            "yardstick",
            step=reading.step,
            losses=list(reading.losses),
            **({} if reading.base_step is None else {"base_step": reading.base_step}),
            **({} if not reading.base else {"base_losses": list(reading.base)}),
            **{k: v for k, v in (("metrics", self._yardstick.metrics),) if v},
            **told,
        )
        self._answer(reading)

    def _judge(self, reading: Reading) -> dict[str, object]:
        """Judge a reading at its time; it is recorded with the row of the next step."""
        found = self._yardstick.judge(reading, sigma=self._sigma())
        noted = {
            "yardstick_loss": reading.mean,
            "yardstick_evidence": min(found.total, _MOST_EVIDENCE),
            "yardstick_rise": found.rise,
        }
        self._parts.pool.note({k: v for k, v in noted.items() if math.isfinite(v)})
        told = {"evidence": noted["yardstick_evidence"], "rise": found.rise}
        return {k: v for k, v in told.items() if math.isfinite(v)}

    def _sigma(self) -> float:
        """Return the spread of single rows about their trend, from differences of neighbors."""
        if len(self._losses) < 3:
            return math.inf
        return mad_sigma(np.diff(np.array(self._losses)), center=0.0) / math.sqrt(2)

    def _tell_source(self) -> None:
        """Say once what is read, and whether the run trains on it, too."""
        yard = self._yardstick
        if yard.not_put_back:
            names = ", ".join(yard.not_put_back[:3])
            yard.switch_off("the model could not be put back")
            self._note(f"the yardstick is off: it could not put back {names}")
        if self._told_source:
            return
        self._told_source = True
        trained = yard.trained_on(steps=self._steps, accumulate=self._accumulate)
        also = {True: "; training uses them, too", False: "; held out", None: ""}[trained]
        mode = "" if yard.in_eval else "; the loop puts the model back into train mode for them"
        self._note(f"the yardstick reads {yard.source} every {yard.every_steps} steps{also}{mode}")
