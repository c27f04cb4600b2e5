"""State that no update makes: weights or Adam's moments that were damaged in memory.

A flipped bit in the exponent makes an element 1e28 times as large and more. In a weight that may
show in the loss; in Adam's second moment it does not: that element merely stops to learn. So the
largest element of each is compared with the largest that this run had before, from the third
reading on. What a row counts as nonsense by itself (`adam_broken`: a first moment that is not
finite, a second one that is negative, or zero where the gradient is not) needs no past.

A finding is reported once and closes when a reading is sound again. Blind to bits of the mantissa
and the lower exponent, which change an element by less than training does.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, changed

__all__ = ["CorruptDetector", "CorruptState"]

_COUNT = "adam_broken"


@dataclass(frozen=True)
class Largest:
    """One signal: how large it was while it was sound, and since when it is not."""

    highest: float = 0.0
    num_rows: int = 0
    onset_row: int = -1
    """-1: sound."""
    onset: float = 0.0
    value: float = 0.0
    value_row: int = 0
    value_step: float = 0.0


@dataclass(frozen=True)
class CorruptState:
    """One `Largest` per signal."""

    largest: tuple[Largest, ...]


@dataclass(frozen=True, kw_only=True)
class CorruptDetector:
    """See the module."""

    name: str = "corrupt"
    signals: tuple[str, ...] = ("weight_max", "adam_m_max", "adam_v_max", "adam_broken")
    ratios: tuple[float, ...] = (1e4, 1e6, 1e10, math.inf)
    """Over the largest before. Ours: a gradient 1e5 times as large as ever moves a first moment by
    1e4 and a second one by 5e8, and no weight by more than the learning rate."""
    min_rows: int = 3

    def start(self) -> CorruptState:
        """Return the state before any row."""
        return CorruptState((Largest(),) * len(self.signals))

    def update(self, state: CorruptState, row: Row) -> tuple[CorruptState, tuple[Finding, ...]]:
        """Judge one row; NaN and Inf are ignored here, because `non-finite` reports them."""
        if not row.present.any():
            return state, ()
        largest, found = list(state.largest), list[Finding]()
        for i, value in enumerate(row.values.tolist()):
            if math.isfinite(value):
                largest[i], finding = self._take(i, largest[i], value, row)
                if finding is not None:
                    found.append(finding)
        return CorruptState(tuple(largest)), tuple(found)

    def _take(self, i: int, s: Largest, value: float, row: Row) -> tuple[Largest, Finding | None]:
        if self.signals[i] == _COUNT:
            broken = value > 0
        else:
            # Adam's moments start at 0, and any value is infinitely larger than that.
            known = s.num_rows >= self.min_rows and s.highest > 0
            broken = known and value > self.ratios[i] * s.highest
        if not broken:
            # Only sound readings raise the mark; a damaged one would hide all that follow.
            s = changed(s, highest=max(s.highest, value), num_rows=s.num_rows + 1)
            if s.onset_row < 0:
                return s, None
            return changed(s, onset_row=-1), self._finding(i, s, row, closed=True)
        if s.onset_row >= 0:
            return s, None
        s = changed(
            s,
            onset_row=row.index,
            onset=row.step,
            value=value,
            value_row=row.index,
            value_step=row.step,
        )
        return s, self._finding(i, s, row, closed=False)

    def _finding(self, i: int, s: Largest, row: Row, *, closed: bool) -> Finding:
        signal = self.signals[i]
        what = f"{signal} {s.highest:.3g} → {s.value:.3g}: no update can do that"
        if signal == _COUNT:
            what = (
                f"Adam's state makes no sense in {s.value:.0f} tensor{'s' if s.value > 1 else ''}"
            )
        return Finding(
            detector=self.name,
            kind="shift",
            signal=signal,
            severity="critical",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.value_row,
            peak=s.value_step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=s.value,
            expected=s.highest,
            # The ratio may be 1e28; rules that cap their scores cap them at 99.
            score=99.0,
            closed=closed,
            text=what + (", over" if closed else ""),
        )
