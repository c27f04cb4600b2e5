"""`trimtab report PATH`: one self-contained HTML page about a run."""

import argparse
from pathlib import Path

from trimtab.analysis.source import read_account
from trimtab.cli.output import print_json, tell, write_file
from trimtab.report.html import render_html

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("report", help="write one self-contained HTML page about a run")
    parser.add_argument("path", metavar="PATH", type=Path, help="a run directory or a log")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=Path,
        help="default: report.html in the run directory, or beside the log",
    )
    parser.add_argument("--title", help="default: the name of the run")
    parser.add_argument(
        "--json", action="store_true", help='print {"schema", "path", "report", "size_bytes"}'
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, judge, render, write."""
    path: Path = arguments.path
    account = read_account(str(path))
    out = arguments.out or (
        path / "report.html" if path.is_dir() else path.with_suffix(".report.html")
    )
    page = render_html(account, title=arguments.title or path.absolute().name)
    write_file(out, page)
    if arguments.json:
        print_json(
            {"schema": 1, "path": str(path), "report": str(out), "size_bytes": len(page.encode())}
        )
    else:
        tell(out)
    return 0
