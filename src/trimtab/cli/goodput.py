"""`trimtab goodput RUN|LOG…`: effective training time, and what the rest was lost to."""

import argparse
from pathlib import Path

from trimtab.cli.output import print_json, tell
from trimtab.goodput import goodput, goodput_text
from trimtab.goodput.account import EVALUATION_SHARE

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "goodput", help="where the hours of a run went: effective training time, by cause"
    )
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=Path,
        nargs="+",
        help="logs, run directories and a supervisor's folder of one run",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, divide and tell."""
    found = goodput(arguments.paths)
    if not arguments.json:
        tell(goodput_text(found))
        return 0
    known = found.wall_s > 0
    print_json(
        {
            "schema": 1,
            "paths": [str(path) for path in arguments.paths],
            "effective": found.effective,
            "wall_s": found.wall_s if known else None,
            "seconds": dict(found.seconds) if known else None,
            "evaluation_above": None if found.costly_evaluation is None else EVALUATION_SHARE,
            "usual_step_s": found.usual_step_s,
            "rows": found.num_steps,
            "starts": found.num_starts if known else None,
            "timed": found.timed and known,
            "untold": list(found.untold),
        }
    )
    return 0
