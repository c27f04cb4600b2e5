"""`trimtab compare A B...`: two runs or attempts side by side, or several beside the first.

`compare A --at STEP`: before and after.
"""

import argparse
from pathlib import Path

from trimtab.api.comparison import compare
from trimtab.cli.output import SafeConsole, print_json, write_file

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("compare", help="two runs or attempts side by side")
    parser.add_argument(
        "a", metavar="A", help="a log or run directory; A@1.0 means its attempt 1.0"
    )
    parser.add_argument(
        "b", metavar="B", nargs="?", help="the other; without it, A before and after --at"
    )
    parser.add_argument(
        "more", metavar="C", nargs="*", help="further runs; each is set beside A, too"
    )
    parser.add_argument("--by", choices=("step", "tokens"), default="step", help="what is equal")
    parser.add_argument(
        "--at",
        metavar="STEP",
        type=float,
        help="first step under a change; default: where an attempt of B continues its parent",
    )
    parser.add_argument(
        "--window",
        metavar="N",
        type=float,
        default=500.0,
        help="steps to look at on either side of it",
    )
    parser.add_argument(
        "--configs",
        metavar="FILE",
        nargs=2,
        type=Path,
        help="config files of A and B, to compare too",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read both, compare them, print what differs."""
    found = compare(
        arguments.a,
        arguments.b,
        *arguments.more,
        by=arguments.by,
        at=arguments.at,
        window_steps=arguments.window,
        configs=None if arguments.configs is None else tuple(arguments.configs),
    )
    if arguments.html is not None:
        write_file(arguments.html, found.to_html())
    if arguments.json:
        print_json(found.to_dict())
    else:
        SafeConsole(highlight=False).print(found, end="")
    return 0
