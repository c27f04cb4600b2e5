"""What `act` would have done where the guard only looked on, and what came instead.

In observe and advise, while recovery pauses, and while an action waits for a person, each trouble
gets two lines in the journal: what would have been done and what that costs, and, once it is over,
what happened. `trimtab shadow RUN` adds them up. At most `_MOST_WATCHED` troubles are followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trimtab.guard.recovery.commands import JournalEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.commands import Command
    from trimtab.plan.policy import Policy

__all__ = ["Shadow", "ShadowWhy"]

ShadowWhy = Literal["observe", "advise", "ask", "paused"]

_MOST_WATCHED = 16


@dataclass(frozen=True)
class _Watched:
    """An alarm that is open; `step` -1: it is not trouble yet."""

    finding: Finding
    number: int = 0
    step: int = -1
    cost_steps: int = 0


@dataclass(frozen=True)
class Shadow:
    """Open alarms, and what `act` would have done about them."""

    watched: tuple[_Watched, ...] = ()
    num: int = 0
    """Troubles so far, count."""
    why: ShadowWhy | None = None
    """Why nothing is done, in the last step; None where something may be."""

    def take_in(self, findings: Iterable[Finding], step: int) -> tuple[Shadow, tuple[Command, ...]]:
        """Take in what was reported in a step: alarms that open, grow or end."""
        state = self
        commands: list[Command] = []
        for f in findings:
            if f.severity == "info":
                continue
            known = next((w for w in state.watched if w.finding.key == f.key), None)
            others = tuple(w for w in state.watched if w is not known)
            if f.end_row is not None:
                if known is not None and known.step >= 0:
                    lasted = max(int(f.end if f.end is not None else step) - int(f.onset), 0)
                    commands.append(_instead(known, "healed by itself", lasted, step, lasts=False))
                state = replace(state, watched=others)
            elif known is not None:
                state = replace(state, watched=(*others, replace(known, finding=f)))
            else:
                if len(others) >= _MOST_WATCHED:
                    gone, others = others[0], others[1:]
                    if gone.step >= 0:
                        lasted = max(step - int(gone.finding.onset), 0)
                        commands.append(_instead(gone, "followed no longer", lasted, step))
                state = replace(state, watched=(*others, _Watched(f)))
        return state, tuple(commands)

    def look(
        self,
        policy: Policy,
        step: int,
        *,
        why: ShadowWhy,
        is_trouble: Callable[[Finding], bool],
    ) -> tuple[Shadow, tuple[Command, ...]]:
        """Write down what would be done now, for each alarm that has become trouble.

        Args:
            policy: Of the run.
            step: Where it is.
            why: Why it is not done.
            is_trouble: Whether an alarm has outlasted the patience.
        """
        if any(w.step >= 0 for w in self.watched):
            return self, ()  # several alarms of one trouble are one trouble
        new = [w for w in self.watched if is_trouble(w.finding)][:1]
        if not new:
            return self, ()
        state = self
        commands: list[Command] = []
        for w in new:
            target = int(w.finding.onset) - 1 - policy.rollback_margin_steps
            to_step = max(target // policy.snapshot_every_steps * policy.snapshot_every_steps, 0)
            gone = step - to_step
            probes = 4 * policy.probe_margin_batches / 3
            trial = max(policy.trial_steps, gone + 2 * policy.patience_steps)
            begun = replace(
                w, number=state.num + 1, step=step, cost_steps=round(gone + probes + trial)
            )
            arms = [a for a in policy.arms if a not in ("replay", "other-state")][:3]
            data = {
                "number": begun.number,
                "state": "would",
                "why": why,
                "kind": w.finding.kind,
                "onset": w.finding.onset,
                "what": f"go back to step {to_step}, look at the data ahead, try {', '.join(arms)}",
                "to_step": to_step,
                "cost_steps": begun.cost_steps,
            }
            commands.append(JournalEvent("shadow", step, data))
            watched = tuple(begun if x is w else x for x in state.watched)
            state = replace(state, watched=watched, num=state.num + 1)
        return state, tuple(commands)

    def only_begun(self) -> Shadow:
        """Return it without the alarms that were not trouble while nothing could be done."""
        return replace(self, watched=tuple(w for w in self.watched if w.step >= 0), why=None)

    def end(self, what: str, step: int) -> tuple[Shadow, tuple[Command, ...]]:
        """Write down what came of all that is followed: the run ended, or something was done."""
        commands = tuple(
            _instead(w, what, max(step - int(w.finding.onset), 0), step)
            for w in self.watched
            if w.step >= 0
        )
        return replace(self, watched=()), commands


def _instead(
    w: _Watched, what: str, lasted_steps: int, step: int, *, lasts: bool = True
) -> JournalEvent:
    """Return what came instead, in steps: of a trouble that healed, acting is a loss."""
    data = {
        "number": w.number,
        "state": "instead",
        "kind": w.finding.kind,
        "onset": w.finding.onset,
        "what": what,
        "steps_in_trouble": lasted_steps,
        "cost_steps": w.cost_steps,
        "saved_steps": max(lasted_steps - w.cost_steps, 0) if lasts else 0,
        "wasted_steps": 0 if lasts else w.cost_steps,
    }
    return JournalEvent("shadow", step, data)
