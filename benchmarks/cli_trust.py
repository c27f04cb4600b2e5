"""The parts that make the machine fail under trimtab: faults of calls, kills, damaged files.

`python -m benchmarks faults`, `kills`, `damage`. Each keeps its results by case in a file below
`--out` and goes on where it was stopped.
"""

import argparse
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from benchmarks.cli_guard import add_device, parse_seeds
from benchmarks.trust.totals import Totals
from trimtab.cli.lab_options import load_lab, whole_number
from trimtab.errors import ConfigError

__all__ = ["add_damage", "add_faults", "add_kills"]

Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Row: TypeAlias = dict[str, object]


class _Case(Protocol):
    @property
    def name(self) -> str: ...


Case = TypeVar("Case", bound=_Case)


def add_faults(parts: Parts) -> None:
    """Add the matrix of faults."""
    parser = parts.add_parser(
        "faults", help="every call of the input and output layer made to fail in every way"
    )
    _add_common(parser, "cases of each seed")
    parser.add_argument(
        "--kinds",
        metavar="NAME,…",
        default="",
        help="default: observe,act,resume,inspect,watch,report,chronicle,scan",
    )
    parser.add_argument(
        "--clean",
        type=whole_number(0, 100_000),
        default=0,
        help="runs without a fault, which must never say that they are degraded; 500 at full size",
    )
    parser.set_defaults(run=_faults)


def add_kills(parts: Parts) -> None:
    """Add the kills."""
    parser = parts.add_parser(
        "kills", help="runs killed over and over, which must end bit for bit as an unbroken one"
    )
    parser.add_argument(
        "--num", type=whole_number(1, 1_000_000), default=1000, help="kills of each seed"
    )
    add_device(parser)
    _add_common(parser, None)
    parser.set_defaults(run=_kills)


def add_damage(parts: Parts) -> None:
    """Add the damaged files."""
    parser = parts.add_parser(
        "damage", help="every part of every file of a run directory damaged, then resumed"
    )
    _add_common(parser, "cases of each seed")
    parser.set_defaults(run=_damage)


def _add_common(parser: argparse.ArgumentParser, of: str | None) -> None:
    parser.add_argument("--seeds", metavar="A-B", type=parse_seeds, default=(0,), help="default: 0")
    if of is not None:
        parser.add_argument(
            "--sample", metavar="N", type=whole_number(1, 10_000_000), help=f"only N {of}"
        )
    parser.add_argument(
        "--match", metavar="REGEX", default="", help="only cases whose name holds this; run anew"
    )
    parser.add_argument("--jobs", type=whole_number(1, 256), default=1, help="cases at a time")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs/trust"),
        help="results by case; default runs/trust",
    )


def _faults(arguments: argparse.Namespace) -> int:
    load_lab("benchmarks.trust.training", 1)
    from benchmarks.trust import faults

    kinds = [k for k in arguments.kinds.split(",") if k] or list(faults.KINDS)
    for kind in kinds:
        if kind not in faults.KINDS:
            raise ConfigError(f"--kinds {kind!r}: choose of {', '.join(faults.KINDS)}")
    with _Scratch() as root:
        matrix = faults.prepare(root, kinds)
        cases: list[faults.FaultCase] = []
        for seed in arguments.seeds:
            of_seed = _matching(matrix.cases(seed), arguments.match)
            cases += faults.evenly(of_seed, arguments.sample, seed)
            cases += matrix.clean(arguments.clean, seed)
        rows = _measure(
            "faults", cases, arguments, lambda todo, jobs: faults.measure(matrix, todo, jobs=jobs)
        )
        print(faults.summary(rows, matrix))
    return _verdict(rows, faults.FAILURES)


def _kills(arguments: argparse.Namespace) -> int:
    load_lab("benchmarks.trust.training", 1)
    from benchmarks.trust import kills

    with _Scratch(warm=arguments.device == "cpu") as root:
        plan = kills.prepare(root, arguments.device)
        cases = [c for seed in arguments.seeds for c in plan.cases(arguments.num, seed)]
        rows = _measure(
            "kills",
            _matching(cases, arguments.match),
            arguments,
            lambda todo, jobs: kills.measure(plan, todo, jobs=jobs),
        )
        print(kills.summary(rows))
    return _verdict(rows, kills.FAILURES)


def _damage(arguments: argparse.Namespace) -> int:
    load_lab("benchmarks.trust.training", 1)
    from benchmarks.trust import damage

    with _Scratch() as root:
        runs = damage.prepare(root)
        cases: list[damage.DamageCase] = []
        for seed in arguments.seeds:
            of_seed = _matching(damage.cases(runs, seed), arguments.match)
            cases += damage.evenly(of_seed, arguments.sample, seed)
        rows = _measure(
            "damage", cases, arguments, lambda todo, jobs: damage.measure(runs, todo, jobs=jobs)
        )
        print(damage.summary(rows))
    return _verdict(rows, damage.FAILURES)


class _Scratch:
    """A folder for the cases of one measurement, removed at its end; torch is loaded first."""

    def __init__(self, *, warm: bool = True) -> None:
        # An optimizer's step starts CUDA where there is a GPU, and then no child can use it.
        self._warm = warm

    def __enter__(self) -> Path:
        from benchmarks.trust.forks import scratch_folder
        from benchmarks.trust.training import warm_up

        self._root = scratch_folder()
        if self._warm:
            warm_up(self._root / "warm-up")
        return self._root

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def _matching(cases: Sequence[Case], pattern: str) -> list[Case]:
    return [case for case in cases if re.search(pattern, case.name)]


def _measure(
    name: str,
    cases: Sequence[Case],
    arguments: argparse.Namespace,
    run: Callable[[Sequence[Case], int], Iterator[tuple[Case, Row]]],
) -> list[Row]:
    """Run what has no result yet; return the rows of all."""
    totals = Totals(arguments.out / f"{name}.jsonl")
    todo = [c for c in cases if arguments.match or c.name not in totals.rows]
    told = time.monotonic()
    for number, (_, row) in enumerate(run(todo, arguments.jobs), 1):
        totals.add(row)
        if arguments.match:
            print(f"{row['class']}: {row['case']}\n    {row['why']}", flush=True)
        if time.monotonic() - told >= 10:
            told = time.monotonic()
            print(f"{name}: {number} of {len(todo)} cases", file=sys.stderr, flush=True)
    return [totals.rows[c.name] for c in cases if c.name in totals.rows]


def _verdict(rows: Sequence[Row], failures: frozenset[str]) -> int:
    """Print each failure once by cause; return the exit status."""
    bad = [row for row in rows if row["class"] in failures]
    for row in bad[:40]:
        print(f"{row['class']}: {row['case']}\n    {row['why']}")
    if len(bad) > 40:
        print(f"… and {len(bad) - 40} more")
    return 1 if bad else 0
