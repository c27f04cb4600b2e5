"""`trimtab chronicle RUN`: the logbook of a run, in Markdown."""

import argparse
from pathlib import Path

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.links import linked_files, links_markdown
from trimtab.chronicle.logbook import render_logbook
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json, tell, tell_error, write_file
from trimtab.errors import ReadError
from trimtab.readers import read_run

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("chronicle", help="print the logbook of a guarded run as Markdown")
    parser.add_argument(
        "run_directory",
        metavar="RUN",
        type=Path,
        help="a run directory, such as runs/demo/bad-data-late",
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="also link to this raw log or TensorBoard directory; repeatable",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the journal's events as one JSON document"
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="write it there instead of printing it"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the journal and print it."""
    directory = RunDirectory(arguments.run_directory)
    if not directory.journal.is_file():
        raise ReadError(
            f"{directory.root}: has no journal.jsonl; give the directory of a guarded run"
        )
    events, num_torn = read_journal(directory.journal)
    if arguments.json:
        told = [
            {"t": e.t, "event": e.event, "attempt": e.attempt, "step": e.step, **e.data}
            for e in events
        ]
        print_json(
            {
                "schema": 1,
                "path": str(arguments.run_directory),
                "torn_lines": num_torn,
                "events": told,
            }
        )
        return 0
    unread = ""
    try:
        record = read_run(directory.root)
    except ReadError as error:
        record = None
        if _has_samples(directory):
            unread = f"{error}; the logbook is written without what the samples show"
    folder = directory.root if arguments.out is None else arguments.out.parent
    files = linked_files(directory.root, arguments.link)
    text = render_logbook(events, record, files=links_markdown(files, folder))
    if arguments.out is None:
        tell(text)
    else:
        write_file(arguments.out, text)
    if unread:
        tell_error(unread)
    return 1 if unread else 0


def _has_samples(directory: RunDirectory) -> bool:
    """Whether samples lie there, or nobody can tell; a run may have stopped before its first."""
    try:
        return any(p.stat().st_size for p in directory.signals.glob("*.jsonl"))
    except OSError:
        return True
