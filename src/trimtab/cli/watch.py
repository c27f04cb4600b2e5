"""`trimtab watch LOG`: follow a log that grows, report each incident once, raise alarms."""

import argparse
import contextlib
import json
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trimtab.analysis.account import IncidentAccount, RunAccount, any_fails_on, fails_on
from trimtab.analysis.json_form import incident_to_json
from trimtab.analysis.source import Beside, read_beside
from trimtab.analysis.verdict import FAIL_ON
from trimtab.cli.detectors import add_detector_options, judge_of
from trimtab.cli.output import tell
from trimtab.cli.stdin import STDIN, GrowingStdin
from trimtab.cli.watch_digest import digest
from trimtab.kinds import severity_rank
from trimtab.masking import masked
from trimtab.monitor.channels import parse_channels
from trimtab.monitor.follow import Update, Watch
from trimtab.monitor.notifier import Alarm, parse_command, parse_url
from trimtab.monitor.prometheus import Exporter, parse_target
from trimtab.readers.given_columns import columns_given, parse_columns
from trimtab.record import axis_word
from trimtab.report.wording import final_loss, verdict_line
from trimtab.text import finite_json, number

__all__ = ["add", "add_options", "follow", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("watch", help="follow a growing log and report each incident once")
    parser.add_argument(
        "path",
        metavar="PATH",
        help="a log or a run directory; may not exist yet; -: standard input",
    )
    add_options(parser)
    parser.add_argument("--config", metavar="FILE", type=Path, help="as for inspect")
    parser.add_argument("--checkpoints", metavar="DIR", type=Path, help="as for inspect")
    parser.add_argument(
        "--fail-on",
        choices=FAIL_ON,
        help="as for inspect, at the end; an alarm counts as severe as it was told",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document a line (docs/formats.md)"
    )
    parser.add_argument(
        "--prometheus",
        metavar="PORT|FILE",
        help="also tell Prometheus: on this port of the loopback address, or in a file *.prom",
    )
    parser.add_argument(
        "--digest",
        action="store_true",
        help="print what the last 24 hours brought, and whether somebody must look; then end",
    )
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a watch; `inspect --follow` takes the same."""
    parser.add_argument(
        "--columns",
        metavar="NAME=COLUMN,...",
        default="",
        help=(
            "what columns of a table, or keys of a log, mean: loss=Verlust,step=Schritt; without a"
            " header by their place: loss=2,step=1"
        ),
    )
    parser.add_argument(
        "--interval", metavar="S", type=float, default=5.0, help="seconds between looks"
    )
    parser.add_argument(
        "--exec",
        metavar="CMD",
        dest="command",
        help=(
            "run for each alarm, and again when it becomes critical; the incident is JSON on its"
            " stdin"
        ),
    )
    parser.add_argument("--webhook", metavar="URL", help="post the same JSON to this address")
    parser.add_argument(
        "--notify",
        metavar="URL|@FILE",
        action="append",
        default=[],
        help=(
            "tell a person by chat, mail or pager: an address as Apprise writes it (mailto://…,"
            " slack://…), or @FILE with one a line; again for more; needs trimtab[alerts]"
        ),
    )
    parser.add_argument(
        "--on",
        choices=("info", "warning", "critical"),
        default="warning",
        help="lowest severity that is an alarm for --exec, --webhook and --notify",
    )
    parser.add_argument(
        "--hang",
        metavar="N",
        type=float,
        default=20.0,
        help="alarm when no row arrives for N usual row intervals, at least a minute; 0: never",
    )
    parser.add_argument(
        "--new-only",
        action="store_true",
        help="do not alert on incidents already in the log",
    )
    add_detector_options(parser)
    parser.add_argument(
        "--until-idle", metavar="S", type=float, help="stop when nothing was new for S seconds"
    )


def run(arguments: argparse.Namespace) -> int:
    """Follow until interrupted."""
    if arguments.digest:
        tell(digest(arguments.path))
        return 0
    beside = read_beside(config=arguments.config, checkpoints=arguments.checkpoints)
    with columns_given(parse_columns(arguments.columns)):
        if arguments.path != STDIN:
            return follow(arguments.path, arguments, beside)
        with tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
            piped = GrowingStdin(Path(folder))
            return follow(str(piped.path), arguments, beside, name=STDIN, sleep=piped.sleep)


def follow(
    path: str,
    options: argparse.Namespace,
    beside: Beside,
    *,
    name: str = "",
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch one path and return the exit code; Ctrl-C ends it with the state."""
    command = () if options.command is None else parse_command(options.command)
    url = "" if options.webhook is None else parse_url(options.webhook)
    people = parse_channels(options.notify)
    target = getattr(options, "prometheus", None)
    exporter = None if target is None else Exporter(parse_target(target), path, clock)

    def after_look(seconds: float) -> None:
        if exporter is not None:
            exporter.tell(watch)
        sleep(seconds)

    watch = Watch(
        path,
        interval_s=options.interval,
        until_idle_s=options.until_idle,
        hang_factor=options.hang,
        beside=beside,
        judge=judge_of(options),
        clock=clock,
        sleep=after_look,
    )
    watch.path = name or path
    told_to_end = _Ended()
    with told_to_end, Alarm(command=command, url=url, people=people) as alarm:
        printer = _Printer(alarm, options)
        with contextlib.suppress(KeyboardInterrupt, EOFError):
            for update in watch:
                printer.show(update)
        for update in watch.settle():
            printer.show(update)
        if exporter is not None:
            exporter.tell(watch)
            exporter.close()
        code = printer.finish(watch)
    return 128 + signal.SIGTERM if told_to_end.seen else code


class _Ended:
    """SIGTERM, as systemd, Kubernetes and SLURM send it, ends a watch as Ctrl-C does."""

    def __init__(self) -> None:
        self.seen = False
        self._before: Any = None

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._end)

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def _end(self, *_: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


class _Printer:
    """Prints updates, and raises the alarm once for each severity that an incident reaches."""

    def __init__(self, alarm: Alarm, options: argparse.Namespace) -> None:
        self.alarm, self.options = alarm, options
        self.called: dict[tuple[int, int], int] = {}
        """The highest severity that the alarm was raised for, by generation and id."""
        self.told: dict[tuple[int, int], IncidentAccount] = {}
        """As it was told at its most severe; without what was taken back, dealt with or dismissed.
        """
        self.hung = False

    def show(self, update: Update) -> None:
        """Print one update; raise the alarm where it was not raised at this severity yet."""
        if self.options.json:
            print(json.dumps(update.to_dict(), allow_nan=False), flush=True)
        else:
            tell(update)
        told = update.incident
        key = (update.generation, update.id)
        if told is None or update.event == "withdrawn":
            self.told.pop(key, None)
            return
        self.hung = self.hung or told.kind == "hang"
        rank = severity_rank(told.incident.severity)
        open_ = not told.dismissed and not told.resolved
        if not open_:
            self.told.pop(key, None)
        elif rank >= severity_rank(self.told.get(key, told).severity):
            self.told[key] = told
        if not open_ or rank < severity_rank(self.options.on) or rank <= self.called.get(key, -1):
            return
        self.called[key] = rank
        if not (self.options.new_only and update.first_reading):
            self.alarm.raise_for(update.to_dict())

    def finish(self, watch: Watch) -> int:
        """Print where the run stands and return the exit code."""
        account = watch.account
        lowered = self._lowered(watch)
        if account is not None and not self.options.json:
            tell(_state(account, watch.left, lowered, hung=watch.hangs))
        elif account is not None:
            last = final_loss(account.record)
            document = {
                "schema": 1,
                "path": watch.path,
                "event": "stopped",
                "id": None,
                "text": _state(account, watch.left, lowered, hung=watch.hangs),
                "rows": account.record.num_loss_rows,
                "step": None if last is None else last[0],
                "loss": None if last is None else last[1],
                "verdict": account.verdict,
                "judged": account.judgement.to_json(),
                "incidents": [
                    {**incident_to_json(account.record, told), "id": i}
                    for i, told in watch.incidents
                ],
            }
            print(json.dumps(finite_json(masked(document)), allow_nan=False), flush=True)
        if self.options.fail_on is None:
            return 0
        # What was told as an alarm may stand lower in hindsight; whoever asked was called for it.
        if any_fails_on((*watch.left, *self.told.values()), self.options.fail_on):
            return 1
        if account is None:
            return int(self.options.fail_on == "not-judged")
        hung = self.hung and self.options.fail_on != "ended-badly"
        return int(hung or fails_on(account, self.options.fail_on))

    def _lowered(self, watch: Watch) -> int:
        """Return how many alarms stand lower now than they were told."""
        stand = {(watch.generation, i): severity_rank(k.severity) for i, k in watch.incidents}
        return sum(severity_rank(x.severity) > stand.get(k, 2) for k, x in self.told.items())


def _state(
    account: RunAccount, left: Sequence[IncidentAccount], lowered: int, *, hung: bool
) -> str:
    """Return where the run stands, in one line.

    Args:
        account: Of all rows.
        left: Alarms of rows that are gone.
        lowered: Alarms that were told as more severe than they stand.
        hung: Rows have stopped coming.
    """
    last = final_loss(account.record)
    where = (
        "no train loss yet"
        if last is None
        else f"{axis_word(account.record)} {number(last[0])}, loss {number(last[1])}"
    )
    open_ = sum(ia.is_open_alarm and ia.incident.end_row is None for ia in account.incidents)
    settled = sum(bool(ia.resolved or ia.dismissed) for ia in account.incidents)
    found = sum(ia.severity != "info" for ia in account.incidents)
    noted = len(account.incidents) - found
    counts = f"{found} incident{'s' * (found != 1)}, {open_ or 'none'} ongoing"
    if noted:
        counts += f", {noted} note{'s' * (noted != 1)}"
    if hung:
        counts = f"no rows come any more, {counts}"
    if settled:
        counts += f", {settled} dealt with"
    if left:
        counts += f", {len(left)} not over in rows that are gone"
    if lowered:
        counts += f", {lowered} told as more severe before"
    return f"stopped at {where} · {counts} · {verdict_line(account)}"
