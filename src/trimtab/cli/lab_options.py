"""Options and loading that `trimtab lab` shares with the measurements in `benchmarks/`."""

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from trimtab.errors import MissingExtraError

__all__ = ["add_training_options", "load_lab", "whole_number"]


def add_training_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what to train on, with how many threads."""
    parser.add_argument(
        "--text",
        metavar="PATH",
        type=Path,
        help="file or directory of text; default: the standard library's own sources",
    )
    parser.add_argument(
        "--threads",
        type=whole_number(1, 256),
        default=1,
        help=(
            "CPU threads; default 1: on small models more gain little, and lose much beside other"
            " work"
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )


def load_lab(module: str, threads: int) -> ModuleType:
    """Return a module of the lab that needs torch.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise MissingExtraError("`trimtab lab`", "torch") from None
    if threads > 0:
        torch.set_num_threads(threads)
    return importlib.import_module(module)


def whole_number(low: int, high: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(text: str) -> int:
        value = int(text) if text.lstrip("-").isdecimal() and len(text) < 20 else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r}: expected {low} to {high}")
        return value

    return parse
