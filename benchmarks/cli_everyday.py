"""`python -m benchmarks everyday`: everyday faults, each with its benign twin."""

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from benchmarks.cli_guard import parse_seeds
from trimtab.cli.lab_options import whole_number
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError

__all__ = ["add_everyday"]

Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_everyday(parts: Parts) -> None:
    """Add the benchmark of everyday faults."""
    parser = parts.add_parser(
        "everyday", help="everyday faults in made-up logs: alarmed, right first cause, twin silent"
    )
    parser.add_argument(
        "--seeds",
        metavar="A-B",
        type=parse_seeds,
        default=tuple(range(100, 105)),
        help="default: 100-104; below 100 the runs are those that rules were tuned with",
    )
    parser.add_argument(
        "--quick", action="store_true", help="up to 1,000 rows, one format a case: some minutes"
    )
    parser.add_argument("--faults", metavar="NAME,…", default="", help="only these")
    parser.add_argument("--lengths", metavar="N,…", default="", help="default: 100,300,1000,10000")
    parser.add_argument("--jobs", type=whole_number(1, 256), default=1, help="cases at a time")
    parser.add_argument("--missed", action="store_true", help="also say what went wrong")
    parser.add_argument("--list", action="store_true", help="print the table of faults, Markdown")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="keep outcomes here, one JSON line each, and go on where a run was stopped",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_everyday)


def _everyday(arguments: argparse.Namespace) -> int:
    from benchmarks.everyday import measure, table
    from benchmarks.everyday.faults import FAULT_BY_ID

    if arguments.list:
        print(table.fault_titles())
        return 0
    faults = [name for name in arguments.faults.split(",") if name]
    for name in faults:
        if name not in FAULT_BY_ID:
            raise ConfigError(f"--faults {name!r}: choose of {', '.join(FAULT_BY_ID)}")
    lengths = _lengths(arguments.lengths) or measure.LENGTHS[: 3 if arguments.quick else None]
    cases = measure.cases_of(arguments.seeds, lengths=lengths, faults=faults)
    outcomes: list[measure.EverydayOutcome] = []
    for left, found in measure.measure_all(
        cases, results=arguments.out, jobs=arguments.jobs, one_format=arguments.quick
    ):
        outcomes += found
        if sys.stderr.isatty():
            print(f"\r{left} cases left ", end="", file=sys.stderr)
    if arguments.json:
        print_json({"schema": 1, "seeds": list(arguments.seeds), **table.totals(outcomes)})
    else:
        print(table.everyday_text(outcomes, missed=arguments.missed))
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    if not text:
        return ()
    if not all(n.isdecimal() and 60 <= int(n) <= 1_000_000 for n in text.split(",")):
        raise ConfigError(f"--lengths {text!r}: expected whole numbers of 60 to 1000000 rows")
    return tuple(int(n) for n in text.split(","))
