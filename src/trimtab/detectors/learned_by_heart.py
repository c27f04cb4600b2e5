"""Learned by heart: the training loss comes to nearly nothing and stays there.

A loss in nats that falls to `share` of where it began and below `most` nats belongs to data that
was fed many times, or to a task that can be solved. What the model cost on data that it had not
seen tells them apart: the last validations or readings of a guard's fixed batches, or else the
level at which the first pass over the data ended. Where that came down too, nothing is reported;
nor while validation has lost three quarters of the start and is still where it was lowest: what is
learned is of use there. Where it did not, it is a warning. Where neither is known it is a note,
unless the accuracy of tokens is logged, or (in hindsight, `as_text`) the format or a key is that of
a language model: text is never that cheap. A run that states its epoch and is within its first pass has seen no sample twice: apart
from text, nothing is said of it before the second pass begins or something is held out.

The level is the median of the last 16 rows; it must stay for `min_rows` rows, and for a `lasting`
share of all rows so far. A rule for losses in nats: a record with a negative loss, or one that does
not begin between `least_start` and `most_start` nats, is a squared error or a probability, as may
be one whose trainer logs neither a rate nor a validation loss; they are not judged. Told once.
See `memorised` for losses that are low only beside the validation loss.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed, median, step_through
from trimtab.record import RunRecord

__all__ = ["LearnedByHeartDetector", "LearnedByHeartState", "as_text"]

Floats = NDArray[np.float64]

_LANGUAGE = frozenset(
    {"megatron", "torchtitan", "fairseq", "metaseq", "maxtext", "olmo", "nanogpt"}
)
_WORDS = re.compile(r"lm[ _-]?loss|perplexity|ppl(?![a-z])", re.I)
_LEVEL_ROWS = 16
_FIRST_ROWS = 11


@dataclass(frozen=True)
class LearnedByHeartState:
    """Where the loss began, its last rows, since when it is low, and what validation did."""

    first: tuple[float, ...] = ()
    recent: tuple[float, ...] = ()
    num_rows: int = 0
    low_rows: int = 0
    low_row: int = 0
    low_step: float = 0.0
    last_vals: tuple[float, ...] = ()
    lowest_val: float = math.inf
    """Of the medians of three validations."""
    validates: bool = False
    """It is of a validation set, not of a guard's fixed batches."""
    first_epoch: float = math.nan
    first_pass: float = math.nan
    """Level of the loss at the end of the first pass over the data."""
    passes: bool = False
    """More than one pass was begun."""
    text: bool = False
    """The accuracy of tokens was logged."""
    rated: bool = False
    """A learning rate was logged."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class LearnedByHeartDetector:
    """See the module."""

    name: str = "by-heart"
    signals: tuple[str, ...] = (
        "loss",
        "val_loss",
        "lr",
        "epochs_seen",
        "token_accuracy",
        "yardstick_loss",
    )
    share: float = 0.02
    most: float = 0.03
    """Nats; text that was never seen costs a hundred times as much. Ours."""
    least_start: float = 1.0
    most_start: float = 14.0
    """ln of a million; no vocabulary is larger."""
    min_rows: int = 24
    lasting: float = 0.1
    solved: float = 0.1
    """Share of the start below which validation says that the task is solved. Ours."""
    solved_at_once: float = 0.05
    """The same of the end of the first pass, which was seen by no more than one. Ours."""
    held: float = 0.25
    """Share of the start that validation must have come below to be of use. Ours."""
    rebound: float = 1.1
    """Median of the last three validations over the lowest such median, from which it rises."""

    def start(self) -> LearnedByHeartState:
        """Return the state before any row."""
        return LearnedByHeartState()

    def update(
        self, state: LearnedByHeartState, row: Row
    ) -> tuple[LearnedByHeartState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave what they concern as it is."""
        if state.done:
            return state, ()
        loss, val, rate, epoch, accuracy, fixed = row.values.tolist()
        s = state
        if row.present[3] and math.isfinite(epoch) and not s.passes:
            s = self._at_epoch(s, epoch)
        if not s.text and row.present[4] and math.isfinite(accuracy):
            s = changed(s, text=True)
        if not s.rated and row.present[2] and math.isfinite(rate):
            s = changed(s, rated=True)
        if row.present[1] and math.isfinite(val):
            s = _checked(s, val, validates=True)
        elif row.present[5] and math.isfinite(fixed) and not s.validates:
            s = _checked(s, fixed, validates=False)
        if not row.present[0] or not math.isfinite(loss):
            return s, ()
        if loss < 0:
            return changed(s, done=True), ()
        if len(s.first) < _FIRST_ROWS:
            s = changed(s, first=(*s.first, loss))
        s = changed(s, recent=(*s.recent[1 - _LEVEL_ROWS :], loss), num_rows=s.num_rows + 1)
        start = max(s.first)
        in_nats = self.least_start <= start <= self.most_start
        if not in_nats and len(s.first) == _FIRST_ROWS:
            return changed(s, done=True), ()
        # The row itself first: the median costs a sort.
        bar = min(self.share * start, self.most)
        low = min(s.recent) < bar and len(s.recent) == _LEVEL_ROWS
        if not low or median(np.array(s.recent)) >= bar:
            return changed(s, low_rows=0) if s.low_rows else s, ()
        if not s.low_rows:
            s = changed(s, low_row=row.index, low_step=row.step)
        s = changed(s, low_rows=s.low_rows + 1)
        # A loss of exactly 0 is no loss: a sentinel, or NaN that the trainer hides.
        if max(s.recent) == 0 or s.low_rows < max(self.min_rows, self.lasting * s.num_rows):
            return s, ()
        checked = bool(s.last_vals)
        if self._is_of_use(s, start) or not (s.rated or checked):
            return s, ()
        within_first = not s.passes and not math.isnan(s.first_epoch)
        if within_first and not (checked or s.text):
            return s, ()
        sure = checked or s.passes or s.text
        return changed(s, done=True), (self._finding(s, row, sure=sure),)

    def _is_of_use(self, s: LearnedByHeartState, start: float) -> bool:
        """Whether what was learned holds for data that was not seen before."""
        if not s.last_vals:
            return s.first_pass < self.solved_at_once * start
        level = median(np.array(s.last_vals))
        holds = level <= self.rebound * s.lowest_val and level < self.held * start
        return holds or s.last_vals[-1] < self.solved * start

    def _at_epoch(self, s: LearnedByHeartState, epoch: float) -> LearnedByHeartState:
        """Take the epoch of a row; the losses so far are those of the pass before it."""
        if math.isnan(s.first_epoch):
            s = changed(s, first_epoch=epoch)
        if not _second(s.first_epoch, epoch):
            return s
        # Of a pass of a few rows the last ones are no level.
        known = len(s.recent) == _LEVEL_ROWS
        level = median(np.array(s.recent)) if known else math.nan
        return changed(s, passes=True, first_pass=level)

    def update_rows(
        self, state: LearnedByHeartState, rows: Rows
    ) -> tuple[LearnedByHeartState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; stretches above the bar are passed."""
        if state.done:
            return state, ()
        found: list[Finding] = []
        losses = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(losses))
        # Below it alone a row can be part of a low level; a negative one ends the rule.
        epochs = rows.values[:, 3]
        counted = np.flatnonzero(np.isfinite(epochs))
        begun = counted[:0]
        if len(counted) and not state.passes:
            first = float(epochs[counted[0]])
            first = first if math.isnan(state.first_epoch) else state.first_epoch
            begun = counted[_second(first, epochs[counted])][:1]
        # Also the first row of the second pass, and the first that logs an epoch.
        telling = np.union1d(usable[losses[usable] < self.most], [*counted[:1], *begun])
        at, s = 0, state
        while at < len(rows) and not s.done:
            later = int(np.searchsorted(telling, at))
            stop = int(telling[later]) if later < len(telling) else len(rows)
            full = len(s.first) == _FIRST_ROWS and len(s.recent) == _LEVEL_ROWS
            if full and not s.low_rows and min(s.recent) >= self.most and stop > at:
                s = _passed(s, rows.values[at:stop])
                at = stop
                continue
            stop = min(at + _LEVEL_ROWS, len(rows))
            s, told = step_through(self, s, rows.part(at, stop))
            found += told
            at = stop
        return s, tuple(found)

    def _finding(self, s: LearnedByHeartState, row: Row, *, sure: bool) -> Finding:
        level, start = median(np.array(s.recent)), max(s.first)
        checked = "no validation is logged"
        if s.passes:
            checked = "the data has been passed over more than once, and no validation is logged"
        if s.last_vals:
            held_out = "validation is" if s.validates else "the fixed batches are"
            checked = f"{held_out} at {s.last_vals[-1]:.3g}"
        return Finding(
            detector=self.name,
            kind="memorised",
            signal="loss",
            severity="warning" if sure else "info",
            row=row.index,
            step=row.step,
            onset_row=s.low_row,
            onset=s.low_step,
            peak_row=row.index,
            peak=row.step,
            value=level,
            expected=start,
            score=min(99.0, self.share * start / max(level, 1e-9) * 6),
            direction="down",
            closed=True,
            text=f"training loss {level:.3g} for {s.low_rows} rows, {start:.3g} at first; "
            f"{checked}",
        )


def _second(first: float, epoch: Any) -> Any:
    """Whether an epoch lies a pass beyond the first; epochs count from 0, from 1 or in shares."""
    return epoch - min(math.floor(first), 1) >= 1


def _checked(s: LearnedByHeartState, value: float, *, validates: bool) -> LearnedByHeartState:
    """Return the state after a validation, or a reading of the guard's fixed batches."""
    # The fixed batches are no past of a validation set.
    again = validates == s.validates
    last = (*s.last_vals[-2:], value) if again else (value,)
    lowest = min(s.lowest_val if again else math.inf, median(np.array(last)))
    return changed(s, last_vals=last, lowest_val=lowest, validates=validates)


def _passed(s: LearnedByHeartState, values: Floats) -> LearnedByHeartState:
    """Return the state after rows whose losses are all above the bar."""
    finite, checks, rates, _, accuracies, fixed = (c[np.isfinite(c)] for c in values.T)
    if len(rates) and not s.rated:
        s = changed(s, rated=True)
    for value in checks.tolist():
        s = _checked(s, value, validates=True)
    if not s.validates:
        for value in fixed.tolist():
            s = _checked(s, value, validates=False)
    if len(accuracies) and not s.text:
        s = changed(s, text=True)
    recent = (*s.recent, *finite[-_LEVEL_ROWS:].tolist())[-_LEVEL_ROWS:]
    return changed(s, recent=recent, num_rows=s.num_rows + len(finite))


def as_text(record: RunRecord, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return the findings, data learned by heart as a warning where it is known to be text."""
    # The guard writes down exp(loss) as a perplexity whatever the loss is of.
    named = record.format != "trimtab" and any(_WORDS.search(k) for k in record.keys.values())
    text = record.format in _LANGUAGE or named
    heart = LearnedByHeartDetector.name
    return tuple(
        replace(f, severity="warning") if text and f.detector == heart else f for f in findings
    )
