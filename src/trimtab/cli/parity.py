"""`trimtab parity`: the same model, batch and steps in every layout; the first tensor that differs is named."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from trimtab.cli.output import print_json
from trimtab.cli.torch_side import (
    add_twin_flags,
    load_function,
    need_torch,
    split_function,
    twin_of,
    within,
)
from trimtab.preflight.terminal import render_findings

__all__ = ["UserCase", "add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("parity", help="compare one process with DDP, FSDP2 and tensor parallel, step by step")  # fmt: skip
    add_twin_flags(parser)
    parser.add_argument("--python", type=split_function, metavar="PATH.py:FUNCTION", help="run your own code: a function that gives a Case (trimtab.preflight.probes.parity)")  # fmt: skip
    parser.add_argument("--layouts", default="ddp,fsdp,tp,tp+sp", metavar="LIST", help="of ddp, fsdp, tp, tp+sp, fsdp+tp, fsdp+tp+sp; default ddp,fsdp,tp,tp+sp")  # fmt: skip
    parser.add_argument(
        "--ranks", type=within(2, 64), default=2, help="processes on this machine; default 2"
    )
    parser.add_argument("--steps", type=within(1, 1000), default=3, help="default 3")
    parser.add_argument("--json", action="store_true", help="print one JSON document (docs/formats.md)")  # fmt: skip
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class UserCase:
    """The user's own function, loaded anew in each process."""

    path: Path
    name: str

    def __call__(self) -> Any:
        """Run it."""
        return load_function(self.path, self.name)()


def run(arguments: argparse.Namespace) -> int:
    """Compare, and tell."""
    need_torch("`trimtab parity`")
    from trimtab.preflight.probes.parity import parity
    from trimtab.preflight.probes.twin_case import TwinCase

    console = Console(stderr=arguments.json, highlight=False)
    build: Any
    if arguments.python:
        build = UserCase(*arguments.python)
        load_function(*arguments.python)  # so that a wrong name is told before ranks start
    else:
        build = TwinCase(twin_of(arguments))
    done = parity(build, arguments.layouts.split(","), ranks=arguments.ranks, steps=arguments.steps)
    if arguments.json:
        print_json({"schema": 1, **done.to_json()})
        return int(not done.passed)
    for result in done.layouts:
        largest = result.largest or {}
        told = f"largest relative differences: loss {largest['loss']:.1e}, gradient {largest['gradient']:.1e}, update {largest['update']:.1e}" if largest else result.why  # fmt: skip
        console.print(Text(f"{result.layout:<12} {result.ranks} ranks  {result.status:<9} {told}  ({result.seconds:.1f} s)"))  # fmt: skip
    console.print(render_findings(done.findings, console.width))
    return int(not done.passed)
