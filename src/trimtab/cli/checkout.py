"""Commands that measure trimtab itself; their code is in `benchmarks/` of a checkout.

The installed package does not hold it. It is looked for beside this file's own checkout and nowhere
else, so that a folder `benchmarks` of somebody else's project is never imported.
"""

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from trimtab.errors import ConfigError

__all__ = ["add_missing_command", "load_benchmarks"]

_ROOT = Path(__file__).resolve().parents[3]


def load_benchmarks(name: str) -> ModuleType | None:
    """Return the module `benchmarks.NAME` of this checkout; None outside of one."""
    if not (_ROOT / "benchmarks" / f"{name}.py").is_file():
        return None
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    return importlib.import_module(f"benchmarks.{name}")


def add_missing_command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]", name: str, help_text: str
) -> None:
    """Add a command that says where its code is, for an installation without the checkout."""
    parser = commands.add_parser(name, help=f"{help_text} (in a checkout of the repository)")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="see benchmarks/README.md")
    parser.set_defaults(run=_refuse)


def _refuse(_: argparse.Namespace) -> int:
    raise ConfigError(
        "the benchmarks are not part of the installed package; clone the repository and run "
        "`python -m benchmarks` there"
    )
