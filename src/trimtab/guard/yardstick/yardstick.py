"""The yardstick of a run: when it is read, what is handed to the user's loop for it, what it says.

A reading takes place between two steps. The user's loop gets the fixed batches with
`guard.phase == "probe"` and every module in eval mode; it computes the loss as always, and nothing
is updated. The first pass is of the state as it is; a second one, where it is asked for, is of the
weights of an older snapshot, which are put in place for it and taken out again. Whatever a reading
changes is put back (`isolation`), so that training goes on bit for bit.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.guard.state.serialization import clone
from trimtab.guard.yardstick.isolation import Isolation, fix_rng
from trimtab.guard.yardstick.reading import Reading
from trimtab.guard.yardstick.sequential import PairedTest

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.state.training_state import Snapshot, StateDict, Training
    from trimtab.guard.yardstick.batches import FixedBatches, Metrics
    from trimtab.guard.yardstick.sequential import Evidence

__all__ = ["Request", "Yardstick"]

_SEED = 20260101
"""Of the noise that an evaluation draws: the same each time."""
_MOST_OVER = 2.0
"""Times its share that a reading may take before the next ones come half as often."""
_FORWARD_SHARE = 1 / 3
"""Cost of a forward pass, share of a step; until it is measured."""


@dataclass(frozen=True)
class Request:
    """A reading that is asked for."""

    purpose: str
    """calm: at its time; alarm, branch: recovery decides by it."""
    step: int
    older: Snapshot | None = None
    """Also read the weights of this state."""


class Yardstick:
    """Reads the fixed batches; switched off it hands out nothing."""

    def __init__(
        self,
        training: Training,
        batches: FixedBatches | None,
        metrics: Metrics | None,
        *,
        share: float,
        every_steps: int,
        num_batches: int,
        off: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Begin without a reading.

        Args:
            training: Whose model is read.
            batches: The fixed batches; None: `metrics` reads by itself.
            metrics: The user's function, or None.
            share: Most of the time that readings at their time take; 0: there are none.
            every_steps: Distance of readings is a multiple of it.
            num_batches: Of one pass.
            off: Why it is switched off; empty: it is on.
            clock: Gives seconds.
        """
        self.off = off
        self.test = PairedTest()
        self._training = training
        self._batches = batches
        self._metrics = metrics
        self._share = share
        self._clock = clock
        self.every_steps = every_steps
        if share > 0:
            need = _FORWARD_SHARE * num_batches / share
            self.every_steps = every_steps * max(math.ceil(need / every_steps), 1)
        self._request: Request | None = None
        self._active = False
        self._isolation: Isolation | None = None
        self._live: StateDict | None = None
        self._queue: list[object] = []
        self._losses: list[float] = []
        self._first: tuple[float, ...] = ()
        self._began = 0.0
        self._ended = clock()
        self.metrics: dict[str, tuple[float, str]] = {}
        """The user's metrics as last measured, with their good direction."""
        self.num_readings = 0
        self.num_passes = 0
        """Batches that were read, all readings together."""
        self.seconds = 0.0
        self.not_put_back: tuple[str, ...] = ()
        """What the last reading left otherwise than it was; empty where nothing is."""
        self.in_eval = True
        """Whether the last reading was in eval mode throughout."""

    # -- when -------------------------------------------------------------------------------

    @property
    def on(self) -> bool:
        """Whether it can be read."""
        return not self.off

    @property
    def decides(self) -> bool:
        """Whether recovery may go by it: by a user's metric only once its own spread is known."""
        return self.on and (self._metrics is None or self.test.spread is not None)

    @property
    def loops(self) -> bool:
        """Whether a reading goes through the user's loop."""
        return self._metrics is None

    @property
    def wanted(self) -> bool:
        """Whether a reading is asked for and not begun."""
        return self._request is not None and not self._active

    @property
    def active(self) -> bool:
        """Whether a reading is under way: batches handed out are of the yardstick."""
        return self._active

    @property
    def source(self) -> str:
        """Where the batches come from, for the journal."""
        return "validate" if self._batches is None else self._batches.source

    def trained_on(self, *, steps: int | None, accumulate: int) -> bool | None:
        """Whether the run trains on the batches, too; None: that is not known."""
        if self._batches is None:
            return False
        return self._batches.trained_on(steps=steps, accumulate=accumulate)

    def is_due(self, step: int) -> bool:
        """Whether a reading is due after a step."""
        return self.on and self._share > 0 and step > 0 and step % self.every_steps == 0

    def see_batch(self, batch: object) -> None:
        """Take note of a batch that is handed out for training."""
        if self.on and self._batches is not None:
            self._batches.see(batch)

    def ask(self, request: Request) -> None:
        """Ask for a reading before the next batch is fetched; a later request replaces it."""
        if self.on and not self._active:
            self._request = request

    def switch_off(self, why: str) -> None:
        """Read nothing any more."""
        self.off = self.off or why
        self._request = None

    # -- a reading --------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin the reading that is asked for; return whether batches are to be handed out.

        Raises:
            Whatever reading the batches raises; nothing is changed then.
        """
        assert self._request is not None
        if self._batches is not None and not self._batches.fill():
            self._request = None
            return False
        self._began = self._clock()
        self._active = True
        self._first, self._losses = (), []
        self._isolation = Isolation(self._training.bare_model)
        self._begin_pass()
        return True

    def _begin_pass(self) -> None:
        self._queue = list(self._batches.batches) if self._batches is not None else []
        fix_rng(_SEED)

    def next_batch(self, ahead: int) -> object:
        """Return a copy of a batch: a loop may change in place what it is given.

        Args:
            ahead: Batches that were handed out since the last `take_in`.
        """
        return clone(self._queue[min(ahead, len(self._queue) - 1)])

    def take_in(self, loss: float, batches: int) -> Reading | None:
        """Take in the mean loss of batches that were handed out; return the reading if whole."""
        self._losses.append(loss)
        self.num_passes += batches
        del self._queue[:batches]
        return None if self._queue else self._end_pass()

    def _end_pass(self) -> Reading | None:
        request = self._request
        assert request is not None
        losses, self._losses = tuple(self._losses), []
        if request.older is not None and not self._first:
            self._first = losses
            self._swap_in(request.older)
            self._begin_pass()
            return None
        # A loop that makes steps of other numbers of batches gives losses that cannot be paired.
        paired = request.older is not None and len(losses) == len(self._first)
        if request.older is not None and paired:
            reading = Reading(request.step, self._first, request.older.step, losses)
        else:
            reading = Reading(request.step, self._first or losses)
        self.finish()
        return reading

    def measure(self) -> Reading:
        """Return a reading by the user's function; its first metric is what is judged.

        Raises:
            ValueError: It does not return {name: (value, "up" or "down")}.
            Whatever the function raises; everything is put back then, too.
        """
        assert self._metrics is not None
        request = self._request
        assert request is not None
        self._began = self._clock()
        self._active = True
        self._isolation = Isolation(self._training.bare_model)
        try:
            fix_rng(_SEED)
            self.metrics = _checked(self._metrics())
            losses = _lower_is_better(self.metrics)
            if request.older is None:
                return Reading(request.step, losses)
            self._swap_in(request.older)
            fix_rng(_SEED)
            base = _lower_is_better(_checked(self._metrics()))
            return Reading(request.step, losses, request.older.step, base, self.test.spread)
        finally:
            self.finish()

    def finish(self) -> None:
        """Put everything back; done again, it changes nothing."""
        request, self._request, self._queue = self._request, None, []
        if not self._active:
            return
        self._active = False
        isolation, self._isolation = self._isolation, None
        assert isolation is not None
        self.in_eval = isolation.in_eval
        if self._live is not None:
            live, self._live = self._live, None
            self._training.bare_model.load_state_dict(live)
        self.not_put_back = isolation.put_back()
        now = self._clock()
        self.seconds += now - self._began
        self.num_readings += 1
        calm = request is not None and request.purpose == "calm"
        if calm and now - self._began > _MOST_OVER * self._share * (now - self._ended):
            # Only ever less often, by whole factors: what is read when hardly depends on the clock.
            self.every_steps *= 2
        self._ended = now

    def _swap_in(self, older: Snapshot) -> None:
        """Put the weights of an older state in place; those of now come back in `finish`."""
        model = self._training.bare_model
        self._live = clone(model.state_dict())
        model.load_state_dict(clone(older.payload["training"]["model"]))

    # -- what it says -----------------------------------------------------------------------

    def judge(self, reading: Reading, *, sigma: float) -> Evidence:
        """Return what a reading at its time adds to what is known.

        Args:
            reading: Made in a calm step.
            sigma: Spread of single rows of the training loss; a user's metric has another unit, so
                that only its own spread counts.
        """
        sigma = math.inf if self._metrics is not None else sigma
        return self.test.take_in(reading.step, reading.losses, sigma=sigma)


def _checked(found: object) -> dict[str, tuple[float, str]]:
    wrong = ValueError(
        f"validate returned {str(found)[:80]}, expected {{name: (value, 'up' or 'down')}}"
    )
    if not isinstance(found, dict) or not found:
        raise wrong
    metrics: dict[str, tuple[float, str]] = {}
    for name, pair in found.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[1] not in ("up", "down"):
            raise wrong
        metrics[str(name)] = (float(pair[0]), pair[1])
    return metrics


def _lower_is_better(metrics: dict[str, tuple[float, str]]) -> tuple[float, ...]:
    value, way = next(iter(metrics.values()))
    return (value if way == "down" else -value,)
