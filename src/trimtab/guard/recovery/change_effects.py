"""Every change gets a label: four metrics of the steps before it beside those after it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trimtab.plan.labels import StepWindow, label_change

if TYPE_CHECKING:
    from trimtab.guard.step.engine import Engine
    from trimtab.plan.labels import ChangeLabel

__all__ = ["Labeller"]

_VERDICTS = {"better": "worked", "worse": "did not", "unclear": "unclear"}


@dataclass
class _Change:
    remedy: str
    step: int
    until: int
    before: StepWindow
    after: StepWindow = field(default_factory=StepWindow)


class Labeller:
    """Watches what follows each change; one that a rollback cuts short gets no label."""

    def __init__(self, engine: Engine) -> None:
        """Watch an engine's calm steps."""
        self._engine = engine
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=engine.policy.verify_steps)
        self._changes: list[_Change] = []
        self._kept: _Change | None = None

    def begin(self, remedy: str, *, by_hand: bool, after_rows: int | None = None) -> None:
        """Begin to watch a change made now.

        Args:
            remedy: Its id.
            after_rows: Compare with so many of the last calm steps, those of the trouble; None:
                with all that are kept.
            by_hand: Journal its label by itself; else it goes into the outcome of the verification.
        """
        step = self._engine.counters.step
        before = StepWindow()
        recent = list(self._recent)
        if by_hand and remedy.startswith("roll-back"):
            recent = []  # of later steps: an earlier one has a higher loss whatever was done
        for loss, norm, alarms in recent if after_rows is None else recent[-after_rows:]:
            before.add(loss, norm, alarms=alarms)
        change = _Change(remedy, step, step + self._engine.policy.verify_steps, before)
        if by_hand:
            self._changes.append(change)
        else:
            self._kept = change

    def take_in(self, loss: float, norm: float, *, alarms: int) -> None:
        """Take in a calm step."""
        self._recent.append((loss, norm, alarms))
        for change in [*self._changes, *([self._kept] if self._kept else [])]:
            change.after.add(loss, norm, alarms=alarms)
        step = self._engine.counters.step
        for change in [c for c in self._changes if step >= c.until]:
            self._tell(change)

    def conclude_kept(self) -> ChangeLabel | None:
        """Return the label of the remedy that is being verified; None without one."""
        kept, self._kept = self._kept, None
        return None if kept is None else label_change(kept.before, kept.after)

    def roll_back(self) -> None:
        """Forget what is watched: the steps after it are taken away."""
        self._changes.clear()
        self._kept = None

    def finish(self) -> None:
        """Label what there is; a change with under 8 steps behind it stays without a label."""
        for change in list(self._changes):
            if len(change.after.losses) >= 8:
                self._tell(change)

    def _tell(self, change: _Change) -> None:
        self._changes.remove(change)
        label = label_change(change.before, change.after)
        self._engine.recorder.event(
            "outcome",
            step=self._engine.counters.step,
            remedy=change.remedy,
            of_step=change.step,
            verdict=_VERDICTS[label.overall],
            label=label.overall,
            metrics=dict(label.metrics),
            figures={m: list(v) for m, v in label.figures.items()},
            text=label.text(),
        )
