"""The reason of what a person does by hand, and who it is: both go into the journal.

A reason comes from `--reason` (or `--why`), from TRIMTAB_REASON, which lets an old script stay as
it is, or is asked for on a terminal. Without one nothing is done.
"""

import argparse
import getpass
import os
import subprocess
import sys

from trimtab.errors import ConfigError

__all__ = ["add_author", "add_reason", "author_of", "reason_given", "reason_of"]


def add_reason(parser: argparse.ArgumentParser, *, told: str) -> None:
    """Add `--reason`, which was `--why` and still is, and `--author`."""
    parser.add_argument(
        "--reason",
        "--why",
        dest="why",
        default="",
        metavar="TEXT",
        help=f"{told}; default: TRIMTAB_REASON",
    )
    add_author(parser)


def add_author(parser: argparse.ArgumentParser) -> None:
    """Add `--author`."""
    parser.add_argument(
        "--author",
        default="",
        metavar="NAME",
        help="who says so; default: TRIMTAB_AUTHOR, git's user.name, or your login name",
    )


def reason_given(arguments: argparse.Namespace) -> str:
    """Return the reason that was given with the call, in one line; empty without one."""
    return _line(arguments.why) or _line(os.environ.get("TRIMTAB_REASON"))


def reason_of(arguments: argparse.Namespace, action: str) -> str:
    """Return why a person does something, in one line.

    Raises:
        ConfigError: Nobody says why, and nobody can be asked.
    """
    told = reason_given(arguments)
    if not told and not arguments.json and sys.stdin.isatty() and sys.stderr.isatty():
        print(f"why {action}? (one line, for the journal) ", end="", file=sys.stderr, flush=True)
        told = _line(sys.stdin.readline())
    if not told:
        raise ConfigError(
            f'{action}: no reason given; say it with --reason "...", or set TRIMTAB_REASON for a'
            " script"
        )
    return told


def author_of(arguments: argparse.Namespace) -> str:
    """Return who acts.

    Raises:
        ConfigError: Neither git nor the system knows the user, as in many containers.
    """
    told = _line(arguments.author) or _line(os.environ.get("TRIMTAB_AUTHOR")) or _git_name()
    if told:
        return told
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # no entry for this user
        raise ConfigError(
            "who says so is not known here; give --author NAME, or set TRIMTAB_AUTHOR"
        ) from None


def _git_name() -> str:
    try:
        found = subprocess.run(
            ["git", "config", "user.name"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""
    return _line(found.stdout)


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
