"""Lines that are drawn over, or that say again what a line before has said: no rows of their own."""

import re
from collections.abc import Iterable, Iterator

__all__ = ["OPEN_BAR", "last_states"]

_KERAS_BAR = re.compile(r"\s*\d+/(\d+) \[[=>.]*\] - ")
"""Keras draws its bar anew for each batch, with means over the epoch so far."""
OPEN_BAR = " - ETA:"
"""What a bar has that is not full."""
_BEST = re.compile(r"\bbest (?:iteration|epoch|step|round)s?\b[^\d]{0,20}:\s*\Z", re.IGNORECASE)
"""A line behind which one that was printed before stands once more, as LightGBM does."""


def last_states(lines: Iterable[str], *, every_state: bool) -> Iterator[str]:
    """Yield lines, and empty ones in the place of those that are no rows.

    Of the states of one Keras bar the last one counts, whether the epoch was finished or not: what
    it shows is the mean over the epoch so far, so that the others are parts of it. With
    `every_state` all of them stay.
    """
    held: str | None = None
    best = False
    for line in lines:
        is_bar = "[" in line and _KERAS_BAR.match(line) is not None
        if held is not None:
            # Drawn over by the next state; all else comes behind it, and leaves it as it is.
            yield "" if is_bar else held
            held = None
        if is_bar and OPEN_BAR in line and not every_state:
            held = line
            continue
        if best:
            best = False
            yield ""
            continue
        best = "est " in line and _BEST.search(line) is not None
        yield line
    if held is not None:
        yield held
