"""Derived signals: perplexity, clip flags and their running share, how much the loss jumps about.

Where no train loss is logged at all, the logarithm of the perplexity of training stands in for
it, else the loss of validation.

A signal that the log has is left as it is. A derived one is present exactly where what it follows
from is present; nothing is interpolated, and nothing is assumed: without a stated clip there are
no clip flags.
"""

from dataclasses import replace

import numpy as np

from trimtab.record import Column, RunRecord
from trimtab.text import plain

__all__ = ["clip_flags", "derive", "perplexity", "running_share", "step_std"]


def perplexity(loss: Column) -> Column:
    """Return exp(loss); Inf where that overflows, NaN where the loss is NaN."""
    # A diverged loss of 800 overflows; Inf is the right answer and no reason to warn.
    with np.errstate(over="ignore"):
        return Column(np.exp(loss.values), loss.present)


def clip_flags(grad_norm: Column, clip: float) -> Column:
    """Return 1.0 where the norm before clipping is above `clip`, else 0.0; NaN norms give NaN."""
    # NaN > clip is False, which would count a broken step as one that was not clipped.
    flags = np.where(np.isnan(grad_norm.values), np.nan, (grad_norm.values > clip).astype(float))
    return Column(flags, grad_norm.present)


def running_share(flags: Column) -> Column:
    """Return the mean of all flags so far, NaN flags left out; NaN before the first one.

    Example:
        >>> flags = Column(np.array([1.0, 0.0, 1.0, 1.0]), np.ones(4, dtype=bool))
        >>> running_share(flags).values.tolist()
        [1.0, 0.5, 0.6666666666666666, 0.75]
    """
    # An absent value of a column is NaN, but a present NaN is the run's own: neither is counted.
    counted = flags.present & ~np.isnan(flags.values)
    total = np.cumsum(np.where(counted, flags.values, 0.0))
    number = np.cumsum(counted)
    share = np.divide(total, number, out=np.full(len(total), np.nan), where=number > 0)
    return Column(share, flags.present)


def step_std(loss: Column, *, window_rows: int = 64) -> Column:
    """Return the standard deviation of loss[t] - loss[t-1] over the last rows.

    Over 64 rows it is known to 9 %. The noise of a loss falls with the root of the batch, and so
    does this; the trend of the loss is left out by the difference.

    Args:
        loss: As logged; NaN and Inf are left out, as if they had not been.
        window_rows: Differences looked at, finite ones.

    Returns:
        Present where the loss is; NaN where it is not finite, or fewer than a window came before.
    """
    usable = np.flatnonzero(loss.present & np.isfinite(loss.values))
    out = np.full(len(loss.values), np.nan)
    if len(usable) > window_rows:
        steps = np.diff(loss.values[usable])
        middle = steps.mean()  # sums of squares about it lose no digits
        sums = np.concatenate(([0.0], np.cumsum(steps - middle)))
        squares = np.concatenate(([0.0], np.cumsum((steps - middle) ** 2)))
        mean = (sums[window_rows:] - sums[:-window_rows]) / window_rows
        square = (squares[window_rows:] - squares[:-window_rows]) / window_rows
        # The difference of two running sums may come out a hair below 0 where the loss is constant.
        out[usable[window_rows:]] = np.sqrt(np.maximum(square - mean**2, 0.0))
    return Column(out, loss.present)


def derive(record: RunRecord) -> RunRecord:
    """Return the record with what follows from it added; `facts["clip"]` is the stated clip."""
    record = _with_a_loss(_with_validation(_with_training(record)))
    columns = dict(record.columns)
    if "loss" in columns and "perplexity" not in columns:
        columns["perplexity"] = perplexity(columns["loss"])
    if "loss" in columns and "loss_step_std" not in columns:
        columns["loss_step_std"] = step_std(columns["loss"])
    clip = record.facts.get("clip")
    if "grad_norm" in columns and "clipped" not in columns and clip is not None and clip > 0:
        columns["clipped"] = clip_flags(columns["grad_norm"], clip)
    # Last, since the flags may have been derived just above.
    if "clipped" in columns and "clip_frequency" not in columns:
        columns["clip_frequency"] = running_share(columns["clipped"])
    return replace(record, columns=columns)


def _with_training(record: RunRecord) -> RunRecord:
    """Return the record with the logarithm of a perplexity as its loss, where it has none.

    Beside a validation loss a perplexity that does not say train is of that loss.
    """
    key = record.keys.get("perplexity", "perplexity")
    if record.num_loss_rows or ("val_loss" in record.columns and "train" not in key.lower()):
        return record
    return _with_logarithm(record, "perplexity", "loss", "the loss")


def _with_validation(record: RunRecord) -> RunRecord:
    """Return the record with the logarithm of a validation perplexity as its validation loss."""
    if "val_loss" in record.columns:
        return record
    return _with_logarithm(record, "val_perplexity", "val_loss", "the validation loss")


def _with_logarithm(record: RunRecord, of: str, name: str, what: str) -> RunRecord:
    """Return the record with ln of a column under a name, and a note; NaN where it is not above 0."""
    column = record.columns.get(of)
    if column is None:
        return record
    key = record.keys.get(of, of)
    positive = np.where(column.values > 0, column.values, np.nan)
    return replace(
        record,
        columns={**record.columns, name: Column(np.log(positive), column.present)},
        keys={**record.keys, name: key},
        notes=(*record.notes, f"{what} is the logarithm of {plain(key)!r}"),
    )


def _with_a_loss(record: RunRecord) -> RunRecord:
    """Return the record with its validation loss judged as the loss, where it has no train loss."""
    held_out = record.columns.get("val_loss")
    if record.num_loss_rows or held_out is None or not held_out.present.any():
        return record
    name = record.keys.get("val_loss", "val_loss")
    return replace(
        record,
        columns={**record.columns, "loss": held_out},
        keys={**record.keys, "loss": name},
        notes=(*record.notes, f"no train loss is logged: {plain(name)!r} is judged in its place"),
    )
