"""No gradient reaches most of the weights: dead units, a detached trunk, a hook that returns 0.

With n[t] the number of steps for which half or more of the trained elements have had a gradient of
exactly 0, or none where they had one before, as the guard counts it parameter by parameter:

    n[t] >= max(`min_steps`, `AGAIN` m),   at `min_readings` readings in a row where n > 0

m is the longest such stretch that ended, since networks that are trained in turn have them again
and again. Nothing of a loss tells it: the last layer learns the mean, and the loss comes to rest
there or even falls. Told once, and again, as info, when gradients are back.

Blind to gradients that are merely tiny, to fewer than half of the weights, and to parameters that
never had a gradient: nobody may mean to train them.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, changed

__all__ = ["NoGradientDetector", "NoGradientState"]

AGAIN = 4.0
"""Times the longest stretch before, as of a signal that repeats itself. Ours."""


@dataclass(frozen=True)
class NoGradientState:
    """Readings in a row without a gradient, and where they began."""

    num_readings: int = 0
    last_row: int = -1
    """Of the last reading with gradients."""
    onset_row: int = 0
    onset: float = 0.0
    steps: float = 0.0
    longest: float = 0.0
    """Longest stretch that ended, steps."""
    told: bool = False


@dataclass(frozen=True, kw_only=True)
class NoGradientDetector:
    """See the module."""

    name: str = "no-gradient"
    signals: tuple[str, ...] = ("grad_zero_steps", "grad_zero_share")
    min_steps: int = 128
    """Optimizer steps. Ours: networks that are trained in turn are so for tens of steps each."""
    min_readings: int = 3

    def start(self) -> NoGradientState:
        """Return the state before any row."""
        return NoGradientState()

    def update(
        self, state: NoGradientState, row: Row
    ) -> tuple[NoGradientState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite numbers leave the state as it is."""
        steps, share = map(float, row.values)
        if not math.isfinite(steps) or not math.isfinite(share):
            return state, ()
        s = state
        if steps <= 0:
            found = (self._finding(s, row, share, over=True),) if s.told else ()
            longest = max(s.longest, s.steps)
            return NoGradientState(last_row=row.index, longest=longest), found
        if not s.num_readings:
            s = changed(s, onset_row=s.last_row + 1, onset=row.step - steps + 1)
        s = changed(s, num_readings=s.num_readings + 1, steps=steps)
        bar = max(float(self.min_steps), AGAIN * s.longest)
        if s.told or s.num_readings < self.min_readings or steps < bar:
            return s, ()
        s = changed(s, told=True)
        return s, (self._finding(s, row, share, over=False),)

    def _finding(self, s: NoGradientState, row: Row, share: float, *, over: bool) -> Finding:
        which = "at least half" if over else f"{share:.0%}"
        return Finding(
            detector=self.name,
            kind="never-learns",
            signal=self.signals[0],
            severity="info" if over else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.onset_row,
            peak=s.onset,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=s.steps,
            expected=0.0,
            score=min(99.0, 6.0 * s.steps / self.min_steps),
            closed=True,
            text=(
                f"no gradient reaches {which} of the trained weights since step {s.onset:g}"
                + (f", until step {row.step:g}" if over else "")
            ),
        )
