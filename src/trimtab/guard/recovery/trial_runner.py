"""One case worked through: look at the data, try remedies on short branches, keep one or none.

open -> probe --all batches seen--> trial ... trial --one held--> kept
          ^                           | none held
          +------- further back ------+----------> left as it was

What the trials of one restore point say together, the unchanged run among them, is journalled when
one is kept or all have failed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trimtab.guard.recovery.branch import put_in_force, settings_of, take_back
from trimtab.guard.recovery.case import (
    Case,
    Phase,
    conclude_trial,
    lr_at,
    onset_sample,
    outliers,
    probe_sample,
    summarise_probe,
    trial_is_lost,
)
from trimtab.guard.recovery.curves import as_curve, recorded_curve, repeats
from trimtab.guard.recovery.situation import older_target, situation_of
from trimtab.guard.recovery.triage import loss_level, saturates, speaks_of_trial
from trimtab.guard.recovery.trial_table import read_case, row_of
from trimtab.plan.ladder import (
    Commit,
    GiveUp,
    GoBack,
    NextStep,
    Situation,
    Wait,
    next_step,
)
from trimtab.plan.trials import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.detectors.contract import Finding
    from trimtab.guard.state.training_state import Snapshot
    from trimtab.guard.step.engine import Engine

__all__ = ["Casework", "Ending"]

_BROKEN_STEPS = 3
"""Steps in a row without a finite gradient from which a trial is lost."""

_MEASURED_STEPS = 12
"""Steps after the onset that a failed branch is measured for, where the whole table is asked for.
"""

Ending = Commit | Wait | GiveUp
"""How a case ended: a trial was kept, or the run goes on from the restore point as it was."""


class Casework:
    """Works on one case at a time."""

    def __init__(
        self,
        engine: Engine,
        *,
        say: Callable[[str], None],
        final_step: int | None,
        on_branch: Callable[[], None],
    ) -> None:
        """Work with an engine.

        Args:
            engine: Does what is decided here.
            say: Shows one line to the user.
            final_step: Last step of the whole run, where known; no trial goes past it.
            on_branch: Called when a branch is begun: what was found before is not about it.
        """
        self.engine = engine
        self.phase: Phase = "calm"
        self.case: Case | None = None
        self.last_action_step: int | None = None
        """Step from which the last kept remedy went on."""
        self._say = say
        self.num_trials = 0
        """Begun so far."""
        self._final_step = final_step
        self._on_branch = on_branch

    def open(self, case: Case) -> None:
        """Go back and begin to look at the data ahead."""
        self.case = case
        self._start_probe(case)

    def probe_step(self, first: int, last: int, loss: float) -> Ending | None:
        """Take in the loss of one probed batch under the restored state."""
        case = self.case
        assert case is not None
        case.probe_samples.append((first, last, loss))
        self.engine.decisions.probed_batches += 1
        margin = self.engine.policy.probe_margin_batches
        until = case.seen_sample
        if saturates(case.incident):  # slow: what set it off lies about its first sign
            until = min(until, onset_sample(case) + margin * (last - first + 1))
        if last + 1 < until:
            return None
        clean = 0
        for outlier in reversed(outliers(case, margin=margin)):
            if outlier:
                break
            clean += 1
        limit = 12 * margin + 2 * (case.seen_step - case.base.step)
        spent = self._wasted_share(case) >= self.engine.policy.max_wasted_share
        if clean >= margin or len(case.probe_samples) > limit or spent:
            return self._finish_probe(case)
        return None

    def trial_step(self, loss: float, findings: tuple[Finding, ...]) -> Ending | None:
        """Take in one step of a trial."""
        case = self.case
        assert case is not None
        case.losses.append(loss)
        case.trial_steps += 1
        broken = not math.isfinite(self.engine.step_sum.norm) and not self.engine.has_scaler
        case.broken_steps = case.broken_steps + 1 if broken else 0
        case.alarmed = (
            case.alarmed
            or case.broken_steps >= _BROKEN_STEPS
            or trial_is_lost(case)
            or any(
                f.severity != "info" and speaks_of_trial(f) and not self._passes(case, f)
                for f in findings
            )
        )
        over = len(case.losses) >= self._trial_length(case) or self._repeated(case)
        if over or (case.alarmed and not self._measures_on(case, loss)):
            return self._finish_trial(case)
        return None

    def _passes(self, case: Case, finding: Finding) -> bool:
        """Whether a spike early in a trial may heal.

        Where spikes return, the state is at the edge.
        """
        early = 2 * len(case.losses) <= self._trial_length(case)
        return case.returning and early and finding.kind == "spike"

    def _measures_on(self, case: Case, loss: float) -> bool:
        """Whether a branch that failed goes on for some steps, so that its effect can be told.

        Only where the policy asks for the whole table; else a failed branch ends at its alarm.
        """
        since = case.from_step + len(case.losses) - case.incident.onset
        asked = self.engine.policy.bisect == "always" and math.isfinite(loss)
        return asked and since < _MEASURED_STEPS

    def _repeated(self, case: Case) -> bool:
        """Whether an unchanged replay came bit for bit to where the trouble was seen.

        It will again.
        """
        if case.trial is None or not case.trial.unchanged:
            return False
        if case.from_step + len(case.losses) < case.seen_step:
            return False
        same = repeats(as_curve(case.losses, after=case.from_step), case.control) == "bit-equal"
        case.alarmed = case.alarmed or same
        return same

    def stand_down(self) -> None:
        """Leave a probe or trial as it is, for good: its remedy is undone, its state is kept."""
        case, phase, engine = self.case, self.phase, self.engine
        self.phase, self.case = "calm", None
        if case is None:
            return
        self._undo_trial(case)
        parent = case.base.attempt if phase == "probe" else engine.recorder.attempt
        engine.begin_attempt(
            parent=parent,
            parent_step=engine.counters.step,
            trial=False,
            why=f"the {phase} was broken off by a fault of trimtab's own",
        )

    def _start_probe(self, case: Case) -> None:
        engine = self.engine
        engine.recorder.event(
            "decision",
            step=engine.counters.step,
            what=f"go back to step {case.base.step}",
            why=f"newest healthy state before the first sign (step {case.first_sign})",
            evidence=[f.text for f in case.incident.findings][:6],
        )
        self._say(
            f"step {engine.counters.step:>6,}  going back to step {case.base.step} and looking at"
            " the data ahead of it"
        )
        raised = engine.raised_by(case.base) if case.depth == 0 else ""
        if raised:
            engine.store.note(raised)
        engine.ring.drop_after(case.base.step)
        engine.store.set_aside_after(
            case.base.step,
            first_sign=case.first_sign,
            now=engine.counters.step,
            why=f"{case.incident.kind}, first sign at step {case.first_sign}",
        )
        engine.restore(case.base)
        self._pass_by(probe_sample(case, margin=engine.policy.probe_margin_batches))
        case.probe_samples.clear()
        case.rows, case.repeat = [], ""
        case.control = recorded_curve(case.record, after=case.base.step, until=case.seen_step)
        engine.precision.watch(on=True)
        self.phase = "probe"

    def _pass_by(self, sample: int) -> None:
        """Go on in the data until its next batch is the one with a sample, or the last before
        it."""
        data = self.engine.data
        while data is not None and data.position < sample:
            before = data.position
            data.advance(1)
            if data.position <= before:  # it is used up
                return

    def _finish_probe(self, case: Case) -> Ending | None:
        margin = self.engine.policy.probe_margin_batches
        probe = case.probe = summarise_probe(case, margin=margin)
        of = f"of {probe.num_batches} batches"
        text = (
            f"{probe.num_outliers} {of} stand out under the healthy state (samples"
            f" {probe.first_sample}-{probe.last_sample}, loss up to {probe.worst_loss:.3g} against"
            f" {case.level:.3g})"
            if probe.num_outliers
            else f"none {of} stands out under the healthy state"
        )
        case.low_precision = self.engine.low_precision
        self.engine.precision.watch(on=False)
        self.engine.recorder.event(
            "decision", step=case.base.step, what="probe the data", why=text, evidence=[]
        )
        self._say(f"             data: {text}")
        return self._advance(case)

    def _advance(self, case: Case) -> Ending | None:
        step = self._within_budget(case, next_step(self.situation(case)))
        if isinstance(step, Trial):
            self._start_trial(case, step)
            return None
        self._tell_what_trials_say(case, step)
        if isinstance(step, GoBack):
            self._go_further_back(case, step)
            return None
        if isinstance(step, Commit):
            if case.trial is None or case.trial.name != step.trial.name:
                self._take_up(case, step.trial)
        else:
            self._leave(case, step.reason)
        self.phase, self.case = "calm", None
        return step

    def _within_budget(self, case: Case, step: NextStep) -> NextStep:
        """Return the step, or where it would pass the budget of steps, what is left to do."""
        if isinstance(step, GoBack):
            older = self._further_back(case, step)
            share = self._wasted_share(case, ahead=self._trial_length(case), base_step=older.step)
            if share <= self.engine.policy.max_wasted_share:
                return step
            return GiveUp(reason=f"{step.reason}: that would give up {share:.0%} of the steps")
        if not isinstance(step, Trial) or not (case.trials or case.depth):
            return step
        share = self._wasted_share(case, ahead=self._trial_length(case))
        if share <= self.engine.policy.max_wasted_share:
            return step
        spent = (
            f"one more trial would pass the {self.engine.policy.max_wasted_share:.0%} of the "
            "effective steps that may be given up or spent on trials"
        )
        held = [t for t in case.trials if t.held]
        if held:
            return Commit(trial=case.tried[held[-1].name], reason=f"{held[-1].name} held; {spent}")
        return GiveUp(reason=f"no trial held (tried: {', '.join(case.tried)}); {spent}")

    def _wasted_share(self, case: Case, *, ahead: int = 0, base_step: int | None = None) -> float:
        """Steps that are not on the final lineage if it goes on from the restore point."""
        d = self.engine.decisions
        base_step = case.base.step if base_step is None else base_step
        off = d.executed_steps + d.probed_batches / 3 + ahead - base_step
        return off / (self._final_step or max(case.seen_step, 1))

    def affordable_step(self) -> int:
        """Return the oldest step that can be gone back to with one trial, within what may be
        wasted."""
        d, policy = self.engine.decisions, self.engine.policy
        final = self._final_step or self.engine.counters.step
        probed = 4 * policy.probe_margin_batches / 3
        spent = d.executed_steps + d.probed_batches / 3 + probed + 2 * policy.trial_steps
        return max(int(spent - policy.max_wasted_share * final) + 1, 0)

    def _go_further_back(self, case: Case, step: GoBack) -> None:
        self._undo_trial(case)
        self._say(f"             {step.reason}")
        older = self._further_back(case, step)
        case.depth += 1
        case.base, case.trials, case.ends = older, [], {}
        if case.lr_jump is None and case.lr_sound is None:
            case.lr_restore = lr_at(case.record, older.step, case.before.lr_cuts)
        case.level, case.sigma = loss_level(case.record, older)
        self._start_probe(case)

    def _further_back(self, case: Case, step: GoBack) -> Snapshot:
        engine = self.engine
        target = case.base.step - step.times * max(
            int(case.incident.onset) - case.base.step, engine.policy.snapshot_every_steps
        )
        older = engine.restore_point(target) or engine.oldest_restore_point()
        assert older is not None  # the ladder goes back only where there is something to go to
        return older

    def situation(self, case: Case) -> Situation:
        """Return what the next step is decided on."""
        return situation_of(
            self.engine,
            case,
            wasted_share=self._wasted_share(case),
            final_step=self._final_step,
            last_action_step=self.last_action_step,
        )

    def _start_trial(self, case: Case, trial: Trial) -> None:
        engine = self.engine
        self.num_trials += 1
        self._undo_trial(case)
        state = case.base
        if trial.older_state:
            target = older_target(self.engine, case)
            older = None if target is None else engine.restore_point(target)
            state = older or case.base
        engine.restore(state)
        if trial.older_state and engine.data is not None:
            engine.data.load_state_dict(case.base.payload["data"])
        put_in_force(engine, trial, case.before)
        case.trial, case.losses, case.alarmed, case.broken_steps = trial, [], False, 0
        case.from_step = state.step
        case.expect = (
            loss_level(case.record, state) if trial.older_state else (case.level, case.sigma)
        )
        case.tried[trial.name] = trial
        self._on_branch()
        engine.begin_attempt(
            parent=state.attempt,
            parent_step=state.step,
            why=f"trial: {trial.name}",
            trial=True,
            tag="+".join(trial.arms),
            settings=settings_of(trial),
            lr_cuts=[list(c) for c in engine.decisions.lr_cuts],
            skip=list(trial.skip) if trial.skip else None,
        )
        self.phase = "trial"

    def _take_up(self, case: Case, trial: Trial) -> None:
        """Go on from where an earlier trial ended, which saves doing its steps again."""
        end = case.ends.get(trial.name)
        if end is None or trial.rewarm_steps is not None:  # a reset would be done twice
            self._start_trial(case, trial)
            return
        engine = self.engine
        self._undo_trial(case)
        engine.restore(end)
        put_in_force(engine, trial, case.before)
        case.trial = trial
        self._on_branch()
        engine.begin_attempt(
            parent=end.attempt,
            parent_step=end.step,
            why=f"goes on: {trial.name}",
            trial=True,
            tag="+".join(trial.arms),
            lr_cuts=[list(c) for c in engine.decisions.lr_cuts],
            skip=list(trial.skip) if trial.skip else None,
        )

    def _undo_trial(self, case: Case) -> None:
        if case.trial is not None:
            take_back(self.engine, case.trial, case.before)
        case.trial = None

    def _trial_length(self, case: Case) -> int:
        """Long enough to pass the place where the trouble was seen, and the patience after it.

        Where the rate is suspected, the first sign: what each rate does is seen soon after. Never
        past the end of the run: a scheduler may refuse to go on there.
        """
        policy = self.engine.policy
        early = saturates(case.incident) or case.returning
        told = case.first_sign if early else case.seen_step
        steps = max(policy.trial_steps, told - case.base.step + 2 * policy.patience_steps)
        return steps if self._final_step is None else min(steps, self._final_step - case.base.step)

    def _finish_trial(self, case: Case) -> Ending | None:
        trial = case.trial
        assert trial is not None
        result = conclude_trial(case, trial, tolerance=self.engine.policy.verify_tolerance)
        case.trials.append(result)
        if result.held:
            case.ends = dict([*case.ends.items(), (trial.name, self.engine.capture())][-2:])
        row = row_of(case, trial, result)
        case.rows.append(row)
        self.engine.recorder.event(
            "outcome",
            step=self.engine.counters.step,
            remedy=f"trial: {trial.name}",
            verdict="worked" if result.held else "did not",
            figures={"loss": result.loss, "expected": result.expected_loss, "steps": result.steps},
            text="trial held" if result.held else "trial failed",
            trial=True,
            effect="" if row.effect is None else str(row.effect),
        )
        self._say(
            f"             trial {len(case.losses):>3} steps, {trial.name}:"
            f" {'✓' if result.held else '✗'}  loss {result.loss:.3f}, expected"
            f" {result.expected_loss:.3f}"
        )
        return self._advance(case)

    def _tell_what_trials_say(self, case: Case, step: NextStep) -> None:
        """Journal the table of this restore point's trials, the unchanged run among them."""
        if not case.rows:
            return
        found = read_case(case)
        self.engine.recorder.event(
            "decision",
            step=self.engine.counters.step,
            what="compare the trials",
            why=found.verdict,
            evidence=[r.text() for r in found.rows],
            kept=step.trial.name if isinstance(step, Commit) else None,
            **found.as_json(),
        )
        if found.news:
            self._say(f"             trials: {found.news}")

    def _leave(self, case: Case, reason: str) -> None:
        """End a case without keeping anything: go on from the restore point as it was."""
        engine = self.engine
        self._undo_trial(case)
        engine.restore(case.base)
        engine.begin_attempt(
            parent=case.base.attempt,
            parent_step=case.base.step,
            why=f"no remedy kept: {reason}",
            trial=False,
        )
        self._on_branch()
