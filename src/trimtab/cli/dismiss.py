"""`trimtab dismiss RUN INCIDENT --reason TEXT`: mark an incident as expected: no alarm any more."""

import argparse

from trimtab.analysis.selection import choose_incident
from trimtab.analysis.source import read_account, store
from trimtab.chronicle.dismissals import Dismissal, remember
from trimtab.cli.output import print_json, tell
from trimtab.cli.reason import add_reason, author_of, reason_given, reason_of
from trimtab.errors import ConfigError
from trimtab.text import plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "dismiss", help="mark an incident as expected: listed, no longer an alarm"
    )
    parser.add_argument("path", metavar="RUN", help="a log or a run directory")
    parser.add_argument("incident", metavar="INCIDENT", help="its letter, onset, or KIND@ONSET")
    add_reason(parser, told="shown wherever it is told")
    parser.add_argument(
        "--undo", action="store_true", help="let it be an alarm again; needs no reason"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Find it, write it down."""
    account = read_account(arguments.path)
    told = account.incidents[choose_incident(account, arguments.incident)]
    incident = told.incident
    if arguments.undo and not told.dismissed:
        raise ConfigError(f"{arguments.path}: {arguments.incident} is not dismissed")
    dismissal = Dismissal(
        attempt=incident.attempt,
        kind=incident.kind,
        severity=incident.severity,
        onset=incident.onset,
        onset_row=incident.onset_row,
        why=(
            reason_given(arguments)
            if arguments.undo
            else reason_of(arguments, f"dismiss {arguments.incident}")
        ),
        author=author_of(arguments),
        undo=arguments.undo,
    )
    where = remember(arguments.path, dismissal, store=store())
    done = "undone" if arguments.undo else "dismissed"
    if arguments.json:
        document = {"kind": incident.kind, "attempt": incident.attempt, "onset": incident.onset}
        print_json(
            {
                "schema": 1,
                "path": arguments.path,
                "incident": document,
                "dismissed": not arguments.undo,
                "why": dismissal.why,
                "author": dismissal.author,
                "stored_in": str(where),
            }
        )
    else:
        tell(f"{done}: {plain(incident.headline)}\nremembered in {where}")
    return 0
