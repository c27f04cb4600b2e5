"""`trimtab adopt PATH…`: one lineage of a run that began without trimtab."""

import argparse
from pathlib import Path

from trimtab.analysis.assemble import make_account
from trimtab.chronicle.adopt import Adopted, adopt, incident_events, write_run
from trimtab.chronicle.lineage import Lineage, lineage_of, lineage_to_json, restart_words
from trimtab.chronicle.settings_record import differences_text
from trimtab.cli.output import print_json, tell, tell_error
from trimtab.text import number, plain

__all__ = ["add", "run"]

_DESCRIPTION = """\
Reads what a run left behind (text logs, TensorBoard folders, trainer_state files, W&B offline runs,
SLURM outputs, or a folder with all of them), finds its attempts, restarts and overlaps, and takes
settings from whatever states them. Without --out it prints the lineage and writes nothing.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "adopt",
        help="make one lineage of the logs of a run that began without trimtab",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a log or a folder")
    parser.add_argument(
        "--out", metavar="RUN", type=Path, help="write a run directory there: journal and samples"
    )
    parser.add_argument(
        "--no-incidents", action="store_true", help="do not judge the rows; outcomes stay unclear"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, judge, print or write."""
    found = adopt(arguments.paths)
    told = []
    if not arguments.no_incidents:
        account = make_account(found.record, self_test=False)
        told = [ia.incident for ia in account.incidents if ia.incident.severity != "info"]
    incidents = incident_events(told, found.events[0].t)
    lineage = lineage_of((*found.events, *incidents), found.record)
    if arguments.out is not None:
        write_run(found, incidents, arguments.out)
    if arguments.json:
        print_json(
            {
                "schema": 1,
                "paths": arguments.paths,
                "out": None if arguments.out is None else str(arguments.out),
                "notes": list(found.notes),
                "left_out": list(found.left_out),
                "lineage": lineage_to_json(lineage),
            }
        )
    else:
        tell(_text(found, lineage, arguments.out))
    for text in found.left_out:
        tell_error(f"left out: {text}")
    return 0


def _text(found: Adopted, lineage: Lineage, out: Path | None) -> str:
    lines = [f"{len(lineage.attempts)} attempts: {restart_words(lineage)}"]
    if out is None:
        lines.append("nothing was written; --out RUN makes a run directory of it")
    else:
        lines.append(
            f"written to {out}; read it with `trimtab chronicle {out}`, add to it with"
            f' `trimtab note {out} "..."`'
        )
    lines.append("")
    for a in lineage.attempts:
        origin = f"from {a.parent}" if a.parent else "from scratch"
        if a.parent_step is not None:
            origin += f" @ {number(a.parent_step)}"
        steps = f"steps {number(a.first_step)}-{number(a.last_step)}"
        kept = "" if a.on_main_line else ", not on the main line"
        lines.append(f"{a.number:<6} {a.kind:<9} {origin:<18} {steps}{kept}  {plain(a.label)}")
        but = differences_text(a.differs)
        if but:
            lines.append(f"{'':<6} differs from {a.parent}: {but}")
        lines.append(f"{'':<6} {a.outcome}: {a.outcome_why}")
    lines += ["", *(f"note: {plain(n)}" for n in found.notes)]
    return "\n".join(lines)
