"""Held-out numbers that stand still, or at their worst, while the training loss does not.

**Still**: an evaluation of weights that train gives another number each time, if only in its last
digits. A loss that repeats itself digit for digit, to the end, `STILL` times and four times longer
than ever before in the run, is of other weights: a copy that is never brought up to date, a result
that is read again, a model that no longer trains. None is 0, or a loss that has come to a tenth of
its first; one that had moved by less than `MOVED` printed units, or has fewer than `DIGITS` of them;
one beside a logged rate next to 0; and one that trackers fill in from row to row. Scores of a small
set repeat themselves.

**At its worst**: an error, a share, above `1 - LOWEST` in each of `AT_WORST` evaluations, while the
training loss comes down to `LEARNED` of its start, or in `MANY` whatever it does: what is scored is
not what is trained, or nothing is. So is a
score, a share of at most `LOW_SCORE`, whose later half is at most `GAINED` times its first
evaluations, or which moves by `STIFF` of its level while the loss comes down by a tenth; one that begins higher may be of a model that was trained before. And so is a score
that is next to 0 in each of `FEW_NOTHING` evaluations, where the loss had come down as far at the
second of them.

**At nothing**: a validation loss whose later half, `FEWEST` evaluations or more, is a thousandth of
its first and half of it not more than its last printed digit, beside a training loss that is as
low. Hardly any task is solved so on data that nothing is learned from: what is asked for stands in
what is given, or in the training data.

**A score that stands**: an accuracy that is the same in every digit in `STANDS` epochs, all there are,
between `BETWEEN`, while the training loss comes down by a tenth and more: one answer is given to
everything, or it is counted once.

Attempt by attempt; in hindsight.
"""

import re

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import signal_label

__all__ = ["held_out_still_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

STILL = 5
AGAIN = 4
"""Times the longest repetition before: trackers fill gaps with the last value. As in `frozen`."""
DIGITS = 50.0
"""Printed units that a value comes to at least: 0.1 in steps of 0.1 is rounding."""
MOST_DIGITS = 8
SOLVED = 0.1
"""Of the first evaluation: below that nothing is left to move."""
NOTHING = 1e-6
"""Of the highest rate. As in `rate_ended`."""
MOST_FILLED, MOVED = 2, 5.0
"""Longest repetition before; and printed units that evaluations moved by until then."""
FEWEST, NO_LOSS, LEAST_LOSS = 4, 1e-3, 2.0
SHARES = frozenset(("acc", "acc1", "accuracy", "top", "top1", "iou", "miou"))
"""Words of scores that are shares of what is right: of a ranking a few percent may be good."""
OVERLAPS = frozenset(("dice", "f1", "dsc", "jaccard"))
"""Words of scores that are 0 only where next to nothing is found."""
FEW_NOTHING, FEW_EPOCHS = 4, 10
STANDS, BETWEEN, COMES_DOWN, LEARNT = 12, (0.01, 0.99), (0.9, 0.5), 0.9
"""Rows; shares; and of the first losses, what the last come to at most, above `LEARNT` less."""
FEW_SCORES, LOW_SCORE, FIRST, GAINED, STIFF = 10, 0.35, 5, 1.15, 0.03
MANY = 30
AT_WORST, LOWEST, LEARNED = 20, 0.01, 0.5
MOST_ERROR = 1.5
"""Of an error that is a share; others have no worst. All bars are ours."""


def held_out_still_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return held-out signals that stand still to the end of an attempt, or always at the worst."""
    found: list[Finding] = []
    for name in ("val_loss", "eval_error", "eval_score"):
        column = record.columns.get(name)
        if column is None or "loss" not in record.columns:
            continue
        for index in range(len(record.attempts)):
            span = record.rows_of(index)
            rows = column.finite_rows(span)
            y = column.values[rows]
            if name != "val_loss":
                found += _at_worst(record, name, rows, y, span)
            elif len(rows) >= STILL:
                found += _still(record, rows, y) or _at_nothing(record, rows, y, span)
    for name in ("accuracy", "eval_score"):
        # Other scores may stand at one of few values.
        of_answers = name == "accuracy" or "acc" in record.keys.get(name, "").lower()
        if of_answers and {name, "loss"} <= record.columns.keys():
            spans = map(record.rows_of, range(len(record.attempts)))
            found += [f for span in spans if (f := _score_stands(record, name, span)) is not None]
    return tuple(found)


def _score_stands(record: RunRecord, name: str, span: slice) -> Finding | None:
    column, losses = record.columns[name], record.columns["loss"]
    rows = column.finite_rows(span)
    y, trained = column.values[rows], losses.values[losses.finite_rows(span)]
    if len(y) < STANDS or (y != y[0]).any() or len(trained) < STANDS or record.axis != "epoch":
        return None
    share = y[0] / (100 if y[0] > 1 else 1)
    edge = max(len(trained) // 8, 3)
    if not BETWEEN[0] < share < BETWEEN[1] or not trained.min() > 0:
        return None
    # Two digits are rounding, unless they are those of one answer among a few.
    if abs(100 * share - round(100 * share)) < 1e-6 and abs(1 / share - round(1 / share)) > 1e-6:
        return None
    if median(trained[-edge:]) > COMES_DOWN[bool(share > LEARNT)] * median(trained[:edge]):
        return None
    return finding_at(
        record,
        detector="score-stands",
        kind="frozen-signal",
        signal=name,
        severity="warning",
        row=int(rows[STANDS - 1]),
        onset_row=int(rows[0]),
        value=float(y[0]),
        expected=float(y[0]),
        score=min(99.0, float(len(y))),
        closed=False,
        text=(
            f"accuracy is exactly {y[0]:.6g} in all {len(y)} rows while the training loss comes down:"
            " one answer is given to everything, or it is counted once (in hindsight)"
        ),
    )


def _still(record: RunRecord, rows: Rows, y: Floats) -> list[Finding]:
    edges = np.flatnonzero(np.concatenate(([True], np.diff(y) != 0)))
    lengths = np.diff(np.append(edges, len(y)))
    first, last = int(edges[-1]), float(y[-1])
    before = int(lengths[:-1].max()) if len(edges) > 1 else 1
    # Values that stand in each row until the next are no evaluations, and cannot be counted.
    if lengths[-1] < max(STILL, AGAIN * before) or last == 0 or before > MOST_FILLED:
        return []
    if 0 < last < SOLVED * float(y[0]):
        return []
    # A run that has converged moves by less than it prints.
    moves = np.abs(np.diff(y[max(first - STILL, 0) : first + 1]))
    if len(moves) and median(moves) < MOVED * _unit(y):
        return []
    if _stands(record, rows[first:]):
        return []
    loss = record.columns["loss"]
    trained = loss.values[loss.finite_rows(slice(int(rows[first]), int(rows[-1]) + 1))]
    if abs(last) < DIGITS * _unit(y) or len(trained) < STILL or (trained == trained[0]).all():
        return []
    since = f"for {lengths[-1]} evaluations" if first else "in each evaluation"
    return [
        finding_at(
            record,
            detector="held-out-still",
            kind="frozen-signal",
            signal="val_loss",
            severity="warning",
            row=int(rows[min(first + STILL, len(rows) - 1)]),
            onset_row=int(rows[first]),
            value=last,
            expected=float(y[first - 1]) if first else last,
            score=min(99.0, 6.0 * float(lengths[-1]) / max(STILL, AGAIN * before)),
            closed=False,
            text=(
                f"{signal_label('val_loss')} is {last:.6g} digit for digit {since}, to the end, while the"
                " training loss moves: what is evaluated is not what is trained (in hindsight)"
            ),
        )
    ]


def _at_nothing(record: RunRecord, rows: Rows, y: Floats, span: slice) -> list[Finding]:
    late = y[len(y) // 2 :]
    loss = record.columns["loss"]
    trained = loss.values[loss.finite_rows(span)]
    if len(late) < FEWEST or not y[0] > max(DIGITS * _unit(y), LEAST_LOSS) or len(trained) < FEWEST:
        return []
    if not 0 <= median(late) <= _unit(y) or np.abs(late).max() > NO_LOSS * y[0]:
        return []
    if not abs(median(trained[len(trained) // 2 :])) <= NO_LOSS * trained[0]:
        return []
    first = int(np.argmax(y <= NO_LOSS * y[0]))
    return [
        finding_at(
            record,
            detector="held-out-solved",
            kind="too-good",
            signal="val_loss",
            severity="warning",
            row=int(rows[-1]),
            onset_row=int(rows[first]),
            value=float(y[-1]),
            expected=float(y[0]),
            score=12.0,
            direction="down",
            closed=False,
            text=(
                f"{signal_label('val_loss')} {y[0]:.4g} → {y[first]:.4g} after {first} evaluations, and"
                f" {median(late):.4g} since, as the training loss: does the input hold what is asked"
                " for? (in hindsight)"
            ),
        )
    ]


def _stands(record: RunRecord, rows: Rows) -> bool:
    """Whether the rate is next to 0 over some rows: then weights stand still, and are told so."""
    rate = record.columns.get("lr")
    if rate is None:
        return False
    values = rate.values[rate.finite_rows(slice(int(rows[0]), int(rows[-1]) + 1))]
    highest = rate.values[rate.finite_rows(slice(0, record.num_rows))]
    return bool(len(values) and median(values) <= NOTHING * float(highest.max()))


def _unit(y: Floats) -> float:
    """Return what the last printed digit is worth."""
    for digits in range(MOST_DIGITS):
        if np.allclose(y * 10**digits, np.round(y * 10**digits), rtol=0, atol=1e-6):
            return 10.0**-digits
    return 10.0**-MOST_DIGITS


def _comes(record: RunRecord, name: str, stop: int) -> bool:
    """Whether a later attempt scores."""
    column = record.columns[name]
    later = column.values[column.finite_rows(slice(stop, record.num_rows))]
    return bool((later > LOWEST).any())


def _is_nothing(y: Floats) -> bool:
    return bool(y.min() >= 0 and y.max() <= LOWEST)


def _at_worst(record: RunRecord, name: str, rows: Rows, y: Floats, span: slice) -> list[Finding]:
    if len(rows) < FEW_NOTHING:
        return []
    words = set(re.findall("[a-z]+1?", record.keys.get(name, name).lower()))
    losses = record.columns["loss"]
    until, always, stiff = span.stop, False, False
    # A loss an epoch is few of them, and each of many batches.
    fewest = FEW_SCORES if len(rows) < FEW_EPOCHS else FEW_NOTHING
    if name == "eval_error":
        pinned = len(rows) >= AT_WORST and y.min() >= 1 - LOWEST and y.max() <= MOST_ERROR
        always = len(rows) >= MANY
    elif words & (SHARES | OVERLAPS) and _is_nothing(y) and not _comes(record, name, span.stop):
        # The loss had come down by the first of them, and the score had time to follow.
        seen = np.searchsorted(losses.finite_rows(span), rows, "right") >= fewest
        early = max(1, int(np.argmax(seen))) if seen.any() else len(rows)
        pinned, until = early <= len(rows) // 2, int(rows[min(early, len(rows) - 1)]) + 1
    else:
        share = 100.0 if y.max() > 1 else 1.0
        low = y.min() >= 0 and 0 < float(np.quantile(y, 0.9)) <= LOW_SCORE * share
        level = median(y[len(y) // 2 :])
        pinned = len(rows) >= FEW_SCORES and words & SHARES and low
        pinned = pinned and level <= GAINED * median(y[:FIRST])
        stiff = len(rows) >= AT_WORST and float(np.ptp(y)) <= STIFF * level
    trained = losses.values[losses.finite_rows(slice(span.start, until))]
    if not pinned or len(trained) < fewest or not trained.min() > 0:
        return []
    # One loss an epoch may come down in the first of them.
    start = median(trained[:3]) if len(trained) >= FEW_SCORES else float(trained[0])
    end = median(trained[-(len(trained) // 8 or 1) :])
    if end > (COMES_DOWN[0] if stiff else LEARNED) * start and not always:
        return []
    return [
        finding_at(
            record,
            detector="held-out-worst",
            kind="signal-abnormal",
            signal=name,
            severity="warning",
            row=int(rows[min(AT_WORST, len(rows)) - 1]),
            onset_row=int(rows[0]),
            value=median(y),
            expected=0.0,
            score=12.0,
            direction="up" if name == "eval_error" else "down",
            closed=False,
            text=(
                f"{signal_label(name)} is never better than"
                f" {y.min() if name == 'eval_error' else y.max():.4g}"
                f" in {len(y)} evaluations, while the training loss goes from {start:.4g} to"
                f" {end:.4g}: what is scored is not what is trained (in hindsight)"
            ),
        )
    ]
