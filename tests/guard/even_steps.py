"""Steps of one length: a machine that is busy for a while makes no test's run slower for a while.

A lasting slowdown is an incident, and a run with an open incident is not healthy. Only the tests of
the clock itself let real time into the rows.
"""

from dataclasses import replace

from trimtab.analysis import self_test
from trimtab.analysis.injected_faults import INJECTED_FAULTS
from trimtab.guard.loop import assembly
from trimtab.guard.state.step_clock import StepClock

STEP_S = 0.01

FEW_FAULTS = tuple(replace(f, num_large=3, num_graded=0) for f in INJECTED_FAULTS if f.required)
"""What the verdict of a run rests on; the rest is a quarter of the time of a run of sixty steps,
and is tested where the self-test is."""


class EvenClock(StepClock):
    def lap(self, *, late: bool) -> float:
        super().lap(late=late)
        return STEP_S

    def end_row(self) -> float:
        super().end_row()
        return STEP_S


def hold() -> None:
    """Have every guard of this process, which is a test's own, do so and inject few faults."""
    vars(assembly)["StepClock"] = EvenClock
    vars(self_test)["INJECTED_FAULTS"] = FEW_FAULTS
