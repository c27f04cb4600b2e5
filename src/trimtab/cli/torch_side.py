"""What the commands share that need torch.

Loading it, code that the user asks to run, the twin's flags.
"""

import argparse
import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trimtab.configs import read_config
from trimtab.configs.settings import Setting, Settings
from trimtab.configs.shrink import Twin, shrink
from trimtab.errors import ConfigError, MissingExtraError, TrimtabError

__all__ = [
    "add_twin_flags",
    "load_function",
    "need_torch",
    "split_function",
    "twin_of",
    "users_code",
    "within",
]

_FLAGS = (
    ("hidden", int, "width of the residual stream"),
    ("layers", int, "transformer blocks"),
    ("lr", float, "peak learning rate"),
    ("min_lr", float, "rate at the end"),
    ("warmup_steps", int, ""),
    ("train_steps", int, ""),
    ("beta1", float, ""),
    ("beta2", float, ""),
    ("eps", float, ""),
    ("weight_decay", float, ""),
    ("clip", float, "largest gradient norm"),
    ("init_std", float, "std of the weight init"),
)


def need_torch(what: str, threads: int = 1) -> None:
    """Load torch with so many threads.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        importlib.import_module("torch").set_num_threads(threads)
    except ImportError:
        raise MissingExtraError(what, "torch") from None


def within(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        value = int(text) if text.isdecimal() and len(text) < 20 else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected {low} to {high}")
        return value

    return parse


def split_function(text: str) -> tuple[Path, str]:
    """Return file and function of `path.py:function`, an argument's type."""
    path, _, name = text.rpartition(":")
    if not path.endswith(".py") or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: expected path.py:function")
    return Path(path), name


def load_function(path: Path, name: str) -> Any:
    """Run a file of the user's own, as they asked, and return one of its functions.

    Raises:
        ConfigError: There is no such file, or no such function in it.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    module_name = f"trimtab_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path.resolve())
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path}: cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    folder = str(path.resolve().parent)
    if folder not in sys.path:  # as for a script: its neighbours can be imported
        sys.path.insert(0, folder)
    with users_code(str(path)):
        spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{path}: has no function {name!r}")
    return function


@contextlib.contextmanager
def users_code(what: str) -> Iterator[None]:
    """Run code of the user's: what it prints goes to stderr.

    And whatever it raises is told in one line.

    Raises:
        ConfigError: Names what it raised, and the line of theirs.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (TrimtabError, KeyboardInterrupt):
        raise
    except BaseException as error:
        path = what.rpartition(":")[0] or what
        frames = [
            f
            for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).name == Path(path).name
        ]
        line = f", line {frames[-1].lineno}" if frames else ""
        said = " ".join(str(error).split())[:300]
        name = (
            "ended the program (sys.exit)"
            if isinstance(error, SystemExit)
            else type(error).__name__
        )
        raise ConfigError(f"{what}{line}: {name}{': ' + said if said else ''}") from error


def add_twin_flags(parser: argparse.ArgumentParser) -> None:
    """Add a config, or the settings one by one."""
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="a config of any framework; read, never executed",
    )
    asked = parser.add_argument_group("settings, instead of a config or over it")
    for name, kind, text in _FLAGS:
        asked.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar="N", help=text or None)
    asked.add_argument(
        "--twin-hidden",
        type=within(8, 4096),
        default=64,
        metavar="N",
        help="width of the small twin; default 64",
    )


def twin_of(arguments: argparse.Namespace) -> Twin:
    """Return the small twin of what was asked for.

    Raises:
        ConfigError: The config holds no settings, or one is impossible.
        ReadError: The config cannot be read.
    """
    settings = Settings(path="", framework="flags")
    if arguments.config:
        found = read_config(arguments.config)
        if not found:
            raise ConfigError(f"{arguments.config}: holds no settings that are known")
        settings = found[0]
    for name in ("hidden", "layers", "train_steps"):
        if (value := getattr(arguments, name)) is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} is {value}; give at least 1")
    given = {
        n: Setting(getattr(arguments, n), "stated", f"--{n.replace('_', '-')}")
        for n, _, _ in _FLAGS
        if getattr(arguments, n) is not None
    }
    return shrink(
        replace(settings, values={**settings.values, **given}), hidden=arguments.twin_hidden
    )
