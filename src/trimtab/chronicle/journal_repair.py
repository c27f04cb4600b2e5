"""Repairs a journal: lost lines come back from a copy; what cannot come back is marked as lost.

Nothing is deleted: the damaged file is kept beside the repaired one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from trimtab.chronicle.journal import append_once, read_event
from trimtab.chronicle.journal_check import JournalCheck, JournalProblem, check_journal, check_lines
from trimtab.chronicle.journal_head import read_head
from trimtab.durable import write_whole
from trimtab.errors import ChronicleError
from trimtab.readers.journal_seal import seal_state

__all__ = ["JournalRepair", "is_copy_of", "plan_repair", "repair_journal"]


@dataclass(frozen=True, kw_only=True)
class JournalRepair:
    """What a repair brings back, and what stays lost."""

    lines: tuple[bytes, ...]
    """The journal after it, without the event that tells of the repair."""
    brought_back: tuple[str, ...]
    """Names of the events that come from the copy, in order."""
    left_out: tuple[int, ...]
    """Numbers of the damaged lines that are not taken over."""
    lost: tuple[JournalProblem, ...]
    """What stays wrong, and is accepted by the repair."""


def plan_repair(journal: Path, copy: Path | None) -> JournalRepair:
    """Return what a repair would do; nothing is written.

    Args:
        journal: The damaged journal.
        copy: A journal of the same run in a second place; None: there is none.

    Raises:
        ChronicleError: One of them cannot be read.
    """
    own = _read_lines(journal)
    other = _read_lines(copy) if copy is not None else []
    damaged = {p.line for p in check_journal(journal).problems if p.kind == "damaged"}
    if own and not _is_event(own[-1]):  # torn: what comes back may have stood there
        own[-1] = b""
    kept = [line for number, line in enumerate(own, 1) if number not in damaged and line.strip()]
    copied = [line for line in other if line.strip() and _is_event(line)]
    merged = list(_merge(kept, copied))
    known = set(kept)
    head, unclear = read_head(journal)
    after = check_lines(journal, _joined(merged), head=head, unclear=unclear)
    found = [read_event(line) for line in merged if line not in known]
    return JournalRepair(
        lines=tuple(merged),
        brought_back=tuple(event.event for event in found if event is not None),
        left_out=tuple(sorted(damaged)),
        lost=after.problems,
    )


def repair_journal(journal: Path, copy: Path | None) -> tuple[JournalRepair, Path]:
    """Repair a journal and return what was done, and where the damaged one is kept.

    The caller holds the lock of the run. The journal ends with a `repair` event: a run that goes
    on accepts what that event names, and nothing else.

    Raises:
        ChronicleError: It cannot be read or written.
    """
    plan = plan_repair(journal, copy)
    try:
        kept = _free_name(journal)
        write_whole(kept, journal.read_bytes())
        write_whole(journal, _joined(plan.lines))
        append_once(
            journal,
            "repair",
            attempt=_last_attempt(plan.lines),
            step=0,
            brought_back=list(plan.brought_back),
            left_out=list(plan.left_out),
            accepted=[p.key for p in plan.lost if p.key],
            lost=[p.text for p in plan.lost],
            source="" if copy is None else str(copy),
            damaged=kept.name,
        )
        if copy is not None:
            _mend_copy(journal, copy)
    except OSError as error:
        raise ChronicleError(
            f"{journal}: cannot be repaired ({error.strerror}); free space, and repair it again"
        ) from error
    _raise_if_refused(check_journal(journal))
    return plan, kept


def is_copy_of(copy: Path, journal: Path) -> bool:
    """Tell whether two journals are of one run; one of which nothing is legible may be of any.

    Raises:
        ChronicleError: One of them cannot be read.
    """
    own = {line for line in _read_lines(journal) if _is_event(line)}
    return not own or not own.isdisjoint(_read_lines(copy))


def _raise_if_refused(check: JournalCheck) -> None:
    if check.refuses:
        raise ChronicleError(f"{check.path}: is still damaged after the repair: {check.refuses}")


def _mend_copy(journal: Path, copy: Path) -> None:
    """Make the copy a beginning of the journal again, which is how it grows; keep what it was."""
    whole, there = journal.read_bytes(), copy.read_bytes()
    if whole.startswith(there):
        return
    write_whole(_free_name(copy), there)
    write_whole(copy, whole)


def _merge(own: Sequence[bytes], copied: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the lines of two versions of one journal in order, each once.

    The copy is older: what it lacks at its end comes after all that it has.
    """
    place = {line: at for at, line in enumerate(copied)}
    own_lines = set(own)
    last_common = max((at for at, line in enumerate(own) if line in place), default=-1)
    due = 0
    for at, line in enumerate(own):
        stop = place.get(line, len(copied) if at > last_common else due) if due < len(copied) else 0
        yield from (c for c in copied[due:stop] if c not in own_lines)
        due = max(due, stop + (line in place))
        yield line
    yield from (c for c in copied[due:] if c not in own_lines)


def _is_event(line: bytes) -> bool:
    return seal_state(line) != "broken" and read_event(line) is not None


def _read_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")
    except OSError as error:
        raise ChronicleError(
            f"{path}: cannot be read ({error.strerror}); give a run directory that holds"
            " journal.jsonl"
        ) from error


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _last_attempt(lines: Sequence[bytes]) -> str:
    for line in reversed(lines):
        event = read_event(line)
        if event is not None and event.attempt:
            return event.attempt
    return ""


def _free_name(journal: Path) -> Path:
    names = (journal.with_name(f"{journal.name}.damaged-{n}") for n in count(1))
    return next(name for name in names if not name.exists())
