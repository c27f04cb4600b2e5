"""Lasting changes of level: shifts of one to three per cent, slow drifts, divergence.

Rows are folded into blocks (medians of 16 rows), blocks into blocks of four (64, 256, 1024 rows).
At each size a new block b is compared with its own past:

    ref   = median of the last 4 blocks (+ their trend, for signals that grow in healthy runs)
    noise = 1.4826 median |second difference of blocks| / sqrt(3), last 24 blocks, not below a floor
    z     = (b - ref) / noise        in the bad direction

`noise` is the spread from block to block, so autocorrelated and heavy-tailed noise is included
without a model; second differences, so that neither trend nor the bend of a loss curve counts as
noise (for independent blocks it equals the spread of first differences: sqrt(2) times that of one).
A change must be significant (z) and large enough to matter
(`min_share`). For the loss no downward trend is extrapolated, so the early descent cannot alarm.
Two blocks in a row make a finding; flagged blocks stay out of the past; after four (twelve, if the
level is on its way back) the new level is accepted: reported once, and never again.

Delay: two blocks of the smallest size that shows it. Blind to what ends within a block or two.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.blocks import joined
from trimtab.detectors.contract import (
    Finding,
    Row,
    RowPlace,
    Rows,
    Series,
    changed,
    series_of,
)
from trimtab.errors import ConfigError
from trimtab.signals.robust import difference_sigma, median, medians
from trimtab.text import sigmas
from trimtab.vocabulary import SIGNAL_BY_NAME, Severity

__all__ = ["CALM_SIGNALS", "LevelDetector", "LevelState", "Scale"]

CALM_SIGNALS = (
    "adam_v_max",
    "adam_v_l1",
    "adam_m_max",
    "adam_m_l1",
    "attention_entropy",
    "activation_max",
    "output_log_z",
    "update_ratio",
    "embedding_grad_norm",
    "rms_ratio_max",
    "weight_max",
)
"""Signals whose lasting change is a sign while the loss is calm; they need levels and no spikes."""

_PAST = 24
NEGLIGIBLE = 1e-3
"""Share of the first block below which a linear signal counts as zero: 1e-7 -> 1e-5 is no change.
"""


@dataclass(frozen=True)
class Scale:
    """One block size of one signal."""

    past: NDArray[np.float64]
    """float64 [<= 24], accepted blocks, oldest first."""
    parts: NDArray[np.float64]
    """float64 [< 4], blocks of the size below that wait for their fourth."""
    flagged: NDArray[np.float64]
    """float64 [<= 12], blocks of the change under way."""
    part_row: int = 0
    """First row of `parts`."""
    part_step: float = 0.0
    onset_row: int = -1
    onset: float = 0.0
    ref: float = 0.0
    peak: float = 0.0
    peak_row: int = 0
    peak_step: float = 0.0
    score: float = 0.0


@dataclass(frozen=True)
class Channel:
    """One signal: rows that wait for their block, and its scales."""

    rows: NDArray[np.float64]
    """float64 [block_rows], values of the block under way."""
    num_rows: int
    first_row: int
    first_step: float
    scales: tuple[Scale, ...]
    start: float = 0.0
    """Size of the first finished block: what this signal amounts to at all."""


@dataclass(frozen=True)
class LevelState:
    """One channel per signal."""

    channels: tuple[Channel, ...]


def _empty() -> Scale:
    none = np.zeros(0)
    return Scale(none, none, none)


@dataclass(frozen=True, kw_only=True)
class LevelDetector:
    """See the module."""

    name: str = "level"
    signals: tuple[str, ...] = (
        "loss",
        "grad_norm",
        "loss_scale",
        "update_norm",
        "activation_norm",
        "attention_logit_max",
    )
    block_rows: int = 16
    num_scales: int = 4
    thresholds: tuple[float, ...] = (9.0, 7.0, 6.0, 6.0)
    """z per block size; chosen on AR(1) 0.9 and Student-t3 noise, seeds 0-9, for at most one false
    alarm per 20,000 rows."""
    min_past: int = 8
    """Blocks needed before anything is reported."""
    min_share: float = 0.006
    """Smallest relative change of the loss that matters."""
    floor_linear: float = 5e-4
    """Smallest noise believed, as a share of the level."""
    floor_log: float = 0.05
    accept_blocks: int = 4

    def __post_init__(self) -> None:
        """Refuse shapes that do not fit together."""
        if self.block_rows < 4 or len(self.thresholds) != self.num_scales:
            raise ConfigError(
                f"level: block_rows={self.block_rows} (at least 4), {len(self.thresholds)}"
                f" thresholds for {self.num_scales} scales; give one threshold per scale"
            )

    def start(self) -> LevelState:
        """Return the state before any row."""
        scales = tuple(_empty() for _ in range(self.num_scales))
        channel = Channel(np.zeros(self.block_rows), 0, 0, 0.0, scales)
        return LevelState((channel,) * len(self.signals))

    def update(self, state: LevelState, row: Row) -> tuple[LevelState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        return self._update(state, row)

    def update_rows(self, state: LevelState, rows: Rows) -> tuple[LevelState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(
        self, state: LevelState, rows: Row | Rows
    ) -> tuple[LevelState, tuple[Finding, ...]]:
        channels = list(state.channels)
        findings: list[Finding] = []
        for i, signal in enumerate(self.signals):
            series = series_of(signal, i, rows)
            if series.y:
                channels[i], found = self._take(i, channels[i], series)
                findings += found
        findings.sort(key=lambda f: f.row)
        return LevelState(tuple(channels)), tuple(findings)

    def _take(self, i: int, c: Channel, series: Series) -> tuple[Channel, list[Finding]]:
        """Fill the block under way, and judge each that is full."""
        size, waiting = self.block_rows, c.num_rows
        full, rest = divmod(waiting + len(series.y), size)
        if not full:
            rows = c.rows.copy()
            rows[waiting:rest] = series.y
            c = c if waiting else changed(c, first_row=series.index[0], first_step=series.step[0])
            return changed(c, rows=rows, num_rows=rest), []
        y = np.concatenate((c.rows[:waiting], series.y))
        blocks = y[: full * size].reshape(full, size)
        scales, findings, start = list(c.scales), list[Finding](), c.start
        for k, block in enumerate(medians(blocks)):
            begin = k * size - waiting
            first = RowPlace(c.first_row, c.first_step) if begin < 0 else series.place(begin)
            last = series.place(begin + size - 1)
            start = start or abs(block)
            least = NEGLIGIBLE * start
            scales, found = self._fold(i, scales, block, first.index, first.step, last, least)
            findings += found
        # A copy: a state is a value, and the array of the old one may lie in a checkpoint.
        rows = blocks[-1].copy()
        rows[:rest] = y[full * size :]
        first = series.place(len(series.y) - rest) if rest else RowPlace(0, 0.0)
        return Channel(rows, rest, first.index, first.step, tuple(scales), start), findings

    def _fold(
        self,
        i: int,
        scales: list[Scale],
        block: float,
        first_row: int,
        first_step: float,
        row: RowPlace,
        least: float,
    ) -> tuple[list[Scale], list[Finding]]:
        """Hand a finished block to its size, and every fourth one on to the next size."""
        findings: list[Finding] = []
        for k in range(self.num_scales):
            scales[k], found, calm = self._judge(
                i, k, scales[k], block, first_row, first_step, row, least
            )
            findings += found
            if any(f.closed and f.end_row is None for f in found):
                # a new level: blocks of larger sizes would mix it with the old one
                scales[k + 1 :] = [_empty() for _ in scales[k + 1 :]]
            # a block of a change stays out of larger sizes, where it would be reported again
            if not calm or k + 1 == self.num_scales:
                break
            up = scales[k + 1]
            if len(up.parts) == 0:
                up = changed(up, part_row=first_row, part_step=first_step)
            parts = joined(up.parts, block, _PAST)
            scales[k + 1] = changed(up, parts=parts if len(parts) < 4 else np.zeros(0))
            if len(parts) < 4:
                break
            block, first_row, first_step = (
                float(parts.sum() / len(parts)),
                up.part_row,
                up.part_step,
            )
        return scales, findings

    def _judge(
        self,
        i: int,
        k: int,
        s: Scale,
        block: float,
        first_row: int,
        first_step: float,
        row: RowPlace,
        least: float,
    ) -> tuple[Scale, list[Finding], bool]:
        """Compare one block with the past of its size; the last value is True for a calm block."""
        if s.onset_row < 0 and self._surely_calm(i, k, s, block, least):
            return changed(s, past=joined(s.past, block, _PAST)), [], True
        z, ref, share = self._score(i, s, block, least)
        over = z > self.thresholds[k] and share > self.min_share
        if s.onset_row < 0 and not over:
            return changed(s, past=joined(s.past, block, _PAST)), [], True
        if s.onset_row < 0:
            s = replace(
                s, onset_row=first_row, onset=first_step, ref=ref, score=0.0, flagged=np.zeros(0)
            )
        # half the threshold, so that a level on the edge does not open and close all the time
        elif z < self.thresholds[k] / 2:
            reported = len(s.flagged) >= 2
            found = [self._finding(i, k, s, row, "back", first_row, first_step)] if reported else []
            calm = replace(s, onset_row=-1, flagged=np.zeros(0), past=joined(s.past, block, _PAST))
            return calm, found, True
        flagged = joined(s.flagged, block, _PAST)
        s = replace(s, flagged=flagged)
        if z > s.score:
            s = replace(s, score=z, peak=block, peak_row=row.index, peak_step=row.step)
        # a level on its way back gets three times as long, so that it can close as recovered
        if len(flagged) >= self.accept_blocks * (3 if self._returning(s) else 1):
            found = [self._finding(i, k, s, row, "accepted", first_row, first_step)]
            return replace(s, onset_row=-1, flagged=np.zeros(0), past=flagged[-4:]), found, False
        # one block may be noise; the second makes the finding, and only once
        if len(flagged) == 2:
            return s, [self._finding(i, k, s, row, "open", first_row, first_step)], False
        return s, [], False

    def _surely_calm(self, i: int, k: int, s: Scale, block: float, least: float) -> bool:
        """Whether a block is calm whatever the noise and the trend, which is quick to know.

        Noise is at least its floor, and a trend only takes from the change.
        """
        # too few blocks for a noise estimate: nothing is judged yet
        if len(s.past) < self.min_past:
            return True
        # Few blocks, since a level that falls leaves a longer median behind.
        ref = median(s.past[-4:])
        signal = SIGNAL_BY_NAME[self.signals[i]]
        change = ref - block if signal.bad == "down" else block - ref
        if signal.scale == "log":
            return change / self.floor_log <= self.thresholds[k]
        return signal.name == "loss" and change / max(abs(ref), least, 1e-12) <= self.min_share

    def _score(self, i: int, s: Scale, block: float, least: float) -> tuple[float, float, float]:
        """Return z, the reference, and the relative size of the change, in the bad direction.

        `least` is the smallest level that a relative change of a linear signal is compared with.
        """
        if len(s.past) < self.min_past:
            return 0.0, block, 0.0
        signal = SIGNAL_BY_NAME[self.signals[i]]
        sign = -1.0 if signal.bad == "down" else 1.0
        steps = s.past[1:] - s.past[:-1]
        trend = median(steps)
        ref = median(s.past[-4:])
        if self.signals[i] != "loss":
            # Norms and logits grow in healthy runs, so a rising trend is expected of them.
            # 2.5 blocks: from the middle of the last four, whose median it is, to the new one
            ref += 2.5 * trend if sign * trend > 0 else 0.0
        # Frozen since the onset: flagged blocks must not pull the reference up.
        if s.onset_row >= 0:
            ref = s.ref
        # a block is compared with another noisy block, hence the noise of a difference
        # Second differences: first ones took the bend of an early loss curve for noise
        # (docs/log.md).
        noise = difference_sigma(steps[1:] - steps[:-1], order=2, of="difference")
        floor = self.floor_log if signal.scale == "log" else self.floor_linear * abs(ref)
        change = sign * (block - ref)
        share = change if signal.scale == "log" else change / max(abs(ref), least, 1e-12)
        return change / max(noise, floor, 1e-12), ref, share

    def _finding(
        self, i: int, k: int, s: Scale, row: RowPlace, how: str, first_row: int, first_step: float
    ) -> Finding:
        signal = SIGNAL_BY_NAME[self.signals[i]]
        log = signal.scale == "log"
        expected, value = (math.exp(s.ref), math.exp(s.peak)) if log else (s.ref, s.peak)
        rising = how == "accepted" and self._still_moving(s, signal.bad)
        kind = _kind(signal.name, rising=rising)
        ended = how == "back"
        tail = {
            "open": "",
            "back": ", back",
            "accepted": ", still moving" if rising else ", lasting",
        }[how]
        severity: Severity = "info"
        if signal.name == "loss":
            severity = "critical" if rising else "warning"
        return Finding(
            detector=f"{self.name}-{self.block_rows * 4**k}",
            kind=kind,
            signal=signal.name,
            severity=severity,
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.peak_row,
            peak=s.peak_step,
            end_row=first_row if ended else None,
            end=first_step if ended else None,
            value=value,
            expected=expected,
            score=s.score,
            grain_rows=self.block_rows * 4**k,
            direction="down" if signal.bad == "down" else "up",
            closed=how != "open",
            text=(
                f"{signal.name} {expected:.4g} → {value:.4g} over blocks of "
                f"{self.block_rows * 4**k} rows ({sigmas(s.score)}){tail}"
            ),
        )

    def _returning(self, s: Scale) -> bool:
        """Whether the last block is nearer to the level before than to the peak."""
        return abs(float(s.flagged[-1]) - s.ref) < 0.5 * abs(s.peak - s.ref)

    def _still_moving(self, s: Scale, bad: str) -> bool:
        """Whether the blocks of the change keep moving away by more than half of its first step."""
        sign = -1.0 if bad == "down" else 1.0
        first, last = float(s.flagged[0]), float(s.flagged[-1])
        return sign * (last - first) > 0.5 * sign * (first - s.ref)


def _kind(signal: str, *, rising: bool) -> str:
    if signal == "grad_norm":
        return "grad-drift"
    if signal == "loss" and rising:
        return "divergence"
    return "shift"
