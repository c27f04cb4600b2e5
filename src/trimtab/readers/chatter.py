"""Warnings that are printed so often that they drown a log, counted by their wording."""

import re

__all__ = ["Chatter"]

_LINES = 100
_PER_ROW = 5
"""Identical warnings per record from which a log is called noisy. Ours."""
_MAX_WORDINGS = 1_000
_SHOWN = 80
_NUMBER = re.compile(r"\d+")


class Chatter:
    """How often each wording of a warning was seen; its numbers do not count."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def see(self, line: str, *, wording: str = "", times: int = 1) -> None:
        """Count a line, if it is a warning.

        Args:
            line: As printed.
            wording: It without its numbers; empty: taken from the line.
            times: How often it was seen.
        """
        if "arn" not in line and "WARN" not in line and "rror" not in line:
            return
        text = wording or _NUMBER.sub("#", line)
        if text in self._seen or len(self._seen) < _MAX_WORDINGS:
            self._seen[text] = self._seen.get(text, 0) + times

    def notes(self, num_rows: int) -> list[str]:
        """Name the warning that drowns the log: printed many times for each record."""
        text, times = max(self._seen.items(), key=lambda item: item[1], default=("", 0))
        if times < max(_LINES, _PER_ROW * num_rows):
            return []
        shown = text.strip()[:_SHOWN]
        return [
            f"one warning fills the log, {times} lines or {times / max(1, num_rows):.0f} per"
            f" record: {shown!r}; silence it at its source, or send it to a file of its own"
        ]
