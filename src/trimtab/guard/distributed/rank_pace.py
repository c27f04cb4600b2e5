"""Which rank the others wait for, from what each needs before its first collective of a step.

own[rank] = the loop's time between two steps + time to fetch its batch + time of its forward pass,
            seconds of the host

The backward pass ends together on all ranks, so the time of a whole step is the same everywhere and
names nobody. Medians over `_WINDOW` steps are compared; what two windows in a row show is told
once. Blind to a device that is slow while its host runs ahead, and within layouts whose forward
pass has collectives (FSDP, tensor parallel): there the time to fetch is what is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trimtab.readers.rank_times import SLOWER, usual_of

__all__ = ["PaceShare", "RankPace"]

_WINDOW = 32
"""Steps of one comparison. Ours."""
_SHARE = 0.1
"""A rank is slow from `SLOWER` times the usual own time on, if that is so much of a step. Ours."""
_STARVED = 0.25
"""Share of a step spent fetching, on the usual rank, from which training waits for data; and spent
in the loop's own code between steps, from which that is told. Ours."""
_DRIFTED = 1.1


@dataclass(frozen=True)
class PaceShare:
    """Of one rank and step, seconds; NaN where the loop does not tell."""

    data_s: float
    forward_s: float
    between_s: float
    """Of the loop's own, from the end of a step until it asks for the next batch."""
    host: float
    """Number of its host: the same for all ranks there."""


def _medians(rows: list[list[float]]) -> np.ndarray:
    """Return the median of each column, float64 [ranks]; NaN where most of it is not known."""
    table = np.array(rows)
    known = np.isfinite(table)
    return np.array(
        [
            np.median(column[there]) if 2 * there.sum() > len(column) else np.nan
            for column, there in zip(table.T, known.T, strict=True)
        ]
    )


@dataclass
class RankPace:
    """The steps of one window of all ranks, and what was told."""

    _rows: list[tuple[tuple[PaceShare, ...], float]] = field(default_factory=list)
    _slow: frozenset[int] = frozenset()
    """Ranks that were slow in the last window."""
    _starved: bool = False
    _idle: bool = False
    _told: set[object] = field(default_factory=set)
    _first: dict[int, float] = field(default_factory=dict)
    """Times the usual own time that each rank took in its first window."""

    def see(
        self, shares: tuple[PaceShare, ...], step_s: float, *, staged: bool = False
    ) -> tuple[str, ...]:
        """Take in a step; return what is to be told, mostly nothing.

        `staged`: the ranks are stages of a pipeline, which do different work and wait within it.
        """
        if self._rows and len(self._rows[0][0]) != len(shares):
            self._rows = []
        self._rows.append((shares, step_s))
        if len(self._rows) < _WINDOW:
            return ()
        rows, self._rows = self._rows, []
        data = _medians([[p.data_s for p in s] for s, _ in rows])
        forward = _medians([[p.forward_s for p in s] for s, _ in rows])
        between = np.nan_to_num(_medians([[p.between_s for p in s] for s, _ in rows]))
        step = float(np.median([taken for _, taken in rows]))
        if not (np.isfinite(data).all() and np.isfinite(forward).all() and step > 0):
            return ()
        hosts = [p.host for p in rows[-1][0]]
        own = data + forward + between
        return (
            *(() if staged else self._stragglers(own, data, forward, step, hosts)),
            *self._starving(data, step),
            *self._idling(between, step),
        )

    def _stragglers(
        self,
        own: np.ndarray,
        data: np.ndarray,
        forward: np.ndarray,
        step: float,
        hosts: list[float],
    ) -> tuple[str, ...]:
        between = own - data - forward
        usual = usual_of(own)
        over = own - usual
        slow = frozenset(np.flatnonzero((own > SLOWER * usual) & (over > _SHARE * step)).tolist())
        again, self._slow = slow & self._slow, slow
        times = own / max(usual, 1e-9)
        for rank in range(len(own)):
            self._first.setdefault(rank, float(times[rank]))
        if not again or again in self._told:
            return ()
        self._told.add(again)
        worst = max(again, key=lambda rank: float(own[rank]))
        names = ", ".join(map(str, sorted(again)))
        text = (
            f"rank {names} {'is' if len(again) == 1 else 'are'} slow: rank {worst} fetches for"
            f" {_time(data[worst])}, goes forward for {_time(forward[worst])} and"
            f" is in the loop's own code between steps for {_time(between[worst])}, the"
            f" usual rank {_time(np.median(data))}, {_time(np.median(forward))}"
            f" and {_time(np.median(between))}; all wait for about {float(over[worst]) / step:.0%} of a step"
        )
        there = {rank for rank, host in enumerate(hosts) if host == hosts[worst]}
        if len(set(hosts)) > 1 and there <= again:
            text += "; these are all ranks of its host: a slow node"
        if times[worst] > _DRIFTED * self._first[worst] and self._first[worst] < SLOWER:
            text += f"; it was {self._first[worst]:.2f} x the usual at first"
        return (text,)

    def _starving(self, data: np.ndarray, step: float) -> tuple[str, ...]:
        share = usual_of(data) / step
        starved, before = share > _STARVED, self._starved
        self._starved = starved
        if not (starved and before) or "data" in self._told:
            return ()
        self._told.add("data")
        return (f"training waits for data: {share:.0%} of a step is spent fetching the batch",)

    def _idling(self, between: np.ndarray, step: float) -> tuple[str, ...]:
        share = usual_of(between) / step
        idle, before = share > _STARVED, self._idle
        self._idle = idle
        if not (idle and before) or "between" in self._told:
            return ()
        self._told.add("between")
        return (
            f"{share:.0%} of a step is the loop's own code between guard.step() and the next batch"
            " (validation, logging, saving)",
        )


def _time(seconds: float) -> str:
    """Return a time as one reads it; below a tenth of a millisecond it is 0."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-4 else "0 ms"
