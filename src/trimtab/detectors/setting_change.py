"""A setting in force changes in a run: weight decay, batch, decay rates of Adam, a weight of the loss.

Settings stand still or follow a smooth schedule. A setting that kept one value for `min_rows` rows,
then takes another by `factor` or more and keeps it for `hold_rows` rows, was changed: at a resume,
by a reload bug, by a schedule in code. The decay rates are compared by what they leave, 1 - beta,
which is one over the memory in steps. The batch is reported where it falls; a batch that grows is
a ramp, as recipes plan them, and the shorter last batch of an epoch is back in the next row.

Reported once per change, with the row at which it set in. The learning rate has a rule of its own,
`lr_change`, since its schedule moves in each row.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows

__all__ = ["SettingChangeDetector", "SettingChangeState"]

_NAMES = {
    "weight_decay": "weight decay",
    "batch_size": "batch size",
    "beta1": "beta1",
    "beta2": "beta2",
    "adam_eps": "Adam's epsilon",
    "kl_weight": "the weight of the divergence",
}
_BY_PLAN = frozenset({"kl_weight"})
"""Weights of a part of the loss: stages raise them, so a change is told as a note."""


@dataclass(frozen=True)
class WatchedSetting:
    """One setting: the value in force, for how many rows, and a change that is not sure yet."""

    value: float = math.nan
    num_rows: int = 0
    new: float = math.nan
    new_rows: int = 0
    new_row: int = 0
    new_step: float = 0.0


@dataclass(frozen=True)
class SettingChangeState:
    """One `WatchedSetting` per signal."""

    settings: tuple[WatchedSetting, ...]


@dataclass(frozen=True, kw_only=True)
class SettingChangeDetector:
    """See the module."""

    name: str = "setting-change"
    signals: tuple[str, ...] = tuple(_NAMES)
    factor: float = 1.5
    """Smaller moves are schedules that log few digits. Ours."""
    min_rows: int = 20
    hold_rows: int = 3
    """The last batch of an epoch is short for one row."""

    def start(self) -> SettingChangeState:
        """Return the state before any row."""
        return SettingChangeState((WatchedSetting(),) * len(self.signals))

    def update(
        self, state: SettingChangeState, row: Row
    ) -> tuple[SettingChangeState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their setting as it is."""
        settings, findings = list(state.settings), list[Finding]()
        for i, value in enumerate(row.values.tolist()):
            if row.present[i] and math.isfinite(value):
                settings[i], found = self._take(i, settings[i], value, row.index, row.step)
                findings += found
        return SettingChangeState(tuple(settings)), tuple(findings)

    def update_rows(
        self, state: SettingChangeState, rows: Rows
    ) -> tuple[SettingChangeState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; stretches of one value are counted."""
        settings, findings = list(state.settings), list[Finding]()
        for i in range(len(self.signals)):
            column = rows.values[:, i]
            usable = np.flatnonzero(np.isfinite(column))
            values = column[usable]
            at = 0
            while at < len(values):
                s = settings[i]
                value = float(values[at])
                if value == s.value and not s.new_rows:
                    others = np.flatnonzero(values[at:] != value)
                    stop = at + int(others[0]) if len(others) else len(values)
                    settings[i] = WatchedSetting(value, s.num_rows + stop - at)
                    at = stop
                    continue
                k = int(usable[at])
                settings[i], found = self._take(
                    i, s, value, int(rows.index[k]), float(rows.step[k])
                )
                findings += found
                at += 1
        findings.sort(key=lambda f: f.row)
        return SettingChangeState(tuple(settings)), tuple(findings)

    def _take(
        self, i: int, s: WatchedSetting, value: float, row: int, step: float
    ) -> tuple[WatchedSetting, tuple[Finding, ...]]:
        if value == s.value:
            # A change that went back at once was none.
            return WatchedSetting(value, s.num_rows + s.new_rows + 1), ()
        if not s.num_rows:
            return WatchedSetting(value, 1), ()
        if not s.new_rows or value != s.new:
            # A second new value: a schedule that moves on in each row.
            if s.new_rows:
                return WatchedSetting(value, 1), ()
            s = WatchedSetting(s.value, s.num_rows, value, 0, row, step)
        s = WatchedSetting(s.value, s.num_rows, s.new, s.new_rows + 1, s.new_row, s.new_step)
        if s.new_rows < self.hold_rows:
            return s, ()
        now = WatchedSetting(s.new, s.new_rows)
        if s.num_rows < self.min_rows or not self._matters(i, s.value, s.new):
            return now, ()
        return now, (self._finding(i, s, row, step),)

    def _matters(self, i: int, old: float, new: float) -> bool:
        if self.signals[i] == "batch_size" and new > old:
            return False
        return abs(_log_ratio(self.signals[i], old, new)) >= math.log(self.factor)

    def _finding(self, i: int, s: WatchedSetting, row: int, step: float) -> Finding:
        signal = self.signals[i]
        return Finding(
            detector=self.name,
            kind="setting-jump",
            signal=signal,
            severity="info" if signal in _BY_PLAN else "warning",
            row=row,
            step=step,
            onset_row=s.new_row,
            onset=s.new_step,
            peak_row=s.new_row,
            peak=s.new_step,
            value=s.new,
            expected=s.value,
            score=min(99.0, 6 + abs(_log_ratio(signal, s.value, s.new))),
            direction="up" if s.new > s.value else "down",
            closed=True,
            text=f"{_NAMES[signal]} {s.value:g} → {s.new:g} after {s.num_rows} rows at one value",
        )


def _log_ratio(signal: str, old: float, new: float) -> float:
    """Return the logarithm of new over old; of 1 - beta for a decay rate; Inf to or from 0."""
    if signal.startswith("beta"):
        old, new = 1 - old, 1 - new
    if old == new:
        return 0.0
    if min(old, new) <= 0:
        return math.inf
    return math.log(new) - math.log(old)
