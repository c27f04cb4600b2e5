"""Connects recovery to the run: observes it, calls `update`, carries the commands out in order.

It is the only module here that touches the engine (with `branch`, which it calls). The user's loop
needs no code for recovery: in a probe and in a trial the guard hands out other batches than the
next ones. In a probe the forward pass runs and nothing is updated; in a trial the steps are real,
on a branch from the restore point, and are undone unless the branch is kept.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, TypeVar, assert_never

from trimtab.chronicle.approvals import staged_actions
from trimtab.errors import TrimtabError
from trimtab.guard.recording.answers import DailyUse, Inbox
from trimtab.guard.recovery import commands as c
from trimtab.guard.recovery import events as ev
from trimtab.guard.recovery.branch import put_in_force, take_back, what_is_in_force
from trimtab.guard.recovery.by_design import ByDesign
from trimtab.guard.recovery.early_cut import early_cut
from trimtab.guard.recovery.expectation import Expectation, expected_loss
from trimtab.guard.recovery.past_outcomes import arms_that_worked
from trimtab.guard.recovery.rough_start import freed_step
from trimtab.guard.recovery.state import RecoveryState, StagedRequest
from trimtab.guard.recovery.triage import find_incident
from trimtab.guard.recovery.update import update
from trimtab.guard.recovery.values import RestorePoint
from trimtab.guard.settings.in_force import in_force
from trimtab.guard.state.optimizers import has_second_moment
from trimtab.guard.step.actuators import read_setting
from trimtab.guard.step.loss_terms import terms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence

    from trimtab.chronicle.approvals import StagedAction
    from trimtab.chronicle.journal import Event
    from trimtab.detectors.contract import Finding
    from trimtab.guard.recording.fault_barrier import Part
    from trimtab.guard.recovery.past_outcomes import LeftBefore
    from trimtab.guard.recovery.state import Phase, ReadingWanted
    from trimtab.guard.state.training_state import Snapshot
    from trimtab.guard.step.engine import Engine
    from trimtab.guard.yardstick.reading import Reading
    from trimtab.incidents import Incident
    from trimtab.plan.expected import ExpectedChange
    from trimtab.plan.trials import SettingPutBack
    from trimtab.record import RunRecord

__all__ = ["Recovery"]

T = TypeVar("T")


class Recovery:
    """Observes one run, and carries out what recovery decides."""

    def __init__(
        self,
        engine: Engine,
        *,
        say: Callable[[str], None],
        final_step: int | None,
        guarded: Callable[[Part, Callable[[], object]], object],
    ) -> None:
        """Watch an engine.

        Args:
            engine: Does what is decided.
            say: Shows one line to the user.
            final_step: Last step of the whole run, where known; no trial goes past it.
            guarded: Does work of a part whose fault is no fault of recovery.
        """
        self.engine = engine
        self.state = RecoveryState(
            policy=engine.policy, final_step=final_step, chief=engine.ranks.chief
        )
        """Replaced by each event; never changed."""
        self.actions: list[dict[str, object]] = []
        """What was done, by hand or by decision, in order."""
        self._say = say
        self._guarded = guarded
        self._snapshots: dict[int, Snapshot] = {}
        """Copies of the training state that the state of recovery refers to, by handle."""
        self._num_snapshots = 0
        self._design = ByDesign()
        self._terms: dict[float, None] = {}
        """Factors of the parts of the loss under way."""
        engine.on_restore(lambda step: self._design.forget_after(step))
        engine.keep_script_changes(lambda: self._design.changes)
        authority = engine.policy.permissions
        self._used = DailyUse(authority)
        self._inbox = Inbox(
            engine.recorder.directory.root,
            engine.ranks,
            asks=engine.policy.mode == "act" and "ask" in authority.allowed.values(),
        )

    def go_on(self) -> None:
        """Build again what the script did to the loss before this process; the first rank can."""
        # a power cut may have taken the rows, and left the checkpoint
        if self.engine.ranks.chief and self.engine.recorder.live.num_rows:
            self._design = ByDesign.of_rows(
                self._record(),
                self.engine.saved_script_changes,
                until=self.engine.counters.step,
            )

    def leave_alone(self, left: LeftBefore) -> None:
        """Leave alone what earlier processes of this run did; all ranks, with the same."""
        for name, step in left.settings.items():
            self.engine.clear_setting(name, step, "it was cleared before the restart")
        state, cut = self.state, None
        if left.cut is not None:
            step, values = left.cut
            limit, limits = values.get("lr_limit"), self.engine.decisions.lr_limits
            if limit is None or any(limit == rate for _, rate in limits):  # else put back, no cut
                cut = early_cut(state.policy, values, step, state.final_step)
        self.state = replace(
            state,
            rises=tuple(left.rises),
            early_cut=cut,
            left_before=tuple(left.findings),
            times_left_alone=left.times,
            slow_until=left.slow_until,
            recounted_until=left.recounted_until,
        )

    def take_up(self, events: Sequence[Event]) -> None:
        """Take up what an earlier process of this run left: what is staged, what was used today.

        All ranks must call it with the same events.
        """
        self._used.take_in(events)
        staged = staged_actions(events)
        self.state = replace(self.state, num_requests=len(staged))
        if not staged or staged[-1].answer or self.engine.policy.mode != "act":
            return
        last, step = staged[-1], self.engine.counters.step
        request = StagedRequest(
            id=last.id,
            kind=last.kind,
            classes=last.classes,
            step=step,
            target_step=step,
            raise_by=last.raise_by,
        )
        self.state = replace(self.state, request=request)
        self._inbox.listen(_seconds_left(last))
        self._say(f"{last.id} still waits for approval: {last.what}")

    def close(self) -> None:
        """Close what answers come through."""
        self._inbox.close()

    # -- called by the guard ----------------------------------------------------------------

    def after_step(
        self,
        loss: float,
        findings: tuple[Finding, ...],
        *,
        last: bool = False,
        reads: bool = False,
    ) -> None:
        """Take in one finished step.

        Args:
            loss: Of the step.
            findings: What the judge found in it.
            last: Whether the run would end here.
            reads: Whether the yardstick can be read.
        """
        engine = self.engine
        request = self.state.request
        # a rise is none of a branch that may be taken back, and would blur what a remedy has done
        free = not self.state.busy and self.state.verification is None
        if request is not None and (request.blocks or free):
            self._hear_answer(request)
        step = engine.counters.step
        still = self.state
        open_ = (f for k, f in still.open.items() if not f.closed and k not in still.handled)
        alarms = [f for f in (*open_, *findings) if ByDesign.is_about(f)]
        if alarms and engine.ranks.count > 1:  # each rank has seen its own part of the loss
            self._design = engine.ranks.agree(lambda: self._design)
        by_design = {f.key: why for f in alarms if (why := self._design.why(f))}
        self._handle(
            ev.StepDone(
                step=step,
                row=engine.decisions.row,
                sample=engine.position,
                loss=loss,
                norm=engine.step_sum.norm,
                findings=findings,
                last=last,
                scaled=engine.has_scaler,
                failures=engine.decisions.failures,
                reads=reads,
                # An override is the user's function: not called unless the answer matters.
                script_lr=(
                    self._alike(lambda: engine.script_lr) if self.state.asks_rate else math.nan
                ),
                scheduled=any(f.signal == "lr" for f in findings)
                and self._alike(lambda: engine.lr_scheduled),
                used_today=self._used_today() if still.reviews_cut(step) else {},
                by_design=by_design,
                unexplained=self._design.failed(step),
            )
        )

    def see_loss(self, loss: object) -> None:
        """Take in the loss of a part of the step under way, as the script gives it."""
        if self.engine.parts_differ:  # not every rank has one, and all must know the same
            return
        self._terms |= dict.fromkeys(terms_of(loss))

    def see_step(self, trained: Hashable) -> None:
        """Take in that an update is due, of these parameters."""
        terms, self._terms = tuple(self._terms), {}
        mine = () if self.engine.parts_differ else trained
        self._design.see_step(self.engine.counters.step + 1, terms, mine)

    def see_row(self, values: Mapping[str, float]) -> None:
        """Take in a row before it is judged."""
        self._design.take_row(
            self.engine.counters.step,
            values.get("loss", math.nan),
            values.get("lr", math.nan),
            values.get("kl_weight", math.nan),
            values.get("latent_kl", math.nan),
        )

    def after_reading(self, reading: Reading | None) -> None:
        """Take in what the yardstick says that `state.wants`; None: it could not be read."""
        wanted, case = self.state.wants, self.state.case
        if wanted is None:
            return
        freed = -math.inf
        if case is None and reading is not None:
            base = wanted.target_step if reading.base_step is None else reading.base_step
            base = wanted.event.step if base < 0 else base
            scale = expected_loss(self._record(), base)
            freed = freed_step(self._record())
        else:
            scale = Expectation() if case is None else case.expect
        step = self.engine.counters.step
        self._handle(ev.ReadingDone(step=step, reading=reading, scale=scale, freed_step=freed))

    def snapshot_for(self, wanted: ReadingWanted) -> Snapshot | None:
        """Return the older state that a reading is to be made of as well, from memory; or None."""
        if wanted.point is not None:
            return self._snapshots.get(wanted.point.handle)
        case = self.state.case
        if wanted.target_step < 0 or (case is not None and case.base_reading):
            return None
        ring = self.engine.ring
        found = ring.before(wanted.target_step)
        return found or (ring.items[0] if ring.items else None)

    def snapshot_read_at(self, steps: Collection[int], *, last: int) -> Snapshot | None:
        """Return the newest state in memory of one of these steps, none of them after the last."""
        found = [s for s in self.engine.ring.items if s.step in steps and s.step <= last]
        return max(found, key=lambda s: s.step, default=None)

    def after_probe(self, first: int, last: int, loss: float) -> None:
        """Take in the loss of one probed batch under the restored state."""
        engine = self.engine
        self._handle(
            ev.ProbeDone(
                step=engine.counters.step,
                first=first,
                last=last,
                loss=loss,
                executed_steps=engine.decisions.executed_steps,
                probed_batches=engine.decisions.probed_batches,
            )
        )

    def after_update(
        self,
        values: Mapping[str, float],
        labels: Mapping[str, str],
        first: int,
        last: int,
        *,
        scaled: bool,
    ) -> None:
        """Take in whether the update of a step was left out, before the step is recorded.

        Args:
            values: What was measured of the step.
            labels: What was named of it: ranks and tensor that are not finite.
            first: First sample id of its batch.
            last: Last one.
            scaled: Whether there is a loss scaler, for which a gradient that overflows is normal.
        """
        self._handle(
            ev.UpdateDone(
                step=self.engine.counters.step,
                row=self.engine.decisions.row,
                loss=values["loss"],
                norm=values["grad_norm"],
                skipped=bool(values.get("skipped")),
                first=first,
                last=last,
                scaled=scaled,
                ranks=labels.get("nonfinite_ranks", ""),
                tensor=labels.get("nonfinite_at", ""),
            )
        )

    def after_change(self, remedy: str) -> None:
        """Take in that somebody changed a setting: its effect is watched."""
        self._handle(ev.ChangedByHand(step=self.engine.counters.step, remedy=remedy))

    def announce(self, change: ExpectedChange) -> None:
        """Take in an announced change."""
        self._handle(ev.ChangeAnnounced(step=self.engine.counters.step, change=change))

    def note(self, text: str) -> None:
        """Journal a sentence of the guard's own."""
        self._carry_out(c.note(self.engine.counters.step, text))

    def tell(self, text: str) -> None:
        """Journal a sentence and say it."""
        self.note(text)
        self._carry_out(c.at_step(self.engine.counters.step, text))

    def note_odd_ranks(self, ranks: str) -> None:
        """Report, once for each set of them, which ranks are not like the first one."""
        self._handle(ev.OddRanksFound(step=self.engine.counters.step, ranks=ranks))

    def note_broken_state(self, tensors: str) -> None:
        """Report, once for each set of them, which tensors of Adam's state make no sense."""
        self._handle(
            ev.BrokenStateFound(
                step=self.engine.counters.step,
                tensors=tensors,
                poisoned_step=self.engine.poisoned_step,
            )
        )

    def finish(self) -> None:
        """Take note that the run has ended: what is being verified gets the verdict there is."""
        engine = self.engine
        self._handle(
            ev.RunEnded(
                step=engine.counters.step,
                row=engine.decisions.row,
                failures=engine.decisions.failures,
            )
        )

    def stand_down(self) -> None:
        """Break off what is under way, and go back to the state that it began from.

        All ranks must call it where a probe or a trial is under way.
        """
        engine, before = self.engine, self.state
        step, attempt = engine.counters.step, engine.recorder.attempt
        try:
            self._handle(ev.FaultHeard(step=step, attempt=attempt))
        except Exception:
            if before.case is None:
                raise
            self.state = before
            self._handle(ev.FaultHeard(step=step, attempt=attempt, can_go_back=False))
            engine.store.note(
                "the state before the trial could not be put back: training goes on from that of"
                " the trial, without its remedy"
            )

    def adopt(self, state: RecoveryState) -> None:
        """Go on from the state of the first rank."""
        self.state = replace(state, chief=self.state.chief)

    def begin_branch(self) -> None:
        """Begin anew after a rollback by hand: what was found before is not about it."""
        self._handle(ev.RolledBackByHand(step=self.engine.counters.step))

    # -- asked by the guard -----------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """calm, probe or trial."""
        return self.state.phase

    @property
    def num_trials(self) -> int:
        """Trials begun in this process."""
        return self.state.num_trials

    @property
    def num_reported(self) -> int:
        """Incidents reported in this process."""
        return self.state.notices.num_reported

    def unreported(self, incidents: Iterable[Incident]) -> tuple[Incident, ...]:
        """Return those of which no line spoke in this process; a jump of the rate has its own."""
        told = {key[:2] for key in self.state.notices.reported} | {("lr-change", "lr")}
        return tuple(i for i in incidents if told.isdisjoint(f.key[:2] for f in i.findings))

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """Incidents acted on or advised about in this process, in order."""
        return self.state.incidents

    @property
    def advising_only(self) -> bool:
        """Whether recovery has stopped to act, and only advises."""
        return self.state.advising_only

    @property
    def given_up(self) -> str:
        """Why nothing is tried any more; empty as long as something is."""
        return self.state.given_up

    @property
    def hopeless(self) -> bool:
        """Whether nothing is left to try, and no step is finite any more."""
        return self.state.hopeless

    @property
    def busy(self) -> bool:
        """Whether a probe or a trial is under way."""
        return self.state.busy

    @property
    def unsettled(self) -> bool:
        """Whether an alarm is open, or what was done about it is still being verified."""
        return self.state.unsettled

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is open: not a time to call a state healthy."""
        return self.state.alarmed

    @property
    def doubt(self) -> str:
        """Why a state that is saved now is suspect; empty where it is not."""
        return self.state.doubt

    def _hear_answer(self, request: StagedRequest) -> None:
        """Take in what a person said to a staged action, or that its deadline is over."""
        heard = self._inbox.hear(request.id)
        if heard is not None:
            answer, why, by = heard
            step = self.engine.counters.step
            self._handle(ev.AnswerHeard(step=step, id=request.id, answer=answer, why=why, by=by))

    # -- the loop of events and commands ----------------------------------------------------

    def _handle(self, event: ev.Event) -> None:
        """Take in an event, carry its commands out, and hand answers back until none is left."""
        next_event: ev.Event | None = event
        while next_event is not None:
            # the state is replaced first: where a command fails, the fault that follows finds what
            # is under way
            before, num_onsets = self.state, len(self.engine.decisions.last_onsets)
            self.state, commands = update(before, (next_event,))
            self._release_snapshots(before)
            next_event = None
            # questions come last, so an answer is handed back after all that precedes it is done
            for command in commands:
                if isinstance(command, c.Question):
                    next_event = self._twice(partial(self._answer, command))
                    continue
                try:
                    self._carry_out(command)
                except Exception:
                    if isinstance(command, c.SetAside) and not before.busy:
                        # nothing was gone back to: the alarm is not dealt with, and comes again
                        self.state = replace(before, pending=None, notices=self.state.notices)
                        del self.engine.decisions.last_onsets[num_onsets:]
                    if isinstance(command, c.JournalAction):
                        # nothing is kept that is not on disk: the trial is under way still
                        self.state = before
                        self.actions.pop()
                    raise
            if next_event is None:  # an answer may name a snapshot that no state refers to yet
                self._release_snapshots()

    def _twice(self, work: Callable[[], T]) -> T:
        """Do work that may be done again; where the disk fails, try it once more at once.

        What is given up here is a recovery, and trouble may be over before the next try. Not where
        several ranks do it together: one of them may have got through.
        """
        try:
            return work()
        except (OSError, TrimtabError):
            if self.engine.ranks.count > 1:
                raise
            return work()

    def _set_aside(self, command: c.SetAside) -> None:
        self._twice(
            lambda: self.engine.set_aside_after(
                self._snapshots[command.point.handle],
                first_sign=command.first_sign,
                now=command.now,
                why=command.why,
            )
        )

    def _carry_out(self, command: c.Command) -> None:
        """Do one thing."""
        engine = self.engine
        match command:
            case c.JournalEvent():
                engine.recorder.event(command.event, step=command.step, **command.data)
            case c.JournalAction():
                self._journal_action(command)
            case c.Say():
                self._say(command.line)
            case c.NoteAction():
                self._note_action(command)
            case c.GoBackTo():
                self._go_back_to(command)
            case c.PassBy():
                self._pass_by(command.sample)
            case c.WatchPrecision():
                engine.precision.watch(on=command.on)
            case c.PutInForce():
                put_in_force(engine, command.trial, command.before)
            case c.ReleaseSettings():
                held = engine.decisions.held_settings
                engine.release_settings(
                    {x.name: x.changed_to for x in command.put_back if x.name in held}
                )
            case c.TakeBack():
                take_back(engine, command.trial, command.before)
            case c.BeginAttempt():
                engine.begin_attempt(
                    parent=command.parent,
                    parent_step=command.parent_step,
                    why=command.why,
                    trial=command.trial,
                    **command.more,
                )
            case c.ClearSettings():
                for change in command.put_back:
                    engine.clear_setting(change.name, change.step, command.why)
            case c.RaiseRate():
                engine.decisions.ease_lr(command.step, command.factor)
            case c.NoteRaisedRate():
                raised = engine.raised_by(self._snapshots[command.point.handle])
                if raised:
                    engine.store.note(raised)
            case c.DropSnapshots():
                engine.ring.drop_after(command.after)
            case c.SetAside():
                self._set_aside(command)
                self._used.count_restore()
            case c.AwaitAnswer():
                self._inbox.listen(command.deadline_s, anew=True)
            case c.TakeSnapshot():
                self._guarded("snapshot", engine.snapshot)
            case c.SaveCheckpoint():
                why = command.why
                self._guarded("checkpoint", lambda: engine.save_checkpoint(why))
            case c.CountRollback():
                engine.decisions.rollbacks += 1
            case c.CountProbedBatch():
                engine.decisions.probed_batches += 1
            case c.NoteOnset():
                engine.decisions.last_onsets.append(command.step)
            case c.SetFailures():
                engine.decisions.failures = command.count
            case c.FindIncident() | c.FindRestorePoint() | c.Survey() | c.Capture() | c.Confirm():
                raise AssertionError("a question is answered, not carried out")
            case _:
                assert_never(command)

    def _answer(self, question: c.Question) -> ev.Answer:
        """Look up what is asked for."""
        engine, step = self.engine, self.engine.counters.step
        match question:
            case c.FindIncident():
                return self._find_incident(question)
            case c.FindRestorePoint():
                # Reads the disk where memory holds none: a collective, to which all ranks come.
                snapshot = engine.restore_point(question.step)
                if snapshot is None and question.or_oldest:
                    snapshot = engine.oldest_restore_point()
                point = None if snapshot is None else self._hold(snapshot)
                return ev.RestorePointFound(step=step, point=point)
            case c.Survey():
                return self._survey(question)
            case c.Capture():
                return ev.Captured(step=step, point=self._hold(engine.capture()))
            case c.Confirm():
                return ev.Confirmed(step=step)
            case _:
                assert_never(question)

    # -- answers ----------------------------------------------------------------------------

    def _record(self) -> RunRecord:
        """Return the rows so far, from memory: the same that `trimtab inspect` reads from files."""
        return self.engine.recorder.live.record()

    def _find_incident(self, question: c.FindIncident) -> ev.IncidentFound:
        def find() -> ev.IncidentInRecord | None:
            record = self._record()
            found = find_incident(record, question.findings, question.handled)
            return None if found is None else ev.IncidentInRecord(record, *found)

        # only the first rank has the rows; all go by what it finds
        found = self.engine.ranks.agree(find) if question.together else find()
        worked: tuple[str, ...] = ()
        if found is not None and question.recall:
            worked = arms_that_worked(self.engine, found.incident.kind)
        return ev.IncidentFound(
            step=self.engine.counters.step,
            found=found,
            standing=self._standing(together=question.together),
            worked=worked,
        )

    def _survey(self, question: c.Survey) -> ev.Surveyed:
        engine, step = self.engine, self.engine.counters.step
        if question.point is None:
            return ev.Surveyed(
                step=step, standing=self._standing(), oldest_step=engine.oldest_step()
            )
        beta2, eps = self._adam_settings()
        # `misfit` and `oldest_step` are collectives: all ranks must ask in this order
        return ev.Surveyed(
            step=step,
            standing=self._standing(),
            worked=arms_that_worked(engine, question.kind),
            beta2=beta2,
            eps=eps,
            misfit=engine.misfit(self._snapshots[question.point.handle]),
            oldest_step=engine.oldest_step(),
        )

    def _standing(self, *, together: bool = True) -> ev.Standing:
        """Return what was decided and spent; `together`: all ranks ask."""
        engine, d = self.engine, self.engine.decisions
        used = self._used_today() if together else {}
        return ev.Standing(
            in_force=what_is_in_force(engine),
            rollbacks=d.rollbacks,
            failures=d.failures,
            executed_steps=d.executed_steps,
            probed_batches=d.probed_batches,
            last_onsets=tuple(d.last_onsets),
            skips=tuple(engine.data.skips) if engine.data is not None else (),
            clip=engine.clip,
            low_precision=engine.low_precision,
            used_today=used,
            changed=self._changed(together=together),
            script_lr=self._alike(lambda: engine.script_lr, together=together),
            lr_scheduled=self._alike(lambda: engine.lr_scheduled, together=together),
        )

    def _used_today(self) -> Mapping[str, int]:
        """Return how often each class that has a limit was used; all ranks ask."""
        if not self.engine.policy.per_day:
            return {}
        return self.engine.ranks.agree(self._used.counts)  # each rank has its own clock

    def _adam_settings(self) -> tuple[float | None, float | None]:
        """Return beta2 and eps; None where a part of the model is trained without."""
        engine = self.engine
        adam = has_second_moment(engine.training.optimizer)
        mine = (read_setting(engine, "beta2") if adam else None, read_setting(engine, "eps"))
        if not engine.parts_differ:
            return mine
        beta2s, epss = zip(*engine.ranks.collect(mine), strict=True)
        return None if None in beta2s else beta2s[0], None if None in epss else epss[0]

    def _alike(self, find: Callable[[], T], *, together: bool = True) -> T:
        """Return what is found here, or, where ranks hold different parts, on the first of them.

        `together`: all ranks ask.
        """
        engine = self.engine
        return engine.ranks.agree(find) if together and engine.parts_differ else find()

    def _changed(self, *, together: bool) -> tuple[SettingPutBack, ...]:
        """Return what changed and nobody announced; `together`: what all ranks have seen alike."""
        mine = self.engine.changed_since(-1)
        if not together or self.engine.ranks.count == 1:
            return mine
        everyone = self.engine.ranks.collect(mine)
        return tuple(c for c in everyone[0] if all(c in theirs for theirs in everyone))

    # -- commands that take several lines ---------------------------------------------------

    def _journal_action(self, command: c.JournalAction) -> None:
        recorder = self.engine.recorder
        standing = in_force(self.engine.decisions, self.engine.counters.step + 1)
        # On all ranks or on none: they go on together from what it says.
        self.engine.ranks.together(
            lambda: recorder.decide(
                "action",
                step=command.step,
                remedy=command.remedy,
                values=command.values,
                why=command.why,
                kept_attempt=recorder.attempt,
                standing=self.engine.standing(),
                in_force=list(standing),
            )
        )
        if standing:
            self._say(f"             in force: {'; '.join(standing)}")
        self._used.count_remedy(command.remedy)

    def _note_action(self, command: c.NoteAction) -> None:
        if command.revises:
            # changes by hand may lie after it
            for action in reversed(self.actions):
                if (action["step"], action["remedy"]) == (command.step, command.remedy):
                    action["values"] = dict(command.values)
                    return
        self.actions.append(
            {
                "step": command.step,
                "remedy": command.remedy,
                "values": dict(command.values),
                "why": command.why,
            }
        )

    def _go_back_to(self, command: c.GoBackTo) -> None:
        engine = self.engine
        engine.restore(self._snapshots[command.point.handle])
        # The restore has put its own data position back; the one that is wanted replaces it.
        if command.data_of is not None and engine.data is not None:
            engine.data.load_state_dict(self._snapshots[command.data_of.handle].payload["data"])

    def _pass_by(self, sample: int) -> None:
        """Go on in the data until the next batch is the one with a sample, or the one before it."""
        data = self.engine.data
        while data is not None and data.position < sample:
            before = data.position
            data.advance(1)
            if data.position <= before:  # it is used up
                return

    # -- snapshots --------------------------------------------------------------------------

    def _hold(self, snapshot: Snapshot) -> RestorePoint:
        """Keep a snapshot, and return its name."""
        self._num_snapshots += 1
        handle = self._num_snapshots
        self._snapshots[handle] = snapshot
        return RestorePoint(
            handle=handle,
            step=snapshot.step,
            attempt=snapshot.attempt,
            sample_id=snapshot.sample_id,
            samples=int(snapshot.payload["counters"]["samples"]),
        )

    def _release_snapshots(self, before: RecoveryState | None = None) -> None:
        """Let go of the snapshots that the state no longer refers to: each is a whole copy.

        Those of the state `before` are kept as long as commands may go back to them.
        """
        if self._snapshots:
            held = (*self.state.points, *(() if before is None else before.points))
            live = {point.handle for point in held}
            for handle in self._snapshots.keys() - live:
                del self._snapshots[handle]


def _seconds_left(staged: StagedAction) -> float:
    """Return how long a staged action of an earlier process still waits; at least 0."""
    try:
        since = datetime.fromisoformat(staged.staged_at).timestamp()
    except ValueError:
        return staged.deadline_s
    return max(since + staged.deadline_s - time.time(), 0.0)
