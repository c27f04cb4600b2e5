"""How a guard is put together: each part is made once, and given the parts it works with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trimtab.chronicle.coverage import coverage_of
from trimtab.chronicle.journal import read_journal
from trimtab.guard.control.action_log import ActionLog
from trimtab.guard.control.control import Control
from trimtab.guard.control.gate import CallGate
from trimtab.guard.control.rollback import Rollbacks
from trimtab.guard.loop.after_step import AfterStep
from trimtab.guard.loop.certificate import FILE_NAME
from trimtab.guard.loop.checkpoint_scores import CheckpointScores
from trimtab.guard.loop.messages import Messages
from trimtab.guard.loop.pending_step import PendingStep
from trimtab.guard.loop.readings import Readings
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
from trimtab.guard.recording.fault_events import FaultEvents
from trimtab.guard.recording.judged_steps import JudgedSteps
from trimtab.guard.recovery.executor import Recovery
from trimtab.guard.recovery.past_outcomes import left_before
from trimtab.guard.settings.ledger import SettingsLedger
from trimtab.guard.settings.reader import SettingsReader
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
from trimtab.guard.yardstick.batches import FixedBatches, as_validation
from trimtab.guard.yardstick.yardstick import Yardstick
from trimtab.plan.expected import ExpectedChanges

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from trimtab.detectors.judge import Judge
    from trimtab.guard.data.streams import Order
    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.loop.setup_checks import CallbackErrors
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
    holders: Holders
    recorder: Recorder
    lock: RunLock | None
    judge: Judge
    say: Callable[[str], None]
    callback_errors: CallbackErrors
    """What the user's functions raised."""
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
    start_over: bool = False
    """Whether it begins at step 0 where that run cannot be gone on with."""
    validate: object = None
    """Held-out batches or a function of the user's, for the yardstick."""
    notes: Sequence[str]
    """What the user should read of the start."""
    uncertified: str = ""
    """Why `act` has no certificate on this accelerator; empty where it has, or needs none."""


@dataclass(frozen=True, kw_only=True)
class Assembled:
    """The parts that a `Guard` hands its calls to."""

    parts: RunContext
    engine: Engine
    recovery: Recovery
    edge: Edge
    judged: JudgedSteps
    interrupts: Interrupts
    batches: StepBatches
    start: StartingRng
    after: AfterStep
    pending: PendingStep
    shutdown: Shutdown
    loop: TrainingLoop
    readings: Readings
    scores: CheckpointScores
    gate: CallGate
    control: Control


def assemble(setup: Setup) -> Assembled:
    """Return a guard's parts, with the run started or resumed."""
    s = setup
    interrupts = Interrupts(s.say, alone=s.ranks.count == 1)
    parts, edge, judged = _parts_of(s, stop_wanted=interrupts.is_wanted)
    say = _with_standing(s.say, judged)
    for text in s.notes:
        parts.points.store.note(text)
    if s.uncertified:
        s.say(_certified_text(s))
    engine = Engine(parts)
    recovery = Recovery(engine, say=say, final_step=s.steps, guarded=edge.run)
    start = _begun(s, parts, engine=engine, recovery=recovery, edge=edge, judged=judged)
    messages = Messages(
        parts.state, store=parts.points.store, recovery=recovery, edge=edge, say=say
    )
    status = _status(s, parts, recovery=recovery, edge=edge, judged=judged)
    readings = _readings(s, parts, recovery, edge)
    if s.is_old and s.ranks.chief:
        edge.run("probes", readings.resume)
    scores = CheckpointScores(parts, edge)
    checked = s.check_resume > 0 and parts.state.counters.step == 0
    after = AfterStep(
        parts,
        recovery=recovery,
        edge=edge,
        messages=messages,
        status=status,
        judged=judged,
        check=ReplayCheck(parts, s.check_resume, s.say) if checked else None,
        steps=s.steps,
        readings=readings,
        scores=scores,
    )
    pending = PendingStep(parts, after=after, interrupts=interrupts, steps=s.steps)
    batches = StepBatches(s.order, accumulate=s.accumulate, count_tokens=s.count_tokens)
    shutdown = Shutdown(
        parts,
        recovery=recovery,
        edge=edge,
        judged=judged,
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
        readings=readings,
    )
    gate = _gate(batches, readings=readings, pending=pending, shutdown=shutdown, loop=loop)
    control = _control(
        s,
        parts,
        gate=gate,
        edge=edge,
        recovery=recovery,
        shutdown=shutdown,
        loop=loop,
        start=start,
        say=say,
    )
    return Assembled(
        parts=parts,
        engine=engine,
        recovery=recovery,
        edge=edge,
        judged=judged,
        interrupts=interrupts,
        batches=batches,
        start=start,
        after=after,
        pending=pending,
        shutdown=shutdown,
        loop=loop,
        readings=readings,
        scores=scores,
        gate=gate,
        control=control,
    )


def _control(
    s: Setup,
    parts: RunContext,
    *,
    gate: CallGate,
    edge: Edge,
    recovery: Recovery,
    shutdown: Shutdown,
    loop: TrainingLoop,
    start: StartingRng,
    say: Callable[[str], None],
) -> Control:
    """Return what people do by hand, with the log that it is written to."""
    log = ActionLog(
        parts.state,
        recorder=s.recorder,
        recovery=recovery,
        edge=edge,
        say=say,
        accept=parts.settings.accept,
    )
    rollbacks = Rollbacks(
        parts, gate=gate, log=log, recovery=recovery, start=start, end=shutdown.end
    )
    return Control(
        parts,
        gate=gate,
        log=log,
        recovery=recovery,
        rollbacks=rollbacks,
        drop_batch=loop.drop_batch,
    )


def _status(
    s: Setup, parts: RunContext, *, recovery: Recovery, edge: Edge, judged: JudgedSteps
) -> RunStatus:
    return RunStatus(
        parts.state,
        store=parts.points.store,
        recovery=recovery,
        recorder=s.recorder,
        ranks=s.ranks,
        edge=edge,
        judgement=parts.judgement,
        judged=judged,
        rates=parts.rates,
        steps=s.steps,
        mode=s.policy.mode,
        not_acting="" if s.policy.act_uncertified else s.uncertified,
    )


def _begun(
    s: Setup,
    parts: RunContext,
    *,
    engine: Engine,
    recovery: Recovery,
    edge: Edge,
    judged: JudgedSteps,
) -> StartingRng:
    """Start or resume the run: its state, what was judged of it, and the settings it holds."""
    start = StartingRng(
        begin(
            parts,
            steps=s.steps,
            is_old=s.is_old,
            say=s.say,
            loaded_step=s.loaded_step,
            companion=s.companion,
            start_over=s.start_over,
        )
    )
    if s.uncertified:
        step = parts.state.counters.step
        s.recorder.event("note", step=step, author="trimtab", text=_certified_text(s))
    if s.policy.mode == "act":
        parts.points.plan_memory()
    _begin_coverage(s, parts, judged)
    if s.is_old:
        edge.run("recovery", recovery.go_on)
        journal, lineage = s.recorder.directory.journal, parts.state.decisions.major
        left = s.ranks.agree(lambda: left_before(read_journal(journal)[0], lineage))
        recovery.leave_alone(left)
    if s.is_old and (s.policy.authority or s.policy.per_day):
        recovery.take_up(s.ranks.agree(lambda: read_journal(journal)[0]))
    _hear_errors(s, parts, edge)
    held = {name: tuple(v) for name, v in parts.state.decisions.held_settings.items()}
    if held:
        edge.run("recovery", lambda: engine.hold_settings(held))
    return start


def _gate(
    batches: StepBatches,
    *,
    readings: Readings,
    pending: PendingStep,
    shutdown: Shutdown,
    loop: TrainingLoop,
) -> CallGate:
    """Return what lets calls by hand in, between steps or with the step that is under way."""

    def settle(*, act: bool = True) -> bool:
        # A call by hand between two of its batches that is not left to the step itself.
        if not batches.in_step:
            readings.give_up()
        return pending.settle(act=act)

    return CallGate(
        has_ended=lambda: shutdown.ended,
        in_step=lambda: batches.in_step,
        settle=settle,
        leave_to_step=loop.leave_to_step,
    )


def _certified_text(s: Setup) -> str:
    if s.policy.act_uncertified:
        return f"acts without a certificate, by act_uncertified: {s.uncertified}"
    return (
        f"mode advise, not act: {s.uncertified}; trimtab doctor --qualify --out"
        f" {s.recorder.directory.root / FILE_NAME} writes one,"
        " Policy(act_uncertified=True) overrides"
    )


_SHARE = 0.01
"""Most of the time that the yardstick takes in `act`, and where it is handed over, share. Ours."""


def _readings(s: Setup, parts: RunContext, recovery: Recovery, edge: Edge) -> Readings:
    """Return the readings of the yardstick; it is off where it cannot be read."""
    loader, metrics = as_validation(s.validate)
    share, off = s.policy.yardstick_share, ""
    if share is None:
        # In `observe` a loop with a counter of its own would count the readings as steps.
        share = _SHARE if s.policy.mode == "act" or s.validate is not None else 0.0
    elif share == 0 and s.validate is not None:
        share = _SHARE
    if share == 0:
        off = "yardstick_share is 0"
    elif s.ranks.count > 1:
        off = "several ranks train together"
    count = s.policy.yardstick_batches * s.accumulate
    yardstick = Yardstick(
        s.training,
        None if metrics is not None else FixedBatches(s.order, loader, count=count),
        metrics,
        share=share,
        every_steps=s.policy.snapshot_every_steps,
        num_batches=s.policy.yardstick_batches,
        off=off,
    )
    return Readings(
        parts,
        yardstick,
        recovery=recovery,
        edge=edge,
        note=recovery.note,
        steps=s.steps,
        accumulate=s.accumulate,
    )


def _with_standing(say: Callable[[str], None], judged: JudgedSteps) -> Callable[[str], None]:
    """Return a `say` whose lines tell what was not judged, and what is degraded.

    In full with the first line, and in a few words as long as the reasons stay the same.
    """
    last = frozenset[str]()

    def said(line: str) -> None:
        nonlocal last
        coverage = judged.coverage()
        told, why = coverage.text(), coverage.reasons
        if told and told not in line:
            line = f"{line} · {told if why != last else coverage.brief()}"
        last = why
        say(line)

    return said


def _begin_coverage(s: Setup, parts: RunContext, judged: JudgedSteps) -> None:
    """Take up what the run missed so far; rows that are lost are said and journalled."""
    step, live = parts.state.counters.step, s.recorder.live
    if not s.is_old or not s.ranks.chief:
        judged.begin(base=step)
        return
    missed = list(coverage_of(read_journal(s.recorder.directory.journal)[0], step).gaps)
    recorded = live.last_step_before(step)
    if recorded is not None and recorded < step and s.loaded_step is None:
        why = "rows lost when the process before ended"
        missed.append((recorded + 1, step, why))
        s.recorder.event(
            "rearmed",
            step=step,
            where="rows",
            since_step=recorded + 1,
            steps_not_judged=step - recorded,
            not_judged=[{"from": recorded + 1, "to": step, "why": why}],
            why=why,
        )
    judged.begin(base=0, gaps=[(a, min(b, step), why) for a, b, why in missed if a <= step])
    told = judged.coverage().text()
    if told:
        s.say(f"goes on from step {step}: {told}")


def _hear_errors(s: Setup, parts: RunContext, edge: Edge) -> None:
    """From here on no fault of the disk or of a user's function ends the run."""
    s.recorder.hold_events(partial(edge.note, "journal"))
    s.callback_errors.pass_to(edge.tell_callback)
    parts.judgement.on_drop(
        lambda name, error: edge.tell_callback(
            f"the detector {name!r}", error, "it is left out from here on, the others judge on"
        )
    )


def _doubt_of(step: int, healthy_step: int, judged: JudgedSteps, *, least_steps: int) -> str:
    """Return why a state is not known to be healthy; empty where nothing speaks against it.

    A gap counts until as many steps were judged after it as verify a remedy, and as it has itself:
    damage that lasts shows in them.
    """
    for first, last, why in reversed(judged.missed_since(healthy_step + 1)):
        if step - last < max(least_steps, last - first + 1):
            return f"steps {first}-{last} were not judged ({why})"
    return ""


def _parts_of(s: Setup, *, stop_wanted: Callable[[], bool]) -> tuple[RunContext, Edge, JudgedSteps]:
    """Return the parts of a step and of the state, the fault barrier, and what was not judged."""
    clock, judgement = StepClock(), Judgement(s.judge)
    state = RunState(
        s.training,
        s.order,
        ranks=s.ranks,
        recorder=s.recorder,
        judgement=judgement,
        clock=clock,
    )

    def step() -> int:
        return state.counters.step

    judged = JudgedSteps(step, lambda: edge.degraded, lambda: edge.past_faults)
    state.on_restore(judged.went_back)
    events = FaultEvents(lambda: s.recorder, step=step, judged=judged)
    edge = Edge(events, alone=s.ranks.count == 1, step=step)
    s.recorder.on_lost = lambda error: edge.note("journal", error)
    parts = _step_parts(s, state, edge, judgement=judgement, clock=clock, stop_wanted=stop_wanted)
    least_steps = s.policy.verify_steps
    parts.points.doubt_if(
        lambda healthy: _doubt_of(step(), healthy, judged, least_steps=least_steps)
    )
    return parts, edge, judged


def _step_parts(
    s: Setup,
    state: RunState,
    edge: Edge,
    *,
    judgement: Judgement,
    clock: StepClock,
    stop_wanted: Callable[[], bool],
) -> RunContext:
    """Return what a step is made of: probes, update, rows, settings, points to go back to."""
    parameters = trained_parameters(s.training)
    late = LateReads(on=reads_late(s.policy.reads, parameters))
    probes = _probes_of(s, parameters)
    rates, precision = Rates(state), Precision(state)
    update = OptimizerStep(
        state,
        clip=s.clip,
        parameters=parameters,
        rates=rates,
        precision=precision,
        probes=probes,
        ranks=s.ranks,
        holders=s.holders,
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
        begin_step=edge.begin_step,
    )
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
    expected = ExpectedChanges()
    reader = SettingsReader(s.training, clip=lambda: update.clip)
    ledger = SettingsLedger(reader, expected, reads_batches=s.ranks.count == 1)
    state.on_restore(ledger.went_back)
    return RunContext(
        policy=s.policy,
        recorder=s.recorder,
        ranks=s.ranks,
        holders=s.holders,
        training=s.training,
        data=s.order,
        state=state,
        points=RestorePoints(
            state, s.policy, recorder=s.recorder, ranks=s.ranks, holders=s.holders
        ),
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
        settings=ledger,
        expected=expected,
    )


def _probes_of(s: Setup, parameters: Sequence[torch.Tensor]) -> Probes:
    cadence = Cadence.of(
        s.policy.probes_off,
        every_steps=s.policy.probe_every_steps,
        signs_every_steps=s.policy.probe_signs_every_steps,
    )
    return Probes(
        s.training,
        parameters,
        ranks=s.ranks,
        holders=s.holders,
        output_layer=s.output_layer,
        cadence=cadence,
    )
