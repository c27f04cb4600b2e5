"""Spikes: a signal leaves its recent level within a few rows.

    level[t] = level[t-1] + 0.25 clip(r[t-1], +-4 sigma)        recent level, robust
    r[t]     = y[t] - level[t]                                  y: loss as is, norms as logarithm
    lag      = min(0, mean clip(r, +-4 sigma) + 2 errors)       the level lags behind what falls
    sigma    = 1.4826 median |r - lag|, at least -lag / 2       so autocorrelated noise is included
               (`floored_sigma`: of a loss, where most r are as good as equal, a share of its fall)
    z[t]     = (r[t] - lag) / max(sigma, floor)

with the median over the last 128 calm rows, and the mean, of a run that began, over the newer half
of them. A fall that stops at once, or turns, stays below 4 sigma by the lag.

A row with z > 8 (and above half of the largest |z| that calm rows reached: heavy tails are priced
in) opens an episode and freezes level and sigma, and so does the second of two on end that are
three quarters as far. Two rows with z > 8 within three make it a spike, and so do two more rows
that are half as far; a single one is a spike only at 5 times that largest |z|, else an
outlier, worth a note and no alarm. A spike of up to four rows is an alarm only where it lies far
out (z > 10) and took three rows until the first within 2 sigma: an odd batch is over at once, a
loss that has to be learned back is not. The episode closes after three rows back at the level, of
one that lasts for longer where the median of its last 16 rows is back, too: three low rows of a
loss that stays up are chance. After `timeout_rows` the new level is accepted, which is reported
once.

Blind to a rise that is spread over more than about ten rows: see `level`.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, RowPlace, Rows, Series, changed, series_of
from trimtab.errors import ConfigError
from trimtab.signals.robust import floored_sigma, mad_sigma, median
from trimtab.text import sigmas
from trimtab.vocabulary import SIGNAL_BY_NAME, Severity

__all__ = ["Calm", "Episode", "SpikeDetector", "SpikeState"]

_TAIL_ROWS = 3
_SHORT_ROWS = 4
# As many rows as a block of `level` has.
_RECENT = 16
_LAGS = 2.0
"""Sigmas that the level lags by at most: a fall that stops is no rise. Ours."""
_SURE = 2.0
"""Standard errors of the mean residual by which a fall must be more than noise."""
_START_ROWS = (4, 16)
"""Rows whose level the fall is counted from: a first row alone may have exploded."""


@dataclass(frozen=True)
class Near:
    """A row that lies nearly as far out as one that opens an episode."""

    level: float = 0.0
    """The level before it."""
    row: int = -1
    """Its number; below 0: there is none."""
    step: float = 0.0
    value: float = 0.0
    y: float = 0.0
    """The value on the signal's scale."""


@dataclass(frozen=True)
class Calm:
    """What is known of one signal's normal behavior."""

    level: float
    sigma: float
    lag: float
    """Where a calm row lies from the level, at most 0: below it, while the signal falls."""
    tail: float
    """Largest |z| that calm rows reached; forgets slowly."""
    num_rows: int
    residuals: NDArray[np.float64]
    """float64 [window_rows], ring."""
    start: float = -math.inf
    """Highest level from the fourth to the sixteenth row; what a loss has fallen from."""
    near: Near = field(default_factory=Near)
    """The last row, where it lay nearly far enough."""


@dataclass(frozen=True)
class Episode:
    """A departure from the level under way; `stage` 0: none, 1: candidate, 2: reported."""

    stage: int = 0
    onset_row: int = 0
    onset: float = 0.0
    age: int = 0
    num_over: int = 0
    num_half: int = 0
    """Rows at least half as far as one must be to count."""
    last_over_row: int = 0
    last_over: float = 0.0
    num_quiet: int = 0
    num_tail: int = 0
    """Rows from the onset until the first within `back_sigma`: how long it took to heal."""
    peak: float = 0.0
    peak_row: int = 0
    peak_step: float = 0.0
    peak_z: float = 0.0
    recent: NDArray[np.float64] = field(default_factory=lambda: np.zeros(_RECENT))
    """float64 [16], ring of the last values, to settle on when the new level is accepted."""


@dataclass(frozen=True)
class SpikeState:
    """One `Calm` and one `Episode` per signal."""

    calm: tuple[Calm, ...]
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, kw_only=True)
class SpikeDetector:
    """See the module."""

    name: str = "spike"
    signals: tuple[str, ...] = (
        "loss",
        "grad_norm",
        "update_norm",
        "activation_norm",
        "attention_logit_max",
    )
    threshold_sigma: float = 8.0
    """Six published healthy runs stay below 4.5; chosen with the simulated quiet runs."""
    calm_sigma: float = 3.0
    """Below this a row counts as back at its level."""
    back_sigma: float = 2.0
    """Below this the first row after a peak counts as healed at once."""
    far_sigma: float = 10.0
    """A spike of a few rows is an alarm from here on, where it also took three rows to heal."""
    tail_factor: float = 5.0
    """How far beyond the largest calm |z| a single row must be; chosen on Student-t3 noise."""
    window_rows: int = 128
    min_rows: int = 24
    """Calm rows needed before anything is reported."""
    timeout_rows: int = 200
    """Rows after which a level that did not come back is accepted as the new one."""
    near_share: float = 0.75
    """How far out, as a share of what opens an episode, two rows on end open one."""
    smoothing: float = 0.25
    floor_linear: float = 2e-3
    """Smallest sigma believed, as a share of the level: log round-off lies below."""
    floor_log: float = 0.03
    """Smallest sigma believed of a log-scaled signal."""

    def __post_init__(self) -> None:
        """Refuse windows that cannot hold a median."""
        if not 8 <= self.min_rows <= self.window_rows or self.window_rows < 16:
            raise ConfigError(
                f"spike: window_rows={self.window_rows}, min_rows={self.min_rows}; "
                "need 8 <= min_rows <= window_rows and window_rows >= 16"
            )

    def start(self) -> SpikeState:
        """Return the state before any row."""
        calm = Calm(0.0, 0.0, 0.0, self.threshold_sigma, 0, np.zeros(self.window_rows))
        n = len(self.signals)
        return SpikeState((calm,) * n, (Episode(),) * n)

    def update(self, state: SpikeState, row: Row) -> tuple[SpikeState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        return self._update(state, row)

    def update_rows(self, state: SpikeState, rows: Rows) -> tuple[SpikeState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one."""
        return self._update(state, rows)

    def _update(
        self, state: SpikeState, rows: Row | Rows
    ) -> tuple[SpikeState, tuple[Finding, ...]]:
        calms, episodes = list(state.calm), list(state.episodes)
        findings: list[Finding] = []
        for i, signal in enumerate(self.signals):
            series = series_of(signal, i, rows)
            at = 0
            # Calm rows go through one loop in `_learn`; a dataclass per row costs far more.
            while at < len(series.y):
                if episodes[i].stage == 0:
                    calms[i], at = self._learn(i, calms[i], series, at)
                    if at == len(series.y):
                        break
                calms[i], episodes[i], found = self._judge(i, calms[i], episodes[i], series, at)
                at += 1
                if found is not None:
                    findings.append(found)
        findings.sort(key=lambda f: f.row)
        return SpikeState(tuple(calms), tuple(episodes)), tuple(findings)

    def _learn(self, i: int, calm: Calm, series: Series, first: int) -> tuple[Calm, int]:
        """Update level, spread and tail, from one row to before the first that leaves them.

        Returns the new state and the position of that row, or of the end.
        """
        y, log = series.y, SIGNAL_BY_NAME[self.signals[i]].scale == "log"
        sigma, lag, tail, n = calm.sigma, calm.lag, calm.tail, calm.num_rows
        level = y[first] if n == 0 else calm.level
        residuals, window_rows, start = calm.residuals.copy(), self.window_rows, calm.start
        near, before = calm.near.row >= 0, calm.near.level
        near_sigma, near_tail = self.near_share * self.threshold_sigma, 0.5 * self.near_share
        for at in range(first, len(y)):  # comparisons, not min and max: this is where time goes
            spread = self.floor_log if log else self._floor(level, log=log)
            spread = sigma if sigma > spread else spread
            residual = move = y[at] - level
            if n >= self.min_rows:
                z = (residual - lag) / spread
                # Half the largest: heavy-tailed noise reaches its extremes again and again.
                was_near, near = near, z > near_sigma and z > near_tail * tail
                if near:
                    far = z > self.threshold_sigma and z > 0.5 * tail
                    if far or was_near:
                        # What is far enough by itself begins there: the row before may be chance.
                        kept = Near() if far else self._near(calm, before, series, at - 1)
                        return Calm(level, sigma, lag, tail, n, residuals, start, kept), at
                    before = level
                # the largest calm |z| fades, by half in 3,500 rows: a run may become quieter
                tail = max(tail * 0.9998, abs(z), self.threshold_sigma)
                if not -4 * spread <= residual <= 4 * spread:
                    move = math.copysign(4 * spread, residual)
            # the raw residual, not the clipped move: sigma has to see the tail
            residuals[n % window_rows] = residual
            level += self.smoothing * move
            n += 1
            if n <= _START_ROWS[1] and n >= _START_ROWS[0]:
                start = max(start, level)
            # a sort of the window is the costly part, and 8 of 128 rows hardly move the median
            if n % 8 == 0 or n <= self.min_rows:
                known = residuals[:n]
                if n <= 2 * window_rows or n % 64 == 0:
                    lag = self._lag(residuals, n, 4 * spread)
                if log:
                    sigma = mad_sigma(known, center=lag)
                else:
                    sigma = floored_sigma(known - lag, fall=start - level)
                sigma = max(sigma, -lag / _LAGS)
        last = len(y) - 1
        kept = self._near(calm, before, series, last) if near else Near()
        return Calm(level, sigma, lag, tail, n, residuals, start, kept), len(y)

    def _lag(self, residuals: NDArray[np.float64], n: int, most: float) -> float:
        """Return where calm rows lie from the level: below it, beyond doubt, or at it."""
        wanted = min(max(n // 2, self.min_rows), self.window_rows)
        newest = residuals[max(n - wanted, 0) : n] if n <= self.window_rows else residuals
        newest = np.clip(newest, -most, most)
        top = float(np.abs(newest).max())
        if not 0 < top < math.inf:
            return 0.0
        newest = newest / top  # squares of losses near the largest float are none
        sure = newest.mean() + _SURE * newest.std() / math.sqrt(len(newest))
        return min(top * float(sure), 0.0)

    def _floor(self, level: float, *, log: bool) -> float:
        return self.floor_log if log else max(self.floor_linear * abs(level), 1e-12)

    def _near(self, calm: Calm, level: float, series: Series, at: int) -> Near:
        """Return the row that is nearly far enough: one of these, or the last one before them."""
        if at < 0:
            return calm.near
        place = series.place(at)
        return Near(level, place.index, place.step, series.value[at], series.y[at])

    def _judge(
        self, i: int, calm: Calm, episode: Episode, series: Series, at: int
    ) -> tuple[Calm, Episode, Finding | None]:
        """Take a row of an episode, or one that opens it."""
        row, near = series.place(at), calm.near
        if episode.stage == 0 and near.row >= 0:
            # It counts as the first row, and its level as the calm one.
            calm = changed(calm, level=near.level, near=Near())
            first = RowPlace(near.row, near.step)
            episode = self._take(i, calm, episode, first, near.value, near.y)
        episode = self._take(i, calm, episode, row, series.value[at], series.y[at])
        return self._follow(i, calm, episode, row)

    def _take(
        self, i: int, calm: Calm, episode: Episode, row: RowPlace, value: float, y: float
    ) -> Episode:
        log = SIGNAL_BY_NAME[self.signals[i]].scale == "log"
        z = (y - calm.level - calm.lag) / max(calm.sigma, self._floor(calm.level, log=log))
        if episode.stage == 0:
            episode = Episode(
                stage=1,
                onset_row=row.index,
                onset=row.step,
                last_over_row=row.index,
                last_over=row.step,
                peak=value,
                peak_row=row.index,
                peak_step=row.step,
                peak_z=z,
            )
        return self._observe(episode, row, value, y, z, self._bar(calm))

    def _bar(self, calm: Calm) -> float:
        return max(self.threshold_sigma, 0.5 * calm.tail)

    def _observe(
        self, e: Episode, row: RowPlace, value: float, y: float, z: float, bar: float
    ) -> Episode:
        """Take a row of an episode into its counts and its peak."""
        over = z > bar
        lasts = over or (e.num_over == 0 and z > self.near_share * bar)
        recent = e.recent.copy()
        # after a time-out these rows are the past from which the new level starts
        recent[e.age % _RECENT] = y
        higher = z > e.peak_z
        return Episode(
            stage=e.stage,
            onset_row=e.onset_row,
            onset=e.onset,
            age=e.age + 1,
            num_over=e.num_over + over,
            num_half=e.num_half + (z > 0.5 * bar),
            last_over_row=row.index if lasts else e.last_over_row,
            last_over=row.step if lasts else e.last_over,
            # One-sided: a loss that comes back below its level is back.
            num_quiet=e.num_quiet + 1 if z < self.calm_sigma else 0,
            num_tail=e.num_tail + (z > self.back_sigma and e.num_tail == e.age),
            peak=value if higher else e.peak,
            peak_row=row.index if higher else e.peak_row,
            peak_step=row.step if higher else e.peak_step,
            peak_z=max(z, e.peak_z),
            recent=recent,
        )

    def _follow(
        self, i: int, calm: Calm, e: Episode, row: RowPlace
    ) -> tuple[Calm, Episode, Finding | None]:
        """Decide what an episode is, or that it is over."""
        if e.stage == 1:
            # num_half: shuffled data rose by 9, 7.9 and 7.2 sigma, of which one passed 8; and by
            # 7.8 for four rows, of which none did.
            if e.num_over >= 2 or e.num_half >= 3 or e.peak_z > self.tail_factor * calm.tail:
                e = changed(e, stage=2)
                return calm, e, self._finding(i, calm, e, row, "open")
            if e.age < 3:
                return calm, e, None
            if e.num_over == 0:  # two rows on end that were near, and no more
                return calm, Episode(), None
            # The outlier was noise, so it widens the tail; at most twofold, or one row of 1e6 sigma
            # would deafen the rule for the rest of the run.
            tail = max(calm.tail, min(e.peak_z, 2 * calm.tail))
            return changed(calm, tail=tail), Episode(), self._finding(i, calm, e, row, "outlier")
        if e.num_quiet >= 3 and self._is_back(i, calm, e):
            return calm, Episode(), self._finding(i, calm, e, row, "back")
        if e.age >= self.timeout_rows:
            # Sigma stays: the noise around the new level is most likely that around the old one.
            settled = changed(calm, level=median(e.recent))
            return settled, Episode(), self._finding(i, calm, e, row, "accepted")
        return calm, e, None

    def _is_back(self, i: int, calm: Calm, e: Episode) -> bool:
        """Whether the level is back, and not three rows of it: of one that lasts for longer."""
        if e.age < _RECENT:
            return True
        log = SIGNAL_BY_NAME[self.signals[i]].scale == "log"
        spread = max(calm.sigma, self._floor(calm.level, log=log))
        return median(e.recent) - calm.level < self.back_sigma * spread

    def _finding(self, i: int, calm: Calm, e: Episode, row: RowPlace, how: str) -> Finding:
        signal = self.signals[i]
        expected = math.exp(calm.level) if SIGNAL_BY_NAME[signal].scale == "log" else calm.level
        width = e.last_over_row - e.onset_row + 1
        kind = {"outlier": "batch-outlier", "accepted": "unrecovered-spike"}.get(how, "spike")
        ended = how in ("back", "outlier")
        tail = {
            "open": "still up",
            "outlier": "one row",
            "back": f"back after {width} rows",
            "accepted": f"not back after {e.age} rows",
        }[how]
        return Finding(
            detector=self.name,
            kind=kind,
            signal=signal,
            severity=self._severity(signal, calm, e, how, width),
            row=row.index,
            step=row.step,
            onset_row=e.onset_row,
            onset=e.onset,
            peak_row=e.peak_row,
            peak=e.peak_step,
            end_row=e.last_over_row if ended else None,
            end=e.last_over if ended else None,
            value=e.peak,
            expected=expected,
            score=e.peak_z,
            closed=how != "open",
            text=f"{signal} {expected:.4g} → {e.peak:.4g} ({sigmas(e.peak_z)}), {tail}",
        )

    def _severity(self, signal: str, calm: Calm, e: Episode, how: str, width: int) -> Severity:
        """Return the severity: alarms on the loss alone, none for a few rows healed at once."""
        if signal != "loss" or how == "outlier":
            return "info"
        far = e.peak_z > max(self.far_sigma, calm.tail) and e.num_tail >= _TAIL_ROWS
        if how == "back" and width <= _SHORT_ROWS and not far:
            return "info"
        return "critical" if how == "accepted" else "warning"
