"""Losses that a progress bar prints as the mean since the epoch began, put back to their own.

    Epoch 3: 40/200 loss=0.912      the mean of 40 batches
    Epoch 3: 41/200 loss=0.909      the mean of 41

At the start of each epoch such a mean is that of one batch, and at the end that of all: what looks
like a spike there is noise that was averaged away elsewhere, and a spike within is hardly seen. From
one row to the next it changes by what the new batch adds, over the batches so far.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import shown
from trimtab.record import Column, RunRecord

__all__ = ["own_values"]

Floats = NDArray[np.float64]

MIN_ROWS = 16
"""Rows of an epoch that show how its changes shrink. Ours."""
MIN_EPOCHS = 2
MIN_SHARE = 0.75
"""Share of these epochs whose changes shrink like those of a mean. Ours."""
MIN_SHRINK = 4.0
"""Times by which a mean must shrink its changes from the first to the last ones, to be seen. Ours."""
DIGITS_WEIGH = 2.0
"""Times the error of the printed digits, that batches must differ by. Ours."""
_FIRST = 4
"""Rows at the start of an epoch that hold next to single batches. Ours."""
_TIED = 1e-6
"""Of an epoch: rows nearer than this are the same batch, drawn again."""
_OF_BATCHES = frozenset({"loss", "accuracy", "token_accuracy", "perplexity", "grad_norm"})

_OF_INTERVALS = frozenset({"hf-trainer-state", "hf-stdout", "megatron", "trimtab"})
"""Trainers that print the mean since their last row, whatever it looks like."""


@dataclass(frozen=True)
class _Epoch:
    rows: NDArray[np.intp]
    count: Floats
    """Batches done at each row, in a unit of its own; strictly above 0, never falls."""


def own_values(record: RunRecord) -> RunRecord:
    """Return a record whose rows hold values of their own, where they are means since an epoch began.

    Of rows at counts i < j of batches with means m the batches between have (j m[j] - i m[i]) / (j - i).
    Where the printed digits are too few for that, rows are left out until they are enough; others of
    them keep what else they hold. Believed where the changes from row to row shrink as 1 / j in the
    epochs behind the first, and begin anew with each.

    A mean that is NaN or Inf stays so. Cost: O(rows), and nothing for rows that no epoch holds.
    """
    if record.format in _OF_INTERVALS:
        return record
    epochs = _epochs(record)
    if len(epochs) < MIN_EPOCHS:
        return record
    columns, keys = dict(record.columns), list[str]()
    for name in sorted(_OF_BATCHES & columns.keys()):
        found = _own(columns[name], epochs)
        if found is not None:
            columns[name] = found
            keys.append(record.keys.get(name, name))
    if not keys:
        return record
    note = (
        f"{', '.join(map(shown, keys))}: printed as the mean since the epoch began; rows are judged by"
        " what each adds to it"
    )
    return replace(record, columns=columns, notes=(*record.notes, note))


def _epochs(record: RunRecord) -> list[_Epoch]:
    """Return the rows of each epoch that counts its batches."""
    place, passes = record.step, record.columns.get("epochs_seen")
    if record.axis != "epoch" and (passes is None or not passes.present.any()):
        return []
    epoch = np.floor(place if record.axis == "epoch" or passes is None else passes.values)
    loss = record.columns.get("loss")
    if loss is None:
        return []
    rows = np.flatnonzero(loss.present & np.isfinite(epoch))
    if len(rows) < MIN_EPOCHS * MIN_ROWS:
        return []
    turns = np.diff(epoch[rows]) != 0
    turns |= np.diff(record.attempt[rows]) != 0
    if len(rows) < MIN_ROWS / 2 * (np.count_nonzero(turns) + 1):
        return []  # an epoch has a row or a few
    found: list[_Epoch] = []
    for part in np.split(rows, np.flatnonzero(turns) + 1):
        count = place[part] - (epoch[part[0]] if record.axis == "epoch" else place[part[0]])
        gap = float(np.median(np.diff(count))) if len(count) > 1 else 1.0
        # What counts from 0 has done one batch there.
        found.append(_Epoch(part, count + gap if count[0] < gap / 2 else count))
    return found


def _own(column: Column, epochs: list[_Epoch]) -> Column | None:
    means = [column.values[e.rows] for e in epochs]
    if any(not column.present[e.rows].all() for e in epochs):
        return None
    usual = np.median([len(m) for m in means])
    shrunk = [
        _is_mean(e.count, m)
        for e, m in zip(epochs[1:], means[1:], strict=True)
        if len(m) >= usual / 2  # the start of an epoch tells less than a whole one
    ]
    told = [s for s in shrunk if s is not None]
    if len(told) < max(1, len(shrunk) / 2) or np.mean(told) < MIN_SHARE:
        return None
    values, present = column.values.copy(), column.present.copy()
    noise = _first_noise(epochs, means)
    for e, m in zip(epochs, means, strict=True):
        own, kept = _worked_out(e.count, m, _stride(e.count, m, noise))
        values[e.rows] = own
        present[e.rows] = kept
    return Column(np.where(present, values, np.nan), present)


def _is_mean(count: Floats, mean: Floats) -> bool | None:
    """Whether changes shrink as those of a mean do; None where an epoch cannot tell."""
    fine = np.isfinite(mean)
    count, mean = count[fine], mean[fine]
    if len(mean) < MIN_ROWS:
        return None
    # Of their level: noise that shrinks with a loss that falls by decades is no mean.
    level = np.log(mean) if mean.min() > 0 else mean
    change, share = np.abs(np.diff(level)), np.diff(count) / count[1:]
    early, late = count[1:] <= count[-1] / 4, count[1:] > count[-1] / 2
    if min(early.sum(), late.sum()) < _FIRST:
        return None
    shrink = float(np.median(share[early]) / np.median(share[late]))
    first = float(np.median(change[early]))
    if shrink < MIN_SHRINK or first == 0:
        return None
    return bool(np.median(change[late]) * np.sqrt(shrink) <= first)


def _first_noise(epochs: list[_Epoch], means: list[Floats]) -> float:
    """Return how far the first batches lie apart, in standard deviations; inf where none tells.

    Of these the digits that are printed tell most.
    """
    first = [
        _worked_out(e.count[:_FIRST], m[:_FIRST], 1)[0] for e, m in zip(epochs, means, strict=True)
    ]
    apart = np.concatenate(
        [f - np.median(f) for f in first if np.isfinite(f).all()] or [np.zeros(0)]
    )
    return 1.4826 * float(np.median(np.abs(apart))) if len(apart) >= MIN_ROWS // 2 else np.inf


def _stride(count: Floats, mean: Floats, most_noise: float) -> int:
    """Return how many rows are taken together so that digits weigh less than batches differ."""
    change = np.abs(np.diff(mean[np.isfinite(mean)]))
    change = change[change > 0]
    quarter = max(_FIRST, len(mean) // 4)
    own, kept = _worked_out(count[:quarter], mean[:quarter], 1)
    own = own[kept & np.isfinite(own)]
    if not len(change):
        return len(mean)
    if len(own) < _FIRST:
        return 1
    noise = min(most_noise, 1.4826 * float(np.median(np.abs(own - np.median(own)))))
    # The error of a rounded number is spread evenly: 1 / sqrt(12) of a digit, in each of two rows.
    digits = float(change.min()) / np.sqrt(6.0) * float(count[-1] / np.median(np.diff(count)))
    rows = (DIGITS_WEIGH * digits) ** 2 / max(noise, digits / len(mean)) ** 2
    return int(np.ceil(min(max(1.0, rows), len(mean))))


def _worked_out(count: Floats, mean: Floats, stride: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the values of the batches between rows, and which rows hold one."""
    own, fine = mean.copy(), np.isfinite(mean)
    kept = ~fine
    # The last row of an epoch stays, and from there each so many before it.
    rows = np.flatnonzero(fine)[::-1][::stride][::-1]
    if len(rows) > 1 and np.count_nonzero(fine[: rows[0] + 1]) < stride:
        rows = rows[1:]
    kept[rows] = True
    if len(rows) < 2:
        return own, kept
    i, j, m = count[rows][:-1], count[rows][1:], mean[rows]
    tied = j - i <= _TIED * j
    between = m[:-1] + (m[1:] - m[:-1]) * j / np.where(tied, 1.0, j - i)
    if (m >= 0).all():  # a digit too few must not turn a loss below 0
        between = np.maximum(between, 0.0)
    own[rows[1:]] = between
    # Drawn again: what was added before.
    for k in np.flatnonzero(tied).tolist():
        own[rows[k + 1]] = own[rows[k]]
    return own, kept
