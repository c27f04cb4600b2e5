"""What a guard tells of trouble, to the user and in the journal: each thing once, however often.

Reading the record back costs time that grows with it, so the tellings keep a distance that does
too.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from trimtab.diagnosis.diagnose import diagnose
from trimtab.guard.recovery.triage import find_incident
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.text import values_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trimtab.detectors.contract import Finding
    from trimtab.diagnosis.diagnose import Diagnosis
    from trimtab.guard.step.engine import Engine
    from trimtab.incidents import Incident
    from trimtab.plan.plan import Plan

__all__ = ["Teller"]

Key = tuple[str, str, int]
"""A finding's."""

TELL_EVERY_ROWS = 64
"""Fewest rows between two incidents told of at their opening."""

REPEAT_STEPS = 200
"""Fewest steps between two tellings of an advised incident that lasts, or of jumps of the rate."""

TOLD_JUMP = 2.0
"""A learning rate that rises by this factor from one step to the next is told at once. Ours."""


class Teller:
    """Tells of incidents as they open, of advice, and of updates left out."""

    def __init__(
        self, engine: Engine, *, say: Callable[[str], None], actions: list[dict[str, object]]
    ) -> None:
        """Tell of an engine's run; runs of skipped updates are added to `actions`."""
        self.num_told = 0
        self._engine = engine
        self._say = say
        self._actions = actions
        self._told: set[Key] = set()
        self._odd: set[str] = set()
        self._broken: set[str] = set()
        self._waiting: set[Key] = set()
        self._next_row = 0
        self._last_headline = (-1, "")
        self._next_jump = -math.inf
        self._skips: dict[str, Any] | None = None
        self._skipped_rows: deque[int] = deque(maxlen=64)
        self._advised: tuple[set[Key], str, int] | None = None

    # -- incidents --------------------------------------------------------------------------

    def take_in(self, findings: tuple[Finding, ...], known: Mapping[Key, Finding]) -> None:
        """Tell of an alarm that has opened, once it may be told; `known`: all so far."""
        if not self._engine.ranks.chief:
            return
        for f in findings:
            if f.detector == "lr-change":
                self._tell_rate(f)
            elif f.severity != "info" and f.key not in self._told and not self._is_skip(f):
                self._waiting.add(f.key)
        row = self._engine.decisions.row
        if not self._waiting or row < self._next_row:
            return
        self._next_row = row + max(TELL_EVERY_ROWS, row // 16)
        new, self._waiting = self._waiting, set[Key]()
        others = (set(known) | self._told) - new
        found = find_incident(self._engine, tuple(known.values()), others)
        if found is not None:
            record, incident, keys = found
            self.tell(incident, diagnose(record, incident), keys)
        self._told |= new

    def _tell_rate(self, jump: Finding) -> None:
        """Say and journal that the rate jumped, as it does.

        What follows of it may show much later.
        """
        if jump.value < TOLD_JUMP * jump.expected or jump.step < self._next_jump:
            return
        self._next_jump = jump.step + REPEAT_STEPS
        self.note(jump.text)
        self._say(f"step {self._engine.counters.step:>6,}  {jump.text}")

    def _is_skip(self, f: Finding) -> bool:
        """Whether an alarm is of an update that was left out.

        Which is told as the action it was.
        """
        of_update = f.kind == "non-finite" and f.signal in ("grad_norm", "nonfinite")
        return of_update and f.onset_row in self._skipped_rows

    def finish(self, known: Mapping[Key, Finding]) -> None:
        """Tell what was put off, because the run ends."""
        self.end_skips()
        self._next_row = 0
        self.take_in((), known)

    def forget_waiting(self) -> None:
        """Leave untold what was not told yet: it is not on the branch that the run is on now."""
        self._waiting.clear()

    def tell(self, incident: Incident, diagnosis: Diagnosis, keys: set[Key]) -> bool:
        """Say and journal that an incident has opened, unless it was told.

        Return whether it was.
        """
        known = bool(keys & self._told)
        self._told |= keys
        self._waiting -= keys
        if known:
            return False
        self.num_told += 1
        self.journal(incident, diagnosis, "open")
        self._say_headline(incident)
        return True

    def _say_headline(self, incident: Incident) -> None:
        """Say what has happened; in one step only once."""
        step = self._engine.counters.step
        if (step, incident.headline) != self._last_headline:
            self._say(f"step {step:>6,}  {incident.headline}")
        self._last_headline = (step, incident.headline)

    def journal(self, incident: Incident, diagnosis: Diagnosis, state: str) -> None:
        """Write an incident down."""
        self._engine.recorder.event(
            "incident",
            step=self._engine.counters.step,
            state=state,
            kind=incident.kind,
            also=list(incident.also),
            severity=incident.severity,
            onset=incident.onset,
            precursor=incident.precursor,
            headline=incident.headline,
            causes=[
                {"cause": c.cause, "confidence": c.confidence, "evidence": list(c.evidence)}
                for c in diagnosis.causes[:3]
            ],
        )

    # -- advice -----------------------------------------------------------------------------

    def advise(self, incident: Incident, plan: Plan, keys: set[Key], *, headline: bool) -> str:
        """Say the first remedies of a plan, one a line; return the same words for the journal."""
        step = self._engine.counters.step
        if headline:
            self._say_headline(incident)
        lines = [
            f"{REMEDY_BY_ID[r.remedy].title if r.remedy in REMEDY_BY_ID else r.remedy}"
            + (f" ({values})" if (values := values_text(r.values)) else "")
            + (f": {r.why}" if r.why else "")
            for r in plan.remedies[:3]
        ]
        for line in lines:
            self._say(f"             advice: {line}")
        again = incident.headline + (f"; advice: {lines[0]}" if lines else "")
        self._advised = (keys, again, step + REPEAT_STEPS)
        return "; ".join(lines)

    def repeat(self, known: Mapping[Key, Finding]) -> None:
        """Say once more, every `REPEAT_STEPS`, what was advised on and still lasts."""
        if self._advised is None:
            return
        keys, text, due = self._advised
        step = self._engine.counters.step
        if step < due:
            return
        if any(k in known and not known[k].closed for k in keys):
            self._say(f"step {step:>6,}  still so: {text}")
            self._advised = (keys, text, step + REPEAT_STEPS)
        else:
            self._advised = None

    def tell_odd_ranks(self, odd: str) -> None:
        """Say and journal, once for each set of them, which ranks are not like the first one."""
        if odd in self._odd:
            return
        self._odd.add(odd)
        step = self._engine.counters.step
        text = (
            f"rank {odd.replace(' ', ', ')} no longer trains the same model as rank 0 (step"
            f" {step}): a hardware fault or an update outside the optimizer; stop and resume from a"
            " checkpoint before it"
        )
        self.note(text)
        self._say(f"step {step:>6,}  {text}")

    def tell_broken_state(self, broken: str) -> None:
        """Say and journal, once for each set of them.

        Which tensors of Adam's state make no sense.
        """
        if broken in self._broken:
            return
        self._broken.add(broken)
        step, poisoned = self._engine.counters.step, self._engine.poisoned_step
        first, *more = broken.split("; ")
        where = first + (f", and {len(more)} more like it" if more else "")
        if poisoned is not None:  # told as an incident already
            self.note(
                f"the gradient of step {poisoned}, which was not finite, is in Adam's state"
                f" ({where}): it does not heal; go back to a checkpoint before it"
            )
            return
        text = (
            f"Adam's state makes no sense (step {step}): {where}; a hardware fault or a bad load;"
            " go back to a checkpoint before it"
        )
        self.note(text)
        self._say(f"step {step:>6,}  {text}")

    def note(self, text: str) -> None:
        """Journal a sentence of ours."""
        step = self._engine.counters.step
        self._engine.recorder.event("note", step=step, author="trimtab", text=text)

    # -- skipped updates --------------------------------------------------------------------

    def take_in_update(
        self,
        values: Mapping[str, float],
        labels: Mapping[str, str],
        first: int,
        last: int,
        *,
        scaled: bool,
    ) -> None:
        """Take in one step: a run of updates left out for NaN or Inf is told when it begins.

        Args:
            values: What was measured of the step.
            labels: What was named of it: ranks and tensor that are not finite.
            first: First sample id of its batch.
            last: Last one.
            scaled: Whether there is a loss scaler, for which a gradient that overflows is normal.
        """
        loss, norm = values["loss"], values["grad_norm"]
        broken = not math.isfinite(loss) or not (scaled or math.isfinite(norm))
        if not (broken and values.get("skipped")):
            self.end_skips()
            return
        self._skipped_rows.append(self._engine.decisions.row)
        run = self._skips
        if run is not None:
            run["values"]["samples"] = [run["values"]["samples"][0], last]
            run["values"]["num"] += 1
            return
        what = f"the gradient's norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
        what += _place_of(labels, of_gradient=math.isfinite(loss))
        step = self._engine.counters.step
        self._skips = {
            "step": step,
            "remedy": "skip-update",
            "why": what,
            "values": {"samples": [first, last], "num": 1},
        }
        self._actions.append(self._skips)
        self._say(f"step {step:>6,}  {what}: update skipped (samples {first}-{last})")

    def end_skips(self) -> None:
        """Journal the run of skipped updates that is over, if one was under way."""
        run, self._skips = self._skips, None
        if run is not None:
            self._engine.recorder.event("action", **run)


def _place_of(labels: Mapping[str, str], *, of_gradient: bool) -> str:
    """Return on which ranks and in which tensor a step is not finite, as far as it is known."""
    ranks = labels.get("nonfinite_ranks", "")
    tensor = labels.get("nonfinite_at", "") if of_gradient else ""  # of a NaN loss all of them are
    where = f" on rank {ranks.replace(' ', ', ')}" if ranks else ""
    return where + (f", in the gradient of {tensor}" if tensor else "")
