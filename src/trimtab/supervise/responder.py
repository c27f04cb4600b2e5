"""Answers broken numbers: which checkpoint, which change, and whether it is allowed."""

import time
from dataclasses import dataclass, replace

from trimtab.analysis.account import RunAccount
from trimtab.plan.policy import Policy
from trimtab.record import RunRecord
from trimtab.supervise.checkpoint_choice import CheckpointChoice
from trimtab.supervise.ending import AttemptEnd
from trimtab.supervise.notes import SupervisorNotes
from trimtab.supervise.numeric import (
    ExpectedSteps,
    LossBefore,
    NumericAnswer,
    NumericChange,
    answer_numbers,
    choose_change,
    newest_level,
    raised_start,
    sum_up,
    trend_before,
)
from trimtab.supervise.resume import LaunchFlags, Restore, rate_of
from trimtab.supervise.state import JobState, Numeric

__all__ = ["Responder"]


@dataclass(frozen=True, kw_only=True)
class _Target:
    """Where an answer goes back to."""

    restore: Restore | None
    anew: bool
    """Whether it goes back to the beginning, since nothing was saved before the first sign."""
    relapsed: bool
    """Whether what the attempt loaded may have been saved broken."""
    lost: int | None
    """Steps that are given up; None: the log does not count them."""

    @property
    def step(self) -> int:
        return 0 if self.restore is None else self.restore.step


class Responder:
    """Keeps the answer whose outcome is not known yet, and what was asked."""

    def __init__(
        self,
        policy: Policy,
        argv: tuple[str, ...],
        framework: LaunchFlags | None,
        checkpoints: CheckpointChoice,
        notes: SupervisorNotes,
    ) -> None:
        """Keep what may be done, to which command, and who says so."""
        self._policy, self._argv, self._framework = policy, argv, framework
        self._checkpoints, self._notes = checkpoints, notes
        self._launched = self._rate_launched()
        """By what the rate of this command exceeds that of the one before."""
        self._answer: NumericAnswer | None = None
        """The answer whose outcome is not known yet."""
        self._trend: LossBefore | None = None
        self._verified = 0
        """The attempt of the log that was judged last."""
        self._asked_for: set[str] = set()
        """Incidents that a person was asked about."""

    def _rate_launched(self) -> float:
        """Return the rate of the command over that of the last one in this folder; 1: unknown."""
        now = rate_of(self._argv, self._framework)
        then = None if now is None else rate_of(self._notes.last_argv(), self._framework)
        return 1.0 if now is None or then is None else now[1] / then[1]

    def answer(
        self, account: RunAccount, state: JobState, *, broken_only: bool = False
    ) -> Numeric | None:
        """Return the answer to broken numbers; None: wait, or not allowed, which is said once.

        Args:
            account: What was judged.
            state: Where the command stands.
            broken_only: Whether only what no later step heals is answered.
        """
        launched = 1.0 if state.numeric_restarts else self._launched
        answer = (
            answer_numbers(account, self._policy)
            or self._not_held(account.record, state)
            or raised_start(account.record, self._policy, launched)
        )
        if answer is None or (broken_only and not answer.lasting):
            return None
        target = self._target(answer, state)
        change = self._change(account.record, answer, target, state, launched)
        costs = sum_up(answer, self._policy, lost=target.lost or 0, start=_start_steps(state))
        if not answer.due and costs.wait <= costs.go:
            return None
        why_not = self._why_not(change, target, state)
        key = f"{answer.kind} {answer.onset} {state.attempt}"
        if key in self._asked_for:
            return None
        if why_not or change is None:
            self._notes.say_once(key, f"{answer.why} · not answered: {why_not}")
            return None
        if self._answer is None:
            self._trend = trend_before(account.record, answer.row, self._policy)
        self._answer = answer
        allowed = self._policy.permissions
        ask = tuple(c for c in _classes(change, state) if allowed.permission(c) == "ask")
        if ask:
            self._asked_for.add(key)
        return self._ordered(answer, target, change, costs, state, ask)

    def _target(self, answer: NumericAnswer, state: JobState) -> _Target:
        """Choose the checkpoint."""
        by_step = answer.axis == "step"
        # What broke right after it was loaded may have been saved broken.
        relapsed = state.loaded is not None and answer.from_start
        loaded = state.loaded[0] if state.loaded is not None and relapsed else None
        known_places = (answer.before * by_step, state.before, loaded)
        before = min((b for b in known_places if b), default=None)
        epoch = answer.before if answer.axis == "epoch" else None
        known = by_step or epoch is not None
        restore = self._checkpoints.newest(state, before, epoch) if known else None
        counted = by_step and state.step is not None
        step = 0 if restore is None else restore.step
        return _Target(
            restore=restore,
            # Where it broke before the first save, the beginning is what lies before the first sign.
            anew=known and restore is None and state.loaded is None,
            relapsed=relapsed,
            lost=max(int(state.step) - step, 0) if counted and state.step is not None else None,
        )

    def _change(
        self,
        record: RunRecord,
        answer: NumericAnswer,
        target: _Target,
        state: JobState,
        launched: float,
    ) -> NumericChange | None:
        """Choose what the next start does otherwise; None: there is nothing left."""
        if target.relapsed and target.restore is not None:
            why = "the checkpoint that it began from was broken; an older one"
            return NumericChange(rate_factor=state.rate_factor, why=why)
        goes_on = any(
            first is not None
            and last is not None
            and first <= answer.before <= last + self._policy.patience_steps
            for first, last in state.other_data
        )
        return choose_change(
            record,
            self._policy,
            num_before=state.numeric_restarts,
            goes_on=goes_on,
            factor=state.rate_factor,
            argv=self._argv,
            framework=self._framework,
            step=None if target.restore is None else target.restore.step,
            row=answer.row,
            launched=launched,
        )

    def _why_not(self, change: NumericChange | None, target: _Target, state: JobState) -> str:
        """Return why an answer is not given; empty: it is, or a person is asked."""
        if self._policy.mode != "act":
            return f'mode is {self._policy.mode}; [policy] mode = "act" allows it'
        if target.restore is None and not target.anew:
            return "no whole checkpoint before the first sign is known; name them by --checkpoints"
        if change is None:
            return "a checkpoint brings its rate along here, and other data did not hold"
        if state.numeric_restarts >= self._policy.max_failures:
            return f"{state.numeric_restarts} answers before did not hold"
        reasons = map(self._policy.permissions.why_not, _classes(change, state))
        return next(filter(None, reasons), "")

    def _ordered(
        self,
        answer: NumericAnswer,
        target: _Target,
        change: NumericChange,
        costs: ExpectedSteps,
        state: JobState,
        ask: tuple[str, ...],
    ) -> Numeric:
        """Write the answer down, say it, and return it as `update` takes it."""
        self._notes.write(
            state,
            "decision",
            kind=answer.kind,
            why=f"{answer.why}; {change.why}",
            to_step=target.step,
            rate_factor=change.rate_factor,
            other_data=change.data,
            cost_steps=target.lost,
            sum=costs.text,
        )
        what = f"back to step {target.step}, rate x {change.rate_factor:g}"
        what += f"{', other data' if change.data else ''} ({change.why})"
        if not ask:
            self._notes.say(f"{answer.why} · goes {what}; {costs.text}")
        by_step = answer.axis == "step"
        return Numeric(
            at=time.monotonic(),
            ending=AttemptEnd(
                crash_class="numeric", who="numeric", why=answer.why, line=answer.headline
            ),
            before=target.step + 1 if target.restore is not None else 0,
            rate_factor=change.rate_factor,
            other_data=change.data,
            ask=ask,
            what=f"go {what}",
            cost_steps=target.lost or 0,
            suspect=(answer.before, answer.through) if by_step else (None, None),
        )

    def _not_held(self, record: RunRecord, state: JobState) -> NumericAnswer | None:
        """Judge the answer before against the trend before it; return it where it did not hold."""
        trend, answer = self._trend, self._answer
        rows = self._policy.verify_steps
        if trend is None or answer is None or state.proof is not None:
            return None
        level = newest_level(record, rows=rows)
        attempt = len(record.attempts)
        if level is None or self._verified == attempt:
            return None
        self._verified = attempt
        held = level <= trend.limit
        told = f"loss {level:.4g} after {rows} rows, expected at most {trend.limit:.4g}"
        self._notes.write(state, "outcome", what="held" if held else "did not hold", why=told)
        self._notes.say(f"the answer {'held' if held else 'did not hold'}: {told}")
        if held:
            self._trend = self._answer = None
            return None
        return replace(answer, why=f"the answer before did not hold: {told}")


def _classes(change: NumericChange, state: JobState) -> tuple[str, ...]:
    """Return the classes of action of an answer to broken numbers."""
    classes = ["restart", "restore"]
    if change.rate_factor != state.rate_factor:
        classes += ["change-flags", "cut-rate"]
    if change.data:
        classes += ["change-flags", "skip-data"]
    return tuple(dict.fromkeys(classes))


def _start_steps(state: JobState) -> float:
    """Return how many steps the start of this attempt took the time of; 0: not known."""
    pace = state.pace
    began = 0.0 if pace.first_at is None else pace.first_at - pace.started
    return began / pace.median_s if pace.median_s else 0.0
