"""`trimtab watch LOG`: follow a log that grows.

Say each incident once, and call who wants to know.
"""

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trimtab.analysis.account import RunAccount
from trimtab.analysis.json_form import incident_to_json
from trimtab.analysis.source import Beside, account_of, read_beside
from trimtab.text import finite_json
from trimtab.errors import ConfigError
from trimtab.monitor.follower import Notice, Watcher
from trimtab.monitor.notifier import Alarm, parse_command, parse_url
from trimtab.readers import read_run
from trimtab.record import axis_word
from trimtab.report.wording import final_loss
from trimtab.text import number, plain

__all__ = ["add", "add_options", "follow", "run"]

_RANK = {"info": 0, "warning": 1, "critical": 2}
_LONGEST_S = 1e7
_BUSY_SHARE = 0.1
"""At most this share of the time goes into reading again: after a reading of 2 s the next waits 20
s."""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("watch", help="follow a growing log and say each incident once")
    parser.add_argument("path", metavar="PATH", help="a log or a run directory; may not exist yet")
    add_options(parser)
    parser.add_argument("--config", metavar="FILE", type=Path, help="as for inspect")
    parser.add_argument("--checkpoints", metavar="DIR", type=Path, help="as for inspect")
    parser.add_argument(
        "--fail-on", choices=("warning", "critical"), help="as for inspect, at the end"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document a line (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what a watch is set by; `inspect --follow` takes the same."""
    parser.add_argument(
        "--interval", metavar="S", type=float, default=5.0, help="seconds between looks"
    )
    parser.add_argument(
        "--exec",
        metavar="CMD",
        dest="command",
        help=(
            "run for each alarm, and again when it turns critical; the incident is JSON on its"
            " stdin"
        ),
    )
    parser.add_argument("--webhook", metavar="URL", help="post that JSON there, as often")
    parser.add_argument(
        "--on",
        choices=("info", "warning", "critical"),
        default="warning",
        help="least severity that is an alarm for --exec and --webhook",
    )
    parser.add_argument(
        "--hang",
        metavar="N",
        type=float,
        default=20.0,
        help="alarm when no row came for N usual rows, at least a minute; 0: never",
    )
    parser.add_argument(
        "--new-only",
        action="store_true",
        help="call for nothing that the first reading finds",
    )
    parser.add_argument(
        "--until-idle", metavar="S", type=float, help="stop when nothing was new for so long"
    )


def run(arguments: argparse.Namespace) -> int:
    """Follow until interrupted."""
    beside = read_beside(config=arguments.config, checkpoints=arguments.checkpoints)
    return follow(arguments.path, arguments, beside)


def follow(
    path: str,
    options: argparse.Namespace,
    beside: Beside,
    *,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Watch one path and return the exit code; Ctrl-C ends it with the state."""
    _check_times(options)
    alarm = Alarm(
        command=() if options.command is None else parse_command(options.command),
        url="" if options.webhook is None else parse_url(options.webhook),
    )
    watcher = Watcher(
        Path(path),
        lambda: read_run(path),
        lambda record: account_of(record, path, beside=beside, hindsight=False),
        hang_factor=options.hang,
    )
    teller = _Teller(path, watcher, alarm, options)
    with contextlib.suppress(KeyboardInterrupt):
        _loop(watcher, teller, options, clock, sleep)
    for notice in watcher.settle(clock()):
        teller.tell(notice)
    return teller.finish()


def _check_times(options: argparse.Namespace) -> None:
    if not 0 < options.interval <= _LONGEST_S:
        raise ConfigError(
            f"--interval {options.interval:g}: must be above 0, and at most {_LONGEST_S:g} seconds"
        )
    if not 0 <= options.hang <= _LONGEST_S:
        raise ConfigError(f"--hang {options.hang:g}: must be a number of rows; 0 for never")
    if options.until_idle is not None and not 0 <= options.until_idle <= _LONGEST_S:
        raise ConfigError(
            f"--until-idle {options.until_idle:g}: must be 0 to {_LONGEST_S:g} seconds"
        )


def _loop(
    watcher: Watcher,
    teller: "_Teller",
    options: argparse.Namespace,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    quiet_since = clock()
    while True:
        started = clock()
        notices = watcher.poll(started)
        for notice in notices:
            teller.tell(notice)
        teller.first = watcher.account is None
        took = clock() - started
        if watcher.changed or any(
            n.told is None or n.told.incident.kind != "hang" for n in notices
        ):
            quiet_since = clock()
        elif options.until_idle is not None and clock() - quiet_since >= options.until_idle:
            return
        sleep(max(options.interval, took * (1 / _BUSY_SHARE - 1)))


class _Teller:
    """Says notices, and calls for those that are alarms, once for each severity that one
    reaches."""

    def __init__(
        self, path: str, watcher: Watcher, alarm: Alarm, options: argparse.Namespace
    ) -> None:
        self.path, self.watcher, self.alarm, self.options = path, watcher, alarm, options
        self.called: dict[tuple[int, int], int] = {}
        """The highest severity called for, by generation and id."""
        self.hung = False
        self.first = True
        """Within the first reading that found anything."""

    def tell(self, notice: Notice) -> None:
        """Print one notice; call for its incident where nobody was called at its severity yet."""
        document = self._document(notice)
        if self.options.json:
            print(json.dumps(finite_json(document), allow_nan=False), flush=True)
        else:
            print(self._line(notice), flush=True)
        told = notice.told
        if told is None or notice.event == "withdrawn":
            return
        self.hung = self.hung or told.incident.kind == "hang"
        loud = _RANK[told.incident.severity] >= _RANK[self.options.on] and not told.dismissed
        key, rank = (self.watcher.generation, notice.id), _RANK[told.incident.severity]
        if not loud or rank <= self.called.get(key, -1):
            return
        self.called[key] = rank
        if not (self.options.new_only and self.first):
            self.alarm.raise_for(finite_json(document))

    def _line(self, notice: Notice) -> str:
        if notice.told is None:
            return f"○ {notice.event}  {plain(notice.text)}"
        severity = notice.told.incident.severity
        label = "dismissed" if notice.told.dismissed else severity
        sign = "●" if label in ("warning", "critical") and notice.event != "withdrawn" else "○"
        return f"{sign} {notice.event} #{notice.id}  {label}  {plain(notice.text)}"

    def _document(self, notice: Notice) -> dict[str, Any]:
        account = self.watcher.account
        incident = None
        if notice.told is not None and account is not None:
            incident = incident_to_json(account.record, notice.told)
        return {
            "schema": 1,
            "path": self.path,
            "event": notice.event,
            "id": notice.id or None,
            "text": plain(notice.text),
            "incident": incident,
        }

    def finish(self) -> int:
        """Say how things stand and return the exit code."""
        account = self.watcher.account
        if account is not None and not self.options.json:
            print(_state(account), flush=True)
        elif account is not None:
            last = final_loss(account.record)
            document = {
                "schema": 1,
                "path": self.path,
                "event": "stopped",
                "id": None,
                "text": _state(account),
                "rows": account.record.num_loss_rows,
                "step": None if last is None else last[0],
                "loss": None if last is None else last[1],
                "incidents": [
                    {**incident_to_json(account.record, told), "id": i}
                    for i, told in self.watcher.incidents
                ],
            }
            print(json.dumps(finite_json(document), allow_nan=False), flush=True)
        if self.options.fail_on is None:
            return 0
        standing = [t for _, t in self.watcher.incidents if not t.dismissed]
        worst = max((_RANK[t.incident.severity] for t in standing), default=-1)
        return int(max(worst, 2 * self.hung) >= _RANK[self.options.fail_on])


def _state(account: RunAccount) -> str:
    """Return where the run stands, in one line."""
    last = final_loss(account.record)
    where = (
        "no train loss yet"
        if last is None
        else f"{axis_word(account.record)} {number(last[0])}, loss {number(last[1])}"
    )
    open_ = sum(
        ia.incident.end_row is None and ia.incident.severity != "info" for ia in account.incidents
    )
    counts = f"{len(account.incidents)} incidents, {open_} of them alarms that last"
    return f"stopped at {where} · {counts}"
