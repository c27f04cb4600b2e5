"""The command line: `trimtab COMMAND ...`. One file per command; each has `add` and `run`.

Exit codes: 0 done; 1 `--fail-on` was met; 2 a file cannot be read or an argument is
wrong; 130 interrupted. With `--json`, stdout is exactly one JSON document and progress goes to
stderr.
"""

import argparse
import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TextIO, cast

from trimtab.cli.output import LastingOutput, discard_output, tell_error
from trimtab.errors import TrimtabError
from trimtab.version import __version__

__all__ = ["build_parser", "main"]

_COMMANDS = (
    "inspect",
    "watch",
    "supervise",
    "explain",
    "compare",
    "similar",
    "dismiss",
    "approve",
    "shadow",
    "preflight",
    "plan",
    "audit",
    "smoke",
    "parity",
    "replay",
    "scan",
    "rollback",
    "chronicle",
    "adopt",
    "note",
    "journal",
    "report",
    "goodput",
    "bundle",
    "serve",
    "lab",
    "bench",
    "doctor",
)
"""In the order of the help; each is a module in this package."""

_EXAMPLES = """\
start here:
  trimtab inspect train.log                what went wrong, since when, what to do
  trimtab preflight config.yaml            what the settings risk, before the run
  trimtab watch train.log --exec ./page    follow a run, run a command for each alarm
"""


_SAY_WHEN_EMPTY = ("--title", "--why", "--exec")
"""Options that accept an empty text, or report it themselves."""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands, or of one of them, without loading the others."""
    parser = argparse.ArgumentParser(
        prog="trimtab",
        description="Finds, explains and remedies instabilities in LLM training runs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"trimtab {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in (only,) if only in _COMMANDS else _COMMANDS:
        importlib.import_module(f"trimtab.cli.{name}").add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; errors of ours are one line on stderr."""
    given = sys.argv[1:] if argv is None else list(argv)
    if not given:
        build_parser().print_help(sys.stderr)
        return 2
    own = given[: given.index("--")] if "--" in given else given  # the rest is another command
    if any(
        text == "" and before not in _SAY_WHEN_EMPTY
        for before, text in zip(["", *own], own, strict=False)
    ):
        print("trimtab: an argument is empty; give a path", file=sys.stderr)
        return 2
    if os.environ.get("COLUMNS", "1").strip("0") == "":  # some terminals report no width
        del os.environ["COLUMNS"]
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may have no encoding
    try:
        with warnings.catch_warnings():  # NaN and Inf are normal input, reported as incidents
            warnings.simplefilter("ignore", RuntimeWarning)
            return _run(given)
    except TrimtabError as error:
        tell_error(error)
        return 2
    except KeyboardInterrupt:
        print("trimtab: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away, as in `trimtab inspect x | head`
        discard_output()
        return 0
    except OSError as error:  # a full disk behind our output
        what = f"{error.filename}: " if error.filename else "the output cannot be written: "
        tell_error(f"{what}{error.strerror or error}")
        discard_output()
        return 2


def _run(given: Sequence[str]) -> int:
    """Run one command and flush its output."""
    try:
        arguments = build_parser(given[0]).parse_args(given)
        code = _code(arguments, lasts=given[0] in _GATES)
    except SystemExit as stop:  # --help, --version
        if isinstance(stop.__context__, BrokenPipeError):  # what rich makes of one
            return 0
        _flush()
        raise
    _flush()
    return code


_GATES = frozenset({"audit", "doctor", "parity", "preflight", "scan", "smoke"})
"""Commands whose exit status is their verdict, whoever reads what they print."""


def _code(arguments: argparse.Namespace, *, lasts: bool) -> int:
    """Run the command; where its status counts, a reader that goes away does not end it."""
    if not lasts or sys.stdout is None:
        code: int = arguments.run(arguments)
        return code
    with contextlib.redirect_stdout(cast("TextIO", LastingOutput(sys.stdout))):
        code = arguments.run(arguments)
        _flush()
    return code


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
