"""What is done with an early cut of the rate once the run has been calm: told, asked about, eased."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.commands import at_step, decision
from trimtab.guard.recovery.early_cut import ASKED, WAIT
from trimtab.guard.recovery.permission import raise_rate, stage_rise
from trimtab.guard.recovery.state import StagedRequest

if TYPE_CHECKING:
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import StepDone
    from trimtab.guard.recovery.state import RecoveryState

__all__ = ["review"]

_CLASS = "raise-rate"
_MOST_GIVEN_BACK = 2.0
"""Factor by which a rate rises at most, where half of the cut, as factors, is more. Ours: after half
of a cut to a thirtieth the loss of a run that had begun 60 times too high was up again at once."""


def review(state: RecoveryState, e: StepDone) -> tuple[RecoveryState, tuple[Command, ...]]:
    """Look at an early cut after a calm step; once, where it is due, do with it what may be done."""
    cut, policy = state.early_cut, state.policy
    if cut is None or policy.mode != "act":  # it is reviewed once the guard may act again
        return state, ()
    wait = WAIT * policy.verify_steps
    if any(f.severity != "info" and not f.closed for f in e.findings):
        return replace(state, early_cut=replace(cut, due_step=e.step + wait)), ()
    busy = state.request is not None or state.verification is not None
    if e.step < cut.due_step or busy or state.advising_only:
        return state, ()
    since = f"the learning rate is {cut.what} since step {cut.step}, early in the run"
    why = f"{since}; {e.step - cut.due_step + wait} steps without an alarm"
    used = e.used_today.get(_CLASS, 0)
    allowed = policy.permissions.permission(_CLASS, used_today=used)
    part = min(1 / math.sqrt(cut.factor), _MOST_GIVEN_BACK)
    if cut.factor < 1 and allowed == "act":
        return raise_rate(state, part, e.step, why=f"a part of a cut is given back: {why}")
    if cut.factor < 1 and allowed == "ask":
        request = StagedRequest(
            kind="early-cut", classes=(_CLASS,), step=e.step, target_step=e.step, raise_by=part
        )
        what = f"raise the learning rate x {part:.3g}, a part of the cut"
        return stage_rise(state, request, what=what, why=why)
    named = policy.permissions.why_not(_CLASS, used_today=used)
    more = (
        f"; {named}" if named else f"; with {_CLASS} in the policy's authority a part is given back"
    )
    return replace(state, early_cut=None), (
        decision(e.step, ASKED, f"{why}, and none is raised"),
        at_step(
            e.step,
            f'{why}. None is raised by itself: guard.undo("lower-lr", why=..., confirm=True)'
            f" gives it back, guard.scale_lr after it takes a part of that{more * (cut.factor < 1)}",
        ),
    )
