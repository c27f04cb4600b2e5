"""A signal beside the loss that lies at another level for good, from one row to the next.

What learning does to a norm, an entropy or a part of a loss it does little by little. Where such a
signal is many times as large, or as small, from some row on and to the end, something was changed
that the log does not say: the batch, how gradients are added up, what is clipped, the data, a
weight of the loss. The loss may not show it. On a log scale, by the G of `two_sides` in windows of
m = 16 to 256 rows, a change is told that

* has G above the bar of its window and comes to `LASTING`'s factor for the signal, and to `OVER_NOISE` times the
  noise of rows,
* is there at once: `AT_ONCE` of it lies within an eighth of the window on each side,
* stays: the rows to the end keep `AT_ONCE` of it,
* is `OVER_OTHERS` times any other change in the attempt, up or down.

Not told where the log states a reason within `NEAR` rows (a rate, a setting, a batch, a stage), of
what moves as the loss drops, or a reward or score gains, at once. A number that nobody knows is a
note, unless a word of its key says that it is worse for it. Long logs are judged by the medians of
`MOST` equal stretches. In hindsight; blind in the first tenth and the last 16 rows.
"""

import math
import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.detectors.stated_changes import states_a_change
from trimtab.detectors.two_sides import TwoSides, best_parting
from trimtab.readers.other_columns import MOVES, is_seldom
from trimtab.record import RunRecord
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import OTHER, plain, signal_label

__all__ = ["LASTING", "lasting_findings", "worse_by_words"]

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

MOST = 2048
BARS = {16: 250.0, 32: 200.0, 64: 150.0, 128: 125.0, 256: 125.0}
"""Largest G that is noise, by the rows of a window. As in `risen`."""
OVER_NOISE = 2.0
OVER_OTHERS = 1.5
AT_ONCE = 0.6
ABOVE_0 = 0.9
"""Of the rows: a signal that has no logarithm more often is not judged here."""
MEASURED = 0.5
"""Of the rows, that differ from the one before: settings, scales and counters are held."""
NEAR = 4
BEGIN_SHARE = 0.1
"""Of the rows, in which a run finds its way."""
SCORES = ("reward", "eval_score", "accuracy", "token_accuracy")
BY_ITSELF = 4.0
"""Times that the gradient norm of an agent may fall as it learns."""
EDGE, OVER_ERRORS = 16, 3.0
"""Rows on each side, and errors of medians, in which a loss drops or a reward gains at once."""
"""All bars are ours; see `benchmarks/origins/lasting.toml` for the logs that suggested them."""


@dataclass(frozen=True, kw_only=True)
class Lasting:
    """From which factor on a change of one signal is told."""

    kind: str
    up: float = math.inf
    down: float = math.inf
    """How many times smaller."""


_SIGN = "signal-abnormal"
LASTING = {
    "grad_norm": Lasting(kind="grad-drift", up=1.75, down=2.25),
    "grad_norm/": Lasting(kind="grad-drift", up=3.0, down=5.0),
    "loss/": Lasting(kind="shift", up=1.3),
    OTHER: Lasting(kind=_SIGN, up=1.5, down=1.5),
    "update_norm": Lasting(kind=_SIGN, up=2.5),
    "update_ratio": Lasting(kind=_SIGN, up=2.5),
    "activation_norm": Lasting(kind=_SIGN, up=2.5),
    "policy_kl": Lasting(kind="policy-collapse", up=3.0),
    "update_kl": Lasting(kind="policy-collapse", up=3.0),
    "policy_entropy": Lasting(kind="policy-collapse", up=2.0, down=1.6),
    "value_loss": Lasting(kind="policy-collapse", up=4.0),
    "completion_length": Lasting(kind="policy-collapse", up=1.8, down=1.8),
    "advantage_std": Lasting(kind=_SIGN, up=3.0, down=3.0),
    "rollout_mismatch": Lasting(kind="policy-collapse", up=3.0),
    "router_entropy": Lasting(kind=_SIGN, down=1.25),
    "expert_load_max": Lasting(kind=_SIGN, up=1.5),
    "expert_load_std": Lasting(kind=_SIGN, up=2.0),
    "dropped_tokens": Lasting(kind=_SIGN, up=3.0),
    "aux_loss": Lasting(kind=_SIGN, up=1.5),
    "router_z_loss": Lasting(kind=_SIGN, up=3.0),
    "attention_entropy": Lasting(kind=_SIGN, down=1.6),
    "overflow_share": Lasting(kind=_SIGN, up=3.0),
    "underflow_share": Lasting(kind=_SIGN, up=3.0),
    "quantization_error": Lasting(kind=_SIGN, up=2.0),
    "sample_diversity": Lasting(kind=_SIGN, down=1.6),
    "accuracy": Lasting(kind=_SIGN, down=1.15),
    "token_accuracy": Lasting(kind=_SIGN, down=1.15),
    "step_time_s": Lasting(kind="slowdown", up=1.05),
    "throughput": Lasting(kind="slowdown", down=1.05),
}
"""By signal; a name that ends in a stroke is that of parts. Factors are ours."""


_WORSE_UP = frozenset(
    [
        "error",
        "err",
        "errors",
        "loss",
        "losses",
        "cost",
        "ppl",
        "perplexity",
        "wer",
        "cer",
        "fid",
        "mse",
        "mae",
        "rmse",
        "overflow",
        "overflows",
        "skipped",
        "dropped",
        "nan",
        "nans",
        "violation",
        "violations",
        "viol",
        "retries",
        "timeouts",
        "failures",
        "failed",
    ]
)
_BETTER_UP = frozenset(
    [
        "acc",
        "accuracy",
        "score",
        "reward",
        "return",
        "returns",
        "auc",
        "f1",
        "map",
        "bleu",
        "rouge",
        "recall",
        "precision",
        "iou",
        "psnr",
        "ssim",
        "success",
        "ok",
        "match",
        "align",
    ]
)
_WORSE_DOWN = _BETTER_UP | frozenset(
    [
        "std",
        "var",
        "variance",
        "diversity",
        "modes",
        "entropy",
        "coverage",
        "usage",
        "used",
        "active",
    ]
)
"""Words of a number that nobody knows, by which a rise, or a fall, is worse. Any other is a note:
memory, temperatures, queues and shares of the data move by design."""


def lasting_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return what changed its level at once and for good, attempt by attempt."""
    found: list[Finding] = []
    for name in record.columns:
        what = LASTING.get(name) or LASTING.get(name.partition("/")[0] + "/" * ("/" in name))
        if what is None or (name.startswith(OTHER) and is_seldom(record.columns[name])):
            continue
        for index in range(len(record.attempts)):
            found += _of(record, name, what, record.rows_of(index))
    return tuple(found)


def _of(record: RunRecord, name: str, what: Lasting, span: slice) -> list[Finding]:
    column = record.columns[name]
    rows = column.finite_rows(span)
    above = column.values[rows] > 0
    if above.sum() < max(2 * min(BARS), ABOVE_0 * len(rows)):
        return []
    rows = rows[above]
    least = MOVES if name.startswith(OTHER) else MEASURED
    if np.mean(np.diff(column.values[rows]) != 0) < least:
        return []
    size = -(-len(rows) // MOST)
    num = len(rows) // size
    logs = np.log(np.median(column.values[rows[: num * size]].reshape(num, size), axis=1))
    changes = [
        (score, at, m, factor, up)
        for up, least in ((True, what.up), (False, what.down))
        if math.isfinite(least)
        for score, at, m, factor in _changes(logs if up else -logs, math.log(least))
    ]
    if not changes:
        return []
    score, at, m, factor, up = max(changes)
    row = int(rows[_first(logs if up else -logs, at, m) * size])
    if at < BEGIN_SHARE * num or states_a_change(record, row, NEAR + size):
        return []
    if not name.startswith("loss/") and what.kind != "slowdown" and _is_learned(record, name, row):
        return []
    # What a policy tries changes the gradients of the next batches by itself, as far as they fall.
    falls = not up and factor <= BY_ITSELF
    of_agent = name == "grad_norm" and "reward" in record.columns and falls
    before = math.exp(float(np.mean(logs[at - m : at])))
    after = before * factor if up else before / factor
    label = signal_label(name) if name in LASTING else plain(name.removeprefix(OTHER), limit=60)
    return [
        finding_at(
            record,
            detector="lasting",
            kind=what.kind,
            signal=name,
            severity="warning" if _is_worse(name, up=up) and not of_agent else "info",
            row=int(rows[min(at + m, num - 1) * size]),
            onset_row=row,
            value=after,
            expected=before,
            score=min(99.0, 6.0 * math.sqrt(score)),
            direction="up" if up else "down",
            closed=True,
            text=(
                f"{label} {before:.4g} → {after:.4g} from one row to the next and to the end,"
                " and nothing that the log states was changed there (in hindsight)"
            ),
        )
    ]


def worse_by_words(name: str) -> int:
    """Return the sign of the direction in which an unknown number is worse; 0 where no word says it.

    Example:
        >>> [worse_by_words(f"other/{k}") for k in ("rmse_q700", "coverage", "gpu_temp")]
        [1, -1, 0]
    """
    words = _words(name)
    return int(bool(words & _WORSE_UP)) - int(bool(words & _WORSE_DOWN))


def _is_worse(name: str, *, up: bool) -> bool:
    """Whether a signal is worse for a rise or a fall that is told; of what nobody knows by words."""
    if not name.startswith(OTHER):
        return True
    words = _words(name)
    return bool(words & (_WORSE_UP if up else _WORSE_DOWN))


def _words(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", name.removeprefix(OTHER).lower()))


def _changes(logs: Floats, least: float) -> list[tuple[float, int, int, float]]:
    """Return G, row, window and factor of the largest change of each window."""
    sums, noise = TwoSides(logs), difference_sigma(np.diff(logs, 2), order=2)
    found = []
    for m, bar in BARS.items():
        if 2 * m > len(logs):
            break
        at = np.arange(m, len(logs) - m + 1)
        rise, g = sums.change(at, m)
        level = sums.mean(at - m, at)
        edge = max(2, m // 8)
        at_once = sums.mean(at, at + edge) - sums.mean(at - edge, at)
        to_end = sums.mean(at, np.full_like(at, len(logs))) - level
        over = (g > bar) & (rise >= max(least, OVER_NOISE * noise))
        over &= rise > OVER_OTHERS * _largest_elsewhere(rise, m)
        over &= (at_once > AT_ONCE * rise) & (to_end > AT_ONCE * rise)
        over &= float(logs[-m:].mean()) - level > AT_ONCE * rise
        if over.any():
            k = int(np.argmax(np.where(over, g, 0.0)))
            found.append((float(g[k]) / bar, int(at[k]), m, math.exp(float(rise[k]))))
    return found


def _largest_elsewhere(rise: Floats, m: int) -> Floats:
    """Return the largest change, up or down, whose windows do not hold the row, of each row.

    The first `m` changes are those of a run that finds its way: of them only rises count.
    """
    size = np.maximum(rise, 0.0)
    size[m:] = np.abs(rise[m:])
    apart = np.zeros(m + m // 8)
    before = np.concatenate((apart, np.maximum.accumulate(size)))[: len(rise)]
    after = np.concatenate((np.maximum.accumulate(size[::-1])[::-1], apart))[-len(rise) :]
    return np.asarray(np.maximum(before, after))


def _first(logs: Floats, at: int, m: int) -> int:
    """Return the row near a change that parts the rows around it best into two levels."""
    around, edge = logs[at - m : at + m], max(2, m // 8)
    return at - m + best_parting(around, np.arange(m - edge, m + edge + 1))


def _is_learned(record: RunRecord, name: str, row: int) -> bool:
    """Whether the loss drops, or a reward or score gains, at a row by more than before it."""
    if _gains(record, "loss", row, sign=-1.0):
        return True
    scores = (n for n in record.columns if n in SCORES or (n.startswith(OTHER) and n != name))
    return any(
        _gains(record, n, row, sign=1.0) for n in scores if n in SCORES or _words(n) & _BETTER_UP
    )


def _gains(record: RunRecord, signal: str, row: int, *, sign: float) -> bool:
    column = record.columns.get(signal)
    if column is None:
        return False
    span = record.rows_of(int(record.attempt[row]))
    old = column.values[column.finite_rows(slice(span.start, row))][-2 * EDGE :]
    new = column.values[column.finite_rows(slice(row, span.stop))][:EDGE]
    if len(old) < 2 * EDGE or len(new) < EDGE:
        return False
    before, last = median(old[:EDGE]), median(old[EDGE:])
    gain = sign * (median(new) - last) - max(sign * (last - before), 0.0)
    noise = difference_sigma(np.diff(np.concatenate([old, new])))
    return gain > OVER_ERRORS * 1.25 * noise * math.sqrt(3 / EDGE)
