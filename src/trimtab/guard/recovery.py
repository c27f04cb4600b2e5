"""The loop that closes: trouble seen -> go back -> look at the data -> trials -> keep one -> verify.

The user's loop does not know of it. Going back, probing and trying are phases in which the guard
hands out other batches: in a probe the forward pass is run and nothing is updated; in a trial the
steps are real, on a branch from the restore point, and are dropped unless the branch is kept.

    calm --trouble--> probe --all batches seen--> trial ... trial --one held--> calm, verifying
      ^                                             | none held: further back, or give up
      +---------------------------------------------+
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.probes import DataProbe, TrialResult
from trimtab.guard.trouble import find_incident, loss_level
from trimtab.plan.ladder import Commit, GiveUp, GoBack, Situation, Trial, Wait, next_step
from trimtab.plan.planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.detectors.contract import Finding
    from trimtab.diagnosis.diagnose import Diagnosis
    from trimtab.guard.engine import Engine
    from trimtab.guard.snapshots import Snapshot
    from trimtab.incidents import Incident
    from trimtab.record import RunRecord

__all__ = ["Case", "Phase", "Recovery"]

Phase = Literal["calm", "probe", "trial"]


@dataclass
class Case:
    """One trouble being dealt with."""

    incident: Incident
    record: RunRecord
    seen_step: int
    """Step at which it was acted on."""
    seen_sample: int
    """Sample id that came next then."""
    base: Snapshot
    lr_now: float
    lr_restore: float
    level: float
    """Loss before the trouble, nats per token."""
    sigma: float
    lr_factor: float
    """Guard's factor before the case."""
    recurrences: int
    depth: int = 0
    probe_samples: list[tuple[int, int, float]] = field(default_factory=list)
    probe: DataProbe | None = None
    trials: list[TrialResult] = field(default_factory=list)
    trial: Trial | None = None
    trial_attempt: str = ""
    losses: list[float] = field(default_factory=list)
    alarmed: bool = False


@dataclass
class Verification:
    """A kept remedy that is being watched."""

    remedy: str
    until_step: int
    level: float
    sigma: float
    losses: list[float] = field(default_factory=list)
    alarmed: bool = False


class Recovery:
    """See the module."""

    def __init__(
        self,
        engine: Engine,
        *,
        say: Callable[[str], None],
        planned_samples: Callable[[], int | None],
    ) -> None:
        """Watch an engine.

        Args:
            engine: Does what is decided here.
            say: Shows one line to the user.
            planned_samples: How many samples the whole run will consume, where known.
        """
        self.engine = engine
        self.phase: Phase = "calm"
        self.actions: list[dict[str, object]] = []
        self.incidents: list[Incident] = []
        self.advising_only = False
        self._say = say
        self._planned_samples = planned_samples
        self._case: Case | None = None
        self._open: dict[tuple[str, str, int], Finding] = {}
        self._handled: set[tuple[str, str, int]] = set()
        self._verification: Verification | None = None
        self._last_action_step: int | None = None
        self._wait_until = 0
        self._told: set[float] = set()

    # -- called by the guard ----------------------------------------------------------------

    def after_step(self, loss: float, findings: tuple[Finding, ...], *, last: bool = False) -> None:
        """Take in one finished step; `last`: the run would end here."""
        for finding in findings:
            self._open[finding.key] = finding
        if self.phase == "trial":
            self._trial_step(loss, findings)
            return
        self._verify_step(loss, findings)
        step = self.engine.counters.step
        if self.engine.policy.mode == "observe" or step < self._wait_until:
            return
        if self._troubled(last=last):
            self._respond()

    def after_probe(self, first: int, last: int, loss: float) -> None:
        """Take in the loss of one probed batch under the restored state."""
        case = self._case
        assert case is not None
        case.probe_samples.append((first, last, loss))
        self.engine.decisions.probed_batches += 1
        margin = self.engine.policy.probe_margin_batches
        if last + 1 < case.seen_sample:
            return
        clean = 0
        for outlier in reversed(self._outliers(case)):
            if outlier:
                break
            clean += 1
        if clean >= margin or len(case.probe_samples) > 12 * margin + 2 * (
            case.seen_step - case.base.step
        ):
            self._finish_probe(case)

    @property
    def busy(self) -> bool:
        """Whether a probe or a trial is under way."""
        return self.phase != "calm"

    @property
    def alarmed(self) -> bool:
        """Whether an alarm is open: not a time to call a state healthy."""
        return any(
            f.severity != "info" and not f.closed and f.key not in self._handled
            for f in self._open.values()
        )

    # -- seeing trouble ---------------------------------------------------------------------

    def _troubled(self, *, last: bool) -> bool:
        """Whether an open alarm on the loss has outlasted the patience."""
        row = self.engine.decisions.row - 1
        patience = 0 if last else self.engine.policy.patience_steps
        for finding in self._open.values():
            if (
                finding.severity == "info"
                or finding.key in self._handled
                or finding.end_row is not None
            ):
                continue
            if finding.kind == "non-finite":
                # one skipped update is dealt with; a second in a row needs more
                if (
                    finding.signal == "loss"
                    and not finding.closed
                    and (row - finding.onset_row >= 2 or last)
                ):
                    return True
            elif finding.detector.startswith("level") or finding.kind in (
                "unrecovered-spike",
                "scale-collapse",
            ):
                return True
            elif (
                not finding.closed
                and finding.signal == "loss"
                and row - finding.onset_row >= patience
            ):
                return True
        return False

    def _respond(self) -> None:
        engine = self.engine
        found = find_incident(engine, tuple(self._open.values()), self._handled)
        if found is None:
            return
        record, incident, keys = found
        self._handled |= keys
        self.incidents.append(incident)
        first_sign = int(incident.first_step)
        recurrences = self._recurrences(first_sign)
        earlier = self.incidents[:-1]
        diagnosis = diagnose(record, incident, earlier=earlier)
        self._tell_incident(incident, diagnosis, "open")
        if engine.policy.mode == "advise" or self.advising_only:
            plan = make_plan(record, incident, diagnosis, earlier=earlier)
            advice = "; ".join(f"{r.remedy} {dict(r.values)}" for r in plan.remedies[:3])
            engine.recorder.event(
                "decision", step=engine.counters.step, what="advise", why=advice, evidence=[]
            )
            self._say(f"advice: {advice}")
            return
        self._go_back(
            incident, record, first_sign - 1 - engine.policy.rollback_margin_steps, recurrences
        )

    def _recurrences(self, first_sign: int) -> int:
        """Count earlier troubles near this one; they make the guard go further back."""
        horizon = 4 * self.engine.policy.verify_steps
        count = sum(
            1 for onset in self.engine.decisions.last_onsets if abs(onset - first_sign) <= horizon
        )
        self.engine.decisions.last_onsets.append(first_sign)
        return count

    # -- going back -------------------------------------------------------------------------

    def _go_back(
        self, incident: Incident, record: RunRecord, target: int, recurrences: int
    ) -> None:
        engine = self.engine
        distance = max(int(incident.onset) - target, 1)
        snapshot = engine.ring.before(target - distance * (2**recurrences - 1))
        snapshot = (
            snapshot
            or engine.ring.before(target)
            or (engine.ring.items[0] if engine.ring.items else None)
        )
        if snapshot is None or snapshot.step >= incident.onset:
            self._give_up("no healthy snapshot lies before the first sign")
            return
        level, sigma = loss_level(record, snapshot)
        self._case = Case(
            incident=incident, record=record, seen_step=engine.counters.step,
            seen_sample=engine.data.position if engine.data is not None else 0,
            base=snapshot, lr_now=_lr_at(record, incident.onset, engine.decisions.lr_factor),
            lr_restore=_lr_at(record, snapshot.step, engine.decisions.lr_factor),
            level=level, sigma=sigma, lr_factor=engine.decisions.lr_factor, recurrences=recurrences,
        )  # fmt: skip
        self._start_probe(self._case)

    def _start_probe(self, case: Case) -> None:
        engine = self.engine
        engine.recorder.event(
            "decision", step=engine.counters.step, what=f"go back to step {case.base.step}",
            why=f"newest snapshot before the first sign (step {case.incident.first_step:g})",
            evidence=[f.text for f in case.incident.findings][:6],
        )  # fmt: skip
        self._say(f"step {engine.counters.step:>6,}  {case.incident.headline}")
        self._say(
            f"             going back to step {case.base.step} and looking at the data ahead of it"
        )
        engine.ring.drop_after(case.base.step)
        engine.restore(case.base)
        case.probe_samples.clear()
        self.phase = "probe"

    def _outliers(self, case: Case) -> list[bool]:
        """Which probed batches stand out from the ones that were trained on without trouble."""
        losses = np.array([loss for *_, loss in case.probe_samples])
        trained = [
            x
            for first, _, x in case.probe_samples
            if first < self._onset_sample(case) and math.isfinite(x)
        ]
        centre = float(np.median(trained)) if len(trained) >= 5 else case.level
        spread = (
            1.4826 * float(np.median(np.abs(np.array(trained) - centre)))
            if len(trained) >= 5
            else case.sigma
        )
        limit = max(6 * max(spread, case.sigma), 0.04 * centre)
        return [not math.isfinite(x) or abs(x - centre) > limit for x in losses]

    def _onset_sample(self, case: Case) -> int:
        column = case.record.columns.get("samples_seen")
        row = case.incident.onset_row
        if column is None or not column.present[row]:
            return case.seen_sample
        size = (
            case.record.columns["batch_size"].values[row]
            if "batch_size" in case.record.columns
            else 1.0
        )
        before = case.base.payload["counters"]["samples"]
        return case.base.sample_id + int(column.values[row] - size) - int(before)

    def _finish_probe(self, case: Case) -> None:
        marks = self._outliers(case)
        losses = [x for *_, x in case.probe_samples]
        hits = [s for s, mark in zip(case.probe_samples, marks, strict=True) if mark]
        finite = [x for x in losses if math.isfinite(x)]
        case.probe = DataProbe(
            num_batches=len(losses),
            num_outliers=len(hits),
            first_sample=hits[0][0] if hits else None,
            last_sample=hits[-1][1] if hits else None,
            median_loss=float(np.median(finite)) if finite else math.nan,
            worst_loss=max((x for *_, x in hits), default=max(finite, default=math.nan)),
        )
        text = (
            f"{len(hits)} of {len(losses)} batches stand out under the healthy state (samples {hits[0][0]}-{hits[-1][1]}, loss up to {case.probe.worst_loss:.3g} against {case.level:.3g})"
            if hits
            else f"none of {len(losses)} batches stands out under the healthy state"
        )
        self.engine.recorder.event(
            "decision", step=case.base.step, what="probe the data", why=text, evidence=[]
        )
        self._say(f"             data: {text}")
        self._advance(case)

    # -- trials -----------------------------------------------------------------------------

    def _advance(self, case: Case) -> None:
        engine = self.engine
        d = engine.decisions
        step = next_step(self._situation(case))
        if isinstance(step, Trial):
            self._start_trial(case, step)
        elif isinstance(step, Commit):
            self._keep(case, step)
        elif isinstance(step, GoBack):
            self._say(f"             {step.reason}")
            case.depth += 1
            target = case.base.step - step.times * max(
                int(case.incident.onset) - case.base.step, engine.policy.snapshot_every_steps
            )
            older = engine.ring.before(max(target, 0)) or engine.ring.items[0]
            case.base, case.trials = older, []
            case.lr_restore = _lr_at(case.record, older.step, d.lr_factor)
            case.level, case.sigma = loss_level(case.record, older)
            self._start_probe(case)
        elif isinstance(step, Wait):
            self._wait_until = step.until_step
            self._abandon(case, step.reason)
        else:
            self._abandon(case, step.reason)
            self._give_up(step.reason)

    def _situation(self, case: Case) -> Situation:
        engine = self.engine
        d = engine.decisions
        skips = engine.data.skips if engine.data is not None else ()
        older = engine.ring.items
        return Situation(
            kind=case.incident.kind,
            nonfinite="non-finite" in (case.incident.kind, *case.incident.also),
            lr_now=case.lr_now,
            lr_restore=case.lr_restore,
            policy=engine.policy,
            probe=case.probe,
            window=(self._onset_sample(case), max(case.seen_sample - 1, self._onset_sample(case))),
            trials=tuple(case.trials),
            recurrences=case.recurrences,
            rollbacks=d.rollbacks,
            depth=case.depth,
            older_restore_point=bool(older) and older[0].step < case.base.step,
            wasted_share=(d.executed_steps - case.base.step) / max(case.seen_step, 1)
            if case.trials
            else 0.0,
            planned_samples=self._planned_samples(),
            skipped_samples=sum(b - a + 1 for a, b in skips),
            step=case.seen_step,
            last_action_step=self._last_action_step,
        )

    def _start_trial(self, case: Case, trial: Trial) -> None:
        engine = self.engine
        self._undo_trial(case)
        engine.restore(case.base)
        if trial.skip is not None and engine.data is not None:
            engine.data.skip(*trial.skip)
        engine.decisions.lr_factor = case.lr_factor * trial.lr_factor
        case.trial, case.losses, case.alarmed = trial, [], False
        self._open.clear()
        engine.begin_attempt(
            parent=case.base.attempt, parent_step=case.base.step, why=f"trial: {trial.name}", trial=True,
            lr_factor=engine.decisions.lr_factor, skip=list(trial.skip) if trial.skip else None,
        )  # fmt: skip
        case.trial_attempt = engine.recorder.attempt
        self.phase = "trial"

    def _undo_trial(self, case: Case) -> None:
        if case.trial is not None and case.trial.skip is not None and self.engine.data is not None:
            self.engine.data.unskip(*case.trial.skip)
        self.engine.decisions.lr_factor = case.lr_factor
        case.trial = None

    def _trial_length(self, case: Case) -> int:
        """Long enough to pass the place where the trouble was seen, and the patience after it."""
        policy = self.engine.policy
        return max(policy.trial_steps, case.seen_step - case.base.step + 2 * policy.patience_steps)

    def _trial_step(self, loss: float, findings: tuple[Finding, ...]) -> None:
        case = self._case
        assert case is not None
        case.losses.append(loss)
        recent = [x for x in case.losses[-8:] if math.isfinite(x)]
        lost = len(case.losses) >= 16 and (
            not recent
            or float(np.median(recent)) > case.level + max(8 * case.sigma, 0.15 * case.level)
        )
        case.alarmed = (
            case.alarmed
            or lost
            or any(f.severity != "info" and f.signal == "loss" for f in findings)
        )
        if case.alarmed or len(case.losses) >= self._trial_length(case):
            self._finish_trial(case)

    def _finish_trial(self, case: Case) -> None:
        trial = case.trial
        assert trial is not None
        tail = np.array(case.losses[-max(len(case.losses) // 2, 8) :])
        end = float(tail.mean()) if np.isfinite(tail).all() else math.nan
        error = float(tail.std()) / math.sqrt(len(tail)) if len(tail) > 1 else case.sigma
        limit = case.level * (1 + self.engine.policy.verify_tolerance) + 3 * max(
            error, case.sigma / math.sqrt(len(tail))
        )
        held = not case.alarmed and math.isfinite(end) and end <= limit
        case.trials.append(
            TrialResult(
                name=trial.name, held=held, loss=end, expected_loss=case.level, steps=len(case.losses),
                skipped=trial.skip is not None, lr_factor=trial.lr_factor,
            )
        )  # fmt: skip
        verdict = "held" if held else "failed"
        self.engine.recorder.event(
            "outcome", step=self.engine.counters.step, remedy=f"trial: {trial.name}", verdict="worked" if held else "did not",
            figures={"loss": end, "expected": case.level, "steps": len(case.losses)}, text=f"trial {verdict}", trial=True,
        )  # fmt: skip
        self._say(
            f"             trial {len(case.losses):>3} steps, {trial.name}: {'✓' if held else '✗'}  loss {end:.3f}, expected {case.level:.3f}"
        )
        self._advance(case)

    # -- keeping, verifying, giving up ------------------------------------------------------

    def _keep(self, case: Case, commit: Commit) -> None:
        """Make a trial the run; go on from its end where it was the last one, else start it again."""
        engine, trial = self.engine, commit.trial
        if case.trial is None or case.trial.name != trial.name:
            self._start_trial(case, trial)
        engine.set_aside_after(
            case.base.step,
            f"after the first sign of {case.incident.kind} at step {case.incident.first_step:g}",
        )
        engine.decisions.rollbacks += 1
        values: dict[str, object] = {
            "to_step": case.base.step,
            "skip_samples": list(trial.skip) if trial.skip else None,
            "lr_factor": engine.decisions.lr_factor,
        }
        remedy = "roll-back"
        remedy += "+skip-data" if trial.skip else ""
        remedy += "+lower-lr" if trial.lr_factor != 1.0 else ""
        action = {"step": case.seen_step, "remedy": remedy, "values": values, "why": commit.reason}
        self.actions.append(action)
        engine.recorder.event(
            "action",
            step=engine.counters.step,
            remedy=remedy,
            values=values,
            why=commit.reason,
            kept_attempt=engine.recorder.attempt,
        )
        diagnosis = diagnose(
            case.record,
            case.incident,
            earlier=self.incidents[:-1],
            probe=case.probe,
            trials=case.trials,
        )
        self._tell_incident(case.incident, diagnosis, "explained")
        self._verification = Verification(
            remedy,
            max(engine.counters.step, case.seen_step) + engine.policy.verify_steps,
            case.level,
            case.sigma,
        )
        self._say(
            f"             kept: {trial.name} · {case.seen_step - case.base.step} steps given up · {diagnosis.top.title} ({diagnosis.top.confidence:.2f})"
        )
        self._last_action_step = engine.counters.step
        self.phase, self._case = "calm", None
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
        tail = np.array(v.losses[-32:])
        mean = float(tail.mean())
        error = float(tail.std()) / math.sqrt(len(tail))
        worse = mean - v.level
        size, significant = (
            worse > self.engine.policy.verify_tolerance * v.level,
            worse > 3 * max(error, 1e-9),
        )
        verdict = (
            "did not"
            if v.alarmed or not math.isfinite(mean) or (size and significant)
            else "worked"
        )
        if verdict == "worked" and (size or len(tail) < 8):
            verdict = "unclear"
        self.engine.recorder.event(
            "outcome", step=self.engine.counters.step, remedy=v.remedy, verdict=verdict,
            figures={"loss": mean, "expected": v.level, "standard_error": error}, text=f"loss {mean:.4g} against {v.level:.4g} before the trouble",
        )  # fmt: skip
        self._say(
            f"step {self.engine.counters.step:>6,}  {v.remedy}: {verdict} (loss {mean:.3f}, {v.level:.3f} before the trouble)"
        )
        self._verification = None

    def _abandon(self, case: Case, reason: str) -> None:
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
        self._open.clear()
        self.phase, self._case = "calm", None

    def _give_up(self, reason: str) -> None:
        self.advising_only = True
        self.engine.recorder.event(
            "decision", step=self.engine.counters.step, what="stop acting", why=reason, evidence=[]
        )
        self._say(
            f"step {self.engine.counters.step:>6,}  no longer acting: {reason}; the run goes on, advice follows"
        )

    def _tell_incident(self, incident: Incident, diagnosis: Diagnosis, state: str) -> None:
        self.engine.recorder.event(
            "incident", step=self.engine.counters.step, state=state, kind=incident.kind, also=list(incident.also),
            severity=incident.severity, onset=incident.onset, precursor=incident.precursor, headline=incident.headline,
            causes=[{"cause": c.cause, "confidence": c.confidence, "evidence": list(c.evidence)} for c in diagnosis.causes[:3]],
        )  # fmt: skip


def _lr_at(record: RunRecord, step: float, factor: float) -> float:
    """Return the scheduled rate at the newest row at or before `step` on the last attempt's lineage."""
    rows = record.lineage_rows()
    column = record.columns.get("lr")
    if column is None:
        return math.nan
    rows = rows[(record.step[rows] <= step) & column.present[rows]]
    return float(column.values[rows[-1]]) / factor if len(rows) else math.nan
