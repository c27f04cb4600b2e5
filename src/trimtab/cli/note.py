"""`trimtab note RUN "TEXT"`: write a note, hypothesis, bug or outcome into a run's journal."""

import argparse
import hashlib
import math
import re
import stat
from pathlib import Path

from trimtab.chronicle.journal import append_once, read_journal
from trimtab.chronicle.notes import MARKS, OUTCOMES, STATUSES, attempts_in
from trimtab.chronicle.numbering import number_key
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json, tell
from trimtab.cli.reason import add_author, author_of
from trimtab.crash import CRASH_CLASSES
from trimtab.durable import make_folder
from trimtab.errors import ConfigError, ReadError

__all__ = ["add", "run"]

_MAX_IMAGE_BYTES = 20_000_000
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": ".png",
    b"\xff\xd8\xff": ".jpg",
    b"GIF8": ".gif",
    b"RIFF": ".webp",
}
"""First bytes of a picture -> ending; an SVG may hold a script and is not taken."""

_DESCRIPTION = """\
The note becomes one line of RUN/journal.jsonl, also while a guard writes there. `trimtab chronicle
RUN` shows it: under its attempt, among the hypotheses, the bugs or the results.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "note",
        help="write a note, hypothesis, bug or outcome into the logbook of a run",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_directory", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("text", metavar="TEXT", help="what to say")
    parser.add_argument(
        "--attempt",
        metavar="A",
        action="append",
        default=[],
        help="attempt it is about, or a range such as 12.0-12.4; repeatable; default: the last",
    )
    parser.add_argument("--step", metavar="N", type=int, help="step it is about")
    add_author(parser)
    parser.add_argument(
        "--image", metavar="FILE", type=Path, help="a picture, copied into RUN/images"
    )
    parser.add_argument("--why", action="store_true", help="TEXT is why the attempt was begun")
    parser.add_argument("--hypothesis", metavar="NAME", help="TEXT is about this hypothesis")
    parser.add_argument("--status", choices=STATUSES, help="what the hypothesis is by now")
    parser.add_argument("--solution", action="store_true", help="TEXT is what was done about it")
    parser.add_argument(
        "--bug",
        metavar="NAME",
        help="TEXT is a bug; conclusions from its attempts are void; with --solution: it is fixed",
    )
    parser.add_argument(
        "--outcome",
        choices=[o.replace(" ", "-") for o in OUTCOMES],
        help="whether the attempt did what it was for; stands above what the rows show",
    )
    parser.add_argument("--mark", choices=MARKS, help="what the attempt is")
    parser.add_argument(
        "--crash",
        choices=CRASH_CLASSES,
        metavar="CLASS",
        help="TEXT reports a failure of this class",
    )
    parser.add_argument(
        "--result",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a figure of an evaluation at --step; repeatable",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Append one event."""
    directory = RunDirectory(arguments.run_directory)
    if not directory.journal.is_file():
        raise ReadError(
            f"{directory.root}: has no journal.jsonl; give a run directory, or make one of logs"
            " with `trimtab adopt LOG --out RUN`"
        )
    if not arguments.text.strip():
        raise ConfigError('note: no text given; say it as trimtab note RUN "..."')
    if arguments.status and not arguments.hypothesis:
        raise ConfigError(f"note: --status {arguments.status} is of a hypothesis; add --hypothesis")
    events, _ = read_journal(directory.journal)
    known = sorted({e.attempt for e in events if e.attempt}, key=number_key)
    named = _named(arguments.attempt, known)
    last = next((e for e in reversed(events) if e.attempt), None)
    attempt = named[-1] if named else (last.attempt if last else "")
    step = arguments.step
    if step is None:
        step = max((e.step for e in events if e.attempt == attempt), default=0)
    told: dict[str, object] = {"author": author_of(arguments), "text": arguments.text}
    told |= _kinds_of(arguments)
    if named:
        told["affects"] = list(named)
    if arguments.image is not None:
        told["image"] = _take_image(arguments.image, directory)
    append_once(directory.journal, "note", attempt=attempt, step=step, **told)
    if arguments.json:
        document = {"attempt": attempt, "step": step, **told}
        print_json({"schema": 1, "path": str(directory.root), "note": document})
    else:
        what = f"attempt {attempt} at step {step}" if attempt else f"step {step}"
        tell(f"noted under {what} by {told['author']} in {directory.journal}")
    return 0


def _named(given: list[str], known: list[str]) -> tuple[str, ...]:
    found: list[str] = []
    for which in given:
        here = attempts_in(which, known)
        if not here:
            there = ", ".join(known[:12]) + (" …" if len(known) > 12 else "") or "none"
            raise ConfigError(f"note: no attempt {which!r} in this journal; it has {there}")
        found += here
    return tuple(dict.fromkeys(found))


def _kinds_of(arguments: argparse.Namespace) -> dict[str, object]:
    told: dict[str, object] = {}
    for name in ("hypothesis", "status", "bug", "mark", "crash"):
        value = getattr(arguments, name)
        if value:
            told[name] = value
    for name in ("solution", "why"):
        if getattr(arguments, name):
            told[name] = True
    if arguments.outcome:
        told["outcome"] = arguments.outcome.replace("-", " ")
    if arguments.result:
        told["results"] = dict(_result(text) for text in arguments.result)
    return told


def _result(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        figure = float(value)
    except ValueError:
        figure = math.nan
    if not (name.strip() and equals and math.isfinite(figure)):
        raise ConfigError(f"note: --result {text}: expected NAME=NUMBER, such as lambada=0.76")
    return name.strip(), figure


def _take_image(path: Path, directory: RunDirectory) -> str:
    """Copy a picture into the run; return its path relative to the run directory."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would be waited on
            raise ConfigError(f"{path}: no file; give a picture with --image")
        size = status.st_size
        if size > _MAX_IMAGE_BYTES:
            raise ConfigError(
                f"{path}: {size} bytes; a picture of a note has at most {_MAX_IMAGE_BYTES}"
            )
        data = path.read_bytes()
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror}); check --image") from error
    ending = next((e for magic, e in _IMAGES.items() if data.startswith(magic)), "")
    if not ending:
        raise ConfigError(f"{path}: no PNG, JPEG, GIF or WebP picture; give one with --image")
    stem = re.sub(r"[^\w.-]+", "-", path.stem)[:80].strip(".-") or "picture"
    folder = directory.root / "images"
    target = folder / f"{stem}{ending}"
    if target.exists() and target.read_bytes() != data:
        target = folder / f"{stem}-{hashlib.sha256(data).hexdigest()[:8]}{ending}"
    try:
        make_folder(folder)
        target.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{target}: cannot be written ({error.strerror})") from error
    return f"images/{target.name}"
