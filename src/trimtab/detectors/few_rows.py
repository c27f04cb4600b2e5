"""Logs of few rows, one an epoch mostly: what 8 to 100 values can tell, each by a test of its own.

No streaming detector has a past to compare with there, so each attempt is judged whole, in
hindsight, by the rows of `_TESTS`. With y the values (their logarithm, where all are positive) and
sigma the noise that their second differences show:

* a rise that lasts: three rows in a row, each above all rows before the first of them by
  7 or 10 sigma and by a share of the level. The lowest of n rows of noise and the lowest of
  any three that follow lie some 4 sigma apart. Of more than 30 rows also one of eight rows, by less,
  that is over: work that was undone and won back;
* a step up, of a loss that falls so fast that it soon wins it back: one row's move up, three times
  as far from the usual move as any other, that the next two rows do not take back;
* rows far out, one or two at a time, each alone (of more than 30 rows the first 24, which `spike`
  learns from): above both neighbors by twice, by three times as much as any other peak, and by six
  times the usual step; of losses below 0 by eight times, and half of what the run has moved by;
* overfitting: after its lowest row validation goes up, by Kendall's test of trend, or stands far
  above it to the end, while training falls on. Where validation is noise, the rows after the lowest
  are in any order alike, so the test needs no correction for having looked for the lowest. Four or
  five rows are too few for it: of all their pairs one at most may fall, and the rise must be far
  outside the noise;
* losses that turn round: from its lowest row on the train loss is higher row by row, and what is
  held out lies above what it was there;
* a gradient norm that climbs: over the last half of the rows, to several times what it was, while
  the loss does not fall;
* one and the same validation loss, in every digit, in eight evaluations or more;
* one answer: every evaluation gives the same held-out score in every digit, that of one answer
  among k classes, 1 / k, or of twelve evaluations or more any but a perfect one;
* nothing learned: of a log that counts epochs from the first one on, train loss and validation show
  no fall beyond noise, or stay at the loss of a guess, and no row is 5 % from the others.

Blind to the first three rows, and to noise that follows its neighbors for half of the log.
Source of the trend test: Kendall, A new measure of rank correlation, Biometrika 30 (1938).
"""

import math
import re
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.never_learns import SURELY_A_GUESS, classes_guessed
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import signal_label
from trimtab.trend import kendall_score

__all__ = ["FEWEST_ROWS", "MOST_ROWS", "few_rows_findings"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

FEWEST_ROWS = 8
EXCERPT_ROWS = 30
"""From here on the streaming detectors judge lone rows and flat losses."""
MOST_ROWS = 100
LASTS = 3
RISE = {True: (math.log(1.3), 7.0), False: (math.log(1.1), 10.0)}
"""Whether fewer than `EXCERPT_ROWS`: smallest rise, as a logarithm and in sigma; more rows have more
extremes."""
LONG, LONG_RISE = 8, (math.log(1.06), 6.0)
"""Rows of a rise that lasts longer, and the same for it."""
SWING, SMOOTH = 0.5, 0.4
"""Of a rise, as far as another comes, and how far moves in a row go together, of a loss that swings.
Ours."""
COMES_BACK = -3.0
"""Normal score of Kendall's S, from which on rows fall: one chance in 700. Ours."""
STEP_RATIO, STEP_SIGMAS = 1.5, 10.0
"""Smallest step up from the usual move, as a ratio and in its noise. Ours."""
LEVEL_ROWS = ((0, LASTS), (12, 5), (EXCERPT_ROWS, 8))
"""Fewest rows of an attempt, and rows on each side of a change of level."""
LEVELS = ((math.log(1.5), 0.97), (math.log(2.0), 0.9))
"""Rise of the level, and share of all pairs of a row before and a row behind that rise with it: to
twice, most rows tell it even where the new level is wild."""
LONE_RATIO = 2.0
LONE_APART = 3.0
LONE_MOVED, LONE_STEPS = 0.5, 8.0
"""Of what the run has moved by, and usual steps, where losses below 0 have no ratios. Ours."""
LONE_WIDTHS = (1, 2)
"""Rows of a peak: of three, `_rise` tells."""
EARLY_ROWS = 24
"""Rows of an attempt before which `spike` has no past to compare with; in more than a few rows lone
ones are told up to there."""
LAST_RATIO = 4.0
"""The same for the last row of validation, of which no neighbor behind it says that it is over."""
CLIMB = 4.0
"""Times the largest norm of the first third, that the last third comes to."""
SAME, LONG_SAME = 6, 12
"""Evaluations that are alike in every digit: of 1 / k, and of any other share. Ours."""
STUCK = 8
"""Evaluations that are alike in every digit and no better than any before them. Ours."""
FEWEST_TURN, FEW_TURN = 5, (0.15, 0.3)
"""Evaluations, and the share by which they go up where each does, and where one falls: noise has no
measure in so few. Ours."""
HALF = 0.5
"""Of the lowest validation, up to which a rise of it is a note beside a score that gains. Ours."""
GAINED = 0.005
"""Share of right answers, or a quarter of that of another score, that is a gain. Ours."""
LEARNED = 0.8
"""Share of right answers from which on one that stands was learned before. Ours."""
_OF_AN_AGENT = re.compile(r"reward|return|episode|rew(?![a-z])")
TURN_ROWS, TURN = 4, 1.05
"""Rows behind the lowest, and times its loss, from which on losses have turned round. Ours."""
MOST_CLASSES = 1000
GUESS = 0.01
GUESS_FALL = 0.02
"""Share of the loss of a guess that is no fall. Ours."""
_PREFERS = ("reward_margin", "preference_accuracy")
"""Of training on preferences, whose loss begins at ln 2 and leaves it slowly."""
LONG_STEPS = 5000
"""Steps in which a model of language comes down from a guess, warm-up and all. Ours."""
TREND = 2.2
"""Normal score of Kendall's S: one chance in 70. All bars are ours."""
STAYS = 3.5
"""Noise of single rows by which the last third lies above the lower two about the lowest, where it
stands without a trend. The lowest of 30 rows of noise lies 2 below their median."""
JUMP = 0.7
"""Of the rise in one row: then another evaluation, not overfitting. As `evaluation` tells it."""
SHARE = 0.05
"""Of the fall of either loss: a smaller rise of validation does not matter. As in `overfitting`."""


def few_rows_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return what the attempts of 8 to 100 rows tell, each judged whole."""
    found: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        for test in _TESTS:
            found += test(record, span)
    return tuple(found)


def _values(
    record: RunRecord, span: slice, signal: str, most: int = MOST_ROWS
) -> tuple[Rows, Floats] | None:
    column = record.columns.get(signal)
    if column is None:
        return None
    rows = column.finite_rows(span)
    return (rows, column.values[rows]) if FEWEST_ROWS <= len(rows) <= most else None


def _noise(y: Floats) -> float:
    return difference_sigma(np.diff(y, 2), order=2)


def _rise(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield the first rise of the train loss that lasts, and of validation one that is over.

    Validation that stays up is told by other rules, with what training does beside it.
    """
    for signal in ("loss", "val_loss"):
        got = _values(record, span, signal)
        if got is not None and got[1].min() > 0:
            yield from _rise_of(record, signal, *got)


def _rise_of(record: RunRecord, signal: str, rows: Rows, loss: Floats) -> Iterator[Finding]:
    y = np.log(loss)
    # One low row alone is no level that a run has come down to, and that the next rows rise from.
    filled = np.append(y[0], np.maximum(y[1:-1], np.minimum(y[:-2], y[2:])))
    before = np.minimum.accumulate(filled)[LASTS - 1 : 1 - LASTS]
    few, noise = len(y) < EXCERPT_ROWS, _noise(y)
    bars = ((LASTS, *RISE[few]), *(() if few else ((LONG, *LONG_RISE),)))
    for num, share, sigmas in bars:
        lows = np.lib.stride_tricks.sliding_window_view(y[LASTS:], num).min(axis=1)
        over, least = lows - before[: len(lows)], max(share, sigmas * noise)
        at = np.flatnonzero(over > least)
        if len(at):
            break
    else:
        return
    k = int(at[0]) + LASTS
    low = float(np.exp(before[at[0]]))
    back = np.flatnonzero(y[k:] < before[at[0]] + 0.2 * least)
    end = k + int(back[0]) if len(back) else None
    peak = k + int(np.argmax(y[k:end]))
    if end is None and (signal != "loss" or num == LONG):  # the latter is told by other rules
        return
    if end is not None and len(y) >= EXCERPT_ROWS and _swings(y, over, k, end):
        return
    # More than half back, and still falling: a start that comes right by itself.
    falls = len(y) - peak > LASTS and kendall_score(y[peak:]) <= COMES_BACK
    comes_back = end is None and falls and y[-1] < (before[at[0]] + y[peak]) / 2
    yield finding_at(
        record,
        detector="few-rows-rise",
        kind="spike" if end is not None else "unrecovered-spike",
        signal=signal,
        severity="warning" if end is not None or comes_back else "critical",
        row=int(rows[-1 if end is None else end]),
        onset_row=int(rows[k]),
        peak_row=int(rows[peak]),
        end_row=None if end is None else int(rows[end]),
        value=float(loss[peak]),
        expected=low,
        score=min(99.0, float(over[at[0]]) / max(noise, 0.01)),
        closed=True,
        text=(
            f"{signal_label(signal)} {low:.4g} → {loss[peak]:.4g}, for {num} rows and more"
            " (few rows)"
        ),
    )


def _swings(y: Floats, over: Floats, k: int, end: int) -> bool:
    """Whether the loss goes up and down smoothly, as with the rate, and rises nearly as far elsewhere.

    Args:
        y: Logarithms of the losses.
        over: How far each row and the next two lie above all before it, from row 3 on.
        k: First row of a rise.
        end: The row where it is over.
    """
    moves = np.diff(y) - np.diff(y).mean()
    together = float(moves[1:] @ moves[:-1]) / max(float(moves @ moves), 1e-300)
    others = np.append(over[: max(0, k - 2 * LASTS)], over[end:])
    return together > SMOOTH and bool((others > SWING * over[k - LASTS]).any())


def _steps_up_once(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield the one row that sets a falling train loss back, where `_rise` sees it win that back."""
    got = _values(record, span, "loss", EXCERPT_ROWS - 1)
    if got is None or got[1].min() <= 0 or any(_rise_of(record, "loss", *got)):
        return
    rows, loss = got
    y = np.log(loss)
    moves = np.diff(y)
    apart = moves - median(moves)
    k = int(np.argmax(apart))
    others = np.abs(np.delete(apart, k))
    step, behind = float(apart[k]), apart[k + 1 : k + LASTS]
    least = max(
        math.log(STEP_RATIO), STEP_SIGMAS * 1.4826 * median(others), LONE_APART * others.max()
    )
    if step < least or moves[k] < RISE[True][0] or len(behind) < LASTS - 1:
        return
    if k < LASTS or behind.sum() < -step / LONE_APART:
        return
    back = np.flatnonzero(y[k + 1 :] <= y[k])
    end = k + 1 + int(back[0]) if len(back) else None
    yield finding_at(
        record,
        detector="few-rows-step",
        kind="spike" if end is not None else "unrecovered-spike",
        signal="loss",
        severity="warning",
        row=int(rows[-1 if end is None else end]),
        onset_row=int(rows[k + 1]),
        peak_row=int(rows[k + 1]),
        end_row=None if end is None else int(rows[end]),
        value=float(loss[k + 1]),
        expected=float(loss[k]),
        score=min(99.0, step / max(median(others), 0.01)),
        closed=True,
        text=f"loss {loss[k]:.4g} → {loss[k + 1]:.4g} in one row of a steady fall (few rows)",
    )


def _level_up(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a train loss that has left its level for good, however noisy both levels are."""
    got = _values(record, span, "loss")
    if got is None or got[1].min() <= 0:
        return
    rows, loss = got
    y, n = np.log(loss), len(loss)
    block = next(rows for least, rows in reversed(LEVEL_ROWS) if n >= least)
    best: tuple[float, float, int] | None = None
    for k in range(block, n - block + 1):
        before, after = y[k - block : k], y[k:]
        apart = median(after) - median(before)
        above = float((after[:, None] > before[None, :]).mean())
        if any(apart >= rise and above >= share for rise, share in LEVELS):
            best = max(best or (0.0, 0.0, 0), (above, apart, k))
    k = 0 if best is None else best[2]
    if not k or median(y[-block:]) < median(y[k - block : k]) + LEVELS[0][0]:
        return
    low = float(np.exp(median(y[k - block : k])))
    yield finding_at(
        record,
        detector="few-rows-level",
        kind="unrecovered-spike",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[k]),
        peak_row=int(rows[k + int(np.argmax(y[k:]))]),
        value=float(np.exp(median(y[k:]))),
        expected=low,
        score=6.0,
        closed=True,
        text=f"loss about {low:.4g} → about {np.exp(median(y[k:])):.4g}, to the end (few rows)",
    )


def _constant(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a train loss that is the same in every digit from the first row to the last."""
    got = _values(record, span, "loss")
    if got is None or (got[1] != got[1][0]).any() or not got[1][0]:
        return
    rows, loss = got
    yield finding_at(
        record,
        detector="few-rows-constant",
        kind="frozen-signal",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=float(loss[0]),
        expected=float(loss[0]),
        score=6.0,
        closed=True,
        text=f"loss exactly {loss[0]:.6g} in all {len(rows)} rows: nothing is learned, or logged",
    )


def _same_evaluation(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a validation loss that is the same in every digit wherever it is logged."""
    got = _values(record, span, "val_loss", record.num_rows)
    if got is None or (got[1] != got[1][0]).any() or not got[1][0]:
        return
    rows, val = got
    yield finding_at(
        record,
        detector="few-rows-same-evaluation",
        kind="never-learns",
        signal="val_loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=float(val[0]),
        expected=float(val[0]),
        score=min(99.0, float(len(rows))),
        closed=True,
        text=(
            f"validation loss exactly {val[0]:.6g} in all {len(rows)} evaluations: the weights do"
            " not change, or it is not made anew"
        ),
    )


def _lone(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield the rows of a loss, one or a few, that stand far above all others."""
    for signal in ("loss", "val_loss"):
        got = _values(record, span, signal)
        if got is None:
            continue
        rows, values = got
        few = len(rows) < EXCERPT_ROWS
        has_ratios = bool(values.min() > 0)
        y = np.log(values) if has_ratios else values
        usual = median(np.abs(np.diff(y)))
        last = float(y[-1] - y[-1 - LASTS : -1].max())
        far = has_ratios and last > max(math.log(LAST_RATIO), 6 * usual)
        if few and signal == "val_loss" and far:
            yield _last_evaluation(record, rows, values, last / max(usual, 0.01))
            continue
        least = max(math.log(LONE_RATIO), 6 * usual)
        if not has_ratios:
            moved = abs(median(y[:LASTS]) - median(y[-LASTS:]))
            least = max(LONE_MOVED * moved, LONE_STEPS * usual)
        for height, first, end in _apart(y, least):
            if not few and first >= EARLY_ROWS:
                continue
            peak = first + int(np.argmax(y[first:end]))
            many = "one row of" if end - first == 1 else f"{end - first} rows up to"
            yield finding_at(
                record,
                detector="few-rows-lone",
                kind="spike",
                signal=signal,
                # One evaluation that is high, and back in the next, asks nobody to act.
                severity="info" if signal == "val_loss" and end - first == 1 else "warning",
                row=int(rows[end]),
                onset_row=int(rows[first]),
                peak_row=int(rows[peak]),
                end_row=int(rows[end]),
                value=float(values[peak]),
                expected=median(values),
                score=min(99.0, height / max(usual, 0.01)),
                closed=True,
                text=f"{many} {values[peak]:.4g} among values near {median(values):.4g}",
            )


def _apart(y: Floats, least: float) -> list[tuple[float, int, int]]:
    """Return (height, first, end) of the highest peaks, a sixth of the rows at most, that stand apart.

    A peak is a row, or two, above the rows on both sides. The lowest that is returned is
    `LONE_APART` times as high as any other.
    """
    peaks = [
        (float(y[k : k + width].min() - max(y[k - 1], y[k + width])), k, k + width)
        for width in LONE_WIDTHS
        for k in range(1, len(y) - width)
    ]
    found: list[tuple[float, int, int]] = []
    for height, first, end in sorted(peaks, reverse=True):
        if all(end <= f or e <= first for _, f, e in found):
            found.append((height, first, end))
    for num in range(max(1, len(y) // 6), 0, -1):
        lowest, rest = found[num - 1][0], found[num][0]
        if lowest > 0 and lowest >= max(least, LONE_APART * rest):
            return sorted(found[:num], key=lambda peak: peak[1])
    return []


def _last_evaluation(record: RunRecord, rows: Rows, values: Floats, score: float) -> Finding:
    return finding_at(
        record,
        detector="few-rows-last",
        kind="spike",
        signal="val_loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[-1]),
        value=float(values[-1]),
        expected=float(values[-1 - LASTS : -1].max()),
        score=min(99.0, score),
        closed=False,
        text=f"the last validation loss is {values[-1]:.4g}, behind {values[-2]:.4g}",
    )


def _turns_round(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a train loss that climbs row by row from its lowest to the end, and validation with it."""
    got, held_out = _values(record, span, "loss", EXCERPT_ROWS - 1), record.columns.get("val_loss")
    if got is None or held_out is None or got[1].min() <= 0:
        return
    rows, loss = got
    k = int(np.argmin(loss))
    val = held_out.values[held_out.finite_rows(slice(int(rows[k]), span.stop))]
    if min(len(loss) - k, len(val)) <= TURN_ROWS or not _turns_up(loss[k:]):
        return
    if _climbs(record, span, "kl_weight"):  # a part of the loss that is warmed up
        return
    low, last = float(loss[k]), median(loss[-LASTS:])
    if last < TURN * low or val[1:].min() <= val[0] or median(val[-LASTS:]) < TURN * val[0]:
        return
    yield finding_at(
        record,
        detector="few-rows-turn",
        kind="divergence",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[k + 1]),
        peak_row=int(rows[-1]),
        value=float(loss[-1]),
        expected=low,
        score=6.0,
        closed=False,
        text=(
            f"loss {low:.4g} → {loss[-1]:.4g}, higher row by row for {len(loss) - k - 1} rows,"
            " and validation with it (few rows)"
        ),
    )


def _norm_climbs(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a gradient norm that climbs while the loss does not fall."""
    got, loss = _values(record, span, "grad_norm", EXCERPT_ROWS - 1), record.columns.get("loss")
    if got is None or loss is None or got[1].min() <= 0:
        return
    rows, norm = got
    y, third = np.log(norm), len(norm) // 3
    before = y[:third].max()
    rise = median(y[-third:]) - before
    if rise < math.log(CLIMB) or kendall_score(y) < TREND:
        return
    low = np.flatnonzero(y <= before)[-1] + 1
    losses = loss.values[loss.finite_rows(slice(int(rows[low - 1]), span.stop))]
    if len(losses) < LASTS or kendall_score(losses) < 0:
        return
    yield finding_at(
        record,
        detector="few-rows-norm",
        kind="grad-explosion",
        signal="grad_norm",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[low]),
        peak_row=int(rows[int(np.argmax(y))]),
        value=float(norm.max()),
        expected=float(np.exp(before)),
        score=6.0,
        closed=False,
        text=(
            f"gradient norm {np.exp(median(y[:third])):.3g} → {np.exp(median(y[-third:])):.3g}"
            " while the loss does not fall (few rows)"
        ),
    )


EDGE_ROWS = 10
"""Train losses before the lowest validation, without the last two, that say what it learned. Ours."""


def _overfits(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield the turn of validation after its lowest row."""
    held_out, train = record.columns.get("val_loss"), record.columns.get("loss")
    if held_out is None or train is None:
        return
    rows, trained = held_out.finite_rows(span), train.finite_rows(span)
    val = held_out.values[rows]
    if not FEWEST_TURN <= len(val) <= MOST_ROWS or len(trained) < FEWEST_TURN:
        return
    k, n = int(np.argmin(val)), len(val)
    after = val[k + 1 :]
    third = max(LASTS, n // 3)
    if len(after) < max(4, third):
        return
    low, level = float(val[k]), median(val[-third:])
    rise = level - low
    if len(after) > 5:
        sure = kendall_score(after) >= TREND or _stays_above(val, k, third)
    elif min(n, len(trained)) < FEWEST_ROWS:
        each = bool((np.diff(val[k:]) > 0).all())
        sure = _turns_up(val[k:]) and rise > FEW_TURN[not each] * abs(low)
    else:
        sure = _turns_up(val[k:]) and rise > 5 * _noise(val)
    # Of the loss at the lowest, a median of the train losses about it.
    at = int(np.searchsorted(trained, rows[k], "right"))
    then = median(train.values[trained[max(0, at - 2) : at + 1]])
    last = train.values[trained[at:]]
    if not sure or len(last) < LASTS:
        return
    fell = then - median(last[-max(LASTS, len(last) // 3) :])
    if at > 2 * EDGE_ROWS:  # what rose just there is told by its own rules, and does not fall
        fell = min(fell, fell - then + median(train.values[trained[at - EDGE_ROWS : at - 2]]))
    if fell <= 0 or kendall_score(last[-MOST_ROWS:]) > 0:
        return
    if _steps_up(val[k:]) > JUMP * rise:
        return
    gains = rise < HALF * abs(low) and _score_gains(record, rows[k:])
    if rise < max(SHARE * max(float(val[0]) - low, fell), 0.01 * abs(low)):
        return
    unit = record.axis if record.axis != "row" else "row"
    yield finding_at(
        record,
        detector="overfitting-few-rows",
        kind="overfitting",
        signal="val_loss",
        severity="info" if gains else "warning",
        row=int(rows[-1]),
        onset_row=int(rows[k + 1]),
        peak_row=int(rows[k + 1 + int(np.argmax(after))]),
        value=float(after.max()),
        expected=low,
        score=min(99.0, rise / max(_noise(val), 1e-12)),
        closed=True,
        text=(
            f"validation is best at {unit} {record.step[rows[k]]:g} ({low:.4g}; row {k + 1} of"
            f" {n}), then rises to about {level:.4g} while the training loss falls"
            + ("; a held-out score gains meanwhile" if gains else ": stop there, or regularize")
        ),
    )


def _score_gains(record: RunRecord, rows: Rows) -> bool:
    """Whether a few held-out scores get better, row by row, while their loss gets worse."""
    for name, sign in (("eval_score", 1.0), ("eval_error", -1.0)):
        column = record.columns.get(name)
        if column is not None and len(rows) < FEWEST_ROWS:
            score = sign * column.values[column.finite_rows(slice(int(rows[0]), int(rows[-1]) + 1))]
            gain = float(score[-LASTS:].min() - score[0]) if len(score) > LASTS else 0.0
            least = GAINED if np.abs(score).max(initial=0.0) <= 1 else 4 * GAINED * abs(score[0])
            if gain > least and _turns_up(score[:-1]):
                return True
    return False


def _stays_above(val: Floats, k: int, third: int) -> bool:
    """Whether the last third lies far above the level at the lowest value, all of it."""
    y = np.log(val) if val.min() > 0 else val
    low = float(np.sort(y[max(0, k - 2) : k + 3])[1])
    rise = median(y[-third:]) - low
    return bool(rise > STAYS * _noise(y) and y[-third:].min() - low > rise / 2)


def _steps_up(y: Floats) -> float:
    """Return the largest rise from one row to the next that stays: all later rows lie above it."""
    before = np.maximum.accumulate(y)[:-1]
    after = np.minimum.accumulate(y[::-1])[::-1][1:]
    return float((after - before).max(initial=0.0))


def _turns_up(y: Floats) -> bool:
    """Whether of all pairs of a few values, the first of them the lowest, one at most falls."""
    later = np.subtract.outer(y, y)[np.tril_indices(len(y), -1)]
    return int((later < 0).sum()) <= 1


def _one_answer(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a held-out score that is that of one and the same answer in each evaluation."""
    got = _values(record, span, "eval_score", record.num_rows)  # equal digits need no bound
    if got is None:
        return
    rows, score = got
    # Weights as initialized may give other answers before they come to one.
    first = 1 if len(score) > SAME and score[0] != score[1] else 0
    rows, score = rows[first:], score[first:]
    # An agent's return is no share.
    of_agent = _OF_AN_AGENT.search(record.keys.get("eval_score", "").lower())
    stuck = len(score) > STUCK and bool((score[-STUCK:] == score[-1]).all())
    if stuck and not of_agent:
        yield from _stuck(record, rows, score)
    if len(score) < SAME or (score != score[0]).any() or abs(score[0]) in (1.0, 100.0):
        return
    which = f"all {len(rows)} evaluations" + (" from the second on" if first else "")
    what = f"held-out score exactly {score[0]:.4g} in {which}"
    share = abs(score[0]) / (100 if abs(score[0]) > 1 else 1)  # percent
    # What is right nearly always had been learned before.
    if score[0] < 0 or share > LEARNED or of_agent:
        return
    classes = round(1 / share) if share > 1 / (2 * MOST_CLASSES) else 0
    if 2 <= classes <= MOST_CLASSES and abs(share * classes - 1) <= GUESS:
        why = f", 1 of {classes}: the same answer is given to everything"
    elif len(score) < LONG_SAME:
        return
    else:
        why = (
            ": no answer is right" if not share else ": one answer to everything, or not made anew"
        )
    yield finding_at(
        record,
        detector="few-rows-one-answer",
        kind="never-learns",
        signal="eval_score",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=float(score[0]),
        expected=float(score[0]),
        score=6.0,
        closed=True,
        text=what + why,
    )


def _is_broken(record: RunRecord, first: int, last: int) -> bool:
    """Whether the loss is NaN over most of some rows: a broken model has one answer to everything."""
    loss = record.columns.get("loss")
    if loss is None:
        return False
    values = loss.values[first : last + 1][loss.present[first : last + 1]]
    return bool(len(values) and np.mean(~np.isfinite(values)) > 0.5)


def _stuck(record: RunRecord, rows: Rows, score: Floats) -> Iterator[Finding]:
    """Yield a score that comes to rest, in every digit, below all that it had been before."""
    first = int(np.flatnonzero(score != score[-1])[-1]) + 1 if (score != score[-1]).any() else 0
    before = score[:first]
    if len(before) < LASTS or float(before.min()) < score[-1] or median(before) <= score[-1]:
        return
    if _is_broken(record, int(rows[max(first - 1, 0)]), int(rows[-1])):
        return
    yield finding_at(
        record,
        detector="few-rows-stuck",
        kind="never-learns",
        signal="eval_score",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[first]),
        value=float(score[-1]),
        expected=median(before),
        score=6.0,
        closed=True,
        text=(
            f"held-out score exactly {score[-1]:.4g} in the last {len(score) - first} evaluations,"
            f" after {median(before):.4g} and up to {before.max():.4g}: one answer to everything"
        ),
    )


def _flat(record: RunRecord, span: slice) -> Iterator[Finding]:
    """Yield a run that has learned nothing in all its epochs."""
    got = _values(record, span, "loss", EXCERPT_ROWS - 1)
    if got is None or not _is_long_enough(record, *got):
        return
    scores = [record.columns[n] for n in ("eval_score", "accuracy") if n in record.columns]
    shares = [s.values[s.finite_rows(span)] for s in scores]
    if any(len(v) and v.max() <= 1 and median(v) > LEARNED for v in shares):
        return  # fine-tuned at its floor
    if any(_climbs(record, span, name) for name in _PREFERS):
        return
    for signal in ("loss", "val_loss"):
        other = _values(record, span, signal, EXCERPT_ROWS - 1)
        if other is None:
            continue
        y, third = other[1], len(other[1]) // 3
        fell = median(y[:third]) - median(y[-third:])
        if y.max() - y.min() > SHARE * abs(median(y)):
            return
        # At the loss of a guess a fall of next to nothing is no learning, however sure it is.
        if abs(fell) <= GUESS_FALL * y[0] and classes_guessed(median(y), 0.0) is not None:
            continue
        if kendall_score(y) < -1.6 or fell > 2 * _noise(y) / math.sqrt(third) or y[0] == y.max():
            return
    rows, loss = got
    yield finding_at(
        record,
        detector="few-rows-flat",
        kind="never-learns",
        signal="loss",
        severity="warning",
        row=int(rows[-1]),
        onset_row=int(rows[0]),
        value=median(loss),
        expected=float(loss[0]),
        score=6.0,
        closed=True,
        text=(
            f"loss {loss[0]:.4g} at first and {loss[-1]:.4g} after"
            f" {_so_long(record, rows)}: no fall"
        ),
    )


def _climbs(record: RunRecord, span: slice, signal: str) -> bool:
    """Whether a signal of what is learned goes up by more than chance."""
    got = _values(record, span, signal)
    return got is not None and kendall_score(got[1]) >= TREND


def _is_long_enough(record: RunRecord, rows: Rows, loss: Floats) -> bool:
    """Whether a log from its start on goes on for so long that something should be learned.

    Epochs always do; of steps thousands, of a loss as high as that of an untrained vocabulary, and
    of a rate that does not rise any more. At the loss of a guess between two, an excerpt from behind
    such a start will do.
    """
    first, last = float(record.step[rows[0]]), float(record.step[rows[-1]])
    if record.axis == "epoch":
        return first <= 1
    rates = record.columns.get("lr")
    rate = (
        np.zeros(0)
        if rates is None
        else rates.values[rates.finite_rows(slice(rows[0], rows[-1] + 1))]
    )
    rises = len(rate) > 1 and rate[-1] > 1.01 * median(rate[len(rate) // 2 :])
    untrained = loss.min() >= SURELY_A_GUESS and classes_guessed(median(loss), 0.0) is not None
    if record.axis == "step" and first >= LONG_STEPS and _between_two(loss):
        return not rises
    spacing = float(np.median(np.diff(record.step[rows])))
    from_start = (
        record.axis == "step" and first <= 2 * spacing and record.attempts[0].parent is None
    )
    return bool(from_start and last >= LONG_STEPS and untrained and not rises)


def _between_two(loss: Floats) -> bool:
    """Whether all losses lie at ln 2, and their median as near as the noise lets it be known."""
    error = max(_noise(loss) / math.sqrt(len(loss)), GUESS_FALL / 8 * math.log(2))
    near = abs(median(loss) - math.log(2)) <= error
    return near and bool((np.abs(loss / math.log(2) - 1) <= GUESS).all())


def _so_long(record: RunRecord, rows: Rows) -> str:
    if record.axis == "epoch":
        return f"{len(rows)} epochs"
    return f"{record.step[rows[-1]]:,.0f} steps"


_TESTS: tuple[Callable[[RunRecord, slice], Iterator[Finding]], ...] = (
    _rise,
    _steps_up_once,
    _level_up,
    _constant,
    _same_evaluation,
    _lone,
    _turns_round,
    _norm_climbs,
    _overfits,
    _one_answer,
    _flat,
)
