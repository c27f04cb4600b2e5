"""How a guard is put together: each part is made once, and given the parts it works with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trimtab.guard.control.action_log import ActionLog
from trimtab.guard.control.control import Control
from trimtab.guard.control.gate import CallGate
from trimtab.guard.control.rollback import Rollbacks
from trimtab.guard.loop.after_step import AfterStep
from trimtab.guard.loop.messages import Messages
from trimtab.guard.loop.pending_step import PendingStep
from trimtab.guard.loop.resume_check import ReplayCheck
from trimtab.guard.loop.run_status import RunStatus
from trimtab.guard.loop.shutdown import Shutdown
from trimtab.guard.loop.signal_handler import Interrupts
from trimtab.guard.loop.startup import begin
from trimtab.guard.loop.step_batches import StepBatches
from trimtab.guard.loop.training_loop import TrainingLoop
from trimtab.guard.probes.cadence import Cadence
from trimtab.guard.probes.suite import Probes
from trimtab.guard.recording.fault_barrier import Edge
from trimtab.guard.recovery.executor import Recovery
from trimtab.guard.state.decisions import trained_parameters
from trimtab.guard.state.judgement import Judgement
from trimtab.guard.state.restore_points import RestorePoints
from trimtab.guard.state.run_state import RunState
from trimtab.guard.state.starting_rng import StartingRng
from trimtab.guard.state.step_clock import StepClock
from trimtab.guard.step.deferred_read import LateReads, reads_late
from trimtab.guard.step.deferred_step import DeferredStep
from trimtab.guard.step.engine import Engine
from trimtab.guard.step.optimizer_step import OptimizerStep
from trimtab.guard.step.precision import Precision
from trimtab.guard.step.rates import Rates
from trimtab.guard.step.run_context import RunContext
from trimtab.guard.step.step_pool import StepPool
from trimtab.guard.step.step_recorder import StepRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from trimtab.detectors.judge import Judge
    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.recording.fault_barrier import Part
    from trimtab.guard.recording.recorder import Recorder
    from trimtab.guard.recording.run_lock import RunLock
    from trimtab.guard.state.training_state import Training
    from trimtab.plan.policy import Policy

__all__ = ["Assembled", "Setup", "assemble"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a guard is made of that comes from outside: the user's objects and settings."""

    training: Training
    order: Order
    policy: Policy
    ranks: Ranks
    recorder: Recorder
    lock: RunLock | None
    judge: Judge
    say: Callable[[str], None]
    count_tokens: Callable[[object], int]
    clip: float | None
    steps: int | None
    accumulate: int
    check_resume: int
    output_layer: torch.nn.Module | None
    loaded_step: int | None
    companion: Mapping[str, object] | None
    is_old: bool
    """Whether the run directory holds a run."""
    notes: Sequence[str]
    """What the user should read of the start."""


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The parts that a `Guard` hands its calls to."""

    parts: RunContext
    engine: Engine
    recovery: Recovery
    edge: Edge
    interrupts: Interrupts
    batches: StepBatches
    start: StartingRng
    after: AfterStep
    pending: PendingStep
    shutdown: Shutdown
    loop: TrainingLoop
    gate: CallGate
    control: Control


def assemble(setup: Setup) -> Assembled:
    """Return a guard's parts, with the run started or resumed."""
    s = setup
    interrupts = Interrupts(s.say, alone=s.ranks.count == 1)
    parts, edge = _parts_of(s, stop_wanted=interrupts.is_wanted)
    for text in s.notes:
        parts.points.store.note(text)
    engine = Engine(parts)
    recovery = Recovery(engine, say=s.say, final_step=s.steps)
    edge.on_stand_down(recovery.stand_down)
    start = StartingRng(
        begin(
            parts,
            steps=s.steps,
            is_old=s.is_old,
            say=s.say,
            loaded_step=s.loaded_step,
            companion=s.companion,
        )
    )
    state, store = parts.state, parts.points.store
    messages = Messages(state, store=store, recovery=recovery, edge=edge, say=s.say)
    status = RunStatus(
        state,
        store=store,
        recovery=recovery,
        recorder=s.recorder,
        ranks=s.ranks,
        edge=edge,
        judge=parts.judgement.judge,
        steps=s.steps,
    )
    checked = s.check_resume > 0 and state.counters.step == 0
    after = AfterStep(
        parts,
        recovery=recovery,
        edge=edge,
        messages=messages,
        status=status,
        check=ReplayCheck(parts, s.check_resume, s.say) if checked else None,
        steps=s.steps,
    )
    pending = PendingStep(parts, after=after, interrupts=interrupts, steps=s.steps)
    batches = StepBatches(s.order, accumulate=s.accumulate, count_tokens=s.count_tokens)
    shutdown = Shutdown(
        parts,
        recovery=recovery,
        edge=edge,
        after=after,
        pending=pending,
        messages=messages,
        status=status,
        interrupts=interrupts,
        lock=s.lock,
    )
    loop = TrainingLoop(
        parts,
        batches=batches,
        recovery=recovery,
        edge=edge,
        after=after,
        pending=pending,
        shutdown=shutdown,
        status=status,
        messages=messages,
        interrupts=interrupts,
        start=start,
        ends_with_data=s.steps is None,
    )
    gate = CallGate(
        has_ended=lambda: shutdown.ended, in_step=lambda: batches.in_step, settle=pending.settle
    )
    log = ActionLog(state, recorder=s.recorder, recovery=recovery, edge=edge, say=s.say)
    control = Control(
        parts,
        gate=gate,
        log=log,
        recovery=recovery,
        rollbacks=Rollbacks(
            parts, gate=gate, log=log, recovery=recovery, start=start, end=shutdown.end
        ),
        drop_batch=loop.drop_batch,
    )
    return Assembled(
        parts=parts,
        engine=engine,
        recovery=recovery,
        edge=edge,
        interrupts=interrupts,
        batches=batches,
        start=start,
        after=after,
        pending=pending,
        shutdown=shutdown,
        loop=loop,
        gate=gate,
        control=control,
    )


def _parts_of(s: Setup, *, stop_wanted: Callable[[], bool]) -> tuple[RunContext, Edge]:
    """Return the parts that measure, update, record and keep the state; and the fault barrier."""
    clock, judgement = StepClock(), Judgement(s.judge)
    state = RunState(
        s.training,
        s.order,
        ranks=s.ranks,
        recorder=s.recorder,
        judgement=judgement,
        clock=clock,
    )

    def journal_fault(error: str, part: Part) -> None:
        s.recorder.event("fault", step=state.counters.step, error=error, where=part)

    edge = Edge(journal=journal_fault)
    s.recorder.on_lost = lambda error: edge.note("journal", error)
    parameters = trained_parameters(s.training)
    late = LateReads(on=reads_late(s.policy.reads, parameters))
    cadence = Cadence.of(
        s.policy.probes_off,
        every_steps=s.policy.probe_every_steps,
        signs_every_steps=s.policy.probe_signs_every_steps,
    )
    probes = Probes(
        s.training, parameters, ranks=s.ranks, output_layer=s.output_layer, cadence=cadence
    )
    rates, precision = Rates(state), Precision(state)
    update = OptimizerStep(
        state,
        clip=s.clip,
        parameters=parameters,
        rates=rates,
        precision=precision,
        probes=probes,
        ranks=s.ranks,
        run_probe=partial(edge.run, "probes"),
    )
    pool = StepPool(
        s.ranks,
        s.order,
        probes=probes,
        clock=clock,
        parameters=parameters,
        is_late=lambda: late.on,
        stop_wanted=stop_wanted,
    )

    def note_fault() -> bool:
        pool.note_fault()
        return s.ranks.count == 1  # else all ranks stand down together, at the next step

    edge.on_first_fault(note_fault)
    rows = StepRecorder(
        state,
        recorder=s.recorder,
        pool=pool,
        update=update,
        probes=probes,
        clock=clock,
        ranks=s.ranks,
        data=s.order,
    )
    deferred = DeferredStep(
        state,
        ranks=s.ranks,
        probes=probes,
        precision=precision,
        pool=pool,
        update=update,
        rows=rows,
        clock=clock,
    )
    parts = RunContext(
        policy=s.policy,
        recorder=s.recorder,
        ranks=s.ranks,
        training=s.training,
        data=s.order,
        state=state,
        points=RestorePoints(state, s.policy, recorder=s.recorder, ranks=s.ranks),
        judgement=judgement,
        clock=clock,
        probes=probes,
        precision=precision,
        rates=rates,
        optimizer_step=update,
        pool=pool,
        rows=rows,
        deferred=deferred,
        reads_late=late,
    )
    return parts, edge
