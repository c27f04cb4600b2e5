"""`trimtab shadow RUN`: what `act` would have done in a run that was only watched."""

import argparse
from dataclasses import asdict
from pathlib import Path

from trimtab.chronicle.journal import read_journal
from trimtab.chronicle.rundir import RunDirectory
from trimtab.chronicle.shadow import ShadowEntry, shadow_ledger
from trimtab.cli.output import print_json, tell
from trimtab.errors import ReadError
from trimtab.text import plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "shadow", help="what act would have done in a guarded run, and what came instead"
    )
    parser.add_argument("path", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read the journal and add up."""
    directory = RunDirectory(arguments.path)
    if not directory.journal.is_file():
        raise ReadError(
            f"{directory.root}: has no journal.jsonl; give the directory of a guarded run"
        )
    entries = shadow_ledger(read_journal(directory.journal)[0])
    saved = sum(e.saved_steps for e in entries)
    wasted = sum(e.wasted_steps for e in entries)
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "path": str(arguments.path),
                "num_troubles": len(entries),
                "num_open": sum(not e.instead for e in entries),
                "saved_steps": saved,
                "wasted_steps": wasted,
                "entries": [asdict(e) for e in entries],
            }
        )
        return 0
    if not entries:
        tell("act would have done nothing: no trouble was met while the guard only looked on")
        return 0
    told = "trouble" if len(entries) == 1 else "troubles"
    tell(
        f"act would have saved {saved:,} steps and wasted {wasted:,}, in {len(entries)} {told}\n"
        "saved: steps in trouble beyond the cost, where it did not heal by itself; wasted: the"
        " cost, where it did\n"
    )
    for entry in entries:
        tell("\n".join(_lines(entry)))
    return 0


def _lines(e: ShadowEntry) -> list[str]:
    then = e.instead or "not over yet"
    if e.steps_in_trouble is not None:
        then += f", {e.steps_in_trouble:,} steps in trouble"
    return [
        f"step {e.step:>6,}  {plain(e.kind)} since {e.onset:g} ({plain(e.why)} only)",
        f"             would: {plain(e.would)}; about {e.cost_steps:,} steps",
        f"             instead: {plain(then)} · saved {e.saved_steps:,} · wasted"
        f" {e.wasted_steps:,}",
    ]
