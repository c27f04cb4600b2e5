"""Cross-validates thresholds over repositories: chosen on all but one, scored on that one.

Here the thresholds that trimtab ships are moved by a few factors. The streaming rules were set on
simulated noise, the hindsight rules on labelled logs, so only a log that took no part is new; for each repository the setting with the best F1 on all others is taken (a tie goes to the
setting as built) and scored on the repository itself. The left-out figures, pooled, are what a user
with another log may expect; the fitted ones are of the setting that is best on everything at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detect import Say, read_labelled
from benchmarks.manifest import LabelledRun
from benchmarks.predictions import Prediction, predict
from benchmarks.scoring import RunScore, score_run, totals
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.errors import ReadError

__all__ = ["SETTINGS", "CrossValidation", "cross_validate", "folds_of", "leave_one_out"]

SETTINGS: Mapping[str, Sensitivity] = {
    "as built": Sensitivity(),
    "spike x 0.7": Sensitivity(spike=0.7),
    "spike x 1.4": Sensitivity(spike=1.4),
    "lasting x 0.7": Sensitivity(lasting=0.7),
    "lasting x 1.4": Sensitivity(lasting=1.4),
    "hindsight x 0.7": Sensitivity(hindsight=0.7),
    "hindsight x 1.4": Sensitivity(hindsight=1.4),
    "all x 0.7": Sensitivity(spike=0.7, lasting=0.7, hindsight=0.7),
    "all x 1.4": Sensitivity(spike=1.4, lasting=1.4, hindsight=1.4),
}
"""The settings tried; the first is the one that users get."""


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """The figures of each setting, of the best one, and those left out."""

    settings: Mapping[str, Mapping[str, Any]]
    best: str
    """The setting with the best F1 on everything: the fitted one."""
    left_out: Mapping[str, Any]
    num_folds: int
    chosen: Mapping[str, int]
    """How many repositories were scored under which setting."""


def cross_validate(folder: Path, runs: Sequence[LabelledRun], *, say: Say) -> CrossValidation:
    """Judge every run under every setting and leave out one repository after the other.

    Cost: as many passes over all logs as there are settings; each log is read once.
    """
    scores: dict[str, list[RunScore]] = {name: [] for name in SETTINGS}
    for number, (run, found) in enumerate(read_labelled(folder, runs), 1):
        for name, setting in SETTINGS.items():
            if isinstance(found, ReadError):
                said = Prediction(id=run.id, error=str(found))
            else:
                said = predict(run.id, found, sensitivity=setting)
            scores[name].append(score_run(run, said))
        say(f"{number}/{len(runs)} {run.id} under {len(SETTINGS)} settings")
    return leave_one_out(scores, folds_of(runs))


def folds_of(runs: Sequence[LabelledRun]) -> list[int]:
    """Return the fold of each run: runs of one repository, or that share data, are in one."""
    folds = list(range(len(runs)))
    for i, run in enumerate(runs):
        for j in range(i):
            other = runs[j]
            if run.repo == other.repo or run.group == other.group:
                old, new = folds[i], folds[j]
                folds = [new if f == old else f for f in folds]
    return folds


def leave_one_out(
    scores: Mapping[str, Sequence[RunScore]], folds: Sequence[int]
) -> CrossValidation:
    """Choose a setting for each fold on the other folds, and pool the runs that were left out."""
    pooled: list[RunScore] = []
    chosen: dict[str, int] = {}
    for fold in sorted(set(folds)):
        others = {
            name: [r for r, f in zip(rows, folds, strict=True) if f != fold]
            for name, rows in scores.items()
        }
        name = _best(others)
        chosen[name] = chosen.get(name, 0) + 1
        pooled += [r for r, f in zip(scores[name], folds, strict=True) if f == fold]
    return CrossValidation(
        settings={name: totals(rows) for name, rows in scores.items()},
        best=_best(scores),
        left_out=totals(pooled),
        num_folds=len(set(folds)),
        chosen=chosen,
    )


def _best(scores: Mapping[str, Sequence[RunScore]]) -> str:
    """Return the setting with the highest F1, the first of equals."""
    return max(scores, key=lambda name: totals(scores[name])["f1"] or 0.0)
