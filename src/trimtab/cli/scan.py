"""`trimtab scan DATA...`: what in the data has spoiled runs elsewhere, before the run."""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from trimtab.cli.output import SafeConsole, errors_as_json, print_json, tell_error
from trimtab.data_scan import ScanResult, ScanSettings, scan
from trimtab.data_scan.engine import Progress
from trimtab.data_scan.places import check_skip_place
from trimtab.data_scan.report import document, skip_list_of
from trimtab.data_scan.sources import ReadSettings, expand
from trimtab.data_scan.terminal import render_scan
from trimtab.errors import ConfigError
from trimtab.plan.skiplist import write_skip_list

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "scan", help="look through training data for what has spoiled runs elsewhere"
    )
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help=(
            "text, JSON lines, Parquet, Arrow, WebDataset tar, Megatron .idx, .npy or .bin of"
            " tokens; or a directory"
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.add_argument(
        "--write-skip",
        metavar="FILE",
        type=Path,
        help="write what is to be left out, for guard.skip_list(FILE)",
    )
    parser.add_argument(
        "--before", metavar="PATH", help="data before a cleaning step, with --after"
    )
    parser.add_argument(
        "--after", metavar="PATH", help="and after it: shows what the step inserted"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave out duplicates, which take as long as all the rest",
    )
    _add_reading(parser)
    plan = parser.add_argument_group("the plan")
    plan.add_argument(
        "--plan-tokens", type=_count, metavar="N", help="tokens to train: does the data come again?"
    )
    plan.add_argument("--tokens-per-step", type=_count, metavar="N", help="and at which step")
    state = parser.add_argument_group("long scans")
    state.add_argument(
        "--state",
        metavar="FILE",
        type=Path,
        help="where to note how far it is (default: beside --write-skip)",
    )
    state.add_argument("--resume", action="store_true", help="go on from that note")
    parser.set_defaults(run=run)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    reading = parser.add_argument_group("how to read")
    reading.add_argument("--field", help="name of the text field (default: found)")
    reading.add_argument(
        "--by",
        metavar="FIELD",
        help=(
            "name of the field that says where a document is from, a row of the table for each"
            " (default: source, meta.source and the like)"
        ),
    )
    reading.add_argument(
        "--context",
        type=_count,
        metavar="N",
        help="tokens per sample (2048), bytes per window of plain text (8192)",
    )
    reading.add_argument("--dtype", type=_dtype, help="of a raw .bin: uint16, int32, ...")
    reading.add_argument(
        "--vocab", type=_count, metavar="N", help="rows of the embedding, to check token ids"
    )


def _count(text: str) -> int:
    """Return a positive whole number; `180B`, `2M`, `3e11` are numbers."""
    units = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
    factor = units.get(text[-1:].lower(), 1.0)
    try:
        value = float(text[:-1] if factor > 1 else text) * factor
        number = int(value) if value < 1e18 else 0
    except (ValueError, OverflowError):
        number = 0
    if number <= 0:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}: expected a positive number, such as 2048, 3e11 or 180B"
        )
    return number


def _dtype(text: str) -> str:
    names = ("uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
    if text not in names:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected one of {', '.join(names)}")
    return np.dtype(text).newbyteorder("<").str


def run(arguments: argparse.Namespace) -> int:
    """Scan, tell, and write the skip list."""
    return errors_as_json(arguments, _run)


def _run(arguments: argparse.Namespace) -> int:
    if bool(arguments.before) != bool(arguments.after):
        raise ConfigError(
            "--before and --after go together: the data that went into a step, and what came out"
        )
    if not arguments.paths and not arguments.before:
        raise ConfigError("nothing to scan; give a PATH, or --before and --after")
    skip: Path | None = arguments.write_skip
    if skip is not None:
        inputs = [Path(p) for p in (arguments.before, arguments.after) if p]
        check_skip_place(skip, [*expand(arguments.paths).files, *inputs])
        if skip == arguments.state:
            raise ConfigError("--write-skip and --state name the same file; give two")
    bar = _Bar()
    result = scan(
        arguments.paths,
        ScanSettings(
            reading=ReadSettings(
                field=arguments.field,
                context=arguments.context,
                dtype=arguments.dtype,
                by=arguments.by,
            ),
            duplicates=not arguments.quick,
            vocab=arguments.vocab,
            plan_tokens=arguments.plan_tokens,
            tokens_per_step=arguments.tokens_per_step,
        ),
        before=arguments.before,
        after=arguments.after,
        state_path=_state_path(arguments),
        resume=arguments.resume,
        tell=bar.tell,
    )
    bar.end()
    for error in result.errors:
        tell_error(error["error"])
    whole = not result.errors
    if arguments.write_skip and whole:
        write_skip_list(arguments.write_skip, skip_list_of(result))
    elif arguments.write_skip:
        tell_error(
            f"{arguments.write_skip}: not written: its numbers count through all files, and not all"
            " could be read whole"
        )
    _tell(result, arguments)
    if result.errors:
        return 2
    return int(any(f.severity == "error" for f in result.findings))


def _state_path(arguments: argparse.Namespace) -> Path | None:
    if arguments.state:
        return Path(arguments.state)
    skip: Path | None = arguments.write_skip
    return skip.with_name(skip.name + ".state.npz") if skip else None


def _tell(result: ScanResult, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(document(result))
        return
    console = SafeConsole(highlight=False, soft_wrap=True)
    console.print(render_scan(result))
    if arguments.write_skip and not result.errors:
        skips = skip_list_of(result)
        console.print(
            f"{arguments.write_skip}: {skips.num_skipped:,} of {skips.size:,} to leave out",
            markup=False,
        )


class _Bar:
    """One line on stderr in a terminal, a line every half minute elsewhere."""

    _WIDTH = 24
    _EVERY_S = 0.1

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def tell(self, progress: Progress) -> None:
        """Draw how far it is."""
        now = time.monotonic()
        if now - self._last < (self._EVERY_S if self._terminal else 30):
            return
        self._last = now
        speed = progress.scanned_bytes / max(now - self._began, 1e-6) / 1e6
        name = ascii(Path(progress.path).name)[1:-1][:40]
        line = f"{name}  {progress.scanned_bytes / 1e6:,.0f} MB, {speed:.0f} MB/s"
        share = progress.done / progress.total if progress.total else 0
        if 0 < share <= 1:
            full = round(share * self._WIDTH)
            line = f"{'━' * full}{'╌' * (self._WIDTH - full)} {share:4.0%}  {line}"
        print(
            f"\r\x1b[K{line}" if self._terminal else line,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def end(self) -> None:
        """Leave the line."""
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
