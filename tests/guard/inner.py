"""What is inside a guard: the one place where tests know how its parts are called."""

from dataclasses import dataclass
from typing import Any

from trimtab.guard import Guard
from trimtab.guard.data.order import Fed
from trimtab.guard.recording.fault_barrier import Edge
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recovery.executor import Recovery
from trimtab.guard.state.training_state import Training
from trimtab.guard.step.engine import Engine
from trimtab.guard.step.run_context import RunContext


@dataclass(frozen=True)
class Inner:
    """The parts of one guard."""

    parts: RunContext
    engine: Engine
    recovery: Recovery
    edge: Edge
    recorder: Recorder
    training: Training
    fed: list[Fed]
    """What was handed out for the step under way."""
    loop: Any
    after: Any
    lock: Any
    log: Any
    """Writes down what is done by hand."""


def inner(guard: Guard) -> Inner:
    return Inner(
        parts=guard._parts,
        engine=guard._engine,
        recovery=guard._recovery,
        edge=guard._edge,
        recorder=guard._recorder,
        training=guard._training,
        fed=guard._fed,
        loop=guard._loop,
        after=guard._after,
        lock=guard._lock,
        log=guard.control._log,
    )


def look_closely(guard: Guard) -> None:
    """Have the early signs read as often as where something is wrong."""
    probes = guard._parts.probes
    arm = probes.arm
    object.__setattr__(probes, "arm", lambda step, **_: arm(step, closely=True))
