"""Loss-scale collapse: the fp16 scaler halves again and again without growing back.

A dynamic scaler halves once in a while and doubles after some hundred clean steps; what is not
normal is a fall by `warn_halvings` within `window_rows` rows, or a scale that came down to the
floor and stays there: every step is skipped or loses its small gradients, and nothing is learned.
Where a row stands for many steps, or the scaler grows fast, the scale swings in every window: a
fall must then exceed the mean fall of the windows before by `over_swing` halvings.
The calibration of the first rows, where a scaler comes down from a very high start, is no
collapse; where the scale has held for `held_rows` before, a fall by `critical_halvings` is one. A lower scale that holds for `timeout_rows` is accepted, which is reported once.

Blind to a scale that sinks over thousands of rows: see `level`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["ScaleCollapseDetector", "ScaleCollapseState"]


@dataclass(frozen=True)
class ScaleCollapseState:
    """`recent` [window_rows] is a ring of log2 scales with their rows and steps."""

    recent: NDArray[np.float64]
    rows: NDArray[np.int64]
    steps: NDArray[np.float64]
    num_rows: int = 0
    onset_row: int = -1
    """-1 while calm."""
    onset: float = 0.0
    top: float = 0.0
    lowest: float = 0.0
    lowest_row: int = 0
    lowest_step: float = 0.0
    age: int = 0
    """Rows since the lowest."""
    critical: bool = False
    highest: float = -math.inf
    """Highest log2 scale ever."""
    num_floor: int = 0
    """Rows in a row at the floor, and where they began."""
    floor_row: int = 0
    floor_step: float = 0.0
    swing: float = 0.0
    """Mean over the whole windows since the calibration of the largest fall within each."""
    num_windows: int = 0
    last: float = math.nan
    """The last log2 scale."""
    num_held: int = 0
    """Rows since the scale last fell."""
    held_from: int = -1
    """The first of the first `held_rows` of them, counted like `num_rows`; -1: not yet."""


@dataclass(frozen=True, kw_only=True)
class ScaleCollapseDetector:
    """See the module."""

    name: str = "scale-collapse"
    signals: tuple[str, ...] = ("loss_scale",)
    window_rows: int = 32
    warn_halvings: float = 3.0
    """OPT and BigScience logs: a fall by 8 within ten rows went with trouble in every case."""
    critical_halvings: float = 5.0
    over_swing: float = 2.0
    """Halvings over the usual fall of a window: a scaler that falls by one now and then keeps
    `warn_halvings`."""
    calibration_rows: int = 64
    """A scaler that starts at 2^32 needs up to 32 halvings to find its range."""
    held_rows: int = 16
    """Rows in which the scale does not fall, by which it has found it. Ours."""
    timeout_rows: int = 200
    """Rows without a new low after which the lower scale is accepted; as in `spike`."""
    low_scale: float = 256.0
    """Scale above which a fall in the first rows may be a scaler that finds its range. Ours."""
    floor_scale: float = 1.0
    """Scale below which scalers do not go: Megatron's --min-loss-scale default."""
    floor_rows: int = 50
    """Rows at the floor after which it is reported that nothing is learned."""

    def start(self) -> ScaleCollapseState:
        """Return the state before any row."""
        n = self.window_rows
        return ScaleCollapseState(np.zeros(n), np.zeros(n, dtype=np.int64), np.zeros(n))

    def update(
        self, state: ScaleCollapseState, row: Row
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        """Judge one row; a missing, zero or non-finite scale leaves the state as it is."""
        value = float(row.values[0])
        if not row.present[0] or not math.isfinite(value) or value <= 0:
            return state, ()
        y = math.log2(value)
        s = self._remember(state, row, y)
        if s.onset_row < 0:
            s, found = self._open(s, row, y)
        else:
            s, found = self._follow(s, row, y)
        s, pinned = self._watch_floor(s, row, y)
        return s, found + pinned

    def update_rows(
        self, state: ScaleCollapseState, rows: Rows
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; those at or near the top are passed."""
        values = rows.values[:, 0]
        usable = np.flatnonzero(np.isfinite(values) & (values > 0))
        if not len(usable):
            return state, ()
        y = np.array([math.log2(v) for v in values[usable].tolist()])
        telling = np.flatnonzero(self._tells(state, y))
        findings: list[Finding] = []
        at = 0
        while at < len(y):
            if state.onset_row < 0 and state.num_floor == 0:
                later = int(np.searchsorted(telling, at))
                stop = int(telling[later]) if later < len(telling) else len(y)
                state = self._pass(state, rows, usable[at:stop], y[at:stop])
                at = stop
            if at < len(y):
                state, found = self.update(state, rows.row(int(usable[at])))
                findings += found
                at += 1
        return state, tuple(findings)

    def _tells(self, s: ScaleCollapseState, y: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Whether rows would open something, were everything calm before them: bool [n]."""
        kept = min(s.num_rows, self.window_rows)
        before = np.roll(s.recent, -(s.num_rows % self.window_rows))
        # The ring starts as zeros, and log2 scale 0 would count as a scale of 1 that was logged.
        before[: self.window_rows - kept] = -np.inf
        tops = sliding_window_view(np.concatenate((before[1:], y)), self.window_rows).max(axis=1)
        held = _rows_held(s, y)
        settled = s.num_rows + np.arange(1, len(y) + 1) > self.calibration_rows
        settled |= (s.held_from >= 0) | np.logical_or.accumulate(held >= self.held_rows)
        floor = math.log2(self.floor_scale)
        fell = np.maximum.accumulate(np.append(s.highest, y))[1:] >= floor + self.warn_halvings
        # Two ways to open: a fall within the window, and a scale at the floor after it was higher.
        tells: NDArray[np.bool_] = settled & (tops - y >= self.warn_halvings) | fell & (y <= floor)
        return tells

    def _pass(
        self, s: ScaleCollapseState, rows: Rows, at: NDArray[np.intp], y: NDArray[np.float64]
    ) -> ScaleCollapseState:
        """Update the state with rows in which nothing is reported."""
        while len(y):
            # From one full window to the next, each of which counts for the swing.
            num = self.window_rows - s.num_rows % self.window_rows
            s = self._with_swing(self._pass_within(s, rows, at[:num], y[:num]))
            at, y = at[num:], y[num:]
        return s

    def _pass_within(
        self, s: ScaleCollapseState, rows: Rows, at: NDArray[np.intp], y: NDArray[np.float64]
    ) -> ScaleCollapseState:
        recent, places, steps = s.recent.copy(), s.rows.copy(), s.steps.copy()
        ring = (s.num_rows + np.arange(len(y))) % self.window_rows
        held = _rows_held(s, y)
        recent[ring], places[ring], steps[ring] = y, rows.index[at], rows.step[at]
        return replace(
            s,
            recent=recent,
            rows=places,
            steps=steps,
            num_rows=s.num_rows + len(y),
            highest=max(s.highest, float(y.max())),
            last=float(y[-1]),
            num_held=int(held[-1]),
            held_from=self._first_held(
                s, int(np.argmax(held >= self.held_rows)) + 1 if held.max() >= self.held_rows else 0
            ),
        )

    def _remember(self, s: ScaleCollapseState, row: Row, y: float) -> ScaleCollapseState:
        recent, rows, steps = s.recent.copy(), s.rows.copy(), s.steps.copy()
        at = s.num_rows % self.window_rows
        held = 0 if y < s.last else s.num_held + 1
        recent[at], rows[at], steps[at] = y, row.index, row.step
        return self._with_swing(
            changed(
                s,
                recent=recent,
                rows=rows,
                steps=steps,
                num_rows=s.num_rows + 1,
                highest=max(s.highest, y),
                last=y,
                num_held=held,
                held_from=self._first_held(s, 1 if held >= self.held_rows else 0),
            )
        )

    def _first_held(self, s: ScaleCollapseState, rows: int) -> int:
        """Return where the scale first held; after so many more rows it has, 0: it does not yet."""
        return s.num_rows + rows - self.held_rows if rows and s.held_from < 0 else s.held_from

    def _with_swing(self, s: ScaleCollapseState) -> ScaleCollapseState:
        """Return the state with the fall of a window that is just full."""
        # Whole windows only: the ring is then in time order, and a row costs nothing in between.
        if s.num_rows % self.window_rows or s.num_rows <= self.calibration_rows:
            return s
        fall = float((np.maximum.accumulate(s.recent) - s.recent).max())
        num = s.num_windows + 1
        return changed(s, swing=s.swing + (fall - s.swing) / num, num_windows=num)

    def _open(
        self, s: ScaleCollapseState, row: Row, y: float
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        first, least = 0, max(self.warn_halvings, s.swing + self.over_swing)
        if s.num_rows <= self.calibration_rows:
            if s.held_from < 0:
                return s, ()
            first, least = s.held_from, self.critical_halvings
        if float(s.recent[: min(s.num_rows, self.window_rows)].max()) - y < least:
            return s, ()
        first = max(first, s.num_rows - self.window_rows)
        top = max(float(s.recent[i % self.window_rows]) for i in range(first, s.num_rows))
        if top - y < least:
            return s, ()
        onset_row, onset = self._first_fall(s, top)
        s = replace(
            s,
            onset_row=onset_row,
            onset=onset,
            top=top,
            lowest=y,
            lowest_row=row.index,
            lowest_step=row.step,
            age=0,
            critical=self._is_critical(s, top - y, y),
        )
        return s, (self._finding(s, row, "open"),)

    def _is_critical(self, s: ScaleCollapseState, halvings: float, lowest: float) -> bool:
        """Whether it fell far, and in the first rows to where no scaler of fp16 comes to rest."""
        settled = s.num_rows > self.calibration_rows or lowest <= math.log2(self.low_scale)
        return halvings >= self.critical_halvings and settled

    def _follow(
        self, s: ScaleCollapseState, row: Row, y: float
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        if y < s.lowest:
            s = replace(s, lowest=y, lowest_row=row.index, lowest_step=row.step, age=0)
        else:
            s = replace(s, age=s.age + 1)
        # One octave below counts as back: a scaler at its usual level halves now and then.
        if y >= s.top - 1:
            return replace(s, onset_row=-1), (self._finding(s, row, "back"),)
        if s.age >= self.timeout_rows:
            return replace(s, onset_row=-1), (self._finding(s, row, "accepted"),)
        if not s.critical and self._is_critical(s, s.top - s.lowest, s.lowest):
            s = replace(s, critical=True)
            return s, (self._finding(s, row, "open"),)
        return s, ()

    def _first_fall(self, s: ScaleCollapseState, top: float) -> tuple[int, float]:
        """Return row and step of the first value below the top, in time order."""
        first = max(0, s.num_rows - self.window_rows)
        order = [i % self.window_rows for i in range(first, s.num_rows)]
        # Exact comparison is right: `top` was taken from these very values.
        last_top = max(k for k, i in enumerate(order) if s.recent[i] == top)
        i = order[last_top + 1]
        return int(s.rows[i]), float(s.steps[i])

    def _watch_floor(
        self, s: ScaleCollapseState, row: Row, y: float
    ) -> tuple[ScaleCollapseState, tuple[Finding, ...]]:
        """Report a scale that stays at the floor, unless it never was above (bf16 logs say 1)."""
        fell = s.highest >= math.log2(self.floor_scale) + self.warn_halvings
        if not fell or y > math.log2(self.floor_scale):
            told = s.num_floor >= self.floor_rows
            found = (self._floor_finding(s, row, closed=True),) if told else ()
            return (replace(s, num_floor=0) if s.num_floor else s), found
        if s.num_floor == 0:
            s = replace(s, floor_row=row.index, floor_step=row.step)
        s = replace(s, num_floor=s.num_floor + 1)
        # Equal, not at least: it is reported once, in the row that reaches the number.
        if s.num_floor != self.floor_rows:
            return s, ()
        return s, (self._floor_finding(s, row, closed=False),)

    def _finding(self, s: ScaleCollapseState, row: Row, how: str) -> Finding:
        halvings = s.top - s.lowest
        ended = how == "back"
        return Finding(
            detector=self.name,
            kind="scale-collapse",
            signal="loss_scale",
            severity="critical" if s.critical else "warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.lowest_row,
            peak=s.lowest_step,
            end_row=row.index if ended else None,
            end=row.step if ended else None,
            value=2.0**s.lowest,
            expected=2.0**s.top,
            score=halvings,
            direction="down",
            closed=how != "open",
            text=f"loss scale {2.0**s.top:.6g} → {2.0**s.lowest:.6g}, {halvings:.0f} halvings"
            + {"open": "", "back": ", back", "accepted": ", lasting"}[how],
        )

    def _floor_finding(self, s: ScaleCollapseState, row: Row, *, closed: bool) -> Finding:
        return Finding(
            detector=f"{self.name}-floor",
            kind="scale-collapse",
            signal="loss_scale",
            severity="critical",
            row=row.index,
            step=row.step,
            onset_row=s.floor_row,
            onset=s.floor_step,
            peak_row=s.floor_row,
            peak=s.floor_step,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=self.floor_scale,
            expected=2.0**s.highest,
            score=s.highest - math.log2(self.floor_scale),
            direction="down",
            closed=closed,
            text=(
                f"loss scale at its floor ({self.floor_scale:g}) for {s.num_floor} rows: no"
                " learning"
            ),
        )


def _rows_held(s: ScaleCollapseState, y: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the rows since the scale last fell, as of each of some rows: [n]."""
    fell = np.diff(y, prepend=s.last) < 0  # of a first row there is nothing to fall from
    at = np.arange(len(y))
    last = np.maximum.accumulate(np.where(fell, at, -1))
    return np.where(last < 0, s.num_held + at + 1, at - last)
