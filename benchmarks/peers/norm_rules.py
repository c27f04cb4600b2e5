"""Rules on the gradient norm."""

import math
import statistics
from collections import deque
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.contract import GRAD, LogColumns, Marks

__all__ = ["AxLearn", "Cosmos", "MindFormers", "StabilityGuard", "ZClip"]


@dataclass(frozen=True, kw_only=True)
class ZClip:
    """ZClip: clips a norm 2.5 deviations above its moving mean, and learns the clipped value.

    On log-normal norms it clips some 3 to 5 % of healthy steps. One NaN makes mean and variance
    NaN for good: it never marks again.
    """

    name: str = "zclip"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    keep: float = 0.97
    threshold: float = 2.5
    warmup_rows: int = 25
    eps: float = 1e-6

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows whose gradient is clipped because of its z-score."""
        norms = stream.values["grad_norm"]
        marks = np.zeros(len(norms), np.int8)
        if len(norms) <= self.warmup_rows:
            return marks
        with np.errstate(all="ignore"):
            level = float(norms[: self.warmup_rows].mean())
            variance = float(norms[: self.warmup_rows].var())
        for t, norm in enumerate(norms[self.warmup_rows :].tolist(), self.warmup_rows):
            spread = math.sqrt(variance)
            z = (norm - level) / (spread + self.eps)
            taken = norm
            if z > self.threshold:
                marks[t] = GRAD
                taken = level + self.threshold * spread / (z / self.threshold)
            level = self.keep * level + (1 - self.keep) * taken
            variance = self.keep * variance + (1 - self.keep) * (taken - level) ** 2
        return marks


@dataclass(frozen=True, kw_only=True)
class AxLearn:
    """AXLearn skip_and_clip_by_global_norm.

    A norm 20 times its moving average, or a non-finite one.
    """

    name: str = "axlearn 20x-ema"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = True
    factor: float = 20.0
    decay: float = 0.99

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows whose step is skipped; they are not learnt."""
        marks = np.zeros(len(stream), np.int8)
        level, accepted = 1.0, 0
        for t, norm in enumerate(stream.values["grad_norm"].tolist()):
            if not math.isfinite(norm) or norm >= self.factor * level:
                marks[t] = GRAD
                continue
            decay = self.decay * (1 - self.decay**accepted) / (1 - self.decay ** (accepted + 1))
            level = decay * level + (1 - decay) * norm
            accepted += 1
        return marks


@dataclass(frozen=True, kw_only=True)
class StabilityGuard:
    """StabilityGuard: ten times a moving average that has already taken the value in.

    Since the value joins first (one part in a hundred), the ratio can never pass 100. The original
    looks at each tensor; a log has the global norm, which stands for one.
    """

    name: str = "stabilityguard"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    keep: float = 0.99
    factor: float = 10.0
    floor: float = 0.01
    warmup_rows: int = 10

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that are acted on; a non-finite norm always, and it is not learnt."""
        marks = np.zeros(len(stream), np.int8)
        level: float | None = None
        for t, norm in enumerate(stream.values["grad_norm"].tolist()):
            if not math.isfinite(norm):
                marks[t] = GRAD
                continue
            level = norm if level is None else self.keep * level + (1 - self.keep) * norm
            high = norm > self.floor and norm > self.factor * level
            marks[t] = GRAD if high and t > self.warmup_rows else 0
        return marks


@dataclass(frozen=True, kw_only=True)
class MindFormers:
    """MindFormers' monitor: an absolute limit on the norm, ten rows in a row."""

    name: str = "mindformers norm>=1"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    limit: float = 1.0
    rows: int = 10

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which training would stop."""
        marks = np.zeros(len(stream), np.int8)
        run = 0
        for t, norm in enumerate(stream.values["grad_norm"].tolist()):
            run = run + 1 if norm >= self.limit else 0
            marks[t] = GRAD if run >= self.rows else 0
        return marks


@dataclass(frozen=True, kw_only=True)
class Cosmos:
    """cosmos LossSpikeRollback: a norm 10 times the median of the last 50 accepted ones.

    The median counts for at most four times the lowest median seen, so that a divergence does not
    carry the bar along. Only the test: rollback and LR cut have no place in a log.
    """

    name: str = "cosmos loss-spike-rollback"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    factor: float = 10.0
    window_rows: int = 50
    least_rows: int = 12
    chase: float = 4.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that trigger a rollback."""
        marks = np.zeros(len(stream), np.int8)
        accepted: deque[float] = deque(maxlen=self.window_rows)
        lowest = math.inf
        for t, norm in enumerate(stream.values["grad_norm"].tolist()):
            bar = math.inf
            if len(accepted) >= self.least_rows:
                middle = statistics.median(accepted)
                lowest = min(lowest, middle)
                bar = self.factor * min(middle, self.chase * lowest)
            if not math.isfinite(norm) or norm > bar:
                marks[t] = GRAD
            else:
                accepted.append(norm)
        return marks
