"""Held-out scores that sink from their best while training goes on: overfitting, seen by a score.

A log may hold no loss on held-out data, or one that says little of what is scored. With y the scores
of one attempt, turned so that up is better, and s the median of each with its two neighbours:

    best   the highest s before the last `LAST` of them, and its place k
    now    median of the last `LAST` of them
    lost   best - now

is a finding where `lost` is `SHARE` of the size of the best (of an error: of the error), and
`BEYOND` times every earlier loss that a new best followed, where the scores since k follow each
other downwards by Kendall's test while `lost` is far above its error by the noise of the evaluations
(`SIGMA_AND_TREND`), none of the last ones is back at the level, and no single step holds `JUMP` of
what is lost: nobody overfits between two evaluations. Scores that wander lie as far about a line as
they have lost (`STRAIGHT`). And the training loss, or the score on training data where that alone is
logged, must have gone on since k: what goes wrong as a whole is told by its own rules.

Not told of what is to be unlearned or made harder, while the rate lies above that of the best, or
where another held-out score gains as much. A score on the data of training is held against the
training loss alone, and is no overfitting. Judged in hindsight, attempt by attempt; where an agent is
rewarded, its rewards say more.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.by_design import unless_designed
from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import OTHER, number, signal_label
from trimtab.trend import kendall_score
from trimtab.vocabulary import canonical

__all__ = ["with_score_sinks"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

FEWEST, LAST_SHARE, FEWEST_LAST = 10, 5, 3
"""Evaluations; the last fifth, three at least. All bars are ours."""
SHARE, BEYOND = 0.1, 1.5
SIGMA_AND_TREND = ((5.0, -3.0), (3.0, -4.0))
"""What is plain in the noise needs less of a trend."""
STRAIGHT, HIGHER, ON_ERRORS = 3.5, 1.5, 2.0
"""Times the spread about a line, and times the rate at the best, up to which nothing is told yet; and
errors of the difference of two levels of the training loss, beyond which it goes on."""
JUMP = 0.7
"""Of what is lost, between one evaluation and the next: then the evaluation has changed."""
MOST_CHECKS, MOST_COMPARED = 4096, 200
NEAR = 2
"""Evaluations on either side of the best one, of whose rows the level of training is taken."""
OF_AN_AGENT = ("reward", "policy_entropy", "completion_length", "policy_kl", "advantage_std")


_TRAINED = ("accuracy", "token_accuracy")
SCORES = {"eval_score": "overfitting", "eval_error": "overfitting"} | dict.fromkeys(
    _TRAINED, "signal-abnormal"
)
"""Kind of what is told by the score that sinks: one of the data of training parts from its loss."""
LATER = ("sign-score-lost", "sign-error-back")
"""Detectors that see row by row, and late, that a score is lost."""


def with_score_sinks(record: RunRecord, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings with those of scores that sink, in place of what was seen of it later."""
    known = {f.signal for f in findings if f.severity != "info" and f.signal in _TRAINED}
    sinks = tuple(f for f in _findings(record) if f.signal not in known)
    told = [
        f
        for f in findings
        if f.detector not in LATER
        or not any(
            s.signal == f.signal and s.onset_row <= f.onset_row and s.severity != "info"
            for s in sinks
        )
    ]
    return (*told, *sinks)


def _findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the evaluation of each attempt after which a held-out score sinks to the end."""
    if any(name in record.columns for name in OF_AN_AGENT):
        return ()
    found: list[Finding | None] = []
    for name in SCORES:
        if name in record.columns:
            spans = map(record.rows_of, range(len(record.attempts)))
            found += [_of(record, name, span) for span in spans]
    return tuple(replace(f, in_hindsight=True) for f in found if f is not None)


def _of(record: RunRecord, name: str, span: slice) -> Finding | None:
    rows = record.columns[name].finite_rows(span)
    rows = rows[:: len(rows) // MOST_CHECKS + 1]
    values = record.columns[name].values[rows]
    if len(rows) < FEWEST or not np.ptp(values):
        return None
    y = -values if name == "eval_error" else values
    smooth = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    last = max(len(y) // LAST_SHARE, FEWEST_LAST)
    # smooth[i] is that of y[i + 1].
    k = int(np.argmax(smooth[: len(y) - last - 1])) + 1
    best, now = float(smooth[k - 1]), median(y[-last:])
    lost = best - now
    sigma = difference_sigma(np.diff(y))
    since = y[k:]
    error = sigma * (1 / 3 + 1 / last) ** 0.5
    trend = kendall_score(since[:: len(since) // MOST_COMPARED + 1])
    if _for_a_while(record, rows[k:]) or lost < STRAIGHT * _about_a_line(since):
        return None
    if not (
        lost >= SHARE * abs(best)
        and any(lost >= bar * error and trend <= way for bar, way in SIGMA_AND_TREND)
        and lost >= BEYOND * _wandered(smooth[:k])
        and y[-last:].max() < best - lost / 3
        and _steepest(y[max(k - NEAR, 0) :]) < JUMP * lost
        and _goes_on(record, name, rows, k, last)
    ):
        return None
    was, is_now = abs(best), abs(now)
    told = finding_at(
        record,
        detector="sign-accuracy-sinks" if name in _TRAINED else "score-sinks",
        kind=SCORES[name],
        signal=name,
        severity="warning",
        row=int(rows[-last]),
        onset_row=int(rows[min(k + 1, len(rows) - 1)]),
        peak_row=int(rows[k + int(np.argmin(since))]),
        value=float(values[-1]),
        expected=was,
        score=min(99.0, lost / max(sigma, 1e-12)),
        direction="up" if name == "eval_error" else "down",
        closed=False,
        text=(
            f"{signal_label(name)} has gone from {number(was)} at its best to {number(is_now)} in the"
            f" last {last} of {len(y)} {'rows' if name in _TRAINED else 'evaluations'}, while training"
            " goes on (in hindsight)"
        ),
    )
    return unless_designed(record, told, rows[k:], held_out=name not in _TRAINED)


def _for_a_while(record: RunRecord, since: Rows) -> bool:
    """Whether the score may sink for a while: the rate has risen, or another score gains."""
    rate = record.columns.get("lr")
    if rate is not None:
        near, late = (rate.values[r][rate.present[r]] for r in (since[:NEAR], since[-NEAR:]))
        if len(near) and len(late) and late.max() > HIGHER * near.max():
            return True
    for other, column in record.columns.items():
        if other.startswith(OTHER) and canonical(other.removeprefix(OTHER)) == "eval_score":
            y = column.values[since][column.present[since]]
            y = y[np.isfinite(y)]
            if len(y) >= FEWEST_LAST and median(y[-FEWEST_LAST:]) > (1 + SHARE) * median(
                y[:FEWEST_LAST]
            ):
                return True
    return False


def _about_a_line(y: Floats) -> float:
    """Return the spread of scores about a straight line: what wanders may sink for a while."""
    at = np.arange(len(y))
    slope, start = np.polyfit(at, y, 1)
    return float(np.std(y - slope * at - start))


def _steepest(y: Floats) -> float:
    """Return the largest fall between the medians of three values and of the three behind them."""
    three = np.median(np.lib.stride_tricks.sliding_window_view(y, 3), axis=1)
    return float((three[:-3] - three[3:]).max(initial=0.0))


def _wandered(smooth: Floats) -> float:
    """Return the largest loss before the best that a new best followed."""
    return float((np.maximum.accumulate(smooth) - smooth).max())


def _goes_on(record: RunRecord, score: str, rows: Rows, k: int, last: int) -> bool:
    """Whether training came further between the best evaluation and the last ones."""
    for name, way in (("loss", -1.0), ("accuracy", 1.0)):
        column = record.columns.get(name)
        if column is None or name == score:
            continue
        logged = column.finite_rows(slice(int(rows[0]), int(rows[-1]) + 1))
        then = _between(column.values, logged, rows[max(k - NEAR, 0)], rows[k + NEAR])
        now = _between(column.values, logged, rows[-last], rows[-1])
        if len(then) and len(now):
            noise = difference_sigma(np.diff(column.values[logged]))
            error = noise * (1 / len(then) + 1 / len(now)) ** 0.5
            return bool(way * (median(now) - median(then)) > ON_ERRORS * error)
    return False


def _between(values: Floats, logged: Rows, first: int, last: int) -> Floats:
    return values[logged[(logged >= first) & (logged <= last)]]
