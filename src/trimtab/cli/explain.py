"""`trimtab explain NAME`: what is known of a kind, a cause, a remedy or a test.

With its sources.
"""

import argparse
from collections.abc import Sequence

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.analysis.explain import Entry, conflicts, explain_all, known_entries
from trimtab.cli.output import SafeConsole, print_json
from trimtab.errors import ConfigError
from trimtab.report.overview import Unpadded

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "explain", help="what is known of a kind of incident, a cause, a remedy or a test"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="such as spike, fp16-range, clip, half-rate"
    )
    parser.add_argument("--list", action="store_true", help="print what can be asked for")
    parser.add_argument(
        "--conflicts", action="store_true", help="print what the sources disagree on"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look up, print."""
    if not arguments.names and not arguments.list and not arguments.conflicts:
        raise ConfigError("explain: nothing to explain; give a name, --list or --conflicts")
    entries = list(explain_all(arguments.names))
    entries += conflicts() if arguments.conflicts else ()
    entries += known_entries() if arguments.list else ()
    if arguments.json:
        print_json({"schema": 1, "entries": [_document(e) for e in entries]})
        return 0
    console = SafeConsole(highlight=False)
    if arguments.list and not arguments.names and not arguments.conflicts:
        console.print(Unpadded(_listing(entries)), end="")
        return 0
    for number, entry in enumerate(entries):
        if number:
            console.print()
        console.print(Text(f"{entry.id} · {entry.type} · {entry.title}", "bold"))
        console.print(Unpadded(Padding(_body(entry), (0, 0, 0, 2))), end="")
    return 0


def _document(entry: Entry) -> dict[str, object]:
    said = {label: list(texts) for label, texts in entry.said}
    return {"type": entry.type, "id": entry.id, "title": entry.title, "said": said}


def _body(entry: Entry) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=False, width=14)
    table.add_column(ratio=1, overflow="fold")
    for label, texts in entry.said:
        for number, text in enumerate(texts):
            table.add_row(Text("" if number else label, "dim"), Text(text))
    return table


def _listing(entries: Sequence[Entry]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    last = ""
    for entry in entries:
        table.add_row(
            Text("" if entry.type == last else entry.type, "dim"), Text(entry.id), Text(entry.title)
        )
        last = entry.type
    return table
