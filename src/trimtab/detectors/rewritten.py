"""Weights that are written anew by the first updates: a rate that is far too high from the start.

A run whose rate is several times too high may look sound: the loss falls, to a level that it never
leaves, and units die without a sign. What shows it is how far the first updates carry the weights:

    norm of all weights >= `growth` times that at the first reading, within `last_steps` steps,
    while an update has changed them by `share` of their norm or more

In sound runs of ten kinds of models the norm grew by a quarter at most within 30 steps, and by half
within 60; under a rate thirty times too high it doubled within 20 steps of the first reading. The
size of the largest update by that of sound ones, a half of a percent, tells by how much the rate is
too high. Told once; it stays open for `open_rows` readings.

Weights that begin near zero have to grow, as those of zero-initialized heads, adapters, factors and
tables do, and one layer may have to grow far: only models of four matrices and more are judged,
whose weights begin within a fifth of the scale 1 / sqrt(fan-in) that sound ones have.

Blind where the guard does not read the weights at step 1, to models that begin smaller, and to
weights that are so large at first that no rate doubles them.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, changed

__all__ = ["RewrittenDetector", "RewrittenState"]


@dataclass(frozen=True)
class RewrittenState:
    """The first reading, and the largest update so far."""

    norm: float = math.nan
    row: int = 0
    step: float = 0.0
    largest: float = 0.0
    """Of the updates, as a share of the weights."""
    largest_row: int = 0
    largest_step: float = 0.0
    told_row: int = -1
    num_since: int = 0
    """Readings since it was told."""
    done: bool = False


@dataclass(frozen=True, kw_only=True)
class RewrittenDetector:
    """See the module; all bars are ours."""

    name: str = "rewritten"
    signals: tuple[str, ...] = ("weight_norm", "update_ratio", "weight_scale")
    least_scale: float = 0.2
    """Of the norm that weights of variance 1 / fan-in have, at the first reading."""
    growth: float = 2.0
    share: float = 0.03
    sound: float = 0.005
    """Of the weights, that a sound early update changes."""
    first_steps: float = 16.0
    """Steps within which the first reading must lie."""
    last_steps: float = 48.0
    open_rows: int = 8

    def start(self) -> RewrittenState:
        """Return the state before any row."""
        return RewrittenState()

    def update(self, state: RewrittenState, row: Row) -> tuple[RewrittenState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values change nothing."""
        s = state
        norm, ratio, scale = row.values.tolist()
        usable = row.present[0] and math.isfinite(norm) and norm > 0
        if s.done or not usable:
            return s, ()
        if s.told_row >= 0:
            s = changed(s, num_since=s.num_since + 1, done=s.num_since + 1 >= self.open_rows)
            return s, ((self._finding(s, row, norm, closed=True),) if s.done else ())
        late = self.first_steps if math.isnan(s.norm) else self.last_steps
        if row.step > late:
            return changed(s, done=True), ()
        if row.present[1] and math.isfinite(ratio) and ratio > s.largest:
            s = changed(s, largest=ratio, largest_row=row.index, largest_step=row.step)
        if math.isnan(s.norm):
            # Weights that begin near zero have to grow, and one layer may have to grow far.
            begun = bool(row.present[2]) and scale >= self.least_scale
            return changed(s, norm=norm, row=row.index, step=row.step, done=not begun), ()
        if norm < self.growth * s.norm or s.largest < self.share:
            return s, ()
        s = changed(s, told_row=row.index)
        return s, (self._finding(s, row, norm, closed=False),)

    def _finding(self, s: RewrittenState, row: Row, norm: float, *, closed: bool) -> Finding:
        return Finding(
            detector=self.name,
            kind="shift",
            signal="update_ratio",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.row,
            onset=s.step,
            peak_row=s.largest_row,
            peak=s.largest_step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=s.largest,
            expected=self.sound,
            score=min(99.0, s.largest / self.sound),
            closed=closed,
            text=(
                f"the first updates write the weights anew: norm {s.norm:.3g} → {norm:.3g} within"
                f" {row.step - s.step:.0f} steps, up to {100 * s.largest:.2g} % in one"
            ),
        )
