"""Columns that say when a row was written: `timestamp`, `time`, `_timestamp`, `logged_at`.

Their names say little: `time` may as well be how long a step took, or how long the run has lasted.
So the values decide: numbers are a clock where they lie in this century as seconds since 1970, or
as thousandths, millionths or billionths of one; text where it has a date and a time of day.
"""

import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
from numpy.typing import NDArray

from trimtab.limits import MAX_CELL_CHARS
from trimtab.readers.stamps import clock_in, in_order, seconds_of, without_summer_time
from trimtab.vocabulary import normalise

__all__ = ["is_clock_key", "since_start", "time_of", "times_of", "written_at"]

Floats = NDArray[np.float64]

_KEYS: Final = frozenset(
    {
        "timestamp",
        "time",
        "ts",
        "datetime",
        "date time",
        "date",
        "wall time",
        "walltime",
        "logged at",
    }
)
_UNITS: Final = (1.0, 1e3, 1e6, 1e9)
_FIRST_S, _LAST_S = 946_684_800.0, 4_102_444_800.0
"""The years 2000 to 2100, in seconds since 1970."""
_BEGIN = datetime(1970, 1, 1)  # noqa: DTZ001 - of times without a zone, which count as UTC
_BEGIN_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING = (np.nan, True)
_TRIED = 8
"""First texts of a column of which one may show that it is none of times."""
_LEAST_CHARS = 15
"""Of a date with a time of day; a date alone is no clock."""


def is_clock_key(key: str) -> bool:
    """Whether a column may say when its rows were written, by its name."""
    return normalise(key) in _KEYS


def time_of(text: str) -> tuple[float, bool] | None:
    """Return the time that a text says in seconds since 1970, and whether it names its zone.

    Without a zone it counts as UTC. None where it has no date, or no time of day.

    Example:
        >>> time_of("2023-11-14T22:13:20Z"), time_of("2023-11-14 22:13:20,500")
        ((1700000000.0, True), (1700000000.5, False))
        >>> time_of("22:13:20") is None, time_of("2023-11-14") is None
        (True, True)
    """
    text = text.strip()
    if not _LEAST_CHARS <= len(text) <= MAX_CELL_CHARS:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        found = clock_in(text)
        if found is None or not found.groupdict().get("Y"):
            return None
        seconds = seconds_of(text)
        return None if seconds is None else (seconds, bool(found.groupdict().get("z")))
    if at.tzinfo is None:
        return (at - _BEGIN).total_seconds(), False
    return (at - _BEGIN_UTC).total_seconds(), True


def times_of(texts: Sequence[str]) -> tuple[Floats, bool] | None:
    """Return the times of a column, and whether one is without its zone; None: not all are times.

    Args:
        texts: Of the rows; an empty one is NaN.
    """
    if any(text and time_of(text) is None for text in texts[:_TRIED]):
        return None
    plain = _plain_times(texts)
    if plain is not None:
        return plain
    said = [time_of(text) if text else _NOTHING for text in texts]
    found = [s for s in said if s is not None]
    if len(found) < len(said):
        return None
    return np.array([s[0] for s in found], dtype=np.float64), any(not s[1] for s in found)


def _plain_times(texts: Sequence[str]) -> tuple[Floats, bool] | None:
    """Return times that are all in ISO 8601 and in one zone, as numpy reads them: all at once."""
    zone = "Z" if texts[0].endswith("Z") else "+00:00" if texts[0].endswith("+00:00") else ""
    if not all(text.endswith(zone) and len(text) >= _LEAST_CHARS for text in texts):
        return None
    if zone:
        texts = [text.removesuffix(zone) for text in texts]
    if any("," in text for text in texts[:_TRIED]):
        texts = [text.replace(",", ".") for text in texts]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # another zone
            at = np.array(texts, dtype="datetime64[us]")
    except (ValueError, Warning):
        return None
    return at.astype(np.int64) / 1e6, not zone


def written_at(values: Floats, *, is_local: bool) -> Floats | None:
    """Return when rows were written, in seconds since 1970; None where the values are no clock.

    Args:
        values: float64 [n], as logged, NaN where there is none.
        is_local: Whether they come from text without a zone, so that summer time makes them jump.
    """
    known = np.flatnonzero(np.isfinite(values))
    unit = _unit_of(values[known]) if len(known) else None
    if unit is None:
        return None
    at = values / unit
    if is_local:
        at[known] = without_summer_time(at[known])
    return at if in_order(at) else None


def since_start(values: Floats) -> Floats | None:
    """Return the seconds since a run began, as logged; None where they do not rise row by row.

    Args:
        values: float64 [n], NaN where there is none.
    """
    known = values[np.isfinite(values)]
    rises = len(known) > 1 and known[0] >= 0 and bool((np.diff(known) > 0).all())
    return values.copy() if rises else None


def _unit_of(values: Floats) -> float | None:
    low, high = float(values.min()), float(values.max())
    return next((u for u in _UNITS if _FIRST_S * u <= low and high < _LAST_S * u), None)
