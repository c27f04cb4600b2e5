"""`python -m benchmarks read`: times reading logs beside other readers."""

import argparse
import sys

from benchmarks.logs.reading_bench import run_reading_bench
from trimtab.cli.output import print_json

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part to `trimtab bench`."""
    parser = parts.add_parser(
        "read", help="how fast logs are read, beside tbparse, TensorBoard, pandas and a plain loop"
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="pairs of readings; default 5")
    parser.add_argument(
        "--rows",
        type=int,
        default=150_000,
        help="length of the run that is inspected as a whole; default 150000, 0 leaves it out",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    out = sys.stderr if arguments.json else sys.stdout
    figures = run_reading_bench(
        rounds=arguments.rounds,
        say=lambda line: print(line, file=out, flush=True),
        whole_rows=arguments.rows,
    )
    if arguments.json:
        print_json(figures)
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number
