"""`trimtab inspect PATH...`: what went wrong in a training log, since when, and what to do."""

import argparse
import contextlib
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO, cast

from rich.console import Console
from rich.text import Text

from trimtab.analysis.account import RunAccount, fails_on
from trimtab.analysis.json_form import document_of, run_to_json
from trimtab.analysis.source import Beside, account_or_fault, read_beside
from trimtab.analysis.verdict import FAIL_ON
from trimtab.cli import watch
from trimtab.cli.bar import Bar
from trimtab.cli.detectors import judge_of
from trimtab.cli.output import LastingOutput, SafeConsole, print_json, tell_error, write_file
from trimtab.cli.stdin import STDIN, kept_stdin
from trimtab.diagnosis.causes import UNKNOWN
from trimtab.errors import ConfigError, ReadError
from trimtab.kinds import severity_rank
from trimtab.readers import read_each
from trimtab.readers.given_columns import columns_given, missing_column, parse_columns
from trimtab.record import RunRecord
from trimtab.report.html import render_html
from trimtab.report.layers_table import layers_table
from trimtab.report.overview import OverviewLine, overview_line, render_overview
from trimtab.report.terminal import render_terminal
from trimtab.signals.rates import history_csv

__all__ = ["add", "run"]

_SAID_EVERY_S = 10.0
"""Between two lines on stderr, where the document comes at the end only."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "inspect", help="find and explain what went wrong in a training log"
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a log, a run directory, a directory of logs, or - for what is piped in",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=Path,
        help="also write a report; with several runs, one file each (FILE-2.html ...)",
    )
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        help=(
            "exit 1 when an incident is at least this severe, or a run ended badly; `not-judged`:"
            " also when there is too little to judge"
        ),
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the run's config: the clip in force, the width, whose flags to give",
    )
    parser.add_argument(
        "--checkpoints",
        metavar="DIR",
        type=Path,
        help="directory of its checkpoints: the plan names the one to roll back to",
    )
    parser.add_argument(
        "--against",
        metavar="RUN",
        help="a reference run: also report where the loss lies above its loss at equal steps",
    )
    parser.add_argument(
        "--lr-history",
        metavar="FILE",
        type=Path,
        help="also write the learning rate in force at each step, CSV; one path",
    )
    parser.add_argument(
        "--all", action="store_true", help="print every alarm in full, however many there are"
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="also print what was last measured of each block (run directories)",
    )
    parser.add_argument(
        "--follow",
        action="store_true",
        help="then follow the log as `trimtab watch` does; one path, no --html",
    )
    watch.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, judge and print every path; one that cannot be read does not stop the others."""
    with columns_given(parse_columns(arguments.columns)):
        return _inspect(arguments)


def _inspect(arguments: argparse.Namespace) -> int:
    beside = read_beside(
        config=arguments.config, checkpoints=arguments.checkpoints, against=arguments.against
    )
    if arguments.lr_history is not None and len(arguments.paths) != 1:
        raise ConfigError("--lr-history: takes one path; give one log")
    if arguments.follow:
        if arguments.paths == [STDIN]:
            raise ConfigError(
                "--follow: a pipe cannot be read twice; write it to a file and give that"
            )
        if len(arguments.paths) != 1 or arguments.html:
            raise ConfigError("--follow: takes one path and no --html; give one log")
        return watch.follow(arguments.paths[0], arguments, beside)
    if arguments.fail_on is not None and sys.stdout is not None:
        # A reader that goes away must not hide the status; without one asked for, nothing is lost.
        out = cast("TextIO", LastingOutput(sys.stdout))
        with contextlib.redirect_stdout(out), Bar() as bar:
            return _run(arguments, beside, bar)
    with Bar() as bar:
        return _run(arguments, beside, bar)


def _run(arguments: argparse.Namespace, beside: Beside, bar: Bar) -> int:
    gc.set_threshold(200_000)  # findings and states are many, small and long-lived
    console = SafeConsole()
    judge = judge_of(arguments)
    documents: list[dict[str, object]] = []
    errors: list[tuple[str, str]] = []
    told: list[OverviewLine] = []
    fails, num_told, hint = False, 0, (-1, "")
    started = said = time.perf_counter()
    for path, found in _read_all(arguments.paths):
        if isinstance(found, RunRecord) and (lacks := missing_column(found)):
            found = ReadError(f"{path}: {lacks}; correct --columns")
        if isinstance(found, ReadError):
            errors.append((path, str(found)))
            bar.stop()
            tell_error(found)
            continue
        bar.say(f"judging {path}")
        read_s = time.perf_counter() - started
        account = account_or_fault(found, path, beside=beside, judge=judge, read_s=read_s)
        if isinstance(account, ReadError):
            errors.append((path, str(account)))
            bar.stop()
            tell_error(account)
            continue
        fails = fails or fails_on(account, arguments.fail_on)
        num_told += 1
        report = _write_report(account, arguments.html, num_told)
        if arguments.lr_history is not None:
            write_file(arguments.lr_history, history_csv(account.record))
        if arguments.json:
            documents.append(run_to_json(account, path=path))
            if time.perf_counter() - said > _SAID_EVERY_S:
                said = time.perf_counter()
                print(f"trimtab: {len(documents)} logs judged, going on", file=sys.stderr)
        else:
            with console.capture() as text:
                name = str(report) if report else None
                shown = render_terminal(account, report=name, whole=arguments.all)
                console.print(shown, end="")
            bar.stop()
            # As it comes: of a folder with hundreds of logs the last is judged minutes later.
            console.file.write("\n" * bool(told) + text.get())
            if arguments.layers:
                console.file.write(layers_table(account.layers))
            console.file.flush()
            told.append(overview_line(account, path=path))
            hint = max(hint, _explained(account), key=lambda pair: pair[0])
        bar.say("")
        started = time.perf_counter()
    bar.stop()
    if arguments.json:
        print_json(document_of(documents, errors))
    else:
        _print_end(console, told, hint[1])
    if errors:
        return 2
    return int(fails)


def _read_all(paths: Sequence[str]) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield the runs of all paths; what is piped in is called `stdin`."""
    for given in paths:
        if given != STDIN:
            yield from read_each(given)
            continue
        with kept_stdin() as kept:
            for path, found in read_each(kept):
                name = path.replace(str(kept), kept.name)
                if isinstance(found, ReadError):
                    yield name, ReadError(str(found).replace(str(kept), kept.name))
                else:
                    yield name, replace(found, source=name)


def _explained(account: RunAccount) -> tuple[int, str]:
    """Return how bad the worst alarm is, and the ids of its kind and first cause.

    (-1, "") for none.
    """
    alarms = [ia for ia in account.incidents if ia.incident.severity != "info" and not ia.dismissed]
    if not alarms:
        return -1, ""
    worst = max(alarms, key=lambda ia: severity_rank(ia.incident.severity))
    causes = [c.cause for c in worst.diagnosis.causes if c.cause != UNKNOWN]
    return severity_rank(worst.incident.severity), " ".join([worst.incident.kind, *causes[:1]])


def _print_end(console: Console, told: Sequence[OverviewLine], hint: str) -> None:
    """Print what follows the runs; of several, one line each, where the screen ends."""
    if hint:
        line = Text(f"what is known of it: trimtab explain {hint}", "dim", no_wrap=True)
        console.print()
        console.print(line, overflow="ignore", crop=False)
    if len(told) > 1:
        console.print()
        console.print(render_overview(told, width=console.width), end="")


def _write_report(account: RunAccount, html: Path | None, number: int) -> Path | None:
    if html is None:
        return None
    path = html if number == 1 else html.with_name(f"{html.stem}-{number}{html.suffix}")
    write_file(path, render_html(account, title=Path(account.record.source).absolute().name))
    return path
