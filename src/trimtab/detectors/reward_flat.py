"""A reward that never leaves its first level, beside a sign that nothing is learned.

A flat reward alone proves nothing: an agent may find its first success late, or go on from one that
has learned. It is one where the last quarter, and no eighth before, lies above the first rows by
more than the noise of the first quarter, and

* the critic explains nothing of the returns: the share of their variance stays at 0, or
* the loss has no floor and runs off below zero: what is minimized is what a critic believes, or
* exploration was given up: the share of random actions has come down to half, and not even the
  mean of the last quarter of the rows is above that of the first by more than twice its error.

Rewards of which half are one and the same number are sparse and left alone. In hindsight, since
only the end of the log says that learning has not come.
"""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma
from trimtab.text import number

__all__ = ["gained", "reward_flat_findings"]

Floats = NDArray[np.float64]

FEWEST_ROWS = 24
FEWEST_BELIEVED_ROWS = 48
"""Where the sign is a loss that runs off: it does so at first in sound runs, too. Ours."""
FEWEST_EXPLORED_ROWS = 100
LEAST_RANDOM = 0.35
GIVEN_UP = 0.5
"""Of the share of random actions at first, that is left at the end. Ours."""
EIGHTHS = 8
FIRST_ROWS = 3
FLAT_SIGMA, FAR_SIGMA = 2.0, 4.0
"""Most that the last quarter, and any eighth, lies above the first rows. Ours."""
EXPLAINED = 0.01
"""Share of the variance that is nothing; its largest of late may be five times as much. Ours."""
RUN_OFF = 10.0
"""Times the size of its first rows. Ours."""
SPARSE_SHARE = 0.5


def reward_flat_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return a warning for each attempt from fresh weights whose reward never leaves its level."""
    column = record.columns.get("reward")
    if column is None:
        return ()
    found: list[Finding] = []
    for index, attempt in enumerate(record.attempts):
        rows = column.finite_rows(record.rows_of(index))
        if attempt.parent is not None or len(rows) < FEWEST_ROWS:
            continue
        rewards = column.values[rows]
        first, last, flat = _level(rewards)
        why = _why(record, record.rows_of(index), rewards) if flat else ""
        if not why:
            continue
        found.append(
            finding_at(
                record,
                detector="sign-reward-flat",
                kind="never-learns",
                signal="reward",
                severity="warning",
                row=int(rows[-1]),
                onset_row=int(rows[0]),
                value=last,
                expected=first,
                score=min(99.0, 6.0 * len(rows) / FEWEST_ROWS),
                direction="down",
                closed=True,
                text=(
                    f"the reward has not left its first level in {len(rows)} rows,"
                    f" {number(first)} → {number(last)} within the noise of its rows, and {why}"
                ),
            )
        )
    return tuple(found)


def _level(rewards: Floats) -> tuple[float, float, bool]:
    """Return the first level, the last, and whether the course is flat and not sparse."""
    quarter = rewards[: max(len(rewards) // 4, FIRST_ROWS)]
    # Some learn within the first rows: the lower of two ways to see where they began.
    first = min(
        float(np.median(rewards[:FIRST_ROWS])),
        float(np.median(rewards[: max(FIRST_ROWS, len(rewards) // 32)])),
    )
    last = float(np.median(rewards[-(len(rewards) // 4) :]))
    noise = max(mad_sigma(quarter), float(np.std(quarter)))
    highest = max(float(np.median(part)) for part in np.array_split(rewards, EIGHTHS))
    _, counts = np.unique(rewards, return_counts=True)
    sparse = int(counts.max()) >= SPARSE_SHARE * len(rewards)
    flat = last - first <= FLAT_SIGMA * noise and highest - first <= FAR_SIGMA * noise
    return first, last, flat and not sparse


def _why(record: RunRecord, span: slice, rewards: Floats) -> str:
    explained = _finite(record, "explained_variance", span)
    late = np.abs(explained[len(explained) // 2 :])
    enough = len(explained) >= FEWEST_ROWS // 2
    if enough and float(np.median(late)) <= EXPLAINED and float(late.max()) <= 5 * EXPLAINED:
        return "the critic explains nothing of the returns"
    random = _finite(record, "exploration", span)
    if len(rewards) >= FEWEST_EXPLORED_ROWS and len(random) >= FEWEST_EXPLORED_ROWS:
        before, now = float(np.median(random[:FIRST_ROWS])), float(random[-1])
        explores = LEAST_RANDOM <= before <= 1  # below it may be the clip of a ratio
        if explores and 0 <= now <= GIVEN_UP * before and not gained(rewards):
            return f"exploration came down {number(before)} → {number(now)} with nothing gained"
    loss = _finite(record, "loss", span)
    if min(len(loss), len(rewards)) < FEWEST_BELIEVED_ROWS:
        return ""
    level = [float(np.median(part)) for part in np.array_split(loss, EIGHTHS)]
    first = float(np.abs(loss[:FIRST_ROWS]).max())
    if level[-1] <= -RUN_OFF * first and level[EIGHTHS // 2] > level[-1]:
        return f"the loss runs off below zero to {number(level[-1])}"
    return ""


def gained(rewards: Floats) -> bool:
    """Return whether the mean of the last quarter is above that of the first by twice its error.

    Or above the very first rows by twice what its rows differ by: some learn at once.

    Args:
        rewards: float64 [n >= 4], finite.
    """
    quarter = len(rewards) // 4
    # By the largest, so that no square overflows.
    rewards = rewards / (float(np.abs(rewards).max()) or 1.0)
    first, last = rewards[:quarter], rewards[-quarter:]
    error = math.sqrt((float(np.var(first)) + float(np.var(last))) / quarter)
    at_once = float(last.mean()) - float(rewards[:FIRST_ROWS].max()) > 2 * float(last.std())
    return float(last.mean() - first.mean()) > 2 * error or (at_once and bool(last.std()))


def _finite(record: RunRecord, name: str, span: slice) -> Floats:
    column = record.columns.get(name)
    return np.zeros(0) if column is None else column.values[column.finite_rows(span)]
