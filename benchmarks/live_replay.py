"""Replays labeled logs as they grew, through what `trimtab watch` does: what was said, and when.

A log of n rows is judged at 8 rows, then each time that it has grown by 5 % and by 8 rows at least,
and at last as one that no more rows come to. What counts is each alert that was told, in the form
in which it last stood as an alarm, whether it was withdrawn later or not; `before the end` are
those told before the log stood still. The delay is the rows from onset to the first telling as an
alarm; withdrawn is what the last look does not tell as an alarm any more.

`SETTLING_ROWS` was chosen on the repositories whose name has an even hash; figures on the others are
given apart.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.detect import Say, read_labelled
from benchmarks.manifest import NEGATIVE, LabelledRun
from benchmarks.matching import belongs
from benchmarks.predictions import Claim, Prediction, claims_of, predict
from benchmarks.scoring import RunScore, score_run, totals
from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.json_form import incident_to_json
from trimtab.detectors.judge import JudgedSoFar
from trimtab.detectors.offline import all_findings
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.errors import ReadError
from trimtab.incidents import group_findings
from trimtab.monitor.follower import Watcher, first_rows
from trimtab.plan.plan import Plan
from trimtab.record import RunRecord
from trimtab.signals import derive
from trimtab.signals.runs import separate_runs

__all__ = ["MOST_ROWS", "Alert", "LiveReplay", "live_text", "replay", "replay_live", "wilson_low"]

MOST_ROWS = 1_000_000
"""Records of the longest log that is replayed. Looks that are 5 % apart cost together as much as 21
readings of the whole log, however long it is."""
_LEAST_ROWS, _GROWTH = 8, 1.05
_WEEK_S = 7 * 24 * 3600.0
_Z90 = 1.6449
"""Normal quantile of a two-sided 90 % interval."""


@dataclass(kw_only=True)
class Alert:
    """One alert, as it was told."""

    delay: int
    """Rows from its onset to the first telling."""
    at_end: bool
    """First told when no more rows came."""
    claims: tuple[Claim, ...]
    """As it last stood as an alarm."""
    stands: bool = True
    """Whether the last look tells it as an alarm."""


@dataclass(kw_only=True)
class _Scores:
    """Scores of one group of runs."""

    live: list[RunScore] = field(default_factory=list)
    before_end: list[RunScore] = field(default_factory=list)
    hindsight: list[RunScore] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class LiveReplay:
    """Figures of a live judge on labelled logs."""

    figures: Mapping[str, Mapping[str, Any]]
    """By what was judged, and on which repositories."""
    delays: tuple[int, ...]
    """Rows from onset to alert, one per alert that was told before the end."""
    at_end: int
    withdrawn: int
    false_alerts: int
    weeks: float
    """Run time of the negatives whose log states a pace."""
    critical_right: int
    critical: int
    logs: int
    failed: tuple[str, ...]
    """Logs whose replay ended with an error: a fault of the judge."""
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class _Replayed:
    """What came of one log; a line of the file of results."""

    id: str
    rows: int = 0
    alerts: tuple[Alert, ...] = ()
    whole: tuple[Claim, ...] = ()
    """What hindsight says of it."""
    run_s: float = 0.0
    """How long the run took by its own log; 0 where it does not say."""
    cpu_s: float = 0.0
    error: str = ""
    """Why its replay ended: a fault of the judge."""

    def said(self, *, before_end: bool = False) -> Prediction:
        """Return what was told, of all alerts or of those told while the log grew."""
        told = [a for a in self.alerts if not (before_end and a.at_end)]
        claims = tuple(claim for alert in told for claim in alert.claims)
        return Prediction(id=self.id, rows=self.rows, claims=claims)


def replay_live(
    folder: Path,
    runs: Sequence[LabelledRun],
    *,
    say: Say,
    most_rows: int,
    results: Path | None = None,
) -> LiveReplay:
    """Replay every log of at most so many records, and score what was said as it grew.

    Args:
        folder: Holds `manifest.jsonl` and the logs that it names.
        runs: Which of them.
        say: Is told of each log as it is done.
        most_rows: Longer logs are left out.
        results: One JSON line per log; logs in it are not replayed again. None: nothing is kept.
    """
    runs = [run for run in runs if run.records <= most_rows]
    done = {r.id: r for r in _read_results(results)} if results is not None else {}
    todo = [run for run in runs if run.id not in done]
    for number, (run, found) in enumerate(read_labelled(folder, todo), len(runs) - len(todo) + 1):
        if isinstance(found, ReadError):
            continue
        done[run.id] = _replayed(run, found)
        if results is not None:
            with results.open("ab") as file:
                file.write(orjson.dumps(done[run.id], option=orjson.OPT_APPEND_NEWLINE))
        say(f"{number}/{len(runs)} {run.id} live")
    return _figures([(run, done[run.id]) for run in runs if run.id in done])


def _replayed(run: LabelledRun, record: RunRecord) -> _Replayed:
    began = time.process_time()
    try:
        alerts = tuple(replay(record).values())
        whole = predict(run.id, record).claims
    except Exception as error:  # noqa: BLE001 - one log ends no benchmark, and is named
        return _Replayed(id=run.id, error=f"{type(error).__name__}: {error}")
    return _Replayed(
        id=run.id,
        rows=record.num_loss_rows,
        alerts=alerts,
        whole=whole,
        run_s=_run_seconds(record),
        cpu_s=time.process_time() - began,
    )


def _read_results(path: Path) -> Iterator[_Replayed]:
    """Yield what the file of results holds; the last line may be torn where a run was stopped."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            kept = orjson.loads(line)
            kept["alerts"] = tuple(
                Alert(**{**a, "claims": _claims(a["claims"])}) for a in kept["alerts"]
            )
            yield _Replayed(**{**kept, "whole": _claims(kept["whole"])})
        except (ValueError, TypeError, KeyError):
            continue


def _claims(kept: Sequence[Mapping[str, Any]]) -> tuple[Claim, ...]:
    return tuple(Claim(**c) for c in kept)


def _figures(replayed: Sequence[tuple[LabelledRun, _Replayed]]) -> LiveReplay:
    """Score all logs that were replayed."""
    groups = {"all": _Scores(), "even": _Scores(), "odd": _Scores()}
    alerts: list[Alert] = []
    false_alerts = critical = right = 0
    weeks = 0.0
    for run, log in replayed:
        if log.error:
            continue
        score = score_run(run, log.said())
        whole = Prediction(id=run.id, rows=log.rows, claims=log.whole)
        for group in (groups["all"], groups[_half(run)]):
            group.live.append(score)
            group.before_end.append(score_run(run, log.said(before_end=True)))
            group.hindsight.append(score_run(run, whole))
        alerts += log.alerts
        if run.verdict in NEGATIVE:
            weeks += log.run_s / _WEEK_S
            false_alerts += len(score.false_on_negative) if log.run_s else 0
        for good in _critical(run, log.said().claims, score):
            critical += 1
            right += good
    return LiveReplay(
        figures={
            f"{what}, {name}": totals(getattr(scores, what))
            for name, scores in groups.items()
            for what in ("live", "before_end", "hindsight")
        },
        delays=tuple(a.delay for a in alerts if not a.at_end),
        at_end=sum(a.at_end for a in alerts),
        withdrawn=sum(not a.stands for a in alerts),
        false_alerts=false_alerts,
        weeks=weeks,
        critical_right=right,
        critical=critical,
        logs=len(replayed),
        failed=tuple(f"{run.id} ({log.error})" for run, log in replayed if log.error),
        cpu_s=sum(log.cpu_s for _, log in replayed),
    )


def replay(record: RunRecord) -> dict[int, Alert]:
    """Return the alerts that are told of a log while it grows row by row, by their ids."""
    watcher = Watcher(Path(record.source), lambda: record, lambda *_: _account(record))
    alerts: dict[int, Alert] = {}
    so_far = JudgedSoFar()
    for rows in _looks(record.num_rows):
        watcher.take(_account(first_rows(record, rows), grows=True, so_far=so_far))
        _note(alerts, watcher, at_end=False)
    watcher.take(_account(record), settled=True)
    _note(alerts, watcher, at_end=True)
    return alerts


def _looks(num_rows: int) -> Iterator[int]:
    rows = _LEAST_ROWS
    while rows < num_rows:
        yield rows
        rows = max(rows + _LEAST_ROWS, math.ceil(rows * _GROWTH))
    yield num_rows


def _account(
    record: RunRecord, *, grows: bool = False, so_far: JudgedSoFar | None = None
) -> RunAccount:
    """Return what is told of a record, without causes and plans, which nobody scores here."""
    record = separate_runs(derive(record))
    with np.errstate(over="ignore", invalid="ignore"):
        found = group_findings(record, all_findings(record, grows=grows, so_far=so_far))
    nothing = Diagnosis(causes=())
    told = (IncidentAccount(incident=i, diagnosis=nothing, plan=Plan()) for i in found)
    return RunAccount(record=record, incidents=tuple(told))


def _note(alerts: dict[int, Alert], watcher: Watcher, *, at_end: bool) -> None:
    """Take down what stands as an alarm now."""
    account = watcher.account
    assert account is not None
    standing = {i: told for i, told in watcher.incidents if told.incident.severity != "info"}
    for number, told in standing.items():
        claims = claims_of(incident_to_json(account.record, told), number)
        delay = account.record.num_rows - told.incident.onset_row
        known = alerts.setdefault(number, Alert(delay=delay, at_end=at_end, claims=claims))
        known.claims = claims
    for number, known in alerts.items():
        known.stands = number in standing


def _half(run: LabelledRun) -> str:
    digest = hashlib.sha256(run.repo.encode()).digest()
    return "odd" if digest[0] % 2 else "even"


def _critical(run: LabelledRun, claims: Sequence[Claim], score: RunScore) -> Iterator[bool]:
    """Yield whether a label accounts for it, for each critical alarm that counts for precision.

    All kinds of one alarm count once.
    """
    judged = {claim.alarm for claim, _ in score.judged}
    for alarm in sorted(a for a in judged if a is not None):
        kinds = [c for c in claims if c.alarm == alarm]
        if kinds[0].severity == "critical":
            yield any(belongs(run, c, x) for c in kinds for x in run.labels)


def _run_seconds(record: RunRecord) -> float:
    """Return how long a run took by its own log; 0 where it does not say."""
    column = record.columns.get("step_time_s")
    if column is None:
        return 0.0
    values = column.values[column.present & np.isfinite(column.values)]
    if not len(values) or record.num_rows < 2:
        return 0.0
    per_row = float(np.median(np.diff(record.step))) if record.axis == "step" else 1.0
    return float(np.median(values)) * record.num_rows * max(per_row, 1.0)


def wilson_low(right: int, number: int) -> float:
    """Return the lower bound of a two-sided 90 % interval of a share (Wilson, 1927); 0 of none.

    Example:
        >>> round(wilson_low(19, 20), 2)
        0.8
    """
    if not number:
        return 0.0
    share, z2 = right / number, _Z90**2
    middle = share + z2 / (2 * number)
    spread = _Z90 * math.sqrt(share * (1 - share) / number + z2 / (4 * number**2))
    return (middle - spread) / (1 + z2 / number)


def live_text(found: LiveReplay, most_rows: int) -> str:
    """Return the figures as a few lines."""
    names = ("f1_same_family", "recall_same_family", "precision", "false_per_10k")
    rows = [
        f"  {label:18s}" + "  ".join(f"{n} {_share(figures[n])}" for n in names)
        for label, figures in found.figures.items()
    ]
    delays = np.array(found.delays or (0,))
    low = wilson_low(found.critical_right, found.critical)
    per_week = found.false_alerts / found.weeks if found.weeks else math.nan
    return "\n".join(
        [
            f"{found.logs} logs as they grew, of up to {most_rows} records, through `trimtab watch`;"
            " repositories whose name has an even hash chose its constants:",
            *rows,
            f"  delay of {len(found.delays)} alerts, rows: median {np.median(delays):.0f}, 90th"
            f" percentile {np.quantile(delays, 0.9):.0f}; {found.at_end} more when the log stood"
            f" still; withdrawn later: {found.withdrawn}",
            f"  false alerts on logs without an incident: {found.false_alerts} in"
            f" {found.weeks:.2f} run-weeks ({per_week:.2f} a week)",
            f"  critical alarms right: {found.critical_right} of {found.critical},"
            f" at least {low:.2f} (90 % interval)",
            f"  replayed in {found.cpu_s:.0f} s of processor time; ended with an error:"
            f" {', '.join(found.failed) or 'none'}",
        ]
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
