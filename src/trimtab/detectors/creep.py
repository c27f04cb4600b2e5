"""Small lasting changes and slow rises: a cumulative sum over blocks, against the recent trend.

`level` compares neighbors and misses what climbs by less than its noise from block to block. Here
the excess of each block over what was expected is added up until it is too much for chance:

    expected = median of the last 24 blocks, moved to their end by 0.7 of their downward trend,
               no lower than the lowest of them
    sigma    = spread of means of four blocks (times 2) or of neighbors, whichever is larger,
               over the last 96 blocks, trend taken out: autocorrelated noise is included
    S        = max(0, S + min((block - expected) / sigma, 6) - 1.25)

Blocks are medians of 16 rows, then means of four of those (64, 256, 1024 rows). From the block at
which S leaves 0 the expectation is frozen; that block dates the onset. S beyond the threshold is
reported, if the level also rose against the last four blocks before, by more than `min_share` and
by `min_sigma`. The threshold is at least 9, and 1.5 times the largest S that came and went in this
run: waves that a run has all the time are not reported.

Eight blocks later the change is reported to the end: it is still rising (drift, or divergence where
the loss rose by 2 % and more), it has settled (shift), or it went back. Then the new level is
accepted; a rise below 5 % that went back is a note. S that neither grows beyond the threshold nor
returns within 64 blocks is forgotten. A norm that doubled since its lowest level is a warning, a
smaller drift of a norm a note.

Thresholds: at most one false alarm per 20,000 rows on Gaussian, AR(1) 0.9 and Student-t3 noise,
flat and falling, seeds 0-9. Needs 24 blocks before it says anything.
Source: Page's cumulative sum (Biometrika 41, 1954), made self-starting.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import Block, fold, joined
from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, changed, series_of
from trimtab.detectors.level import NEGLIGIBLE
from trimtab.errors import ConfigError
from trimtab.signals.robust import dependent_blocks_sigma, median
from trimtab.vocabulary import SIGNAL_BY_NAME, Severity

__all__ = ["CreepDetector", "CreepState"]

Floats = NDArray[np.float64]

# 24 means of four blocks, from which the spread of noise that follows itself is taken.
_NOISE_BLOCKS = 96
_LEVEL_BLOCKS = 24
_MIN_BLOCKS = 24
_TREND_BLOCKS = 48
_BEFORE_BLOCKS = 4
_DAMP = 0.7
"""Share of the downward trend that is believed: curves flatten."""
# Page's sum is fastest for a shift of twice its allowance: 2.5 sigma of a block. Smaller ones show
# in larger blocks, whose sigma is smaller.
_ALLOWANCE = 1.25
# Two blocks at the cap make 2 * (6 - 1.25) = 9.5, just above the threshold; one never does.
_CAP = 6.0
_HOLD_BLOCKS = 64
_SETTLE_BLOCKS = 8
_CRITICAL_SHARE = 0.02
_BACK_SHARE = 0.1
"""A change of which less than this is left went back."""
_ONSET_SHARE = 0.25
_MOVING_SHARE = 0.2
_WAVE_SHARE = 0.05
"""A rise of the loss below this share that went back by itself is a note."""
_DOUBLED = math.log(2.0)
# Per block: half in some 350 blocks, so a wave early in a run does not deafen it for good.
_FORGET = 0.998
# In thresholds: one enormous wave may raise the bar only so far.
_MAX_USUAL = 4.0


@dataclass(frozen=True)
class Sum:
    """The cumulative sum of one block size of one signal."""

    past: Floats
    """float64 [<= 96], accepted blocks, oldest first."""
    held: Floats
    """float64 [<= 64 + 8, 3], blocks since S left 0: value, first row, step of that row."""
    parts: tuple[float, ...] = ()
    """Blocks of the size below that wait for their fourth."""
    part_row: int = 0
    part_step: float = 0.0
    total: float = 0.0
    """S."""
    usual: float = 0.0
    """Largest S that came and went; forgets slowly."""
    onset_row: int = -1
    onset: float = 0.0
    expected: float = 0.0
    sigma: float = 1.0
    before: float = 0.0
    """Median of the last four blocks before the onset."""
    told_at: int = 0
    """Number of held blocks when it was reported; 0: not yet."""
    peak: float = 0.0
    peak_row: int = 0
    peak_step: float = 0.0
    back_row: int = -1
    back: float = 0.0


@dataclass(frozen=True)
class Creeping:
    """One signal: rows that wait for their block, and its sums."""

    sums: tuple[Sum, ...]
    rows: tuple[float, ...] = ()
    first_row: int = 0
    first_step: float = 0.0
    start: float = 0.0
    """Size of the first finished block."""
    lowest: float = math.inf
    """Lowest level that a change was reported from, since the last warning."""


@dataclass(frozen=True)
class CreepState:
    """One entry per signal."""

    channels: tuple[Creeping, ...]


_NONE = np.zeros(0)
_NONE_HELD = np.zeros((0, 3))


@dataclass(frozen=True, kw_only=True)
class CreepDetector:
    """See the module."""

    name: str = "creep"
    signals: tuple[str, ...] = ("loss", "grad_norm")
    block_rows: int = 16
    num_scales: int = 4
    threshold: float = 9.0
    min_share: float = 0.006
    """Smallest relative change of a linear signal that matters."""
    min_log: float = 0.1
    """Smallest change of a log-scaled signal."""
    min_sigma: float = 1.75
    floor_linear: float = 1.5e-3
    """Smallest sigma believed, as a share of the level: a quarter of what matters."""
    floor_log: float = 0.02

    def __post_init__(self) -> None:
        """Refuse blocks too small for a median."""
        if self.block_rows < 4 or self.num_scales < 1:
            raise ConfigError(
                f"creep: block_rows={self.block_rows} (at least 4), num_scales={self.num_scales}"
                " (at least 1)"
            )

    def start(self) -> CreepState:
        """Return the state before any row."""
        sums = tuple(Sum(_NONE, _NONE_HELD) for _ in range(self.num_scales))
        return CreepState((Creeping(sums),) * len(self.signals))

    def update(self, state: CreepState, row: Row) -> tuple[CreepState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        return self._update(state, row)

    def update_rows(self, state: CreepState, rows: Rows) -> tuple[CreepState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(
        self, state: CreepState, rows: Row | Rows
    ) -> tuple[CreepState, tuple[Finding, ...]]:
        channels = list(state.channels)
        findings: list[Finding] = []
        for i, signal in enumerate(self.signals):
            series, c = series_of(signal, i, rows), channels[i]
            if not series.y:
                continue
            began = RowPlace(c.first_row, c.first_step)
            blocks, rest, began = fold(c.rows, began, series, self.block_rows)
            c = changed(c, rows=rest, first_row=began.index, first_step=began.step)
            for block in blocks:
                c, found = self._fold(i, c, block)
                findings += found
            channels[i] = c
        findings.sort(key=lambda f: f.row)
        return CreepState(tuple(channels)), tuple(findings)

    def _fold(self, i: int, c: Creeping, block: Block) -> tuple[Creeping, list[Finding]]:
        """Hand a finished block to its size, and every fourth one on to the next size."""
        start = c.start or abs(block.value)
        sums, findings = list(c.sums), list[Finding]()
        for k in range(self.num_scales):
            # a change that is too slow for one block size shows in a larger one
            sums[k], how = self._add(i, sums[k], block, NEGLIGIBLE * start)
            if how:
                s = sums[k]
                # Made before `_settled` empties the sum that the finding describes.
                found = self._finding(i, k, s, block, how, c.lowest)
                findings.append(found)
                if how != "open":
                    sums[k] = _settled(s, how)
                if how == "accepted":
                    lowest = min(c.lowest, s.expected)
                    c = changed(c, lowest=s.peak if found.severity != "info" else lowest)
                    # blocks of larger sizes mix both levels: they begin with an empty past
                    sums[k + 1 :] = [Sum(_NONE, _NONE_HELD) for _ in sums[k + 1 :]]
            # while a change is reported, larger sizes are not fed: they would report it again
            if sums[k].told_at or k + 1 == self.num_scales:
                break
            up = sums[k + 1]
            if not up.parts:
                up = changed(up, part_row=block.first_row, part_step=block.first_step)
            parts = (*up.parts, block.value)
            sums[k + 1] = changed(up, parts=parts if len(parts) < 4 else ())
            if len(parts) < 4:
                break
            # a mean: the medians below have lost their outliers, and a mean is less noisy
            block = Block(sum(parts) / 4, up.part_row, up.part_step, block.row, block.step)
        return changed(c, sums=tuple(sums), start=start), findings

    def _add(self, i: int, s: Sum, b: Block, least: float) -> tuple[Sum, str]:
        """Add one block to the sum; also return what to report: open, back, accepted or nothing."""
        if len(s.past) < _MIN_BLOCKS:
            return changed(s, past=joined(s.past, b.value, _NOISE_BLOCKS)), ""
        if s.total == 0.0:
            expected, floor = self._expect(i, s)
            # the floor is the least noise, so no sum starts whatever the noise is: skip its cost
            if (b.value - expected) / floor <= _ALLOWANCE:
                past = joined(s.past, b.value, _NOISE_BLOCKS)
                return changed(s, past=past, usual=s.usual * _FORGET), ""
            sigma = max(dependent_blocks_sigma(s.past), floor)
            before = median(s.past[-_BEFORE_BLOCKS:])
            s = changed(s, expected=expected, sigma=sigma, before=before)
        # capped in the sum, so that one wild block cannot reach the threshold alone
        z = (b.value - s.expected) / s.sigma
        total = max(0.0, s.total + min(z, _CAP) - _ALLOWANCE)
        if s.told_at:
            return self._settle(s, b, z)
        if total == 0.0:
            past = np.concatenate([s.past, s.held[:, 0], [b.value]])[-_NOISE_BLOCKS:]
            came = min(s.total, _MAX_USUAL * self.threshold)
            # a wave that came back by itself raises the bar for the next; it is forgotten slowly
            usual = max(s.usual * _FORGET, came)
            return changed(s, past=past, held=_NONE_HELD, total=0.0, usual=usual), ""
        # The peak of the sum before, or the 0 of a fresh one, may lie above all that follows.
        if s.total == 0.0:
            s = changed(s, peak=-math.inf)
        s = _higher(changed(s, held=_longer(s.held, b), total=total), b)
        # significant is not enough: with many blocks a tiny rise is, so it must also matter
        if total > max(self.threshold, 1.5 * s.usual) and self._matters(i, s, least):
            return _dated(changed(s, told_at=len(s.held))), "open"
        if len(s.held) < _HOLD_BLOCKS:
            return s, ""
        # neither settled nor grown within the limit: it is the level now, without a finding
        past = np.concatenate([s.past, s.held[:, 0]])[-_NOISE_BLOCKS:]
        return changed(s, past=past, held=_NONE_HELD, total=0.0), ""

    def _expect(self, i: int, s: Sum) -> tuple[float, float]:
        """Return what is expected from here on, and the least noise around it."""
        recent = s.past[-_TREND_BLOCKS:]
        half = len(recent) // 2
        slope = (median(recent[half:]) - median(recent[:half])) / half
        level = s.past[-_LEVEL_BLOCKS:]
        sign = -1.0 if SIGNAL_BY_NAME[self.signals[i]].bad == "down" else 1.0
        # the median of a falling level lags half its window behind; only a fall is extrapolated
        lag = min(sign * slope, 0.0) * sign * len(level) / 2
        expected = median(level) + _DAMP * lag
        # a step down is no trend: nothing is expected beyond what was seen
        expected = (
            max(expected, float(level.min())) if sign > 0 else min(expected, float(level.max()))
        )
        log = SIGNAL_BY_NAME[self.signals[i]].scale == "log"
        floor = self.floor_log if log else self.floor_linear * abs(expected)
        return expected, max(floor, 1e-12)

    def _matters(self, i: int, s: Sum, least: float) -> bool:
        """Whether the last three blocks are higher than expected, and than before, by enough."""
        # Three, so that a median of them survives one wild block.
        if len(s.held) < 3:
            return False
        level = median(s.held[-3:, 0])
        # A sum also fills with blocks that are each barely too high: the level must be off, too.
        if level - s.expected < self.min_sigma * s.sigma:
            return False
        # Above the last blocks as well: a loss that falls slower than expected has not risen.
        rise = level - max(s.expected, s.before)
        if SIGNAL_BY_NAME[self.signals[i]].scale == "log":
            return rise > self.min_log
        return rise > self.min_share * max(abs(s.expected), least, 1e-12)

    def _settle(self, s: Sum, b: Block, z: float) -> tuple[Sum, str]:
        """Follow a change that was reported, until it went back or eight blocks have passed."""
        s = _higher(changed(s, held=_longer(s.held, b)), b)
        if z < max(self.min_sigma / 2, _BACK_SHARE * (s.peak - s.expected) / s.sigma):
            # two blocks in a row, since one may be low by chance
            if s.back_row >= 0:
                return s, "back"
            s = changed(s, back_row=b.first_row, back=b.first_step)
        else:
            s = changed(s, back_row=-1)
        return s, "accepted" if len(s.held) >= s.told_at + _SETTLE_BLOCKS else ""

    def _finding(self, i: int, k: int, s: Sum, b: Block, how: str, lowest: float) -> Finding:
        signal = SIGNAL_BY_NAME[self.signals[i]]
        log = signal.scale == "log"
        expected, value = (math.exp(s.expected), math.exp(s.peak)) if log else (s.expected, s.peak)
        # Only after the settling blocks is it known whether the rise went on.
        moving = how == "accepted" and _still_moving(s)
        level = median(s.held[-3:, 0])
        share = (level - s.expected) / max(abs(s.expected), 1e-12)
        kind, severity = "grad-drift" if signal.name == "grad_norm" else "drift", "info"
        if signal.name == "loss":
            severity = "warning"
            if how == "accepted":
                kind = "drift" if moving else "shift"
            if moving and share > _CRITICAL_SHARE:
                kind, severity = "divergence", "critical"
        elif how == "accepted" and level - min(lowest, s.expected) > _DOUBLED:
            severity = "warning"
        ended = how == "back"
        if ended and (s.peak - s.expected) / max(abs(s.expected), 1e-12) < _WAVE_SHARE:
            severity = "info"
        tail = {"open": "", "back": ", back"}.get(how, ", still rising" if moving else ", lasting")
        rows = self.block_rows * 4**k
        return Finding(
            detector=f"{self.name}-{rows}",
            kind=kind,
            signal=signal.name,
            severity=_severity(severity),
            row=b.row,
            step=b.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.peak_row,
            peak=s.peak_step,
            end_row=s.back_row if ended else None,
            end=s.back if ended else None,
            value=value,
            expected=expected,
            score=(s.peak - s.expected) / s.sigma,
            closed=how != "open",
            grain_rows=rows,
            text=f"{signal.name} {expected:.4g} → {value:.4g} over blocks of {rows} rows{tail}",
        )


def _severity(word: str) -> Severity:
    return "critical" if word == "critical" else "warning" if word == "warning" else "info"


def _higher(s: Sum, b: Block) -> Sum:
    if b.value <= s.peak:
        return s
    return changed(s, peak=b.value, peak_row=b.row, peak_step=b.step)


def _longer(held: Floats, b: Block) -> Floats:
    return np.vstack([held, [b.value, b.first_row, b.first_step]])


def _dated(s: Sum) -> Sum:
    """Date the onset: the first held block that shows a quarter of the rise.

    An earlier block may have left zero by chance.
    """
    rise = median(s.held[-3:, 0]) - s.expected
    first = int(np.argmax(s.held[:, 0] - s.expected > _ONSET_SHARE * rise))
    return changed(s, onset_row=int(s.held[first, 1]), onset=float(s.held[first, 2]))


def _still_moving(s: Sum) -> bool:
    """Whether the level rose by another fifth after it was reported."""
    then, now = median(s.held[s.told_at : s.told_at + 3, 0]), median(s.held[-3:, 0])
    return now - then > max(_MOVING_SHARE * (then - s.expected), s.sigma)


def _settled(s: Sum, how: str) -> Sum:
    """Return the sum at rest again: at the old level, or with its past moved to the new one."""
    if how == "back":
        # The two blocks that were back; those of the rise itself would widen the noise.
        past = np.append(s.past, s.held[-2:, 0])
    else:
        past = np.append(
            s.past + (median(s.held[-3:, 0]) - median(s.past[-_LEVEL_BLOCKS:])), s.held[-3:]
        )
    return Sum(past[-_NOISE_BLOCKS:], _NONE_HELD, usual=s.usual)
