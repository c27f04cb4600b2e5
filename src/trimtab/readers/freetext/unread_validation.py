"""Lines that name held-out data and a loss beside a number, of which no number is read."""

import re
from collections.abc import Sequence

from trimtab.readers.freetext.keys import is_held_out
from trimtab.readers.numbers import counted, shown

__all__ = ["HELD_OUT_UNREAD", "UnreadValidation", "may_be_validation"]

HELD_OUT_UNREAD = "with a loss of held-out data are in a form that is not read"

_LOSS = re.compile(
    r"loss|\bnll\b|xent|cross[ _-]?entropy|perplexity|\bppl\b|\b(?:mse|mae|rmse|bpb|bpc|elbo|bce)\b",
    re.IGNORECASE,
)
_FRACTION = re.compile(r"[-+]?\d*\.\d.*|[-+]?(?:nan|inf)", re.IGNORECASE)
_MOST = 1_000
_LONGEST, _FEWEST = 300, 3
"""Characters of a line; lines of one wording below which they are prose. Ours."""


def may_be_validation(texts: Sequence[str], numbers: Sequence[str]) -> bool:
    """Whether a line has words of held-out data and of a loss, and a number with a fraction.

    Args:
        texts: What stands in front of, between and behind the numbers.
        numbers: As printed.
    """
    if sum(map(len, texts)) > _LONGEST or not any(_FRACTION.fullmatch(n.strip()) for n in numbers):
        return False
    return _LOSS.search(" ".join(texts)) is not None and any(map(is_held_out, texts))


class UnreadValidation:
    """Counts such lines by their wordings."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, ...], tuple[int, int, str]] = {}

    def __bool__(self) -> bool:
        return bool(self._seen)

    def __contains__(self, wording: tuple[str, ...]) -> bool:
        return wording in self._seen

    def begin(self, wording: tuple[str, ...], line: str, number: int) -> None:
        """Take note of a wording, of at most 1,000."""
        if len(self._seen) < _MOST:
            self._seen.setdefault(wording, (0, number, line.strip()))

    def see(self, wording: tuple[str, ...]) -> None:
        """Count a line of a wording."""
        times, number, line = self._seen[wording]
        self._seen[wording] = times + 1, number, line

    def notes(self) -> list[str]:
        """Say how many lines were left out, and what the first of them is."""
        often = [s for s in self._seen.values() if s[0] >= _FEWEST]
        if not often:
            return []
        num, (_, number, line) = sum(s[0] for s in often), min(often, key=lambda s: s[1])
        return [
            f"{counted(num, 'line')} {HELD_OUT_UNREAD}, the first is line {number}: {shown(line)}"
        ]
