"""Rules that compare a loss with a multiple of its past: they see explosions, not small rises."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.contract import GRAD, LOSS, Floats, LogColumns, Marks
from benchmarks.peers.windows import mean, trailing

__all__ = [
    "Entrenar",
    "FlagScale",
    "InternEvo",
    "KillLossSpike",
    "Lightning",
    "MegatronLarge",
    "Metaseq",
]


@dataclass(frozen=True, kw_only=True)
class KillLossSpike:
    """LLM-Foundry KillLossSpike: five losses at twice the window's mean, or a high loss.

    The window grows to 5 % of the run once 100 losses are held. Half of a window above the cap of
    10 is a high loss. What is marked joins the window; while it holds a NaN nothing is marked.
    """

    name: str = "llm-foundry kill-loss-spike"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    patience: int = 4
    multiplier: float = 2.0
    window_rows: int = 100
    cap: float = 10.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which it would stop the run."""
        loss = stream.values["loss"]
        width = max(self.window_rows, round(0.05 * len(loss)))
        start = max(width, self.window_rows + 1)  # the row at which the window grows is not tested
        if len(loss) <= start:
            return np.zeros(len(loss), np.int8)
        # the cap comes down to the largest loss so far only where the window is full just at its width
        first = loss[:width]
        cap = min(float(first.max()), self.cap) if width > self.window_rows else self.cap
        level, high = trailing(
            loss, width, (mean, lambda w: (w > cap).sum(axis=1).astype(np.float64)), least=width
        )
        with np.errstate(invalid="ignore"):
            outlier = loss >= self.multiplier * level
        marks = np.zeros(len(loss), np.int8)
        run = 0
        for t in range(start, len(loss)):
            run = run + 1 if outlier[t] else 0
            lasting = t >= 2 * width and high[t] >= width / 2
            marks[t] = LOSS if run > self.patience or lasting else 0
        return marks


@dataclass(frozen=True, kw_only=True)
class MegatronLarge:
    """Megatron-LM's "unexpectedly large": ten times the largest of the first 100 finite values.

    Loss and norm each have their own bar, which never moves again. Non-finite losses have a fatal
    check of their own, which is on by default.
    """

    name: str = "megatron-lm unexpectedly-large"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = False
    factor: float = 10.0
    samples: int = 100

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that are reported."""
        loss = stream.values["loss"]
        norm = stream.values.get("grad_norm")
        large = np.zeros(len(loss), np.bool_) if norm is None else self._large(norm)
        bad = self._large(loss) | ~np.isfinite(loss)
        return np.where(bad, LOSS, np.where(large, GRAD, 0)).astype(np.int8)

    def _large(self, values: Floats) -> np.ndarray:
        finite = np.flatnonzero(np.isfinite(values))
        large = np.zeros(len(values), np.bool_)
        if len(finite) > self.samples:
            later = finite[self.samples :]
            bar = self.factor * np.abs(values[finite[: self.samples]]).max()
            large[later] = np.abs(values[later]) >= bar
        return large


@dataclass(frozen=True, kw_only=True)
class Lightning:
    """Lightning SpikeDetection: three times the mean of ten accepted losses.

    The loss must also lie above the last one.

    Non-finite values are spikes at once. A spike does not join.
    """

    name: str = "lightning spike-detection"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    window_rows: int = 10
    warmup_rows: int = 1
    rtol: float = 2.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which training is stopped."""
        marks = np.zeros(len(stream), np.int8)
        accepted: deque[float] = deque(maxlen=self.window_rows)
        for t, loss in enumerate(stream.values["loss"].tolist()):
            if t >= self.warmup_rows and self._spikes(loss, accepted):
                marks[t] = LOSS
            else:
                accepted.append(loss)
        return marks

    def _spikes(self, loss: float, accepted: deque[float]) -> bool:
        if not math.isfinite(loss):
            return True
        if not accepted or loss <= accepted[-1]:
            return False
        level = sum(accepted) / len(accepted)
        return abs(loss - level) >= self.rtol * level


@dataclass(frozen=True, kw_only=True)
class Metaseq:
    """metaseq's moving-average ratio; off by default (-1), here at 1.5.

    A spike freezes the average.
    """

    name: str = "metaseq ewm-ratio"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    ratio: float = 1.5
    keep: float = 0.8

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that are counted as spikes; the unit of the loss cancels."""
        marks = np.zeros(len(stream), np.int8)
        level: float | None = None
        for t, loss in enumerate(stream.values["loss"].tolist()):
            if level is not None and level > 0 and loss / level > self.ratio:
                marks[t] = LOSS
            else:
                level = loss if level is None else self.keep * level + (1 - self.keep) * loss
        return marks


@dataclass(frozen=True, kw_only=True)
class FlagScale:
    """FlagScale's spiky-loss check.

    A fifth above the last accepted loss is skipped, and not accepted.

    After one low batch, or a lasting rise of a fifth, it skips for ever. A NaN is accepted, and the
    value after it too. The original waits for the end of the LR warm-up, which few logs tell; here
    it starts at once, and a falling loss does not trouble it.
    """

    name: str = "flagscale spiky-loss"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    share: float = 0.2

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows whose step is skipped."""
        marks = np.zeros(len(stream), np.int8)
        last = math.nan
        for t, loss in enumerate(stream.values["loss"].tolist()):
            if math.isinf(loss) or (last != 0 and (loss - last) / last >= self.share):
                marks[t] = LOSS
            else:
                last = loss
        return marks


@dataclass(frozen=True, kw_only=True)
class InternEvo:
    """InternEvo's monitor: half as much again as the row before."""

    name: str = "internevo loss-monitor"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    ratio: float = 1.5

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows on which somebody is called."""
        loss = stream.values["loss"]
        marks = np.zeros(len(loss), np.int8)
        with np.errstate(invalid="ignore", over="ignore"):
            marks[1:][loss[1:] > self.ratio * loss[:-1]] = LOSS
        return marks


@dataclass(frozen=True, kw_only=True)
class Entrenar:
    """entrenar: three times a moving average, at most three times a run.

    Which average is not in the description at hand: here one that keeps 0.9 and takes all values.
    """

    name: str = "entrenar 3x-ema"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    ratio: float = 3.0
    keep: float = 0.9
    budget: int = 3

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that are logged as rollbacks."""
        marks = np.zeros(len(stream), np.int8)
        level, told = math.nan, 0
        for t, loss in enumerate(stream.values["loss"].tolist()):
            if told < self.budget and loss > self.ratio * level:
                marks[t], told = LOSS, told + 1
            if math.isfinite(loss):
                level = loss if math.isnan(level) else self.keep * level + (1 - self.keep) * loss
        return marks
