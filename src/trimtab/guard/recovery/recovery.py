"""The loop that closes: trouble seen -> go back -> look at the data -> trials -> keep one ->
verify.

The user's loop does not know of it. Going back, probing and trying are phases in which the guard
hands out other batches: in a probe the forward pass is run and nothing is updated; in a trial the
steps are real, on a branch from the restore point, and are dropped unless the branch is kept.

    calm --trouble--> probe --all batches seen--> trial ... trial --one held--> calm, verifying
      ^                                             | none held: further back, or give up
      +---------------------------------------------+
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery.branch import what_is_in_force
from trimtab.guard.recovery.case import Case, Phase, Verification, find_lr_jump, lr_at, lr_rise
from trimtab.guard.recovery.change_effects import Labeller
from trimtab.guard.recovery.grace_period import Patience
from trimtab.guard.recovery.notifier import Teller
from trimtab.guard.recovery.past_outcomes import arms_that_worked
from trimtab.guard.recovery.recurrence import Returning
from trimtab.guard.recovery.triage import (
    find_incident,
    is_trouble,
    loss_level,
    puts_in_doubt,
    saturates,
    speaks_of_state,
)
from trimtab.guard.recovery.trial_runner import Casework, Ending
from trimtab.guard.state.decisions import lr_factor
from trimtab.guard.step.actuators import read_setting
from trimtab.plan.ladder import Commit, GiveUp, Wait, next_step
from trimtab.plan.memory import prefer, remedy_of
from trimtab.plan.planner import make_plan
from trimtab.plan.trials import ARM_BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.detectors.contract import Finding
    from trimtab.guard.step.engine import Engine
    from trimtab.incidents import Incident
    from trimtab.record import RunRecord

__all__ = ["Recovery"]

_MOST_FINDINGS = 1024
_NOT_VERIFIED = "not verified: the run ended"


class Recovery:
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        *,
        say: Callable[[str], None],
        final_step: int | None,
    ) -> None:
        """Watch an engine.

        Args:
            engine: Does what is decided here.
            say: Shows one line to the user.
            final_step: Last step of the whole run, where known; no trial goes past it.
        """
        self.engine = engine
        self.actions: list[dict[str, object]] = []
        self.incidents: list[Incident] = []
        self.advising_only = False
        self.given_up = ""
        """Why nothing is tried any more; empty as long as something is."""
        self._say = say
        self._open: dict[tuple[str, str, int], Finding] = {}
        self._handled: set[tuple[str, str, int]] = set()
        self._verification: Verification | None = None
        self._wait_until = 0
        self.labels = Labeller(engine)
        self._patience = Patience(engine.policy, self._decide)
        self._returning = Returning(engine.policy)
        self.teller = Teller(engine, say=say, actions=self.actions)
        self._work = Casework(engine, say=say, final_step=final_step, on_branch=self._on_branch)

    # -- called by the guard ----------------------------------------------------------------

    def after_step(self, loss: float, findings: tuple[Finding, ...], *, last: bool = False) -> None:
        """Take in one finished step; `last`: the run would end here."""
        if self.phase == "calm":
            findings = self._returning.take_in(findings)
        findings = tuple(f for f in findings if speaks_of_state(f))
        for finding in findings:
            self._open[finding.key] = finding
        if self.phase == "trial":
            self._close(self._work.case, self._work.trial_step(loss, findings))
            return
        self._forget_old()
        self.teller.take_in(findings, self._open)
        self.teller.repeat(self._open)
        opened = sum(1 for f in findings if f.severity != "info" and not f.closed)
        self.labels.take_in(loss, self.engine.step_sum.norm, alarms=opened)
        if self.engine.policy.mode == "act" and not self.advising_only:
            self._patience.take_in(loss, self.engine.counters.step, findings)
        self._verify_step(loss, findings)
        if self.engine.policy.mode != "observe" and self._troubled(last=last):
            self._respond()

    def after_probe(self, first: int, last: int, loss: float) -> None:
        """Take in the loss of one probed batch under the restored state."""
        self._close(self._work.case, self._work.probe_step(first, last, loss))

    def finish(self) -> None:
        """Take note that the run has ended: what is being verified gets the verdict there is."""
        self.teller.finish(self._open)
        if self._verification is not None:
            self._conclude(self._verification)
        self.labels.finish()

    def stand_down(self) -> None:
        """Break off what is under way, for good; the state of training stays as it is."""
        self._verification = None
        self._work.stand_down()

    @property
    def phase(self) -> Phase:
        """calm, probe or trial."""
        return self._work.phase

    @property
    def num_trials(self) -> int:
        """Trials begun in this process."""
        return self._work.num_trials

    @property
    def busy(self) -> bool:
        """Whether a probe or a trial is under way."""
        return self.phase != "calm"

    @property
    def unsettled(self) -> bool:
        """Whether trouble is open, or what was done about it is still being verified."""
        return self._verification is not None or self.alarmed

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is open: not a time to call a state healthy."""
        return any(
            f.severity != "info" and not f.closed and f.key not in self._handled
            for f in self._open.values()
        )

    @property
    def doubt(self) -> str:
        """Why a state that is saved now is suspect; empty where it is not."""
        for f in self._open.values():
            if puts_in_doubt(f) and not f.closed and f.key not in self._handled:
                return f"{f.kind} since step {f.onset:g}, not over yet"
        return ""

    def begin_branch(self) -> None:
        """Begin anew after a rollback by hand: what was found before is not about it."""
        self._verification = None
        self.labels.roll_back()
        self._on_branch()

    def _on_branch(self) -> None:
        self._open.clear()
        self._patience.forget()
        self._returning.forget()
        self.teller.forget_waiting()

    def _forget_old(self) -> None:
        """Drop the oldest closed findings where alarms open all the time.

        Each step looks at all.
        """
        if len(self._open) > _MOST_FINDINGS:
            closed = [k for k, f in self._open.items() if f.closed]
            for key in closed[: len(closed) - _MOST_FINDINGS // 4]:
                del self._open[key]

    # -- seeing trouble ---------------------------------------------------------------------

    def _troubled(self, *, last: bool) -> bool:
        """Whether an open alarm on the loss has outlasted the patience."""
        engine = self.engine
        row, step = engine.decisions.row - 1, engine.counters.step
        patience = 0 if last else engine.policy.patience_steps
        waiting = step < self._wait_until
        return any(
            is_trouble(
                f,
                row - f.onset_row,
                0 if self._returning.returns(f) else patience,
                last=last,
                scaled=engine.has_scaler,
                waits=lambda f: not self._returning.returns(f) and self._patience.lasts(f, step),
            )
            for f in self._open.values()
            if f.severity != "info"
            and f.key not in self._handled
            and f.end_row is None
            and (f.kind == "non-finite" or not waiting)
        )

    def _respond(self) -> None:
        engine = self.engine
        found = engine.ranks.agree(
            lambda: find_incident(engine, tuple(self._open.values()), self._handled)
        )
        if found is None:
            self._handled |= set(self._open)  # told of already: do not read the record every step
            return
        record, incident, keys = found
        advising = engine.policy.mode == "advise" or self.advising_only
        case = None if advising else self._open_case(incident, record)
        problem = "" if case is None else engine.misfit(case.base)
        ahead = None if case is None else next_step(self._work.situation(case))
        if isinstance(ahead, Wait):
            self._wait_until = ahead.until_step
            self._decide("wait", ahead.reason)
            return
        self._handled |= keys
        self.incidents.append(incident)
        earlier = self.incidents[:-1]
        diagnosis = diagnose(record, incident, earlier=earlier)
        told_now = self.teller.tell(incident, diagnosis, keys)
        if advising:
            plan = make_plan(record, incident, diagnosis, earlier=earlier)
            plan = prefer(plan, arms_that_worked(engine, incident.kind))
            advice = self.teller.advise(incident, plan, keys, headline=not told_now)
            self._decide("advise", advice)
        elif case is None:
            self._give_up("no healthy state lies before the first sign")
        elif problem:
            self._give_up(problem)
        elif isinstance(ahead, GiveUp):
            self._give_up(ahead.reason)
        else:
            self.teller.end_skips()
            engine.decisions.last_onsets.append(int(incident.first_step))
            self.labels.roll_back()
            self._work.open(case)

    def _recurrences(self, first_sign: int) -> int:
        """Count earlier troubles near this one; they make the guard go further back."""
        horizon = 4 * self.engine.policy.verify_steps
        return sum(
            1 for onset in self.engine.decisions.last_onsets if abs(onset - first_sign) <= horizon
        )

    # -- going back -------------------------------------------------------------------------

    def _open_case(self, incident: Incident, record: RunRecord) -> Case | None:
        """Return the case, with the state to go back to; None where none lies before the onset."""
        engine = self.engine
        returned = [f for f in incident.findings if self._returning.returns(f)]
        first_sign = min([int(incident.first_step), *map(self._returning.first_of, returned)])
        recurrences = self._recurrences(first_sign)
        target = first_sign - 1 - engine.policy.rollback_margin_steps
        distance = max(int(incident.onset) - target, 1)
        target -= distance * (2**recurrences - 1)
        cuts = list(engine.decisions.lr_cuts)
        jump = find_lr_jump(incident)
        rising, sound = (False, None) if jump else lr_rise(record, incident.onset, cuts)
        if saturates(incident) or returned:
            # it grew as long before it could be told apart as it did after
            grown = engine.counters.step - first_sign
            deeper = target - (grown // 2 if rising else grown)  # lower rates did less harm before
            target = max(deeper, min(target, self._work.affordable_step()))
        base = engine.restore_point(target) or engine.oldest_restore_point()
        if base is None or base.step >= incident.onset:
            return None
        level, sigma = loss_level(record, base)
        return Case(
            incident=incident,
            record=record,
            seen_step=engine.counters.step,
            seen_sample=engine.position,
            base=base,
            lr_now=jump.after if jump else lr_at(record, incident.onset, cuts),
            lr_restore=jump.before if jump else sound or lr_at(record, base.step, cuts),
            lr_sound=sound,
            level=level,
            sigma=sigma,
            before=what_is_in_force(engine),
            lr_jump=jump,
            recurrences=recurrences,
            worked=arms_that_worked(engine, incident.kind),
            first_sign=first_sign,
            returning=bool(returned),
            lr_rising=rising,
            beta2=read_setting(engine, "beta2"),
            eps=read_setting(engine, "eps"),
        )

    # -- keeping, verifying, giving up ------------------------------------------------------

    def _close(self, case: Case | None, ending: Ending | None) -> None:
        """Draw the consequences of a case's end; None: it is still being worked on."""
        if case is None or ending is None:
            return
        if isinstance(ending, Commit):
            self._keep(case, ending)
        elif isinstance(ending, Wait):
            self._wait_until = ending.until_step
        else:
            self._give_up(ending.reason)

    def _keep(self, case: Case, commit: Commit) -> None:
        """Write down the remedy that is now in force, have it verified, and save the state."""
        engine, trial = self.engine, commit.trial
        engine.decisions.rollbacks += 1
        values: dict[str, object] = {
            "to_step": case.base.step,
            "skip_samples": list(trial.skip) if trial.skip else None,
            "num_samples": trial.skip[1] - trial.skip[0] + 1 if trial.skip else 0,
            "lr_factor": lr_factor(engine.decisions.lr_cuts, math.inf),
            "lr_from_step": trial.lr_from_step,
        }
        remedy = remedy_of(trial)
        values |= {
            name: value
            for name, value in (
                ("factor", trial.lr_factor),
                ("lr_limit", trial.lr_limit),
                ("clip_factor", trial.clip_factor),
                (
                    "evidence",
                    ", ".join(ARM_BY_ID[a].evidence for a in trial.arms if ARM_BY_ID[a].evidence),
                ),
                ("precision", trial.precision),
                ("rewarm_steps", trial.rewarm_steps),
                *trial.settings,
            )
            if value not in ("", None) and (value != 1.0 or name == "lr_limit")
        }
        action = {"step": case.seen_step, "remedy": remedy, "values": values, "why": commit.reason}
        self.actions.append(action)
        engine.recorder.event(
            "action",
            step=engine.counters.step,
            remedy=remedy,
            values=values,
            why=commit.reason,
            kept_attempt=engine.recorder.attempt,
            standing=engine.standing(),
        )
        diagnosis = diagnose(
            case.record,
            case.incident,
            earlier=self.incidents[:-1],
            probe=case.probe,
            trials=case.trials,
        )
        self.teller.journal(case.incident, diagnosis, "explained")
        self._verification = Verification(
            remedy,
            max(engine.counters.step, case.seen_step) + engine.policy.verify_steps,
            case.level,
            case.sigma,
            step=engine.counters.step,
        )
        self._say(
            f"             kept: {trial.name} · {case.seen_step - case.base.step} steps given up ·"
            f" {diagnosis.top.title} ({diagnosis.top.confidence:.2f})"
        )
        trouble = case.seen_step - int(case.incident.onset) + 1
        self.labels.begin(remedy, after_rows=max(trouble, 8), by_hand=False)
        self._work.last_action_step = engine.counters.step
        engine.ring.drop_after(case.base.step)
        engine.snapshot()
        engine.save_checkpoint("after an action")

    def _verify_step(self, loss: float, findings: tuple[Finding, ...]) -> None:
        v = self._verification
        if v is None:
            return
        v.losses.append(loss)
        v.alarmed = v.alarmed or any(f.severity != "info" for f in findings)
        if self.engine.counters.step < v.until_step and not v.alarmed:
            return
        self._conclude(v)

    def _conclude(self, v: Verification) -> None:
        verdict, figures = v.conclude(tolerance=self.engine.policy.verify_tolerance)
        step, loss = self.engine.counters.step, figures["loss"]
        self._verification = None
        decisions = self.engine.decisions
        if verdict != "unclear":
            decisions.failures = decisions.failures + 1 if verdict == "did not" else 0
        label = self.labels.conclude_kept()
        self.engine.recorder.event(
            "outcome",
            step=step,
            remedy=v.remedy,
            verdict=verdict,
            figures=figures,
            label_figures={} if label is None else {m: list(x) for m, x in label.figures.items()},
            of_step=v.step,
            label="" if label is None else label.overall,
            metrics={} if label is None else dict(label.metrics),
            failures=decisions.failures,
            text=(
                f"loss {loss:.4g} against {v.level:.4g} before the trouble"
                if v.losses
                else _NOT_VERIFIED
            ),
        )
        found = f"{verdict} (loss {loss:.3f}, {v.level:.3f} before the trouble)"
        self._say(f"step {step:>6,}  {v.remedy}: {found if v.losses else _NOT_VERIFIED}")

    def _give_up(self, reason: str) -> None:
        self.advising_only, self.given_up = True, reason
        self._decide("stop acting", reason)
        stops = self.engine.policy.on_give_up == "stop"
        what = "the run is stopped" if stops else "the run goes on, advice follows"
        self._say(f"step {self.engine.counters.step:>6,}  no longer acting: {reason}; {what}")

    def _decide(self, what: str, why: str) -> None:
        self.engine.recorder.event(
            "decision", step=self.engine.counters.step, what=what, why=why, evidence=[]
        )
