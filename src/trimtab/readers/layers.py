"""Per-block measurements of a run: signals/layers/ATTEMPT.jsonl of a run directory.

One line per reading: {"step": 40, "grad_norm": [0.1, 0.2, ...], ...}, a list with one value for
each block of the model, first block first. It is read apart from the record, whose signals are one
value per step. A fault in it never costs the record: unreadable lines are left out and counted.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.base import TextLines
from trimtab.readers.jsonl import parse_object
from trimtab.readers.numbers import BadNumberError, counted, parse_number

__all__ = ["LayerReadings", "read_layers"]

MAX_LAYERS = 4_096
"""Blocks read of one list; no model has more, and a longer list is cut."""

_ATTEMPT = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")


@dataclass(frozen=True, kw_only=True)
class LayerReadings:
    """One quantity of every block over one attempt."""

    name: str
    """As logged: grad_norm, activation_rms, attention_entropy ..."""
    attempt: str
    """Number of the attempt."""
    step: NDArray[np.float64]
    """float64 [n_readings], rising."""
    values: NDArray[np.float64]
    """float64 [n_readings, n_layers]; NaN and Inf as logged, NaN also where a list was shorter."""


def read_layers(path: Path) -> tuple[tuple[LayerReadings, ...], tuple[str, ...]]:
    """Return (readings, notes) of a run directory; nothing where nothing was recorded.

    A step that was read twice (a launch that continued after a kill) has its last reading. Lines
    that do not parse and steps that are not finite are left out and counted in a note.

    Cost: O(size of the files); as much memory as the numbers need.
    """
    folder = path / "signals" / "layers"
    # A run directory may come from someone else: a link must not lead out of it.
    if not folder.is_dir() or folder.is_symlink() or folder.parent.is_symlink():
        return (), ()
    found: list[LayerReadings] = []
    notes: list[str] = []
    for file in sorted(folder.glob("*.jsonl")):
        if file.is_symlink() or not _ATTEMPT.fullmatch(file.stem):
            continue
        rows: dict[str, dict[float, list[float]]] = {}
        num_bad = 0
        for line in TextLines(file):
            reading = _reading(parse_object(line))
            if reading is None:
                num_bad += bool(line.strip())
                continue
            step, lists = reading
            for name, values in lists:
                # The later line wins: it is that of the launch that went on.
                rows.setdefault(name, {})[step] = values
        found += [_readings(name, file.stem, by_step) for name, by_step in rows.items()]
        if num_bad:
            notes.append(f"layers/{file.name}: {counted(num_bad, 'line')} left out, not readable")
    return tuple(found), tuple(notes)


def _reading(row: dict[str, object] | None) -> tuple[float, list[tuple[str, list[float]]]] | None:
    """Return (step, lists by name) of one line; None for any other line."""
    step = None if row is None else row.get("step")
    if row is None or isinstance(step, bool) or not isinstance(step, int | float):
        return None
    try:
        place = float(step)
        lists = [
            (str(name), [_value(v) for v in values[:MAX_LAYERS]])
            for name, values in row.items()
            if isinstance(values, list) and values
        ]
    except (BadNumberError, OverflowError):
        return None
    return (place, lists) if math.isfinite(place) else None


def _value(value: object) -> float:
    """Return one value of a list; null means NaN, which JSON lacks."""
    number = None if value is None else parse_number(value)
    return math.nan if number is None else number


def _readings(name: str, attempt: str, by_step: dict[float, list[float]]) -> LayerReadings:
    steps = sorted(by_step)
    values = np.full((len(steps), max(len(v) for v in by_step.values())), np.nan)
    for row, step in enumerate(steps):
        values[row, : len(by_step[step])] = by_step[step]
    return LayerReadings(
        name=name, attempt=attempt, step=np.asarray(steps, dtype=np.float64), values=values
    )
