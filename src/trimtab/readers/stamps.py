"""The time that a line of a log carries, in the forms that trainers and schedulers print."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["MONTHS", "Clock", "clock_in", "in_order", "seconds_of", "without_summer_time"]

_DAY_S = 86400.0
_HOUR_S = 3600.0
_SUNDAY = 3
"""Day of the week of 4 January 1970, in days since the first."""
_MIN_ROWS = 3
_MIN_SHARE = 0.9
"""Share of the rows with a clock, in order, below which it is not of their writing."""
_YEAR_S = 366 * _DAY_S
_CHARS = 400
"""A time stands at the beginning of a line, or in a row behind its step."""

_MONTH_NAMES = "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
MONTHS: Final = tuple(_MONTH_NAMES.split("|"))
_DAYS_OF_WEEK = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_FORMS: Final = tuple(
    re.compile(text)
    for text in (
        r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)[ T](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?P<f>[.,]\d{1,9})?\s?(?P<z>Z\b|UTC\b|[+-]\d\d:?\d\d\b)?",
        r"(?P<Y>\d{4})/(?P<m>\d\d)/(?P<d>\d\d)[ T](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?P<f>[.,]\d{1,9})?",
        r"\b(?P<m>\d\d)/(?P<d>\d\d)/(?P<Y>\d{4})[ T-](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)",
        r"^\W{0,3}[IWEF](?P<m>\d\d)(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)?",
        r"^\W{0,3}[IWEF]?(?P<Y>20\d\d)(?P<m>\d\d)(?P<d>\d\d)[ T_-]"
        r"(?P<H>\d\d):?(?P<M>\d\d):?(?P<S>\d\d)(?P<f>[.,]\d{1,6})?(?P<z>Z\b)?(?!\d)",
        rf"^\W{{0,3}}(?:(?P<w>{_DAYS_OF_WEEK}) )?(?P<b>{_MONTH_NAMES}) (?P<d>[ \d]\d) "
        r"(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>[.,]\d{1,6})?(?: (?P<Y>20\d\d))?\b",
        r"^\W{0,3}(?P<u>1[4-9]\d{8})(?![\d,])(?P<f>\.\d{1,3})?",
        r"^\W{0,3}(?P<m>\d\d)/(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?:\s?(?P<p>[AP]M)\b)?",
        r"^\W{0,3}(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>[.,]\d{1,6})?\b",
    )
)
"""ISO 8601 as Python's logging, torchtitan and Megatron print it; slashes as C++ servers do;
month first as Hugging Face; glog; a date and a time in one number each; syslog, and C's `ctime`;
seconds since 1970; detectron2, and DARTS with a clock of twelve hours; a bare time
of day. What has no year gets one of its
own, and a day follows where the time falls back at midnight."""


def clock_in(line: str) -> re.Match[str] | None:
    """Return where the first time of a line stands, with a group for each part; None: nowhere.

    Example:
        >>> found = clock_in("[rank0]: 2026-03-01 09:14:09 step=10 loss=2.5")
        >>> found["Y"], found["H"], found["S"]
        ('2026', '09', '09')
    """
    return next((m for f in _FORMS if (m := f.search(line[:_CHARS])) is not None), None)


class Clock:
    """Reads the times of the lines of one log; knows the form that it found, and midnight."""

    def __init__(self) -> None:
        self._form: int | None = None
        self._last = -math.inf
        self._days = 0.0
        self.whole_seconds = True
        """Whether no time had a fraction."""
        self.has_zone = False
        """Whether times name their zone; else they are taken as UTC."""

    def read(self, line: str) -> float | None:
        """Return the time of a line in seconds since 1970; None where it has none."""
        head = line[:_CHARS]
        forms = range(len(_FORMS)) if self._form is None else (self._form,)
        for i in forms:
            found = _FORMS[i].search(head)
            if found is not None and (at := self._value(found.groupdict())) is not None:
                self._form = i
                return at
        return None

    def _value(self, parts: Mapping[str, str | None]) -> float | None:
        if since_1970 := parts.get("u"):
            self.whole_seconds &= not parts["f"]
            return float(since_1970 + (parts["f"] or ""))
        zone, offset = parts.get("z"), UTC
        if zone and zone not in ("Z", "UTC"):
            minutes = int(zone[1:3]) * 60 + int(zone[-2:])
            offset = timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes))
        named = MONTHS.index(parts["b"]) + 1 if parts.get("b") else 1
        year, month, day = (
            int(parts.get(k) or v) for k, v in (("Y", 1972), ("m", named), ("d", 1))
        )
        hour, minute, second = (int(parts.get(k) or 0) for k in "HMS")
        if half := parts.get("p"):
            hour = hour % 12 + 12 * (half == "PM")
        try:
            at = datetime(year, month, day, hour, minute, second, tzinfo=offset).timestamp()
        except (ValueError, OverflowError):
            return None
        self.has_zone = self.has_zone or bool(zone)
        fraction = parts.get("f")
        if fraction:
            self.whole_seconds = False
            at += float("0." + fraction[1:])
        if parts.get("Y"):
            return at
        # A form without a year, or without a date: it goes on where it falls back by most of it.
        period = _YEAR_S if parts.get("d") else _DAY_S
        at += self._days
        if at < self._last - 0.5 * period:
            self._days += period
            at += period
        self._last = max(self._last, at)
        return at


def seconds_of(value: object) -> float | None:
    """Return a time from a JSON row: seconds, milliseconds or nanoseconds since 1970, or ISO text.

    Example:
        >>> seconds_of(1700000000000), seconds_of("2023-11-14T22:13:20Z"), seconds_of("soon")
        (1700000000.0, 1700000000.0, None)
    """
    if isinstance(value, str):
        try:
            return seconds_of(float(value))
        except ValueError:
            return Clock().read(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    for most, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6), (1e20, 1e9)):
        if 1e8 <= value < most:
            return value / unit
    return None


def in_order(at: NDArray[np.float64]) -> bool:
    """Whether times of rows are those of their writing: nearly all there, and hardly any falls.

    Args:
        at: float64 [n_rows], in seconds; NaN where a row has none.
    """
    known = at[np.isfinite(at)]
    if len(known) < max(_MIN_ROWS, _MIN_SHARE * len(at)):
        return False
    moves = np.diff(known)
    falls = np.count_nonzero(moves < 0)
    return bool(falls <= (1 - _MIN_SHARE) * len(moves) and np.any(moves > 0))


def without_summer_time(at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take out the hour that a clock skips, or goes back, in a night to Sunday."""
    moves = np.diff(at)
    if not len(moves):
        return at
    usual = float(np.median(moves))
    slack = max(60.0, 4.0 * usual)
    away = np.zeros(len(at))
    for i in np.flatnonzero(np.abs(np.abs(moves) - _HOUR_S) <= slack).tolist():
        before, after = at[i], at[i + 1]
        hours = int(after // _HOUR_S) - int(before // _HOUR_S)
        night = before % _DAY_S < 4 * _HOUR_S and int(after // _DAY_S) % 7 == _SUNDAY
        # It turns on the hour: 01:59 is followed by 03:00, or 02:59 by 02:00.
        ahead = moves[i] > 0 and hours == 2
        back = moves[i] < 0 and hours == 0
        passed = moves[i] - (_HOUR_S if ahead else -_HOUR_S)
        if night and (ahead or back) and passed >= 0:
            away[i + 1] = passed - moves[i]
    return at + np.cumsum(away)
