"""The learning rate in force at each step, and the usual curve nearest to it.

A run whose rate was cut by hand, by a guard or at restarts no longer follows the schedule of its
config; its history is what counts. Where that is close to a usual curve, the curve is named, so
that a next run can be launched with it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.record import RunRecord

__all__ = ["CLOSE", "Envelope", "fit_envelope", "history_csv", "lr_history"]

CLOSE = 0.1
"""Largest root mean square of relative distances at which a curve counts as followed. Ours."""

_SIMPLER = 1.1
"""A constant is taken where another curve is nearer by less than this factor. Ours."""

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Envelope:
    """A usual curve, fitted to what came after the highest rate."""

    kind: str
    """constant, linear, cosine or inverse-sqrt."""
    error: float
    """Root mean square of the relative distances."""
    values: _Floats
    """The curve at the steps of the history, NaN before the highest rate: [n]."""

    @property
    def close(self) -> bool:
        """Whether the run followed it."""
        return self.error <= CLOSE


def lr_history(record: RunRecord) -> tuple[_Floats, _Floats]:
    """Return (steps, rates) along the final lineage, [n] each: what was rolled back is left out.

    Rows without a finite rate are left out. Cost: O(n).
    """
    column = record.columns.get("lr")
    rows = record.lineage_rows()
    if column is None:
        return np.zeros(0), np.zeros(0)
    rows = column.finite_rows(rows)
    return record.step[rows], column.values[rows]


def fit_envelope(steps: _Floats, rates: _Floats) -> Envelope | None:
    """Return the usual curve nearest to a history from its last highest rate on; None below 8 rows.

    Each curve is `low + (high - low) * shape`, fitted by least squares on relative distances;
    inverse-sqrt is `high * sqrt(start / step)` without a floor. NaN must be left out before.

    Example:
        >>> steps = np.arange(1.0, 1001.0)
        >>> fit_envelope(steps, 1e-3 / np.sqrt(steps)).kind
        'inverse-sqrt'
    """
    if not len(rates) or not np.max(rates) > 0:
        return None
    # The last of equal highest rates: a plateau after the warm-up belongs to no decay.
    first = len(rates) - 1 - int(np.argmax(rates[::-1]))
    x, y = steps[first:], rates[first:]
    # Distances are relative, and the last row of a decay to 0 has none.
    x, y = x[y > 0], y[y > 0]
    if len(x) < 8:
        return None
    u = (x - x[0]) / max(float(x[-1] - x[0]), 1e-12)
    shapes = {
        "constant": np.zeros_like(u),
        "linear": 1 - u,
        "cosine": (1 + np.cos(np.pi * u)) / 2,
        "inverse-sqrt": np.sqrt(max(float(x[0]), 1.0) / np.maximum(x, 1.0)),
    }
    fits = [_fit(kind, shape, y) for kind, shape in shapes.items()]
    best = min(fits, key=lambda fit: fit[1])
    # A curve with one more parameter is always a little nearer.
    kind, error, curve = fits[0] if fits[0][1] <= _SIMPLER * best[1] else best
    values = np.full(len(rates), np.nan)
    values[np.flatnonzero(np.isin(steps, x))[-len(x) :]] = curve
    return Envelope(kind, error, values)


def _fit(kind: str, shape: _Floats, y: _Floats) -> tuple[str, float, _Floats]:
    columns = [shape] if kind == "inverse-sqrt" else [np.ones_like(y), shape]
    design = np.stack(columns[: 1 if kind == "constant" else 2], axis=1)
    # Divided by y: distances relative to the rate, so the small rates at the end count as much.
    weights, *_ = np.linalg.lstsq(design / y[:, None], np.ones_like(y), rcond=None)
    curve = design @ weights
    return kind, float(np.sqrt(np.mean((curve / y - 1) ** 2))), curve


def history_csv(record: RunRecord) -> str:
    """Return the history as CSV: step, lr, and the fitted curve; the first line names the curve."""
    steps, rates = lr_history(record)
    envelope = fit_envelope(steps, rates)
    if envelope is None or not envelope.close:
        head, curve = "# follows no usual curve", np.full(len(steps), np.nan)
    else:
        head = (
            f"# nearest curve after the highest rate: {envelope.kind}, within {envelope.error:.2%}"
        )
        curve = envelope.values
    lines = [head, "step,lr,curve"]
    for step, rate, value in zip(steps, rates, curve, strict=True):
        lines.append(f"{step:.12g},{rate:.9g}," + ("" if np.isnan(value) else f"{value:.6g}"))
    return "\n".join(lines) + "\n"
