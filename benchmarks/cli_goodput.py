"""`python -m benchmarks goodput-trace`: effective training time under published fault traces."""

import argparse
import dataclasses
import json
import statistics
from pathlib import Path

from benchmarks.drill import FAULTS, drill
from benchmarks.fault_trace import TRACES, Costs, play, trace_text
from trimtab.cli.output import print_json, tell
from trimtab.errors import ConfigError

__all__ = ["add"]

_DEAD = ("kill", "network", "damaged")
"""Faults of the drill that end the process: what is measured is from the end to the decision."""
_GRID = ((60.0, 1.0), (60.0, 2.0), (120.0, 1.0), (120.0, 2.0), (120.0, 10.0), (300.0, 2.0))
"""Seconds of a start, and seconds that a save keeps the job from training."""


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part `goodput-trace`."""
    parser = parts.add_parser(
        "goodput-trace", help="effective training time under the failures of Llama 3 and OPT"
    )
    parser.add_argument("--trace", choices=(*TRACES, "all"), default="all")
    parser.add_argument(
        "--drill",
        metavar="FILE",
        type=Path,
        help="what `drill --json` measured; default: one fault of the drill is run now",
    )
    parser.add_argument("--start", metavar="S", type=float, default=Costs.start_s)
    parser.add_argument("--save", metavar="S", type=float, default=Costs.save_s)
    parser.add_argument("--seeds", metavar="N", type=int, default=3, help="from seed 100 on")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not (arguments.start > 0 and arguments.save > 0 and 0 < arguments.seeds <= 100):
        raise ConfigError("goodput-trace: --start, --save and --seeds must be above 0, seeds ≤ 100")
    costs = Costs(
        start_s=arguments.start, save_s=arguments.save, detect_s=_detected_s(arguments.drill)
    )
    names = list(TRACES) if arguments.trace == "all" else [arguments.trace]
    documents: list[dict[str, object]] = []
    for name in names:
        trace = TRACES[name]
        played = [play(trace, costs, seed=100 + i) for i in range(arguments.seeds)]
        shares = [p.found.effective or 0.0 for p in played]
        grid = {
            (start, save): play(
                trace, dataclasses.replace(costs, start_s=start, save_s=save)
            ).found.effective
            for start, save in _GRID
        }
        if arguments.json:
            documents += [
                {
                    "trace": name,
                    "seed": 100 + i,
                    "costs": dataclasses.asdict(costs),
                    "effective": p.found.effective,
                    "seconds": dict(p.found.seconds),
                    "failures": p.num_failures,
                    "woken": p.woken,
                    "rightly": p.rightly,
                }
                for i, p in enumerate(played)
            ]
            continue
        tell(trace_text(played[0]))
        seeds = f"seeds 100-{99 + arguments.seeds}"
        tell(f"  {seeds}: {100 * min(shares):.2f} to {100 * max(shares):.2f} % effective")
        for (start, save), share in grid.items():
            tell(f"  start {start:3g} s, save {save:2g} s: {100 * (share or 0.0):.2f} %")
    if arguments.json:
        print_json({"schema": 1, "results": documents})
    return 0


def _detected_s(path: Path | None) -> float:
    """Return the time from the end of a process to the decision about it, seconds."""
    if path is None:
        results = [
            dataclasses.asdict(d)
            for d in drill([f for f in FAULTS if f.name == "kill"], ["python"])
        ]
    else:
        try:
            results = json.loads(path.read_text(encoding="utf-8"))["results"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{path}: is not what `python -m benchmarks drill --json` prints ({error})"
            ) from error
    times = [
        float(r["detected_s"])
        for r in results
        if r.get("fault") in _DEAD and isinstance(r.get("detected_s"), float)
    ]
    if not times:
        raise ConfigError("goodput-trace: the drill detected none of " + ", ".join(_DEAD))
    return max(statistics.median(times), 0.0)
