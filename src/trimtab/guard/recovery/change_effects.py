"""Labels each change by its effect: four metrics of the steps before it and after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.detectors.contract import changed
from trimtab.guard.recovery.commands import JournalEvent
from trimtab.plan.labels import Stretch, label_change

if TYPE_CHECKING:
    from trimtab.plan.labels import ChangeLabel

__all__ = ["ChangeEffects", "WatchedChange"]

_VERDICTS = {"better": "worked", "worse": "did not", "unclear": "unclear"}
_FEWEST_STEPS = 8
"""Steps after a change below which it gets no label."""

_Steps = tuple[tuple[float, float, int], ...]
"""Calm steps: loss, gradient norm, alarms that opened."""


@dataclass(frozen=True)
class WatchedChange:
    """A change whose effect is being watched."""

    remedy: str
    step: int
    until: int
    """Step at which it gets its label."""
    before: _Steps
    after: _Steps = ()

    def label(self) -> ChangeLabel:
        """Return its label by the steps so far."""
        return label_change(_stretch(self.before), _stretch(self.after))


@dataclass(frozen=True)
class ChangeEffects:
    """The changes whose effect is being measured; one that a rollback undoes gets no label."""

    recent: _Steps = ()
    """The last calm steps, as many as a verification takes."""
    changes: tuple[WatchedChange, ...] = ()
    """Changes by hand; each label is journalled by itself."""
    kept: WatchedChange | None = None
    """The remedy that is being verified; its label goes into the outcome of the verification."""

    def begin_by_hand(self, remedy: str, step: int, *, verify_steps: int) -> ChangeEffects:
        """Begin to watch a change that somebody made now."""
        # a rollback by hand leads to earlier steps, whose loss is higher whatever was done
        before = () if remedy.startswith("roll-back") else self.recent
        change = WatchedChange(remedy, step, step + verify_steps, before)
        return replace(self, changes=(*self.changes, change))

    def begin_kept(
        self, remedy: str, step: int, *, verify_steps: int, after_rows: int
    ) -> ChangeEffects:
        """Begin to watch a remedy that was kept now.

        Args:
            remedy: Its id.
            step: Where the run is.
            verify_steps: How long to watch.
            after_rows: Compare with so many of the last calm steps: those of the trouble.
        """
        change = WatchedChange(remedy, step, step + verify_steps, self.recent[-after_rows:])
        return replace(self, kept=change)

    def take_in(
        self, loss: float, norm: float, alarms: int, step: int, *, verify_steps: int
    ) -> tuple[ChangeEffects, tuple[JournalEvent, ...]]:
        """Take in a calm step; return what to journal of changes that were watched long enough."""
        seen = (loss, norm, alarms)
        recent = (*self.recent[-verify_steps + 1 :], seen) if verify_steps > 1 else (seen,)
        if not self.changes and self.kept is None:
            return changed(self, recent=recent), ()
        changes = tuple(replace(c, after=(*c.after, seen)) for c in self.changes)
        kept = None if self.kept is None else replace(self.kept, after=(*self.kept.after, seen))
        told = tuple(_outcome(c, step) for c in changes if step >= c.until)
        left = tuple(c for c in changes if step < c.until)
        return ChangeEffects(recent, left, kept), told

    def conclude_kept(self) -> tuple[ChangeEffects, ChangeLabel | None]:
        """Return the label of the remedy that is being verified; None without one."""
        if self.kept is None:
            return self, None
        return replace(self, kept=None), self.kept.label()

    def forget_changes(self) -> ChangeEffects:
        """Forget the watched changes: a rollback takes the steps after them away."""
        return replace(self, changes=(), kept=None)

    def finish(self, step: int) -> tuple[ChangeEffects, tuple[JournalEvent, ...]]:
        """Label the changes that have enough steps after them; the others stay without a label."""
        due = [c for c in self.changes if len(c.after) >= _FEWEST_STEPS]
        left = tuple(c for c in self.changes if len(c.after) < _FEWEST_STEPS)
        return replace(self, changes=left), tuple(_outcome(c, step) for c in due)


def _stretch(steps: _Steps) -> Stretch:
    return Stretch(
        losses=[loss for loss, _, _ in steps],
        norms=[norm for _, norm, _ in steps],
        alarms=sum(alarms for _, _, alarms in steps),
    )


def _outcome(change: WatchedChange, step: int) -> JournalEvent:
    label = change.label()
    return JournalEvent(
        "outcome",
        step,
        {
            "remedy": change.remedy,
            "of_step": change.step,
            "verdict": _VERDICTS[label.overall],
            "label": label.overall,
            "metrics": dict(label.metrics),
            "figures": {m: list(v) for m, v in label.figures.items()},
            "text": label.text(),
        },
    )
