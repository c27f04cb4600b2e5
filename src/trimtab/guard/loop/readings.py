"""Readings of the yardstick between two steps: asked for, run through the user's loop, used."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trimtab.chronicle.journal import read_journal
from trimtab.guard.yardstick.yardstick import ReadingRequest
from trimtab.signals.robust import floored_sigma

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
_FIRST_ROWS = 16
"""Losses that the descent of the run is counted from."""
_FOREIGN_SHARE, _FOREIGN_SIGMA = 0.5, 4.0
"""Of the descent, and of the noise of rows, by which fixed batches cost more than what is fed, from
which on they are of another kind of data. Ours."""
_LIKE = 0.5
"""Share of that within which a batch is like what is fed. Ours."""
_COUNTED = math.log(1.5)
"""Logarithm of the least factor on the loss that is suspected. Ours."""
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
        self._first: list[float] = []
        self._lowest = math.inf
        """Lowest level of what is fed, as seen at the readings."""
        self._foreign: bool | None = None
        """Whether the batches are of another kind of data than what is fed; None: not known yet."""
        self._told_foreign = False
        self._doubted: Reading | None = None
        """A reading that is judged once what was fed last is read, too."""
        self._like: set[int] = set()
        """Batches, by number, that have cost about what is fed at a reading at its time."""
        self._own_loop = False
        self._left_loop = False
        self._told_source = False
        self._told_settings = False
        parts.state.on_restore(yardstick.forget_after)

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
        self._own_loop = own and not self._left_loop

    def leave_loop(self) -> None:
        """Hand nothing out to the loop: it is a trainer's, which sets the model's mode itself."""
        self._left_loop, self._own_loop = True, False

    def see_batch(self, batch: object) -> None:
        """Take note of a batch that is handed out for training."""
        self._yardstick.see_batch(batch)

    def resume(self) -> None:
        """Go on from what the processes before have read on this lineage, as if there was one."""
        state, recorder = self._parts.state, self._parts.recorder
        step = state.counters.step
        if step == 0:
            return
        for event in read_journal(recorder.directory.journal)[0]:
            self._yardstick.hear(event.event, event.step, event.data)
            if event.event != "yardstick":
                continue
            if {"foreign", "evidence"} & event.data.keys():
                self._foreign = "foreign" in event.data
            if isinstance(like := event.data.get("like"), list):
                self._like = {i for i in like if isinstance(i, int)}
        self._yardstick.test.forget_after(step, keep_total=True)
        if not recorder.live.num_rows:
            return  # the power may take all rows of steps that a checkpoint has
        record = recorder.live.record()
        column, rows = record.columns["loss"], record.lineage_rows()
        rows = rows[column.present[rows] & np.isfinite(column.values[rows])]
        self._first = column.values[rows][:_FIRST_ROWS].tolist()
        self._losses.extend(column.values[rows][-_NOISE_ROWS:].tolist())

    # -- asked for --------------------------------------------------------------------------

    def after_step(self, loss: float, *, quiet: bool) -> None:
        """Ask for what recovery waits for, or for a reading at its time.

        Args:
            loss: Of the step.
            quiet: Whether nothing is under way.
        """
        if math.isfinite(loss):
            self._losses.append(loss)
            if len(self._first) < _FIRST_ROWS:
                self._first.append(loss)
        yard, step = self._yardstick, self._parts.state.counters.step
        wanted = self._recovery.state.wants
        if wanted is not None:
            older = self._recovery.snapshot_for(wanted)
            known, purpose = None, "branch" if self._recovery.busy else "alarm"
            if older is not None and purpose == "alarm":
                known = self._recovery.snapshot_read_at(yard.steps_read, last=older.step)
            yard.ask(ReadingRequest(purpose, step, older, known))
        elif quiet and yard.is_due(step) and (self._own_loop or not yard.loops):
            held = self._parts.settings.divides_loss
            older = self._recovery.snapshot_read_at(yard.steps_read, last=step) if held else None
            yard.ask(ReadingRequest("calm", step, older))
        elif yard.is_due(step) and not self._own_loop and not self._told_source:
            self._told_source = True
            self._note(
                "the yardstick is not read: the loop is a trainer's; Guard(validate=function)"
                " reads without it"
            )

    # -- run --------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the reading that is asked for; one that cannot be made counts as not asked for."""
        yard = self._yardstick
        if not yard.wanted:
            return
        try:
            if yard.loops:
                if not yard.begin():
                    self._tell_off()
                    self._answer(None)
                return
            reading = yard.measure()
            if reading is None:
                self._tell_off()
                self._answer(None)
                return
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
        finally:
            self._tell_settings()
        if self._stop_for_changes():
            self._answer(None)
            return
        self._edge.run("recovery", lambda: self._use(reading))

    def _tell_settings(self) -> None:
        left = self._yardstick.settings_left
        if left and not self._told_settings:
            self._told_settings = True
            text = (
                f"the function validate left {', '.join(left[:4])} changed: put back; it should"
                " leave the run as it was"
            )
            self._edge.run("journal", lambda: self._recovery.tell(text))

    def _tell_off(self) -> None:
        """Say why the yardstick has switched itself off, if it has."""
        off = self._yardstick.off
        if off:
            text = f"the yardstick is off: {off}"
            self._edge.run("journal", lambda: self._recovery.tell(text))

    def next_batch(self, ahead: int) -> object:
        """Return the next batch; see `Yardstick.next_batch`."""
        return self._yardstick.next_batch(ahead)

    def take_in(self, loss: float, batches: int) -> None:
        """Take in the mean loss of batches that the user's loop has run."""
        reading = self._yardstick.take_in(loss, batches)
        if not self._yardstick.active and self._stop_for_changes():
            self._answer(None)
        elif reading is not None:
            self._edge.run("recovery", lambda: self._use(reading))
        elif not self._yardstick.on:
            self._tell_off()
            self._answer(None)

    def give_up(self) -> None:
        """End a reading that is under way, without a result; everything is put back."""
        if self._yardstick.active:
            self._yardstick.finish()
            self._stop_for_changes()
            self._answer(None)

    # -- used -------------------------------------------------------------------------------

    def _answer(self, reading: Reading | None) -> None:
        wanted = self._recovery.state.wants
        if wanted is None:
            return
        if reading is not None:
            reading = replace(reading, foreign=self._foreign is True)
        self._edge.run("recovery", lambda: self._recovery.after_reading(reading))
        judged = wanted.point is None and not wanted.of_change
        if reading is not None and judged and not self._recovery.busy:
            # Left alone: what the batches cost from here on is compared with this reading.
            sigma = self._sigma()
            self._yardstick.test.restart()
            self._yardstick.judge(reading, sigma=sigma)
            self._parts.recorder.event(
                "yardstick", step=reading.step, losses=list(reading.losses), reference=True
            )

    def _use(self, reading: Reading) -> None:
        self._tell_source()
        told: dict[str, object] = {}
        if self._recovery.state.wants is None:
            before = frozenset(self._like)
            (doubted, self._doubted), fed = (self._doubted, None), None
            if doubted is None:
                reading = self._without_unlike(reading)
                if self._doubts(reading):
                    return
            else:
                reading, fed = doubted, reading.mean
            told = self._judge(reading, fed)
            if self._like != before:
                told["like"] = sorted(self._like)
        identity, self._yardstick.identity = self._yardstick.identity, {}
        self._parts.recorder.event(
            "yardstick",
            step=reading.step,
            losses=list(reading.losses),
            **identity,
            **({} if reading.base_step is None else {"base_step": reading.base_step}),
            **({} if not reading.base else {"base_losses": list(reading.base)}),
            **{k: v for k, v in (("metrics", self._yardstick.metrics),) if v},
            **told,
        )
        self._tell_recount(reading)
        self._answer(reading)

    def _tell_recount(self, reading: Reading) -> None:
        """Suspect that the loop counts the loss otherwise where equal weights show it."""
        factor, since = reading.recount, reading.recounted_since
        if factor is None:
            return
        settings = self._parts.settings
        if abs(math.log(factor)) < _COUNTED and not settings.divides_loss:
            return
        for change in settings.see_recount(factor, since):
            self._parts.recorder.event("setting-changed", step=change.step, **change.event)
            if not change.expected:
                self._note(
                    f"the loop multiplies its loss by {factor:.3g}, since about step {change.step},"
                    f" and nobody announced it: the weights of step {since} now cost that many"
                    " times as much on the same batches"
                )

    def _doubts(self, reading: Reading) -> bool:
        """Whether the batches may be of another kind of data: then what was fed last is read first.

        A state that does worse in eval mode does so on that as well.
        """
        fed = self._what_is_fed(self._sigma())
        if fed is None or self._foreign or not reading.mean - fed[0] > fed[1]:
            return False
        batches = self._yardstick.fed_last()
        if batches:
            self._doubted = reading
            self._yardstick.ask(ReadingRequest("fed", reading.step, batches=batches))
        return bool(batches)

    def _judge(self, reading: Reading, fed: float | None) -> dict[str, object]:
        """Judge a reading at its time; it is recorded with the row of the next step."""
        sigma = self._sigma()
        if self._is_foreign(reading.mean, sigma, fed):
            return {"foreign": True}
        yard = self._yardstick
        if yard.is_loss is None and math.isfinite(sigma):
            yard.is_loss = yard.gives_loss and self._costs_what_is_fed(reading.mean, sigma)
        found = yard.judge(reading, sigma=sigma)
        noted = {
            "yardstick_loss": reading.mean,
            "yardstick_evidence": min(found.total, _MOST_EVIDENCE),
            "yardstick_rise": found.rise,
        }
        self._parts.pool.note({k: v for k, v in noted.items() if math.isfinite(v)})
        told = {"evidence": noted["yardstick_evidence"], "rise": found.rise, "sigma": sigma}
        finite: dict[str, object] = {k: v for k, v in told.items() if math.isfinite(v)}
        return finite | ({} if yard.loops else {"is_loss": yard.is_loss is True})

    def _costs_what_is_fed(self, loss: float, sigma: float) -> bool:
        """Whether a user's loss is about that of training: then it is counted in the same units."""
        level = float(np.median(np.array(self._losses)[-_FIRST_ROWS:]))
        descent = float(np.median(np.array(self._first))) - level
        return abs(loss - level) <= max(_FOREIGN_SHARE * descent, _FOREIGN_SIGMA * sigma)

    def _without_unlike(self, reading: Reading) -> Reading:
        """Leave out batches that are unlike what is fed, and always were, where others are like it.

        A state that gets worse on what it has learned may get better on those, and the other way
        round.
        """
        fed, losses = self._what_is_fed(self._sigma()), reading.losses
        if fed is None:
            return reading
        level, margin = fed
        near = {i for i, x in enumerate(losses) if x - level <= _LIKE * margin}
        far = {i for i, x in enumerate(losses) if x - level > margin} - self._like
        self._like |= near
        if not near or not far or len(near) + len(far) < len(losses):
            return reading
        kept = self._yardstick.leave_out(reading, far)
        if kept is not reading:
            self._like = set(range(len(kept.losses)))
            cost = ", ".join(f"{losses[i]:.4g}" for i in sorted(far))
            self._note(
                f"{len(far)} of {len(losses)} fixed batches left out: they cost {cost}, what is"
                f" fed {level:.4g}, and are of another kind of data; Guard(validate=...) names"
                " others"
            )
        return kept

    def _what_is_fed(self, sigma: float) -> tuple[float, float] | None:
        """Return what that costs which is fed, and how much more shows another kind; None: not judged."""
        if self._yardstick.source == "validate" or not self._losses:
            return None
        # Data that changes is new to the model, and costs more for a while.
        level = float(np.median(np.array(self._losses)[-_FIRST_ROWS:]))
        level = self._lowest = min(level, self._lowest)
        descent = float(np.median(np.array(self._first))) - level
        return level, max(_FOREIGN_SHARE * descent, _FOREIGN_SIGMA * sigma)

    def _is_foreign(self, loss: float, sigma: float, last: float | None) -> bool:
        """Whether the batches are of data that the run is not fed.

        They then get worse while it learns what it is fed: that says nothing of the run. They cost
        more than what is fed, and what was fed last does not, read alike. Without a reading of that
        only those count as such that cost more from the first reading on.
        """
        fed = self._what_is_fed(sigma)
        if fed is None or (last is None and self._foreign is False):
            self._foreign = False
            return False
        level, margin = fed
        now = loss - level > margin and (last is None or last - level <= margin)
        if now and not self._told_foreign:
            self._told_foreign = True
            self._recovery.tell(
                f"the fixed batches cost {loss:.4g}, what is fed {level:.4g}: they are of another"
                " kind of data; until they cost as much, they raise no alarm, and branches are"
                " judged by the training loss. Guard(validate=...) names others"
            )
        elif self._foreign and not now:
            self._yardstick.test.restart()
            self._note(f"the fixed batches cost what is fed ({loss:.4g}): they are judged again")
        self._foreign = now
        return now

    def _sigma(self) -> float:
        """Return the spread of single rows about their trend, from differences of neighbors."""
        if len(self._losses) < 3:
            return math.inf
        losses = np.array(self._losses)
        fall = math.sqrt(2) * (float(np.median(np.array(self._first))) - float(np.median(losses)))
        return floored_sigma(np.diff(losses), fall=fall) / math.sqrt(2)

    def _stop_for_changes(self) -> bool:
        """Switch off, and say why, where a reading changes the model; return whether it does."""
        yard = self._yardstick
        wrong, written = (", ".join(x[:3]) for x in (yard.not_put_back, yard.written))
        if yard.not_put_back:
            what = " (a forward pass writes into it in place)" if yard.written else ""
            yard.switch_off(f"{wrong} could not be put back{what}")
        elif yard.written:
            yard.switch_off(
                f"a forward pass writes into {written} in place; the values were put back"
            )
        else:
            return False
        self._tell_off()
        return True

    def _tell_source(self) -> None:
        """Say once what is read, and whether the run trains on it, too."""
        yard = self._yardstick
        if yard.new_series:
            yard.new_series = False
            self._note(
                "the yardstick begins a new series: its batches are not those that were read before"
                " the restart, whose losses are forgotten"
            )
        if self._told_source:
            return
        self._told_source = True
        trained = yard.trained_on(steps=self._steps, accumulate=self._accumulate)
        also = {True: "; training uses them, too", False: "; held out", None: ""}[trained]
        mode = "" if yard.in_eval else "; the loop puts the model back into train mode for them"
        self._note(f"the yardstick reads {yard.source} every {yard.every_steps} steps{also}{mode}")
