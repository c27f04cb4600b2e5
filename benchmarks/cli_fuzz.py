"""`python -m benchmarks fuzz WHAT`: damaged inputs of one kind, in limited processes."""

import argparse
import dataclasses
import sys
from pathlib import Path

from benchmarks.fuzz import TRIALS, FuzzTotals, fuzz
from trimtab.cli.output import print_json

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part to `trimtab bench`."""
    parser = parts.add_parser(
        "fuzz", help="damaged data, configs, checkpoints, journals, pages: read or refused?"
    )
    parser.add_argument(
        "what", metavar="WHAT", choices=(*TRIALS, "all"), help=f"{', '.join(TRIALS)}, or all"
    )
    parser.add_argument("--num", type=int, default=10_000, help="inputs in all; default 10000")
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs; default 0")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time; default 1")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="keep totals in this JSON file, go on from it, save failing inputs in FILE.failures/",
    )
    parser.add_argument(
        "--only", metavar="N", type=int, help="run input N of the seed alone, and let it raise"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    found = [
        fuzz(
            what,
            TRIALS[what],
            num=arguments.num,
            seed=arguments.seed,
            jobs=arguments.jobs,
            out=arguments.out,
            say=lambda line: print(line, file=sys.stderr, flush=True),
            only=arguments.only,
        )
        for what in (TRIALS if arguments.what == "all" else (arguments.what,))
    ]
    if arguments.json:
        print_json({"schema": 1, "totals": [dataclasses.asdict(t) for t in found]})
    else:
        print(_table(found))
    return int(any(t.failures for t in found))


def _table(found: list[FuzzTotals]) -> str:
    lines = ["what         seed      inputs        read     refused  failed  seconds"]
    for t in found:
        lines.append(
            f"{t.what:<11} {t.seed:>5} {t.num_run:>11,} {t.num_read:>11,} {t.num_refused:>11,}"
            f" {t.num_failed:>7,} {t.seconds:>8.0f}"
        )
        lines += [
            f"  {f.count} × {key}; first: --only {f.first}{f' in {f.saved}' if f.saved else ''}"
            for key, f in t.failures.items()
        ]
    return "\n".join(lines)
