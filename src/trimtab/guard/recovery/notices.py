"""Reports incidents, advice and skipped updates to the user and the journal, each once.

Finding an incident costs time, so two reports are a number of rows apart that grows with the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimtab.guard.recovery.commands import JournalEvent, NoteAction, Say, at_step, detail, note
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.text import values_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trimtab.detectors.contract import Finding
    from trimtab.diagnosis.diagnose import Diagnosis
    from trimtab.guard.recovery.commands import Command
    from trimtab.guard.recovery.events import BrokenStateFound, OddRanksFound, UpdateDone
    from trimtab.guard.recovery.values import Key
    from trimtab.incidents import Incident
    from trimtab.plan.plan import Plan
    from trimtab.plan.policy import Policy

__all__ = ["Notices", "SkipRun", "advice", "incident_entry", "within_limit"]

_REPORT_EVERY_ROWS = 64
"""Fewest rows between two incidents reported at their opening."""

_REPEAT_STEPS = 200
"""Fewest steps between two reports of an advised incident that lasts, or of jumps of the rate."""

_REPORTED_JUMP = 2.0
"""A learning rate that rises by this factor from one step to the next is reported at once. Ours."""

_SKIPPED_ROWS = 64
"""Rows of skipped updates that are remembered."""


@dataclass(frozen=True)
class SkipRun:
    """Updates in a row that were left out because they were not finite."""

    step: int
    """Of the first."""
    why: str
    first: int
    last: int
    """Sample ids, both included."""
    num: int

    @property
    def values(self) -> dict[str, object]:
        """The action's values in the journal."""
        return {"samples": [self.first, self.last], "num": self.num}


@dataclass(frozen=True)
class _Advised:
    """An incident that advice was given on."""

    keys: frozenset[Key]
    text: str
    due: int
    """Step from which it is said again."""


@dataclass(frozen=True)
class Notices:
    """What was reported, and what waits to be reported."""

    num_reported: int = 0
    """Incidents."""
    reported: frozenset[Key] = frozenset()
    waiting: frozenset[Key] = frozenset()
    """Alarms that opened and are not reported yet."""
    next_row: int = 0
    """Row from which the next incident may be reported."""
    odd_ranks: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    last_headline: tuple[int, str] = (-1, "")
    """Step and text of the last one said."""
    next_jump: float = -math.inf
    """Step from which a jump of the rate is said again."""
    next_broken: float = -math.inf
    """Step from which a loss that is not finite, and was trained on, is said again."""
    skips: SkipRun | None = None
    """The run of skipped updates under way."""
    skipped_rows: tuple[int, ...] = ()
    advised: _Advised | None = None

    # -- incidents --------------------------------------------------------------------------

    def hear(
        self, findings: Iterable[Finding], step: int, *, scheduled: bool
    ) -> tuple[Notices, tuple[Command, ...]]:
        """Take in alarms that opened; a jump of the rate is reported at once.

        What follows from a jump may show much later. One that a schedule makes, to a height that
        the rate had before, is for the journal alone.

        Args:
            findings: Of the step.
            step: That they were found at.
            scheduled: Whether a schedule gives the rate.
        """
        state = self
        commands: list[Command] = []
        waiting: set[Key] = set()
        for f in findings:
            if f.detector == "lr-change":
                if f.value >= _REPORTED_JUMP * f.expected and f.step >= state.next_jump:
                    state = replace(state, next_jump=f.step + _REPEAT_STEPS)
                    commands.append(note(step, f.text))
                    if not (scheduled and f.severity == "info"):
                        commands.append(at_step(step, f.text))
            elif f.severity != "info" and f.key not in state.reported and not state._is_skip(f):
                waiting.add(f.key)
        if waiting:
            state = replace(state, waiting=state.waiting | waiting)
        return state, tuple(commands)

    def _is_skip(self, f: Finding) -> bool:
        """Whether an alarm is of an update that was left out, which is reported as an action."""
        of_update = f.kind == "non-finite" and f.signal in ("grad_norm", "nonfinite")
        return of_update and f.onset_row in self.skipped_rows

    def is_due(self, row: int) -> bool:
        """Whether an alarm waits to be reported, and may be."""
        return bool(self.waiting) and row >= self.next_row

    def take_waiting(self, row: int) -> tuple[Notices, frozenset[Key]]:
        """Return the alarms that wait, which are looked up now."""
        next_row = row + max(_REPORT_EVERY_ROWS, row // 16)
        return replace(self, next_row=next_row, waiting=frozenset()), self.waiting

    def mark(self, keys: frozenset[Key]) -> Notices:
        """Count alarms as reported."""
        return replace(self, reported=self.reported | keys)

    def report(
        self, incident: Incident, diagnosis: Diagnosis, keys: frozenset[Key], step: int
    ) -> tuple[Notices, tuple[Command, ...], bool]:
        """Report that an incident has opened, unless it was reported; return whether it is now."""
        known = bool(keys & self.reported)
        state = replace(self, reported=self.reported | keys, waiting=self.waiting - keys)
        # it was reported at its opening, and is acted on or advised about now
        if known:
            return state, (), False
        state = replace(state, num_reported=state.num_reported + 1)
        state, lines = state.headline(incident, step)
        return state, (incident_entry(incident, diagnosis, "open", step), *lines), True

    def headline(self, incident: Incident, step: int) -> tuple[Notices, tuple[Say, ...]]:
        """Say the headline of an incident, once per step."""
        said = (step, incident.headline)
        lines = () if said == self.last_headline else (at_step(step, incident.headline),)
        return replace(self, last_headline=said), lines

    # -- advice -----------------------------------------------------------------------------

    def advised_on(
        self, incident: Incident, lines: tuple[str, ...], keys: frozenset[Key], step: int
    ) -> Notices:
        """Remember what was advised, to say it again while it lasts."""
        again = incident.headline + (f"; advice: {lines[0]}" if lines else "")
        return replace(self, advised=_Advised(keys, again, step + _REPEAT_STEPS))

    def repeat(
        self, known: Mapping[Key, Finding], step: int
    ) -> tuple[Notices, tuple[Command, ...]]:
        """Say again, every so many steps, what was advised on and still lasts."""
        advised = self.advised
        if advised is None or step < advised.due:
            return self, ()
        if not any(k in known and not known[k].closed for k in advised.keys):
            return replace(self, advised=None), ()
        again = replace(advised, due=step + _REPEAT_STEPS)
        return replace(self, advised=again), (at_step(step, f"still open: {advised.text}"),)

    # -- faults of the machine --------------------------------------------------------------

    def hear_odd_ranks(self, e: OddRanksFound) -> tuple[Notices, tuple[Command, ...]]:
        """Report ranks that hold other weights than the first one, once for each set of them."""
        if e.ranks in self.odd_ranks:
            return self, ()
        text = (
            f"rank {e.ranks.replace(' ', ', ')} no longer trains the same model as rank 0 (step"
            f" {e.step}): a hardware fault or an update outside the optimizer; stop and resume"
            " from a checkpoint before it"
        )
        state = replace(self, odd_ranks=self.odd_ranks | {e.ranks})
        return state, (note(e.step, text), at_step(e.step, text))

    def hear_broken_state(self, e: BrokenStateFound) -> tuple[Notices, tuple[Command, ...]]:
        """Report tensors of Adam's state that hold impossible values, once for each set of them."""
        if e.tensors in self.broken:
            return self, ()
        state = replace(self, broken=self.broken | {e.tensors})
        first, *more = e.tensors.split("; ")
        where = first + (f", and {len(more)} more like it" if more else "")
        if e.poisoned_step is not None:  # reported as an incident already
            text = (
                f"the gradient of step {e.poisoned_step}, which was not finite, is in Adam's state"
                f" ({where}): it does not heal; go back to a checkpoint before it"
            )
            return state, (note(e.step, text),)
        text = (
            f"Adam's state holds impossible values (step {e.step}): {where}; a hardware fault or a"
            " bad load; go back to a checkpoint before it"
        )
        return state, (note(e.step, text), at_step(e.step, text))

    # -- skipped updates --------------------------------------------------------------------

    def hear_update(self, e: UpdateDone) -> tuple[Notices, tuple[Command, ...]]:
        """Take in one step: a run of updates left out for NaN or Inf is reported as it begins.

        A loss or norm that is not finite and that the update took in is said at once as well.
        """
        broken = not math.isfinite(e.loss) or not (e.scaled or math.isfinite(e.norm))
        if not (broken and e.skipped):
            state, ended = self.end_skips()
            if not broken or e.step < state.next_broken:
                return state, ended
            text = f"{_what_broke(e)}: the update took it in"
            state = replace(state, next_broken=e.step + _REPEAT_STEPS)
            return state, (*ended, note(e.step, text), at_step(e.step, text))
        rows = (*self.skipped_rows[-_SKIPPED_ROWS + 1 :], e.row)
        run = self.skips
        if run is not None:
            run = replace(run, last=e.last, num=run.num + 1)
            action = NoteAction(run.step, "skip-update", run.values, run.why, revises=True)
            return replace(self, skips=run, skipped_rows=rows), (action,)
        why = _what_broke(e)
        run = SkipRun(e.step, why, e.first, e.last, 1)
        return replace(self, skips=run, skipped_rows=rows), (
            NoteAction(run.step, "skip-update", run.values, why),
            at_step(e.step, f"{why}: update skipped (samples {e.first}-{e.last})"),
        )

    def end_skips(self) -> tuple[Notices, tuple[Command, ...]]:
        """JournalEvent the run of skipped updates that is over, if one was under way."""
        run = self.skips
        if run is None:
            return self, ()
        data = {"remedy": "skip-update", "why": run.why, "values": run.values}
        return replace(self, skips=None), (JournalEvent("action", run.step, data),)


def _what_broke(e: UpdateDone) -> str:
    finite = math.isfinite(e.loss)
    why = f"the gradient's norm is {e.norm}" if finite else f"loss is {e.loss}"
    return why + _place_of(e, of_gradient=finite)


def within_limit(plan: Plan, policy: Policy, *, planned: float | None, left_out: int) -> Plan:
    """Return a plan that says, where data is to be left out, that the policy forbids so much.

    Args:
        plan: Of an incident.
        policy: Its `max_skip_share` is the limit.
        planned: Samples of the whole run; None: not known, and nothing is refused.
        left_out: Samples that are left out already.
    """
    told = []
    for r in plan.remedies:
        first, last = r.values.get("first_sample"), r.values.get("last_sample")
        why = ""
        if r.remedy == "skip-data" and isinstance(first, float) and isinstance(last, float):
            share = (left_out + last - first + 1) / (planned or math.inf)
            if share > policy.max_skip_share:
                why = (
                    f"the policy's max_skip_share = {policy.max_skip_share:g} forbids it"
                    f" ({share:.0%} of the planned data),"
                    f" guard.skip_samples({first:.0f}, {last:.0f}, why=...) does it by hand"
                )
        told.append(replace(r, why="; ".join(filter(None, (r.why, why)))))
    return replace(plan, remedies=tuple(told))


def advice(plan: Plan) -> tuple[tuple[str, ...], tuple[Say, ...]]:
    """Return the first remedies of a plan in words, and the lines that say them."""
    texts = tuple(
        f"{REMEDY_BY_ID[r.remedy].title if r.remedy in REMEDY_BY_ID else r.remedy}"
        + (f" ({values})" if (values := values_text(r.values)) else "")
        + (f": {r.why}" if r.why else "")
        for r in plan.remedies[:3]
    )
    return texts, tuple(detail(f"advice: {text}") for text in texts)


def incident_entry(incident: Incident, diagnosis: Diagnosis, state: str, step: int) -> JournalEvent:
    """Return an incident for the journal: `open` when it is found, `explained` once it is over."""
    return JournalEvent(
        "incident",
        step,
        {
            "state": state,
            "kind": incident.kind,
            "also": list(incident.also),
            "severity": incident.severity,
            "onset": incident.onset,
            "precursor": incident.precursor,
            "headline": incident.headline,
            "causes": [
                {"cause": c.cause, "confidence": c.confidence, "evidence": list(c.evidence)}
                for c in diagnosis.causes[:3]
            ],
        },
    )


def _place_of(e: UpdateDone, *, of_gradient: bool) -> str:
    """Return the ranks and the tensor in which a step is not finite, as far as known."""
    tensor = e.tensor if of_gradient else ""  # a NaN loss makes all of them NaN
    where = f" on rank {e.ranks.replace(' ', ', ')}" if e.ranks else ""
    return where + (f", in the gradient of {tensor}" if tensor else "")
