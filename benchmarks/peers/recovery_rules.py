"""Rules in absolute units, and the rules of recovery ladders."""

from collections import deque
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.contract import GRAD, LOSS, RESUME, Floats, LogColumns, Marks

__all__ = ["Continuity", "FiniteCheck", "LadderSpike", "Soup"]


@dataclass(frozen=True, kw_only=True)
class LadderSpike:
    """The-School-of-AI/LLM loss-spike recovery: .5 above the mean of 100, and 3 sigma or twice it.

    A spike does not join. In the 50 rows after one nothing is tested and everything joins, so a
    high plateau becomes the level before the count of spikes can pass 1.
    """

    name: str = "school-of-ai spike-recovery"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = False
    window_rows: int = 100
    least_rise: float = 0.5
    sigmas: float = 3.0
    factor: float = 2.0
    cooldown_rows: int = 50
    norm_limit: float = 100.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that climb the ladder."""
        norm = stream.values.get("grad_norm")
        high = np.zeros(len(stream), np.bool_) if norm is None else norm > self.norm_limit
        marks = np.where(high, GRAD, 0).astype(np.int8)
        held: deque[float] = deque(maxlen=self.window_rows)
        rest = 0
        for t, loss in enumerate(stream.values["loss"].tolist()):
            if rest == 0 and len(held) == self.window_rows and self._spikes(loss, held):
                marks[t], rest = LOSS, self.cooldown_rows
                continue
            rest = max(0, rest - 1)
            held.append(loss)
        return marks

    def _spikes(self, loss: float, held: deque[float]) -> bool:
        level = sum(held) / len(held)
        if not loss - level >= self.least_rise:
            return False
        with np.errstate(all="ignore"):
            spread = float(np.std(held, ddof=1))
        return loss > level + self.sigmas * spread or loss > self.factor * level


@dataclass(frozen=True, kw_only=True)
class Continuity:
    """The same project's guard at a resume: the mean of 50 rows after against the 50 before.

    It passes within 3 sigma *or* 20 %, so a jump of 20 % passes.
    """

    name: str = "school-of-ai continuity"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = True
    window_rows: int = 50
    sigmas: float = 3.0
    share: float = 0.2

    def mark(self, stream: LogColumns) -> Marks:
        """Return the first row of each attempt that does not fit the one before."""
        loss = stream.values["loss"]
        marks = np.zeros(len(loss), np.int8)
        for t in (np.flatnonzero(np.diff(stream.attempt)) + 1).tolist():
            before, after = (
                loss[max(0, t - self.window_rows) : t],
                loss[t : t + self.window_rows],
            )
            if min(len(before), len(after)) == self.window_rows and not self._fits(before, after):
                marks[t] = RESUME
        return marks

    def _fits(self, before: Floats, after: Floats) -> bool:
        with np.errstate(all="ignore"):
            level, moved = float(before.mean()), abs(float(after.mean() - before.mean()))
            return moved <= self.sigmas * float(before.std()) or moved <= self.share * abs(level)


@dataclass(frozen=True, kw_only=True)
class Soup:
    """Soup: a loss above 3.0 for five rows, whatever the model."""

    name: str = "soup loss>3"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    limit: float = 3.0
    rows: int = 5

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which training would stop."""
        marks = np.zeros(len(stream), np.int8)
        run = 0
        for t, loss in enumerate(stream.values["loss"].tolist()):
            run = run + 1 if loss > self.limit else 0
            marks[t] = LOSS if run >= self.rows else 0
        return marks


@dataclass(frozen=True, kw_only=True)
class FiniteCheck:
    """What torchtitan, Megatron-LM, OLMo-core and KempnerForge check at least: is it finite."""

    name: str = "finite check"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ("grad_norm",)
    keeps_state: bool = False

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows with a non-finite loss or norm."""
        norm = stream.values.get("grad_norm")
        bad = np.zeros(len(stream), np.bool_) if norm is None else ~np.isfinite(norm)
        loss = ~np.isfinite(stream.values["loss"])
        return np.where(loss, LOSS, np.where(bad, GRAD, 0)).astype(np.int8)
