"""`python -m benchmarks page`: opens the report of a very long run in a browser and times it."""

import argparse
import dataclasses
import sys

from rich.console import Console

from benchmarks.browser import NAMES, find_chromium
from benchmarks.page import measure_page
from benchmarks.serve_page import measure_serve, serve_text
from benchmarks.tables import page_text
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part."""
    parser = parts.add_parser("page", help="a report of a million rows, opened in a browser")
    parser.add_argument("--rows", metavar="N", type=int, default=1_000_000, help="rows of the run")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="openings")
    parser.add_argument(
        "--serve",
        metavar="RUNS",
        type=int,
        nargs="?",
        const=20,
        help="time `trimtab serve` with so many runs in one picture instead; default: 20",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_page)


def _page(arguments: argparse.Namespace) -> int:
    if not 100 <= arguments.rows <= 10_000_000:
        raise ConfigError(f"--rows {arguments.rows}: expected 100 to 10000000")
    if not 1 <= arguments.repeats <= 100:
        raise ConfigError(f"--repeats {arguments.repeats}: expected 1 to 100")
    if find_chromium() is None:
        left_out = f"not measured: no browser here, looked for {', '.join(NAMES)}"
        if arguments.json:
            print_json({"schema": 1, "page": None, "left_out": left_out})
        else:
            print(left_out)
        return 0
    if arguments.serve is not None:
        return _serve(arguments)
    figures = measure_page(num_rows=arguments.rows, repeats=arguments.repeats, say=_say)
    if arguments.json:
        print_json({"schema": 1, "page": dataclasses.asdict(figures)})
    else:
        Console(highlight=False, markup=False, soft_wrap=True).print(page_text(figures))
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.serve <= 64:
        raise ConfigError(f"--serve {arguments.serve}: expected 1 to 64 runs")
    served = measure_serve(
        num_runs=arguments.serve, num_rows=arguments.rows, repeats=arguments.repeats, say=_say
    )
    if arguments.json:
        print_json({"schema": 1, "serve": dataclasses.asdict(served)})
    else:
        print(serve_text(served))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
