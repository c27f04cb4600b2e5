"""`trimtab chronicle RUN`: the logbook of a run, as Markdown, a page or JSON; its curve as data."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.chronicle.journal import Event, read_journal
from trimtab.chronicle.lineage import Lineage, lineage_of, lineage_to_json
from trimtab.chronicle.links import linked_files, links_markdown
from trimtab.chronicle.logbook import render_logbook
from trimtab.chronicle.publish import Publisher
from trimtab.chronicle.rundir import RunDirectory
from trimtab.chronicle.settings_record import Difference, differences
from trimtab.chronicle.stitched import AXES, stitched, write_curve
from trimtab.cli.output import print_json, tell, tell_error, write_file
from trimtab.errors import ConfigError, ReadError
from trimtab.masking import masked, masked_text
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.curve_picture import (
    SUFFIXES,
    beside,
    change_of,
    picture_of,
    write_picture,
)
from trimtab.report.logbook_page import attempt_pictures, render_logbook_page
from trimtab.text import finite_json, plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "chronicle", help="print the logbook of a run: attempts, reasons, outcomes"
    )
    parser.add_argument(
        "run_directory",
        metavar="RUN",
        type=Path,
        help="a run directory, such as runs/demo/bad-data-late",
    )
    parser.add_argument(
        "--format",
        choices=("md", "html", "json"),
        default="md",
        help="Markdown, one self-contained page, or JSON with the lineage; default: md",
    )
    parser.add_argument(
        "--link",
        metavar="PATH",
        type=Path,
        action="append",
        default=[],
        help="also link to this raw log or TensorBoard directory; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    parser.add_argument(
        "--publish",
        action="store_true",
        help="mask hosts, users, paths and secrets; read it before you publish it",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write it there instead of printing it",
    )
    parser.add_argument(
        "--pictures",
        action="store_true",
        help="with Markdown and --out: pictures of the loss in FILE-pictures/ (a page has them)",
    )
    parser.add_argument(
        "--diff",
        metavar=("A", "B"),
        nargs=2,
        help="how two attempts differ, or two launches by `supervise`: supervise-1 supervise-2",
    )
    curve = parser.add_argument_group("the effective curve, without overlap")
    curve.add_argument(
        "--curve",
        metavar="PATH",
        type=Path,
        help="write it there instead of a logbook: .csv, .parquet, a folder for TensorBoard, or a"
        " picture of all signals: .svg, .png, .html",
    )
    curve.add_argument(
        "--change",
        metavar="ATTEMPT",
        help="as a picture: that attempt and the one before it, laid upon each other at the change,"
        " with the means before and after",
    )
    curve.add_argument(
        "--window", metavar="STEPS", type=float, help="with --change: so far to each side"
    )
    curve.add_argument(
        "--beside",
        metavar="RUN",
        type=Path,
        help="as a picture: the loss of another run, such as a smaller model, beside it; prints"
        " the gap",
    )
    curve.add_argument(
        "--at",
        metavar="X",
        type=float,
        help="with --beside: where the gap is read; default: the end",
    )
    curve.add_argument(
        "--dead", action="store_true", help="also the rows that rollbacks undid, marked as such"
    )
    curve.add_argument("--by", choices=AXES, default="step", help="its axis; default: step")
    curve.add_argument("--from", dest="first", metavar="X", type=float, help="first point of it")
    curve.add_argument("--to", dest="last", metavar="X", type=float, help="last point of it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the journal and print it."""
    directory = RunDirectory(arguments.run_directory)
    if not directory.journal.is_file():
        raise ReadError(
            f"{directory.root}: has no journal.jsonl; give the directory of a guarded run, or make"
            f" one of logs with `trimtab adopt {directory.root} --out RUN`"
        )
    events, num_torn = read_journal(directory.journal)
    record, unread = _record(directory)
    if arguments.publish:
        publisher = Publisher()
        events = publisher.events(events)
        record = publisher.record(record) if record is not None else None
    lineage = lineage_of(events, record)
    if arguments.diff:
        tell(_diff({**_launches(events), **_attempts(lineage)}, *arguments.diff))
    elif arguments.curve is None and (arguments.change or arguments.beside):
        raise ConfigError("--change and --beside draw a picture; give --curve PATH.svg, too")
    elif arguments.curve is not None:
        tell(_write_curve(arguments, record, lineage, unread))
    elif arguments.json or arguments.format == "json":
        document = _document(arguments, events, num_torn, lineage)
        if arguments.out is None or arguments.json:
            print_json(document)
        else:
            write_file(arguments.out, json.dumps(finite_json(masked(document)), indent=1) + "\n")
        return 0
    else:
        _logbook(arguments, directory, events, record, lineage)
    if unread:
        tell_error(unread)
    return 1 if unread else 0


def _record(directory: RunDirectory) -> tuple[RunRecord | None, str]:
    """Return the samples, or why there are none though files are there."""
    try:
        return read_run(directory.root), ""
    except ReadError as error:
        if not _has_samples(directory):
            return None, ""
        return None, f"{error}; the logbook is written without what the samples show"


def _document(
    arguments: argparse.Namespace, events: Sequence[Event], num_torn: int, lineage: Lineage
) -> dict[str, object]:
    told = [
        {"t": e.t, "event": e.event, "attempt": e.attempt, "step": e.step, **e.data} for e in events
    ]
    return {
        "schema": 1,
        "path": None if arguments.publish else str(arguments.run_directory),
        "torn_lines": num_torn,
        "events": told,
        "lineage": lineage_to_json(lineage),
    }


def _logbook(
    arguments: argparse.Namespace,
    directory: RunDirectory,
    events: Sequence[Event],
    record: RunRecord | None,
    lineage: Lineage,
) -> None:
    folder = directory.root if arguments.out is None else arguments.out.parent
    files = "" if arguments.publish else _links(directory, arguments, folder)
    wanted = arguments.format == "html" or (arguments.pictures and arguments.out is not None)
    drawn = attempt_pictures(record, lineage) if record is not None and wanted else {}
    if arguments.format == "html":
        text = render_logbook(
            events,
            record,
            files=files,
            lineage=lineage,
            pictures={name: f"picture:{name}" for name in drawn},
        )
        text = render_logbook_page(text, drawn, root=directory.root)
    else:
        shown = _beside(arguments.out, drawn) if drawn else {}
        text = render_logbook(events, record, files=files, lineage=lineage, pictures=shown)
    if arguments.out is None:
        tell(text)
    else:
        write_file(arguments.out, text)


def _links(directory: RunDirectory, arguments: argparse.Namespace, folder: Path) -> str:
    return links_markdown(linked_files(directory.root, arguments.link), folder)


def _beside(out: Path, drawn: Mapping[str, str]) -> dict[str, str]:
    """Write the pictures into a folder beside a Markdown file; return their addresses."""
    shown: dict[str, str] = {}
    folder = out.with_name(f"{out.stem}-pictures")
    for name, svg in drawn.items():
        file = folder / f"{name or 'all'}.svg"
        write_file(file, svg)
        shown[name] = f"{folder.name}/{file.name}"
    return shown


def _write_curve(
    arguments: argparse.Namespace, record: RunRecord | None, lineage: Lineage, unread: str
) -> str:
    if record is None:
        raise ReadError(unread or f"{arguments.run_directory}: has no samples, so no curve")
    if arguments.change is not None:
        found = change_of(record, arguments.change, window_steps=arguments.window)
        return write_picture(found, arguments.curve)
    curve = stitched(
        record,
        lineage=lineage,
        along=arguments.by,
        first=arguments.first,
        last=arguments.last,
        dead=arguments.dead,
    )
    title = arguments.run_directory.absolute().name
    if arguments.beside is not None:
        other = stitched(
            read_run(arguments.beside),
            along=arguments.by,
            first=arguments.first,
            last=arguments.last,
        )
        names = title, arguments.beside.absolute().name
        return write_picture(beside(curve, other, names=names, at=arguments.at), arguments.curve)
    if arguments.curve.suffix in SUFFIXES:
        return write_picture(picture_of(curve, title=title), arguments.curve)
    return write_curve(curve, arguments.curve)


@dataclass(frozen=True, kw_only=True)
class _Stated:
    """What an attempt, or a launch by `supervise`, ran with."""

    settings: Mapping[str, str]
    environment: Mapping[str, str]
    config_hash: str = ""


def _attempts(lineage: Lineage) -> dict[str, _Stated]:
    return {
        a.number: _Stated(settings=a.settings, environment=a.environment, config_hash=a.config_hash)
        for a in lineage.attempts
    }


def _launches(events: Sequence[Event]) -> dict[str, _Stated]:
    """Return the launches of a supervised command, by the folder that holds their code."""
    found = {}
    for event in events:
        d = event.data
        argv, told = d.get("argv"), d.get("environment")
        if event.event == "start" and d.get("launch") and isinstance(told, Mapping):
            command = " ".join(map(str, argv)) if isinstance(argv, list | tuple) else ""
            facts = {str(k): plain(v, limit=200) for k, v in told.items()}
            found[str(d["launch"])] = _Stated(
                settings={"command": masked_text(command)}, environment=facts
            )
    return found


def _diff(known: Mapping[str, _Stated], one: str, other: str) -> str:
    a, b = known.get(one), known.get(other)
    if a is None or b is None:
        there = ", ".join(list(known)[:12])
        raise ConfigError(
            f"--diff: no attempt {one if a is None else other!r} in this run; it has {there}"
        )
    found = (*differences(a.settings, b.settings), *_of_the_launch(a, b))
    head = f"{one} (config {a.config_hash or '—'}) → {other} (config {b.config_hash or '—'})"
    if not (a.settings and b.settings) and not found:
        return f"{head}\nthe settings of one of them are not stated"
    if not found:
        return f"{head}\nthe same settings"
    width = max(len(d.name) for d in found)
    lines = [f"{plain(d.name):<{width}}  {_side(d.before)} → {_side(d.after)}" for d in found]
    return "\n".join([head, *lines])


def _of_the_launch(a: _Stated, b: _Stated) -> tuple[Difference, ...]:
    """Return what differs in machine, packages and code; a file that is as committed has no hash.

    The process of a launch is not compared by where it ran: restarts move from host to host.
    """
    found = differences(a.environment, b.environment)
    return tuple(
        replace(d, before=d.before or "as committed", after=d.after or "as committed")
        if d.name.startswith("code/")
        else d
        for d in found
        if d.name not in a.settings
    )


def _side(value: str | None) -> str:
    return "not stated" if value is None else plain(value, limit=400)


def _has_samples(directory: RunDirectory) -> bool:
    """Whether samples lie there, or nobody can tell; a run may have stopped before its first."""
    try:
        return any(p.stat().st_size for p in directory.signals.glob("*.jsonl"))
    except OSError:
        return True
