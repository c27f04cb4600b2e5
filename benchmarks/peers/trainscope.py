"""trainscope's detectors: CUSUM, z-score, percentile, first crossing, explosion.

They look both ways by default, so that a falling loss is an anomaly to them, and price noise as if
rows were independent. Non-finite values are not seen and do not join.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.peers.contract import GRAD, LOSS, Floats, LogColumns, Marks
from benchmarks.peers.windows import mean, median_and_spread, sample_std, trailing

__all__ = ["Crossing", "Cusum", "Explosion", "FrozenCusum", "Percentile", "ZScore", "cusum_fires"]


def cusum_fires(z: Floats, *, slack: float, bar: float, upward_only: bool = False) -> np.ndarray:
    """Return bool [n]: where a two-sided CUSUM of z reaches its bar; both sums start anew there."""
    fires = np.zeros(len(z), np.bool_)
    high = low = 0.0
    for t, x in enumerate(z.tolist()):
        if x != x:
            continue
        high = max(0.0, high + x - slack)
        low = 0.0 if upward_only else min(0.0, low + x + slack)
        if high >= bar or -low >= bar:
            fires[t] = True
            high = low = 0.0
    return fires


@dataclass(frozen=True, kw_only=True)
class Cusum:
    """The default trigger: CUSUM, slack 1, bar 6, of (x - median) / 1.4826 MAD of ≤ 200 rows."""

    name: str = "trainscope cusum"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    window_rows: int = 200
    least_rows: int = 30
    slack: float = 1.0
    bar: float = 6.0
    upward_only: bool = False

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which it fires."""
        return _on_finite(stream.values["loss"], self._fires)

    def _fires(self, loss: Floats) -> np.ndarray:
        (known,) = trailing(loss, self.window_rows, (median_and_spread,), least=self.least_rows)
        if known.ndim == 1:
            return np.zeros(len(loss), np.bool_)
        z = (loss - known[:, 0]) / np.maximum(known[:, 1], 1e-12)
        return cusum_fires(z, slack=self.slack, bar=self.bar, upward_only=self.upward_only)


@dataclass(frozen=True, kw_only=True)
class ZScore:
    """More than 3.5 sample deviations (or robust ones) from the level of 200 rows, either way."""

    name: str = "trainscope z-score"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    window_rows: int = 200
    least_rows: int = 30
    threshold: float = 3.5
    robust: bool = False

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows beyond the threshold."""
        return _on_finite(stream.values["loss"], self._fires)

    def _fires(self, loss: Floats) -> np.ndarray:
        if self.robust:
            (known,) = trailing(loss, self.window_rows, (median_and_spread,), least=self.least_rows)
            level, spread = (known, known) if known.ndim == 1 else (known[:, 0], known[:, 1])
        else:
            level, spread = trailing(
                loss, self.window_rows, (mean, sample_std), least=self.least_rows
            )
        return np.asarray(np.abs(loss - level) > self.threshold * np.maximum(spread, 1e-12))


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """Outside the 1st to 99th percentile of 200 rows: by design some 2 % of all rows."""

    name: str = "trainscope percentile"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    window_rows: int = 200
    least_rows: int = 30

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows outside."""
        return _on_finite(stream.values["loss"], self._fires)

    def _fires(self, loss: Floats) -> np.ndarray:
        (known,) = trailing(loss, self.window_rows, (_tails,), least=self.least_rows)
        if known.ndim == 1:
            return np.zeros(len(loss), np.bool_)
        return np.asarray((loss < known[:, 0]) | (loss > known[:, 1]))


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """First of three norms in a row above median + 3 robust deviations of the first 40.

    Said once.
    """

    name: str = "trainscope first-crossing"
    needs: tuple[str, ...] = ("grad_norm",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    baseline_rows: int = 40
    least_rows: int = 50
    sigmas: float = 3.0
    in_a_row: int = 3

    def mark(self, stream: LogColumns) -> Marks:
        """Return the row of the crossing; it is known two rows later."""
        return np.where(_on_finite(stream.values["grad_norm"], self._fires), GRAD, 0).astype(
            np.int8
        )

    def _fires(self, norm: Floats) -> np.ndarray:
        fires = np.zeros(len(norm), np.bool_)
        if len(norm) < self.least_rows:
            return fires
        level, spread = median_and_spread(norm[None, : self.baseline_rows])[0]
        run = 0
        for t in range(self.baseline_rows, len(norm)):
            run = run + 1 if norm[t] > level + self.sigmas * spread else 0
            if run == self.in_a_row:
                fires[t - self.in_a_row + 1] = True
                break
        return fires


@dataclass(frozen=True, kw_only=True)
class Explosion:
    """The label of its reports: a non-finite loss, or ten times the mean of the first 40."""

    name: str = "trainscope explosion"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    baseline_rows: int = 40
    factor: float = 10.0

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows that carry the label."""
        loss = stream.values["loss"]
        bad = ~np.isfinite(loss)
        head = loss[: self.baseline_rows]
        head = head[np.isfinite(head)]
        if len(head):
            late = np.arange(len(loss)) >= self.baseline_rows
            bad |= late & (loss > self.factor * head.mean())
        return np.where(bad, LOSS, 0).astype(np.int8)


@dataclass(frozen=True, kw_only=True)
class FrozenCusum:
    """A process-control sandbox: CUSUM (k .5, h 5) against rows 34 to 50, which never change.

    Every row of a loss that goes on falling is out of control to it.
    """

    name: str = "spc-sandbox frozen-cusum"
    needs: tuple[str, ...] = ("loss",)
    uses: tuple[str, ...] = ()
    keeps_state: bool = False
    first_row: int = 33
    end_row: int = 50
    upward_only: bool = False

    def mark(self, stream: LogColumns) -> Marks:
        """Return the rows at which it fires."""
        return _on_finite(stream.values["loss"], self._fires)

    def _fires(self, loss: Floats) -> np.ndarray:
        fires = np.zeros(len(loss), np.bool_)
        if len(loss) <= self.end_row:
            return fires
        base = loss[self.first_row : self.end_row]
        z = (loss[self.end_row :] - base.mean()) / max(float(base.std(ddof=1)), 1e-12)
        fires[self.end_row :] = cusum_fires(z, slack=0.5, bar=5.0, upward_only=self.upward_only)
        return fires


def _tails(windows: Floats) -> Floats:
    return np.stack([*np.percentile(windows, [1, 99], axis=1)], axis=1)


def _on_finite(values: Floats, rule: Callable[[Floats], np.ndarray]) -> Marks:
    """Return the marks of a rule that is fed the finite values alone."""
    finite = np.isfinite(values)
    marks = np.zeros(len(values), np.int8)
    with np.errstate(over="ignore", invalid="ignore"):
        marks[finite] = np.where(rule(values[finite]), LOSS, 0)
    return marks
