"""Unmistakable signs: facts in a log that point to one cause and rarely to another.

A loss that was never finite, data that a resume fed again, a loss constant at the logarithm of the
number of classes. Each is computed from the record; `plain_causes` says what it means.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.stand_in import is_distance
from trimtab.diagnosis.history import EarlierIncidents
from trimtab.incidents import Incident
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma
from trimtab.signals.spans import (
    Span,
    finite_values,
    first_finite,
    has_finite,
    logs_any,
    lowest,
)

__all__ = ["plain_signs"]

Floats = NDArray[np.float64]

_COUNTERS = ("samples_seen", "tokens_seen")
_VOCABULARIES = ("vocab_size", "padded_vocab_size", "num_classes")
_FLAT_SHARE = 0.01
"""Spread of a loss that stays constant, as a share of it. Ours."""
_NEAR_STATED = 0.005
_NEAR_WHOLE = 0.02
"""How near the exponential of the loss lies to a whole number of classes."""
_MOST_COUNTED = 2_000
"""Above it every loss of four digits is the logarithm of some whole number."""
_NEAR_START = 0.03
_SUMMED_ROWS = 24
_SUMMED_RISES = 0.85
_SUMMED_GROWTH = 4.0
"""Rows, share of them that rise, and least growth of norms of gradients that add up. Ours."""
_FIRST_UPDATES = 2
"""A first row up to here was made by the weights as they were at first, or nearly. Ours."""
_ANEW_ROWS, _ALIKE, _FELL = 64, 0.06, 0.2
"""Rows that are laid over the first ones, and how far the logarithms of their losses may be apart, of
which the first come down by so much, and lie as far above those before the onset. Ours."""
_LEARNED = 0.4
"""Of the first loss, that one row at least of a run came to that had learned. Ours."""
_LIVE_ROWS, _LIVE_SHARE = 8, 0.9
"""Gradient norms beside a loss that is never finite, and their share that must be. Ours."""
_ORDER_ROWS = 4096
_LEAST_PASSES = 3.0
_LEAST_PERIOD = 16
_ORDERED = 0.6
"""Correlation of the loss with that of the pass before, and of the row before. Ours."""
_LEARNT = 0.8
"""A loss below this share of its present level shows that the run had learned. Ours."""


def plain_signs(
    record: RunRecord,
    incident: Incident,
    *,
    before: Sequence[Span],
    during: Span,
    earlier: Sequence[Incident],
) -> dict[str, object]:
    """Return the plain signs of an incident, by the names that they have among the features.

    Args:
        record: What the run logged.
        incident: The episode.
        before: Spans of rows of its lineage that led to the onset.
        during: The span of rows from the onset to the end.
        earlier: Incidents that came before it.
    """
    loss, classes = _uniform_classes(record, before, during, incident) or (None, None)
    never = _never_finite(record, before, during, incident)
    live = never and _live(record, during)
    return {
        "rows_after": _clean_rows_after(record, incident),
        "never_finite": never,
        "began_anew": _began_anew(record, incident),
        "live_norms": live,
        "updates_before": _updates_before(record) if never and not live else None,
        "fed_again_from": _fed_again(record, incident),
        "had_learned": _had_learned(record, before),
        "uniform_loss": loss,
        "uniform_over": classes,
        "blow_up": _blow_up(incident, earlier),
        "summed_norms": _summed_norms(record, incident),
        "pass_order": _pass_order(record, incident),
    }


def _summed_norms(record: RunRecord, incident: Incident) -> int | None:
    """Return over how many first rows the grad norm grows with their number; None: it does not.

    Norms of single batches go up and down; what is never set to zero only grows, at most n times
    the first norms in n rows, and not as what explodes does, most of it at the end.
    """
    own = record.attempts[record.attempt_index(incident.attempt)]
    column = record.columns.get("grad_norm")
    if column is None or own.parent is not None:
        return None
    norms = column.values[column.finite_rows(slice(own.first_row, own.end_row))[:_SUMMED_ROWS]]
    if len(norms) < _SUMMED_ROWS or norms[0] <= 0:
        return None
    rises = float((np.diff(norms) > 0).mean())
    grew = float(norms[-1] / norms[0])
    steady = norms[_SUMMED_ROWS // 2] >= 0.4 * norms[-1]
    sums = rises >= _SUMMED_RISES and _SUMMED_GROWTH <= grew <= 2 * _SUMMED_ROWS
    return _SUMMED_ROWS if sums and steady else None


def _pass_order(record: RunRecord, incident: Incident) -> float | None:
    """Return how like the losses of one pass are those of the pass before; None: unlike, or rough.

    Batches in one order make losses come again; where they also are like their neighbors, what
    lies beside each other is alike: sorted by label, source or length.
    """
    own = record.attempts[record.attempt_index(incident.attempt)]
    loss, epochs = record.columns.get("loss"), record.columns.get("epochs_seen")
    if loss is None or epochs is None:
        return None
    rows = epochs.finite_rows(loss.finite_rows(slice(own.first_row, own.end_row)))[-_ORDER_ROWS:]
    passes = float(np.ptp(epochs.values[rows])) if len(rows) else 0.0
    period = round((len(rows) - 1) / passes) if passes >= _LEAST_PASSES else 0
    if period < _LEAST_PERIOD:
        return None
    losses = np.log(np.maximum(loss.values[rows], 1e-30))
    level = np.convolve(losses, np.full(period, 1 / period), "valid")
    r = losses[period // 2 :][: len(level)] - level
    if len(r) <= 2 * period or not r.std() > 0:
        return None
    again, beside = (float(np.corrcoef(r[:-k], r[k:])[0, 1]) for k in (period, 1))
    return again if min(again, beside) >= _ORDERED else None


def _blow_up(incident: Incident, earlier: Sequence[Incident]) -> float | None:
    alarms = EarlierIncidents.of(earlier).alarms_by_attempt().get(incident.attempt, ())
    steps = (
        other.first_step
        for other in reversed(alarms)
        if other.severity == "critical" and other.onset_row < incident.onset_row
    )
    return next(steps, None)


def _never_finite(
    record: RunRecord, before: Sequence[Span], during: Span, incident: Incident
) -> bool:
    """Tell whether no finite loss or norm was logged up to the end of the incident."""
    if "non-finite" not in (incident.kind, *incident.also):
        return False
    spans = (*before, during)
    # The loss decides where it is logged: norms of a sound fp16 run may begin with NaN.
    for name in ("loss", "grad_norm"):
        if logs_any(record, name, spans):
            return not has_finite(record, name, spans)
    return False


def _began_anew(record: RunRecord, incident: Incident) -> bool:
    """Whether a loss that is a distance repeats from the onset on what it did in its first rows.

    Row by row, as the losses of two models do that learn the same from fresh weights.
    """
    column = record.columns.get("loss")
    if column is None or not is_distance(record):
        return False
    first = column.finite_rows(slice(0, incident.onset_row))[:_ANEW_ROWS]
    stop = record.attempts[record.attempt_index(incident.attempt)].end_row
    again = column.finite_rows(
        slice(incident.onset_row, min(stop, incident.onset_row + _ANEW_ROWS))
    )
    num = min(len(first), len(again))
    if num < _ANEW_ROWS // 4:
        return False
    x, y = column.values[first[:num]], column.values[again[:num]]
    before = column.values[column.finite_rows(slice(0, incident.onset_row))[-_ANEW_ROWS // 4 :]]
    if min(x.min(), y.min(), before.min()) <= 0:
        return False
    apart = np.abs(np.log(y) - np.log(x))
    fell = np.log(np.median(x[: num // 8])) - np.log(np.median(x[-num // 4 :]))
    rose = np.log(np.median(y[: num // 8])) - np.log(np.median(before))
    return bool(np.median(apart) <= _ALIKE and fell >= _FELL and rose >= _FELL)


def _had_learned(record: RunRecord, before: Sequence[Span]) -> bool:
    """Whether a loss that is a distance had come down far before the onset."""
    start = first_finite(record, "loss", before)
    if start is None or start <= 0 or not is_distance(record):
        return False
    least = lowest(record, "loss", before)
    return least is not None and 0 <= least <= _LEARNED * start


def _live(record: RunRecord, during: Span) -> bool:
    """Whether gradients stay finite while the loss is not: then the weights are, and are not lost."""
    column = record.columns.get("grad_norm")
    if column is None:
        return False
    rows = slice(*during)
    norms = column.values[rows][column.present[rows]]
    sound = np.isfinite(norms) & (norms > 0)
    return len(norms) >= _LIVE_ROWS and bool(sound.mean() >= _LIVE_SHARE)


def _updates_before(record: RunRecord) -> float | None:
    """Return how many updates lie before the first row of the log; None: next to none, not known.

    A log of one row in hundreds of batches begins with numbers that these have made. Where the
    axis counts no updates there are many, if its first row lies well within it.
    """
    first = float(record.step[0])
    if record.axis == "row":
        return None
    if record.axis == "step":
        return first if first > _FIRST_UPDATES else None
    return math.inf if first > 0 else None


def _fed_again(record: RunRecord, incident: Incident) -> float | None:
    """Return the step from which a resume fed data again; None where nothing shows that it did."""
    own = record.attempts[record.attempt_index(incident.attempt)]
    said = (f for f in incident.findings if f.detector.startswith("repeats"))
    again = any(f.signal not in _COUNTERS or f.value < f.expected for f in said)  # else: left out
    if own.parent is None or not again:
        return None
    return float(record.step[own.first_row]) if own.parent_step is None else own.parent_step


def _clean_rows_after(record: RunRecord, incident: Incident) -> int | None:
    """Return how many rows of the attempt follow the end of an incident; None while it lasts."""
    if incident.end_row is None:
        return None
    own = record.attempts[record.attempt_index(incident.attempt)]
    return max(0, own.end_row - 1 - incident.end_row)


def _uniform_classes(
    record: RunRecord, before: Sequence[Span], during: Span, incident: Incident
) -> tuple[float, int] | None:
    """Return (loss, number of classes) where a loss stays constant at their logarithm; else None.

    The number is the one that the log states; or a whole one that the loss matches to 0.02 classes;
    or, of more classes than a loss can tell apart, that at which the run began. Without a stated
    number the run must have learned before: a loss can be constant anywhere.

    NaN and Inf are left out. Cost: O(m) in the rows of the incident.
    """
    loss = finite_values(record, "loss", *during) if "loss" in incident.signals else np.zeros(0)
    return _uniform(record, before, loss) or _uniform(record, before, _at_ends(record, during))


def _at_ends(record: RunRecord, during: Span) -> Floats:
    """Return the losses of rows with a validation loss: of a captured progress bar, whole epochs.

    Its other rows are means over the first batches of an epoch, which scatter.
    """
    loss, val = record.columns.get("loss"), record.columns.get("val_loss")
    if loss is None or val is None:
        return np.zeros(0)
    return loss.values[loss.finite_rows(val.finite_rows(slice(*during)))]


def _uniform(record: RunRecord, before: Sequence[Span], loss: Floats) -> tuple[float, int] | None:
    if len(loss) < 8:
        return None
    level = float(np.median(loss))
    spread = mad_sigma(loss, center=level)
    # Below ln 2 = 0.69 there is no choice of two; 20 is the logarithm of 485 million classes.
    if not 0.5 < level < 20 or spread > _FLAT_SHARE * level:
        return None
    stated = next((record.facts[k] for k in _VOCABULARIES if record.facts.get(k)), None)
    # A stated size decides alone: a guess beside it could only contradict the log.
    if stated is not None and stated > 1:
        near = abs(level - math.log(stated)) <= _NEAR_STATED * level
        return (level, round(stated)) if near else None
    classes = math.exp(level)
    whole = max(2, round(classes))
    least, start = lowest(record, "loss", before), first_finite(record, "loss", before)
    if least is None or start is None or least > _LEARNT * level:
        return None
    counted = classes <= _MOST_COUNTED and abs(classes - whole) <= _NEAR_WHOLE
    began = classes > _MOST_COUNTED and abs(start - level) <= _NEAR_START * level
    return (level, whole) if counted or began else None
