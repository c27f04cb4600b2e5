"""Marks from the lines of a text log or of JSON lines."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import orjson

from trimtab.crash import lines as crash_lines
from trimtab.goodput.account import Mark
from trimtab.readers.base import TextLines
from trimtab.readers.stamps import Clock, seconds_of
from trimtab.text import is_number

__all__ = ["LogMarks", "marks_of_lines", "marks_of_log", "thinned"]

_STEP = re.compile(
    r"(?<![\w.])(?:global[_ ])?(?:step|iter(?:ation)?|it|update|num_updates|batch)s?[\"']?"
    r"\s*[:=\[(#]?\s*[\"']?(\d{1,12})\b(?!\.\d)",
    re.IGNORECASE,
)
_EPOCH = re.compile(r"\bepoch[\"']?\s*[:=\[(#|]?\s*(\d{1,7})(?![\d.])", re.IGNORECASE)
_STEP_KEYS = (
    *("step", "global_step", "iteration", "iter", "_step", "current_steps", "num_updates"),
    *("train/global_step", "trainer/global_step", "update"),
)
_TIME_KEYS = (
    *("_timestamp", "timestamp", "wall_time", "time", "ts", "datetime", "created_at", "date", "t"),
)
_ELAPSED_KEYS = ("_runtime", "elapsed_time", "elapsed", "elapsed_s", "time_elapsed", "runtime")
_DATA = re.compile(
    r"\b(?:data(?:_time|_s|[ _]loading)?|dataloader[ _]time|time_data)\b(?:\s*\((ms|s)\))?"
    r"\s*[:=]\s*(\d+(?:\.\d+)?)\s*(ms|s)?\b",
    re.IGNORECASE,
)
_DATA_KEYS: Final = {
    **dict.fromkeys(("data_time", "data_time_s", "dataloader_time", "data_s", "time/data"), 1.0),
    **dict.fromkeys(("data_ms", "batch-generator"), 1e-3),
}
"""Seconds waited for a batch, per step: detectron2, torchvision, torchtitan, Megatron's timer."""
_SECTIONS: Final = (
    (
        "checkpoint",
        re.compile(
            r"saving (?:model |the )?(?:checkpoint|model|weights|state)|saved (?:model|checkpoint)"
            r"|successfully saved checkpoint|checkpoint(?:ing)? (?:saved|took|finished)"
            r"|save[- ]checkpoint|writing checkpoint|saving at (?:step|iteration)",
            re.IGNORECASE,
        ),
    ),
    (
        "evaluation",
        re.compile(
            r"running eval|\*{3,} ?(?:running )?evaluat|validation (?:loss|step|at)|evaluating"
            r"|eval_loss|running validation|begin validation",
            re.IGNORECASE,
        ),
    ),
)
_BEGIN = re.compile(r"^\W*.{0,120}?(?:saving|running|begin|evaluating|writing)", re.IGNORECASE)
_END = re.compile(
    r"success|saved|took|finished|done|complete|eval_loss|validation loss", re.IGNORECASE
)
_START = re.compile(
    r"torch\.distributed\.(?:run|launch)|using world size|initiali[sz]ing torch distributed"
    r"|starting job|starting training job|\*{3,} running training|\[launcher"
    r"|setting oMP_NUM_THREADS"
    r"|slurm_restart_count|> initializing torch",
    re.IGNORECASE,
)
_STOP = re.compile(
    r"^Traceback \(most recent call last\)|SLURM.{0,60}CANCELLED|DUE TO TIME LIMIT"
    r"|ChildFailedError|srun: error:|Terminating job|SIGTERM|Watchdog caught collective",
)
_NUMERIC = re.compile(r"loss is nan|nan (?:loss|detected)|loss.{0,20}not finite", re.IGNORECASE)
_FEW = 3
_MOST_MARKS = 400_000
_SHARE = 8.0
"""A stretch is at least so many times the resolution of the clock: 1 s in 8 stays within jitter."""


@dataclass
class LogMarks:
    """What one log tells."""

    marks: list[Mark] = field(default_factory=list)
    has_zone: bool = False
    elapsed: bool = False
    """Whether times count from the start of a process: nothing lies between two of them."""

    @property
    def num_steps(self) -> int:
        """Rows of steps."""
        return sum(m.kind == "step" for m in self.marks)


def marks_of_log(path: Path) -> LogMarks:
    """Return the marks of a text log or of JSON lines; none where its lines have no times.

    Raises:
        ReadError: The file cannot be read.
    """
    return marks_of_lines(TextLines(path))


def marks_of_lines(lines: Iterable[str]) -> LogMarks:
    """Return the marks of lines.

    Bounds: a log of more than 400,000 rows is thinned to rows further apart.
    """
    clock, found, counter = Clock(), LogMarks(), _Counter()
    last: float | None = None
    numbered = 0
    rows = _JsonTimes(found)
    at: float | None = None
    apart, began = 0.0, False
    for line in lines:
        text = line.strip()
        if text.startswith("{") and rows.take(text):
            continue
        stamp = clock.read(crash_lines.clean(line)) if text else None
        at = at if stamp is None else stamp
        if at is None or not text:
            continue
        if not began:
            began = True
            found.marks.append(Mark(at=at, kind="start"))
        mark = _mark_of(text, at)
        if mark is None:
            continue
        if mark.kind == "step":
            if stamp is None:
                continue  # the time of another line is not the time of this row
            numbered += mark.step is not None
            if mark.step is None and numbered > _FEW:
                continue  # a summary: the rows of steps have a number
            epoch = _EPOCH.search(text[:600])
            place = counter.place(mark.step, None if epoch is None else int(epoch[1]))
            if place == last:
                continue  # the same step, told by another rank
            last, mark = place, replace(mark, step=place)
        found.marks.append(mark)
        if len(found.marks) > _MOST_MARKS:
            apart = max(2.0 * apart, 1.0)
            found.marks = thinned(found.marks, apart)
    if clock.whole_seconds and not rows.num:
        apart = max(apart, _SHARE)
    found.has_zone = clock.has_zone or (bool(rows.num) and not found.elapsed)
    _end(found, at)
    if apart:
        found.marks = thinned(found.marks, apart)
    return found


def _end(found: LogMarks, at: float | None) -> None:
    """Add the time of the last line: what was printed after the last row belongs to the run."""
    if found.marks and at is not None and at > found.marks[-1].at:
        found.marks.append(Mark(at=at, kind="stop", cause="done"))


def _mark_of(text: str, at: float) -> Mark | None:
    if crash_lines.progress(text):
        step = _STEP.search(text[:600])
        data = _DATA.search(text)
        waited = None
        if data is not None:
            waited = float(data[2]) * (1e-3 if "ms" in (data[1], data[3]) else 1.0)
        is_eval = _SECTIONS[1][1].search(text) is not None
        if not is_eval:
            number = None if step is None else float(step[1])
            return Mark(at=at, kind="step", step=number, data_s=waited)
    head = text[:600]
    for name, pattern in _SECTIONS:
        if pattern.search(head):
            if _END.search(head):
                return Mark(at=at, kind="end", cause=name)
            return Mark(at=at, kind="begin" if _BEGIN.search(head) else "section", cause=name)
    if _STOP.search(head):
        return Mark(at=at, kind="stop", cause="numeric" if _NUMERIC.search(head) else "restart")
    return Mark(at=at, kind="start") if _START.search(head) else None


class _Counter:
    """Makes one axis of steps that are counted anew in each epoch, and of rows without a step."""

    def __init__(self) -> None:
        self._offsets: dict[int, float] = {}
        self._epoch: int | None = None
        self._last = 0.0
        self._counted = 0.0

    def place(self, step: float | None, epoch: int | None) -> float:
        """Return the position of a row."""
        if step is None:
            self._counted += 1
            return self._counted
        if epoch is not None and epoch != self._epoch:
            if epoch not in self._offsets:
                anew = self._epoch is not None and epoch > self._epoch and step < self._last
                before = self._offsets.get(self._epoch or 0, 0.0)
                self._offsets[epoch] = before + (self._last if anew else 0.0)
            self._epoch = epoch
        self._last = step
        return step + self._offsets.get(epoch if epoch is not None else -1, 0.0)


class _JsonTimes:
    """Reads rows that are JSON objects; a run whose elapsed time falls back began anew."""

    def __init__(self, found: LogMarks) -> None:
        self._found = found
        self._offset, self._last = 0.0, 0.0
        self._before: Mark | None = None
        self._counter = _Counter()
        self.num = 0

    def take(self, text: str) -> bool:
        """Take a row; tell whether it is an object."""
        try:
            row = orjson.loads(text)
        except orjson.JSONDecodeError:
            return False
        if not isinstance(row, dict):
            return False
        at = self._time(row)
        if at is None:
            return True
        step = next((row[k] for k in _STEP_KEYS if is_number(row.get(k))), None)
        if not any("loss" in str(k).lower() for k in row) and step is None:
            return True
        waited = next(
            (row[k] * unit for k, unit in _DATA_KEYS.items() if is_number(row.get(k))), None
        )
        self.num += 1
        marks = self._found.marks
        epoch = row.get("epoch")
        whole = int(epoch) if isinstance(epoch, int) else None
        number = self._counter.place(None if step is None else float(step), whole)
        if self._before is not None and self._before.step == number:
            return True  # a second row of the same step: its evaluation, say
        mark = Mark(at=at, kind="step", step=number, data_s=waited)
        marks.append(mark)
        self._before = mark
        if len(marks) > _MOST_MARKS:
            self._found.marks = thinned(marks, (marks[-1].at - marks[0].at) / (_MOST_MARKS / 4))
        return True

    def _time(self, row: Mapping[str, object]) -> float | None:
        for key in _TIME_KEYS:
            if key in row and (at := seconds_of(row[key])) is not None:
                return at
        for key in _ELAPSED_KEYS:
            seconds = _duration(row.get(key))
            if seconds is not None:
                if seconds + self._offset < self._last:
                    self._offset = self._last
                    self._found.marks.append(Mark(at=self._last, kind="start"))
                if not self._found.marks:
                    self._found.marks.append(Mark(at=0.0, kind="start"))
                self._found.elapsed = True
                self._last = seconds + self._offset
                return self._last
        return None


def _duration(value: object) -> float | None:
    """Return seconds from a number or from `1 day, 2:03:04`."""
    if is_number(value):
        return float(value) if value >= 0 else None
    if not isinstance(value, str):
        return None
    found = re.fullmatch(r"(?:(\d{1,4}) days?, )?(\d{1,4}):(\d\d):(\d\d)(?:\.\d+)?", value.strip())
    if found is None:
        return None
    days, hours, minutes, seconds = (int(x or 0) for x in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def thinned(marks: Sequence[Mark], apart_s: float) -> list[Mark]:
    """Return marks without the rows that lie closer than `apart_s` to the row kept before.

    A row stays where something else follows it, where its step falls back, and before a gap, so
    that no loss is smeared over the rows around it. Waits for data are averaged.
    """
    kept: list[Mark] = []
    last = -float("inf")
    waited: list[float] = []
    for mark, after in pairwise([*marks, None]):
        assert mark is not None
        if mark.kind != "step":
            kept.append(mark)
            last = -float("inf")
            continue
        if mark.data_s is not None:
            waited.append(mark.data_s)
        plain = (
            after is not None
            and after.kind == "step"
            and after.at - mark.at < apart_s
            and (after.step is None or mark.step is None or after.step > mark.step)
        )
        if plain and mark.at - last < apart_s:
            continue
        if len(waited) > 1:
            mark = replace(mark, data_s=math.fsum(waited) / len(waited))
        kept.append(mark)
        last, waited = mark.at, []
    return kept
