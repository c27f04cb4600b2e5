"""Validation that falls at once far below a training loss that does not follow.

What is learned shows on the training loss first. Validation that leaves it downwards between two
evaluations is of another set or another loss, or its data has come into training. With v the
evaluations and t the training loss around each, such a place is the first evaluation k for which

    fell    v falls by `FELL` of itself in one or two evaluations, `SIGMA` times its own noise and
            `USUAL` times as far as in any of the last steps before
    parts   v / t lay at `LEAST_BEFORE` or more, and from there on, to the end, stays below `MOST_AFTER`
            and has come down by `RATIO_FELL`
    alone   t falls by less than `SHARED` of that

so a validation that lies below training from the first on (dropout, augmentation, smoothed labels)
is none, nor a drop that training shares, as that of a cut of the rate. Weights that are averaged
from some step on bring validation down, too, and not far below training. In hindsight, since the
evaluations to the end must stay there. Blind to losses that may be negative, and before the fifth
evaluation.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median

__all__ = ["held_out_drop_findings"]

Floats = NDArray[np.float64]

FEWEST_BEFORE, FEWEST_AFTER = 4, 3
"""Evaluations. All bars are ours."""
NEAR_ROWS = 16
"""Before an evaluation, of which the training loss is taken."""
FELL, SIGMA, USUAL = 0.25, 10.0, 4.0
LEAST_BEFORE, MOST_AFTER, RATIO_FELL = 0.8, 0.7, 0.35
SHARED = 0.25
RECENT = 8
"""Steps from one evaluation to the next that say what is usual."""
MOST_CHECKS = 4096
"""Evaluations that are looked through; of more, the last."""


def held_out_drop_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the evaluation of each attempt from which on validation lies far below training."""
    if not {"loss", "val_loss"} <= record.columns.keys():
        return ()
    spans = (record.rows_of(i) for i in range(len(record.attempts)))
    found = (_of(record, span) for span in spans)
    return tuple(f for f in found if f is not None)


def _of(record: RunRecord, span: slice) -> Finding | None:
    train, val = record.columns["loss"], record.columns["val_loss"]
    rows, checks = train.finite_rows(span), val.finite_rows(span)[-MOST_CHECKS:]
    if len(checks) < FEWEST_BEFORE + FEWEST_AFTER or len(rows) < len(checks):
        return None
    loss, values = train.values[rows], val.values[checks]
    if loss.min() <= 0 or values.min() <= 0:
        return None
    # Rows up to an evaluation and no further than the one before it.
    ends = np.searchsorted(rows, checks, "right")
    begins = np.maximum(np.concatenate(([0], ends[:-1])), ends - NEAR_ROWS)
    begins = np.minimum(begins, np.maximum(ends - 1, 0))
    level = np.array([median(loss[a : max(b, a + 1)]) for a, b in zip(begins, ends, strict=True)])
    ratio = values / level
    place = next(
        (
            k
            for k in range(FEWEST_BEFORE, len(values) - FEWEST_AFTER + 1)
            if values[k] < (1 - FELL / 2) * values[k - 1] and _drops(values, level, ratio, k)
        ),
        None,
    )
    if place is None:
        return None
    k = place
    before, now = float(values[k - 1]), median(values[k : k + FEWEST_AFTER])
    noise = _noise(values[:k])
    return finding_at(
        record,
        detector="held-out-drop",
        kind="too-good",
        signal="val_loss",
        severity="warning",
        row=int(checks[k + FEWEST_AFTER - 1]),
        onset_row=int(checks[k]),
        peak_row=int(checks[k + int(np.argmin(values[k:]))]),
        value=now,
        expected=before,
        score=min(99.0, (before - now) / max(noise, 1e-12)),
        direction="down",
        closed=True,
        text=(
            f"validation loss {before:.4g} → {values[k]:.4g} between two evaluations, far below the"
            f" training loss of {level[k]:.4g}, which does not follow (in hindsight)"
        ),
    )


def _drops(values: Floats, level: Floats, ratio: Floats, k: int) -> bool:
    """Whether validation leaves the training loss downwards at evaluation k, for good."""
    old = max(0, k - RECENT)
    # In one evaluation or in two: it may have been under way at the first.
    steps = np.abs(np.diff(values[old:k]))
    fell = values[k - 1] - values[k : k + 2].min()
    if fell < max(FELL * values[k - 1], SIGMA * _noise(values[:k]), USUAL * float(steps.max())):
        return False
    then = median(ratio[k - FEWEST_BEFORE + 1 : k])
    after = float(ratio[k + 1 :].max())
    if then < LEAST_BEFORE or after > min(MOST_AFTER, (1 - RATIO_FELL) * then):
        return False
    followed = math.log(level[k - 1] / median(level[k : k + FEWEST_AFTER]))
    return followed < SHARED * math.log(values[k - 1] / values[k : k + 2].min())


def _noise(values: Floats) -> float:
    if len(values) < 5:
        return difference_sigma(np.diff(values))
    return difference_sigma(np.diff(values, 2), order=2)
