"""Measures the levels of confidence on labelled logs: how often such alarms are right.

Cross-validated over repositories: for each, the score from which an alarm is `sure` is chosen on
all others (the smallest of `BARS` whose lower bound is at least `WANTED`), and the alarms of that
repository are counted under the level that they then get, and given the number that the others
give it. The interval is that of a bootstrap over
repositories, since alarms of one repository are right or wrong together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.cross_validate import folds_of
from benchmarks.detect import Say, read_labelled
from benchmarks.manifest import read_manifest
from benchmarks.predictions import Prediction, claims_of
from benchmarks.scoring import score_run
from trimtab.analysis.assemble import make_account
from trimtab.analysis.json_form import run_to_json
from trimtab.detectors.confidence import (
    LEVELS,
    MEASURED_DETECTORS,
    STRONG_SCORE,
    level_name,
    rule_group,
    shrunk,
)
from trimtab.errors import ReadError
from trimtab.incidents import leading_finding

__all__ = ["LevelFigures", "StatedAlarm", "level_figures", "levels_text", "stated_alarms"]

BARS = (8.0, 12.0, 16.0, 24.0, 32.0)
WANTED = 0.9
"""Lower bound of the share that is right from which an alarm may be called sure."""
_DRAWS = 2000


@dataclass(frozen=True)
class StatedAlarm:
    """One alarm on a labelled log."""

    fold: int
    """Repository, or repositories that share data."""
    detector: str
    score: float
    right: bool


@dataclass(frozen=True, kw_only=True)
class LevelFigures:
    """What was measured of one level."""

    name: str
    num_alarms: int
    num_repositories: int
    hit_rate: float | None
    low: float | None
    """5th percentile over draws of repositories; None without alarms."""
    high: float | None
    log_loss: float | None
    """Mean -ln of what the level states without that repository, given to what came true, nats."""
    log_loss_base: float | None
    """The same where the share of all right alarms of the other repositories is stated instead."""


def stated_alarms(folder: Path, *, say: Say) -> list[StatedAlarm]:
    """Return every alarm on the labelled logs of a folder that counts for precision.

    Raises:
        ReadError: The manifest cannot be used.
    """
    runs = read_manifest(folder)
    found: list[StatedAlarm] = []
    for number, ((run, record), fold) in enumerate(
        zip(read_labelled(folder, runs), folds_of(runs), strict=True), 1
    ):
        say(f"{number}/{len(runs)} {run.id}")
        if isinstance(record, ReadError):
            continue
        account = make_account(record)
        told = run_to_json(account, path=record.source)
        claims = tuple(c for n, i in enumerate(told["incidents"]) for c in claims_of(i, n)[:1])
        scored = score_run(run, Prediction(id=run.id, rows=told["rows"], claims=claims))
        right = {id(claim): good for claim, good in scored.judged}
        for claim, ia in zip(claims, account.incidents, strict=True):
            if id(claim) in right:
                lead = leading_finding(ia.incident)
                found.append(StatedAlarm(fold, lead.detector, float(lead.score), right[id(claim)]))
    return found


def level_figures(alarms: Sequence[StatedAlarm]) -> tuple[LevelFigures, ...]:
    """Return the figures of each level, from the lowest up, and those of all alarms last."""
    placed: dict[str, list[StatedAlarm]] = {level.name: [] for level in LEVELS}
    base: dict[int, float] = {}
    stated: dict[int, float] = {}
    for fold in sorted({a.fold for a in alarms}):
        others = [a for a in alarms if a.fold != fold]
        base[fold] = (sum(a.right for a in others) + 1) / (len(others) + 2)
        bar = choose_bar(others)
        for alarm in (a for a in alarms if a.fold == fold):
            name = level_name(alarm.detector, alarm.score, strong=bar)
            placed[name].append(alarm)
            of_it = [a for a in others if level_name(a.detector, a.score, strong=bar) == name]
            stated[id(alarm)] = shrunk(sum(a.right for a in of_it), len(of_it), base[fold])
    rows = [_figures(name, here, base, stated) for name, here in placed.items()]
    return (*rows, _figures("all", list(alarms), base, stated))


def choose_bar(alarms: Sequence[StatedAlarm]) -> float:
    """Return the smallest bar from which the lower bound of the share right reaches `WANTED`.

    The one in use where none does.
    """
    for bar in BARS:
        strong = [a for a in alarms if level_name(a.detector, a.score, strong=bar) == "sure"]
        if strong and (_bounds(strong)[0] or 0.0) >= WANTED:
            return bar
    return STRONG_SCORE


def _figures(
    name: str,
    alarms: Sequence[StatedAlarm],
    base: Mapping[int, float],
    stated: Mapping[int, float],
) -> LevelFigures:
    low, high = _bounds(alarms)
    return LevelFigures(
        name=name,
        num_alarms=len(alarms),
        num_repositories=len({a.fold for a in alarms}),
        hit_rate=sum(a.right for a in alarms) / len(alarms) if alarms else None,
        low=low,
        high=high,
        log_loss=_log_loss([(stated[id(a)], a.right) for a in alarms]),
        log_loss_base=_log_loss([(base[a.fold], a.right) for a in alarms]),
    )


def _log_loss(said: Sequence[tuple[float, bool]]) -> float | None:
    if not said:
        return None
    given = [min(max(p if right else 1 - p, 1e-3), 1.0) for p, right in said]
    return float(-np.mean(np.log(given)))


def _bounds(alarms: Sequence[StatedAlarm]) -> tuple[float | None, float | None]:
    """Return the 5th and 95th percentile of the share right, over draws of repositories.

    One right and one wrong alarm are added to each draw, so that no share is certain.
    """
    if not alarms:
        return None, None
    folds = sorted({a.fold for a in alarms})
    right = np.array([sum(a.right for a in alarms if a.fold == f) for f in folds], dtype=float)
    number = np.array([sum(a.fold == f for a in alarms) for f in folds], dtype=float)
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(folds), (_DRAWS, len(folds)))
    shares = (right[drawn].sum(1) + 0.5) / (number[drawn].sum(1) + 1.0)
    return float(np.quantile(shares, 0.05)), float(np.quantile(shares, 0.95))


def levels_text(figures: Sequence[LevelFigures], alarms: Sequence[StatedAlarm]) -> str:
    """Return the figures as text, and which detectors led two alarms or more."""
    lines = ["level    alarms  repositories  right  5 %   95 %  log loss  base rate's"]
    for f in figures:
        lines.append(
            f"{f.name:<8} {f.num_alarms:6d}  {f.num_repositories:12d}  {_n(f.hit_rate)}   "
            f"{_n(f.low)}  {_n(f.high)}  {_n(f.log_loss):>8}  {_n(f.log_loss_base)}"
        )
    counts: dict[str, list[bool]] = {}
    for a in alarms:
        counts.setdefault(a.detector, []).append(a.right)
    led = ", ".join(f"{d} {sum(r)}/{len(r)}" for d, r in sorted(counts.items()))
    never = sorted(d for d in MEASURED_DETECTORS if len(counts.get(d, ())) < 2)
    new = sorted(
        d
        for d, r in counts.items()
        if len(r) > 1 and d not in MEASURED_DETECTORS and rule_group(d) != "block"
    )
    lines.append(f"bar chosen on all: {choose_bar(alarms):g}; in use: {STRONG_SCORE:g}")
    lines.append(f"right / alarms by detector: {led}")
    lines.append(f"listed as measured, with fewer than two alarms: {', '.join(never) or 'none'}")
    lines.append(f"measured and not listed: {', '.join(new) or 'none'}")
    return "\n".join(lines)


def _n(value: float | None) -> str:
    return "   —" if value is None else f"{value:4.2f}"
