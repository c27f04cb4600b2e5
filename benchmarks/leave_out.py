"""Leaves each repository out together with every rule that it alone suggested.

`benchmarks/origins/*.toml` records which log, paper or review suggested a rule or a threshold. A
rule that one repository alone suggested has been fitted to it, so on that repository it proves
nothing: it is turned off there. A rule without a record counts as suggested by all, and stays on.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.detect import Say, read_labelled
from benchmarks.manifest import LabelledRun
from benchmarks.predictions import Prediction, predict
from benchmarks.scoring import RunScore, score_run, totals
from trimtab.detectors.judge import DETECTORS
from trimtab.detectors.offline import HINDSIGHT
from trimtab.detectors.sensitivity import Sensitivity
from trimtab.errors import ConfigError, ReadError

__all__ = [
    "ORIGINS",
    "LeftOut",
    "Origin",
    "left_out_text",
    "read_origins",
    "rules_off_for",
    "score_left_out",
]

ORIGINS = Path(__file__).parent / "origins"
# A detector has dashes in its name, a function underscores.
_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The record of one rule or threshold."""

    rule: str
    what: str
    where: str
    """File and function, or the names of the detectors that it belongs to."""
    suggested_by: frozenset[str]


def read_origins(folder: Path = ORIGINS) -> tuple[Origin, ...]:
    """Return all records of a folder, file by file.

    Raises:
        ConfigError: A file is no TOML, or a record lacks one of its three keys.
    """
    found: list[Origin] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path}: not TOML ({error}); correct the file") from error
        found += [_origin(path, rule, table) for rule, table in _tables(data)]
    return tuple(found)


def _tables(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the records; `[crash.config-check]` is one below `[crash]`."""
    if above and not all(isinstance(v, dict) for v in data.values()):
        yield above, {k: v for k, v in data.items() if not isinstance(v, dict)}
    for name, value in data.items():
        if isinstance(value, dict):
            yield from _tables(value, f"{above}.{name}" if above else name)


def _origin(path: Path, rule: str, table: Mapping[str, Any]) -> Origin:
    missing = [k for k in ("what", "where", "suggested_by") if k not in table]
    if missing or not isinstance(table["suggested_by"], list):
        lacks = ", ".join(missing) or "a list `suggested_by`"
        raise ConfigError(f"{path}: record [{rule}] lacks {lacks}; add it")
    return Origin(
        rule=rule,
        what=str(table["what"]),
        where=str(table["where"]),
        suggested_by=frozenset(map(str, table["suggested_by"])),
    )


def rules_off_for(repo: str, origins: Sequence[Origin]) -> frozenset[str]:
    """Return the rules that this repository alone suggested, by the names that switch them off.

    A detector is off where every record that names it names this repository and nothing else.
    """
    switches = {d.name for d in DETECTORS} | {rule.__name__ for rule in HINDSIGHT}
    switches.add("hindsight_findings")
    off: set[str] = set()
    for name in switches:
        records = [o for o in origins if name in _NAME.findall(o.where) or name == o.rule]
        if records and all(o.suggested_by == {repo} for o in records):
            off.add(name)
    return frozenset(off)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Figures with each repository judged without the rules that it alone suggested."""

    figures: Mapping[str, Any]
    off: Mapping[str, Sequence[str]]
    """By repository: the rules that were off; repositories without one are left out."""
    num_records: int


def score_left_out(folder: Path, runs: Sequence[LabelledRun], *, say: Say) -> LeftOut:
    """Judge every run without the rules that its repository alone suggested.

    Raises:
        ConfigError: A record of origins cannot be used.
    """
    origins = read_origins()
    scores: list[RunScore] = []
    off: dict[str, Sequence[str]] = {}
    for number, (run, found) in enumerate(read_labelled(folder, runs), 1):
        rules = rules_off_for(run.repo, origins)
        if rules:
            off[run.repo] = sorted(rules)
        if isinstance(found, ReadError):
            said = Prediction(id=run.id, error=str(found))
        else:
            said = predict(run.id, found, sensitivity=Sensitivity(off=rules))
        scores.append(score_run(run, said))
        say(f"{number}/{len(runs)} {run.id} without its own rules")
    return LeftOut(figures=totals(scores), off=off, num_records=len(origins))


def left_out_text(found: LeftOut) -> str:
    """Return the figures as a few lines."""
    figures = found.figures
    off = "; ".join(f"{repo}: {', '.join(rules)}" for repo, rules in sorted(found.off.items()))
    return (
        f"each repository without the rules that it alone suggested ({found.num_records} records):"
        f" F1 {figures['f1']:.2f}, same family {figures['f1_same_family']:.2f}, false per 10k"
        f" {figures['false_per_10k']:.2f}\n  off: {off or 'none'}"
    )
