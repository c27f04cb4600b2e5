"""`python -m benchmarks slurm-drill`: the drill's faults under a real SLURM."""

import argparse
import dataclasses

from benchmarks.slurm_drill import SLURM_FAULTS, has_slurm, slurm_drill, slurm_text
from trimtab.cli.output import print_json, tell
from trimtab.errors import ConfigError

__all__ = ["add"]


def add(parts: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the part `slurm-drill`."""
    names = [fault.name for fault in SLURM_FAULTS]
    parser = parts.add_parser(
        "slurm-drill", help="the drill's faults, time limit and lost hosts under a real SLURM"
    )
    parser.add_argument("--faults", metavar="NAME", nargs="+", choices=names, default=names)
    parser.add_argument("--limit", metavar="S", type=float, default=300.0, help="seconds a job")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not has_slurm():
        raise ConfigError(
            "slurm-drill: no SLURM with an idle host answers here; docs/recipes/slurm.md says how"
            " to start one on one machine"
        )
    faults = [fault for fault in SLURM_FAULTS if fault.name in arguments.faults]
    found = slurm_drill(faults, limit_s=arguments.limit)
    if arguments.json:
        print_json({"schema": 1, "results": [dataclasses.asdict(d) for d in found]})
    else:
        tell(slurm_text(found))
    return int(not all(d.right for d in found))
