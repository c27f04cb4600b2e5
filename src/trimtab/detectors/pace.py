"""Pace: steps that become slower for good, single slow steps, and long silences.

    y = log(step time / batch size)  or  -log(throughput)          so that no unit matters

Rows are folded into blocks of 16. A block is slow when its median is `slow_share` above the median
of the last four calm blocks, beyond `threshold_sigma` times the spread from block to block, and
when its lower quartile lies above their upper quartiles: a pace that swings between two values in
healthy times is not slow for swinging. Two slow blocks in a row are a slowdown. It ends when a
block is back; sixteen slow blocks make the new level (reported once). One that ended before that is
a note. So is a run of 16 rows in a row, however they lie in the blocks, that are all
slower by half of `slow_share` and than the usual upper quartile, and whose median is slow as a
block's would be.

A single row at `stall_factor` times its level (a save, an evaluation, the compilation at the first
step) is a note, reported only when it is twice as slow as all before. At `hang_s` and `hang_factor`
times the level it is a silence that somebody should look at; the log continued, so it is no alarm
to act on.

Blind to a pace that creeps: the reference moves along. Delay: two blocks.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import joined
from trimtab.detectors.contract import Finding, Row, Rows, changed
from trimtab.errors import ConfigError
from trimtab.signals.robust import difference_sigma, median
from trimtab.vocabulary import Severity

__all__ = ["Pace", "PaceDetector", "PaceState"]

_PAST = 24
_TWICE = math.log(2.0)


@dataclass(frozen=True)
class Pace:
    """What is known of one signal: blocks of y, the row under way, the slowdown under way."""

    rows: NDArray[np.float64]
    """float64 [block_rows], the block under way."""
    past: NDArray[np.float64]
    """float64 [<= 24], medians of calm blocks, oldest first."""
    high: NDArray[np.float64]
    """float64 [<= 24], their upper quartiles."""
    flagged: NDArray[np.float64]
    """float64 [<= accept_blocks], medians of slow blocks."""
    level: float = 0.0
    """Median of the last four blocks of `past`."""
    num_rows: int = 0
    first_row: int = 0
    first_step: float = 0.0
    onset_row: int = -1
    onset: float = 0.0
    peak_row: int = 0
    peak: float = 0.0
    ref: float = 0.0
    score: float = 0.0
    worst: float = 0.0
    """Slowest single row reported so far, as the log of its ratio to the level."""
    slow_rows: int = 0
    """Rows over in a row, where they began, and the slowest of them."""
    slow_row: int = 0
    slow_step: float = 0.0
    slow_y: float = 0.0
    run: tuple[float, ...] = ()
    """Rows that are slow one after the other, oldest first, where they began, and whether it was
    reported; no more than a block of them is kept."""
    run_row: int = 0
    run_step: float = 0.0
    run_told: bool = False


def _without_run(p: Pace) -> Pace:
    return changed(p, run=(), run_row=0, run_step=0.0, run_told=False) if p.run else p


@dataclass(frozen=True)
class PaceState:
    """One `Pace` per timed signal, and the batch size that was logged last (1: none)."""

    paces: tuple[Pace, ...]
    batch: float = 1.0


@dataclass(frozen=True, kw_only=True)
class PaceDetector:
    """See the module."""

    name: str = "pace"
    signals: tuple[str, ...] = ("step_time_s", "throughput", "batch_size")
    block_rows: int = 16
    min_blocks: int = 4
    """Calm blocks needed before anything is called slow."""
    slow_share: float = 0.15
    """Smallest slowdown that matters: BLOOM's engineers went looking for bad nodes at 6 to 25 %."""
    threshold_sigma: float = 6.0
    """As in `level`; chosen on AR(1) 0.9 and Student-t3 noise, seeds 0-9."""
    floor: float = 0.02
    """Smallest spread between blocks believed, in log units."""
    accept_blocks: int = 16
    stall_factor: float = 3.0
    hang_s: float = 1800.0
    """Seconds: the time-out of collectives is 10 to 30 minutes by default."""
    hang_factor: float = 50.0

    def __post_init__(self) -> None:
        """Refuse blocks without quartiles and thresholds that flag everything."""
        if self.block_rows < 4 or self.stall_factor <= 1 or self.slow_share <= 0:
            raise ConfigError(
                f"pace: block_rows={self.block_rows} (at least 4), stall_factor={self.stall_factor}"
                f" (above 1), slow_share={self.slow_share} (above 0)"
            )

    def start(self) -> PaceState:
        """Return the state before any row."""
        none = np.zeros(0)
        return PaceState((Pace(np.zeros(self.block_rows), none, none, none),) * 2)

    def update(self, state: PaceState, row: Row) -> tuple[PaceState, tuple[Finding, ...]]:
        """Judge one row; missing, non-finite and non-positive values change nothing."""
        values = row.values.tolist()
        batch = state.batch
        if row.present[2] and math.isfinite(values[2]) and values[2] > 0:
            batch = values[2]
        paces, findings = list(state.paces), list[Finding]()
        for i in (0, 1):
            value = values[i]
            if not row.present[i] or not math.isfinite(value) or value <= 0:
                continue
            # A ramp of the batch size makes steps longer without making the run slower.
            y, offset = _on_scale(i, value, batch)
            paces[i], found = self._row(i, paces[i], row, value, y, offset)
            findings += found
        return PaceState(tuple(paces), batch), tuple(findings)

    def update_rows(self, state: PaceState, rows: Rows) -> tuple[PaceState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Blocks without a slow row are taken whole.
        """
        sizes = rows.values[:, 2]
        logged = np.isfinite(sizes) & (sizes > 0)
        last = np.maximum.accumulate(np.where(logged, np.arange(len(rows)), -1))
        batches = np.where(last >= 0, sizes[last], state.batch)
        paces, findings = list(state.paces), list[Finding]()
        for i in (0, 1):
            column = rows.values[:, i]
            usable = np.flatnonzero(np.isfinite(column) & (column > 0))
            paces[i], found = self._follow(i, paces[i], rows, usable, batches)
            findings += found
        findings.sort(key=lambda f: f.row)
        return PaceState(tuple(paces), float(batches[-1]) if len(rows) else state.batch), tuple(
            findings
        )

    def _follow(
        self, i: int, p: Pace, rows: Rows, usable: NDArray[np.int64], batches: NDArray[np.float64]
    ) -> tuple[Pace, list[Finding]]:
        """Judge the usable rows of one signal."""
        places, values = usable.tolist(), rows.values[usable, i].tolist()
        scaled = [_on_scale(i, v, b) for v, b in zip(values, batches[usable].tolist(), strict=True)]
        findings: list[Finding] = []
        at, size, stall = 0, self.block_rows, math.log(self.stall_factor)
        while at < len(places):
            # a block without a stalled row cannot change the state of single rows: take it at once
            whole = p.num_rows == 0 and len(p.past) and not p.slow_rows and at + size <= len(places)
            block = [y for y, _ in scaled[at : at + size]] if whole else []
            ahead = self._run_after(p, block) if block and max(block) - p.level < stall else None
            if ahead is not None:
                first, row = rows.row(places[at]), rows.row(places[at + size - 1])
                p = changed(p, first_row=first.index, first_step=first.step)
                p = _without_run(p)
                if ahead:
                    begun = rows.row(places[at + size - ahead])
                    run = tuple(block[size - ahead :])
                    p = changed(p, run=run, run_row=begun.index, run_step=begun.step)
                p, found = self._block(i, p, row, np.array(block), scaled[at + size - 1][1])
                at += size
            else:
                row = rows.row(places[at])
                p, found = self._row(i, p, row, values[at], *scaled[at])
                at += 1
            findings += found
        return p, findings

    def _row(
        self, i: int, p: Pace, row: Row, value: float, y: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        p, single = self._single(i, p, row, value, y, offset)
        p, run = self._run(i, p, row, y, offset)
        p, lasting = self._take(i, p, row, y, offset)
        return p, single + run + lasting

    def _run_bar(self, p: Pace) -> float:
        """Return what every row of a slow run lies above."""
        return max(p.level + math.log1p(self.slow_share) / 2, median(p.high[-4:]))

    def _run_after(self, p: Pace, block: list[float]) -> int | None:
        """Return how many rows at the end of a block are slow; None: row by row is needed."""
        if len(p.past) < self.min_blocks:
            return 0
        bar = self._run_bar(p)
        lead = next((n for n, y in enumerate(block) if y <= bar), len(block))
        if p.run_told or len(p.run) + lead >= self.block_rows:
            return None
        return next(n for n, y in enumerate(reversed(block)) if y <= bar)

    def _run(
        self, i: int, p: Pace, row: Row, y: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        """Count the rows that are slow one after the other, and report as many as a block."""
        if len(p.past) < self.min_blocks:
            return p, []
        if y <= self._run_bar(p):
            # What blocks have reported as slow ends with them.
            ended = p.run_told and len(p.flagged) < 2
            found = [self._run_finding(i, p, row, offset, ended=True)] if ended else []
            return _without_run(p), found
        if not p.run:
            p = changed(p, run_row=row.index, run_step=row.step)
        p = changed(p, run=(*p.run[1 - self.block_rows :], y))
        shift = median(np.array(p.run)) - p.level
        # What blocks call slow from another row on is one condition with it.
        apart = p.onset_row >= 0 and p.onset_row != p.run_row
        short = apart or len(p.run) < self.block_rows
        if p.run_told or short or not self._is_slow(p, shift):
            return p, []
        p = changed(p, run_told=True)
        return p, [self._run_finding(i, p, row, offset)]

    def _single(
        self, i: int, p: Pace, row: Row, value: float, y: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        """Judge a row alone against the level; the first block has none.

        A silence is reported at once; slow rows are reported when they are over, if they were few.
        """
        if not len(p.past):
            return p, []
        level = p.level
        over = y - level
        if over < math.log(self.stall_factor):
            # More than half a block of slow rows moves its median: the slowdown rule reports it.
            told = 0 < p.slow_rows <= self.block_rows // 2 and p.slow_y > level + p.worst + _TWICE
            if not told:
                return (replace(p, slow_rows=0) if p.slow_rows else p), []
            found = self._row_finding(i, p.slow_row, p.slow_step, row, p.slow_y, level, offset)
            return replace(p, slow_rows=0, worst=p.slow_y - level), [found]
        if p.slow_rows == 0:
            p = replace(p, slow_row=row.index, slow_step=row.step, slow_y=y)
        p = replace(p, slow_rows=p.slow_rows + 1, slow_y=max(y, p.slow_y))
        # only a time can be compared with seconds; a throughput has no such bar
        hang = i == 0 and value >= self.hang_s and over >= math.log(self.hang_factor)
        # Saves take long at every cadence; only one twice as slow as all before is news.
        if not hang or over < p.worst + _TWICE:
            return p, []
        found = self._row_finding(i, row.index, row.step, row, y, level, offset, hang=True)
        return replace(p, worst=over), [found]

    def _take(
        self, i: int, p: Pace, row: Row, y: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        rows = p.rows.copy()
        rows[p.num_rows] = y
        begun = (p.first_row, p.first_step) if p.num_rows else (row.index, row.step)
        num = (p.num_rows + 1) % self.block_rows
        p = changed(p, rows=rows, num_rows=num, first_row=begun[0], first_step=begun[1])
        return (p, []) if num else self._block(i, p, row, rows, offset)

    def _block(
        self, i: int, p: Pace, row: Row, rows: NDArray[np.float64], offset: float
    ) -> tuple[Pace, list[Finding]]:
        """Record a block that is full; `row` is its last."""
        p = changed(p, rows=rows)
        # quartiles of the block: two paces that alternate overlap in them, a slowdown does not
        ordered = np.sort(rows)
        block, quarter = median(rows), self.block_rows // 4
        low, high = float(ordered[quarter - 1]), float(ordered[-quarter])
        if not len(p.past):
            p = replace(p, past=np.array([block]), high=np.array([high]), level=block)
            return self._first(i, p, row, rows, block, offset)
        return self._judge(i, p, row, block, low, high, offset)

    def _first(
        self, i: int, p: Pace, row: Row, rows: NDArray[np.float64], block: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        """Report a slow first row: compilation, caches, the first evaluation."""
        over = float(rows[0]) - block
        if over < math.log(self.stall_factor):
            return p, []
        told = self._row_finding(i, p.first_row, p.first_step, row, float(rows[0]), block, offset)
        return p, [replace(told, text=f"{told.text}, the first one")]

    def _judge(
        self, i: int, p: Pace, row: Row, block: float, low: float, high: float, offset: float
    ) -> tuple[Pace, list[Finding]]:
        """Compare a block with the calm ones before it."""
        ref = p.ref if p.onset_row >= 0 else p.level
        if p.onset_row < 0 and block - ref <= math.log1p(self.slow_share):
            return self._calm(p, block, high), []
        shift = block - ref
        z = shift / self._spread(p)
        slow = self._is_slow(p, shift)
        # the lower quartile above the usual upper one: not slow for a few slow rows
        slow = slow and low > median(p.high[-4:]) and len(p.past) >= self.min_blocks
        if p.onset_row < 0 and not slow:
            return self._calm(p, block, high), []
        # Half the bar to close, so that a pace on the edge does not open and close all the time.
        if p.onset_row >= 0 and shift < math.log1p(self.slow_share) / 2:
            told = [self._finding(i, p, row, "back", offset)] if len(p.flagged) >= 2 else []
            return self._calm(replace(p, onset_row=-1, flagged=np.zeros(0)), block, high), told
        if p.onset_row < 0:
            begun = (p.run_row, p.run_step) if p.run else (p.first_row, p.first_step)
            p = replace(
                p,
                onset_row=begun[0],
                onset=begun[1],
                ref=ref,
                score=0.0,
                flagged=np.zeros(0),
            )
        flagged = np.append(p.flagged, block)
        if z > p.score:
            p = replace(p, score=z, peak_row=row.index, peak=row.step)
        p = replace(p, flagged=flagged)
        if len(flagged) >= self.accept_blocks:
            told = [self._finding(i, p, row, "accepted", offset)]
            # the last blocks are the new level; earlier ones may still be on the way to it
            kept = flagged[-4:]
            new = replace(p, onset_row=-1, flagged=np.zeros(0), past=kept, high=kept.copy())
            return replace(_without_run(new), level=median(kept)), told
        return p, [self._finding(i, p, row, "open", offset)] if len(flagged) == 2 else []

    def _spread(self, p: Pace) -> float:
        moves = np.diff(p.past)
        return max(difference_sigma(moves) if len(moves) else 0.0, self.floor)

    def _is_slow(self, p: Pace, shift: float) -> bool:
        return shift > max(math.log1p(self.slow_share), self.threshold_sigma * self._spread(p))

    def _calm(self, p: Pace, block: float, high: float) -> Pace:
        past, high_blocks = joined(p.past, block, _PAST), joined(p.high, high, _PAST)
        return changed(p, past=past, high=high_blocks, level=median(past[-4:]))

    def _unit(self, i: int, y: float, offset: float) -> float:
        """Return a y in the unit of its signal."""
        return math.exp(y - offset) if i == 0 else math.exp(-y)

    def _row_finding(
        self,
        i: int,
        at: int,
        step: float,
        row: Row,
        y: float,
        level: float,
        offset: float,
        *,
        hang: bool = False,
    ) -> Finding:
        value, usual = self._unit(i, y, offset), self._unit(i, level, offset)
        return Finding(
            detector=f"{self.name}-row",
            kind="hang" if hang else "stall",
            signal=self.signals[i],
            severity="warning" if hang else "info",
            row=row.index,
            step=row.step,
            onset_row=at,
            onset=step,
            peak_row=at,
            peak=step,
            end_row=at,
            end=step,
            value=value,
            expected=usual,
            score=(y - level) / self.floor,
            direction="down" if i else "up",
            closed=True,
            text=(
                f"{self.signals[i]} {usual:.4g} → {value:.4g}, "
                f"{math.exp(min(y - level, 700.0)):.3g}"
                " times as "
                f"slow{', then the run continued' if hang else ''}"
            ),
        )

    def _run_finding(
        self, i: int, p: Pace, row: Row, offset: float, *, ended: bool = False
    ) -> Finding:
        """Return the note on a run of slow rows, of which the last ones are kept."""
        y = median(np.array(p.run))
        value, usual = self._unit(i, y, offset), self._unit(i, p.level, offset)
        return Finding(
            detector=self.name,
            kind="slowdown",
            signal=self.signals[i],
            severity="info",
            row=row.index,
            step=row.step,
            onset_row=p.run_row,
            onset=p.run_step,
            peak_row=p.run_row,
            peak=p.run_step,
            end_row=row.index if ended else None,
            end=row.step if ended else None,
            value=value,
            expected=usual,
            score=(y - p.level) / self._spread(p),
            direction="down" if i else "up",
            closed=ended,
            text=(
                f"{self.signals[i]} {usual:.4g} → {value:.4g}{_of_batch(offset)}: {math.expm1(y - p.level):.0%} more"
                f" time per step for {row.index - p.run_row + (not ended)} rows"
                f"{', then back' if ended else ' so far'}"
            ),
        )

    def _finding(self, i: int, p: Pace, row: Row, how: str, offset: float) -> Finding:
        level = float(np.median(p.flagged))
        value, usual = self._unit(i, level, offset), self._unit(i, p.ref, offset)
        rows = len(p.flagged) * self.block_rows
        tail = {"open": "", "back": f", back after {rows} rows", "accepted": ", lasting"}[how]
        return Finding(
            detector=self.name,
            kind="slowdown",
            signal=self.signals[i],
            severity=_severity(how),
            row=row.index,
            step=row.step,
            onset_row=p.onset_row,
            onset=p.onset,
            peak_row=p.peak_row,
            peak=p.peak,
            end_row=p.first_row if how == "back" else None,
            end=p.first_step if how == "back" else None,
            value=value,
            expected=usual,
            score=p.score,
            grain_rows=self.block_rows,
            direction="down" if i else "up",
            closed=how != "open",
            text=(
                f"{self.signals[i]} {usual:.4g} → {value:.4g}{_of_batch(offset)}: {math.expm1(level - p.ref):.0%} more"
                f" time per step{tail}"
            ),
        )


def _severity(how: str) -> Severity:
    """Return the severity: a slowdown that ended before it became the new pace is a note."""
    return "info" if how == "back" else "warning"


def _on_scale(i: int, value: float, batch: float) -> tuple[float, float]:
    """Return (y, what was added to the logarithm for the batch size) of a time or a throughput."""
    # Throughput counts samples or tokens a second, so the batch size is in it already.
    offset = -math.log(batch) if i == 0 else 0.0
    return (math.log(value) + offset if i == 0 else -math.log(value)), offset


def _of_batch(offset: float) -> str:
    """Return of which batch size times are told, where it is logged: the usual one is scaled to it."""
    return f" for a batch of {math.exp(-offset):.4g}" if offset else ""
