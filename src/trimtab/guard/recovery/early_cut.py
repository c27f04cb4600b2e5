"""A learning rate that was cut early in a run: whether it still has to be is asked once it is calm.

Trouble of the first steps says little of the rate that the rest of the run can bear, and a cut
lasts. A branch cannot tell: for some hundred steps the lower rate looks better whatever is better
in the end. OPT-175B and IDEFICS-80B raised their rates again, and both counted it as a failure. So
none is raised here unless the policy lets `raise-rate` ask or act: then a part of the cut is given
back, once, and what comes of it is judged like any other step. Else a person is told, with the
calls that give it back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.plan.policy import Policy

__all__ = ["ASKED", "WAIT", "EarlyCut", "early_cut"]

ASKED = "leave the rate as it is"
"""The decision that is journalled where a person was asked."""

_EARLY_SHARE = 0.1
"""Of a run of known length, within which a cut is early. Ours."""
_EARLY_WAITS = 2
"""Waits within which it is early where the length is not known. Ours."""
WAIT = 8
"""Times `verify_steps` without an alarm, after which it is reviewed. Ours: 512 steps."""


@dataclass(frozen=True)
class EarlyCut:
    """A cut of the learning rate that is reviewed once the run has been calm."""

    step: int
    """At which it was decided on."""
    what: str
    """What holds since: `x 0.1`, `held at 3e-05`."""
    due_step: int
    """At which the run has been calm for long enough."""
    factor: float = 1.0
    """Of the cut; 1: it was held at a rate instead, of which no half can be given back."""


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
    wait = WAIT * policy.verify_steps
    early = _EARLY_WAITS * wait if final_step is None else _EARLY_SHARE * final_step
    if step > early or (final_step is not None and final_step - step < 2 * wait):
        return None
    factor, limit = values.get("factor"), values.get("lr_limit")
    if isinstance(limit, int | float):
        return EarlyCut(step, f"held at {limit:.3g}", step + wait)
    if isinstance(factor, int | float) and 0 < factor < 1:
        return EarlyCut(step, f"x {factor:.3g}", step + wait, float(factor))
    return None
