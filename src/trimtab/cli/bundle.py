"""`trimtab bundle RUN -o FILE`: evidence for a provider or a bug report, masked and bounded."""

import argparse
from pathlib import Path

from trimtab.cli.output import print_json, tell
from trimtab.evidence import make_bundle
from trimtab.text import number

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bundle", help="a zip with what a provider or a bug report needs of a run, secrets masked"
    )
    parser.add_argument(
        "path", metavar="RUN", type=Path, help="a run, a supervisor's folder, a log"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("bundle.zip"), help="bundle.zip"
    )
    parser.add_argument(
        "--facts", metavar="DIR", type=Path, help="facts of hosts, as doctor --collect writes them"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Put it together and say what is in it."""
    made = make_bundle(arguments.path, arguments.output, facts=arguments.facts)
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "path": str(made.path),
                "bytes": made.size_bytes,
                "files": list(made.files),
                "left_out": list(made.left_out),
            }
        )
        return 0
    size = f"{number(made.size_bytes / 1e6, digits=3)} MB"
    tell(f"{made.path}: {len(made.files)} files, {size}, secrets masked")
    tell("  do: look it through before you send it; summary.txt says what ended the run")
    for text in made.left_out[:20]:
        tell(f"  left out: {text}")
    return 0
