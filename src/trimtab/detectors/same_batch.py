"""The same few batches again and again, by their content: a loader or sampler that is stuck.

The guard takes a checksum of each batch. Of the last 16 and of the last 64 rows it is counted how
many different ones there are. Data that had come in more different batches, and now comes in an
eighth of that or less, is fed again: two batches or one in 16 rows, eight in 64. The most of any
window before is the measure, so that a data set of a few batches and training on one full batch,
the same from the first row on, are quiet. Told once; it is over when 16 rows hold half as many
different batches as they ever did.

Blind to repeats of more than eight batches, and to batches that differ in a value, as by noise that
is added to them.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, changed

__all__ = ["SameBatchDetector", "SameBatchState"]

_BACK_SHARE = 0.5


@dataclass(frozen=True)
class SameBatchState:
    """The last checksums with their rows, and the most different ones of each window."""

    codes: tuple[float, ...] = ()
    rows: tuple[int, ...] = ()
    steps: tuple[float, ...] = ()
    most: tuple[int, ...] = (0, 0)
    onset_row: int = -1
    """-1: nothing is told."""
    onset: float = 0.0
    few: int = 0
    """Different batches when it was told."""
    usual: int = 0


@dataclass(frozen=True, kw_only=True)
class SameBatchDetector:
    """See the module."""

    name: str = "same-batch"
    signals: tuple[str, ...] = ("batch_fingerprint",)
    windows: tuple[int, ...] = (16, 64)
    share: float = 0.125
    """Of the different batches that a window held before. Ours."""

    def start(self) -> SameBatchState:
        """Return the state before any row."""
        return SameBatchState(most=(0,) * len(self.windows))

    def update(self, state: SameBatchState, row: Row) -> tuple[SameBatchState, tuple[Finding, ...]]:
        """Judge one row; without a checksum the state stays as it is."""
        code = float(row.values[0])
        if not row.present[0] or not math.isfinite(code):
            return state, ()
        keep = 1 - max(self.windows)
        s = changed(
            state,
            codes=(*state.codes[keep:], code),
            rows=(*state.rows[keep:], row.index),
            steps=(*state.steps[keep:], row.step),
        )
        counts = [len(set(s.codes[-w:])) for w in self.windows]
        if s.onset_row >= 0:
            if counts[0] < _BACK_SHARE * s.most[0]:
                return s, ()
            return changed(s, onset_row=-1), (self._finding(s, row, over=True),)
        for num, window, most in zip(counts, self.windows, s.most, strict=True):
            if len(s.codes) >= window and num <= self.share * most:
                at = len(s.codes) - window
                # It begins with the first of those that come again.
                at = next(i for i in range(at, len(s.codes)) if s.codes[i] in s.codes[i + 1 :])
                few = len(set(s.codes[at:]))
                s = changed(s, onset_row=s.rows[at], onset=s.steps[at], few=few, usual=most)
                return s, (self._finding(s, row, over=False),)
        return changed(s, most=tuple(map(max, s.most, counts))), ()

    def _finding(self, s: SameBatchState, row: Row, *, over: bool) -> Finding:
        again = "the same batch is" if s.few == 1 else f"the same {s.few} batches are"
        return Finding(
            detector=self.name,
            kind="repeated-data",
            signal=self.signals[0],
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=row.index,
            peak=row.step,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=float(s.few),
            expected=float(s.usual),
            score=9.0,
            direction="down",
            closed=over,
            text=f"{again} handed out again and again, where {s.usual} different ones were before"
            + (", back" if over else ""),
        )
