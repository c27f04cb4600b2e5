"""`trimtab approve RUN ID`: allow, or with `--deny` refuse, what a guarded run has staged."""

import argparse
import difflib
from pathlib import Path

from trimtab.chronicle.approvals import Answer, Mailbox, StagedAction, read_staged
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json, tell
from trimtab.cli.reason import add_reason, author_of, reason_of
from trimtab.errors import ConfigError
from trimtab.text import plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "approve", help="allow or deny what a guarded run has staged and waits for"
    )
    parser.add_argument("path", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument(
        "id", metavar="ID", nargs="?", default="", help="as the run tells it; without: list all"
    )
    parser.add_argument("--deny", action="store_true", help="refuse it: advice only, this time")
    add_reason(parser, told="written into the journal")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List what waits, or put the answer where the guard reads it."""
    staged = read_staged(arguments.path)
    if not arguments.id:
        if arguments.deny:
            raise ConfigError("approve: --deny needs an ID; run it without to list what waits")
        _list(staged, arguments)
        return 0
    found = next((s for s in staged if s.id == arguments.id), None)
    if found is None:
        near = difflib.get_close_matches(arguments.id, [s.id for s in staged], n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "nothing of that name was staged"
        raise ConfigError(f"{arguments.path}: {arguments.id!r} is no staged action; {hint}")
    if found.answer:
        raise ConfigError(f"{arguments.path}: {found.id} is {found.answer} already")
    approved = not arguments.deny
    why = reason_of(arguments, f"{'approve' if approved else 'deny'} {found.id}")
    author = author_of(arguments)
    where = Mailbox.put(arguments.path, Answer(found.id, approved, why, author))
    said = "approved" if approved else "denied"
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "path": str(arguments.path),
                "id": found.id,
                "answer": said,
                "why": why,
                "author": author,
                "stored_in": str(where),
            }
        )
    else:
        guarded = RunDirectory(arguments.path).signals.is_dir()
        who, when = ("the guard", "step") if guarded else ("the supervisor", "look")
        tell(f"{said}: {found.id}, {plain(found.what)}\n{who} acts on it at its next {when}")
    return 0


def _list(staged: tuple[StagedAction, ...], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "path": str(arguments.path),
                "staged": [_as_json(s) for s in staged],
            }
        )
        return
    waiting = [s for s in staged if not s.answer]
    if not waiting:
        tell(f"nothing waits for approval ({len(staged)} staged so far)")
    for s in waiting:
        tell(
            f"{s.id}  {plain(s.kind)} at step {s.step}: {plain(s.what)}\n"
            f"       cost: about {s.cost_steps} steps · undo: {plain(s.undo)}\n"
            f"       staged {plain(s.staged_at)}; without an answer after {s.deadline_s:g} s:"
            f" {plain(s.at_deadline)}"
        )


def _as_json(s: StagedAction) -> dict[str, object]:
    return {
        "id": s.id,
        "classes": list(s.classes),
        "kind": s.kind,
        "step": s.step,
        "what": s.what,
        "cost_steps": s.cost_steps,
        "undo": s.undo,
        "staged_at": s.staged_at,
        "deadline_s": s.deadline_s,
        "at_deadline": s.at_deadline,
        "answer": s.answer or None,
        "why": s.why,
    }
