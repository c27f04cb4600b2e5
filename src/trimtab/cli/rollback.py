"""`trimtab rollback RUN --to STEP`: take a run on disk back to a checkpoint, or undo that."""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trimtab.cli.output import errors_as_json, print_json
from trimtab.cli.reason import add_reason, author_of, reason_of
from trimtab.plan.rollback import parse_candidate
from trimtab.surgery.apply import apply_rollback
from trimtab.surgery.operations import Operation
from trimtab.surgery.plan import RollbackPlan, plan_rollback, plan_undo
from trimtab.surgery.records import RollbackRecord
from trimtab.text import plain, visible

__all__ = ["add", "run"]

_SHOWN = 40
"""Most lines of one sort; the JSON document has them all."""
_VERBS = {
    "checkpoint": "aside",
    "pointer": "point",
    "archive": "copy",
    "log": "cut",
    "copy": "clean",
}


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "rollback", help="take a run on disk back to a checkpoint: dry run, apply, undo"
    )
    parser.add_argument(
        "run_directory",
        metavar="RUN",
        type=Path,
        help="the folder of a run of any known trainer, or of its checkpoints",
    )
    parser.add_argument(
        "--to",
        metavar="STEP",
        type=_step,
        help="step of the checkpoint, or its name; default: the one that the run's logs suggest",
    )
    parser.add_argument("--apply", action="store_true", help="do it; without it nothing is touched")
    parser.add_argument(
        "--undo", action="store_true", help="bring back what the newest rollback changed, at once"
    )
    parser.add_argument(
        "--archive",
        metavar="NAME",
        default="",
        help="folder for the copies of the TensorBoard files, beside them",
    )
    add_reason(parser, told="for the journal; needed with --apply and --undo")
    parser.add_argument(
        "--git-commit", action="store_true", help="commit that folder, and only that; no push"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def _step(text: str) -> int:
    found = parse_candidate(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r}: no step is in it; give a number, such as 3000")
    return found.step


def run(arguments: argparse.Namespace) -> int:
    """Plan it, do it where that is asked for, and say what was done."""
    return errors_as_json(arguments, _run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.undo:
        plan = plan_undo(arguments.run_directory)
    else:
        plan = plan_rollback(
            arguments.run_directory,
            arguments.to,
            archive=arguments.archive,
            why=arguments.why,
            git_commit=arguments.git_commit,
            analyse=True,
        )
    record = None
    if arguments.apply or arguments.undo:
        # asked for once it is known what is done; what was begun before has its reason
        if plan.operations and not plan.blocked_by and (plan.undo or plan.resumed is None):
            action = "undo the rollback" if plan.undo else f"rollback to {plan.to_step}"
            plan = replace(plan, why=reason_of(arguments, action), by=author_of(arguments))
        record = apply_rollback(plan)
    if arguments.json:
        print_json(_document(plan, record))
    else:
        print("\n".join(visible(line) for line in _told(plan, record)))
    return 0


# -- for people -----------------------------------------------------------------------------


def _told(plan: RollbackPlan, record: RollbackRecord | None) -> Iterator[str]:
    yield _headline(plan, record)
    yield from _what_to_do(plan, record)
    yield from (f"  warning: {text}" for text in plan.warnings)
    yield from (f"  would be refused now: {text}" for text in plan.blocked_by)
    for role, verb in _VERBS.items():
        of_role = [o for o in plan.operations if o.role == role]
        yield from (f"  {verb:<6} {_line(o, undo=plan.undo)}" for o in of_role[:_SHOWN])
        if len(of_role) > _SHOWN:
            yield f"  {verb:<6} … and {len(of_role) - _SHOWN} more"
    if plan.suggestion is not None and plan.suggestion.headline:
        yield f"  because {plain(plan.suggestion.headline)}"
    yield from (
        f"  {'go to ' if c.checkpoint.step == plan.to_step else 'or    '} {c.checkpoint.step}:"
        f" score {c.score:.2f}, {c.reason}"
        for c in plan.candidates[:5]
    )
    yield from (f"  note: {text}" for text in plan.notes)
    if record is not None:
        yield from (f"  note: {text}" for text in record.written)


def _headline(plan: RollbackPlan, record: RollbackRecord | None) -> str:
    name, what = plan.root.name or str(plan.root), plan.framework
    at = "an unknown step" if plan.from_step is None else str(plan.from_step)
    if plan.undo:
        return f"{name} ({what}): the rollback to step {plan.to_step} is undone, back at {at}"
    if record is not None and plan.operations:
        return f"{name} ({what}): rolled back from step {at} to {plan.to_step}"
    trust = "verified by its hashes" if plan.verified else "not verified"
    grade = plan.grade or "not graded"
    if not plan.operations:
        return f"{name} ({what}): is at step {plan.to_step}; nothing has to be moved"
    if plan.from_step == plan.to_step:
        return (
            f"{name} ({what}): would stay at step {at}, its newest checkpoint ({grade}, {trust}),"
            " and lose what it logged since; dry run, nothing was touched"
        )
    return (
        f"{name} ({what}): would go back from step {at} to {plan.to_step}"
        f" ({grade}, {trust}); dry run, nothing was touched"
    )


def _what_to_do(plan: RollbackPlan, record: RollbackRecord | None) -> Iterator[str]:
    here = shlex.quote(str(plan.run))
    if plan.undo:
        yield f"  do it again: trimtab rollback {here} --to {plan.to_step} --apply"
    elif record is not None and record.number:
        yield f"  undo it: trimtab rollback {here} --undo"
    elif plan.operations:
        yield f"  do it: trimtab rollback {here} --to {plan.to_step} --apply"


def _line(operation: Operation, *, undo: bool) -> str:
    told = f" ({operation.told})" if operation.told else ""
    if operation.do == "move":
        ends = (operation.path, operation.to)
        source, target = reversed(ends) if undo else ends
        return f"{source} -> {target}{told}"
    if operation.role in ("archive", "copy"):
        made = operation.path.rpartition("/")[0]
        return f"{made} goes aside" if undo else f"{operation.source} -> {operation.path}{told}"
    return f"{operation.path}{' as it was' if undo else told}"


# -- for programs ---------------------------------------------------------------------------


def _document(plan: RollbackPlan, record: RollbackRecord | None) -> dict[str, object]:
    suggestion = plan.suggestion
    by_role = {role: [o for o in plan.operations if o.role == role] for role in _VERBS}
    return {
        "schema": 1,
        "path": str(plan.run),
        "root": str(plan.root),
        "framework": plan.framework,
        "checkpoints": str(plan.folder),
        "action": "undo" if plan.undo else "rollback",
        "applied": record is not None and not plan.undo,
        "undone": record is not None and plan.undo,
        "to_step": plan.to_step,
        "from_step": plan.from_step,
        "target": None if plan.target is None else str(plan.target),
        "grade": plan.grade or None,
        "verified": plan.verified,
        "moves": [
            {
                "from": o.to if plan.undo else o.path,
                "to": o.path if plan.undo else o.to,
                "what": o.role,
            }
            for o in plan.operations
            if o.do == "move"
        ],
        "pointers": [{"path": o.path, "does": o.do, "told": o.told} for o in by_role["pointer"]],
        "archive": plan.archive or None,
        "archived": [{"from": o.source, "to": o.path} for o in by_role["archive"]],
        "events": [
            {"path": path, "stay": stay, "leave": leave} for path, stay, leave in plan.events
        ],
        "copies": [{"from": o.source, "to": o.path, "told": o.told} for o in by_role["copy"]],
        "size_bytes": plan.size_bytes,
        "first_sign": None if suggestion is None else suggestion.first_sign,
        "incident": None if suggestion is None else suggestion.kind or None,
        "candidates": [
            {
                "step": c.checkpoint.step,
                "grade": c.checkpoint.grade,
                "score": c.score,
                "reason": c.reason,
            }
            for c in plan.candidates
        ],
        "warnings": list(plan.warnings),
        "blocked_by": list(plan.blocked_by),
        "notes": [*plan.notes, *(record.written if record is not None else ())],
        "number": record.number if record is not None and record.number else None,
        "record": str(record.kept / "record.json")
        if record is not None and record.number
        else None,
        "commit": (record.commit or None) if record is not None else None,
    }
