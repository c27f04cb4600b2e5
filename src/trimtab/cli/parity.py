"""`trimtab parity`: the same model, batch and steps in every layout.

The first tensor that differs is named.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from trimtab.cli.output import SafeConsole, errors_as_json, print_json
from trimtab.cli.torch_side import (
    add_twin_flags,
    load_function,
    need_torch,
    split_function,
    twin_of,
    users_code,
    within,
)
from trimtab.config_rules.terminal import render_findings

__all__ = ["UserCase", "add"]


_CASE = """\
a LayoutCase, for --python own.py:case (all its fields: pydoc trimtab.model_checks.LayoutCase):

  import torch
  from torch.nn import functional
  from trimtab.model_checks import LayoutCase
  from own_model import Model              # in the same directory, or installed

  def loss(model, tokens):                 # a mean over the batch
      logits = model(tokens[:, :-1])
      return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

  def case():                              # the same model and batch on every call
      torch.manual_seed(0)
      model = Model()
      return LayoutCase(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
                  loss=loss, batch=torch.randint(0, 100, (8, 33)), clip=1.0)
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "parity",
        help="compare one process with DDP, FSDP2 and tensor parallel, step by step",
        epilog=_CASE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_twin_flags(parser)
    parser.add_argument(
        "--python",
        type=split_function,
        metavar="PATH.py:FUNCTION",
        help="run your own code: a function that gives a LayoutCase (trimtab.model_checks)",
    )
    parser.add_argument(
        "--layouts",
        default="ddp,fsdp,tp,tp+sp",
        metavar="LIST",
        help="of ddp, fsdp, tp, tp+sp, fsdp+tp, fsdp+tp+sp; default ddp,fsdp,tp,tp+sp",
    )
    parser.add_argument(
        "--ranks", type=within(2, 64), default=2, help="processes on this machine; default 2"
    )
    parser.add_argument("--steps", type=within(1, 1000), default=3, help="default 3")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class UserCase:
    """The user's own function, loaded anew in each process."""

    path: Path
    name: str

    def __call__(self) -> Any:
        """Run it."""
        function = load_function(self.path, self.name)
        with users_code(f"{self.path}:{self.name}"):
            return function()


def run(arguments: argparse.Namespace) -> int:
    """Compare, and tell."""
    return errors_as_json(arguments, _run)


def _run(arguments: argparse.Namespace) -> int:
    need_torch("`trimtab parity`")
    from trimtab.model_checks.layout_parity import parity
    from trimtab.model_checks.twin_case import TwinCase

    console = SafeConsole(stderr=arguments.json, highlight=False)
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
        told = (
            f"largest relative differences: loss {largest['loss']:.1e}, gradient"
            f" {largest['gradient']:.1e}, update {largest['update']:.1e}"
            if largest
            else result.why
        )
        console.print(
            Text(
                f"{result.layout:<12} {result.ranks} ranks  {result.status:<9} {told} "
                f" ({result.seconds:.1f} s)"
            )
        )
    console.print(render_findings(done.findings, console.width))
    return int(not done.passed)
