"""Leaves each repository out together with every rule that it alone suggested.

`benchmarks/origins/*.toml` records which log, paper or review suggested a rule or a threshold. A
rule that one repository alone suggested has been fitted to it, so on that repository it proves
nothing: it is turned off there. A rule without a record counts as suggested by all, and stays on.
A second measurement turns off every rule in which the repository had any part, with whatever else
that rule finds: less than a user with another log may expect.
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
from trimtab.record import RunRecord

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


def rules_off_for(repo: str, origins: Sequence[Origin], *, in_part: bool = False) -> frozenset[str]:
    """Return the rules that this repository alone suggested, by the names that switch them off.

    A detector is off where every record that names it names this repository and nothing else.

    Args:
        repo: The repository.
        origins: What is recorded of the rules.
        in_part: Return the rules of which any record names this repository, others or not.
    """
    switches = {d.name for d in DETECTORS} | {rule.__name__ for rule in HINDSIGHT}
    switches.add("hindsight_findings")
    off: set[str] = set()
    for name in switches:
        records = [o for o in origins if name in _NAME.findall(o.where) or name == o.rule]
        alone = bool(records) and all(o.suggested_by == {repo} for o in records)
        if alone or (in_part and any(repo in o.suggested_by for o in records)):
            off.add(name)
    return frozenset(off)


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Figures with each repository judged without the rules that it alone suggested."""

    figures: Mapping[str, Any]
    off: Mapping[str, Sequence[str]]
    """By repository: the rules that were off; repositories without one are left out."""
    in_part: Mapping[str, Any]
    """Figures with each repository judged without any rule that it had a part in."""
    num_in_part: int
    """Repositories that had a part in one."""
    num_records: int


def score_left_out(folder: Path, runs: Sequence[LabelledRun], *, say: Say) -> LeftOut:
    """Judge every run without the rules that its repository alone suggested.

    Raises:
        ConfigError: A record of origins cannot be used.
    """
    origins = read_origins()
    alone: list[RunScore] = []
    in_part: list[RunScore] = []
    off: dict[str, Sequence[str]] = {}
    had_part: set[str] = set()
    for number, (run, found) in enumerate(read_labelled(folder, runs), 1):
        own = rules_off_for(run.repo, origins)
        shared = rules_off_for(run.repo, origins, in_part=True)
        if own:
            off[run.repo] = sorted(own)
        if shared:
            had_part.add(run.repo)
        alone.append(_score(run, found, own))
        in_part.append(alone[-1] if own == shared else _score(run, found, shared))
        say(f"{number}/{len(runs)} {run.id} without its own rules")
    return LeftOut(
        figures=totals(alone),
        off=off,
        in_part=totals(in_part),
        num_in_part=len(had_part),
        num_records=len(origins),
    )


def _score(run: LabelledRun, found: RunRecord | ReadError, off: frozenset[str]) -> RunScore:
    if isinstance(found, ReadError):
        return score_run(run, Prediction(id=run.id, error=str(found)))
    return score_run(run, predict(run.id, found, sensitivity=Sensitivity(off=off)))


def left_out_text(found: LeftOut) -> str:
    """Return the figures as a few lines."""
    off = "; ".join(f"{repo}: {', '.join(rules)}" for repo, rules in sorted(found.off.items()))
    return (
        f"each repository without the rules that it alone suggested ({found.num_records} records):"
        f" {_text(found.figures)}\n  off: {off or 'none'}\n"
        f"and without any rule that it had a part in ({found.num_in_part} had):"
        f" {_text(found.in_part)}"
    )


def _text(figures: Mapping[str, Any]) -> str:
    return (
        f"F1 {figures['f1']:.2f}, same family {figures['f1_same_family']:.2f}, false per 10k"
        f" {figures['false_per_10k']:.2f}"
    )
