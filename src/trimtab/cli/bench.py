"""`trimtab bench …`: forwards to `benchmarks`, which measures trimtab and is part of a checkout."""

import argparse
import importlib
from importlib.util import find_spec

from trimtab.errors import ConfigError

__all__ = ["add"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command; its parts come from `benchmarks` where that can be imported."""
    if find_spec("benchmarks.cli") is not None:
        importlib.import_module("benchmarks.cli").add(commands)
        return
    parser = commands.add_parser(
        "bench", help="measure trimtab beside published rules; needs a checkout of the repository"
    )
    parser.add_argument("parts", nargs=argparse.REMAINDER, help="see benchmarks/README.md")
    parser.set_defaults(run=_refuse)


def _refuse(_: argparse.Namespace) -> int:
    raise ConfigError(
        "trimtab bench: the benchmarks are not part of the installed package; run "
        "`python -m benchmarks` in a checkout of the repository"
    )
