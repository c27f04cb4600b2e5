"""Non-finite values: NaN or Inf in a loss, a norm or a moment.

One finding when a run of non-finite rows begins, one when a finite row ends it. They enter no
statistic of any detector. With a loss scaler, a non-finite gradient norm on a skipped step is how
the scaler works, and is a note only. So is, after the first, a norm that is non-finite in a row or
two while the loss continues: it was reported once; a run of `LASTING_ROWS` rows is reported again.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows
from trimtab.vocabulary import Severity

__all__ = ["NonFiniteDetector", "NonFiniteState"]

# One or two rows are single bad batches; a third in a row is a state of the run.
LASTING_ROWS = 3


@dataclass(frozen=True)
class NonFiniteRun:
    """First and last row and step of a run of non-finite rows of one signal; -1 without one."""

    since_row: int = -1
    since: float = 0.0
    last_row: int = -1
    last: float = 0.0
    value: float = 0.0
    num_before: int = 0
    """Runs of this signal that are over."""


@dataclass(frozen=True)
class NonFiniteState:
    """One run per signal."""

    runs: tuple[NonFiniteRun, ...]
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
        return NonFiniteState((NonFiniteRun(),) * len(self.signals), scaled=False)

    def update(self, state: NonFiniteState, row: Row) -> tuple[NonFiniteState, tuple[Finding, ...]]:
        """Judge one row."""
        scale_at, count_at = self.signals.index("loss_scale"), self.signals.index("nonfinite")
        # Once seen, always: the scaler is there in rows that do not log it, too.
        scaled = state.scaled or bool(row.present[scale_at])
        bad = [
            bool(row.present[i]) and self._is_bad(i, count_at, row)
            for i in range(len(self.signals))
        ]
        if not any(bad) and scaled == state.scaled and all(r.since_row < 0 for r in state.runs):
            return state, ()
        runs = list(state.runs)
        findings: list[Finding] = []
        for i, (signal, run) in enumerate(zip(self.signals, state.runs, strict=True)):
            if bad[i]:
                began = run.since_row < 0
                value = float(row.values[i])
                if began:
                    run = NonFiniteRun(
                        row.index, row.step, row.index, row.step, value, run.num_before
                    )
                runs[i] = replace(run, last_row=row.index, last=row.step)
                if began or _turns_worse(signal, runs[i], scaled=scaled):
                    findings.append(self._finding(i, row, runs[i], closed=False, scaled=scaled))
            # An absent value ends nothing: a skipped step is often logged without its norm.
            elif run.since_row >= 0 and row.present[i]:
                findings.append(self._finding(i, row, run, closed=True, scaled=scaled))
                runs[i] = NonFiniteRun(num_before=run.num_before + 1)
        return NonFiniteState(tuple(runs), scaled), tuple(findings)

    def update_rows(
        self, state: NonFiniteState, rows: Rows
    ) -> tuple[NonFiniteState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one.

        Finite rows with no run under way are passed.
        """
        scale_at, count_at = self.signals.index("loss_scale"), self.signals.index("nonfinite")
        bad = rows.present & ~np.isfinite(rows.values)
        bad[:, count_at] = rows.values[:, count_at] > 0  # absent ones are NaN
        first_scale = np.flatnonzero(rows.present[:, scale_at])[:1]
        telling = np.union1d(np.flatnonzero(bad.any(axis=1)), first_scale)
        findings: list[Finding] = []
        at = 0
        while at < len(rows):
            if all(r.since_row < 0 for r in state.runs):
                later = int(np.searchsorted(telling, at))
                if later == len(telling):
                    break
                at = int(telling[later])
            state, found = self.update(state, rows.row(at))
            findings += found
            at += 1
        return state, tuple(findings)

    def _is_bad(self, i: int, count_at: int, row: Row) -> bool:
        value = float(row.values[i])
        # `nonfinite` is itself a count of bad elements, and finite when it tells of trouble.
        return value > 0 if i == count_at else not math.isfinite(value)

    def _finding(
        self, i: int, row: Row, run: NonFiniteRun, *, closed: bool, scaled: bool
    ) -> Finding:
        signal = self.signals[i]
        num_rows = _num_rows(run)
        word = "non-finite" if signal == "nonfinite" else f"{run.value}"
        lasted = f" for {num_rows} rows" if closed and num_rows > 1 else ""
        return Finding(
            detector=self.name,
            kind="non-finite",
            signal=signal,
            severity=_severity(signal, run, scaled=scaled),
            row=row.index,
            step=row.step,
            onset_row=run.since_row,
            onset=run.since,
            peak_row=run.since_row,
            peak=run.since,
            end_row=run.last_row if closed else None,
            end=run.last if closed else None,
            value=run.value,
            expected=0.0,
            score=math.inf,
            closed=closed,
            text=f"{signal} is {word}{lasted}",
        )


def _num_rows(run: NonFiniteRun) -> int:
    return run.last_row - run.since_row + 1


def _severity(signal: str, run: NonFiniteRun, *, scaled: bool) -> Severity:
    if signal == "loss":
        return "critical"
    # Eight halvings are a factor of 256, as far as a healthy scale swings (see `skipped`).
    if scaled and _num_rows(run) < 8:
        return "info"
    return "info" if run.num_before and _num_rows(run) < LASTING_ROWS else "warning"


def _turns_worse(signal: str, run: NonFiniteRun, *, scaled: bool) -> bool:
    """Whether this row makes an alarm of a run that began as a note."""
    if signal == "loss" or not run.num_before or scaled:
        return False
    return _num_rows(run) == LASTING_ROWS
