"""Whether the power that a self-test states is the power that there is.

For each made-up run (a seed, a noise, a length) the self-test states how likely a fault of any size
is seen. Then faults are planted in the same run by code of our own, at places and of sizes that
the self-test did not choose, one to a copy, and the copy is analyzed whole, as `inspect` does: seen
is an alarm that the run without the fault does not have. A fault that lasts is planted so that the
log ends as many rows later as the self-test looks on. Each planted fault gives a pair: the power
that was stated for its size, and whether it was seen.

The loss is 2 + 9 exp(-t/150) + 1.2 (1 + t/400)^-0.6 (`testing.curves.lm_curve`), or level, with
noise of .02 to .05; the gradient norm log-normal. Every third run is of a loss times a plus b.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.analysis.self_test import FaultPower
from trimtab.record import RunRecord
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise, record_of

__all__ = ["PlantedFault", "measure_power", "power_table", "stated_against_seen"]

Floats = NDArray[np.float64]

LENGTHS = (100, 300, 1000, 3000)
NOISES: tuple[NoiseKind, ...] = ("gaussian", "ar1", "t3")
FAULTS = ("spike", "rise", "drift", "norm-burst")
PER_RUN = 3
"""Faults of each kind planted in each run, one to a copy."""
BINS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


@dataclass(frozen=True, kw_only=True)
class PlantedFault:
    """One fault planted in a copy of a run."""

    fault: str
    noise: str
    rows: int
    size: float
    """In standard deviations of the noise."""
    stated: float
    """Probability of being seen that the self-test of the run states for it."""
    seen: bool


def measure_power(
    seeds: Iterable[int],
    *,
    lengths: Sequence[int] = LENGTHS,
    say: Callable[[str], None] = lambda _: None,
) -> list[PlantedFault]:
    """Plant faults in runs of these seeds and return what was stated and seen of each.

    Cost: about a second a run; twelve runs a seed.
    """
    planted: list[PlantedFault] = []
    for seed in seeds:
        for n, noise in enumerate(NOISES):
            for length in lengths:
                say(f"seed {seed}, {noise}, {length} rows: {len(planted)} faults so far")
                rng = np.random.default_rng([seed, n, length])
                planted += _of_one_run(_columns(noise, length, rng), noise, rng)
    return planted


def _columns(noise: NoiseKind, length: int, rng: np.random.Generator) -> dict[str, Floats]:
    level = lm_curve(length) if rng.random() < 0.7 else np.full(length, 2.5)
    loss = level + rng.uniform(0.02, 0.05) * make_noise(length, noise, rng)
    if rng.random() < 1 / 3:
        loss = rng.uniform(0.3, 3.0) * loss + rng.uniform(0.0, 2.0)
    norm = np.exp(rng.uniform(0.1, 0.3) * make_noise(length, noise, rng))
    return {"loss": loss, "grad_norm": norm}


def _of_one_run(
    columns: dict[str, Floats], noise: str, rng: np.random.Generator
) -> list[PlantedFault]:
    account = make_account(_record(columns))
    if account.self_test is None:
        return []
    found: list[PlantedFault] = []
    for power in account.self_test.faults:
        for _ in range(PER_RUN if power.fault.name in FAULTS else 0):
            found.append(_plant(account, columns, power, noise, rng))
    return found


def _plant(
    account: RunAccount,
    columns: dict[str, Floats],
    power: FaultPower,
    noise: str,
    rng: np.random.Generator,
) -> PlantedFault:
    """Plant one fault, of a size between hardly visible and plain, and look for it."""
    fault, rows = power.fault, len(columns["loss"])
    row = int(rng.integers(0, rows - min(3, rows // 10)))
    size = float(np.exp(rng.uniform(np.log(1.0), np.log(fault.large))))
    end = rows if fault.settles else min(rows, row + fault.horizon_rows)
    copy = {name: values[:end].copy() for name, values in columns.items()}
    added = size * power.sigma
    if fault.name == "spike":
        copy["loss"][row : row + 3] += added
    elif fault.name == "rise":
        copy["loss"][row:] += added
    elif fault.name == "drift":
        copy["loss"][row:] += added * np.minimum(np.arange(1, end - row + 1) / 200, 1.0)
    else:
        copy["grad_norm"][row : row + 12] *= np.exp(added)
    before = {(i.kind, i.incident.onset_row) for i in account.incidents if i.severity != "info"}
    told = make_account(_record(copy), self_test=False).incidents
    seen = any(
        i.severity != "info"
        and (i.kind, i.incident.onset_row) not in before
        and row - 64 <= i.incident.onset_row <= row + fault.horizon_rows
        for i in told
    )
    return PlantedFault(
        fault=fault.name,
        noise=noise,
        rows=rows,
        size=size,
        stated=power.power(size),
        seen=seen,
    )


def _record(columns: dict[str, Floats]) -> RunRecord:
    return record_of(np.arange(1.0, len(columns["loss"]) + 1), columns)


def stated_against_seen(
    planted: Sequence[PlantedFault], *, by: Callable[[PlantedFault], object]
) -> list[tuple[object, int, float, float]]:
    """Return (group, faults, mean power stated, share seen) of each group, in order."""
    groups: dict[object, list[PlantedFault]] = {}
    for p in planted:
        groups.setdefault(by(p), []).append(p)
    return [
        (
            group,
            len(members),
            float(np.mean([p.stated for p in members])),
            float(np.mean([p.seen for p in members])),
        )
        for group, members in sorted(groups.items(), key=lambda pair: str(pair[0]))
    ]


def bin_of(stated: float) -> str:
    """Return the bin of a stated power, such as `.80 to .95`."""
    at = min(int(np.searchsorted(BINS, stated, side="right")), len(BINS) - 1)
    return f"{BINS[at - 1]:.2f} to {BINS[at]:.2f}"


def power_table(planted: Sequence[PlantedFault]) -> str:
    """Return what was stated beside what was seen: by stated power, fault, length and noise."""
    parts: list[str] = []
    tables: tuple[tuple[str, Callable[[PlantedFault], object]], ...] = (
        ("stated power", lambda p: bin_of(p.stated)),
        ("fault", lambda p: p.fault),
        ("rows", lambda p: f"{p.rows:5d}"),
        ("noise", lambda p: p.noise),
        ("fault, rows", lambda p: f"{p.fault}, {p.rows:5d}"),
    )
    for title, by in tables:
        parts.append(f"{title:<20} {'faults':>7} {'stated':>7} {'seen':>7} {'apart':>7}")
        parts += [
            f"{group!s:<20} {n:>7} {stated:>7.2f} {seen:>7.2f} {seen - stated:>+7.2f}"
            for group, n, stated, seen in stated_against_seen(planted, by=by)
        ]
        parts.append("")
    worst = max(
        (
            abs(seen - stated)
            for _, _, stated, seen in stated_against_seen(planted, by=tables[0][1])
        ),
        default=0.0,
    )
    parts.append(
        f"largest distance between stated power and share seen, by stated power: {worst:.2f}"
    )
    return "\n".join(parts)
