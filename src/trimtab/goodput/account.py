"""From marks in time to seconds by cause."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, Literal

__all__ = ["CAUSES", "GoodputAccount", "Mark", "account_for"]

CAUSES: Final[Mapping[str, str]] = {
    "training": "steps that count",
    "init": "the first start, up to its first step",
    "data": "waiting for data",
    "checkpoint": "saving checkpoints",
    "evaluation": "evaluation",
    "recomputed": "steps trained a second time",
    "restart": "failures: from the last step before to the first step after",
    "hang": "no step came, and nothing said why",
    "slow": "steps slower than usual: what exceeds the usual time",
    "numeric": "numeric recovery: stop, restart, steps trained again, trials",
    "untold": "time that the marks do not explain",
}
"""Cause -> what it holds. Only `training` is effective."""

_SLOW_FACTOR = 1.25
"""Time of a step over the usual one from which it is slow; as KNOWN for slow nodes (BLOOM lost 5 %
to one before anyone looked). Below it lies jitter."""
_HANG_FACTOR = 3.0
_HANG_EXTRA_S = 8.0
"""A silence of 3 usual times + 8 s is a hang; the limit of `trimtab supervise`."""
_MIN_GAPS = 5
_SECTIONS = ("checkpoint", "evaluation")
EVALUATION_SHARE = 0.02
"""Of the time, above which evaluation is a warning: what people of large runs budgeted for it."""

MarkKind = Literal["start", "step", "begin", "end", "section", "stop", "back"]


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Something that is known to have happened at a time."""

    at: float
    """Seconds, on one clock for all marks of a run."""
    kind: MarkKind
    """`start`: a process began. `step`: the row of a step was written. `begin`, `end`, `section`:
    saving or evaluation began, ended, or took place before this mark. `stop`: the process ended, or
    was found hanging. `back`: the run went back in its state, without a new process."""
    step: float | None = None
    """The step, where known; of `start` and `back` the one that training goes on from."""
    cause: str = ""
    """Of a section `checkpoint` or `evaluation`; of a stop `restart`, `hang`, `numeric` or `done`;
    of `back` `numeric`."""
    took_s: float | None = None
    """Of a step: time spent in steps since the mark before, where the run measured it, seconds."""
    slow_s: float = 0.0
    """Of a step: the part of `took_s` by which steps exceeded their usual time, seconds."""
    data_s: float | None = None
    """Of a row: time that a step waits for data, as logged, seconds."""
    recomputed: bool = False
    """Whether the step is told to be one that was trained before."""


@dataclass(frozen=True, kw_only=True)
class GoodputAccount:
    """Seconds by cause."""

    seconds: Mapping[str, float]
    """By name in `CAUSES`; sums to `wall_s`, to the microsecond (math.fsum)."""
    wall_s: float
    """From the first mark to the last, seconds."""
    num_steps: int
    """Rows of steps that were seen."""
    num_starts: int
    usual_step_s: float | None
    """Median time of a step, seconds; None: fewer than two rows."""
    timed: bool = True
    """Whether times were known; False: `wall_s` is the sum of the logged times of the steps."""
    untold: tuple[str, ...] = field(default=())
    """What cannot be told from these sources, a sentence each."""

    @property
    def effective(self) -> float | None:
        """Share of the wall time that went into steps that count, 0 to 1; None: unknown."""
        return self.seconds["training"] / self.wall_s if self.wall_s > 0 else None

    @property
    def costly_evaluation(self) -> float | None:
        """Share of the wall time that evaluation took, where it is above `EVALUATION_SHARE`."""
        share = self.seconds["evaluation"] / self.wall_s if self.wall_s > 0 else 0.0
        return share if share > EVALUATION_SHARE else None

    @property
    def largest_loss(self) -> str:
        """The cause that took most of the rest; empty where nothing was lost."""
        lost = {k: v for k, v in self.seconds.items() if k != "training" and v > 0}
        return max(lost, key=lambda k: lost[k]) if lost else ""


def account_for(marks: Sequence[Mark], *, untold: tuple[str, ...] = ()) -> GoodputAccount:
    """Give each second between the first mark and the last to one cause.

    Between two rows of steps in one process the usual time of so many steps is training; what
    exceeds 1.25 times that is saving or evaluation where a mark between says so, a hang where it
    exceeds 3 times the usual + 8 s, else slow steps. Steps at or below the highest step reached
    before count as recomputed. From the last row before a stop to the first row after the next
    start all but the usual time of that row belongs to the cause of the stop.

    Args:
        marks: In any order; equal times keep their order.
        untold: What the sources could not tell.

    Returns:
        Seconds by cause. They sum to the wall time: each stretch is divided without a rest.

    Blind to: time inside a usual step that is wasted there (a slow collective in every step).
    Cost: O(n log n) in the marks.
    """
    ordered = sorted((m for m in marks if math.isfinite(m.at)), key=lambda m: m.at)
    return _Account(ordered).done(untold)


class _Account:
    """Walks once over the marks; one stretch reaches from a row, start or stop to the next."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks = marks
        self._parts: dict[str, list[float]] = {name: [] for name in CAUSES}
        self._stride, self._usual = _usual(marks)
        self._best = -math.inf
        self._step: float | None = None
        """The last step of this process; None before its first row."""
        self._why = "init"
        """What the time until the next first row is lost to."""
        self._again = "recomputed"
        """What steps that were trained before are lost to."""
        self._from: float | None = None
        """The step that this process began from, where known."""
        self._begun: tuple[str, float] | None = None
        self._inside: dict[str, float] = {}
        """Seconds of sections with a beginning and an end, in this stretch."""
        self._section = ""

    def done(self, untold: tuple[str, ...]) -> GoodputAccount:
        marks = self._marks
        at = marks[0].at if marks else 0.0
        for mark in marks:
            if mark.kind in ("begin", "end", "section"):
                self._note(mark)
                continue
            self._stretch(mark, mark.at - at)
            at = mark.at
        if marks:
            self._put(self._section or "untold", marks[-1].at - at - sum(self._inside.values()))
            self._flush()
        wall = marks[-1].at - marks[0].at if marks else 0.0
        return GoodputAccount(
            seconds=_exact({k: math.fsum(v) for k, v in self._parts.items()}, wall),
            wall_s=wall,
            num_steps=sum(m.kind == "step" for m in marks),
            num_starts=max(sum(m.kind == "start" for m in marks), int(bool(marks))),
            usual_step_s=self._usual,
            untold=untold,
        )

    def _note(self, mark: Mark) -> None:
        if mark.cause not in _SECTIONS:
            return
        if mark.kind == "begin":
            self._begun = (mark.cause, mark.at)
        elif mark.kind == "end" and self._begun is not None and self._begun[0] == mark.cause:
            took = mark.at - self._begun[1]
            self._inside[mark.cause] = self._inside.get(mark.cause, 0.0) + took
            self._begun = None
            return
        self._section = mark.cause

    def _stretch(self, mark: Mark, seconds: float) -> None:
        inside = sum(self._inside.values())
        rest = max(seconds - inside, 0.0)
        if inside > seconds:  # a section that began in the stretch before
            scale = seconds / inside
            self._inside = {k: v * scale for k, v in self._inside.items()}
        match mark.kind:
            case "step":
                self._row(mark, rest)
            case "start":
                self._start(rest)
                self._from = mark.step
            case "back":
                self._put("numeric" if self._step is not None else self._why, rest)
                self._step = mark.step
                self._again = "numeric"
            case _:
                self._stop(mark, rest)
        self._flush()

    def _start(self, seconds: float) -> None:
        self._put(self._why if self._why != "init" or self._step is None else "restart", seconds)
        if self._step is not None:
            self._why, self._again = "restart", "recomputed"
        self._step = None

    def _stop(self, mark: Mark, seconds: float) -> None:
        cause = mark.cause or "restart"
        if cause == "done":
            self._put(self._section or "untold", seconds)
            cause = "restart"
        elif self._step is None and self._why == "init":
            self._put("init" if cause == "restart" else cause, seconds)
        else:
            self._put(cause, seconds)
        # What follows a hang is a start like any other: the hang is what it took to find it.
        self._why = "numeric" if cause == "numeric" else "restart"
        self._again = "numeric" if cause == "numeric" else "recomputed"
        self._step = None

    def _row(self, mark: Mark, seconds: float) -> None:
        step = self._number(mark)
        before, usual = self._step, self._usual or 0.0
        if before is None:
            known = self._from is not None and step > self._from
            num = step - self._from if known and self._from is not None else self._stride
            self._worked(mark, step, num, min(seconds, num * usual), seconds, self._why)
        elif step < before or mark.recomputed:
            # The count fell back without a word: a process that was started again.
            num = self._stride
            self._worked(mark, step, num, min(seconds, num * usual), seconds, "restart")
        else:
            num = step - before
            work = num * usual
            if mark.took_s is None and seconds <= _SLOW_FACTOR * work:
                work = seconds
            self._worked(mark, step, num, min(seconds, work), seconds, "")
        if before is None:
            self._why = "restart"
        self._step = step
        self._best = max(self._best, step)

    def _worked(
        self, mark: Mark, step: float, num: float, work: float, seconds: float, why: str
    ) -> None:
        """Divide a stretch that ends with a row into work and what is lost.

        Args:
            mark: The row.
            step: Its step.
            num: Steps in the stretch.
            work: Seconds that so many steps usually take.
            seconds: Length of the stretch.
            why: What the rest is lost to; empty: told from its length and from sections.
        """
        slow = 0.0
        if mark.took_s is not None:
            took = min(mark.took_s, seconds)
            slow = min(mark.slow_s, took)
            work = took - slow
        rest = seconds - work - slow
        waited = min((mark.data_s or 0.0) * num, work)
        again = 0.0
        if num > 0 and self._best > step - num:
            again = min(self._best, step) - (step - num)
            again = (work - waited) * min(again / num, 1.0)
        self._put("data", waited)
        self._put(self._again, again)
        self._put("training", work - waited - again)
        self._put("slow", slow)
        why = why or self._section
        usual = self._usual or 0.0
        if not why and mark.took_s is not None:
            why = "untold"
        if not why:
            long = rest > (_HANG_FACTOR - 1.0) * max(num, self._stride) * usual + _HANG_EXTRA_S
            why = "hang" if long else "slow"
        self._put(why, rest)

    def _number(self, mark: Mark) -> float:
        if mark.step is not None:
            return mark.step
        # Rows without a number: each is the next one, and nothing can be told to be repeated.
        before = self._best if math.isfinite(self._best) else 0.0
        return before + 1.0

    def _put(self, cause: str, seconds: float) -> None:
        if seconds > 0:
            self._parts[cause].append(seconds)

    def _flush(self) -> None:
        for cause, seconds in self._inside.items():
            self._put(cause, seconds)
        self._inside, self._section = {}, ""


def _usual(marks: Sequence[Mark]) -> tuple[float, float | None]:
    """Return the usual steps from row to row, and the usual seconds of a step."""
    rows: list[tuple[float, float, float]] = []  # steps, seconds, waited
    before: Mark | None = None
    for mark in marks:
        if mark.kind == "step":
            if before is not None:
                num = 1.0
                if mark.step is not None and before.step is not None:
                    num = mark.step - before.step
                took = mark.at - before.at if mark.took_s is None else mark.took_s - mark.slow_s
                if num > 0 and not mark.recomputed:
                    rows.append((num, took, (mark.data_s or 0.0) * num))
            before = mark
        elif mark.kind in ("start", "stop", "back"):
            before = None
    if not rows:
        return 1.0, None
    stride = statistics.median(num for num, _, _ in rows)
    calm = [s / n for n, s, w in rows if w <= 0.5 * s]
    return stride, statistics.median(calm or [s / n for n, s, _ in rows])


def _exact(seconds: dict[str, float], wall: float) -> dict[str, float]:
    """Return the seconds so that they sum to the wall time in floating point, too."""
    largest = max(seconds, key=lambda k: seconds[k])
    for _ in range(4):
        rest = wall - math.fsum(seconds.values())
        if rest == 0.0:
            break
        seconds[largest] += rest
    return seconds


def sum_of_steps(took: Sequence[tuple[float, float]]) -> GoodputAccount | None:
    """Return what the times of steps alone tell, where no row has a time of day.

    Args:
        took: (step, seconds) of each row, in the order of the log.

    Returns:
        Seconds by cause: training, recomputed and slow; None without a row.
    """
    rows = [(s, t) for s, t in took if math.isfinite(t) and t >= 0]
    if len(rows) < 2:
        return None
    strides = [b[0] - a[0] for a, b in pairwise(rows) if b[0] > a[0]]
    stride = statistics.median(strides) if strides else 1.0
    usual = statistics.median(t for _, t in rows)
    parts: dict[str, list[float]] = {name: [] for name in CAUSES}
    best = -math.inf
    for step, seconds in rows:
        slow = seconds - usual if seconds > _SLOW_FACTOR * usual else 0.0
        parts["recomputed" if step <= best else "training"].append((seconds - slow) * stride)
        parts["slow"].append(slow * stride)
        best = max(best, step)
    whole = {k: math.fsum(v) for k, v in parts.items()}
    wall = math.fsum(whole.values())
    return GoodputAccount(
        seconds=_exact(whole, wall),
        wall_s=wall,
        num_steps=len(rows),
        num_starts=1 + sum(b[0] <= a[0] for a, b in pairwise(rows)),
        usual_step_s=usual,
        timed=False,
        untold=(
            "the rows have the time of a step and no time of day: start-up, saving, restarts and"
            " hangs between rows cannot be told",
        ),
    )
