"""Replays labelled logs row by row, as `trimtab watch` meets them: no hindsight, no second look.

What counts is what was said when it was said. An alert is the first telling of a condition as a
warning or worse; its delay is the rows from the onset to that telling. One whose last telling is a
note, or that no incident of the whole log holds, was withdrawn. The judge's findings do not depend
on how the rows came (one by one or at once), so the replay takes the log's rows in one pass and
groups what was said; incidents are those of `hindsight=False`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.detect import Say, read_labelled
from benchmarks.manifest import NEGATIVE, LabelledRun
from benchmarks.matching import belongs
from benchmarks.predictions import Claim, Prediction, claims_of
from benchmarks.scoring import RunScore, score_run, totals
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.detectors.contract import Finding
from trimtab.detectors.offline import all_findings
from trimtab.errors import ReadError
from trimtab.record import RunRecord
from trimtab.signals import derive

__all__ = ["LiveReplay", "live_text", "replay_live", "wilson_low"]

_WEEK_S = 7 * 24 * 3600.0
_Z90 = 1.6449
"""Normal quantile of a two-sided 90 % interval."""


@dataclass(frozen=True, kw_only=True)
class LiveReplay:
    """Figures of a live judge on labelled logs."""

    figures: Mapping[str, Any]
    hindsight: Mapping[str, Any]
    """The same figures of the judge that sees the whole log."""
    delays: tuple[int, ...]
    """Rows from onset to alert, one per alert."""
    withdrawn: int
    false_alerts: int
    weeks: float
    """Run time of the negatives whose log states a pace."""
    critical_right: int
    critical: int


def replay_live(folder: Path, runs: Sequence[LabelledRun], *, say: Say) -> LiveReplay:
    """Judge every log without hindsight, and set the figures beside those with it."""
    live: list[RunScore] = []
    whole: list[RunScore] = []
    delays: list[int] = []
    withdrawn = false_alerts = critical = right = 0
    weeks = 0.0
    for number, (run, found) in enumerate(read_labelled(folder, runs), 1):
        if isinstance(found, ReadError):
            failed = Prediction(id=run.id, error=str(found))
            live.append(score_run(run, failed))
            whole.append(score_run(run, failed))
            continue
        said = _predict(run.id, found, hindsight=False)
        live.append(score_run(run, said))
        whole.append(score_run(run, _predict(run.id, found, hindsight=True)))
        firsts, taken_back = _alerts(all_findings(derive(found), hindsight=False))
        delays += [f.row - f.onset_row for f in firsts]
        withdrawn += taken_back
        if run.verdict in NEGATIVE:
            seconds = _run_seconds(found)
            weeks += seconds / _WEEK_S
            false_alerts += len(live[-1].false_on_negative) if seconds else 0
        for claim, good in _critical(run, said.claims, live[-1]):
            critical += 1
            right += good and claim.alarms
        say(f"{number}/{len(runs)} {run.id} live")
    return LiveReplay(
        figures=totals(live),
        hindsight=totals(whole),
        delays=tuple(delays),
        withdrawn=withdrawn,
        false_alerts=false_alerts,
        weeks=weeks,
        critical_right=right,
        critical=critical,
    )


def _predict(name: str, record: RunRecord, *, hindsight: bool) -> Prediction:
    account = make_account(record, hindsight=hindsight, self_test=False)
    told = run_to_json(account, path=record.source)
    claims = tuple(c for n, i in enumerate(told["incidents"]) for c in claims_of(i, n))
    return Prediction(id=name, rows=told["rows"], claims=claims)


def _alerts(findings: Sequence[Finding]) -> tuple[list[Finding], int]:
    """Return the first alarming telling of each condition, and how many became notes later."""
    firsts: dict[tuple[str, str, int], Finding] = {}
    lasts: dict[tuple[str, str, int], Finding] = {}
    for f in findings:
        lasts[f.key] = f
        if f.severity != "info":
            firsts.setdefault(f.key, f)
    withdrawn = sum(lasts[key].severity == "info" for key in firsts)
    return list(firsts.values()), withdrawn


def _critical(
    run: LabelledRun, claims: Sequence[Claim], score: RunScore
) -> list[tuple[Claim, bool]]:
    """Return the critical alarms that count for precision, and whether a label accounts for them.

    All kinds of one alarm count once.
    """
    judged = {claim.alarm for claim, _ in score.judged}
    found: list[tuple[Claim, bool]] = []
    for alarm in sorted(a for a in judged if a is not None):
        kinds = [c for c in claims if c.alarm == alarm]
        if kinds and kinds[0].severity == "critical":
            found.append((kinds[0], any(belongs(run, c, x) for c in kinds for x in run.labels)))
    return found


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


def live_text(found: LiveReplay) -> str:
    """Return the figures as a few lines."""
    names = ("f1_same_family", "recall_same_family", "precision", "false_per_10k")
    rows = [
        f"  {label:12s}" + "  ".join(f"{n} {_share(figures[n])}" for n in names)
        for label, figures in (("live", found.figures), ("hindsight", found.hindsight))
    ]
    delays = np.array(found.delays or (0,))
    low = wilson_low(found.critical_right, found.critical)
    per_week = found.false_alerts / found.weeks if found.weeks else math.nan
    return "\n".join(
        [
            "the same logs without hindsight, as `trimtab watch` judges them:",
            *rows,
            f"  delay of {len(found.delays)} alerts, rows: median {np.median(delays):.0f}, 90th"
            f" percentile {np.quantile(delays, 0.9):.0f}; withdrawn later: {found.withdrawn}",
            f"  false alerts on logs without an incident: {found.false_alerts} in"
            f" {found.weeks:.2f} run-weeks ({per_week:.2f} a week)",
            f"  critical alarms right: {found.critical_right} of {found.critical},"
            f" at least {low:.2f} (90 % interval)",
        ]
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
