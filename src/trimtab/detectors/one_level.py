"""A loss that is made of something else from some row on: judged at one level, in hindsight.

Where a setting that the log states under a name of its own is changed (a weight of the loss, a
temperature, smoothing, a size of the data), or the batch grows, the loss may step, up or down, and
stays there: what it measures is another thing, and no update did it. With medians of up to `ROWS`
rows on both sides of the change, of loss, gradient norm and validation each by itself,

    |after - before| > `ERRORS` standard errors

the rows from there on are judged divided by after / before (less the difference where the signal
may be 0 or negative). A rise that begins later, or goes on, is judged as anywhere, from the level
that the change left. Each step is told as a note with the setting in it.

What a setting does to a loss has bounds. It is there at once: the first three rows hold `AT_ONCE`
of it, and where they do not, something climbs. It gives back at most `OF_DESCENT` of what was
learned, since a loss that is where it began is that of a model that is broken, and leaves a fifth
of a level at least: nearer to 0 targets leak, or nothing is counted. Only a curriculum may take a loss
above its start, to `MOST_HARDER` times that. A norm moves by a factor of `MOST_NORM`, and not to 0. Any other step is judged as if no setting had changed.

Blind to a fault within these bounds that sets in with the same row and stands still from the first
rows on.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.stated_settings import ANNOUNCED
from trimtab.record import Column, RunRecord
from trimtab.signals.derived import perplexity, step_std
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import plain, signal_label
from trimtab.trend import changes_of_held

__all__ = ["Levelled", "at_one_level"]

Floats = NDArray[np.float64]

SETTINGS = ("stated_setting", "kl_weight", "dropout", "batch_size")
SIGNALS = ("loss", "grad_norm", "val_loss")
DERIVED: tuple[tuple[str, Callable[[Column], Column]], ...] = (
    ("perplexity", perplexity),
    ("loss_step_std", step_std),
)
ROWS, FEWEST_BEFORE, NEAR = 16, 4, 2
ERRORS = 4.0
"""Standard errors of a median, from which a step is one. All of these are ours."""
HEAD, AT_ONCE = 3, 0.6
OF_DESCENT, LEAST_LEFT, MOST_NORM = 0.75, 0.2, 8.0
MOST_HARDER = 3.0
"""Times the first losses, to which harder data takes one."""
_OF_CURRICULUM = re.compile(r"curricul|difficult")
"""Settings that say that the data gets harder: then a loss may rise above where it began."""
_OF_MEDIAN = 1.25
_NUMERIC = 1e-9


@dataclass(frozen=True)
class _Change:
    setting: str
    """As the log calls it."""
    old: float
    new: float


@dataclass(frozen=True)
class Levelled:
    """One step of one signal, from a row to the end of the attempt."""

    signal: str
    row: int
    end_row: int
    before: float
    after: float
    change: _Change
    ratio: bool
    """Divided out; else the difference is taken away."""
    bounded: bool
    """Within what a setting can do."""

    @property
    def is_harder(self) -> bool:
        """Whether a curriculum has taken the loss up."""
        up = self.after > self.before and self.change.new > self.change.old
        named = _OF_CURRICULUM.search(self.change.setting.lower()) is not None
        return up and named and self.signal != "grad_norm"

    def out_of(self, values: Floats) -> Floats:
        """Return values without the step."""
        if self.ratio:
            return values * (self.before / self.after)
        return values - (self.after - self.before)

    def back_into(self, value: float) -> float:
        """Return a value as it was logged."""
        if self.ratio:
            return value * (self.after / self.before)
        return value + (self.after - self.before)

    def told(self, f: Finding) -> Finding:
        """Return a finding on levelled rows with the values that were logged.

        A rise that begins with the change and wears off is what the model has to learn anew.
        """
        if (
            self.is_harder
            and f.detector == "sign-score-lost"
            and abs(f.onset_row - self.row) <= ROWS
        ):
            return replace(f, severity="info", text=f"{f.text}; the data gets harder there")
        if f.signal != self.signal or not self.row <= f.onset_row < self.end_row:
            return f
        f = replace(f, value=self.back_into(f.value), expected=self.back_into(f.expected))
        if f.kind != "spike" or f.severity == "info" or f.onset_row > self.row + NEAR:
            return f
        return replace(f, severity="info", text=f"{f.text}; it sets in where the setting changes")

    def finding(self, record: RunRecord) -> Finding:
        """Return the note that says so."""
        c = self.change
        setting = plain(c.setting, limit=60)
        several = ", " in c.setting
        where = f"{setting} goes from {c.old:g} to {c.new:g}"
        if several:
            where = f"one of {setting} is changed"
        elif setting.startswith(ANNOUNCED):
            where = f"the log announces another {setting.removeprefix(ANNOUNCED)}"
        return finding_at(
            record,
            detector="one-level",
            kind="setting-jump",
            signal=self.signal,
            severity="info",
            row=self.row,
            onset_row=self.row,
            value=self.after,
            expected=self.before,
            score=6.0,
            direction="up" if self.after > self.before else "down",
            closed=True,
            text=(
                f"{signal_label(self.signal)} {self.before:.4g} → {self.after:.4g} where {where}: it"
                " is made of something else from there on, and is judged from the new level"
            ),
        )


def at_one_level(record: RunRecord) -> tuple[RunRecord, tuple[Levelled, ...]]:
    """Return the record with steps at changes of stated settings taken out, and those steps."""
    if not any(name in record.columns for name in SETTINGS):
        return record, ()
    steps = [
        step
        for i in range(len(record.attempts))
        for signal in SIGNALS
        if signal in record.columns
        for step in _steps(record, signal, record.rows_of(i))
    ]
    # What a setting does to a loss it does not do to a norm that breaks in the same row.
    broken = {s.row for s in steps if not s.bounded}
    steps = [s for s in steps if s.row not in broken]
    if not steps:
        return record, ()
    columns = dict(record.columns)
    for s in steps:
        values = columns[s.signal].values.copy()
        values[s.row : s.end_row] = s.out_of(values[s.row : s.end_row])
        columns[s.signal] = Column(values, columns[s.signal].present)
    # Those that nobody logged follow from the loss.
    for name, derive in DERIVED:
        if name in columns and name not in record.keys:
            columns[name] = derive(columns["loss"])
    return replace(record, columns=columns), tuple(steps)


def _steps(record: RunRecord, signal: str, span: slice) -> Sequence[Levelled]:
    changes = dict(sorted(c for name in SETTINGS for c in _changes(record, name, span).items()))
    column = record.columns[signal]
    found: list[Levelled] = []
    places = [span.start, *changes, span.stop]
    for begun, row, end in zip(places, places[1:], places[2:], strict=False):
        old = column.values[column.finite_rows(slice(begun, row))][-ROWS:]
        new = column.values[column.finite_rows(slice(row, end))][:ROWS]
        if len(old) < FEWEST_BEFORE or not len(new):
            continue
        before, after = median(old), median(new)
        noise = max(difference_sigma(np.diff(old)), _NUMERIC * abs(before))
        error = _OF_MEDIAN * noise * math.sqrt(1 / len(old) + 1 / len(new))
        head = median(new[:HEAD]) - before
        at_once = head * (after - before) > 0 and abs(head) >= AT_ONCE * abs(after - before)
        if abs(after - before) > ERRORS * error and at_once:
            values = column.values[column.finite_rows(slice(span.start, row))]
            ratio = bool(column.values[column.finite_rows(span)].min() > 0)
            bounded = _may_be(signal, values, before, after)
            step = Levelled(signal, row, span.stop, before, after, changes[row], ratio, bounded)
            harder = step.is_harder and 0 < after <= MOST_HARDER * median(values[:HEAD])
            found.append(replace(step, bounded=bounded or bool(harder)))
    return found


def _may_be(signal: str, earlier: Floats, before: float, after: float) -> bool:
    """Whether a step is within what a setting can do."""
    if signal == "grad_norm":
        return after > 0 < before and 1 / MOST_NORM <= after / before <= MOST_NORM
    descent = median(earlier[:HEAD]) - before
    if after > before:
        return after - before <= OF_DESCENT * descent
    return after >= LEAST_LEFT * before if before > 0 else before - after <= abs(descent)


def _changes(record: RunRecord, name: str, span: slice) -> dict[int, _Change]:
    """Return the rows of an attempt at which a setting is changed; of the batch, where it grows."""
    if name not in record.columns:
        return {}
    column = record.columns[name]
    rows = column.finite_rows(span)
    values = column.values[rows]
    key = record.keys.get(name, name)
    return {
        int(rows[at]): _Change(key, float(values[at - 1]), float(values[at]))
        for at in changes_of_held(values)
        if name != "batch_size" or values[at] > values[at - 1]
    }
