"""`trimtab replay FILE`: compute an exported step again; a fault that passes is told from a bug."""

import argparse
from pathlib import Path
from typing import Any

from trimtab.cli.output import errors_as_json, print_json, tell
from trimtab.cli.torch_side import load_function, need_torch, split_function, users_code, within
from trimtab.errors import ConfigError
from trimtab.text import finite_json

__all__ = ["add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "replay",
        help="compute an exported training step again: a passing hardware fault, or the code's",
    )
    parser.add_argument(
        "path", metavar="FILE", type=Path, help="written by trimtab.model_checks.export_step"
    )
    parser.add_argument(
        "--python",
        required=True,
        type=split_function,
        metavar="PATH.py:FUNCTION",
        help="your own code: a function that gives (model, loss_of), loss_of(model, batch)",
    )
    parser.add_argument("--times", type=within(1, 1000), default=3, help="replays; default 3")
    parser.add_argument("--device", default="", help="cpu, cuda, cuda:1; default: the model's")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay, and say what it shows."""
    return errors_as_json(arguments, _run)


def _run(arguments: argparse.Namespace) -> int:
    need_torch("`trimtab replay`")
    from trimtab.model_checks.step_bundle import Outcome, load_step, replay

    bundle = load_step(arguments.path)
    if bundle.machine.get("threads", "").isdecimal():  # sums over other threads round otherwise
        need_torch("`trimtab replay`", min(int(bundle.machine["threads"]), 1024))
    name = f"{arguments.python[0]}:{arguments.python[1]}"
    function = load_function(*arguments.python)
    with users_code(name):
        model, loss_of = _parts(function(), name)
        done = replay(
            bundle, model=model, loss_of=loss_of, times=arguments.times, device=arguments.device
        )

    def shown(outcome: Outcome) -> dict[str, object]:
        return {
            "loss": finite_json(outcome.loss),
            "norm": finite_json(outcome.norm),
            "failed": outcome.failed or None,
            "as_recorded": outcome.same_bits(bundle.recorded),
        }

    if arguments.json:
        print_json(
            {
                "schema": 1,
                "path": str(arguments.path),
                "step": bundle.step,
                "verdict": done.verdict,
                "same_machine": done.same_machine,
                "recorded": shown(done.recorded),
                "replays": [shown(o) for o in done.outcomes],
                "first_difference": done.first_difference or None,
                "here": dict(done.here),
                "there": dict(done.there),
            }
        )
    else:
        tell(done.text())
        tell(f"  recorded  {done.recorded.text()}  ({_where(done.there)})")
        for i, outcome in enumerate(done.outcomes, start=1):
            tell(f"  replay {i}  {outcome.text()}  ({_where(done.here)})")
    return 0 if done.verdict == "reproduced" else 1


def _parts(made: Any, name: str) -> tuple[Any, Any]:
    from torch import nn

    if (
        isinstance(made, tuple)
        and len(made) == 2
        and isinstance(made[0], nn.Module)
        and callable(made[1])
    ):
        return made
    raise ConfigError(f"{name} gives {type(made).__name__}; give (model, loss_of)")


def _where(machine: Any) -> str:
    return ", ".join(machine.get(k, "?") for k in ("host", "device", "torch"))
