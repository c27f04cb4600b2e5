"""What `trimtab inspect` says of each pathology and of each twin."""

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.domains.courses import BASES, Courses
from benchmarks.domains.formats import FORMATS, file_name, log_text
from benchmarks.domains.pathologies import PATHOLOGIES, Pathology
from benchmarks.domains.twins import TWINS, Twin
from trimtab.api.analysis import Analysis, analyze

__all__ = ["DomainResult", "make_log", "measure_domains", "pathology_courses", "twin_courses"]

LENGTHS = (200, 400, 1000)
"""Rows; by turns over the seeds, as are the formats."""


@dataclass(frozen=True)
class DomainResult:
    """How often one pathology or twin was told, over its seeds."""

    id: str
    base: str
    is_twin: bool
    num_runs: int
    told: int
    """Runs with an alarm of a kind that tells it; of a twin, runs with any alarm."""
    right_cause: int
    """Of those, runs whose first cause is right."""
    delay_share: float | None
    """Median delay of the onset, as a share of the rows after the true one; None: not told."""
    missed: tuple[str, ...]
    """Runs that went wrong: seed, rows and format of each."""


def pathology_courses(p: Pathology, seed: int, num_rows: int) -> tuple[Courses, int]:
    """Return the courses of a run with a pathology, and the row of its onset."""
    rng = np.random.default_rng([seed, PATHOLOGIES.index(p)])
    courses = BASES[p.base](rng, num_rows)
    onset = int(num_rows * rng.uniform(0.4, 0.6))
    g = np.clip((np.arange(num_rows) - onset) / (num_rows - 1 - onset), 0.0, 1.0)
    p.plant(courses, g, rng)
    return courses, onset


def twin_courses(t: Twin, seed: int, num_rows: int) -> Courses:
    """Return the courses of a sound run."""
    rng = np.random.default_rng([seed, 1000 + TWINS.index(t)])
    courses = BASES[t.base](rng, num_rows)
    t.change(courses, np.linspace(0.0, 1.0, num_rows), rng)
    return courses


def make_log(case: Pathology | Twin, seed: int, folder: Path) -> tuple[Path, int, str]:
    """Write the log of a run; return its path, the row of the onset (0: none) and what it is."""
    num_rows = LENGTHS[seed % len(LENGTHS)]
    names = tuple(FORMATS[case.base])
    name = names[seed // len(LENGTHS) % len(names)]
    if isinstance(case, Pathology):
        courses, onset = pathology_courses(case, seed, num_rows)
    else:
        courses, onset = twin_courses(case, seed, num_rows), 0
    path = folder / file_name(case.base, name)
    path.write_text(log_text(courses, case.base, name), encoding="utf-8")
    return path, onset, f"seed {seed}, {num_rows} rows, {name}"


def alarms_of(analysis: Analysis) -> list[tuple[str, str, int]]:
    """Return (kind, first cause, row of the onset) of each alarm."""
    found = []
    for run in analysis.runs:
        for incident in run.incidents:
            if incident.severity == "info":
                continue
            kinds = (incident.kind, *incident.incident.also)
            cause = incident.diagnosis.top.cause
            found += [(kind, cause, incident.incident.onset_row) for kind in kinds]
    return found


def measure_domains(
    seeds: Iterable[int],
    *,
    only: Iterable[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> list[DomainResult]:
    """Return one result per pathology and twin; about 0.2 s a run."""
    chosen, wanted = tuple(seeds), frozenset(only)
    results: list[DomainResult] = []
    cases: list[Pathology | Twin] = [*PATHOLOGIES, *TWINS]
    with tempfile.TemporaryDirectory() as name:
        for case in cases:
            if wanted and case.id not in wanted:
                continue
            say(case.id)
            results.append(_measure(case, chosen, Path(name)))
    return results


def _measure(case: Pathology | Twin, seeds: tuple[int, ...], folder: Path) -> DomainResult:
    told = right = 0
    delays: list[float] = []
    missed: list[str] = []
    for seed in seeds:
        path, onset, what = make_log(case, seed, folder)
        alarms = alarms_of(analyze(path))
        path.unlink()
        if isinstance(case, Twin):
            if alarms:
                told += 1
                missed.append(f"{what}: {', '.join(sorted({k for k, _, _ in alarms}))}")
            continue
        hits = [a for a in alarms if a[0] in case.kinds]
        if not hits:
            missed.append(what + (f": {alarms[0][0]}" if alarms else ""))
            continue
        told += 1
        cause = hits[0][1]
        if cause in case.causes:
            right += 1
        else:
            missed.append(f"{what}: first cause {cause}")
        rows = LENGTHS[seed % len(LENGTHS)]
        delays.append((hits[0][2] - onset) / (rows - onset))
    return DomainResult(
        id=case.id,
        base=case.base,
        is_twin=isinstance(case, Twin),
        num_runs=len(seeds),
        told=told,
        right_cause=right,
        delay_share=float(np.median(delays)) if delays else None,
        missed=tuple(missed),
    )
