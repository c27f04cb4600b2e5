"""Changes that few recipes make, as a guard's ledger of settings records them: notes by themselves.

Each may be meant (layers in turn, a curriculum, a second warm-up), so it is told, and acted on only
where trouble follows; a turned sign alone is a warning, and a factor of 255, which is the range of
bytes for that of shares. They often show in no loss: batches of
another scale (batch norm takes them in, and the model is of no use for others), a loss whose sign
has turned (it falls), most parameters frozen (it stays where it is), a rate far beyond all that the
run has had, a matrix that grew by no update, second moments of Adam that none took away. Each is a signal of its own, recorded where it begins,
and as 1 where it is over; a note that lasts is closed after `watch_rows`.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row, Rows, changed

__all__ = ["SUSPECT_CHANGES", "SuspectChangeDetector", "SuspectChangeState"]

_TEXTS = {
    "trained_share": ("most-frozen", "of what was trained {0:.0%} still is"),
    "batch_scale": ("batch-scale", "batches are of {0:.3g} times the usual scale"),
    "loss_factor": ("loss-count", "the loss is counted {0:.3g} times"),
    "rate_over_peak": ("rate-beyond-peak", "the learning rate is {0:.3g} times its earlier peak"),
    "weight_jump": ("weights-grew", "the norm of a matrix is {0:.3g} times as large by no update"),
    "adam_v_left": (
        "moments-lost",
        "Adam's second moments have shrunk to {0:.2g} of the least that updates alone can leave",
    ),
}
_MOST = (0.25, 8.0, 4.0, 2.0, 1.5, 0.5)
"""A share up to which, and factors from which on or below whose inverse, it is one: as the guard's
ledger has them."""
_SHARES = (0, 5)
"""Which of them are shares."""
_BYTES, _OF_BYTES = 255.0, 0.06
"""A transform that is lost, or made twice; and by how much the factor is another. Ours."""
SUSPECT_CHANGES = tuple(detector for detector, _ in _TEXTS.values())
"""Detectors of the findings."""


@dataclass(frozen=True)
class SuspectChangeState:
    """Row and step where each began, and its value; row -1: nothing is open."""

    rows: tuple[int, ...] = (-1,) * len(_TEXTS)
    steps: tuple[float, ...] = (0.0,) * len(_TEXTS)
    found: tuple[float, ...] = (1.0,) * len(_TEXTS)


@dataclass(frozen=True, kw_only=True)
class SuspectChangeDetector:
    """See the module."""

    name: str = "suspect-change"
    signals: tuple[str, ...] = tuple(_TEXTS)
    watch_rows: int = 128

    def start(self) -> SuspectChangeState:
        """Return the state before any row."""
        return SuspectChangeState()

    def update(
        self, state: SuspectChangeState, row: Row
    ) -> tuple[SuspectChangeState, tuple[Finding, ...]]:
        """Judge one row; a value that is missing or not finite changes nothing."""
        if max(state.rows) < 0 and not row.present.any():
            return state, ()
        rows, steps, found = list(state.rows), list(state.steps), list(state.found)
        findings: list[Finding] = []
        for i, value in enumerate(row.values.tolist()):
            told = bool(row.present[i]) and math.isfinite(value)
            is_open = rows[i] >= 0
            if is_open and ((told and value == 1) or row.index - rows[i] >= self.watch_rows):
                findings.append(self._finding(i, rows[i], steps[i], found[i], row, closed=True))
                rows[i] = -1
            elif told and not is_open and _is_suspect(i, value):
                rows[i], steps[i], found[i] = row.index, row.step, value
                findings.append(self._finding(i, row.index, row.step, value, row, closed=False))
        state = changed(state, rows=tuple(rows), steps=tuple(steps), found=tuple(found))
        return state, tuple(findings)

    def update_rows(
        self, state: SuspectChangeState, rows: Rows
    ) -> tuple[SuspectChangeState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; a log without such changes is passed."""
        findings: list[Finding] = []
        any_present = rows.present.any(axis=1)
        if max(state.rows) < 0 and not any_present.any():
            return state, ()
        first = 0 if max(state.rows) >= 0 else int(any_present.argmax())
        for k in range(first, len(rows)):
            state, found = self.update(state, rows.row(k))
            findings += found
        return state, tuple(findings)

    def _finding(
        self, i: int, onset_row: int, onset: float, value: float, row: Row, *, closed: bool
    ) -> Finding:
        detector, text = _TEXTS[self.signals[i]]
        return Finding(
            detector=detector,
            kind="setting-jump",
            signal=self.signals[i],
            severity="warning"
            if detector == "loss-count" or _is_of_bytes(detector, value)
            else "info",
            row=row.index,
            step=row.step,
            onset_row=onset_row,
            onset=onset,
            peak_row=onset_row,
            peak=onset,
            end_row=row.index if closed else None,
            end=row.step if closed else None,
            value=value,
            expected=1.0,
            score=10.0,
            direction="up" if value > 1 else "down",
            closed=closed,
            text=f"{text.format(value)}, not announced",
        )


def _is_of_bytes(detector: str, value: float) -> bool:
    factor = max(value, 1 / value) if value > 0 else 0.0
    return detector == "batch-scale" and abs(factor / _BYTES - 1) < _OF_BYTES


def _is_suspect(i: int, value: float) -> bool:
    if i in _SHARES:
        return value <= _MOST[i]
    return value <= 1 / _MOST[i] or value >= _MOST[i]
