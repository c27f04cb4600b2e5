"""The reference test: what can be told at all by one who knows place and shape.

The mean of a run with the fault, less that without it, is the shape d. Under Gaussian noise with
lag-one correlation phi no test of the size alpha = .01 that knows d beats the matched filter:

    snr^2 = d' S^-1 d,    power = Phi(snr - z),  z = Phi^-1(.99) = 2.326

with S the covariance of the noise, and d less its part in the span of 1, x, x^2, x^3 with
x = ln(row + 1): nobody knows the smooth curve that a run would have followed. Heavy-tailed noise is
treated by its standard deviation, which understates what a robust test could do there. A fault of
settings or non-finite values has no noise to hide in: its power is 1.
"""

import math
from statistics import NormalDist

import numpy as np

from benchmarks.everyday.faults import EverydayFault
from benchmarks.everyday.runs import Floats, MadeRun, make_healthy

__all__ = ["MIN_POWER", "reference_power"]

MIN_POWER = 0.95
"""Cases below this power of the reference test are left out."""
_ALPHA = 0.01
_NORM_SIGMA = 0.01
"""Noise of log throughput, as `make_healthy` has it."""


def reference_power(
    fault: EverydayFault, seed: int, num_rows: int, *, rows_seen: int | None = None
) -> float:
    """Return the power of the reference test on one case, 0 to 1.

    Args:
        fault: Which.
        seed: Of the run.
        num_rows: Of the run.
        rows_seen: How many of them the test is given; None: all.
    """
    if fault.exact:
        return 1.0
    seen = slice(rows_seen)
    faulty, healthy = (make_healthy(seed, num_rows, noise=False) for _ in range(2))
    fault.plant(faulty)
    square = 0.0
    for name in fault.signals:
        base = _without(healthy, fault, name)
        d = faulty.columns[name] - base
        rows = faulty.present.get(name)
        sigma, phi = faulty.sigma, faulty.dependence
        if name == "throughput":
            d, sigma, phi = np.log(faulty.columns[name] / base), _NORM_SIGMA, 0.0
        elif name != "loss":
            # Other signals have noise of their own in each row.
            sigma, phi = (faulty.sigma / 4 if name.startswith("val") else faulty.sigma), 0.0
        d, x = d[seen], np.log(np.arange(num_rows)[seen] + 1.0)
        if rows is not None:
            d, x = d[rows[seen]], x[rows[seen]]
        square += _snr(d, x, sigma, phi) ** 2
    return NormalDist().cdf(math.sqrt(square) - NormalDist().inv_cdf(1 - _ALPHA))


def _without(healthy: MadeRun, fault: EverydayFault, name: str) -> Floats:
    """Return the signal of the healthy run; a set's own where the twin logs sets apart."""
    if name not in healthy.columns:
        fault.twin(healthy)
    return healthy.columns[name]


def _snr(d: Floats, x: Floats, sigma: float, phi: float) -> float:
    design = np.stack([x**k for k in range(4)], axis=1)
    # Whitening of an AR(1) process: differences with phi, the first row scaled.
    root = math.sqrt(1 - phi * phi)
    both = np.column_stack([design, d]) / sigma
    white = np.vstack([both[:1], (both[1:] - phi * both[:-1]) / root])
    basis, _ = np.linalg.qr(white[:, :-1])
    rest = white[:, -1] - basis @ (basis.T @ white[:, -1])
    return float(np.sqrt(rest @ rest))
