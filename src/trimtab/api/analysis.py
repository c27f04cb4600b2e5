"""`trimtab.analyze`: what went wrong in a run, since when, why, and what to do."""

import base64
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.json_form import document_of, run_to_json
from trimtab.analysis.source import account_or_fault, read_beside, read_source
from trimtab.analysis.verdict import RunJudgement
from trimtab.chronicle.lineage import lineage_of
from trimtab.chronicle.stitched import Along, StitchedCurve, stitched
from trimtab.detectors.contract import Detector
from trimtab.detectors.judge import make_judge
from trimtab.errors import ConfigError, MissingExtraError, ReadError
from trimtab.kinds import RUN_VERDICTS, RunVerdict, severity_rank, worst_verdict
from trimtab.readers.given_columns import checked_columns, columns_given
from trimtab.record import Attempt
from trimtab.report.figure import draw_run
from trimtab.report.html import render_html
from trimtab.report.overview import overview_line, render_overview
from trimtab.report.picture import render_picture
from trimtab.report.terminal import rendered_text, terminal_text
from trimtab.report.wording import tell, verdict_line
from trimtab.text import plain

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["Analysis", "analyze"]

Source = Any
"""A path, a run record, a pandas or polars frame, or a mapping of columns."""


def analyze(
    source: Source,
    *,
    config: str | os.PathLike[str] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    against: Source | None = None,
    detectors: Iterable[Detector[Any] | str] | Detector[Any] = (),
    thresholds: Mapping[str, float] | None = None,
    columns: Mapping[str, str] | None = None,
) -> "Analysis":
    """Find and explain what went wrong in one training run or several.

    Args:
        source: A log of any trainer, a run directory, a directory of logs, a run record
            (`trimtab.read`), a pandas or polars frame, or a mapping of column names to values.
        config: The run's training config: the clip in force, the width, whose flags to give.
        checkpoints: Directory of its checkpoints; plans then name the one to go back to.
        against: A reference run, given as a source is: where the loss lies above its loss is an
            incident, too.
        detectors: Further detectors, or names of entry points in the group `trimtab.detectors`;
            a single one needs no list.
        thresholds: Settings of detectors, such as `{"spike.threshold_sigma": 12}`.
        columns: What keys of the log mean, where their names do not say it:
            `{"loss": "training/ce"}`.

    Returns:
        The analysis of every run in the source. What could not be read beside them stands in its
        `errors`.

    Raises:
        ReadError: Nothing in the source can be read.
        ConfigError: The config, a detector, a threshold or a signal is not known.

    Example:
        >>> loss = [2.0 - 0.001 * i + 0.01 * ((7919 * i) % 13 - 6) for i in range(400)]
        >>> loss[300:304] = [6.0, 7.0, 6.5, 5.0]
        >>> found = analyze({"step": range(400), "loss": loss})
        >>> found.verdict, found.incidents[0].kind, found.incidents[0].onset
        ('incident', 'spike', 300.0)
    """
    judge = make_judge(detectors, thresholds)
    beside = read_beside(
        config=None if config is None else Path(config),
        checkpoints=None if checkpoints is None else Path(checkpoints),
        against=against,
    )
    runs: list[RunAccount] = []
    errors: list[tuple[str, str]] = []
    started = time.perf_counter()
    given = columns_given(checked_columns({} if columns is None else columns))
    with given, warnings.catch_warnings():  # NaN and Inf are normal input, reported as incidents
        warnings.simplefilter("ignore", RuntimeWarning)
        for path, found in read_source(source):
            if isinstance(found, ReadError):
                errors.append((path, str(found)))
                continue
            read_s = time.perf_counter() - started
            account = account_or_fault(found, path, beside=beside, judge=judge, read_s=read_s)
            if isinstance(account, ReadError):
                errors.append((path, str(account)))
            else:
                runs.append(account)
            started = time.perf_counter()
    if not runs:
        raise ReadError("; ".join(why for _, why in errors[:3]) or "nothing to read")
    return Analysis(runs=tuple(runs), errors=tuple(errors))


@dataclass(frozen=True, kw_only=True, repr=False)
class Analysis:
    """The analysis of the runs in one source."""

    runs: tuple[RunAccount, ...]
    """One entry a run, in the order of reading."""
    errors: tuple[tuple[str, str], ...] = ()
    """(path, why it cannot be read) of what else the source holds."""

    def _run(self, index: int) -> RunAccount:
        whole: object = index
        if not isinstance(whole, int) or not -len(self.runs) <= whole < len(self.runs):
            raise ConfigError(f"run={index!r:.60}: expected 0 to {len(self.runs) - 1}")
        return self.runs[index]

    @property
    def incidents(self) -> tuple[IncidentAccount, ...]:
        """The incidents of all runs, each run's most severe first."""
        return tuple(incident for run in self.runs for incident in run.incidents)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The attempts of all runs."""
        return tuple(attempt for run in self.runs for attempt in run.attempts)

    @property
    def verdict(self) -> RunVerdict:
        """The worst verdict of the runs: `ended-badly`, `incident`, `not-judged` or `healthy`."""
        return worst_verdict(run.verdict for run in self.runs)

    @property
    def judgement(self) -> RunJudgement:
        """The verdict of the worst run with what it rests on and what could not be judged."""
        worst = next(run for run in self.runs if run.verdict == self.verdict)
        return worst.judgement

    def to_dict(self) -> dict[str, object]:
        """Return the document of `trimtab inspect --json`."""
        return document_of((run_to_json(r, path=r.path) for r in self.runs), self.errors)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the incidents as the rows of a pandas frame.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("Analysis.to_pandas()", "frames") from error
        rows = [_row(run, incident) for run in self.runs for incident in run.incidents]
        return pandas.DataFrame(rows, columns=list(_ROW))

    def stitched(
        self,
        *,
        run: int = 0,
        along: Along = "step",
        first: float | None = None,
        last: float | None = None,
        dead: bool = False,
    ) -> StitchedCurve:
        """Return the effective curve of one run: the rows that led to its end, without overlap.

        Args:
            run: Index of the run in `runs`.
            along: What its axis counts: `step`, `tokens` or `time`.
            first: Leave out rows before this point of the axis.
            last: Leave out rows behind it.
            dead: Also give the rows that a rollback undid, marked as such.

        Raises:
            ConfigError: `along` asks for what the run does not log.
        """
        account = self._run(run)
        tree = lineage_of(account.events, account.record)
        return stitched(
            account.record, lineage=tree, along=along, first=first, last=last, dead=dead
        )

    def plot(self, *, run: int | None = None) -> "Figure":
        """Draw the main signals of one run with its incidents.

        Args:
            run: Index of the run in `runs`; None: the worst one, of several the title names it.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        if run is not None or len(self.runs) == 1:
            return draw_run(self._run(run or 0))
        worst = max(range(len(self.runs)), key=lambda i: _how_bad(self.runs[i]))
        others = len(self.runs) - 1
        return draw_run(
            self.runs[worst], note=f"run={worst}, the worst of {others + 1}; {others} not drawn"
        )

    def to_html(self, *, run: int | None = None, title: str = "") -> str:
        """Return the report of one run as one self-contained page, as `trimtab report` writes it.

        Args:
            run: Index of the run in `runs`; may be left out where there is one.
            title: Of the page; empty: the name of the run.

        Raises:
            ConfigError: There are several runs and none is named.
        """
        if run is None and len(self.runs) != 1:
            raise ConfigError(f"{len(self.runs)} runs: name one, such as to_html(run=0)")
        account = self._run(run or 0)
        name = Path(account.record.source).absolute().name if account.path else "columns"
        return render_html(account, title=title or name)

    def __repr__(self) -> str:
        """Return the verdict and what it rests on, in one line."""
        counts = f"{len(self.runs)} runs" if len(self.runs) != 1 else "1 run"
        alarms = sum(incident.is_open_alarm for incident in self.incidents)
        power = f" ({self.runs[0].judgement.power})" if self.verdict == "healthy" else ""
        return (
            f"<Analysis: {self.verdict}{power if len(self.runs) == 1 else ''}; {counts},"
            f" {len(self.incidents)} incidents, {alarms} of them open alarms>"
        )

    def __str__(self) -> str:
        """Return what `trimtab inspect` prints, as plain text."""
        parts = [terminal_text(run) for run in self.runs]
        if len(self.runs) > 1:
            lines = [overview_line(run, path=run.path) for run in self.runs]
            parts.append(rendered_text(render_overview(lines, width=100), width=100))
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: verdict, picture, and a table of the alarms of each run."""
        return "".join(_run_html(run) for run in self.runs[:_SHOWN_RUNS]) + _rest_html(self.runs)


_SHOWN_RUNS = 5
"""Runs that a notebook shows with a picture; each picture takes some 50 kB."""
_SHOWN_ALARMS = 10

_ROW = (
    "path",
    "attempt",
    "kind",
    "severity",
    "onset",
    "peak",
    "end",
    "headline",
    "cause",
    "cause_confidence",
    "remedy",
    "confidence",
    "resolved",
    "dismissed",
)
"""Columns of `to_pandas`."""


def _how_bad(run: RunAccount) -> tuple[int, int, int]:
    """Return what the worst run has most of: verdict, severity of its open alarms, their number."""
    alarms = [severity_rank(told.severity) for told in run.incidents if told.is_open_alarm]
    return RUN_VERDICTS.index(run.verdict), max(alarms, default=0), len(alarms)


def _row(run: RunAccount, told: IncidentAccount) -> dict[str, object]:
    cause = told.causes[0] if told.causes else None
    return {
        "path": run.path,
        "attempt": told.attempt,
        "kind": told.kind,
        "severity": told.severity,
        "onset": told.onset,
        "peak": told.peak,
        "end": told.end,
        "headline": told.headline,
        "cause": None if cause is None else cause.cause,
        "cause_confidence": None if cause is None else cause.confidence,
        "remedy": told.plan.remedies[0].remedy if told.plan.remedies else None,
        "confidence": told.incident.confidence,
        "resolved": told.resolved,
        "dismissed": bool(told.dismissed),
    }


def _run_html(run: RunAccount) -> str:
    """Return one run; everything that comes from a log is escaped, the picture is an image."""
    svg = base64.b64encode(render_picture(run).encode()).decode()
    rows = []
    for telling in [t for t in tell(run) if t.alarm][:_SHOWN_ALARMS]:
        cause = telling.causes[0].title if telling.causes else ""
        remedy = telling.remedies[0].text if telling.remedies else ""
        cells = (telling.letter, telling.severity, telling.headline, cause, remedy)
        rows.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
    names = ("", "severity", "what", "likely cause", "first remedy")
    head = "".join(f"<th>{name}</th>" for name in names)
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""
    name = escape(plain(run.path or "columns", limit=80))
    return (
        f"<div><p><b>{escape(verdict_line(run))}</b> · {name}</p>"
        f'<img alt="signals of the run" style="max-width:100%" '
        f'src="data:image/svg+xml;base64,{svg}">{table}</div>'
    )


def _rest_html(runs: tuple[RunAccount, ...]) -> str:
    lines = [
        f"<li><b>{escape(run.verdict)}</b> · {escape(plain(run.path, limit=80))}</li>"
        for run in runs[_SHOWN_RUNS:]
    ]
    return f"<ul>{''.join(lines)}</ul>" if lines else ""
