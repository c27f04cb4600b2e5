"""The first block's gradient is far larger, or smaller, than the last one's, by a bar of yours.

Blocks near the input often have the larger gradients, by a factor that differs from model to model,
so there is no bar that suits all: `ratio` is infinite until it is set, and nothing is told. It
holds both ways, for gradients that explode or vanish on their way back, and for `num_readings`
in a row.
"""

import math
from dataclasses import dataclass, replace

from trimtab.detectors.contract import Finding, Row

__all__ = ["LayerGradientsDetector", "LayerGradientsState"]


@dataclass(frozen=True)
class LayerGradientsState:
    """Readings beyond the bar, one after the other."""

    num_over: int = 0
    onset_row: int = 0
    onset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class LayerGradientsDetector:
    """See the module."""

    name: str = "layer-gradients"
    signals: tuple[str, ...] = ("grad_norm_ratio",)
    ratio: float = math.inf
    """Of the norms of the first and the last block, either way."""
    num_readings: int = 3

    def start(self) -> LayerGradientsState:
        """Return the state before any row."""
        return LayerGradientsState()

    def update(
        self, state: LayerGradientsState, row: Row
    ) -> tuple[LayerGradientsState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite ratios leave the state as it is."""
        ratio = float(row.values[0])
        if not row.present[0] or not 0 < ratio < math.inf:
            return state, ()
        if max(ratio, 1 / ratio) < self.ratio:
            return LayerGradientsState(), ()
        if not state.num_over:
            state = replace(state, onset_row=row.index, onset=row.step)
        state = replace(state, num_over=state.num_over + 1)
        if state.num_over != self.num_readings:
            return state, ()
        bar = self.ratio if ratio > 1 else 1 / self.ratio
        finding = Finding(
            detector=self.name,
            kind="grad-drift",
            signal=self.signals[0],
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=state.onset_row,
            onset=state.onset,
            peak_row=row.index,
            peak=row.step,
            value=ratio,
            expected=bar,
            score=6.0,
            direction="up" if ratio > 1 else "down",
            closed=True,
            text=f"gradient norm of the first block over the last one's {ratio:.3g}, bar {bar:.3g}",
        )
        return state, (finding,)
