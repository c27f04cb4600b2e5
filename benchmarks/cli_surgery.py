"""`python -m benchmarks surgery`: rollbacks on disk that are killed at random lines."""

import argparse
import dataclasses
from pathlib import Path

from benchmarks.surgery_kills import kills_text, measure_kills
from trimtab.cli.output import print_json

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part `surgery`."""
    parser = parts.add_parser("surgery", help="rollbacks and undos, killed at random lines")
    parser.add_argument("--kills", metavar="N", type=int, default=500, help="how many kills")
    parser.add_argument("--seed", metavar="S", type=int, default=100, help="of the random choices")
    parser.add_argument("--dir", metavar="DIR", type=Path, help="where to work; default: /tmp")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    figures = measure_kills(arguments.kills, seed=arguments.seed, folder=arguments.dir)
    if arguments.json:
        print_json({"schema": 1, "seed": arguments.seed, **dataclasses.asdict(figures)})
    else:
        print(kills_text(figures))
    return 1 if figures.failures else 0
