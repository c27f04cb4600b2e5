"""Too good: the training loss is a small fraction of the validation loss, which no longer falls.

Learning shows on both losses. A training loss that comes to a twentieth of the validation loss and
stays there to the end, while the validation loss is above its lowest, is a set learned by heart, a
leak of labels into the input, or a broken loss. Networks that understand late (grokking) end with a
low validation loss, and a pair of losses far below that of the start is small all round: neither is
reported. A validation loss that jumps to exactly 0 and stays there is none. One far above any
training loss in each evaluation, from the first on, is another loss or of other inputs. One that
never comes below the first training losses, and neither falls nor climbs while the training loss
falls to half, is measured otherwise than in training: mode, normalization, labels, or what leaks.
It dates from
when both hold; the validation loss turned somewhere between its lowest and the next, so halfway
between the two at the earliest. The rule needs three validations, and looks at whole attempts: it
works in hindsight only.
"""

import math
import re

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, median
from trimtab.trend import kendall_score

__all__ = ["memorised_findings"]

RATIO = 20.0
"""Validation over training loss; noise, dropout and averaging over an epoch explain factors of two.
"""
REBOUND = 1.05
"""Validation loss at the end over its lowest."""
NEGLIGIBLE_SHARE = 0.02
"""Of the first training losses: a validation loss below this is a task learned."""
WINDOW_ROWS = 11
MIN_ROWS = 30
MIN_VALIDATIONS = 3
ZERO_VALIDATIONS = 8
"""Of exactly 0, one after another to the end. Ours."""
NEVER_VALIDATIONS = 10
APART_START = 3.0
"""Times the highest of the first training losses, above which no evaluation lies. Ours."""
STANDS = 1.5
"""Most that the medians of three evaluations differ by, where validation stands at a guess. Ours."""
TREND = 2.2
"""Normal score of Kendall's S: one chance in 36. As in `few_rows`."""
LEARNED_SHARE = 0.25
"""Of what the accuracy gains in training, above which held-out data shows that it was learned. Ours.
"""
MOST_COMPARED = 100
"""Evaluations that are compared, every k-th of more."""
SOLVED = 0.95
"""Share of right answers on held-out data, from which on a training loss near 0 costs nothing. Ours."""
_SHARES = re.compile(r"acc|top.?1")
NEVER_SHARE = 0.75
"""Of the first training losses, that validation never comes below. Ours."""


def memorised_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding per attempt that ends with a training loss too good to be learning."""
    if "loss" not in record.columns:
        return ()
    spans = [record.rows_of(i) for i in range(len(record.attempts))]
    rules = (_judge, _zero, _never, _apart) if "val_loss" in record.columns else (_apart,)
    findings = [rule(record, span) for span in spans for rule in rules]
    return tuple(f for f in findings if f is not None)


def _judge(record: RunRecord, span: slice) -> Finding | None:
    train, val = record.columns["loss"], record.columns["val_loss"]
    rows = train.finite_rows(span)
    checks = val.finite_rows(span)
    if len(rows) < MIN_ROWS or len(checks) < MIN_VALIDATIONS:
        return None
    loss, validation = train.values[rows], val.values[checks]
    last = float(validation[-1])
    first = float(loss[:WINDOW_ROWS].max())
    # Ratios of losses that may be negative say nothing.
    if min(loss.min(), validation.min()) < 0 or last < REBOUND * validation.min():
        return None
    if last < NEGLIGIBLE_SHARE * first:
        return None
    level = np.median(sliding_window_view(loss, WINDOW_ROWS), axis=1)  # of rows i .. i + 10
    above = np.flatnonzero(level * RATIO >= last)
    best = int(np.argmin(validation))
    # The true lowest lies anywhere up to the next validation; the middle is the least wrong.
    turned = (int(checks[best]) + int(checks[min(best + 1, len(checks) - 1)])) // 2
    began = max(int(above[-1]) + 1 if len(above) else 0, int(np.searchsorted(rows, turned)))
    solved = _solved(record, span)
    # A state of a few last rows may be one easy epoch.
    if began + WINDOW_ROWS > len(loss) - MIN_ROWS // 2:
        return None
    onset, end_level = int(rows[began]), float(level[-1])
    later = checks[checks >= onset]
    said = int(later[0]) if len(later) else int(rows[-1])
    lowest = began + int(np.argmin(loss[began : max(began + 1, int((rows <= said).sum()))]))
    return finding_at(
        record,
        detector="memorised",
        kind="too-good",
        signal="loss",
        severity="info" if solved else "warning",
        row=said,
        onset_row=onset,
        peak_row=int(rows[lowest]),
        value=end_level,
        expected=last,
        score=min(99.0, last / max(end_level, 1e-12)),
        direction="down",
        closed=True,
        text=(
            f"training loss {end_level:.3g} while validation is at {last:.3g},"
            f" {last / validation.min():.2f} times its lowest (in hindsight)"
            + (f"; of what is held out {solved:.3g} is right" if solved else "")
        ),
    )


def _solved(record: RunRecord, span: slice) -> float:
    """Return the share of held-out answers that are right in the end, where hardly any is wrong; else 0."""
    column = record.columns.get("eval_score")
    if column is None or not _SHARES.search(record.keys.get("eval_score", "").lower()):
        return 0.0
    scores = column.values[column.finite_rows(span)]
    if len(scores) < MIN_VALIDATIONS:
        return 0.0
    share = float(np.median(scores[-MIN_VALIDATIONS:])) / (100 if scores.max() > 1 else 1)
    return share if SOLVED <= share <= 1 else 0.0


def _zero(record: RunRecord, span: slice) -> Finding | None:
    """Return a finding where the validation loss jumps to exactly 0, and training goes on."""
    train, val = record.columns["loss"], record.columns["val_loss"]
    checks = val.finite_rows(span)
    loss, values = train.values[train.finite_rows(span)], val.values[checks]
    above = np.flatnonzero(values)
    num = len(values) - 1 - int(above[-1]) if len(above) else 0
    if num < ZERO_VALIDATIONS or num == len(values) or not len(loss) or not loss[-1]:
        return None
    level = float(np.median(values[: above[-1] + 1][-MIN_VALIDATIONS:]))
    if level < NEGLIGIBLE_SHARE * float(values[0]):
        return None
    first = int(checks[above[-1] + 1])
    return finding_at(
        record,
        detector="memorised",
        kind="frozen-signal",
        signal="val_loss",
        severity="warning",
        row=int(checks[above[-1] + ZERO_VALIDATIONS]),
        onset_row=first,
        peak_row=first,
        value=0.0,
        expected=level,
        score=99.0,
        direction="down",
        closed=True,
        text=f"validation loss {level:.3g} → exactly 0 for {num} validations (in hindsight)",
    )


def _never(record: RunRecord, span: slice) -> Finding | None:
    """Return a finding where validation stands at a guess while the training loss falls."""
    train, val = record.columns["loss"], record.columns["val_loss"]
    rows, checks = train.finite_rows(span), val.finite_rows(span)
    if len(checks) < NEVER_VALIDATIONS or len(rows) < NEVER_VALIDATIONS:
        return None
    loss, values = train.values[rows], val.values[checks]
    num = min(WINDOW_ROWS, max(3, len(rows) // 10))
    first, last = float(np.median(loss[:3])), float(np.median(loss[-num:]))
    levels = np.median(sliding_window_view(values, 3), axis=1)
    half = len(values) // 2
    old, new = values[:half], values[half:]
    noise = mad_sigma(np.diff(values)) / math.sqrt(2)
    moved = float(np.median(new)) - float(np.median(old))
    error = 1.25 * noise * math.sqrt(1 / len(old) + 1 / len(new))
    if min(loss.min(), values.min()) < 0 or last > first / 2 or levels.min() < NEVER_SHARE * first:
        return None
    if levels.max() > STANDS * levels.min():
        return None
    # What climbs is learned by heart; what falls is learned, and so is what comes out right more often.
    if (
        _score_shows(record, span)
        or abs(moved) > max(3 * error, 0.02 * first)
        or values[0] - levels[-1] > 3 * noise
    ):
        return None
    return finding_at(
        record,
        detector="never-validates",
        kind="never-learns",
        signal="val_loss",
        severity="warning",
        row=int(checks[NEVER_VALIDATIONS - 1]),
        onset_row=int(checks[0]),
        peak_row=int(checks[0]),
        value=float(np.median(values)),
        expected=last,
        score=min(99.0, float(np.median(values)) / max(last, 1e-12)),
        closed=True,
        text=(
            f"validation loss {np.median(values):.3g} in all {len(values)} evaluations, no better"
            f" than the first training losses, while training falls {first:.3g} → {last:.3g}"
            " (in hindsight)"
        ),
    )


def _score_shows(record: RunRecord, span: slice) -> bool:
    """Whether a held-out score has a trend, or stands where training came to after a while."""
    score = record.columns.get("eval_score")
    if score is None:
        return False
    values = score.values[score.finite_rows(span)]
    if len(values) < NEVER_VALIDATIONS // 2:
        return False
    if abs(kendall_score(values[:: len(values) // MOST_COMPARED + 1])) >= TREND:
        return True
    trained = record.columns.get("accuracy")
    shares = np.zeros(0) if trained is None else trained.values[trained.finite_rows(span)]
    if len(shares) < NEVER_VALIDATIONS // 2:
        return False
    first, last = float(shares[0]), median(shares[-(len(shares) // 4 or 1) :])
    return last > first and median(values) > first + LEARNED_SHARE * (last - first)


def _apart(record: RunRecord, span: slice) -> Finding | None:
    """Return a finding where each evaluation, from the first on, is far above any training loss.

    Nothing is learned by heart before the first evaluation to that degree: it is another loss,
    other inputs or another mode. The fixed batches of a guard are evaluations, too.
    """
    name = "val_loss" if "val_loss" in record.columns else "yardstick_loss"
    train, val = record.columns["loss"], record.columns.get(name)
    if val is None:
        return None
    rows, checks = train.finite_rows(span), val.finite_rows(span)
    if len(checks) < MIN_VALIDATIONS or len(rows) < MIN_ROWS:
        return None
    loss, values = train.values[rows], val.values[checks]
    # What comes before the first of them may have been far worse.
    worst, lowest = float(loss[: MIN_ROWS // 2].max()), float(values.min())
    if loss.min() <= 0 or lowest < APART_START * worst:
        return None
    around = [loss[max(0, k - WINDOW_ROWS) :][: 2 * WINDOW_ROWS] for k in rows.searchsorted(checks)]
    level = max(median(near) for near in around)
    if lowest < RATIO * level:
        return None
    return finding_at(
        record,
        detector="never-validates",
        kind="never-learns",
        signal=name,
        severity="warning",
        row=int(checks[MIN_VALIDATIONS - 1]),
        onset_row=int(checks[0]),
        peak_row=int(checks[int(np.argmax(values))]),
        value=float(np.median(values)),
        expected=float(np.median(loss)),
        score=min(99.0, lowest / level),
        closed=True,
        text=(
            f"{'validation loss' if name == 'val_loss' else 'fixed batches in eval mode'} at"
            f" {np.median(values):.3g} in all {len(values)} evaluations, from the first on, where"
            f" the training loss is {np.median(loss):.3g} (in hindsight)"
        ),
    )
