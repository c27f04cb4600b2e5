"""The probe and the trials of one case: look at the data, try remedies, keep one or none.

start_probe -> probe --all batches seen--> trial ... trial --one held--> kept
                 ^                           | none held
                 +------- further back ------+----------> left as it was

The table of the trials from one restore point, with the unchanged run as control, is journalled
when one is kept or all have failed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.case import Approach
from trimtab.guard.recovery.commands import (
    BeginAttempt,
    Capture,
    ClearSettings,
    Confirm,
    CountProbedBatch,
    CountRollback,
    DropSnapshots,
    FindRestorePoint,
    GoBackTo,
    JournalEvent,
    NoteRaisedRate,
    PassBy,
    PutInForce,
    SetAside,
    Survey,
    TakeBack,
    WatchPrecision,
    at_step,
    decision,
    detail,
    weighed,
)
from trimtab.guard.recovery.curves import as_curve, recorded_curve, repeats
from trimtab.guard.recovery.data_probe import (
    forward_fails,
    onset_sample,
    outliers,
    probe_sample,
    recounted,
    summarize_probe,
)
from trimtab.guard.recovery.events import IncidentInRecord, StepDone
from trimtab.guard.recovery.expectation import expected_loss
from trimtab.guard.recovery.grace_period import GracePeriod
from trimtab.guard.recovery.kept_remedy import give_up, keep
from trimtab.guard.recovery.learning_rate import sound_lr
from trimtab.guard.recovery.permission import stage
from trimtab.guard.recovery.recurrence import RecurringSpikes
from trimtab.guard.recovery.situation import (
    older_target,
    situation_of,
    trial_length,
    wasted_share,
)
from trimtab.guard.recovery.standstill import own_doing
from trimtab.guard.recovery.state import (
    Advancing,
    Capturing,
    FindingOlderState,
    GoingFurtherBack,
    Leaving,
    LeftCase,
    ReadingWanted,
    StagedRequest,
    StartingProbe,
    StartingTrial,
)
from trimtab.guard.recovery.triage import (
    BY_NO_UPDATE,
    SLOW_RISES,
    is_no_updates_doing,
    saturates,
    speaks_of_trial,
)
from trimtab.guard.recovery.trial_table import read_case, with_row
from trimtab.guard.recovery.trial_verdict import (
    can_be_compared,
    conclude_trial,
    is_better_without,
    is_beyond_noise,
    noise_of,
    settings_at_fault,
    trial_is_lost,
)
from trimtab.guard.recovery.values import settings_of
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.expected_steps import WeighedWay, told
from trimtab.plan.ladder import (
    CONTROL,
    Commit,
    GiveUp,
    GoBack,
    NextStep,
    Wait,
    data_limit,
    is_ordered,
    next_step,
    ways,
)
from trimtab.plan.trials import Trial

if TYPE_CHECKING:
    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.case import Case
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import (
        Captured,
        Confirmed,
        FaultHeard,
        ProbeDone,
        ReadingDone,
        RestorePointFound,
        Standing,
        Surveyed,
    )
    from trimtab.guard.recovery.state import RecoveryState
    from trimtab.guard.recovery.values import RestorePoint
    from trimtab.plan.ladder import Situation

__all__ = [
    "advance",
    "begin_branch",
    "break_off",
    "continue_further_back",
    "end_trial",
    "finish_leaving",
    "finish_trial",
    "probe_ready",
    "probe_step",
    "start_from_older_state",
    "start_probe",
    "trial_ready",
    "trial_step",
]

Result = tuple["RecoveryState", tuple["Command", ...]]

_BROKEN_STEPS = 3
"""Steps in a row without a finite gradient from which a trial is lost."""

_MEASURED_STEPS = 12
"""Steps after the onset that a failed branch is measured for, where the whole table is asked for.
"""


# -- the probe ------------------------------------------------------------------------------


def start_probe(state: RecoveryState, case: Case, step: int) -> Result:
    """Go back to the base of the case, and begin to look at the data ahead."""
    base, incident = case.base, case.incident
    # going further back undoes the same lowering again: it is said once
    raised = (NoteRaisedRate(base),) if case.depth == 0 else ()
    return replace(state, case=case, pending=StartingProbe()), (
        decision(
            step,
            f"go back to step {base.step}",
            f"newest healthy state before the first sign (step {case.first_sign})",
            tuple(f.text for f in incident.findings)[:6],
        ),
        at_step(
            step,
            f"going back to step {base.step} and looking at the data ahead of it: {_title(case)},"
            f" first sign at step {case.first_sign}",
        ),
        *raised,
        DropSnapshots(after=base.step),
        SetAside(
            point=base,
            first_sign=case.first_sign,
            now=step,
            why=f"{incident.kind}, first sign at step {case.first_sign}",
        ),
        GoBackTo(base),
        PassBy(probe_sample(case, margin=state.policy.probe_margin_batches)),
        WatchPrecision(on=True),
        Confirm(),
    )


def _title(case: Case) -> str:
    kind = case.incident.kind
    return KIND_BY_NAME[kind].title if kind in KIND_BY_NAME else kind


def probe_ready(state: RecoveryState, case: Case) -> Result:
    """Begin the probe: the base is restored."""
    case = replace(
        case,
        probe_samples=(),
        rows=(),
        calm=(),
        repeat="",
        control=recorded_curve(case.record, after=case.base.step, until=case.seen_step),
    )
    return replace(state, case=case, phase="probe"), ()


def probe_step(state: RecoveryState, case: Case, e: ProbeDone) -> Result:
    """Take in the loss of one probed batch under the restored state."""
    case = replace(case, probe_samples=(*case.probe_samples, (e.first, e.last, e.loss)))
    state = replace(state, case=case)
    # a forward pass costs about a third of a step; it counts against the budget
    counted: tuple[Command, ...] = (CountProbedBatch(),)
    margin = state.policy.probe_margin_batches
    until = case.seen_sample
    if saturates(case.incident):  # slow: what set it off lies about its first sign
        until = min(until, onset_sample(case) + margin * (e.last - e.first + 1))
    if e.last + 1 < until:
        return state, counted
    # the probe goes on past the incident until as many clean batches in a row were seen: a window
    # of bad data may reach further than the run had got
    clean = 0
    for outlier in reversed(outliers(case, margin=margin)):
        if outlier:
            break
        clean += 1
    limit = 12 * margin + 2 * (case.seen_step - case.base.step)
    share = wasted_share(state, case, e.executed_steps, e.probed_batches + 1, base=case.base.step)
    spent = share >= state.policy.max_wasted_share
    if clean < margin and len(case.probe_samples) <= limit and not spent:
        return state, counted
    probe = summarize_probe(case, margin=margin)
    of = f"of {probe.num_batches} batches"
    text = (
        f"{probe.num_outliers} {of} stand out under the healthy state (samples"
        f" {probe.first_sample}-{probe.last_sample}, loss up to {probe.worst_loss:.3g} against"
        f" {case.level:.3g})"
        if probe.num_outliers
        else f"none {of} stands out under the healthy state"
    )
    state = replace(state, case=replace(case, probe=probe), pending=Advancing(after_probe=True))
    return state, (
        *counted,
        WatchPrecision(on=False),
        decision(case.base.step, "probe the data", text),
        detail(f"data: {text}"),
        Survey(),
    )


# -- a trial --------------------------------------------------------------------------------


def trial_step(
    state: RecoveryState, case: Case, e: StepDone, findings: tuple[Finding, ...]
) -> Result:
    """Take in one step of a trial; ask for its end state where it is over and held."""
    broken = not math.isfinite(e.norm) and not e.scaled
    case = replace(
        case,
        losses=(*case.losses, e.loss),
        trial_steps=case.trial_steps + 1,
        lr_peak=max(case.lr_peak, e.script_lr) if e.script_lr > 0 else case.lr_peak,
        broken_steps=case.broken_steps + 1 if broken else 0,
    )
    if case.trial is not None and case.trial.calm_steps:
        state = replace(state, case=case)
        over = len(case.losses) >= case.trial.calm_steps
        return end_calm_replay(state, case, e.step) if over else (state, ())
    length = trial_length(state, case)
    if case.trial is not None and case.trial.stands_still:  # what it shows shows in its last rows
        state = replace(state, case=case)
        over = len(case.losses) >= length
        return end_trial(state, case, e.step, None) if over else (state, ())
    alarmed = (
        case.alarmed
        or case.broken_steps >= _BROKEN_STEPS
        or trial_is_lost(case)
        or any(
            f.severity != "info"
            and speaks_of_trial(f, reads=e.reads)
            and not _passes(case, f, length)
            for f in findings
        )
        or (
            is_no_updates_doing(case.incident) and any(f.detector in BY_NO_UPDATE for f in findings)
        )
    )
    # a trial ends as soon as its outcome is certain: each further step is lost to the run
    over = len(case.losses) >= length
    if not over and _repeats_the_record(case):  # it will go wrong again
        over = alarmed = True
    case = replace(case, alarmed=alarmed)
    state = replace(state, case=case)
    if not over and (not alarmed or _measures_on(state, case, e.loss)):
        return state, ()
    # A branch that failed early has hardly changed the state: its batches would say nothing.
    # Nor do they say of attention that saturates: that it goes on shows in no loss for a while.
    saturating = saturates(case.incident)
    if e.reads and not alarmed and math.isfinite(e.loss) and not saturating:
        base = None if case.base_reading else case.base
        wanted = ReadingWanted(e, case.base.step, base)
        return replace(state, wants=wanted), ()
    return end_trial(state, case, e.step, None)


def end_trial(state: RecoveryState, case: Case, step: int, e: ReadingDone | None) -> Result:
    """Say whether a trial held, by the fixed batches where they were read."""
    trial = case.trial
    assert trial is not None
    reading = None if e is None else e.reading
    case = replace(case, by_metric=reading is not None and reading.sigma is not None)
    case = replace(case, by_batches=reading is not None and not case.by_metric)
    if reading is not None:
        if reading.base:
            case = replace(case, base_reading=reading.base)
        elif len(case.base_reading) == len(reading.losses):
            reading = replace(reading, base=case.base_reading, base_step=case.base.step)
    result = conclude_trial(case, trial, tolerance=state.policy.verify_tolerance, reading=reading)
    if case.now is not None:
        held, compared = is_better_without(
            case, trial, reading, tolerance=state.policy.verify_tolerance
        )
        result = replace(result, held=result.held and held)
        case = replace(case, compared=compared)
    elif trial.put_back:
        at_fault = settings_at_fault(case, trial, tolerance=state.policy.verify_tolerance)
        # one that held while the record says nothing clear is compared with the run as it was
        doubt = result.held and at_fault is not True and can_be_compared(case, trial)
        case = replace(case, cleared=at_fault is False and not result.held, in_doubt=doubt)
    if trial.unchanged:
        state = replace(state, noise=noise_of(case, state.noise))
        result = replace(result, beyond_noise=is_beyond_noise(case, state.noise))
    state = replace(state, case=replace(case, trials=(*case.trials, result)))
    if result.held:
        # keeping this trial later goes on from here, without doing its steps again
        return replace(state, pending=Capturing()), (Capture(),)
    return finish_trial(state, step, None)


def end_calm_replay(state: RecoveryState, case: Case, step: int) -> Result:
    """Take in a replay of calm steps; with the last of them, what the control has shown counts."""
    case = replace(case, calm=(*case.calm, as_curve(case.losses, after=case.from_step)))
    state = replace(state, case=case, pending=Advancing(after_probe=False))
    noise = noise_of(case, state.noise)
    if noise is None:
        return state, (Survey(),)
    known = is_beyond_noise(case, noise)
    trials = tuple(
        replace(t, beyond_noise=known) if t.name == CONTROL.name else t for t in case.trials
    )
    case = replace(case, trials=trials)
    text = (
        f"{1 + len(case.calm)} replays of {len(case.calm[0])} calm steps differ by at most"
        f" {noise.spread:.3g} from each other, {noise.apart:.3g} from the record:"
        f" {'far less than the trouble' if known else 'the unchanged replay is inconclusive'}"
    )
    return replace(state, case=case, noise=noise), (
        decision(step, "measure how far this job repeats itself", text),
        detail(text),
        Survey(),
    )


def _passes(case: Case, finding: Finding, length: int) -> bool:
    """Whether a spike is no failure yet: early in a trial of a run whose spikes return and heal."""
    early = 2 * len(case.losses) <= length
    return case.returning and early and finding.kind == "spike"


def _measures_on(state: RecoveryState, case: Case, loss: float) -> bool:
    """Whether a failed branch goes on for some steps, so that its effect can be measured.

    It does where the policy asks for the whole table; else a failed branch ends at its alarm.
    """
    since = case.from_step + len(case.losses) - case.incident.onset
    # a branch that puts a setting back is compared with the run over the same steps
    steps = case.seen_step - int(case.incident.onset) + 1
    compares = case.trial is not None and bool(case.trial.put_back) and since < steps
    asked = state.policy.bisect == "always" or compares
    return asked and math.isfinite(loss) and since < _MEASURED_STEPS


def _repeats_the_record(case: Case) -> bool:
    """Whether an unchanged replay came bit for bit to where the trouble was seen."""
    # What changed by no update may have done so after the last loss on record.
    if case.trial is None or not case.trial.unchanged or is_no_updates_doing(case.incident):
        return False
    if case.from_step + len(case.losses) < case.seen_step:
        return False
    return repeats(as_curve(case.losses, after=case.from_step), case.control) == "bit-equal"


def finish_trial(state: RecoveryState, step: int, e: Captured | None) -> Result:
    """Write down how a trial ended; `e`: its end state, where it held."""
    case = state.case
    assert case is not None
    assert case.trial is not None
    trial, result = case.trial, case.trials[-1]
    if e is not None:
        # two at most: each is a whole copy of the training state, and only the last two that held
        # can still be chosen between
        others = [end for end in case.ends if end[0] != trial.name]
        case = replace(case, ends=tuple([*others, (trial.name, e.point)][-2:]))
    case = with_row(case, trial, result)
    effect = case.rows[-1].effect
    data = {
        "remedy": f"trial: {trial.name}",
        "verdict": "worked" if result.held else "did not",
        "figures": {
            "loss": result.loss,
            "expected": result.expected_loss,
            "steps": result.steps,
        },
        "text": "trial held" if result.held else "trial failed",
        "trial": True,
        "effect": "" if effect is None else str(effect),
    }
    return replace(state, case=case, pending=Advancing(after_probe=False)), (
        JournalEvent("outcome", step, data),
        detail(
            f"trial {len(case.losses):>3} steps, {trial.name}:"
            f" {'✓' if result.held else '✗'}  {_measure(case)} {result.loss:.3f}, expected"
            f" {result.expected_loss:.3f}"
        ),
        Survey(),
    )


def _measure(case: Case) -> str:
    if case.by_metric:
        return "validate"
    return "fixed batches" if case.by_batches else "loss"


# -- what comes next ------------------------------------------------------------------------


def advance(state: RecoveryState, case: Case, asked: Advancing, e: Surveyed) -> Result:
    """Decide what comes after a probe or a trial."""
    if asked.after_probe:
        case = replace(case, low_precision=e.standing.low_precision)
        state = replace(state, case=case)
        # another number format, or a setting that is put back, changes the forward pass itself
        if forward_fails(case) and not (e.standing.low_precision or e.standing.changed):
            return _leave(state, case, GiveUp(reason=_no_cure(case), hopeless=True))
        said = recounted(case)
        # where its factor is known, and matters to the update, it is divided out
        measured = any(c.factors_loss == "measured" for c in e.standing.changed)
        if said and not measured:
            until = case.seen_step + state.policy.verify_steps
            state = replace(state, recounted_until=until)
            why = f"the loss is counted differently, or other labels are asked for: {said}"
            return _leave_alone(state, case, why, e.step)
    cleared: tuple[Command, ...] = ()
    if case.cleared:
        state, case, cleared, leave = _clear(state, case, e.step)
        if leave:
            state, more = _leave_alone(state, case, leave, e.step)
            return state, (*cleared, *more)
    if case.in_doubt and case.trial is not None:
        if case.trial.put_back:
            return _start_trial(state, case, CONTROL, None)
        case = replace(case, in_doubt=False)
        if case.trials[-1].held:
            back = case.tried[case.trials[-2].name]
            why = f"{back.name} is not needed: the run holds without it as well"
            step = Commit(trial=CONTROL, reason=why)
            compared = _comparison(case, step, e.step)
            state, more = _take_up(state, case, step, e)
            return state, (*compared, *_suspect_no_longer(back, why, e.step), detail(why), *more)
    state, more = _advance(state, case, e)
    return state, (*cleared, *more)


def _no_cure(case: Case) -> str:
    base = case.base.step
    return (
        f"the forward pass gives NaN or Inf with every batch under the state of step {base}, also"
        f" with those that were trained on from there (steps {base + 1}-"
        f"{int(case.incident.onset) - 1}): no rate, no data and no older state changes that"
    )


def _clear(
    state: RecoveryState, case: Case, step: int
) -> tuple[RecoveryState, Case, tuple[Command, ...], str]:
    """Suspect settings no longer that were put back for nothing; return why to leave all as it was.

    It is, so that the fixed batches are asked as in a run without the change, unless something
    else is suspected as well.
    """
    trial, case = case.trial, replace(case, cleared=False)
    assert trial is not None
    why = f"{trial.name} is no better than the run itself over the same steps"
    said = _suspect_no_longer(trial, why, step)
    other = (
        (case.probe is not None and case.probe.num_outliers > 0)
        or case.lr_jump is not None
        or case.returning
        or case.incident.kind == "non-finite"
    )
    if other or any(t.held for t in case.trials):
        return state, case, (*said, detail(why)), ""
    keys = frozenset(f.key for f in case.incident.findings)
    return replace(state, handled=state.handled - keys), case, said, why


def _suspect_no_longer(trial: Trial, why: str, step: int) -> tuple[Command, ...]:
    """Clear the settings of a branch, in this process and in later ones."""
    settings = {c.name: c.step for c in trial.put_back}
    return (
        ClearSettings(trial.put_back, why),
        decision(step, "suspect it no longer", why, settings=settings),
    )


def _advance(state: RecoveryState, case: Case, e: Surveyed) -> Result:
    """Decide what comes next by the ladder."""
    stood = case.trial is not None and case.trial.stands_still
    if stood and (why := own_doing(case)):
        ending = GiveUp(reason=why)
        compared = _comparison(case, ending, e.step)
        state, more = _leave(state, case, ending)
        return state, (*compared, *more)
    situation = situation_of(state, case, e.standing, e.oldest_step)
    step = next_step(situation)
    if isinstance(step, GoBack | GiveUp) and case.asks:
        # what may be done without asking did not hold; a person may allow the rest
        compared = _comparison(case, step, e.step)
        state, more = _leave(state, case, GiveUp(reason=step.reason), asks=case.asks)
        return state, (*compared, *more)
    if isinstance(step, GoBack):
        distance = max(int(case.incident.onset) - case.base.step, state.policy.snapshot_every_steps)
        target = case.base.step - step.times * distance
        state = replace(state, pending=GoingFurtherBack(step, e.standing))
        return state, (FindRestorePoint(target, or_oldest=True),)
    step = _within_budget(state, case, step, e.standing, limit=data_limit(situation))
    if isinstance(step, Trial):
        sums = () if step.calm_steps else _sums(situation, step, e.step)
        state, more = _start_trial(state, case, step, older_target(state, case, e.oldest_step))
        return state, (*sums, *more)
    if isinstance(step, GiveUp):
        step = _least_bad(case, step)
    if isinstance(step, Commit) and cures_nothing(case, step.trial):
        reason = (
            f"the replay repeats the slow rise, and {step.trial.name} is no better beyond noise"
        )
        state = replace(state, slow_until=case.seen_step + state.policy.verify_steps)
        return _leave_alone(state, case, reason, e.step)
    compared = _comparison(case, step, e.step)
    if isinstance(step, Commit):
        state, more = _take_up(state, case, step, e)
    else:
        assert not isinstance(step, GoBack)
        state, more = _leave(state, case, step)
    return state, (*compared, *more)


def _sums(situation: Situation, trial: Trial, step: int) -> tuple[Command, ...]:
    """Return the sum by which a branch comes next; none where one that held is only refined."""
    if any(t.held and not t.only_asks for t in situation.trials):
        return ()
    left = ways(situation)
    leave = WeighedWay(name="leave it", cost=situation.stake_steps)
    shown = detail(f"{trial.name} next; {told((*left[:3], leave))}")
    asked = is_ordered(situation) or situation.policy.bisect == "always"
    because = "in the order of the policy" if asked else ""
    return weighed(step, f"try {trial.name}", (*left, leave), because=because), shown


def _within_budget(
    state: RecoveryState, case: Case, step: NextStep, standing: Standing, *, limit: str
) -> NextStep:
    """Return the step; or, where its trial would exceed the budget, what to do instead."""
    # the first trial is always allowed: without one, going back was for nothing
    if not isinstance(step, Trial) or step.calm_steps or not (case.trials or case.depth):
        return step
    allowed = state.policy.max_wasted_share
    share = wasted_share(
        state,
        case,
        standing.executed_steps,
        standing.probed_batches,
        base=case.base.step,
        ahead=trial_length(state, case),
    )
    if share <= allowed:
        return step
    spent = (
        f"one more trial would pass the {allowed:.0%} of the "
        "effective steps that may be given up or spent on trials"
    )
    held = [t for t in case.trials if t.held and not t.only_asks]
    if held:
        return Commit(trial=case.tried[held[-1].name], reason=f"{held[-1].name} held; {spent}")
    shown = {t.name for t in case.trials if t.held}
    tried = ", ".join(name for name in case.tried if name not in shown) or "nothing"
    reason = f"no {'other ' * bool(shown)}trial held (tried: {tried}); {spent}"
    return GiveUp(reason="; ".join(filter(None, (reason, limit))))


def _leave_alone(state: RecoveryState, case: Case, reason: str, now: int) -> Result:
    """Go on from the restore point with nothing kept, and say why."""
    ending = Wait(until_step=case.seen_step, reason=reason)
    state, more = _leave(state, case, ending)
    told = decision(
        now,
        "leave alone",
        reason,
        slow_until=state.slow_until,
        recounted_until=state.recounted_until,
    )
    return state, (*_comparison(case, ending, now), told, detail(f"left alone: {reason}"), *more)


def cures_nothing(case: Case, trial: Trial) -> bool:
    """Whether a cut ends no slow rise: the unchanged replay repeats it, and is hardly worse.

    Paired losses differ a little with any rate; less than the noise of a step is no cure.
    """
    slow = case.incident.kind in SLOW_RISES and case.repeat == "bit-equal"
    effect = next((r.effect for r in case.rows if r.name == trial.name), None)
    if not slow or effect is None or "lower-lr" not in trial.arms:
        return False
    return not (effect.high < 0 and effect.size < -case.expected.sigma)


def _least_bad(case: Case, step: GiveUp) -> Commit | GiveUp:
    """Return the finite branch that was better than no change, beyond noise; else the step.

    Nothing held: the run goes on with the least bad branch there is, and recovery pauses.
    """
    known = [
        (row.effect.size, row)
        for row in case.rows
        if row.effect is not None
        and row.effect.high < 0
        and math.isfinite(row.loss)
        and not case.tried[row.name].only_asks
    ]
    if not known:
        return step
    size, row = min(known, key=lambda pair: pair[0])
    return Commit(
        trial=case.tried[row.name],
        reason=f"{step.reason}; the least bad branch: {row.name}, {size:+.3g} against no change",
        given_up=step.reason,
    )


def _comparison(case: Case, step: NextStep, now: int) -> tuple[Command, ...]:
    """Return the table of this restore point's trials, the unchanged run among them."""
    if not case.rows:
        return ()
    found = read_case(case)
    data = {
        "what": "compare the trials",
        "why": found.verdict,
        "evidence": [r.text() for r in found.rows],
        "kept": step.trial.name if isinstance(step, Commit) else None,
        **found.as_json(),
    }
    entry = JournalEvent("decision", now, data)
    return (entry, detail(f"trials: {found.news}")) if found.news else (entry,)


def continue_further_back(
    state: RecoveryState, case: Case, asked: GoingFurtherBack, e: RestorePointFound
) -> Result:
    """Begin again from an older state; or give up, where that would cost too many steps."""
    older, standing = e.point, asked.standing
    assert older is not None  # the ladder goes back only where there is something to go to
    share = wasted_share(
        state,
        case,
        standing.executed_steps,
        standing.probed_batches,
        base=older.step,
        ahead=trial_length(state, case),
    )
    if share > state.policy.max_wasted_share:
        reason = f"{asked.step.reason}: that would give up {share:.0%} of the steps"
        ending = GiveUp(reason=reason)
        compared = _comparison(case, ending, e.step)
        state, more = _leave(state, case, ending)
        return state, (*compared, *more)
    compared = _comparison(case, asked.step, e.step)
    undone = _take_back(case)
    # an older state had a higher loss: trials from it must come back to its level, not to the later
    lr_restore = case.lr_restore
    if case.lr_jump is None and case.lr_sound is None:
        lr_restore = sound_lr(case.record, older.step, case.lr_now, case.before.lr_cuts)
    case = replace(
        case,
        depth=case.depth + 1,
        base=older,
        base_reading=(),
        trial=None,
        cleared=False,
        in_doubt=False,
        trials=(),
        ends=(),
        lr_restore=lr_restore,
        expected=expected_loss(case.record, older.step),
    )
    state, more = start_probe(state, case, e.step)
    return state, (*compared, *undone, detail(asked.step.reason), *more)


# -- a branch begins ------------------------------------------------------------------------


def _start_trial(
    state: RecoveryState,
    case: Case,
    trial: Trial,
    target: int | None,
    kept: Commit | None = None,
) -> Result:
    """Begin a branch from the base, or from an older state where the trial asks for one."""
    state = replace(state, num_trials=state.num_trials + 1)
    if trial.older_state and target is not None:
        state = replace(state, pending=FindingOlderState(trial))
        return state, (FindRestorePoint(target, or_oldest=False),)
    return begin_branch(state, case, StartingTrial(trial, case.base, goes_on=False, kept=kept))


def start_from_older_state(
    state: RecoveryState, case: Case, asked: FindingOlderState, e: RestorePointFound
) -> Result:
    """Begin the branch that wants another state."""
    point = e.point or case.base
    return begin_branch(state, case, StartingTrial(asked.trial, point, goes_on=False, kept=None))


def begin_branch(state: RecoveryState, case: Case, start: StartingTrial) -> Result:
    """Restore the state that a branch begins from, and change what it changes."""
    # an older state is fed the data that the base would be fed
    data_of = case.base if start.trial.older_state else None
    commands = (
        *_take_back(case),
        GoBackTo(start.point, data_of),
        PutInForce(start.trial, case.before),
        Confirm(),
    )
    return replace(state, case=replace(case, trial=None), pending=start), commands


def trial_ready(state: RecoveryState, case: Case, start: StartingTrial, e: Confirmed) -> Result:
    """Open the branch's attempt: it is restored and changed."""
    trial, point = start.trial, start.point
    lr_cuts = case.before.lr_cuts_with(trial)
    more: dict[str, object] = {"tag": "+".join(trial.arms)}
    if start.goes_on:
        case = replace(case, trial=trial)
    else:
        more["settings"] = settings_of(trial)
        older = trial.older_state
        case = replace(
            case,
            trial=trial,
            losses=(),
            lr_peak=0.0,
            alarmed=False,
            broken_steps=0,
            from_step=point.step,
            expect=expected_loss(case.record, point.step) if older else case.expected,
            tried={**case.tried, trial.name: trial},
        )
    more |= {
        "lr_cuts": [list(c) for c in lr_cuts],
        "skip": list(trial.skip) if trial.skip else None,
    }
    why = f"goes on: {trial.name}" if start.goes_on else f"trial: {trial.name}"
    opened = BeginAttempt(point.attempt, point.step, why, trial=True, more=more)
    state = forget_findings(replace(state, case=case))
    if start.kept is None:
        return replace(state, phase="trial"), (opened,)
    state, commands = keep(state, case, start.kept, lr_cuts=lr_cuts, step=e.step)
    return state, (opened, *commands)


def forget_findings(state: RecoveryState) -> RecoveryState:
    """Forget what was found before: it is not about the branch that begins."""
    return replace(
        state,
        watch=None,
        suspected=None,
        open={},
        grace=GracePeriod(),
        recurrence=RecurringSpikes(),
        notices=replace(state.notices, waiting=frozenset()),
    )


def _take_back(case: Case) -> tuple[Command, ...]:
    return () if case.trial is None else (TakeBack(case.trial, case.before),)


# -- the case ends --------------------------------------------------------------------------


def _take_up(state: RecoveryState, case: Case, commit: Commit, e: Surveyed) -> Result:
    """Keep a trial: go on from where it ended, which saves doing its steps again."""
    trial = commit.trial
    if case.trial is not None and case.trial.name == trial.name:
        return keep(state, case, commit, lr_cuts=e.standing.in_force.lr_cuts, step=e.step)
    end: RestorePoint | None = dict(case.ends).get(trial.name)
    if end is None or trial.rewarm_steps is not None:  # a reset would be done twice
        target = older_target(state, case, e.oldest_step)
        return _start_trial(state, case, trial, target, kept=commit)
    return begin_branch(state, case, StartingTrial(trial, end, goes_on=True, kept=commit))


def _leave(
    state: RecoveryState, case: Case, ending: Wait | GiveUp, *, asks: tuple[str, ...] = ()
) -> Result:
    """End a case without keeping anything: go on from the restore point as it was."""
    commands = (*_take_back(case), GoBackTo(case.base), Confirm())
    case = replace(case, trial=None)
    return replace(state, case=case, pending=Leaving(ending, asks)), commands


def finish_leaving(state: RecoveryState, case: Case, asked: Leaving, e: Confirmed) -> Result:
    """Open the attempt that goes on without a remedy."""
    base, ending = case.origin, asked.ending
    why = f"no remedy kept: {ending.reason}"
    opened = BeginAttempt(base.attempt, base.step, why, trial=False, more={})
    left = LeftCase(case.incident.kind, case.probe, case.trials)
    # It has cost as much as one that is kept; where the run goes on as it was, nothing is undone.
    begun = (opened,) if case.now is not None else (CountRollback(), opened)
    state = forget_findings(replace(state, phase="calm", case=None, left=left))
    if isinstance(ending, Wait):
        return replace(state, wait_until=ending.until_step), begun
    if asked.asks:
        state, commands = stage(state, _request(case, asked.asks, e.step), why=why, step=e.step)
        return state, (*begun, *commands)
    state, commands = give_up(
        state, ending.reason, e.step, seen_step=case.seen_step, hopeless=ending.hopeless
    )
    return state, (*begun, *commands)


def _request(case: Case, classes: tuple[str, ...], step: int) -> StagedRequest:
    """Return what a person is asked for a case in which nothing else held."""
    incident = case.incident
    keys = frozenset(f.key for f in incident.findings)
    return StagedRequest(
        kind=incident.kind,
        classes=classes,
        step=step,
        target_step=case.base.step,
        after_trials=True,
        found=IncidentInRecord(case.record, incident, keys),
        event=StepDone(
            step=case.seen_step,
            row=case.record.num_rows,
            sample=case.seen_sample,
            loss=math.nan,
            norm=math.nan,
        ),
        approach=Approach(
            first_sign=case.first_sign,
            target_step=case.base.step,
            recurrences=case.recurrences,
            returning=case.returning,
            lr_jump=case.lr_jump,
            lr_rising=case.lr_rising,
            lr_sound=case.lr_sound,
        ),
    )


def break_off(state: RecoveryState, e: FaultHeard) -> Result:
    """End a probe or trial: its remedy is undone, and the state that it began from is put back.

    Where that cannot be done, the state that the fault left goes on.
    """
    case, phase = state.case, state.phase
    state = replace(state, phase="calm", case=None, wants=None)
    if case is None:
        return state, ()
    state = forget_findings(replace(state, verification=None))
    why = f"the {phase} was broken off by a fault of trimtab's own"
    if e.can_go_back:
        base = case.origin
        opened = BeginAttempt(base.attempt, base.step, why, trial=False, more={})
        return state, (*_take_back(case), GoBackTo(base), opened)
    # a probe has recorded no row: what goes on continues the attempt that was gone back to
    parent = case.base.attempt if phase == "probe" else e.attempt
    return state, (*_take_back(case), BeginAttempt(parent, e.step, why, trial=False, more={}))
