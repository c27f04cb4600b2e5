"""What a person passes to a call by hand.

Each is taken as the plain value it means, or refused before anything is done.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError
from trimtab.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEAST_RATE_FACTOR", "called", "number", "rate_factor", "reason", "run_folder", "whole"]

_SHOWN = 60
_BLANK_LETTERS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and marks by their kind that show as a blank."""
LEAST_RATE_FACTOR = 1e-9
"""Below it an update is lost in the round-off of the weights (2^-24 in float32). Ours."""


def reason(call: str, why: object) -> None:
    """Refuse what the journal cannot hold as a reason.

    Raises:
        ConfigError: It is no text, one without anything to see, or one that holds a lone surrogate.
    """
    if not isinstance(why, str) or not any(_is_seen(c) for c in why):
        raise ConfigError(f"{call}(why={shown(why)}): expected a reason, as text")
    try:
        why.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{call}(why={shown(why)}): cannot be written as UTF-8 (a lone surrogate); give plain"
            " text"
        ) from error


def _is_seen(character: str) -> bool:
    """Whether a character shows: no blank, no control character, no joiner of zero width."""
    shows = character.isprintable() and not character.isspace()
    # A lone surrogate is refused with a sentence of its own.
    return (shows and character not in _BLANK_LETTERS) or "\ud800" <= character <= "\udfff"


def rate_factor(call: str, value: object) -> float:
    """Return a factor on the learning rate.

    Raises:
        ConfigError: It is not in (0, 1], or so small that nothing would be trained.
    """
    factor = number(call, value)
    if not 0 < factor <= 1:
        raise ConfigError(f"{call}({factor!r}): expected 0 < factor <= 1 (a rate is never raised)")
    if factor < LEAST_RATE_FACTOR:
        raise ConfigError(
            f"{call}({factor!r}): nothing would be trained at such a rate; expected at least"
            f" {LEAST_RATE_FACTOR:g}, or end the run"
        )
    return factor


def called(call: str, schedule: Callable[[int], float]) -> Callable[[int], float]:
    """Return a schedule that says whose fault it is where the user's function raises.

    Raises:
        ConfigError: When it is called, and the function raises.
    """

    def schedule_or_error(step: int) -> float:
        try:
            return schedule(step)
        except Exception as error:
            raise ConfigError(
                f"{call}: the schedule raised {type(error).__name__} ({shown(str(error))}) for"
                f" step {step}; expected a finite number of at least 0"
            ) from error

    return schedule_or_error


def number(call: str, value: object) -> float:
    """Return a number as Python's own, also from NumPy or a tensor of one element.

    NaN and Inf pass.

    Raises:
        ConfigError: It is none: a truth value, a text, a tensor of several elements.

    Example:
        >>> number("scale_lr", 0.5)
        0.5
        >>> number("scale_lr", "0.5")
        Traceback (most recent call last):
        trimtab.errors.ConfigError: scale_lr('0.5'): expected a number
    """
    plain_value = _plain_number(value)
    if plain_value is None:
        raise ConfigError(f"{call}({shown(value)}): expected a number")
    return plain_value


def whole(call: str, value: object) -> int:
    """Return a whole number as Python's own.

    Raises:
        ConfigError: It is none, such as a text, or 2.5.
    """
    plain_value = _plain_number(value)
    if not isinstance(plain_value, int):
        raise ConfigError(f"{call}({shown(value)}): expected a whole number")
    return plain_value


def run_folder(run: object) -> Path:
    """Return the run directory that is meant.

    Raises:
        ConfigError: It is no path, an empty one, one that this file system cannot have, or a file.
    """
    if not isinstance(run, str | os.PathLike) or not os.fspath(run):
        raise ConfigError(
            f'run is {shown(run)}, expected the run\'s own folder, such as "runs/tiny"'
        )
    path = Path(run)
    try:
        if "\0" in str(path):
            raise ValueError("it holds a NUL character")
        there = next((p for p in (path, *path.parents) if p.exists()), path)
        is_file = there.exists() and not there.is_dir()
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"run is {shown(run)}, which can be no folder here ({what}); choose another name"
        ) from error
    if is_file:
        lies = "a file" if there == path else f"within {shown(str(there))}, which is a file"
        raise ConfigError(
            f"run is {shown(run)}, {lies}; expected a folder of the run's own, which may not exist"
            ' yet, such as "runs/tiny"'
        )
    return path


def shown(value: object) -> str:
    """Return a value for a message: one line, not long."""
    try:
        return plain(repr(value), limit=_SHOWN)
    except Exception:  # noqa: BLE001 - somebody else's __repr__
        return type(value).__name__


def _plain_number(value: object) -> int | float | None:
    if isinstance(value, str | bytes):
        return None
    item = getattr(value, "item", None)  # of a NumPy scalar, or a tensor
    if callable(item):
        try:
            value = item()
        except (RuntimeError, ValueError, TypeError):  # more than one element
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value
