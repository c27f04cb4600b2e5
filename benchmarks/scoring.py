"""Computes recall, precision, F1, false alarms and onset errors over labelled runs.

Recall counts the labels of the core families with high confidence in runs that had an incident;
precision is the share of alarms that some label accounts for. False alarms per 10,000 records, and
the share of runs without one, come from the runs that had none, where they were read. Alarms in a
run that a label calls broken count for nothing, and so do those where only samples are labelled.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.manifest import CORE, EXTRA, NEGATIVE, UNJUDGED, Label, LabelledRun
from benchmarks.matching import belongs, in_broken_run, meets, names_rightly, onset_error
from benchmarks.predictions import Claim, Prediction

__all__ = ["LabelScore", "RunScore", "score", "score_run", "totals"]

_DRAWS = 2000


@dataclass(frozen=True, kw_only=True)
class LabelScore:
    """What became of one label."""

    label: Label
    met: bool
    met_with_notes: bool
    """Met where notes (`info`) count, too."""
    named: bool
    """Met by an alarm of its family."""
    at_onset: bool
    """Named, with the onset within the slack."""
    error: float | None
    """Smallest onset error among the alarms that met it, in records; positive is late."""


@dataclass(frozen=True, kw_only=True)
class RunScore:
    """What one run adds to the figures."""

    run: LabelledRun
    predicted: bool
    read: bool
    read_rightly: bool
    labels: tuple[LabelScore, ...]
    judged: tuple[tuple[Claim, bool], ...]
    """Alarms that count for precision, and whether a label accounts for them."""
    unjudged: int
    false_on_negative: tuple[str, ...]
    """Families of the false alarms, on a run that had no incident."""
    covered: float
    """Records inside an alarm."""

    @property
    def core(self) -> list[LabelScore]:
        """The labels of the headline."""
        return [s for s in self.labels if s.label.counts]

    @property
    def num_true(self) -> int:
        """Alarms that a label accounts for."""
        return sum(good for _, good in self.judged)


def score(runs: Sequence[LabelledRun], predictions: Sequence[Prediction]) -> dict[str, Any]:
    """Return the figures of one set of predictions; a run without one counts as not read."""
    by_id = {p.id: p for p in predictions}
    return totals([score_run(run, by_id.get(run.id)) for run in runs])


def score_run(run: LabelledRun, prediction: Prediction | None) -> RunScore:
    """Hold one prediction against the labels of its run."""
    said = prediction or Prediction(id=run.id)
    alarms = [c for c in said.claims if c.alarms]
    unjudged = run.verdict in UNJUDGED
    counted = [lab for lab in run.labels if not lab.repeats_another]
    good = said.error is None and said.rows is not None
    rows = said.rows or 0
    width = sum((c.span[1] - c.span[0]) / run.unit + 1 for c in alarms)
    return RunScore(
        run=run,
        predicted=prediction is not None,
        read=good,
        read_rightly=good and any(abs(rows - n) <= 0.02 * n for n in run.rows_accept),
        labels=(
            tuple(_score_label(run, lab, said.claims) for lab in counted)
            if run.verdict == "incident"
            else ()
        ),
        judged=() if unjudged else tuple(_judged(run, alarms)),
        unjudged=len(_by_alarm(alarms)) if unjudged else 0,
        false_on_negative=tuple(_false_on_negative(run, alarms)),
        covered=min(width, float(run.records)),
    )


def _score_label(run: LabelledRun, label: Label, claims: Sequence[Claim]) -> LabelScore:
    met = [c for c in claims if meets(run, c, label)]
    alarms = [c for c in met if c.alarms]
    named = [c for c in alarms if names_rightly(c, label)]
    errors = [onset_error(run, c, label) for c in alarms]
    return LabelScore(
        label=label,
        met=bool(alarms),
        met_with_notes=bool(met),
        named=bool(named),
        at_onset=any(abs(onset_error(run, c, label)) <= run.slack_rows for c in named),
        error=min(errors, key=abs) if errors else None,
    )


def _by_alarm(alarms: Sequence[Claim]) -> list[list[Claim]]:
    """Return the claims of each alarm, in the order of their first."""
    groups: dict[tuple[str, int], list[Claim]] = {}
    for i, claim in enumerate(alarms):
        key = ("own", i) if claim.alarm is None else ("alarm", claim.alarm)
        groups.setdefault(key, []).append(claim)
    return list(groups.values())


def _judged(run: LabelledRun, alarms: Sequence[Claim]) -> list[tuple[Claim, bool]]:
    verdicts: list[tuple[Claim, bool]] = []
    for kinds in _by_alarm(alarms):
        if any(belongs(run, claim, lab) for claim in kinds for lab in run.labels):
            verdicts.append((kinds[0], True))
        elif not run.sampled and not any(in_broken_run(run, claim) for claim in kinds):
            verdicts.append((kinds[0], False))
    return verdicts


def _false_on_negative(run: LabelledRun, alarms: Sequence[Claim]) -> list[str]:
    """Return the families of alarms that no benign event of a healthy run accounts for."""
    if run.verdict not in NEGATIVE:
        return []
    benign = [
        lab
        for lab in run.labels
        if lab.family in EXTRA or (lab.family == "grad" and lab.confidence != "low")
    ]
    return [
        kinds[0].family
        for kinds in _by_alarm(alarms)
        if not any(belongs(run, c, lab) for c in kinds for lab in benign)
    ]


def totals(scores: Sequence[RunScore]) -> dict[str, Any]:
    """Return the figures over runs; a figure without a denominator is None."""
    core = [s for r in scores for s in r.core]
    wanted = [r for r in scores if r.run.must_be_read]
    num_true = sum(r.num_true for r in scores)
    num_judged = sum(len(r.judged) for r in scores)
    recall = _share(sum(s.met for s in core), len(core))
    named = _share(sum(s.named for s in core), len(core))
    precision = _share(num_true, num_judged)
    shares = [r.num_true / len(r.judged) for r in scores if r.judged]
    hits = [any(s.met for s in r.core) for r in scores if r.core]
    return {
        "runs": len(scores),
        "runs_without_prediction": sum(not r.predicted for r in scores),
        "read_rate": _share(sum(r.read_rightly for r in wanted), len(wanted)),
        "not_read": [r.run.id for r in wanted if not r.read_rightly],
        "labels": len(core),
        "recall": recall,
        "recall_same_family": named,
        "recall_at_onset": _share(sum(s.at_onset for s in core), len(core)),
        "recall_with_notes": _share(sum(s.met_with_notes for s in core), len(core)),
        "recall_of_runs": _share(sum(hits), len(hits)),
        "by_family": _by_family(scores, CORE, ("high",)),
        "by_family_not_core": _by_family(scores, EXTRA, ("high",)),
        "by_family_less_sure": _by_family(scores, CORE, ("medium", "low")),
        "precision": precision,
        "precision_of_runs": float(np.mean(shares)) if shares else None,
        "true_alarms": num_true,
        "false_alarms": num_judged - num_true,
        "f1": f1(precision, recall),
        "f1_90": _interval(scores),
        "f1_same_family": f1(precision, named),
        **_negatives(scores),
        "kind_accuracy": _share(sum(s.named for s in core), sum(s.met for s in core)),
        **_errors(core),
        "alarmed_share": _alarmed_share(scores),
        "alarms_without_a_loss": sum(
            len(r.false_on_negative) + r.unjudged for r in scores if not r.run.must_be_read
        ),
    }


def f1(precision: float | None, recall: float | None) -> float | None:
    """Return the harmonic mean; 0 where both are 0, None where one is unknown."""
    if precision is None or recall is None:
        return None
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def _negatives(scores: Sequence[RunScore]) -> dict[str, Any]:
    healthy = [r for r in scores if r.run.verdict in NEGATIVE and r.read]
    records = sum(r.run.records for r in healthy)
    families = Counter(name for r in healthy for name in r.false_on_negative)
    return {
        "negatives_read": len(healthy),
        "negative_records": records,
        "false_per_10k": _per_10k(healthy),
        "false_per_10k_by_verdict": {
            v: _per_10k([r for r in healthy if r.run.verdict == v]) for v in NEGATIVE
        },
        "silent_negatives": _share(sum(not r.false_on_negative for r in healthy), len(healthy)),
        "false_by_family": dict(families.most_common()),
    }


def _per_10k(scores: Sequence[RunScore]) -> float | None:
    num_false = sum(len(r.false_on_negative) for r in scores)
    return _share(1e4 * num_false, sum(r.run.records for r in scores))


def _by_family(
    scores: Sequence[RunScore], families: Sequence[str], confidences: Sequence[str]
) -> dict[str, Mapping[str, int]]:
    table: dict[str, Mapping[str, int]] = {}
    for family in families:
        found = [
            s
            for r in scores
            for s in r.labels
            if s.label.family == family and s.label.confidence in confidences
        ]
        if found:
            table[family] = {
                "labels": len(found),
                "met": sum(s.met for s in found),
                "named": sum(s.named for s in found),
            }
    return table


def _errors(core: Sequence[LabelScore]) -> dict[str, float | None]:
    signed = np.array([s.error for s in core if s.error is not None])
    if not len(signed):
        return {"onset_error": None, "onset_error_p90": None, "onset_error_signed": None}
    return {
        "onset_error": float(np.median(np.abs(signed))),
        "onset_error_p90": float(np.percentile(np.abs(signed), 90)),
        "onset_error_signed": float(np.median(signed)),
    }


def _alarmed_share(scores: Sequence[RunScore]) -> float | None:
    runs = [r for r in scores if r.run.verdict == "incident" and r.read]
    return _share(sum(r.covered for r in runs), sum(r.run.records for r in runs))


def _interval(scores: Sequence[RunScore]) -> list[float] | None:
    """Return the 5th and 95th percentile of F1 when whole runs are drawn again, 2000 times."""
    if not scores:
        return None
    counts = np.array(
        [[len(r.core), sum(s.met for s in r.core), r.num_true, len(r.judged)] for r in scores],
        dtype=np.float64,
    )
    picks = np.random.default_rng(0).integers(0, len(counts), (_DRAWS, len(counts)))
    drawn = [
        f1(_share(good, judged), _share(met, labels))
        for labels, met, good, judged in counts[picks].sum(axis=1).tolist()
    ]
    values = [f for f in drawn if f is not None]
    return [round(float(q), 4) for q in np.percentile(values, [5, 95])] if values else None


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
