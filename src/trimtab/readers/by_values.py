"""Keys whose words say too little, and whose values decide: `scaler`, `time`, `sec`, `elapsed`.

`time` may be a clock, how long the run has lasted, or how long a step took. What falls about as
often as it rises adds up to nothing, and is the time of a step. What a scaler of fp16 holds is a
power of two in every row.
"""

import re
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.numbers import shown
from trimtab.record import Column
from trimtab.vocabulary import normalise

__all__ = [
    "is_guessed_time",
    "is_scale",
    "is_time_of_step",
    "may_be_scaler",
    "may_be_timed",
    "named_by_values",
    "note_by_values",
]

Floats = NDArray[np.float64]

_TIMED = re.compile(
    r"(?:(?:train|training)[ /])?(?:(?:batch|iter|iteration|step|elapsed) )?"
    r"(?:secs?|seconds|s|dt|time|elapsed|runtime|took)"
    r"(?: (?:taken|elapsed|spent))?(?: ?\(?(?:s|secs?|seconds|ms|msec)\)?)?"
)
_BARE = frozenset({"dt", "time"})
_SCALERS = frozenset({"scaler", "amp scaler", "grad scaler", "gradscaler", "fp16 scaler", "amp"})
_FEWEST, _EVEN = 16, 0.6
"""Values, and falls by rises or rises by falls, from which on they do not add up. Ours."""
_SCATTER, _HELD = 0.28, 0.5
"""Of the level, by which single steps differ at most; and moves that are none. Ours."""
_LONGEST_S = 1e6
_FEWEST_SCALES = 8


def may_be_timed(key: str) -> bool:
    """Whether a key may be that of the time of a step, by its words.

    Example:
        >>> [may_be_timed(k) for k in ("sec", "time (ms)", "train/time", "epoch_time", "s", "eta")]
        [True, True, True, False, False, False]
    """
    name = normalise(key)
    return name != "s" and _TIMED.fullmatch(name) is not None


def may_be_scaler(key: str) -> bool:
    """Whether a key may be that of the scaler of fp16, by its words."""
    return normalise(key) in _SCALERS


def is_time_of_step(values: Floats) -> bool:
    """Whether what is called a time falls about as often as it rises, and is no clock.

    Args:
        values: float64 [n], as logged, in the order of the rows.
    """
    values = values[np.isfinite(values)]
    if len(values) < _FEWEST or values.min() < 0 or not 0 < np.median(values) < _LONGEST_S:
        return False
    # The length of a recording, or a time that is sampled, scatters; a step takes what it takes.
    moves = np.diff(values)
    if float(np.median(np.abs(moves))) > _SCATTER * float(np.median(values)):
        return False
    if (moves == 0).mean() > _HELD:
        return False
    falls, rises = int((moves < 0).sum()), int((moves > 0).sum())
    return min(falls, rises) >= _EVEN * max(falls, rises) > 0


def is_guessed_time(keys: Mapping[str, str]) -> bool:
    """Whether what is read as the time of a step is called so by its values alone: a solver's `dt`.

    Args:
        keys: Signal -> key, of a record.
    """
    return normalise(keys.get("step_time_s", "")) in _BARE


def is_scale(values: Floats) -> bool:
    """Whether all values are powers of two, and begin above one: those of a loss scale."""
    values = values[np.isfinite(values)]
    if len(values) < _FEWEST_SCALES or not values.min() > 0 or values[0] <= 1:
        return False
    powers = np.log2(values)
    return bool((powers == np.round(powers)).all())


def named_by_values(
    columns: Mapping[str, Column], loss: Column, found: Collection[str]
) -> dict[str, str]:
    """Return signal -> key of those that are told by their values, on the rows of the loss.

    Args:
        columns: By key, of keys that no signal takes, all of the same rows.
        loss: The training loss of these rows.
        found: Signals that are known without.
    """
    rows = np.flatnonzero(loss.present)
    named: dict[str, str] = {}
    for key, column in columns.items():
        beside = column.values[rows[column.present[rows]]]
        if 2 * len(beside) < len(rows):
            continue
        if may_be_timed(key) and is_time_of_step(beside):
            named.setdefault("step_time_s", key)
        if normalise(key).rpartition("/")[2] in _SCALERS and is_scale(beside):
            named.setdefault("loss_scale", key)
    return {name: key for name, key in named.items() if name not in found}


def note_by_values(name: str, key: str) -> str:
    """Say why a key is read as a signal."""
    if name == "step_time_s":
        return f"{shown(key)} does not add up over the rows: read as the time of a step"
    return f"{shown(key)} is a power of two in every row: read as the loss scale"
