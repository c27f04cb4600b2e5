"""`trimtab doctor`: the packages that trimtab can use, and the hosts of a pool.

`--collect DIR` writes the facts of this host, `--nodes DIR` judges all hosts by them, `--groups`
finds one or two bad hosts by a test on groups of them. `--qualify` tries the guard out here.
"""

import argparse
import os
import platform
import sys
from dataclasses import asdict

from rich.table import Table
from rich.text import Text

from trimtab.cli import doctor_nodes, doctor_qualify
from trimtab.cli.doctor_ready import readiness
from trimtab.cli.output import SafeConsole, print_json
from trimtab.integrations.packages import PACKAGES, State, state_of
from trimtab.version import __version__

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="what is installed here of what trimtab can use, and how to get the rest"
    )
    parser.add_argument("--packages", action="store_true", help="only the packages")
    doctor_qualify.add_options(parser)
    doctor_nodes.add_options(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Look and tell; exit 0 whatever is missing: nothing but the base is needed."""
    if doctor_nodes.is_asked(arguments):
        return doctor_nodes.run(arguments)
    if arguments.qualify:
        return doctor_qualify.run(arguments)
    states = [state_of(package) for package in PACKAGES]
    machine = {} if arguments.packages else _machine()
    ready = () if arguments.packages else readiness(os.environ)
    if arguments.json:
        packages = [
            {
                **asdict(s.package),
                "tested": s.package.tested,
                "installed": s.installed or None,
                "state": s.word,
            }
            for s in states
        ]
        print_json(
            {
                "schema": 1,
                "machine": machine,
                "ready": [{**asdict(r), "found": r.found or None} for r in ready],
                "packages": packages,
            }
        )
        return 0
    console = SafeConsole(highlight=False)
    for name, value in machine.items():
        console.print(Text(f"{name:<12}{value}"), soft_wrap=True)
    for r in ready:
        console.print(Text(f"{r.topic:<21}{r.found or f'nothing is set: {r.do}'}"), soft_wrap=True)
    console.print(_table(states))
    extras = sorted({s.package.extra for s in states if not s.installed})
    if extras:
        console.print(Text(f"missing ones: pip install 'trimtab[{','.join(extras)}]'"))
    return 0


def _machine() -> dict[str, str]:
    """Return what of the machine decides what can run here; torch is asked only where it is."""
    found = {
        "trimtab": __version__,
        "Python": f"{platform.python_version()} at {sys.prefix}",
        "system": f"{platform.system()} {platform.release()}, {os.cpu_count()} cores",
    }
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        return found | {"torch": "not installed: logs, configs and data can be judged, not trained"}
    count = torch.cuda.device_count()
    name = f"{count} × {torch.cuda.get_device_name(0)}" if count else "none: trains on the CPU"
    there = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    backends = [b for b, is_there in there.items() if dist.is_available() and is_there()]
    return found | {"accelerator": name, "ranks by": ", ".join(backends) or "none"}


def _table(states: list[State]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("package", "installed", "tested with", "", "for"):
        table.add_column(column, no_wrap=column != "for")
    for s in states:
        word = "" if s.word == "tested" else s.word
        table.add_row(
            s.package.name, s.installed or "–", s.package.tested, Text(word), s.package.serves
        )
    return table
