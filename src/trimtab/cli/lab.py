"""`trimtab lab list|run|demo|bench|accept`.

Reproducible instabilities, with and without the guard.
"""

import argparse
import importlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError, MissingExtraError
from trimtab.lab.scenarios import ACCEPTANCE, SCENARIOS, get_scenario

__all__ = ["add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its own commands."""
    parser = commands.add_parser(
        "lab", help="train small models with planted faults, with and without the guard"
    )
    sub = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = sub.add_parser("list", help="list the scenarios")
    listing.add_argument("--json", action="store_true")
    listing.set_defaults(run=_list)
    one = sub.add_parser("run", help="run one scenario and its healthy twin")
    one.add_argument("scenario", metavar="NAME")
    one.add_argument("--seed", type=_number(0, 2**31 - 1), default=0)
    one.add_argument("--guard", choices=("off", "observe", "advise", "act"), default="act")
    one.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="run directory; default runs/lab/NAME-SEED-GUARD, replaced if it is there",
    )
    _common(one)
    one.set_defaults(run=_run)
    demo = sub.add_parser(
        "demo", help="healthy, faulty and guarded runs of two faults, a public log, one report"
    )
    demo.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs/demo"),
        help="default runs/demo; an earlier demo there is replaced when this one is done",
    )
    demo.add_argument(
        "--scenario",
        metavar="NAME",
        action="append",
        help="may be given more than once; default: bad-data-late and lr-after-warmup",
    )
    demo.add_argument("--seed", type=_number(0, 2**31 - 1), default=100)
    _common(demo)
    demo.set_defaults(run=_demo)
    bench = sub.add_parser(
        "bench",
        help="what the guard costs per step, in paired ratios, and its snapshots and checkpoints",
    )
    bench.add_argument(
        "--pairs", type=_number(10, 100_000), default=200, help="pairs of steps on the small model"
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
    bench.add_argument("--threads", type=_number(1, 256), default=1)
    bench.set_defaults(run=_bench)
    table = sub.add_parser(
        "accept", help="every scenario of the acceptance table, without and with the guard"
    )
    table.add_argument(
        "scenario", metavar="NAME", nargs="*", help="default: all of the table (see `lab list`)"
    )
    table.add_argument(
        "--seeds",
        metavar="A-B",
        type=_seeds,
        default=(0, 1, 2),
        help="a seed or a range of seeds; default 0-2; 100 and above are for published figures",
    )
    table.add_argument("--jobs", type=_number(1, 256), default=1, help="processes at a time")
    table.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path("runs/accept"),
        help="guarded runs, and what need not be run again; default runs/accept",
    )
    _common(table)
    table.set_defaults(run=_accept)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text",
        metavar="PATH",
        type=Path,
        help="file or directory of text; default: the standard library's own sources",
    )
    parser.add_argument(
        "--threads",
        type=_number(1, 256),
        default=1,
        help=(
            "CPU threads; default 1: on small models more gain little, and lose much beside other"
            " work"
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )


def _list(arguments: argparse.Namespace) -> int:
    if arguments.json:
        rows = [
            {
                "name": s.name,
                "title": s.title,
                "expected_minutes": s.expected_minutes,
                "expect": s.expect,
            }
            for s in SCENARIOS
        ]
        print_json({"schema": 1, "scenarios": rows})
        return 0
    for s in SCENARIOS:
        print(f"{s.name:<20} {s.expect:<10} {s.expected_minutes:>4g} min   {s.title}")
    return 0


def _torch_side(module: str, threads: int) -> Any:
    """Return a module of the lab that needs torch.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise MissingExtraError("`trimtab lab`", "torch") from None
    if threads > 0:
        torch.set_num_threads(threads)
    return importlib.import_module(module)


def _run(arguments: argparse.Namespace) -> int:
    lab = _torch_side("trimtab.lab.run", arguments.threads)
    from trimtab.lab.text import load_text

    scenario = get_scenario(arguments.scenario)
    text = load_text(arguments.text)
    out = arguments.out
    if out is None:
        out = Path("runs/lab") / f"{scenario.name}-{arguments.seed}-{arguments.guard}"
        _remove_earlier_run(out)
    show = _progress if sys.stderr.isatty() else None
    result = lab.run_scenario(
        arguments.scenario,
        arguments.seed,
        arguments.guard,
        text,
        out,
        say=lambda line: print(line, file=sys.stderr),
        on_step=show,
    )
    if arguments.json:
        print_json(result.to_json())
    else:
        print(
            f"{result.scenario}, seed {result.seed}, guard {result.guard}: validation loss"
            f" {result.final_loss:.4f}, healthy twin {result.reference_loss:.4f}, ratio"
            f" {result.ratio:.4f}, wasted {result.wasted_steps:.1%}"
        )
        for action in result.actions:
            print(f"  step {action['step']}: {action['remedy']} — {action['why']}")
        if arguments.guard != "off":
            print(f"  trimtab report {out}    trimtab chronicle {out}")
    return 0


def _remove_earlier_run(out: Path) -> None:
    """Make room for a run of the lab at its default place; only an earlier one is removed.

    Raises:
        ConfigError: Something else is there.
    """
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not RunDirectory(out).journal.is_file():
        raise ConfigError(f"{out}: is there and is no earlier run; choose another place with --out")
    shutil.rmtree(out)


def _number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected {low} to {high}")
        return value

    return parse


def _progress(step: int, steps: int, loss: float) -> None:
    if step % 20 == 0 or step == steps:
        end = "\n" if step == steps else "\r"
        print(f"  step {step}/{steps}  loss {loss:.3f}   ", end=end, file=sys.stderr, flush=True)


def _demo(arguments: argparse.Namespace) -> int:
    demo = _torch_side("trimtab.lab.demo", arguments.threads)
    names = arguments.scenario or ["bad-data-late", "lr-after-warmup"]
    document = demo.run_demo(
        names,
        arguments.seed,
        arguments.text,
        arguments.out,
        Console(stderr=arguments.json, highlight=False),
    )
    if arguments.json:
        print_json(document)
    return 0


def _seeds(text: str) -> tuple[int, ...]:
    """Return the seeds that "3" or "0-9" names."""
    first, _, last = text.partition("-")
    parse = _number(0, 2**31 - 1)
    low, high = parse(first), parse(last or first)
    if not low <= high < low + 1000:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected A or A-B with A <= B")
    return tuple(range(low, high + 1))


def _accept(arguments: argparse.Namespace) -> int:
    table = _torch_side("benchmarks.accept", arguments.threads)
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
    bench = _torch_side("benchmarks.guard_cost", arguments.threads)
    state = _torch_side("benchmarks.state_cost", arguments.threads)

    def say(line: str) -> None:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    document: dict[str, Any] = {}
    if not arguments.only_state:
        trainers = _torch_side("benchmarks.trainer_cost", arguments.threads)
        document |= trainers.run_trainer_bench(rounds=max(arguments.pairs * 2 // 5, 10), say=say)
    if not (arguments.only_state or arguments.only_trainers):
        probes = _torch_side("benchmarks.probe_cost", arguments.threads)
        ranks = _torch_side("benchmarks.rank_cost", arguments.threads)
        document |= bench.run_bench(pairs=arguments.pairs, say=say)
        document |= probes.run_probe_bench(rounds=max(arguments.pairs // 2, 40), say=say)
        document |= ranks.run_rank_bench(say=say)
    if not arguments.only_trainers:
        document |= state.run_state_bench(say=say)
    if arguments.json:
        print_json(document)
    return 0
