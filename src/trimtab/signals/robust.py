"""Robust statistics: medians, spreads, slopes and running medians, for every part of the project.

All spreads rest on the median absolute deviation, scaled to the standard deviation of normal
noise, because a log under judgment holds the very spikes that would inflate a standard deviation:
up to half of the values may be wrong before a median is. What differs between the callers is
stated by the name of the function or by a named argument, never by a second formula elsewhere:

| noise of                              | function                 | removes                    |
| ------------------------------------- | ------------------------ | -------------------------- |
| values around one level               | `mad_sigma`              | nothing, or a given center |
| the same, most of them equal          | `floored_sigma`          | the center                 |
| values on a trend                     | `difference_sigma`       | a level, or a straight line |
| blocks that may follow one another    | `dependent_blocks_sigma` | a straight line            |
| medians of blocks, few rows at hand   | `block_median_sigma`     | a level                    |

No small-sample correction is applied to the median absolute deviation. Of 4 normal values it reads
26 % low on the mean, of 10 9 %, of 24 3 % (simulated; factors for exact correction are in Croux &
Rousseeuw, 1992). Callers ask for enough rows first, and each has a floor of its own below which it
believes no spread, because a log rounds its numbers.

References:
    Hampel (1974), The influence curve and its role in robust estimation, JASA 69(346).
    Rousseeuw & Croux (1993), Alternatives to the median absolute deviation, JASA 88(424).
    Croux & Rousseeuw (1992), Time-efficient algorithms for two highly robust estimators of scale,
    Computational Statistics 1.
"""

import math
from bisect import insort
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "MAD_TO_SIGMA",
    "MEAN_DEVIATION_TO_SIGMA",
    "RUNNING_WINDOW_STEPS",
    "block_median_sigma",
    "dependent_blocks_sigma",
    "difference_sigma",
    "floored_sigma",
    "mad_sigma",
    "median",
    "medians",
    "printed_unit",
    "running_median",
    "theil_sen_slope",
]

Floats = NDArray[np.float64]

MAD_TO_SIGMA: Final = 1.4826
"""Standard deviation over median absolute deviation of normal noise: 1 / Phi^-1(3/4) = 1.482602,
to the four digits that Rousseeuw & Croux (1993) give."""

MEAN_DEVIATION_TO_SIGMA: Final = 1.25
"""Standard deviation over mean absolute deviation of normal noise: sqrt(pi / 2) = 1.2533."""

FALL_TO_SIGMA: Final = 0.01
"""Standard deviation over the fall of a loss, where its own spread says nothing: the descent of a
language model is 50 to 200 standard deviations of its rows. Ours."""

RUNNING_WINDOW_STEPS: Final = 21
"""Default window of a running median, steps: longer than the noise, shorter than a fault. Ours."""

_DIVISOR: Final = {
    (1, "value"): math.sqrt(2.0),
    (2, "value"): math.sqrt(6.0),
    (1, "difference"): 1.0,
    (2, "difference"): math.sqrt(3.0),
}
"""Standard deviation of a k-th difference of independent noise, in that of a value or of a first
difference: the root of the sum of the squared binomial coefficients, 1 + 1 and 1 + 4 + 1."""

_SHORT_FACTOR: Final = 2.0
"""Standard deviation of a median of n rows times sqrt(n), over that of a row. Independent normal
rows have sqrt(pi / 2) = 1.25; the rest allows for rows that follow one another. Ours."""


def median(values: Floats) -> float:
    """Return the median of finite values.

    Equals `float(np.median(values))` bit for bit, at a fifth of its cost for windows of 10 to 200.

    Args:
        values: float64 [n >= 1], finite; NaN would be sorted to the end and counted as large.

    Cost: O(n log n), one sort.

    Example:
        >>> median(np.array([3.0, 1.0, 2.0, 10.0]))
        2.5
    """
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return (float(ordered[middle - 1]) + float(ordered[middle])) / 2


def medians(blocks: Floats) -> list[float]:
    """Return the median of each row of finite float64 [m, n >= 1], as `median` gives them.

    Example:
        >>> medians(np.array([[3.0, 1.0, 2.0], [4.0, 4.0, 9.0]]))
        [2.0, 4.0]
    """
    ordered = np.sort(blocks, axis=1)
    middle = blocks.shape[1] // 2
    found = ordered[:, middle]
    if blocks.shape[1] % 2 == 0:
        found = (ordered[:, middle - 1] + found) / 2
    return [float(m) for m in found]


def mad_sigma(values: Floats, *, center: float | None = None) -> float:
    """Return the standard deviation of values around a level, by their median absolute deviation.

    sigma = 1.4826 median |x - center|

    Blind to what less than half of the values do; 0 where more than half are equal to the center.

    Args:
        values: float64 [n >= 1], finite, or with infinities under a finite center.
        center: The level. None: the median of the values. 0 for residuals, whose level a caller
            has removed already: around their own median a constant bias would be lost.

    Returns:
        In the unit of the values.

    Cost: O(n log n); twice that without a center.

    Example:
        >>> round(mad_sigma(np.array([2.0, 2.1, 1.9, 2.0, 2.1, 9.0])), 4)
        0.0741

    References:
        Hampel (1974), The influence curve and its role in robust estimation, JASA 69(346).
        Rousseeuw & Croux (1993), Alternatives to the median absolute deviation, JASA 88(424).
    """
    if center is None:
        center = median(values)
    return MAD_TO_SIGMA * median(np.abs(values - center if center else values))


def floored_sigma(residuals: Floats, *, fall: float) -> float:
    """Return the spread of residuals, which is no less than a share of a fall where most are equal.

    sigma = 1.4826 median |r|;  where 2 sigma <= q / 1.96: max(sigma, fall / 100)
    q     = 95th percentile of |r|

    A loss that has come down to where most batches cost nothing (hinge, triplet) has a median
    deviation of about 0, and each batch that costs something would be any number of deviations
    away. Of the fall that lies behind it, it is a small part. For normal noise q / 1.96 is sigma;
    for Student's t with 3 degrees of freedom it is 1.3 sigma, in 1 of 100 windows of 128 rows 2.

    Args:
        residuals: float64 [n >= 1], finite, their center removed.
        fall: What the values have come down by so far, in their unit; below 0 or NaN counts as 0.

    Returns:
        In the unit of the values. a x + b with a > 0 gives a sigma.

    Example:
        >>> floored_sigma(np.array([0.0, 0.0, 0.0, 0.0, 0.02]), fall=0.5)
        0.005
        >>> round(floored_sigma(np.array([0.1, -0.2, 0.1, 0.2, -0.1]), fall=50.0), 3)
        0.148
    """
    sigma = mad_sigma(residuals, center=0.0)
    far = float(np.sort(np.abs(residuals))[int(0.95 * (len(residuals) - 1))])
    return max(sigma, FALL_TO_SIGMA * fall) if 2 * sigma <= far / 1.96 and fall > 0 else sigma


def printed_unit(values: Floats) -> float:
    """Return what values move by at least, where most rows are printed alike: their last digit.

    Noise below it is not seen, and a move by one of it is none.

    Args:
        values: float64 [n], finite, in their order.

    Returns:
        The median of the moves that are not 0, where half of the moves or more are; else 0.

    Example:
        >>> printed_unit(np.array([0.1, 0.1, 0.1, 0.11, 0.11, 0.11])) == 0.11 - 0.1
        True
    """
    moves = np.abs(np.diff(values))
    moved = moves[moves > 0]
    return float(np.median(moved)) if len(moved) and 2 * len(moved) <= len(moves) else 0.0


def difference_sigma(
    differences: Floats,
    *,
    order: Literal[1, 2] = 1,
    of: Literal["value", "difference"] = "value",
) -> float:
    """Return the standard deviation of independent noise on a trend, from differences of neighbors.

    sigma = 1.4826 median |d| / c,  c = sqrt(2) for d[t] = x[t] - x[t-1],
                                    c = sqrt(6) for d[t] = x[t] - 2 x[t-1] + x[t-2]

    First differences remove a level and most of a slow trend, second ones a straight line and most
    of a bend. Noise that follows its neighbors is understated: see `dependent_blocks_sigma`.

    Args:
        differences: float64 [n >= 1], finite; a caller computes them, since it often has them.
        order: 1 for first differences, 2 for second ones.
        of: "value": the noise of one value. "difference": sqrt(2) times that, the noise of the
            distance between two values, for a rule that holds one noisy block against another.

    Returns:
        In the unit of the differences.

    Example:
        >>> x = np.array([5.0, 4.1, 2.9, 2.0, 1.1])
        >>> round(difference_sigma(np.diff(x)), 3)
        0.944
        >>> round(difference_sigma(np.diff(x, 2), order=2), 3)
        0.182

    References:
        Rice (1984), Bandwidth choice for nonparametric regression, Annals of Statistics 12(4).
        Gasser, Sroka & Jennen-Steinmetz (1986), Residual variance and residual pattern in
        nonlinear regression, Biometrika 73(3). Both with squares, here with the median.
    """
    return MAD_TO_SIGMA * median(np.abs(differences)) / _DIVISOR[order, of]


def dependent_blocks_sigma(blocks: Floats) -> float:
    """Return the standard deviation that one block would have if blocks were independent.

    near  = 1.4826 median |x[t+2] - 2 x[t+1] + x[t]| / sqrt(6)
    m[t]  = mean of x[t] .. x[t+3],  d[t] = m[t+4] - m[t]
    far   = 1.4826 median |d - median(d)| sqrt(2)
    sigma = max(near, far)

    Independent blocks give the same for both. Blocks that follow one another are nearer to their
    neighbors than noise would have them, which `near` understates and `far` sees; a slope moves
    every d alike and so counts in neither. Blind to dependence over more than some eight blocks.

    Args:
        blocks: float64 [n >= 8], finite, in order, one value a block; fewer raise IndexError.

    Returns:
        In the unit of the blocks.

    Example:
        >>> noise = np.random.default_rng(0).normal(size=4000)
        >>> round(dependent_blocks_sigma(noise), 1)
        1.0

    References:
        As `difference_sigma`; comparing two distances is the idea of Allan (1966), Statistics of
        atomic frequency standards, Proc. IEEE 54(2). The choice of four is ours.
    """
    # grouped so that the result stays the same to the last bit in every caller
    second = blocks[2:] - 2 * blocks[1:-1] + blocks[:-2]
    near = difference_sigma(second, order=2)
    sums = np.concatenate([[0.0], np.cumsum(blocks)])
    fours = (sums[4:] - sums[:-4]) / 4
    # a mean of four has half the deviation of a block, a difference of two means sqrt(2) of that
    far = mad_sigma(fours[4:] - fours[:-4]) * math.sqrt(2.0)
    return max(near, far)


def block_median_sigma(values: Floats, size: int) -> float:
    """Return the standard deviation of the median of `size` rows, the last block at the end.

    sigma = 1.4826 median |b[k+1] - b[k]| / sqrt(2),  b[k] = median of the k-th block

    Correction for few rows: below four blocks there is no spread of blocks to take, so the spread
    of the rows stands in for it, 2 sigma(rows) / sqrt(size) (`difference_sigma` of the rows).

    Args:
        values: float64 [n >= 2], finite, in order; what does not fill a block is left out at the
            start.
        size: Rows in a block, at least 1.

    Returns:
        In the unit of the values.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=4000)
        >>> round(block_median_sigma(rows, 16), 2), round(block_median_sigma(rows[-50:], 16), 2)
        (0.33, 0.53)
    """
    num = len(values) // size
    # Four blocks have three differences, the fewest of which a median drops an outlier.
    if num < 4:
        return _SHORT_FACTOR * difference_sigma(np.diff(values)) / math.sqrt(size)
    blocks = np.median(values[len(values) - num * size :].reshape(num, size), axis=1)
    return difference_sigma(np.diff(blocks))


def theil_sen_slope(x: Floats, y: Floats) -> float:
    """Return the slope of y over x: the median of the slopes of all pairs.

    slope = median over i < j of (y[j] - y[i]) / (x[j] - x[i])

    Up to 29 % of the values may be wrong before it breaks: one spike does not bend it.

    Args:
        x: float64 [n >= 2], finite, strictly monotonic.
        y: float64 [n], finite.

    Cost: O(n^2) in memory: for tens of blocks, not for rows.

    Example:
        >>> theil_sen_slope(np.arange(6.0), np.array([0.0, 2.0, 4.0, 6.0, 8.0, 90.0]))
        2.0

    References:
        Theil (1950), A rank-invariant method of linear and polynomial regression analysis.
        Sen (1968), Estimates of the regression coefficient based on Kendall's tau, JASA 63(324).
    """
    i, j = np.triu_indices(len(x), 1)
    return float(np.median((y[j] - y[i]) / (x[j] - x[i])))


def running_median(y: Floats, window: int = RUNNING_WINDOW_STEPS) -> Floats:
    """Return the median of `window` values around each value.

    m[t] = median y[t-h .. t+h], h = window // 2; at the ends the values that there are.

    Args:
        y: float64 [n]; NaN anywhere in a window makes its median NaN, so a gap stays a gap.
        window: Values in a window; an even one is widened by one.

    Returns:
        float64 [n].

    Cost: O(n * window).

    Example:
        >>> running_median(np.array([1.0, 9.0, 1.0, 2.0, 2.0]), window=3).tolist()
        [5.0, 1.0, 2.0, 2.0, 2.0]

    References:
        Tukey (1977), Exploratory Data Analysis, chapter 7: running medians, short at the ends.
    """
    half, n = window // 2, len(y)
    smooth = np.empty(n, dtype=np.float64)
    if n >= 2 * half + 1:
        whole = np.lib.stride_tricks.sliding_window_view(y, 2 * half + 1)
        smooth[half : n - half] = np.median(whole, axis=1)
    # The right end is the left end of the values in reverse; where n is short, it is shorter, so
    # that no row is worked out twice.
    smooth[: min(half, n)] = _first_medians(y[: 2 * half].tolist(), half, min(half, n))
    num = n - max(half, n - half)
    if num > 0:
        last = y[::-1][: 2 * half].tolist()
        smooth[n - num :] = _first_medians(last, half, num)[::-1]
    return smooth


def _first_medians(y: list[float], half: int, num: int) -> list[float]:
    """Return the medians of y[: half + 1], y[: half + 2] …, `num` in all; y ends where it ends."""
    # Kept in order as it grows: to sort every window anew takes twenty times as long.
    ordered, found = sorted(y[:half]), list[float]()
    for i in range(num):
        if half + i < len(y):
            insort(ordered, y[half + i])
        middle = len(ordered) // 2
        even = not len(ordered) % 2
        found.append((ordered[middle - 1] + ordered[middle]) / 2 if even else ordered[middle])
    gap = next((k for k, v in enumerate(y) if v != v), math.inf)
    return [v if half + i < gap else math.nan for i, v in enumerate(found)]
