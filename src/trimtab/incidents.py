"""Findings -> incidents: what belongs together as one episode, where it began, how it ended.

An incident is led by the condition that matters most (a NaN loss before a spike, a spike before a
shift); the others stand in `also`. Its precursor is the earliest finding on any signal that speaks
in the bad direction and was still in force, or had only just ended, when the incident began; how
far back a signal is believed is its `lead_rows` in the vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.record import RunRecord
from trimtab.vocabulary import SIGNAL_BY_NAME, Severity

__all__ = ["Incident", "group_findings", "latest_tellings"]

_RANK: dict[Severity, int] = {"info": 0, "warning": 1, "critical": 2}

_LEAD_KINDS = (
    "non-finite",
    "scale-collapse",
    "unrecovered-spike",
    "divergence",
    "spike",
    "shift",
    "drift",
    "batch-outlier",
)
"""Which kind names the incident when several belong to it, most telling first; others follow."""

JOIN_ROWS = 8
"""Findings closer than this many rows are one episode; chosen on tuning seeds 0-9 of the lab."""


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One episode."""

    kind: str
    also: tuple[str, ...] = ()
    attempt: str
    severity: Severity
    precursor_row: int | None = None
    """Row of the first sign on any signal; None where nothing spoke before the onset."""
    precursor: float | None = None
    onset_row: int
    onset: float
    peak_row: int
    peak: float
    end_row: int | None = None
    """None: it lasts to the end of the log."""
    end: float | None = None
    signals: tuple[str, ...]
    headline: str
    """One line: what happened, since when, how sure."""
    confidence: float = 0.9
    """How sure that this is an incident at all."""
    shape: str = ""
    """fast, slow, unrecovered or empty."""
    findings: tuple[Finding, ...] = ()
    correlations: tuple[tuple[str, str, float], ...] = ()
    """Pairs of signals that moved together through the episode, with Spearman's rho."""

    @property
    def first_row(self) -> int:
        """Row to go back before: the first sign, or the onset where there is none."""
        return (
            self.onset_row
            if self.precursor_row is None
            else min(self.precursor_row, self.onset_row)
        )

    @property
    def first_step(self) -> float:
        """Step to go back before."""
        return self.onset if self.precursor is None else min(self.precursor, self.onset)


def latest_tellings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the last telling of each condition, ordered by onset."""
    last: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        last[finding.key] = finding
    return tuple(sorted(last.values(), key=lambda f: (f.onset_row, f.row, f.signal)))


def group_findings(
    record: RunRecord, findings: Iterable[Finding], *, join_rows: int = JOIN_ROWS
) -> tuple[Incident, ...]:
    """Return the incidents that the findings make, in row order.

    Findings on the loss (and alarms on any signal) of one attempt that overlap, or stand closer
    than `join_rows`, are one incident; findings on other signals join as evidence and as precursors.

    Args:
        record: The rows that the findings speak of.
        findings: As `judge_record` gives them; only the last telling of each condition counts.
        join_rows: Largest gap within one episode.

    Returns:
        Incidents with severities of their worst finding; an open condition has no end.
    """
    told = latest_tellings(findings)
    incidents: list[Incident] = []
    for index in range(len(record.attempts)):
        here = [f for f in told if record.attempt[f.onset_row] == index]
        main = [f for f in here if f.signal == "loss" or f.severity != "info"]
        for group in _episodes(main, record, join_rows):
            incidents.append(_incident(record, index, group, here))
    return tuple(incidents)


def _last_row(f: Finding, record: RunRecord) -> int:
    """Return the last row a finding speaks of, as far as its condition was followed."""
    if f.end_row is not None:
        return max(f.end_row, f.onset_row)
    return f.row if f.closed else record.num_rows


def _episodes(
    findings: Sequence[Finding], record: RunRecord, join_rows: int
) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    reach = -1
    for f in sorted(findings, key=lambda f: (f.onset_row, f.row)):
        if groups and f.onset_row <= reach + join_rows:
            groups[-1].append(f)
        else:
            groups.append([f])
            reach = -1
        reach = max(reach, _last_row(f, record))
    return groups


def _incident(
    record: RunRecord, attempt: int, group: Sequence[Finding], around: Sequence[Finding]
) -> Incident:
    lead = min(
        group,
        key=lambda f: (
            _LEAD_KINDS.index(f.kind) if f.kind in _LEAD_KINDS else 99,
            -_RANK[f.severity],
            f.onset_row,
        ),
    )
    onset = min(_onsets(group), key=lambda f: f.onset_row)
    worst = max(group, key=lambda f: _RANK[f.severity]).severity
    ended = all(f.end_row is not None for f in group)
    last = max(group, key=lambda f: _last_row(f, record))
    precursors = _precursors(onset.onset_row, around, record)
    first = min(precursors, key=lambda f: f.onset_row) if precursors else None
    members = [*group, *(f for f in precursors if f not in group)]
    kinds = dict.fromkeys(
        f.kind for f in sorted(members, key=lambda f: f.onset_row) if f.kind != lead.kind
    )
    end_row = last.end_row if ended else None
    span = slice(
        onset.onset_row, (end_row + 1) if end_row is not None else record.attempts[attempt].end_row
    )
    return Incident(
        kind=lead.kind,
        also=tuple(kinds),
        attempt=record.attempts[attempt].number,
        severity=worst,
        precursor_row=first.onset_row if first else None,
        precursor=first.onset if first else None,
        onset_row=onset.onset_row,
        onset=onset.onset,
        peak_row=lead.peak_row,
        peak=lead.peak,
        end_row=end_row,
        end=last.end if ended else None,
        signals=tuple(dict.fromkeys(f.signal for f in members)),
        headline=_headline(record, lead, onset, first, ended=ended, end=last.end),
        confidence=_confidence(lead),
        shape=_shape(lead, onset.onset_row, end_row),
        findings=tuple(members),
        correlations=_correlations(record, span, attempt),
    )


def _onsets(group: Sequence[Finding]) -> Sequence[Finding]:
    """Block-wise findings date an onset to a block; a row-wise one in the same episode knows better."""
    exact = [f for f in group if not f.detector.startswith("level")]
    return exact or group


def _precursors(onset_row: int, around: Sequence[Finding], record: RunRecord) -> list[Finding]:
    """Return findings on other signals that spoke before the onset and were still in force."""
    chosen: list[Finding] = []
    for f in around:
        lead = SIGNAL_BY_NAME[f.signal].lead_rows if f.signal in SIGNAL_BY_NAME else 0
        if (
            f.signal == "loss"
            or f.kind == "batch-outlier"
            or not onset_row - lead <= f.onset_row < onset_row
        ):
            continue
        still = f.end_row is None or f.end_row >= onset_row - JOIN_ROWS
        if still and not (f.closed and f.end_row is None and f.row < onset_row - lead):
            chosen.append(f)
    return chosen


def _shape(lead: Finding, onset_row: int, end_row: int | None) -> str:
    if lead.kind == "unrecovered-spike":
        return "unrecovered"
    if lead.kind != "spike":
        return ""
    if end_row is None:
        return "unrecovered"
    return "fast" if end_row - onset_row <= 50 else "slow"


def _confidence(lead: Finding) -> float:
    """How sure that something happened: by how far beyond its threshold the leading finding went."""
    if lead.kind == "non-finite":
        return 0.99
    return float(np.clip(0.75 + 0.02 * (lead.score - 6), 0.6, 0.98))


_TITLES = {
    "spike": "loss spike",
    "unrecovered-spike": "loss spike that did not recover",
    "divergence": "loss is diverging",
    "shift": "lasting shift of the loss",
    "drift": "slow drift of the loss",
    "non-finite": "non-finite values",
    "scale-collapse": "loss scale collapsed",
    "batch-outlier": "one outlying row",
}


def _headline(
    record: RunRecord,
    lead: Finding,
    onset: Finding,
    first: Finding | None,
    *,
    ended: bool,
    end: float | None,
) -> str:
    title = _TITLES.get(lead.kind, lead.kind)
    if lead.signal != "loss" and lead.kind in ("spike", "shift", "non-finite"):
        title = f"{lead.kind} of {lead.signal}"
    axis = record.axis
    since = f"since {axis} {onset.onset:g}"
    if ended and end is not None:
        since = f"{axis} {onset.onset:g}" + (
            f" to {end:g}, recovered" if end != onset.onset else ", recovered"
        )
    sign = f" (first sign {first.onset:g}, {first.signal})" if first else ""
    return f"{title} · {since}{sign} · {lead.text}"


def _correlations(
    record: RunRecord, span: slice, attempt: int
) -> tuple[tuple[str, str, float], ...]:
    """Return pairs of the main signals whose ranks moved together (|rho| >= 0.8) in the episode.

    The span is widened by its own length to the left, so that calm rows are there to compare with.
    """
    rows = record.rows_of(attempt)
    width = max(span.stop - span.start, 12)
    window = slice(max(rows.start, span.start - width), min(rows.stop, span.stop))
    pairs: list[tuple[str, str, float]] = []
    names = [
        n for n in ("loss", "grad_norm", "activation_norm", "loss_scale") if n in record.columns
    ]
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            x, y = record.columns[a].values[window], record.columns[b].values[window]
            both = np.isfinite(x) & np.isfinite(y)
            if both.sum() >= 12:
                rho = _spearman(x[both], y[both])
                if abs(rho) >= 0.8:
                    pairs.append((a, b, rho))
    return tuple(pairs)


def _spearman(
    x: np.ndarray[tuple[int], np.dtype[np.float64]], y: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    rx, ry = _ranks(x), _ranks(y)
    sx, sy = float(rx.std()), float(ry.std())
    return (
        0.0
        if sx == 0 or sy == 0
        else float(((rx - rx.mean()) * (ry - ry.mean())).mean() / (sx * sy))
    )


def _ranks(
    x: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return ranks with ties shared."""
    order = np.argsort(x, kind="stable")
    ranks = np.empty(len(x))
    ranks[order] = np.arange(len(x), dtype=np.float64)
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    sums = np.bincount(inverse, weights=ranks)
    return np.asarray(sums / counts)[inverse]
