"""Which of some columns add up to a total, by arithmetic.

A key says little: `ce_loss` beside `loss` may be a part of it, the same number again, or a metric.
So the total is explained by the others, each with a fixed weight that is not negative; its moves
from row to row are, since all losses have a descent in common. Where that leaves a twentieth of the
spread of the moves or less, those are its parts that it cannot be explained without, and that alone
do not nearly explain it.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["summands"]

Floats = NDArray[np.float64]

_LEFT, _LEFT_ALONE = 0.05, 0.2
"""Of the standard deviation of those moves, that may stay unexplained, and that one column alone
leaves at least: what leaves less may be the total in another unit. All bars are ours."""
_APART = 0.1
"""Of the total, by which the sum may lie apart: for a term that is not logged, and hardly moves."""
_MOST, _MOST_ROWS = 16, 512
_FEWEST_ROWS, _ROWS_EACH = 32, 4


def summands(total: Floats, others: Mapping[str, Floats]) -> frozenset[str]:
    """Return the keys of the columns that a total is made of; none where they do not explain it.

    Args:
        total: float64 [n_rows]; NaN where it is missing.
        others: By key, each [n_rows] as well; the first 16 count.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> ce, aux, acc = draw.random((3, 100))
        >>> sorted(summands(ce + 0.5 * aux, {"ce": ce, "aux": aux, "acc": acc}))
        ['aux', 'ce']
    """
    keys = [k for k, v in others.items() if len(v) == len(total)][:_MOST]
    if len(keys) < 2:
        return frozenset()
    table = np.stack([others[k] for k in keys], axis=1)
    rows = np.flatnonzero(np.isfinite(total) & np.isfinite(table).all(axis=1))
    if len(rows) < max(_FEWEST_ROWS, _ROWS_EACH * len(keys)):
        return frozenset()
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _MOST_ROWS)).astype(np.intp)]
    total, table = total[rows], table[rows]
    y, x = np.diff(total), np.diff(table, axis=0)
    if not np.ptp(y):
        return frozenset()
    weights = _weights(x, y)
    apart = abs(float(np.mean(total - table @ weights)))
    if _left(x, y) > _LEFT or apart > _APART * float(np.mean(np.abs(total))):
        return frozenset()
    return frozenset(
        key
        for i, key in enumerate(keys)
        if _left(np.delete(x, i, axis=1), y) > _LEFT and _left(x[:, [i]], y) > _LEFT_ALONE
    )


def _left(x: Floats, y: Floats) -> float:
    """Return the share of the spread of y that no sum of columns with weights >= 0 explains."""
    return float(np.std(y - x @ _weights(x, y)) / np.std(y))


def _weights(x: Floats, y: Floats) -> Floats:
    """Return weights >= 0 of the columns, whose sum comes near to y.

    Least squares, without the column of the most negative weight, until none is negative: not
    always the best of such sums, and never better than it.
    """
    weights = np.zeros(x.shape[1])
    kept = list(range(x.shape[1]))
    while kept:
        found = np.linalg.lstsq(x[:, kept], y, rcond=None)[0]
        worst = int(np.argmin(found))
        if found[worst] >= 0:
            weights[kept] = found
            break
        del kept[worst]
    return weights
