"""Where a scan may write: never over its data, never over a file that is not its own."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from trimtab.data_scan.state import load_state
from trimtab.errors import ConfigError, ReadError
from trimtab.plan.skiplist import read_skip_list

__all__ = ["check_skip_place", "check_state_place", "is_own_file"]

_SKIP_START = b'{"schema": 1, "kind": "skip-list"'


def check_skip_place(path: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write a skip list where something else is, or nothing can be.

    Raises:
        ConfigError: Says which.
    """
    _check(path, inputs, "--write-skip", "a skip list", read_skip_list)


def check_state_place(path: Path, inputs: Iterable[Path]) -> None:
    """Refuse to note a scan's state where something else is, or nothing can be.

    Raises:
        ConfigError: Says which.
    """
    _check(path, inputs, "--state", "the state of a scan", load_state)


def _check(
    path: Path, inputs: Iterable[Path], option: str, kind: str, read: Callable[[Path], object]
) -> None:
    if path.is_dir():
        raise ConfigError(f"{option} {path}: is a directory; give the name of a file")
    if not path.parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no directory {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"{option} {path}: nothing may be written in {path.parent}")
    if not os.path.lexists(path):
        return
    for given in inputs:
        if given.exists() and path.exists() and given.samefile(path):
            raise ConfigError(
                f"{option} {path}: is data to be scanned; give the name of a new file"
            )
    try:
        read(path)
    except ReadError as error:
        raise ConfigError(
            f"{option} {path}: is there and is not {kind}; it is left as it is: give another name"
        ) from error


def is_own_file(path: Path) -> bool:
    """Whether a file in a directory of data is a skip list or a state that a scan left there."""
    if path.name.endswith(".state.npz"):
        try:
            load_state(path)
        except ReadError:
            return False
        return True
    if path.suffix != ".json":
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_SKIP_START)) == _SKIP_START
    except OSError:
        return False
