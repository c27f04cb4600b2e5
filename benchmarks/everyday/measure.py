"""One case of the everyday benchmark, judged through the door that users take: `trimtab.analyze`."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import trimtab
from benchmarks.everyday.faults import FAULT_BY_ID, FAULTS
from benchmarks.everyday.formats import formats_of, write_log
from benchmarks.everyday.reference import reference_power
from benchmarks.everyday.runs import make_healthy
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.assemble import make_account
from trimtab.detectors.offline import settling_rows
from trimtab.errors import ReadError
from trimtab.monitor.follower import Watcher, first_rows

__all__ = [
    "EARLY_SHARE",
    "LENGTHS",
    "EverydayCase",
    "EverydayOutcome",
    "cases_of",
    "measure",
    "measure_all",
]

LENGTHS = (100, 300, 1000, 10_000)
"""Rows of a run."""
EARLY_SHARE = 0.9
"""Of the rows: what can be told from them should be told before the log stands still."""
_TOLERANCE = 0.02
"""How far before its fault an alarm may begin, as a share of the rows; 3 rows at least."""


@dataclass(frozen=True)
class EverydayCase:
    """One fault on one run, in all formats that can hold it."""

    fault: str
    num_rows: int
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file of results."""
        return f"{self.fault}/{self.num_rows}/{self.seed}"


@dataclass(frozen=True)
class EverydayOutcome:
    """What was told of one case in one format."""

    key: str
    format: str
    power: float
    """Of the reference test."""
    early_power: float
    """Of the same on the first `EARLY_SHARE` of the rows."""
    alarmed: bool
    live: bool
    """Alarmed by `watch` before the log stood still."""
    right_cause: bool
    cause: str
    """First cause of the first alarm at the fault; empty without one."""
    kinds: str
    early: int
    """Alarms that lie before the fault."""
    twin_silent: bool
    twin_kinds: str
    twin_live: str
    """Kinds of what `watch` told of the twin before it stood still."""
    critical: int
    """Critical alarms that `watch` told of the run before it stood still, at the fault."""
    critical_false: int
    """The same before the fault, and of the twin."""


def cases_of(
    seeds: Iterable[int], *, lengths: Iterable[int] = LENGTHS, faults: Iterable[str] = ()
) -> Iterator[EverydayCase]:
    """Yield all cases of some seeds, the shorter runs first."""
    chosen = tuple(faults) or tuple(f.id for f in FAULTS)
    seeds = tuple(seeds)
    for num_rows in lengths:
        for fault in chosen:
            for seed in seeds:
                yield EverydayCase(fault, num_rows, seed)


def measure(case: EverydayCase, *, one_format: bool = False) -> list[EverydayOutcome]:
    """Judge one case and its twin in each format.

    Args:
        case: The fault, the length and the seed.
        one_format: Take one of the formats, by the seed; for a quick look.
    """
    fault = FAULT_BY_ID[case.fault]
    seed = case.seed
    faulty, twin = make_healthy(seed, case.num_rows), make_healthy(seed, case.num_rows)
    row = fault.plant(faulty)
    fault.twin(twin)
    power = reference_power(fault, seed, case.num_rows)
    seen = round(EARLY_SHARE * case.num_rows)
    early_power = reference_power(fault, seed, case.num_rows, rows_seen=seen)
    names = formats_of(faulty)
    if one_format:
        names = (names[case.seed % len(names)],)
    found: list[EverydayOutcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            account = trimtab.analyze(write_log(faulty, name, Path(folder))).runs[0]
            live = _alarms(_live(write_log(faulty, name, Path(folder))), row)
            # A format that cannot hold the twin's extra signals is not asked to.
            held = name if name in formats_of(twin) else "csv"
            quiet = trimtab.analyze(write_log(twin, held, Path(folder))).runs[0]
            quiet_live = _alarms(_live(write_log(twin, held, Path(folder))), 0)
            alarms = _alarms(account, row)
            cause = next((a.diagnosis.top.cause for a in alarms[0] if a.diagnosis.causes), "")
            false, early = _alarms(quiet, 0)
            found.append(
                EverydayOutcome(
                    key=case.key,
                    format=name,
                    power=power,
                    early_power=early_power if row < seen else 0.0,
                    alarmed=bool(alarms[0]),
                    live=bool(live[0]),
                    right_cause=cause in fault.causes,
                    cause=cause,
                    kinds=_told(alarms[0]),
                    early=len(alarms[1]),
                    twin_silent=not false and not early,
                    twin_kinds=_told(false),
                    twin_live=_told([*quiet_live[0], *quiet_live[1]]),
                    critical=_critical(live[0]),
                    critical_false=_critical([*live[1], *quiet_live[0], *quiet_live[1]]),
                )
            )
    return found


def _live(path: Path) -> RunAccount:
    """Return the last row's account with what `watch` has told by then of a log that grows."""
    record = trimtab.read(path)[0]
    watcher = Watcher(path, lambda: record, lambda *_: ReadError("not asked"))
    # What is told must have stood for as long; looks in between show the same.
    for rows in (1, record.num_rows - settling_rows(record.num_rows), record.num_rows):
        watcher.take(make_account(first_rows(record, rows), grows=True, self_test=False))
    assert watcher.account is not None
    return replace(watcher.account, incidents=tuple(told for _, told in watcher.incidents))


def _alarms(account: RunAccount, row: int) -> tuple[list[IncidentAccount], list[IncidentAccount]]:
    """Return the alarms at or after a fault, as listed, and those before it."""
    slack = max(3, round(_TOLERANCE * account.record.num_rows))
    alarms = [a for a in account.incidents if a.incident.severity != "info"]
    at = [a for a in alarms if a.incident.onset_row >= row - slack]
    return at, [a for a in alarms if a not in at]


def _critical(alarms: list[IncidentAccount]) -> int:
    return sum(a.incident.severity == "critical" for a in alarms)


def _told(alarms: list[IncidentAccount]) -> str:
    return " ".join(a.incident.kind for a in alarms)


def measure_all(
    cases: Iterable[EverydayCase], *, results: Path | None, jobs: int, one_format: bool
) -> Iterator[tuple[int, list[EverydayOutcome]]]:
    """Yield (how many cases are left, outcomes); cases in the file of results are not run again.

    Args:
        cases: What to measure.
        results: One JSON line per outcome; None: nothing is kept.
        jobs: Processes.
        one_format: See `measure`.
    """
    known: dict[str, list[EverydayOutcome]] = {}
    if results is not None and results.exists():
        for line in results.read_text().splitlines():
            # The last line may be torn where a run was stopped.
            try:
                outcome = EverydayOutcome(**json.loads(line))
            except (ValueError, TypeError):
                continue
            known.setdefault(outcome.key, []).append(outcome)
    todo = list(cases)
    left = len(todo)
    for case in [c for c in todo if c.key in known]:
        left -= 1
        yield left, known[case.key]
    todo = [c for c in todo if c.key not in known]
    with ProcessPoolExecutor(jobs) as pool:
        for outcomes in pool.map(_measured, todo, [one_format] * len(todo)):
            if results is not None:
                with results.open("a") as file:
                    file.writelines(json.dumps(asdict(o)) + "\n" for o in outcomes)
            left -= 1
            yield left, outcomes


def _measured(case: EverydayCase, one_format: bool) -> list[EverydayOutcome]:  # noqa: FBT001
    return measure(case, one_format=one_format)
