"""A learning rate that was cut early in a run: whether it still has to be is asked once it is calm.

Trouble of the first steps says little of the rate that the rest of the run can bear, and a cut
lasts. A branch cannot tell: for some hundred steps the lower rate looks better whatever is better
in the end. OPT-175B and IDEFICS-80B raised their rates again, and both counted it as a failure. So
none is raised here; a person is told, with the call that gives it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.commands import at_step, decision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import StepDone
    from trimtab.plan.policy import Policy

__all__ = ["ASKED", "EarlyCut", "early_cut"]

ASKED = "leave the rate as it is"
"""The decision that is journalled where a person was asked."""

_EARLY_SHARE = 0.1
"""Of a run of known length, within which a cut is early. Ours."""
_EARLY_WAITS = 2
"""Waits within which it is early where the length is not known. Ours."""
_WAIT = 8
"""Times `verify_steps` without an alarm, after which it is asked about. Ours: 512 steps."""


@dataclass(frozen=True)
class EarlyCut:
    """A cut of the learning rate that a person is asked about once the run has been calm."""

    step: int
    """At which it was decided on."""
    what: str
    """What holds since: `x 0.1`, `held at 3e-05`."""
    due_step: int
    """At which the run has been calm for long enough."""

    def take_in(self, policy: Policy, e: StepDone) -> tuple[EarlyCut | None, tuple[Command, ...]]:
        """Take in a calm step; ask, and be done, where it is due.

        Returns:
            The cut that is still to be asked about, and what to say.
        """
        if any(f.severity != "info" and not f.closed for f in e.findings):
            return replace(self, due_step=e.step + _WAIT * policy.verify_steps), ()
        if e.step < self.due_step:
            return self, ()
        since = f"the learning rate is {self.what} since step {self.step}, early in the run"
        calm = f"{e.step - self.due_step + _WAIT * policy.verify_steps} steps without an alarm"
        return None, (
            decision(e.step, ASKED, f"{since}; {calm}, and none is raised"),
            at_step(
                e.step,
                f'{since}; {calm}. None is raised by itself: guard.undo("lower-lr", why=...,'
                " confirm=True) gives it back, guard.scale_lr after it takes a part of that",
            ),
        )


def early_cut(
    policy: Policy, values: Mapping[str, object], step: int, final_step: int | None
) -> EarlyCut | None:
    """Return what is to be asked about a cut of the rate; None: it is late, or little is left.

    Args:
        policy: Gives how long the run must have been calm.
        values: What the kept remedy changed, as journalled; a rate that jumped and was put back is
            no cut.
        step: At which it was kept.
        final_step: Last step of the whole run; None: not known.
    """
    wait = _WAIT * policy.verify_steps
    early = _EARLY_WAITS * wait if final_step is None else _EARLY_SHARE * final_step
    if step > early or (final_step is not None and final_step - step < 2 * wait):
        return None
    factor, limit = values.get("factor"), values.get("lr_limit")
    if isinstance(limit, int | float):
        what = f"held at {limit:.3g}"
    elif isinstance(factor, int | float) and factor < 1:
        what = f"x {factor:.3g}"
    else:
        return None
    return EarlyCut(step, what, step + wait)
