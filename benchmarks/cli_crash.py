"""`python -m benchmarks crash`: the crash classifier on labelled samples."""

import argparse
import dataclasses
from pathlib import Path

from benchmarks.crash import appended_text, crash_text, measure_appended, measure_crash
from trimtab.cli.output import print_json

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part `crash`."""
    parser = parts.add_parser("crash", help="on labelled last lines of logs: what ended the run")
    parser.add_argument(
        "--errors",
        metavar="DIR",
        type=Path,
        required=True,
        help="folder with manifest.jsonl and the samples it names (benchmarks/crash.py)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    figures = [
        measure_crash(arguments.errors),
        measure_crash(arguments.errors, leave_one_out=True),
    ]
    appended = measure_appended(arguments.errors)
    if arguments.json:
        results = [dataclasses.asdict(f) for f in figures]
        print_json({"schema": 1, "results": results, "appended": dataclasses.asdict(appended)})
    else:
        print(crash_text(figures))
        print(appended_text(appended))
    return 0
