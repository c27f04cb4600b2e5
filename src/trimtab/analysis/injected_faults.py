"""The faults that a self-test adds to copies of a run's own rows: a table of data.

Sizes count in the noise of the run: robust standard deviations of a signal about its running
median, on the signal's scale (a loss as it is, a norm as its logarithm). So a fault is as hard to
see in one run as in another, whatever the unit of the loss.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.few_rows import FEWEST_ROWS, MOST_ROWS
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma, running_median
from trimtab.vocabulary import SIGNAL_BY_NAME

__all__ = ["INJECTED_FAULTS", "InjectedFault", "noise_of", "with_fault"]

Floats = NDArray[np.float64]

NOISE_ROWS = 1024
"""Records at the end of the log from which its noise is taken."""
LOCAL_ROWS = 64
"""Records on each side of a place from which the noise there is taken."""
LEAST_SHARE = 4e-3
"""Of the level of a loss: the smallest noise that a fault is measured by. As in `hindsight`."""
FEW_SHARE = 0.02
"""The same of a log that is judged whole for its few rows: where each is the mean of an epoch, the
noise says little of what matters. Sixteen times as much is a third of the level."""
NOISE_WINDOW = 31
"""Records in the running median that the noise is measured about; longer than most dependence."""


@dataclass(frozen=True, kw_only=True)
class InjectedFault:
    """One fault of the table."""

    name: str
    title: str
    """As a sentence says it: `would see TITLE of 0.15`."""
    signal: str
    shape: Literal["burst", "step", "ramp", "halving", "twice", "nan"]
    """`burst`: added for `num_rows` records; `step`: added to the end; `ramp`: added little by
    little over `num_rows` records, then to the end; `halving`: halved each record, `num_rows`
    times; `twice`: doubled to the end; `nan`: NaN for `num_rows` records."""
    num_rows: int = 1
    direction: Literal[1, -1] = 1
    horizon_rows: int
    """Records of the signal, from the fault on, within which it must be seen."""
    large: float
    """Size that a working judge sees, in standard deviations of the noise."""
    least_rows: int = 30
    """Records of the signal that a log must have for the fault to be injected."""
    most_rows: float = math.inf
    """Records of the signal from which on a fault in units of noise stands for it."""
    num_large: int
    """How often that size is added."""
    num_graded: int = 0
    """How often it is added with sizes around the smallest that is seen."""
    required: bool = False
    """Whether a run is called healthy only where this fault would be seen."""
    settles: bool = False
    """Whether rules in hindsight see it by the rows near its onset, so that they judge it too."""


INJECTED_FAULTS: tuple[InjectedFault, ...] = (
    InjectedFault(
        name="spike",
        title="a 3-row spike",
        signal="loss",
        shape="burst",
        num_rows=3,
        horizon_rows=40,
        large=30.0,
        num_large=10,
        num_graded=10,
        required=True,
        settles=True,
    ),
    InjectedFault(
        name="rise",
        title="a lasting rise",
        signal="loss",
        shape="step",
        horizon_rows=128,
        large=16.0,
        num_large=10,
        num_graded=12,
        required=True,
        settles=True,
    ),
    InjectedFault(
        name="twice",
        title="a lasting rise to twice",
        signal="loss",
        shape="twice",
        horizon_rows=30,
        large=1.0,
        least_rows=FEWEST_ROWS,
        most_rows=29,
        num_large=10,
        required=True,
    ),
    InjectedFault(
        name="drift",
        title="a rise over 200 rows",
        signal="loss",
        shape="ramp",
        num_rows=200,
        least_rows=600,
        horizon_rows=320,
        large=20.0,
        num_large=3,
        num_graded=5,
    ),
    InjectedFault(
        name="nan",
        title="a NaN",
        signal="loss",
        shape="nan",
        horizon_rows=4,
        large=1.0,
        least_rows=FEWEST_ROWS,
        num_large=3,
        required=True,
    ),
    InjectedFault(
        name="drop",
        title="a sudden fall",
        signal="loss",
        shape="step",
        direction=-1,
        least_rows=600,
        horizon_rows=64,
        large=40.0,
        num_large=3,
        num_graded=3,
    ),
    InjectedFault(
        name="norm-burst",
        title="a gradient norm of 12 rows",
        signal="grad_norm",
        shape="burst",
        num_rows=12,
        horizon_rows=64,
        large=25.0,
        num_large=4,
        num_graded=5,
        settles=True,
    ),
    InjectedFault(
        name="scale-fall",
        title="a loss scale that halves 12 times",
        signal="loss_scale",
        shape="halving",
        num_rows=12,
        horizon_rows=24,
        large=1.0,
        num_large=3,
    ),
    InjectedFault(
        name="slow-steps",
        title="slower steps",
        signal="step_time_s",
        shape="step",
        horizon_rows=96,
        large=40.0,
        num_large=3,
    ),
)
"""Lengths are those of the faults that people report: a few bad batches, a level that stays, a
drift of a few hundred records. Large sizes are those that a person sees in a picture at once, and
twice to four times the bars of the rules: one that works has no reason to miss them."""


def noise_of(record: RunRecord, signal: str, around: int | None = None) -> float:
    """Return the noise of a signal, on its scale; NaN where there are fewer than eight values.

    sigma = 1.4826 median |y - m|, m = running median of 31 records

    A signal without noise has that of the resolution it is logged with. No noise is smaller than a
    share of the level: where it has died away, a fault of 30 times nearly nothing does not matter.

    Args:
        record: What the run logged.
        signal: Canonical name.
        around: A row about which it is taken, 64 records on each side: many a loss becomes quieter
            as it falls. None: of the last 1,024 records.

    Cost: O(NOISE_ROWS x NOISE_WINDOW).
    """
    column = record.columns.get(signal)
    if column is None:
        return float("nan")
    values = column.logged()
    if around is None:
        values = values[-NOISE_ROWS:]
    else:
        at = int(np.count_nonzero(column.present[:around]))
        first = max(0, min(at - LOCAL_ROWS, len(values) - 2 * LOCAL_ROWS))
        values = values[first : first + 2 * LOCAL_ROWS]
    values = values[np.isfinite(values)]
    least = 0.0
    if SIGNAL_BY_NAME[signal].scale == "log":
        values = np.log(values[values > 0])
    elif len(values):
        few = np.count_nonzero(column.present) <= MOST_ROWS
        least = (FEW_SHARE if few else LEAST_SHARE) * float(np.median(np.abs(values)))
    if len(values) < 8:
        return float("nan")
    sigma = mad_sigma(values - running_median(values, NOISE_WINDOW), center=0.0)
    if sigma > 0:
        return max(sigma, least)
    steps = np.abs(np.diff(values))
    steps = steps[steps > 0]
    if len(steps):
        return max(float(steps.min()), least)
    return 1e-3 * max(float(np.abs(values).max()), 1e-9)


def with_fault(fault: InjectedFault, values: Floats, size: float, sigma: float) -> Floats:
    """Return consecutive records of a signal with a fault that begins at the first of them.

    Args:
        fault: What to add.
        values: float64 [n], as logged; NaN and Inf stay.
        size: In standard deviations of the noise; not used by `nan`, `twice` and `halving`.
        sigma: That of the noise, on the signal's scale.
    """
    n = len(values)
    since = np.arange(n, dtype=np.float64)
    if fault.shape == "nan":
        return np.where(since < fault.num_rows, np.nan, values)
    if fault.shape == "twice":
        return np.asarray(values + np.abs(values))
    if fault.shape == "halving":
        return np.asarray(values * 0.5 ** np.minimum(since + 1, fault.num_rows))
    if fault.shape == "burst":
        weight = (since < fault.num_rows).astype(np.float64)
    elif fault.shape == "ramp":
        weight = np.minimum((since + 1) / fault.num_rows, 1.0)
    else:
        weight = np.ones(n)
    added = fault.direction * size * sigma * weight
    if SIGNAL_BY_NAME[fault.signal].scale == "log":
        return np.asarray(values * np.exp(np.minimum(added, 700.0)))
    return np.asarray(values + added)
