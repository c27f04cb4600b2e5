"""Non-finite values: NaN or Inf in a loss, a norm or a moment.

One finding when a run of non-finite rows begins, one when a finite row ends it. They enter no
statistic of any detector. With a loss scaler, a non-finite gradient norm on a skipped step is how
the scaler works, and is a note only.
"""

import math
from dataclasses import dataclass

from trimtab.detectors.contract import Finding, Row
from trimtab.vocabulary import Severity

__all__ = ["NonFiniteDetector", "NonFiniteState"]


@dataclass(frozen=True)
class NonFiniteState:
    """Per signal: first row and step of the run of non-finite rows (-1: none), its length."""

    since_row: tuple[int, ...]
    since: tuple[float, ...]
    last_row: tuple[int, ...]
    last: tuple[float, ...]
    value: tuple[float, ...]
    scaled: bool
    """A loss scale was seen: overflow steps are part of normal work."""


@dataclass(frozen=True, kw_only=True)
class NonFiniteDetector:
    """See the module."""

    name: str = "non-finite"
    signals: tuple[str, ...] = (
        "loss",
        "grad_norm",
        "update_norm",
        "activation_norm",
        "attention_logit_max",
        "adam_v_l1",
        "adam_v_max",
        "nonfinite",
        "loss_scale",
    )

    def start(self) -> NonFiniteState:
        """Return the state before any row."""
        n = len(self.signals)
        return NonFiniteState(
            (-1,) * n, (0.0,) * n, (-1,) * n, (0.0,) * n, (0.0,) * n, scaled=False
        )

    def update(self, state: NonFiniteState, row: Row) -> tuple[NonFiniteState, tuple[Finding, ...]]:
        """Judge one row."""
        scale_at, count_at = self.signals.index("loss_scale"), self.signals.index("nonfinite")
        scaled = state.scaled or bool(row.present[scale_at])
        bad = [self._is_bad(i, count_at, row) for i in range(len(self.signals))]
        if not any(bad) and scaled == state.scaled and max(state.since_row) < 0:
            return state, ()
        since_row, since = list(state.since_row), list(state.since)
        last_row, last, value = list(state.last_row), list(state.last), list(state.value)
        findings: list[Finding] = []
        for i in range(len(self.signals)):
            if bad[i]:
                if since_row[i] < 0:
                    since_row[i], since[i], value[i] = row.index, row.step, float(row.values[i])
                    last_row[i], last[i] = row.index, row.step
                    findings.append(
                        self._finding(
                            i, row, since_row, since, last_row, last, value, scaled, closed=False
                        )
                    )
                last_row[i], last[i] = row.index, row.step
            elif since_row[i] >= 0 and row.present[i]:
                findings.append(
                    self._finding(
                        i, row, since_row, since, last_row, last, value, scaled, closed=True
                    )
                )
                since_row[i] = -1
        return (
            NonFiniteState(
                tuple(since_row), tuple(since), tuple(last_row), tuple(last), tuple(value), scaled
            ),
            tuple(findings),
        )

    def _is_bad(self, i: int, count_at: int, row: Row) -> bool:
        if not row.present[i]:
            return False
        value = float(row.values[i])
        return value > 0 if i == count_at else not math.isfinite(value)

    def _finding(
        self, i: int, row: Row, since_row: list[int], since: list[float], last_row: list[int],
        last: list[float], value: list[float], scaled: bool, *, closed: bool,
    ) -> Finding:  # fmt: skip
        signal = self.signals[i]
        num_rows = last_row[i] - since_row[i] + 1
        word = "non-finite" if signal == "nonfinite" else f"{value[i]}"
        return Finding(
            detector=self.name,
            kind="non-finite",
            signal=signal,
            severity=_severity(signal, scaled, num_rows),
            row=row.index,
            step=row.step,
            onset_row=since_row[i],
            onset=since[i],
            peak_row=since_row[i],
            peak=since[i],
            end_row=last_row[i] if closed else None,
            end=last[i] if closed else None,
            value=value[i],
            expected=0.0,
            score=math.inf,
            closed=closed,
            text=f"{signal} is {word}"
            + (f" for {num_rows} rows" if closed and num_rows > 1 else ""),
        )


def _severity(signal: str, scaled: bool, num_rows: int) -> Severity:
    if signal == "loss":
        return "critical"
    if scaled and num_rows < 8:
        return "info"
    return "warning"
