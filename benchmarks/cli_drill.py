"""`python -m benchmarks drill`: real faults in a running job, and who answers them rightly."""

import argparse
import dataclasses
import importlib.util
import time

from benchmarks.drill import FAULTS, LAUNCHERS, drill, drill_text
from benchmarks.drill.around import AROUND, AROUND_FAULTS, around, around_text
from benchmarks.drill.soak import soak, soak_text
from trimtab.cli.output import print_json, tell
from trimtab.errors import ConfigError

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part `drill`."""
    names = [fault.name for fault in FAULTS]
    parser = parts.add_parser(
        "drill", help="real faults in a running job: detection, recovery, lost steps"
    )
    parser.add_argument("--faults", metavar="NAME", nargs="+", choices=names, default=names)
    parser.add_argument(
        "--launchers", metavar="NAME", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS[:-1])
    )
    parser.add_argument("--limit", metavar="S", type=float, default=60.0, help="seconds a run")
    parser.add_argument(
        "--soak", metavar="N", type=int, default=0, help="instead: one run with N random faults"
    )
    parser.add_argument(
        "--around",
        metavar="SCRIPT",
        nargs="+",
        choices=list(AROUND),
        default=[],
        help=f"instead: training scripts of others ({', '.join(AROUND)}), five faults each",
    )
    parser.add_argument(
        "--around-faults", metavar="NAME", nargs="+", choices=AROUND_FAULTS, default=AROUND_FAULTS
    )
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="of --around, at once")
    parser.add_argument("--seed", metavar="S", type=int, default=100, help="of the soak")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.soak:
        soaked = soak(arguments.soak, seed=arguments.seed)
        if arguments.json:
            print_json({"schema": 1, **dataclasses.asdict(soaked)})
        else:
            tell(soak_text(soaked))
        return 0 if soaked.finished and soaked.same_bits and not soaked.twice else 1
    if arguments.around:
        seen = around(
            arguments.around,
            arguments.around_faults,
            limit_s=arguments.limit,
            jobs=arguments.jobs,
        )
        if arguments.json:
            print_json({"schema": 1, "results": [dataclasses.asdict(a) for a in seen]})
        else:
            tell(around_text(seen))
        return 0
    needs_torch = any(name != "python" for name in arguments.launchers)
    if needs_torch and importlib.util.find_spec("torch") is None:
        raise ConfigError("drill: torchrun needs torch; give --launchers python, or install it")
    if (
        "nvrx alone" in arguments.launchers
        and importlib.util.find_spec("nvidia_resiliency_ext") is None
    ):
        raise ConfigError("drill: nvrx alone needs nvidia-resiliency-ext; install it, or leave it")
    began = time.time()
    faults = [fault for fault in FAULTS if fault.name in arguments.faults]
    found = drill(faults, arguments.launchers, limit_s=arguments.limit)
    if arguments.json:
        print_json({"schema": 1, "results": [dataclasses.asdict(d) for d in found]})
    else:
        tell(drill_text(found, began=began))
    return 0
