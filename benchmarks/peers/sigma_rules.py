"""Rules that compare a value with mean and standard deviation of earlier rows.

All let what they marked join the window, so they get used to a new level within a window, and all
are blind to a change that is spread over more rows than that, or is smaller than their six sigma.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.peers.contract import GRAD, LOSS, Floats, LogColumns, Marks
from benchmarks.peers.windows import mean, sample_std, std, trailing

__all__ = ["LevanterSkip", "LevanterUpdateClip", "SkipStep", "StabilityMonitor"]


@dataclass(frozen=True, kw_only=True)
class SkipStep:
    """OLMo-core SkipStepOptimizer: skip unless loss and norm lie within mean + 6 sample deviations.

    The last 128 values before the row count, from the 64th row on. One NaN makes the comparison
    false for as long as it is held: that row and the 128 after it are skipped.
    """

    name: str = "olmo-core skip-step"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = False
    window_rows: int = 128
    sigmas: float = 6.0
    aborts: bool = False
    """MaxText's port: the first non-finite loss ends the run."""

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that are skipped."""
        loss = stream.values["loss"]
        marks = _named(self._skips(loss), self._optional(stream))
        if self.aborts and len(broken := np.flatnonzero(~np.isfinite(loss))):
            marks[broken[0]] = LOSS
            marks[broken[0] + 1 :] = 0
        return marks

    def _optional(self, stream: LogColumns) -> np.ndarray:
        norm = stream.values.get("grad_norm")
        return np.zeros(len(stream), np.bool_) if norm is None else self._skips(norm)

    def _skips(self, values: Floats) -> np.ndarray:
        least = max(2, self.window_rows // 2) - 1
        level, spread = trailing(values, self.window_rows, (mean, sample_std), least=least)
        with np.errstate(invalid="ignore"):
            allowed = values - level <= self.sigmas * spread
        return ~allowed & (np.arange(len(values)) >= least)


@dataclass(frozen=True, kw_only=True)
class StabilityMonitor:
    """OLMo-core StabilityMonitor.

    Above mean + 6 deviations of 128 full rows is a spike (SpikeScore).
    """

    name: str = "olmo-core spike-score"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = True
    window_rows: int = 128
    sigmas: float = 6.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that count into the score."""
        norm = stream.values.get("grad_norm")
        high = np.zeros(len(stream), np.bool_) if norm is None else self._spikes(norm)
        return _named(self._spikes(stream.values["loss"]), high)

    def score(self, stream: LogColumns) -> float:
        """Return the cumulative score: the share of all rows that are spikes; 0 for none."""
        return float(np.mean(self.mark(stream) != 0)) if len(stream) else 0.0

    def _spikes(self, values: Floats) -> np.ndarray:
        level, spread = trailing(values, self.window_rows, (mean, std), least=self.window_rows)
        with np.errstate(invalid="ignore"):
            return (spread >= 1e-10) & (values > level + self.sigmas * spread)


@dataclass(frozen=True, kw_only=True)
class LevanterSkip:
    """levanter skip_bad_steps: 6 deviations over a ring of 128.

    NaN is marked, then blinds the ring.
    """

    name: str = "levanter skip-bad-steps"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = True
    window_rows: int = 128
    sigmas: float = 6.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows whose step is skipped."""
        norm = stream.values.get("grad_norm")
        high = np.zeros(len(stream), np.bool_) if norm is None else self._bad(norm)
        return _named(self._bad(stream.values["loss"]), high)

    def _bad(self, values: Floats) -> np.ndarray:
        over = _over_ring(values, self.window_rows, self.sigmas)
        return over | (np.isnan(values) & (np.arange(len(values)) >= self.window_rows // 2))


@dataclass(frozen=True, kw_only=True)
class LevanterUpdateClip:
    """levanter clip_update_norm: scales a final update above mean + 3 standard deviations."""

    name: str = "levanter clip-update-norm"
    needs: tuple[str, ...] = ("update_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = True
    window_rows: int = 128
    sigmas: float = 3.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows whose update is clipped."""
        over = _over_ring(stream.values["update_norm"], self.window_rows, self.sigmas)
        return np.where(over, GRAD, 0).astype(np.int8)


def _over_ring(values: Floats, window_rows: int, sigmas: float) -> np.ndarray:
    level, spread = trailing(values, window_rows, (mean, std), least=window_rows // 2)
    with np.errstate(invalid="ignore"):
        return np.asarray(values > level + sigmas * np.maximum(spread, 1e-6))


def _named(loss: np.ndarray, norm: np.ndarray) -> Marks:
    """Return marks that name the loss where both are bad."""
    return np.where(loss, LOSS, np.where(norm, GRAD, 0)).astype(np.int8)
