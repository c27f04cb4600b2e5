"""A setting changed between two steps, and nobody announced it: a guard's own record of settings.

A guard records its settings in the first row and wherever one changes, and with a change that
nobody announced `unannounced_changes`, the number of settings that changed. Each of them that the
row shows is named with its value before. It is evidence, not an alarm: what it did is judged by
what follows. Logs of other programs have no such signal; for them see `setting_change`.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row

__all__ = ["UnannouncedChangeDetector", "UnannouncedChangeState"]

_NAMES = {
    "unannounced_changes": "settings",
    "weight_decay": "weight decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "adam_eps": "Adam's epsilon",
    "momentum": "momentum",
    "clip_limit": "the clip",
    "dropout": "dropout",
    "trainable_parameters": "trained parameters",
    "eval_modules": "modules in eval mode",
}


@dataclass(frozen=True)
class UnannouncedChangeState:
    """The value of each setting as last recorded; NaN: not yet."""

    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class UnannouncedChangeDetector:
    """See the module."""

    name: str = "unannounced-change"
    signals: tuple[str, ...] = tuple(_NAMES)

    def start(self) -> UnannouncedChangeState:
        """Return the state before any row."""
        return UnannouncedChangeState((math.nan,) * len(self.signals))

    def update(
        self, state: UnannouncedChangeState, row: Row
    ) -> tuple[UnannouncedChangeState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their setting as it is."""
        if not row.present.any():
            return state, ()
        before, now = state.values, list(state.values)
        for i in np.flatnonzero(row.present).tolist():
            value = float(row.values[i])
            if math.isfinite(value):
                now[i] = value
        state = UnannouncedChangeState(tuple(now))
        count = float(row.values[0])
        if not row.present[0] or not count >= 1:
            return state, ()
        changed = [
            i
            for i in range(1, len(now))
            if row.present[i] and math.isfinite(before[i]) and now[i] != before[i]
        ]
        return state, tuple(self._finding(i, before[i], now[i], row) for i in changed or [0])

    def _finding(self, i: int, before: float, after: float, row: Row) -> Finding:
        signal = self.signals[i]
        if i:
            text = f"{_NAMES[signal]} {before:g} → {after:g}, not announced"
        else:
            text = f"{after:g} settings changed, not announced; the journal names them"
        return Finding(
            detector=self.name,
            kind="setting-jump",
            signal=signal,
            severity="info",
            row=row.index,
            step=row.step,
            onset_row=row.index,
            onset=row.step,
            peak_row=row.index,
            peak=row.step,
            value=after,
            expected=before if i else 0.0,
            score=6.0,
            direction="up" if i == 0 or after > before else "down",
            closed=True,
            text=text,
        )
