"""Times of each rank, as Megatron's timers print them, and the rank that the others wait for.

own[rank] = batch-generator + forward-compute + backward-compute, of one reading

A step takes as long on all ranks, since they wait for each other: what a rank does by itself tells.
`--timing-log-option all` names the ranks, `minmax` (the default) says how far they lie apart, and
both want `--timing-log-level 2`. Blind where every reading is of another slow rank. A table may
say itself which rank took longest (`slowest_note`).
"""

import re
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.text import number
from trimtab.vocabulary import canonical, normalise

__all__ = ["SLOWER", "RankTimes", "over_ranks", "slowest_note", "usual_of"]

SLOWER = 1.25
"""A rank is slow from so many times the usual own time on. Ours."""
_READINGS, _SHARE = 5, 0.8
"""Fewest readings that tell, and the share of them in which a rank has to be slow. Ours."""
_OF_WORK = 0.1
"""Share of all own work from which on a difference between ranks counts. Ours."""
_MOST_READINGS = 512
_OWN = ("batch-generator", "forward-compute", "backward-compute")
_NEWEST = 0.25
"""Share of the rows that say how it is now. Ours."""
_SLOWEST = re.compile(r"(?:\w+ )?(?:slowest|straggler|lagging)(?: (?:rank|worker|process))(?: id)?")
_LEAST = re.compile(r"\b(?:min|fastest)\b ?")
_TIMER = re.compile(r"(?:^|\s)([\w-]+):\s*$")
_RANK = re.compile(r"(?:^|\s)rank\s+(\d{1,6}): (\d+(?:\.\d+)?)\s*$")
_RANGE = re.compile(r"(?:^|\s)([\w-]+) \.*: \((\d+(?:\.\d+)?), (\d+(?:\.\d+)?)\)\s*$")


def usual_of(own: NDArray[np.float64]) -> float:
    """Return the own time of the usual rank: of two ranks, that of the faster one."""
    return float(np.sort(own)[(len(own) - 1) // 2])


def over_ranks(key: str) -> str:
    """Return what a column says of the times of all ranks: `who`, `least`; empty: of neither.

    Example:
        >>> [over_ranks(k) for k in ("slowest_rank", "step_time_min", "rank")]
        ['who', 'least', '']
    """
    text = normalise(key)
    if _SLOWEST.fullmatch(text):
        return "who"
    rest = _LEAST.sub("", text).strip()
    return "least" if rest != text and canonical(rest) == "step_time_s" else ""


def slowest_note(
    who: NDArray[np.float64], least: NDArray[np.float64], most: NDArray[np.float64]
) -> str:
    """Return what to say of a rank that has been the slowest again and again; empty: of none.

    Args:
        who: float64 [n_rows], the slowest rank, as logged.
        least: float64 [n_rows], what the fastest rank takes, or all of them on average.
        most: float64 [n_rows], what the slowest takes, in the same unit.

    Non-finite: such rows are left out.
    """
    rows = np.flatnonzero(np.isfinite(who) & (least > 0) & np.isfinite(most))
    rows = rows[-min(_MOST_READINGS, int(_NEWEST * len(rows))) :] if len(rows) else rows
    if len(rows) < _READINGS:
        return ""
    ranks, counts = np.unique(who[rows], return_counts=True)
    share = float(counts.max()) / len(rows)
    apart = float(np.median(most[rows] / least[rows]))
    if share < _SHARE or apart < SLOWER:
        return ""
    return (
        f"rank {ranks[counts.argmax()]:g} is slow: it is the slowest in {share:.0%} of the newest"
        f" {len(rows)} rows, and the slowest takes {apart:.2f} x as long (median); the others wait"
        " for it"
    )


@dataclass
class _Reading:
    own: dict[int, float] = field(default_factory=dict)
    """Milliseconds of each rank."""
    apart: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Smallest and largest time of each timer of own work, ms."""

    def farthest(self) -> tuple[str, float]:
        """Return the timer whose ranks lie farthest apart, and how many times; 1: none counts."""
        total = sum(high for _, high in self.apart.values())
        told = {n: b / a for n, (a, b) in self.apart.items() if b - a >= _OF_WORK * total}
        return max(told.items(), key=lambda timer: timer[1], default=("", 1.0))


@dataclass
class RankTimes:
    """The newest readings of one log."""

    _open: bool = False
    _timer: str = ""
    _readings: deque[_Reading] = field(default_factory=lambda: deque(maxlen=_MOST_READINGS))

    def see(self, line: str) -> None:
        """Look at one line that is no record."""
        if "across ranks (ms)" in line:
            self._open, self._timer = True, ""
            self._readings.append(_Reading())
        elif self._open:
            self._open = self._see_time(line)

    def _see_time(self, line: str) -> bool:
        """Take a line of a reading; tell whether it is one."""
        if (found := _RANK.search(line)) is not None:
            if self._timer in _OWN:
                rank, own = int(found[1]), self._readings[-1].own
                own[rank] = own.get(rank, 0.0) + float(found[2])
            return True
        if (found := _RANGE.search(line)) is not None:
            low, high = float(found[2]), float(found[3])
            if found[1] in _OWN and low > 0:
                self._readings[-1].apart[found[1]] = (low, high)
            return True
        found = _TIMER.search(line)
        self._timer = "" if found is None else found[1]
        return found is not None

    def notes(self) -> list[str]:
        """Name the slow ranks, or say how far the ranks lie apart; empty: nothing shows."""
        whole = [r.own for r in self._readings if len(r.own) > 1]
        ranks = sorted(set.intersection(*map(set, whole))) if whole else []
        if len(whole) >= _READINGS and len(ranks) > 1:
            return self._slow(np.array([[own[rank] for rank in ranks] for own in whole]), ranks)
        told = [r.farthest() for r in self._readings if r.apart]
        far = float(np.median([times for _, times in told])) if told else 0.0
        if len(told) < _READINGS or far < SLOWER:
            return []
        name = max(told, key=lambda timer: timer[1])[0]
        return [
            f"{name} takes {far:.2f} x as long on one rank as on another (median of"
            f" {len(told)} readings): stages of a pipeline may, others wait for it;"
            " --timing-log-option all names it"
        ]

    @staticmethod
    def _slow(own: NDArray[np.float64], ranks: list[int]) -> list[str]:
        """Judge own times, float64 [readings, ranks], ms."""
        usual = np.array([usual_of(reading) for reading in own])
        share = (own > SLOWER * usual[:, None]).mean(0)
        slow = np.flatnonzero(share >= _SHARE)
        level = np.median(own, 0)
        if not len(slow):
            return []
        worst = slow[np.argmax(level[slow])]
        names = ", ".join(str(ranks[i]) for i in slow[:8])
        return [
            f"rank {names} {'is' if len(slow) == 1 else 'are'} slow: the own work of rank"
            f" {ranks[worst]} takes {number(float(level[worst]))} ms, that of the usual rank"
            f" {number(float(np.median(usual)))} ms (median of {len(own)} readings); the others"
            " wait for it, unless its stage has more to do"
        ]
