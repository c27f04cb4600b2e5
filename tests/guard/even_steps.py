"""Steps of one length: a machine that is busy for a while makes no test's run slower for a while.

A lasting slowdown is an incident, and a run with an open incident is not healthy. Only the tests of
the clock itself let real time into the rows.
"""

from tests.few_faults import FEW_FAULTS
from trimtab.analysis import self_test
from trimtab.guard.loop import assembly
from trimtab.guard.state.step_clock import StepClock

STEP_S = 0.01


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
