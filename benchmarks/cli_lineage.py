"""`python -m benchmarks lineage`: the logbook of 54 attempts over 140 k steps, and its time."""

import argparse
import dataclasses
import tempfile
from pathlib import Path

from benchmarks.lineage import lineage_text, measure_lineage
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part."""
    parser = parts.add_parser("lineage", help="a logbook of 54 attempts over 140 k steps, timed")
    parser.add_argument(
        "--every", metavar="N", type=int, default=10, help="steps a row; default 10"
    )
    parser.add_argument(
        "--repeats", metavar="N", type=int, default=5, help="times each form is made"
    )
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave logs, run and page there")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.every <= 1000:
        raise ConfigError(f"--every {arguments.every}: expected 1 to 1000")
    if not 1 <= arguments.repeats <= 100:
        raise ConfigError(f"--repeats {arguments.repeats}: expected 1 to 100")
    with tempfile.TemporaryDirectory(prefix="trimtab-") as made:
        folder = arguments.keep or Path(made)
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"--keep {folder}: is not an empty folder")
        figures = measure_lineage(folder, every=arguments.every, repeats=arguments.repeats)
    if arguments.json:
        print_json({"schema": 1, "lineage": dataclasses.asdict(figures)})
    else:
        print(lineage_text(figures))
    return 0
