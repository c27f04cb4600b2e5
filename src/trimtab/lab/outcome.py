"""The three runs of one scenario of the demo, beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.analysis.account import RunAccount
    from trimtab.lab.run import LabResult
    from trimtab.lab.scenarios import Scenario

__all__ = ["ScenarioOutcome"]


@dataclass(frozen=True, kw_only=True)
class ScenarioOutcome:
    """The three runs of one scenario."""

    scenario: Scenario
    twin_losses: tuple[float, ...]
    """Train loss per step of the healthy reference."""
    off: LabResult
    act: LabResult
    account: RunAccount
    """Of the guarded run."""
    run: str
    """Run directory of the guarded run, relative to the demo's."""

    @property
    def gap_closed(self) -> float | None:
        """(off - act) / (off - twin), of the validation losses; None where nothing was lost."""
        lost = self.off.final_loss - self.off.reference_loss
        return None if lost == 0 else (self.off.final_loss - self.act.final_loss) / lost
