"""`trimtab lab list|run|demo|bench|accept`.

Reproducible instabilities, with and without the guard.
"""

import argparse
import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console

from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.checkout import add_missing_command, load_benchmarks
from trimtab.cli.lab_options import add_training_options, load_lab, whole_number
from trimtab.cli.output import print_json
from trimtab.errors import ConfigError
from trimtab.lab.scenarios import SCENARIOS, get_scenario

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
    one.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=0)
    one.add_argument("--guard", choices=("off", "observe", "advise", "act"), default="act")
    one.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="run directory; default runs/lab/NAME-SEED-GUARD, replaced if it is there",
    )
    add_training_options(one)
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
    demo.add_argument(
        "--quick", action="store_true", help="one short scenario, data-random; under a minute"
    )
    demo.add_argument("--seed", type=whole_number(0, 2**31 - 1), default=100)
    add_training_options(demo)
    demo.set_defaults(run=_demo)
    benchmarks = load_benchmarks("cli_guard")
    if benchmarks is None:
        add_missing_command(sub, "bench", "what the guard costs per step")
        add_missing_command(sub, "accept", "every scenario of the acceptance table")
    else:
        benchmarks.add_cost(sub, "bench")
        benchmarks.add_acceptance(sub)


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


def _run(arguments: argparse.Namespace) -> int:
    lab = load_lab("trimtab.lab.run", arguments.threads)
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
            run = shlex.quote(str(out))
            print(f"  trimtab report {run}    trimtab chronicle {run}")
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


def _progress(step: int, steps: int, loss: float) -> None:
    if step % 20 == 0 or step == steps:
        end = "\n" if step == steps else "\r"
        print(f"  step {step}/{steps}  loss {loss:.3f}   ", end=end, file=sys.stderr, flush=True)


def _demo(arguments: argparse.Namespace) -> int:
    demo = load_lab("trimtab.lab.demo", arguments.threads)
    default = ["data-random"] if arguments.quick else ["bad-data-late", "lr-after-warmup"]
    names = arguments.scenario or default
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
