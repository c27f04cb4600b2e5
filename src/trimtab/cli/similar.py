"""`trimtab similar RUN INCIDENT --among RUNS`: similar incidents of other runs, with outcomes."""

import argparse

from rich.table import Table
from rich.text import Text

from trimtab.analysis.account import RunAccount
from trimtab.analysis.ordering import letters
from trimtab.analysis.selection import choose_incident
from trimtab.analysis.similar import Likeness, actions_about, likeness_to_json, similar_incidents
from trimtab.analysis.source import account_of, read_account
from trimtab.cli.output import SafeConsole, print_json, tell_error
from trimtab.errors import ConfigError, ReadError
from trimtab.readers import read_each
from trimtab.report.overview import Unpadded
from trimtab.report.wording import tell
from trimtab.text import plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("similar", help="find similar incidents in earlier runs")
    parser.add_argument("path", metavar="RUN", help="a log or a run directory")
    parser.add_argument("incident", metavar="INCIDENT", help="its letter, onset, or KIND@ONSET")
    parser.add_argument(
        "--among",
        metavar="PATH",
        nargs="+",
        required=True,
        help="logs, run directories, folders of them",
    )
    parser.add_argument("--most", metavar="N", type=int, default=5, help="how many to show")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read all runs, rank their incidents by similarity, print them."""
    if arguments.most < 1:
        raise ConfigError(f"--most {arguments.most}: must be at least 1")
    account = read_account(arguments.path)
    index = choose_incident(account, arguments.incident)
    others: list[tuple[str, RunAccount]] = []
    errors = []
    for given in arguments.among:
        for path, found in read_each(given):
            if isinstance(found, ReadError):
                errors.append({"path": path, "error": str(found)})
                tell_error(found)
            else:
                others.append((path, account_of(found, path)))
    if not others:
        raise ConfigError("--among: none of it can be read; give logs or run directories")
    ranked = similar_incidents(account, index, others)[: arguments.most]
    accounts = dict(others)
    if arguments.json:
        like = [likeness_to_json(x, accounts[x.path]) for x in ranked]
        print_json(
            {
                "schema": 1,
                "path": arguments.path,
                "incident": arguments.incident,
                "among": [p for p, _ in others],
                "similar": like,
                "errors": errors,
            }
        )
    else:
        _print(account, index, ranked, accounts)
    return 2 if errors else 0


def _advice(x: Likeness, account: RunAccount) -> list[str]:
    """Return what was done about it, else what its plan puts first.

    A foreign log has no journal.
    """
    done = [f"done: {plain(text)}" for text in actions_about(x, account)]
    letter = letters(account)[account.incidents.index(x.told)]
    advised = [r.text for t in tell(account) if t.letter == letter for r in t.remedies[:2]]
    return done or (
        [f"nothing on record was done; advised: {'; '.join(advised)}"] if advised else []
    )


def _print(
    account: RunAccount, index: int, ranked: tuple[Likeness, ...], accounts: dict[str, RunAccount]
) -> None:
    console = SafeConsole(highlight=False)
    console.print(Text(f"like {plain(account.incidents[index].incident.headline)}", "bold"))
    if not ranked:
        console.print("no incident in the other runs")
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for x in ranked:
        lines = [
            f"{plain(x.path)} · {plain(x.told.incident.headline)}",
            (
                f"alike: {', '.join(x.alike) or 'nothing'} · unlike:"
                f" {', '.join(x.unlike) or 'nothing'}"
            ),
            *_advice(x, accounts[x.path]),
        ]
        table.add_row(Text(f"likeness {x.score:.2f}", "bold"), Text("\n".join(lines)))
    console.print(Unpadded(table), end="")
