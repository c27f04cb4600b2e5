"""NaN that a trainer hides: the loss is printed as exactly 0 while the gradient norm is not finite.

Hugging Face's Trainer leaves NaN out of the loss that it logs (`logging_nan_inf_filter`), so a run
whose weights are NaN goes on with "loss 0.0, grad_norm nan" to its end. `min_rows` such rows in a
row are the signature: no update that follows can be sound. Critical; told once, and again if a
finite norm comes back.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, Rows

__all__ = ["SilentNanDetector", "SilentNanState"]


@dataclass(frozen=True)
class SilentNanState:
    """Rows of the signature so far, and where they began."""

    num_rows: int = 0
    first_row: int = 0
    first_step: float = 0.0


@dataclass(frozen=True, kw_only=True)
class SilentNanDetector:
    """See the module."""

    name: str = "silent-nan"
    signals: tuple[str, ...] = ("loss", "grad_norm")
    min_rows: int = 3

    def start(self) -> SilentNanState:
        """Return the state before any row."""
        return SilentNanState()

    def update(self, state: SilentNanState, row: Row) -> tuple[SilentNanState, tuple[Finding, ...]]:
        """Judge one row; one with the loss or the norm alone leaves the state as it is."""
        if not row.present.all():
            return state, ()
        loss, norm = row.values.tolist()
        if loss != 0 or math.isfinite(norm):
            over = state.num_rows >= self.min_rows
            return SilentNanState(), (self._finding(state, row, over=True),) if over else ()
        s = state
        if not s.num_rows:
            s = SilentNanState(0, row.index, row.step)
        s = SilentNanState(s.num_rows + 1, s.first_row, s.first_step)
        if s.num_rows != self.min_rows:
            return s, ()
        return s, (self._finding(s, row, over=False),)

    def update_rows(
        self, state: SilentNanState, rows: Rows
    ) -> tuple[SilentNanState, tuple[Finding, ...]]:
        """Judge many rows as `update` does one by one; those without the signature are passed."""
        both = rows.present.all(axis=1)
        hit = both & (rows.values[:, 0] == 0) & ~np.isfinite(rows.values[:, 1])
        # A row of the signature, or one that may end it.
        after = np.concatenate(([state.num_rows > 0], hit[both][:-1]))
        telling = np.flatnonzero(both)[hit[both] | after[: int(both.sum())]]
        findings: list[Finding] = []
        for k in telling.tolist():
            state, found = self.update(state, rows.row(k))
            findings += found
        return state, tuple(findings)

    def _finding(self, s: SilentNanState, row: Row, *, over: bool) -> Finding:
        return Finding(
            detector=self.name,
            kind="non-finite",
            signal="grad_norm",
            severity="critical",
            row=row.index,
            step=row.step,
            onset_row=s.first_row,
            onset=s.first_step,
            peak_row=s.first_row,
            peak=s.first_step,
            end_row=row.index if over else None,
            end=row.step if over else None,
            value=math.nan,
            expected=0.0,
            score=99.0,
            closed=over,
            text=f"loss 0 and grad norm not finite in {s.num_rows} rows: NaN, logged as 0",
        )
