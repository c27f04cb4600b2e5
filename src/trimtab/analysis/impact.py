"""Before and after a change: means of the main signals, and whether the run became calmer.

The three signs are those by which OPT-175B's team judged a lowered learning rate: the gradient norm
falls, the loss scale settles, the activation norm falls (S. Zhang's talk on OPT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.end_slopes import clear_slope
from trimtab.analysis.loss_direction import no_good_direction
from trimtab.analysis.loss_unit import loss_in_nats
from trimtab.record import RunRecord, axis_word

__all__ = ["Impact", "ImpactRow", "Sign", "measure_impact"]

NOTICEABLE = 0.05
"""A mean that moved by less than this share stands where it was. Ours."""
LOSS_NOTICEABLE = 0.02
"""The same for the mean of the loss, as the resume detector has it. Ours."""


@dataclass(frozen=True)
class ImpactRow:
    """One signal, before and after."""

    signal: str
    measure: str
    before: float
    after: float


@dataclass(frozen=True)
class Sign:
    """One sign of a calmer run."""

    name: str
    state: Literal["yes", "no", "unchanged", "not logged"]
    text: str


@dataclass(frozen=True, kw_only=True)
class Impact:
    """What a change did."""

    at: float
    window_steps: float
    num_before: int
    num_after: int
    """Rows on either side."""
    rows: tuple[ImpactRow, ...]
    signs: tuple[Sign, ...]
    verdict: str
    axis: str = "step"
    """What positions count."""


def measure_impact(
    record: RunRecord, rows: NDArray[np.intp], *, at: float, window_steps: float
) -> Impact:
    """Return the means within `window_steps` before `at` and from `at` on.

    Args:
        record: The run.
        rows: Rows to look at, one value per step: the final lineage, or an attempt and its parent.
        at: First step under the change.
        window_steps: How far to look to each side, steps.

    Non-finite values are left out of means. Cost: O(n_rows).
    """
    step = record.step[rows]
    before = rows[(step < at) & (step >= at - window_steps)]
    after = rows[(step >= at) & (step < at + window_steps)]
    axis = axis_word(record)
    unit = "nats per token" if loss_in_nats(record) else ""
    per = "epoch" if axis == "epoch" else f"1 000 {axis}s"
    slope = f"slope, {unit} and {per}" if unit else f"slope, per {per}"
    table = [
        ImpactRow(
            "loss", f"mean{unit and ', '}{unit}", *_each(record, "loss", before, after, _mean)
        ),
        ImpactRow("loss", slope, *_slopes(record, before, after, 1.0 if axis == "epoch" else 1e3)),
        ImpactRow("val_loss", "mean", *_each(record, "val_loss", before, after, _mean)),
        ImpactRow("grad_norm", "mean", *_each(record, "grad_norm", before, after, _mean)),
        ImpactRow(
            "activation_norm", "mean", *_each(record, "activation_norm", before, after, _mean)
        ),
        ImpactRow("loss_scale", "mean", *_each(record, "loss_scale", before, after, _mean)),
        ImpactRow("loss_scale", "halvings", *_each(record, "loss_scale", before, after, _halvings)),
        ImpactRow("lr", "mean", *_each(record, "lr", before, after, _mean)),
    ]
    kept = tuple(r for r in table if np.isfinite(r.before) or np.isfinite(r.after))
    signs = _signs(kept)
    return Impact(
        at=at,
        window_steps=window_steps,
        num_before=len(before),
        num_after=len(after),
        rows=kept,
        signs=signs,
        verdict=_verdict(
            kept, signs, min(len(before), len(after)), directed=not _has_no_direction(record)
        ),
        axis=axis,
    )


def _has_no_direction(record: RunRecord) -> bool:
    """Whether a lower loss is no better one: of an agent, or of two nets against each other."""
    return "reward" in record.columns or no_good_direction(record)


def _values(record: RunRecord, name: str, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    column = record.columns.get(name)
    if column is None:
        return np.zeros(0)
    values = column.values[rows[column.present[rows]]]
    return values[np.isfinite(values)]


def _each(
    record: RunRecord,
    name: str,
    before: NDArray[np.intp],
    after: NDArray[np.intp],
    of: Callable[[NDArray[np.float64]], float],
) -> tuple[float, float]:
    one, other = (_values(record, name, rows) for rows in (before, after))
    return (
        float(of(one)) if len(one) else float("nan"),
        float(of(other)) if len(other) else float("nan"),
    )


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean())


def _halvings(scale: NDArray[np.float64]) -> float:
    """Return how often the loss scale fell."""
    return float((np.diff(scale) < 0).sum())


def _slopes(
    record: RunRecord, before: NDArray[np.intp], after: NDArray[np.intp], per: float
) -> tuple[float, float]:
    """Return the slopes of the loss; NaN where noise explains one."""
    found = []
    column = record.columns.get("loss")
    for rows in (before, after):
        known = rows[:0]
        if column is not None:
            known = rows[column.present[rows] & np.isfinite(column.values[rows])]
        values = np.zeros(0) if column is None else column.values[known]
        found.append(per * clear_slope(record.step[known], values))
    return found[0], found[1]


def _signs(rows: tuple[ImpactRow, ...]) -> tuple[Sign, ...]:
    by_name = {(r.signal, r.measure): r for r in rows}
    return (
        _falls("grad norm falls", by_name.get(("grad_norm", "mean"))),
        _scale(by_name.get(("loss_scale", "halvings")), by_name.get(("loss_scale", "mean"))),
        _falls("activation norm falls", by_name.get(("activation_norm", "mean"))),
    )


def _falls(name: str, row: ImpactRow | None) -> Sign:
    if row is None or not (np.isfinite(row.before) and np.isfinite(row.after)):
        return Sign(name, "not logged", "not logged on both sides")
    share = (row.after - row.before) / abs(row.before) if row.before else 0.0
    text = f"{row.before:.4g} to {row.after:.4g} ({share:+.0%})"
    if abs(share) < NOTICEABLE:
        return Sign(name, "unchanged", text)
    return Sign(name, "yes" if share < 0 else "no", text)


def _scale(halvings: ImpactRow | None, mean: ImpactRow | None) -> Sign:
    name = "loss scale settles"
    if halvings is None or mean is None or not np.isfinite([halvings.before, halvings.after]).all():
        return Sign(name, "not logged", "not logged on both sides")
    text = (
        f"{halvings.before:g} to {halvings.after:g} halvings, mean {mean.before:.4g} to"
        f" {mean.after:.4g}"
    )
    fewer, lower = halvings.after < halvings.before, mean.after < mean.before * (1 - NOTICEABLE)
    if fewer or (halvings.after == halvings.before and mean.after > mean.before * (1 + NOTICEABLE)):
        return Sign(name, "yes", text)
    return Sign(name, "no" if halvings.after > halvings.before or lower else "unchanged", text)


def _verdict(
    rows: tuple[ImpactRow, ...], signs: tuple[Sign, ...], num_rows: int, *, directed: bool
) -> str:
    """Return the verdict in one sentence; the loss and all three signs are named in it."""
    if num_rows < 3:
        return "too few rows on one side to judge"
    calm = sum(s.state == "yes" for s in signs)
    worse = sum(s.state == "no" for s in signs)
    logged = sum(s.state != "not logged" for s in signs)
    named = "; ".join(f"{s.name}: {s.state}" for s in signs)
    told = f"{calm} of {logged} signs that are logged ({named})"
    if not logged:
        told = f"none of the three signs is logged ({named})"
    rate = next((r for r in rows if r.signal == "lr"), None)
    lowered = rate is not None and rate.after < rate.before * (1 - NOTICEABLE)
    if lowered and calm:
        told += "; the learning rate was lowered, which alone can do this"
    moved, loss = _moved(rows, "loss")
    held_out, said = _moved(rows, "val_loss")
    if not directed and moved and "none that is finite" not in loss:
        moved, loss = 0, f"{loss}, of which neither direction is good"
    elif said and "none that is finite" not in loss + said:
        # What is held out says how good a run is; the training loss falls as one overfits.
        moved, loss = held_out, f"val {said}; training {loss}"
    if moved:
        return f"{_LEADS[moved, int(np.sign(calm - worse))]}: {loss}; {told}"
    if logged:
        lead = "calmer" if calm > worse else "worse" if worse > calm else "no clear change"
        told = f"{lead}: {told}"
    return f"{told}; {loss}" if loss else told


_LEADS = {
    (-1, -1): "mixed, the loss is better and the signs are worse",
    (-1, 0): "better",
    (-1, 1): "better and calmer",
    (1, -1): "worse",
    (1, 0): "worse",
    (1, 1): "mixed, calmer but the loss is worse",
}
"""By where the loss went and which signs prevail."""


def _moved(rows: tuple[ImpactRow, ...], signal: str) -> tuple[int, str]:
    """Return -1 for a loss that fell, 1 for one that rose, 0 for neither; and what to say of it."""
    mean = next((r for r in rows if r.signal == signal and r.measure.startswith("mean")), None)
    if mean is None or not np.isfinite(mean.before):
        return 0, ""
    if not np.isfinite(mean.after):
        return 1, f"loss {mean.before:.4g}, then none that is finite"
    share = (mean.after - mean.before) / abs(mean.before) if mean.before else 0.0
    text = f"loss {mean.before:.4g} to {mean.after:.4g} ({share:+.1%})"
    return int(np.sign(share)) if abs(share) >= LOSS_NOTICEABLE else 0, text
