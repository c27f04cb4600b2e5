"""Checks confidence on simulated runs: how often incidents of a stated confidence are right.

    pairs = simulate_pairs(range(100, 120))
    print(reliability_table([(p.confidence, p.right) for p in pairs]))

Each seed makes one run per fault and noise: spikes, slow and unrecovered spikes, shifts and drifts
of sizes from hardly visible to plain, runs without a fault, in noise that is Gaussian,
autocorrelated, heavy-tailed, strewn with outlying rows, or wanders. An alarm is right if its
interval, widened by 50 rows, touches the planted one. Half of the runs have no fault.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.confidence import rule_group
from trimtab.detectors.hindsight import hindsight_findings
from trimtab.detectors.judge import judge_record
from trimtab.incidents import Incident, group_findings, leading_finding
from trimtab.record import RunRecord
from trimtab.testing.curves import make_noise, record_of

__all__ = ["Pair", "reliability", "reliability_table", "simulate_pairs"]

Floats = NDArray[np.float64]

NUM_ROWS = 1200
AT = 800
TOLERANCE_ROWS = 50
FAULTS = ("spike", "slow-spike", "unrecovered-spike", "shift", "drift", "norm-spike")
NOISES = ("gaussian", "ar1", "t3", "outliers", "wandering")


@dataclass(frozen=True)
class Pair:
    """One alarm on a simulated run."""

    group: str
    score: float
    confidence: float
    right: bool


def simulate_pairs(seeds: Iterable[int]) -> list[Pair]:
    """Return what is said of the simulated runs of these seeds; about eight seconds a seed."""
    pairs: list[Pair] = []
    for seed in seeds:
        for n, noise in enumerate(NOISES):
            for f, fault in enumerate((*FAULTS, *["none"] * len(FAULTS))):
                rng = np.random.default_rng([seed, n, f])
                record, span = _run(fault, noise, rng)
                pairs += [_pair(i, span) for i in _alarms(record)]
    return pairs


def _alarms(record: RunRecord) -> list[Incident]:
    findings = (*judge_record(record), *hindsight_findings(record))
    return [i for i in group_findings(record, findings) if i.severity != "info"]


def _pair(incident: Incident, span: tuple[int, int] | None) -> Pair:
    lead = leading_finding(incident)
    end = incident.peak_row if incident.end_row is None else incident.end_row
    right = span is not None and (
        incident.first_row - TOLERANCE_ROWS <= span[1] and span[0] - TOLERANCE_ROWS <= end
    )
    return Pair(rule_group(lead.detector), lead.score, incident.confidence, right)


def _run(
    fault: str, noise: str, rng: np.random.Generator
) -> tuple[RunRecord, tuple[int, int] | None]:
    """Return a run of loss and grad norm, and the rows in which it is at fault."""
    t = np.arange(NUM_ROWS, dtype=np.float64)
    size = float(np.exp(rng.uniform(np.log(0.03), np.log(2.0))))
    width = int(rng.integers(3, 60))
    since = np.clip(t - AT, 0.0, None)
    on = (t >= AT).astype(np.float64)
    shapes = {
        "spike": on * np.clip(1 - since / width, 0, 1),
        "slow-spike": on * np.exp(-since / (5 * width)),
        "unrecovered-spike": on * (0.4 + 0.6 * np.exp(-since / width)),
        "shift": on,
        "drift": since / 400,
    }
    rise = shapes.get(fault, np.zeros(NUM_ROWS))
    loss = 2.2 + 4 * (1 + t / 60) ** -0.7 + size * rise + 0.03 * _noise(noise, rng)
    norm_rise = shapes["spike"] if fault in (*FAULTS[:3], "norm-spike") else 0.0
    # a norm at fifty times its level is a spike, whatever made it
    norm = np.exp(0.15 * _noise("t3" if noise == "outliers" else noise, rng) + 4 * size * norm_rise)
    record = record_of(t + 1, {"loss": loss, "grad_norm": norm})
    lasts = fault in ("unrecovered-spike", "shift", "drift")
    last = NUM_ROWS - 1 if lasts else AT + width * (20 if fault == "slow-spike" else 1)
    return record, None if fault == "none" else (AT, last)


def _noise(kind: str, rng: np.random.Generator) -> Floats:
    if kind == "outliers":
        lone = rng.random(NUM_ROWS) < 0.01
        return make_noise(NUM_ROWS, "gaussian", rng) + lone * rng.exponential(12.0, NUM_ROWS)
    if kind == "wandering":
        slow = make_noise(NUM_ROWS, "ar1", rng, phi=0.99)
        return np.asarray(0.7 * make_noise(NUM_ROWS, "gaussian", rng) + 0.7 * slow)
    return make_noise(
        NUM_ROWS, "ar1" if kind == "ar1" else "t3" if kind == "t3" else "gaussian", rng
    )


def reliability(
    pairs: Iterable[tuple[float, bool]], *, edges: Sequence[float] = (0.0, 0.5, 0.7, 0.85, 0.95)
) -> list[tuple[float, float, int]]:
    """Return (mean confidence said, share right, number) per bin of confidence.

    Empty bins left out.
    """
    told = list(pairs)
    rows: list[tuple[float, float, int]] = []
    for low, high in zip(edges, (*edges[1:], 1.01), strict=True):
        here = [(c, r) for c, r in told if low <= c < high]
        if here:
            said = sum(c for c, _ in here) / len(here)
            rows.append((said, sum(r for _, r in here) / len(here), len(here)))
    return rows


def reliability_table(pairs: Iterable[tuple[float, bool]]) -> str:
    """Return the reliability as text, one line per bin of confidence."""
    lines = ["said  right  incidents"]
    lines += [f"{said:4.2f}  {share:5.2f}  {n:9d}" for said, share, n in reliability(pairs)]
    return "\n".join(lines)
