"""`python -m benchmarks domains`: RL, preferences, MoE, low precision, GANs, diffusion, fine-tuning."""

import argparse
import dataclasses

from rich.console import Console
from rich.table import Table

from benchmarks.domains.measure import DomainResult, measure_domains
from benchmarks.domains.nouns import noun_rows
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError

__all__ = ["add_domains"]

FIRST_SEED = 100


def add_domains(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part."""
    parser = parts.add_parser(
        "domains", help="on made-up runs of RL, MoE, fp8, GANs: pathologies told, twins silent"
    )
    parser.add_argument(
        "--seeds", metavar="N", type=int, default=20, help="runs per case, from the first seed on"
    )
    parser.add_argument(
        "--first-seed", metavar="N", type=int, default=FIRST_SEED, help="0 to 9: tuning seeds"
    )
    parser.add_argument("--only", metavar="ID", nargs="+", default=[], help="some cases alone")
    parser.add_argument(
        "--table", action="store_true", help="what is covered: signals, rules, tests, sources"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_domains)


def _domains(arguments: argparse.Namespace) -> int:
    if arguments.table:
        return _table(as_json=arguments.json)
    if not 1 <= arguments.seeds <= 1000:
        raise ConfigError(f"--seeds {arguments.seeds}: expected 1 to 1000")
    first = arguments.first_seed
    results = measure_domains(range(first, first + arguments.seeds), only=arguments.only)
    if arguments.json:
        rows = [dataclasses.asdict(r) for r in results]
        print_json({"schema": 1, "first_seed": first, "seeds": arguments.seeds, "results": rows})
        return 0
    console = Console(highlight=False, markup=False, width=160)
    console.print(_result_table(results))
    console.print(_summary(results))
    return 0


def _result_table(results: list[DomainResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in (
        "case",
        "kind of training",
        "told",
        "first cause right",
        "late",
        "not so",
    ):
        table.add_column(name)
    for r in results:
        late = "" if r.delay_share is None else f"{r.delay_share:.0%}"
        cause = "" if r.is_twin else f"{r.right_cause}/{r.told}"
        told = f"{r.told}/{r.num_runs}" + (" (twin)" if r.is_twin else "")
        table.add_row(r.id, r.base, told, cause, late, r.missed[0] if r.missed else "")
    return table


def _summary(results: list[DomainResult]) -> str:
    lines = []
    for title, bases in (
        ("RL and preferences", ("rl", "preference")),
        ("MoE", ("moe", "moe-loads")),
        ("low precision", ("low-precision",)),
        ("GAN, diffusion, fine-tuning", ("gan", "diffusion", "sft")),
    ):
        sick = [r for r in results if r.base in bases and not r.is_twin]
        twins = [r for r in results if r.base in bases and r.is_twin]
        runs, told = sum(r.num_runs for r in sick), sum(r.told for r in sick)
        right = sum(r.right_cause for r in sick)
        sound, alarmed = sum(r.num_runs for r in twins), sum(r.told for r in twins)
        if runs:
            lines.append(
                f"{title}: {len(sick)} pathologies, told {told}/{runs} ({told / runs:.1%}), first"
                f" cause right {right}/{told}; twins silent {sound - alarmed}/{sound}"
            )
    return "\n".join(lines)


def _table(*, as_json: bool) -> int:
    rows = noun_rows()
    if as_json:
        print_json({"schema": 1, "rows": [dataclasses.asdict(r) for r in rows]})
        return 0
    table = Table(box=None, pad_edge=False)
    for name in ("what", "signals", "rules", "tests", "source"):
        table.add_column(name, overflow="fold")
    for r in rows:
        tests = ", ".join(t.partition("::")[2] for t in r.tests) or "none"
        table.add_row(r.noun, ", ".join(r.signals), ", ".join(r.rules), tests, r.source)
    console = Console(highlight=False, markup=False, width=200)
    console.print(table)
    without = [r.noun for r in rows if not r.tests]
    console.print(f"{len(rows)} rows; without a test: {', '.join(without) or 'none'}")
    return 0
