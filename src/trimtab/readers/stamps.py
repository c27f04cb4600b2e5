"""The time that a line of a log carries, in the forms that trainers and schedulers print."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

__all__ = ["Clock", "clock_in", "seconds_of"]

_DAY_S = 86400.0
_YEAR_S = 366 * _DAY_S
_CHARS = 400
"""A time stands at the beginning of a line, or in a row behind its step."""

_FORMS: Final = tuple(
    re.compile(text)
    for text in (
        r"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)[ T](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?P<f>[.,]\d{1,9})?\s?(?P<z>Z\b|UTC\b|[+-]\d\d:?\d\d\b)?",
        r"(?P<Y>\d{4})/(?P<m>\d\d)/(?P<d>\d\d)[ T](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?P<f>[.,]\d{1,9})?",
        r"\b(?P<m>\d\d)/(?P<d>\d\d)/(?P<Y>\d{4})[ T-](?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)",
        r"^\W{0,3}[IWEF](?P<m>\d\d)(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>\.\d+)?",
        r"^\W{0,3}(?P<m>\d\d)/(?P<d>\d\d) (?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)"
        r"(?:\s?(?P<p>[AP]M)\b)?",
        r"^\W{0,3}(?P<H>\d\d):(?P<M>\d\d):(?P<S>\d\d)(?P<f>[.,]\d{1,6})?\b",
    )
)
"""ISO 8601 as Python's logging, torchtitan and Megatron print it; slashes as C++ servers do;
month first as Hugging Face; glog; detectron2, and DARTS with a clock of twelve hours; a bare time
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
        zone, offset = parts.get("z"), UTC
        if zone and zone not in ("Z", "UTC"):
            minutes = int(zone[1:3]) * 60 + int(zone[-2:])
            offset = timezone(timedelta(minutes=-minutes if zone[0] == "-" else minutes))
        year, month, day = (int(parts.get(k) or v) for k, v in (("Y", 1972), ("m", 1), ("d", 1)))
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
