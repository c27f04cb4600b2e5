"""Frozen signals: a value that should move repeats itself, digit for digit.

Training noise never prints the same loss hundreds of times in a row. One value for `min_rows` rows
(and for four times longer than this log ever repeated one before: trackers fill gaps with the last
value) is reported once, when it is reached, and again when the signal moves on.

A loss that becomes exactly 0 is no loss: nothing is averaged, or a trainer prints NaN so. A
gradient norm that becomes exactly 0 is no gradient: nothing is learned any more. Both are told
after `min_zero_rows`. Another frozen loss means that nothing is learned, or a sentinel
printed by a rank that does not know it, a broken reduction. It is a warning. A norm that stays
constant (0.000: not wired) blinds those who rely on it and does the run no harm: a note. So is a
loss that came down into its last printed digit, which is distinguished from a jump by the smallest
change printed before.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, Series, changed, finite_of
from trimtab.vocabulary import Severity

__all__ = ["Frozen", "FrozenDetector", "FrozenState"]

_ZEROS = {"loss": "", "grad_norm": ": nothing is learned"}
"""Signals that a sound run does not bring to exactly 0 at once, and what it means."""


@dataclass(frozen=True)
class Frozen:
    """The value that repeats, since when, and what the signal did before."""

    value: float = math.nan
    num_rows: int = 0
    """How often it was printed in a row."""
    first_row: int = 0
    first_step: float = 0.0
    longest: int = 0
    """Longest repetition that ended."""
    least: float = math.inf
    """Smallest change between two rows: what one printed digit is worth."""
    before: float = math.nan
    """The value before the one that repeats."""


@dataclass(frozen=True)
class FrozenState:
    """One `Frozen` per signal."""

    signals: tuple[Frozen, ...]


@dataclass(frozen=True, kw_only=True)
class FrozenDetector:
    """See the module."""

    name: str = "frozen"
    signals: tuple[str, ...] = ("loss", "grad_norm", "update_norm", "activation_norm")
    min_rows: int = 200
    """A signal with no variance over 200 steps is dead, not healthy (tr1-13B printed 0.000)."""
    min_loss_rows: int = 50
    min_zero_rows: int = 16
    """For a loss or gradient norm that jumped to exactly 0, which a sound one does not. Ours."""
    digits: float = 20.0
    """A value below this many of the smallest printed changes is frozen by rounding."""

    def start(self) -> FrozenState:
        """Return the state before any row."""
        return FrozenState((Frozen(),) * len(self.signals))

    def update(self, state: FrozenState, row: Row) -> tuple[FrozenState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        signals, findings = list(state.signals), list[Finding]()
        for i, value in enumerate(row.values.tolist()):
            if not row.present[i] or not math.isfinite(value):
                continue
            s = signals[i]
            # Exact on purpose: a value that moves differs in some printed digit.
            if value == s.value:
                signals[i], found = self._repeat(
                    i, s, Series((row.index,), (row.step,), (value,), (value,)), 0, 1
                )
            else:
                signals[i], found = self._move(i, s, value, RowPlace(row.index, row.step))
            findings += found
        return FrozenState(tuple(signals)), tuple(findings)

    def update_rows(
        self, state: FrozenState, rows: Rows
    ) -> tuple[FrozenState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Rows whose value changes need no work.
        """
        signals, findings = list(state.signals), list[Finding]()
        for i in range(len(self.signals)):
            series = finite_of(i, rows)
            if series.value:
                signals[i], found = self._take(i, signals[i], series)
                findings += found
        findings.sort(key=lambda f: f.row)
        return FrozenState(tuple(signals)), tuple(findings)

    def _take(self, i: int, s: Frozen, series: Series) -> tuple[Frozen, list[Finding]]:
        """Take a series run by run of equal values; short ones at once."""
        values = np.array(series.value)
        before = np.concatenate(([s.value], values[:-1]))
        starts = np.flatnonzero(values != before)
        steps = np.abs(values[starts] - before[starts])
        lengths = np.diff(np.append(starts, len(values)))
        s, findings = self._repeat(i, s, series, 0, int(starts[0]) if len(starts) else len(values))
        at, least = 0, min(self.min_rows, self.min_loss_rows, self.min_zero_rows)
        for k in (*np.flatnonzero(lengths >= least).tolist(), len(starts)):
            if k > at:  # runs too short to report; the one before them may be over
                first, last = int(starts[at]), int(starts[k - 1])
                s, found = self._move(i, s, series.value[first], series.place(first))
                findings += found
                if k - at > 1:
                    s = changed(
                        s,
                        value=series.value[last],
                        first_row=series.index[last],
                        first_step=series.step[last],
                        before=series.value[last - 1],
                        longest=max(s.longest, int(lengths[at : k - 1].max())),
                        least=min(s.least, float(steps[at + 1 : k].min())),
                    )
                s = changed(s, num_rows=int(lengths[k - 1]))
            if k < len(starts):
                first, end = int(starts[k]), int(starts[k] + lengths[k])
                s, found = self._move(i, s, series.value[first], series.place(first))
                s, told = self._repeat(i, s, series, first + 1, end)
                findings += found + told
            at = k + 1
        return s, findings

    def _repeat(
        self, i: int, s: Frozen, series: Series, first: int, end: int
    ) -> tuple[Frozen, list[Finding]]:
        """Take the value once more, or many times: reported when the bar is reached."""
        # The same row as if the rows had come one by one, not the last of the stretch.
        until = self._bar(i, s) - s.num_rows
        after = changed(s, num_rows=s.num_rows + end - first)
        if not 0 < until <= end - first:
            return after, []
        told = changed(s, num_rows=s.num_rows + until)
        return after, [self._finding(i, told, series.place(first + until - 1), closed=False)]

    def _move(
        self, i: int, s: Frozen, value: float, place: RowPlace
    ) -> tuple[Frozen, list[Finding]]:
        """Take another value; a reported repetition is closed."""
        over = s.num_rows >= self._bar(i, s)
        found = [self._finding(i, s, place, closed=True)] if over else []
        step = abs(value - s.value)
        return (
            Frozen(
                value=value,
                num_rows=1,
                first_row=place.index,
                first_step=place.step,
                longest=max(s.longest, s.num_rows),
                # The first value has no change before it: NaN to value is no step.
                least=min(s.least, step) if s.num_rows else s.least,
                before=s.value,
            ),
            found,
        )

    def _bar(self, i: int, s: Frozen) -> int:
        rows = self.min_loss_rows if self.signals[i] == "loss" else self.min_rows
        if self._is_zero(i, s):
            rows = self.min_zero_rows
        # A tracker that repeats values for 30 rows at a time does so again.
        return max(rows, 4 * s.longest)

    def _is_zero(self, i: int, s: Frozen) -> bool:
        """Whether this is one of `_ZEROS` that jumped to exactly 0, from values that were none."""
        moved = math.isfinite(s.least) and s.before > 0 and not self._rounded(s)
        return self.signals[i] in _ZEROS and s.value == 0 and moved

    def _severity(self, i: int, s: Frozen, *, closed: bool) -> Severity:
        if closed and math.isinf(s.least):
            return "info"  # it began late, or a tracker fills gaps
        # never moved: a zero may be a loss that the trainer does not print (GRPO), not a fault
        unexplained = s.value != 0 if math.isinf(s.least) else not self._rounded(s)
        alarm = self.signals[i] == "loss" or self._is_zero(i, s)
        return "warning" if alarm and unexplained else "info"

    def _rounded(self, s: Frozen) -> bool:
        """Whether the signal came to its value by small steps and is too small to show more."""
        small = abs(s.value) <= self.digits * s.least
        return small and abs(s.before - s.value) <= self.digits * s.least

    def _finding(self, i: int, s: Frozen, row: RowPlace, *, closed: bool) -> Finding:
        signal = self.signals[i]
        since = "from the first row on" if math.isinf(s.least) else "repeated digit for digit"
        meaning = "" if signal == "loss" else "; do not rely on it"
        text = f"{signal} is {s.value:g} in {s.num_rows} rows, {since}{meaning}"
        zero = self._is_zero(i, s)
        if zero:
            text = f"{signal} {s.before:.4g} → 0, exactly 0 in {s.num_rows} rows{_ZEROS[signal]}"
        return Finding(
            detector=f"zero-{signal.replace('_', '-')}" if zero else self.name,
            kind="frozen-signal",
            signal=signal,
            severity=self._severity(i, s, closed=closed),
            row=row.index,
            step=row.step,
            onset_row=s.first_row,
            onset=s.first_step,
            peak_row=s.first_row,
            peak=s.first_step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=s.value,
            expected=s.before if math.isfinite(s.before) else s.value,
            score=s.num_rows / self._bar(i, s) * 6.0,
            closed=closed,
            text=text,
        )
