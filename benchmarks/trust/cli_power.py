"""The parts about power cuts: `python -m benchmarks power` and `durability`."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TypeAlias

from trimtab.cli.lab_options import load_lab, whole_number
from trimtab.cli.output import print_json

__all__ = ["add_durability", "add_power"]

_Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_power(parts: _Parts) -> None:
    """Add the part that cuts the power."""
    parser = parts.add_parser(
        "power", help="runs gone on with after power cuts: what was promised and is not there"
    )
    parser.add_argument(
        "--states",
        metavar="N",
        type=whole_number(1, 10**6),
        default=2400,
        help="states of the disk in all; default 2400, some 0.5 s of a core each",
    )
    parser.add_argument(
        "--seed", type=whole_number(0, 2**31 - 1), default=0, help="draws the states; default 0"
    )
    parser.add_argument("--jobs", type=whole_number(1, 256), default=1, help="processes at a time")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs/power"),
        help="recordings and results; what is there is not judged again; default runs/power",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_power)


def add_durability(parts: _Parts) -> None:
    """Add the part that measures what durability costs."""
    parser = parts.add_parser(
        "durability", help="what it costs that rows, events and checkpoints outlive a power cut"
    )
    parser.add_argument(
        "--pairs", type=whole_number(1, 100_000), default=1500, help="pairs of steps; default 1500"
    )
    parser.add_argument(
        "--dir", type=Path, default=Path(), metavar="DIR", help="on this disk; default: here"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_durability)


def _power(arguments: argparse.Namespace) -> int:
    power = load_lab("benchmarks.trust.power", 1)
    judged = power.cut_power(
        arguments.out,
        states=arguments.states,
        seed=arguments.seed,
        jobs=arguments.jobs,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if arguments.json:
        print_json({"schema": 1, "states": [dataclasses.asdict(j) for j in judged]})
    else:
        print(power.power_table(judged))
    return 0 if all(map(power.holds, judged)) else 1


def _durability(arguments: argparse.Namespace) -> int:
    durability = load_lab("benchmarks.trust.durability", 1)
    cost = durability.measure_durability(arguments.dir, pairs=arguments.pairs)
    if arguments.json:
        print_json({"schema": 1, **cost.to_json()})
    else:
        print(durability.durability_table(cost))
    return 0 if cost.within_budget else 1
