"""`trimtab journal check RUN [--repair]`: what a run's journal lacks; and mend it."""

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.checkpoints.mirror import copy_of
from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.journal_check import JournalCheck, check_journal
from trimtab.chronicle.journal_repair import (
    JournalRepair,
    is_copy_of,
    plan_repair,
    repair_journal,
)
from trimtab.chronicle.run_lock import RunLock
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json
from trimtab.errors import ReadError
from trimtab.text import visible

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("journal", help="find and mend damage in the journal of a run")
    parser.add_argument("what", metavar="check", choices=["check"], help="the only thing it does")
    parser.add_argument("run_directory", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument(
        "--repair",
        action="store_true",
        help="bring lost lines back from the second place, mark the rest as lost",
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="DIR",
        type=Path,
        help="the second place; default: the copy_to that the run was started with",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check it, mend it where that is asked for, and say what is there."""
    directory = RunDirectory(arguments.run_directory)
    if not directory.journal.is_file():
        raise ReadError(
            f"{directory.root}: has no journal.jsonl; give the directory of a guarded run"
        )
    copy = _second_place(directory, arguments.source)
    check = check_journal(directory.journal)
    kept: Path | None = None
    plan = plan_repair(directory.journal, copy) if check.problems else None
    if plan is not None and arguments.repair:
        with _held(directory.root):
            plan, kept = repair_journal(directory.journal, copy)
    if arguments.json:
        print_json(_document(check, plan, copy=copy, kept=kept))
    else:
        print("\n".join(visible(line) for line in _told(check, plan, copy=copy, kept=kept)))
    return 1 if check.problems and kept is None else 0


@contextmanager
def _held(root: Path) -> Iterator[None]:
    lock = RunLock(root)
    try:
        yield
    finally:
        lock.release()


def _second_place(directory: RunDirectory, source: Path | None) -> Path | None:
    """Return the journal of the second place; None where there is none.

    Raises:
        ReadError: The one that was given holds no journal.
    """
    if source is not None:
        for place in (RunDirectory(source), copy_of(directory, source)):
            if place.journal.is_file() and not is_copy_of(place.journal, directory.journal):
                raise ReadError(f"{place.journal}: is the journal of another run; give the copy")
            if place.journal.is_file():
                return place.journal
        raise ReadError(f"{source}: holds no journal.jsonl; give the folder of the copy")
    for event in reversed(read_journal(directory.journal)[0]):
        settings = event.data.get("settings") if event.event == "start" else None
        policy = settings.get("policy") if isinstance(settings, dict) else None
        copy_to = policy.get("copy_to") if isinstance(policy, dict) else None
        if isinstance(copy_to, str) and copy_to:
            journal = copy_of(directory, Path(copy_to)).journal
            known = journal.is_file() and is_copy_of(journal, directory.journal)
            return journal if known else None
    return None


def _told(
    check: JournalCheck, plan: JournalRepair | None, *, copy: Path | None, kept: Path | None
) -> Iterator[str]:
    trainers = sum(w.trainer for w in check.writers)
    yield (
        f"{check.path}: {check.num_lines} lines, {check.num_events} events, by"
        f" {len(check.writers)} writers with a seal ({trainers} of them trainers);"
        f" {check.torn} torn in mid-write"
    )
    for problem in check.problems:
        where = f"line {problem.line}" if problem.line else "at the end"
        weight = "may hide a decision" if problem.refuses else "hides no decision"
        yield f"  {where}: {problem.text} ({weight})"
        if problem.legible:
            yield f"    legible: {problem.legible}"
    yield from (f"  not known: {note}" for note in check.notes)
    if plan is None:
        yield "no damage"
        return
    done = kept is not None
    source = f" from {copy}" if copy is not None else ""
    if plan.brought_back:
        yield (
            f"{'brought back' if done else '--repair brings back'}{source}:"
            f" {', '.join(plan.brought_back)}"
        )
    elif copy is None:
        yield "there is no second place (policy copy_to); --from DIR names one"
    else:
        yield f"the second place has nothing more: {copy}"
    for problem in plan.lost:
        yield f"{'lost' if done else 'would be lost'}: {problem.text}"
    if done:
        yield f"repaired; the run can be started. The damaged journal is kept: {kept}"
    elif check.refuses:
        yield (
            "the run does not start with it; mend it: trimtab journal check"
            f" {shlex.quote(str(check.path.parent))}" + (" --repair")
        )


def _document(
    check: JournalCheck, plan: JournalRepair | None, *, copy: Path | None, kept: Path | None
) -> dict[str, object]:
    return {
        "schema": 1,
        "path": str(check.path),
        "lines": check.num_lines,
        "events": check.num_events,
        "torn": check.torn,
        "writers": [
            {
                "writer": w.writer,
                "lines": w.num_lines,
                "first_line": w.first_line,
                "last_line": w.last_line,
                "trainer": w.trainer,
            }
            for w in check.writers
        ],
        "problems": [
            {
                "kind": p.kind,
                "line": p.line or None,
                "text": p.text,
                "may_hide_a_decision": p.refuses,
                "legible": p.legible,
            }
            for p in check.problems
        ],
        "notes": list(check.notes),
        "second_place": None if copy is None else str(copy),
        "brought_back": list(plan.brought_back) if plan is not None else [],
        "lost": [p.text for p in plan.lost] if plan is not None else [],
        "repaired": kept is not None,
        "damaged_kept_as": None if kept is None else str(kept),
    }
