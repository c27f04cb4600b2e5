"""The parts that train: what the guard costs per step, and the acceptance table.

`python -m benchmarks cost` and `accept`; `trimtab lab bench` and `trimtab lab accept` are the same.
"""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, TypeAlias

from trimtab.cli.lab_options import add_training_options, load_lab, whole_number
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError
from trimtab.lab.scenarios import ACCEPTANCE

__all__ = [
    "add_acceptance",
    "add_cost",
    "add_device",
    "add_families",
    "add_loader",
    "add_plan",
    "add_tail",
    "parse_seeds",
]

Parts: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_cost(parts: Parts, name: str = "cost") -> None:
    """Add the part that measures what the guard costs."""
    bench = parts.add_parser(
        name,
        help="what the guard costs per step, in paired ratios, and its snapshots and checkpoints",
    )
    bench.add_argument(
        "--pairs",
        type=whole_number(10, 100_000),
        default=200,
        help="pairs of steps on the small model",
    )
    bench.add_argument("--json", action="store_true")
    bench.add_argument(
        "--only-state",
        action="store_true",
        help="only snapshots and checkpoints, by size and ranks",
    )
    bench.add_argument(
        "--only-trainers",
        action="store_true",
        help="only the guard in each trainer, beside that trainer's own monitors",
    )
    bench.add_argument("--threads", type=whole_number(1, 256), default=1)
    add_device(bench)
    bench.set_defaults(run=_bench)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where to train."""
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to train; default cpu"
    )


def add_tail(parts: Parts) -> None:
    """Add the part that looks for single slow steps."""
    tail = parts.add_parser(
        "tail", help="the slowest observed step over the median one, and growth with the run"
    )
    tail.add_argument("--json", action="store_true")
    tail.add_argument(
        "--steps", type=whole_number(4_000, 1_000_000), default=20_000, help="default 20000"
    )
    tail.add_argument(
        "--long",
        type=whole_number(0, 1_000_000),
        default=100_000,
        help="step whose cost is held against that of step 1,000; default 100000, 0 leaves it out",
    )
    tail.set_defaults(run=_tail)


def add_acceptance(parts: Parts) -> None:
    """Add the acceptance table."""
    table = parts.add_parser(
        "accept", help="every scenario of the acceptance table, without and with the guard"
    )
    table.add_argument(
        "scenario", metavar="NAME", nargs="*", help="default: all of the table (see `lab list`)"
    )
    table.add_argument(
        "--seeds",
        metavar="A-B",
        type=parse_seeds,
        default=(0, 1, 2),
        help="a seed or a range of seeds; default 0-2; 100 and above are for published figures",
    )
    table.add_argument("--jobs", type=whole_number(1, 256), default=1, help="processes at a time")
    table.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs/accept"),
        help="guarded runs, and what need not be run again; default runs/accept",
    )
    add_device(table)
    add_training_options(table)
    table.set_defaults(run=_accept)


def _tail(arguments: argparse.Namespace) -> int:
    tail = load_lab("benchmarks.step_tail", 1)
    print(f"{arguments.steps} steps with 100 incidents", file=sys.stderr, flush=True)
    found = tail.measure_step_tail(steps=arguments.steps)
    growth = None
    if arguments.long:
        print(f"{arguments.long} steps without incidents", file=sys.stderr, flush=True)
        growth = tail.measure_growth(late=arguments.long)
    if arguments.json:
        more = None if growth is None else growth.to_json()
        print_json({"schema": 1, "tail": found.to_json(), "growth": more})
    else:
        print(tail.table(found, growth=growth))
    return 0


def add_families(parts: Parts) -> None:
    """Add the table of other kinds of models."""
    table = parts.add_parser(
        "families",
        help="ten kinds of models, faults and harmless changes in each: recovered, harmed, cost",
    )
    table.add_argument("--seeds", metavar="A-B", type=parse_seeds, default=(0,))
    table.add_argument("--jobs", type=whole_number(1, 256), default=1)
    table.add_argument("--match", metavar="REGEX", default="", help="of family/case/seed")
    table.add_argument(
        "--sample",
        metavar="N",
        type=whole_number(1, 100),
        help="of each case only N families, other ones with each seed",
    )
    table.add_argument("--out", metavar="FILE", type=Path, default=Path("runs/families.jsonl"))
    table.add_argument("--json", action="store_true")
    table.set_defaults(run=_families)


def _families(arguments: argparse.Namespace) -> int:
    module: Any = load_lab("benchmarks.families.table", 1)
    try:
        wanted = re.compile(arguments.match)
    except re.error as error:
        raise ConfigError(f"--match {arguments.match!r} is no pattern: {error}") from None
    every = module.all_work(arguments.seeds)
    if arguments.sample is not None:
        every = module.sample_work(arguments.seeds, arguments.sample)
    work = [w for w in every if wanted.search("/".join(map(str, w)))]

    def say(row: dict[str, Any]) -> None:
        if not arguments.json:
            done = ", ".join([*(row.get("actions") or ()), *(row.get("causes") or ())])
            print(
                f"{row['case']:<36} {row['verdict']:<14} twin {_shown(row['twin'])}"
                f" off {_shown(row['off'])} act {_shown(row.get('act'))}  {done}",
                flush=True,
            )

    rows = module.measure(work, arguments.out, jobs=arguments.jobs, say=say)
    if arguments.json:
        print_json({"rows": rows, "summary": module.summary(rows)})
    else:
        print(module.table_text(rows))
    return 0


def _shown(x: object) -> str:
    return f"{x:.4g}" if isinstance(x, float) else "-"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that "3" or "0-9" names."""
    first, _, last = text.partition("-")
    parse = whole_number(0, 2**31 - 1)
    low, high = parse(first), parse(last or first)
    if not low <= high < low + 1000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected A or A-B with A <= B")
    return tuple(range(low, high + 1))


def _accept(arguments: argparse.Namespace) -> int:
    table = load_lab("benchmarks.accept", arguments.threads)
    known = {s.name: s for s in ACCEPTANCE}
    for name in arguments.scenario:
        if name not in known:
            raise ConfigError(
                f"{name!r} is not in the acceptance table; choose of {', '.join(known)}"
            )
    scenarios = [known[name] for name in arguments.scenario] or list(ACCEPTANCE)
    stream = sys.stderr if arguments.json else sys.stdout
    print(
        f"{'scenario':<20} {'seed':>4}  {'no guard':>8}  {'guard':>7}  {'closed':>6}  {'wasted':>6}"
        f"  {'verdict':<13}  actions",
        file=stream,
    )
    rows = table.accept(
        scenarios,
        arguments.seeds,
        arguments.out,
        text_path=arguments.text,
        jobs=arguments.jobs,
        device=arguments.device,
        say=lambda row: print(_accept_line(row.to_json()), file=stream, flush=True),
    )
    summary = table.summarise(rows)
    wasted = summary["median_wasted_steps"]
    print(
        f"recovered {summary['recovered']} of {summary['judged']} that fail without a guard"
        f" ({summary['sound_without']} did not fail); left alone {summary['left_alone']} of"
        f" {summary['sound']}; median wasted {'none' if wasted is None else f'{wasted:.1%}'}",
        file=stream,
    )
    if arguments.json:
        print_json({"schema": 1, "rows": [row.to_json() for row in rows], "summary": summary})
    return 0 if summary["accepted"] else 1


def _accept_line(row: dict[str, Any]) -> str:
    """Return one line of the table; what is not finite or not there is a dash."""

    def cell(name: str, form: str, width: int) -> str:
        value = row[name]
        return f"{'—' if value is None else format(value, form):>{width}}"

    deeds = [f"{a['step']}: {a['remedy']}" for a in row["actions"]]
    return (
        f"{row['scenario']:<20} {row['seed']:>4}  {cell('ratio_off', '.4f', 8)} "
        f" {cell('ratio_act', '.4f', 7)}  {cell('gap_closed', '.0%', 6)} "
        f" {cell('wasted_steps', '.1%', 6)}  {row['verdict']:<13}  {'; '.join(deeds)}"
    )


def _bench(arguments: argparse.Namespace) -> int:
    if arguments.device != "cpu":
        return _device_bench(arguments)
    bench = load_lab("benchmarks.guard_cost", arguments.threads)
    state = load_lab("benchmarks.state_cost", arguments.threads)

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    document: dict[str, Any] = {}
    if not arguments.only_state:
        trainers = load_lab("benchmarks.trainer_cost", arguments.threads)
        document |= trainers.run_trainer_bench(rounds=max(arguments.pairs * 2 // 5, 10), say=say)
    if not (arguments.only_state or arguments.only_trainers):
        probes = load_lab("benchmarks.probe_cost", arguments.threads)
        ranks = load_lab("benchmarks.rank_cost", arguments.threads)
        document |= bench.run_bench(pairs=arguments.pairs, say=say)
        document |= probes.run_probe_bench(rounds=max(arguments.pairs // 2, 40), say=say)
        document |= ranks.run_rank_bench(say=say)
    if not arguments.only_trainers:
        document |= state.run_state_bench(say=say)
    if arguments.json:
        print_json(document)
    return 0


def _device_bench(arguments: argparse.Namespace) -> int:
    module: Any = load_lab("benchmarks.device_cost", arguments.threads)
    document = module.run_device_bench(pairs=arguments.pairs, say=_say(arguments))
    if arguments.json:
        print_json(document)
    return 0


def add_plan(parts: Parts) -> None:
    """Add the part that holds `trimtab plan guard` against runs."""
    plan = parts.add_parser(
        "guard-plan", help="what `trimtab plan guard` prints over what runs hold, send and take"
    )
    plan.add_argument("--threads", type=whole_number(1, 256), default=1)
    plan.add_argument("--match", metavar="REGEX", default="", help="of a case's fields")
    plan.add_argument("--json", action="store_true")
    plan.set_defaults(run=_plan)


def add_loader(parts: Parts) -> None:
    """Add the part that measures a loader with workers."""
    loader = parts.add_parser(
        "loader", help="throughput of a loader with workers through the guard, over without it"
    )
    loader.add_argument("--pairs", type=whole_number(1, 1000), default=7)
    loader.add_argument("--workers", type=whole_number(1, 64), default=2)
    loader.add_argument("--item-ms", type=float, default=0.6, metavar="X")
    loader.add_argument("--threads", type=whole_number(1, 256), default=1)
    loader.add_argument("--json", action="store_true")
    loader.set_defaults(run=_loader)


def _plan(arguments: argparse.Namespace) -> int:
    module: Any = load_lab("benchmarks.guard_plan", arguments.threads)
    try:
        wanted = re.compile(arguments.match)
    except re.error as error:
        raise ConfigError(f"--match {arguments.match!r} is no pattern: {error}") from None
    cases = tuple(c for c in module.CASES if wanted.search(str(c)))
    document = module.run_plan_bench(say=_say(arguments), cases=cases)
    if arguments.json:
        print_json(document)
    return 0


def _loader(arguments: argparse.Namespace) -> int:
    module: Any = load_lab("benchmarks.loader_cost", arguments.threads)
    document = module.run_loader_bench(
        pairs=arguments.pairs,
        workers=arguments.workers,
        item_ms=arguments.item_ms,
        say=_say(arguments),
    )
    if arguments.json:
        print_json(document)
    return 0


def _say(arguments: argparse.Namespace) -> Any:
    stream = sys.stderr if arguments.json else sys.stdout
    return lambda line: print(line, file=stream, flush=True)
