"""Signs on other signals than the loss: which are alarms of their own, which lead up to trouble.

A loss that is calm proves little. Largest attention logits that grow tenfold, an update norm that
is four times what it was, an entropy that halves are the early signature of runs that were lost
thousands of steps later (Marin 32B; Wortsman et al. 2023, arXiv:2309.14322). A change of such a
signal is an alarm where it lasts, is far outside the noise and at least doubles the signal. The
norms of hidden states and updates rise in any warm-up: with the rate, while the loss falls, it is a note.

A sign that came before trouble is not therefore its first sign: a healthy fp16 scaler halves every
now and then, and some halving lies before any spike. It leads up to the trouble only where it left
what the signal did before, and where signs of its kind are so rare in this run that one so near
would be a coincidence.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.signals.phases import phases_of
from trimtab.signals.robust import mad_sigma
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["calm_sign", "is_beyond_chance"]

Floats = NDArray[np.float64]

_LEVELS = ("shift", "drift", "unrecovered-spike")
"""Kinds of a level that changed and stayed."""
# Judged by rules of their own, which know when their changes matter.
_OWN_RULES = ("loss", "grad_norm", "loss_scale", "clipped", "lr", "step_time_s", "throughput")
SIGN_SIGMA = 12.0
"""Score of a lasting change that is an alarm although the loss is calm."""
SIGN_FACTOR = 2.0
"""Least factor of such a change; of a linear signal, its level before or more."""
NEAR_ROWS = 64
"""A sign this close to the trouble belongs to it."""
PAST_ROWS = 4096
MIN_PAST_ROWS = 64
CHANCE = 0.1
"""Largest chance at which a sign is still no coincidence."""
_WITH_THE_RATE = ("activation_norm", "update_norm", "update_ratio")
"""Norms that rise with the rate in any warm-up (see `signals.phases`)."""
_FEWEST_LOSSES, _FALLS_SIGMA = 16, 3.0
"""Losses before the onset and at the end of the warm-up, and standard errors of their medians by
which they fall. Ours."""
OCTAVES = 0.5
"""How far beyond its own past a loss scale must be: it moves in whole octaves."""


def calm_sign(f: Finding, record: RunRecord) -> Finding:
    """Return a lasting, large change of a signal other than the loss as an alarm; others as is."""
    if f.severity != "info" or f.kind not in _LEVELS or f.signal in _OWN_RULES:
        return f
    signal = SIGNAL_BY_NAME.get(f.signal)
    if signal is None or f.end_row is not None or f.score < SIGN_SIGMA:
        return f
    value = _level_after(f, record)
    if signal.scale == "log":
        large = f.expected > 0 and value > 0
        large = large and abs(math.log(value / f.expected)) >= math.log(SIGN_FACTOR)
    else:
        large = abs(value - f.expected) >= (1 - 1 / SIGN_FACTOR) * abs(f.expected) > 0
    if not large or not _stays(f, record) or _warms_up(f, record):
        return f
    text = f"{f.text}; the loss does not show it"
    return replace(f, kind="signal-abnormal", severity="warning", text=text)


def _warms_up(f: Finding, record: RunRecord) -> bool:
    """Whether a norm rises with a rate that rises from the attempt's first row, as the loss falls.

    The loss is judged by as many rows at the end of the warm-up, or of the record, as before the
    onset.
    """
    if f.signal not in _WITH_THE_RATE or f.direction != "up" or "lr" not in record.columns:
        return False
    rows = record.rows_of(int(record.attempt[f.onset_row]))
    kept = record.columns["lr"].finite_rows(slice(rows.start, rows.stop))
    phase = next(iter(phases_of(record.columns["lr"].values[kept])), None)
    if phase is None or phase.name != "warm-up" or f.onset_row > kept[phase.stop - 1]:
        return False
    before = _finite(record, "loss", max(rows.start, f.onset_row - NEAR_ROWS), f.onset_row)
    stop = max(int(kept[phase.stop - 1]) + 1, f.onset_row + _FEWEST_LOSSES)
    after = _finite(record, "loss", max(f.onset_row, stop - NEAR_ROWS), stop)
    if min(len(before), len(after)) < _FEWEST_LOSSES:
        return False
    old, new = (x[-_FEWEST_LOSSES:] for x in (before, after))
    error = 1.25 * math.hypot(mad_sigma(old), mad_sigma(new)) / math.sqrt(_FEWEST_LOSSES)
    return float(np.median(old) - np.median(new)) > _FALLS_SIGMA * error


def _level_after(f: Finding, record: RunRecord) -> float:
    """Return what the signal changed to: a row-wise finding knows its highest row only."""
    if f.grain_rows > 1:
        return f.value
    stop = record.rows_of(int(record.attempt[f.onset_row])).stop
    after = _finite(record, f.signal, f.onset_row, min(stop, f.onset_row + NEAR_ROWS))
    return float(np.median(after)) if len(after) else f.value


def _stays(f: Finding, record: RunRecord) -> bool:
    """Whether the last rows of the attempt are still beyond half of the change."""
    rows = record.rows_of(int(record.attempt[f.onset_row]))
    last = _finite(record, f.signal, max(f.onset_row, rows.stop - NEAR_ROWS), rows.stop)
    middle = (f.expected + f.value) / 2
    if not len(last):
        return False
    level = float(np.median(last))
    return level < middle if f.direction == "down" else level > middle


def is_beyond_chance(
    f: Finding, around: Sequence[Finding], onset_row: int, record: RunRecord
) -> bool:
    """Return whether a sign before an onset is more than what its signal does all the time.

    Args:
        f: The sign, on another signal than the loss.
        around: All findings of its attempt.
        onset_row: Where the trouble began.
        record: What the run logged.
    """
    distance = onset_row - f.onset_row
    if distance <= NEAR_ROWS or f.kind == "signal-abnormal":
        return True
    first = record.attempts[int(record.attempt[f.onset_row])].first_row
    if f.onset_row - first < MIN_PAST_ROWS:
        return True
    # A drift is measured by its detector against its own past already; a single change is not.
    same = [g for g in around if g.signal == f.signal and g.direction == f.direction]
    others = {g.onset_row for g in same if g.onset_row < f.onset_row - NEAR_ROWS}
    chance = 1.0 - math.exp(-len(others) * distance / (onset_row - first))
    return chance <= CHANCE and _left_its_past(f, first, record)


def _left_its_past(f: Finding, first_row: int, record: RunRecord) -> bool:
    """Whether the change goes beyond what the signal did in the rows before it."""
    begin = max(first_row, f.onset_row - PAST_ROWS)
    past = _finite(record, f.signal, begin, f.onset_row)
    past = past[past > 0]
    if len(past) < MIN_PAST_ROWS or f.value <= 0:
        return True
    margin = 2.0**OCTAVES if f.signal == "loss_scale" else 1.0
    if f.direction == "down":
        return f.value * margin < float(np.quantile(past, 0.01))
    return f.value > float(np.quantile(past, 0.99)) * margin


def _finite(record: RunRecord, name: str, first: int, stop: int) -> Floats:
    if name not in record.columns:
        return np.zeros(0)
    values = record.columns[name].values[first:stop]
    return values[np.isfinite(values)]
