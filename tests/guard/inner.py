"""What is inside a guard: the one place where tests know how its parts are called."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from trimtab.guard import Guard
from trimtab.guard.data.order import Fed
from trimtab.guard.recording.fault_barrier import Edge
from trimtab.guard.recording.recorder import Recorder
from trimtab.guard.recovery.executor import Recovery
from trimtab.guard.state import checkpoint_io
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


def acting(guard: Guard) -> bool:
    """Whether the guard may act now."""
    return guard._acting


def note(guard: Guard, text: str) -> None:
    """Say something once, as the guard does."""
    guard._after._messages.note(text)


def write_of_files() -> Callable[..., Any]:
    """Return what writes the files of a checkpoint."""
    return checkpoint_io.write_tensors


def replace_write(monkeypatch: pytest.MonkeyPatch, write: Callable[..., Any]) -> None:
    """Have another function write the files of a checkpoint."""
    monkeypatch.setattr(checkpoint_io, "write_tensors", write)


def snapshots_of_recovery(guard: Guard) -> tuple[dict[int, Any], int]:
    """Return the snapshots that the recovery holds, and how many it has taken."""
    return guard._recovery._snapshots, guard._recovery._num_snapshots


def design_of(guard: Guard) -> Any:
    """Return what the recovery takes for changes by design."""
    return guard._recovery._design


def silence_store(guard: Guard) -> None:
    """Have the store of checkpoints write no event, as where the journal cannot be written."""
    store: Any = inner(guard).engine.store
    store._recorder.event = lambda *_, **__: None


def look_closely(guard: Guard) -> None:
    """Have the early signs read as often as where something is wrong."""
    probes = guard._parts.probes
    arm = probes.arm
    object.__setattr__(probes, "arm", lambda step, **_: arm(step, closely=True))
