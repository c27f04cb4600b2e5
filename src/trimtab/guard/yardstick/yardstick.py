"""The yardstick of a run: when it is read, what is handed to the user's loop for it, what it says.

A reading takes place between two steps. The user's loop gets the fixed batches with
`guard.phase == "probe"` and every module in eval mode; it computes the loss as always, and nothing
is updated. The first pass is of the state as it is; a second one, where it is asked for, is of the
weights of an older snapshot, which are put in place for it and taken out again. Whatever a reading
changes is put back (`isolation`), so that training goes on bit for bit.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.guard.state.serialization import clone
from trimtab.guard.yardstick.isolation import FIXED_SEED, Isolation, fix_rng
from trimtab.guard.yardstick.kept_settings import KeptSettings
from trimtab.guard.yardstick.reading import Reading, recount_of
from trimtab.guard.yardstick.sequential import PairedTest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from trimtab.guard.state.training_state import Snapshot, StateDict, Training
    from trimtab.guard.yardstick.batches import FixedBatches, Metrics
    from trimtab.guard.yardstick.sequential import RiseEvidence

__all__ = ["ReadingRequest", "Yardstick"]

_MOST_READ = 64
"""Readings that are remembered."""
_MOST_OVER = 2.0
"""Times its share that a reading may take before the next ones come half as often."""
_ALIKE, _ALIKE_ON_CPU = 1e-3, 1e-5
"""Share of its loss by which one batch may differ from itself: of kernels that add up in any order,
or are chosen anew, and of those of a CPU. Ours."""
_FORWARD_SHARE = 1 / 3
"""Cost of a forward pass, share of a step; until it is measured."""


@dataclass(frozen=True)
class ReadingRequest:
    """A reading that is asked for."""

    purpose: str
    """calm: at its time; alarm, branch: recovery decides by it; fed: of `batches`."""
    step: int
    older: Snapshot | None = None
    """Also read the weights of this state."""
    known: Snapshot | None = None
    """And of this one, which was read at its time: what the loop counts otherwise since."""
    batches: Sequence[object] = ()
    """Read in place of the fixed ones; empty: those are read."""


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
        self._function = metrics
        self._share = share
        self._clock = clock
        self.every_steps = every_steps
        if share > 0:
            need = _FORWARD_SHARE * num_batches / share
            self.every_steps = every_steps * max(math.ceil(need / every_steps), 1)
        self._num_batches = num_batches
        self._repeated = 0
        """Batches at the head of the queue that are handed out twice; 0: none."""
        self._loop_known = False
        """Whether one batch has been handed out twice."""
        self._request: ReadingRequest | None = None
        self._active = False
        self._isolation: Isolation | None = None
        self._live: StateDict | None = None
        self._queue: list[object] = []
        self._losses: list[float] = []
        self._first: tuple[float, ...] = ()
        self._second: tuple[float, ...] = ()
        self._read: dict[int, tuple[float, ...]] = {}
        """Losses of the batches by the step at which they were read at their time."""
        self._began = 0.0
        self._ended = clock()
        self.metrics: dict[str, tuple[float, str]] = {}
        """The user's metrics as last measured, with their good direction."""
        self.no_number = False
        """Whether the user's function gave no finite number when it was called last."""
        self.num_readings = 0
        self.num_passes = 0
        """Batches that were read, all readings together."""
        self.seconds = 0.0
        self.not_put_back: tuple[str, ...] = ()
        """What the last reading left otherwise than it was; empty where nothing is."""
        self.settings_left: tuple[str, ...] = ()
        """Settings that the user's function left otherwise than they were, and are put back."""
        self.written: tuple[str, ...] = ()
        """Parameters that the model wrote in place in the last reading."""
        self._parameters_hold = False
        self.identity: dict[str, object] = {}
        """Of the batches, to be written down with the next reading; empty: it is written down."""
        self.new_series = False
        """Whether what was read before the restart was of other batches."""
        self.is_loss: bool | None = None
        """Whether the user's function gives what training counts its loss in; None: not known yet."""
        self._known = self._heard = False
        self._heard_digest = ""
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
        known = self._has_scale or self.test.spread is not None or self.no_number
        return self.on and known

    @property
    def _has_scale(self) -> bool:
        """Whether the spread of the training loss says what a reading may differ by."""
        return self._function is None or self.is_loss is True

    @property
    def gives_loss(self) -> bool:
        """Whether the user's function says that its first metric is a loss."""
        name, (_, way) = next(iter(self.metrics.items()), ("", (0.0, "")))
        return self._function is not None and way == "down" and name.lower().endswith("loss")

    @property
    def loops(self) -> bool:
        """Whether a reading goes through the user's loop."""
        return self._function is None

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

    def fed_last(self) -> list[object]:
        """Return as many batches as are read, that were fed last; empty: they cannot be had."""
        return [] if self._batches is None else self._batches.fed_last()

    def see_batch(self, batch: object) -> None:
        """Take note of a batch that is handed out for training."""
        if self.on and self._batches is not None:
            self._batches.see(batch)

    def ask(self, request: ReadingRequest) -> None:
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

        Where something could not be put back after it, nothing is begun and it is switched off.

        Raises:
            Whatever reading the batches raises; nothing is changed then.
        """
        assert self._request is not None
        if self._batches is not None and not self._batches.fill():
            self._request = None
            return False
        self._check_identity()
        self._began = self._clock()
        self._first, self._second, self._losses = (), (), []
        if not self._isolate():
            return False
        self._begin_pass()
        self._repeated = 0
        if not (self._loop_known or self._request.batches):
            self._repeated = max(len(self._queue) // self._num_batches, 1)
            self._queue = self._queue[: self._repeated] + self._queue
        return True

    def _check_identity(self) -> None:
        """Begin a new series where the batches are not provably those of the process before."""
        if self._batches is None or self._known:
            return
        self._known = True
        self.identity = self._batches.identity
        if self._heard and self.identity["batches"] != self._heard_digest:
            self.test.restart(others=True)
            self._read = {}
            self.new_series = True

    def _isolate(self) -> bool:
        """Save what a reading may change; return whether all of it can be put back.

        Only the first reading keeps a copy of the parameters: it shows whether the model writes
        into them.
        """
        self._isolation = Isolation(
            self._training.bare_model, keep_parameters=not self._parameters_hold
        )
        self._active = True  # only now: where memory is short, nothing is begun
        refused = self._isolation.refused
        if refused:
            self.finish()
            self.switch_off(f"it could not put back {', '.join(refused[:3])}")
        return not refused

    def _begin_pass(self) -> None:
        assert self._request is not None
        fixed = () if self._batches is None else self._batches.batches
        self._queue = list(self._request.batches or fixed)
        fix_rng(FIXED_SEED)

    def next_batch(self, ahead: int) -> object:
        """Return a copy of a batch: a loop may change in place what it is given.

        Args:
            ahead: Batches that were handed out since the last `take_in`.
        """
        if self._repeated and self._losses and not ahead:
            assert self._isolation is not None
            self._isolation.rewind()
            fix_rng(FIXED_SEED)
        return clone(self._queue[min(ahead, len(self._queue) - 1)])

    def take_in(self, loss: float, batches: int) -> Reading | None:
        """Take in the mean loss of batches that were handed out; return the reading if whole."""
        self._losses.append(loss)
        self.num_passes += batches
        del self._queue[:batches]
        if self._repeated and self._carries(batches):
            first, second = self._losses
            self.finish()
            if self.written or self.not_put_back:  # the model does, and not the loop
                return None
            self.switch_off(
                "the loop carries something from one batch to the next, such as a hidden state (the"
                f" same batch cost {first:.6g}, then {second:.6g}), which a reading changes and"
                " cannot put back; keep it as it is where guard.phase is 'probe', or hand over a"
                " function as validate"
            )
            return None
        return None if self._queue else self._end_pass()

    def _carries(self, batches: int) -> bool:
        """Whether a batch that was handed out twice costs otherwise the second time."""
        if batches != self._repeated:  # a loop that makes steps of other numbers of batches
            assert self._batches is not None
            self._losses, self._repeated, self._loop_known = [], 0, True
            self._begin_pass()
            return False
        if len(self._losses) < 2:
            return False
        self._repeated, self._loop_known = 0, True
        first, second = self._losses
        on_cpu = all(p.device.type == "cpu" for p in self._training.bare_model.parameters())
        most = (_ALIKE_ON_CPU if on_cpu else _ALIKE) * max(abs(first), abs(second))
        if abs(first - second) > most:
            return True
        del self._losses[0]
        return False

    def _end_pass(self) -> Reading | None:
        request = self._request
        assert request is not None
        losses, self._losses = tuple(self._losses), []
        older, known = request.older, request.known
        if older is not None and not self._first:
            self._first = losses
            self._swap_in(older)
            self._begin_pass()
            return None
        # A loop that makes steps of other numbers of batches gives losses that cannot be paired.
        if older is None or len(losses) != len(self._first):
            reading = Reading(request.step, self._first or losses)
        elif known is not None and not self._second:
            self._second = losses
            self._swap_in(known)
            self._begin_pass()
            return None
        else:
            base, at = self._second or losses, older if known is None else known
            recount = recount_of(losses, self._read.get(at.step, ()))
            reading = Reading(request.step, self._first, older.step, base, recount, at.step)
        if request.purpose == "calm":
            self._remember(request.step, reading.losses)
        self.finish()
        return reading

    def measure(self) -> Reading | None:
        """Return a reading by the user's function; its first metric is what is judged.

        None where something could not be put back after it; it is switched off then.

        Raises:
            ValueError: It returns neither a loss nor {name: (value, "up" or "down")}.
            Whatever the function raises; everything is put back then, too.
        """
        assert self._function is not None
        request = self._request
        assert request is not None
        self._began = self._clock()
        if not self._isolate():
            return None
        settings = KeptSettings(self._training)
        try:
            fix_rng(FIXED_SEED)
            self.metrics = checked_metrics(self._function())
            losses = _lower_is_better(self.metrics)
            self.no_number = not all(map(math.isfinite, losses))
            sigma = self.test.spread
            if request.older is None:
                return Reading(request.step, losses, sigma=sigma)
            if sigma is None and not self._has_scale:
                sigma = math.inf  # nothing is said but whether there are numbers
            self._swap_in(request.older)
            fix_rng(FIXED_SEED)
            base = _lower_is_better(checked_metrics(self._function()))
            return Reading(request.step, losses, request.older.step, base, sigma=sigma)
        finally:
            self.settings_left = settings.put_back()
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
        isolation.look_for_writes()
        if self._live is not None:
            live, self._live = self._live, None
            self._training.bare_model.load_state_dict(live)
        self.not_put_back = isolation.put_back()
        self.written = isolation.written
        ran = self._function is not None or self.num_passes > 0
        self._parameters_hold = ran and not isolation.refused
        now = self._clock()
        self.seconds += now - self._began
        self.num_readings += 1
        calm = request is not None and request.purpose == "calm"
        # The batches of the run cost what its steps do, and are counted in steps alone: when they
        # are read is the same on every rank and after a restart. Of others that is not known.
        of_users = self._batches is None or self._batches.source == "validate"
        if calm and of_users and now - self._began > _MOST_OVER * self._share * (now - self._ended):
            # Only ever less often, by whole factors: what is read when hardly depends on the clock.
            self.every_steps *= 2
        self._ended = now

    def _remember(self, step: int, losses: tuple[float, ...]) -> None:
        self._read[step] = losses
        while len(self._read) > _MOST_READ:
            del self._read[next(iter(self._read))]

    def leave_out(self, reading: Reading, numbers: Collection[int]) -> Reading:
        """Read these batches no more, by their number among a reading's; return it without them.

        A loop that makes steps of other numbers of batches keeps all of them.
        """
        batches, losses = self._batches, reading.losses
        if batches is None or self._active or len(batches.batches) % len(losses):
            return reading
        each = len(batches.batches) // len(losses)
        batches.leave_out({each * i + k for i in numbers for k in range(each)})
        self.identity = batches.identity
        kept = tuple(x for i, x in enumerate(losses) if i not in numbers)
        self.test.restart(others=True)
        self._read = {}
        self._remember(reading.step, kept)
        base = tuple(x for i, x in enumerate(reading.base) if i not in numbers)
        return replace(reading, losses=kept, base=base)

    def forget_after(self, step: int) -> None:
        """Forget what was read after a step, to which the run has gone back."""
        self.test.forget_after(step)
        self._read = {t: x for t, x in self._read.items() if t <= step}

    @property
    def steps_read(self) -> Collection[int]:
        """The steps of this lineage at which the batches were read at their time."""
        return self._read.keys()

    def _swap_in(self, older: Snapshot) -> None:
        """Put the weights of an older state in place; those of now come back in `finish`."""
        model, isolation = self._training.bare_model, self._isolation
        assert isolation is not None
        isolation.look_for_writes()
        if self._live is None:
            self._live = clone(model.state_dict())
        model.load_state_dict(clone(older.payload["training"]["model"]))
        isolation.weights_are_set()

    def hear(self, event: str, step: int, data: Mapping[str, object]) -> None:
        """Take in an event of the journal, in its order: a reading, or where the run went back."""
        if event == "attempt" and isinstance(data.get("parent_step"), int):
            self.test.forget_after(step, keep_total=True)
            self._read = {t: x for t, x in self._read.items() if t <= step}
        losses = data.get("losses")
        if event != "yardstick" or not isinstance(losses, list):
            return
        self._heard = True
        if isinstance(digest := data.get("batches"), str):
            if digest != self._heard_digest:
                self.test.restart(others=True)
                self._read = {}
            self._heard_digest = digest
            if self._batches is not None:
                self._batches.take_again(data.get("samples"))
        values = tuple(float(x) for x in losses)
        if {"foreign", "evidence"} & data.keys():
            self._remember(step, values)
        if data.get("reference"):
            self.test.restart()
        elif "evidence" not in data:
            return
        sigma = data.get("sigma")
        if isinstance(is_loss := data.get("is_loss"), bool):
            self.is_loss = is_loss
        self.judge(
            Reading(step, values), sigma=sigma if isinstance(sigma, int | float) else math.inf
        )

    # -- what it says -----------------------------------------------------------------------

    def judge(self, reading: Reading, *, sigma: float) -> RiseEvidence:
        """Return what a reading at its time adds to what is known.

        Args:
            reading: Made in a calm step.
            sigma: Spread of single rows of the training loss; of a user's metric in another unit
                only its own spread counts.
        """
        sigma = sigma if self._has_scale else math.inf
        return self.test.take_in(reading.step, reading.losses, sigma=sigma)


def checked_metrics(found: object) -> dict[str, tuple[float, str]]:
    """Return what a user's function gave; a number alone is a loss.

    Raises:
        ValueError: It is neither a number nor {name: (value, "up" or "down")}.
    """
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        if not isinstance(found, str | bytes | Mapping):
            return {"loss": (float(found), "down")}  # type: ignore[arg-type]
    pairs = found.items() if isinstance(found, Mapping) else ()
    metrics = {
        str(name): (float(pair[0]), pair[1])
        for name, pair in pairs
        if isinstance(pair, tuple | list) and len(pair) == 2 and pair[1] in ("up", "down")
    }
    if not metrics or len(metrics) != len(pairs):
        raise ValueError(
            f"the function given as validate returned {str(found)[:80]}; it must return a loss, or"
            " {name: (value, 'up' or 'down')}, such as {'accuracy': (0.71, 'up')}"
        )
    return metrics


def _lower_is_better(metrics: dict[str, tuple[float, str]]) -> tuple[float, ...]:
    value, way = next(iter(metrics.values()))
    return (value if way == "down" else -value,)
