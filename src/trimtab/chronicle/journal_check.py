"""What is wrong with a journal, and whether a run may go on with it.

A line that cannot be read, or that is missing, may hold a decision: to leave data out, to go back,
to change the learning rate. A run that goes on without it trains on other data than it should, so
such a journal refuses the start until it is repaired.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ChronicleError

__all__ = ["DamagedLine", "JournalCheck", "check_journal"]


@dataclass(frozen=True, kw_only=True)
class DamagedLine:
    """One line that cannot be read, or is not what was written."""

    number: int
    """From 1."""
    what: str
    """What is wrong with it."""
    text: str
    """What is still legible of it."""


@dataclass(frozen=True, kw_only=True)
class JournalCheck:
    """What a journal holds, and what it lacks."""

    path: Path
    num_lines: int
    torn: bool
    """The last line is not whole: a process died in mid-write; nothing had followed from it."""
    damaged: tuple[DamagedLine, ...]
    refuses: str
    """Why no run may start with this journal, and what to do; empty: it may."""


def check_journal(path: Path) -> JournalCheck:
    """Return what is wrong with a journal; `refuses` says whether a run may go on with it.

    Raises:
        ChronicleError: The file cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ChronicleError(
            f"{path}: cannot be read ({error.strerror}); give a run directory that holds"
            " journal.jsonl"
        ) from error
    lines = raw.split(b"\n")
    torn = bool(lines.pop())
    damaged = tuple(
        DamagedLine(number=number, what="is no JSON", text=line[:80].decode("ascii", "replace"))
        for number, line in enumerate(lines, 1)
        if line.strip() and not _is_json(line)
    )
    refuses = (
        f"{path}:{damaged[0].number}: is damaged and may hold a decision; run"
        f" trimtab journal check {path.parent}"
        if damaged
        else ""
    )
    return JournalCheck(
        path=path, num_lines=len(lines), torn=torn, damaged=damaged, refuses=refuses
    )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
