"""The analysis of one run: what a report, a terminal and `--json` all show, as one value."""

from dataclasses import dataclass

from trimtab.analysis.coverage import Coverage
from trimtab.chronicle.journal import Event
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.incidents import Incident
from trimtab.kinds import RunVerdict
from trimtab.plan.plan import Plan
from trimtab.readers.layers import LayerReadings
from trimtab.record import Attempt, RunRecord
from trimtab.vocabulary import Severity

__all__ = ["MIN_RECORDS", "IncidentAccount", "RunAccount"]

MIN_RECORDS = 10
"""With fewer train losses a log without an alarm is not called healthy. Ours."""


@dataclass(frozen=True, kw_only=True)
class IncidentAccount:
    """One incident with its explanation and plan."""

    incident: Incident
    diagnosis: Diagnosis
    plan: Plan
    dismissed: str = ""
    """The reason a person gave for dismissing it; empty: it is not dismissed."""
    resolved: bool = False
    """Whether a guard dealt with it: a remedy held, or its updates were left out."""

    @property
    def kind(self) -> str:
        """Kind, such as `spike`; `trimtab explain KIND` describes it."""
        return self.incident.kind

    @property
    def severity(self) -> Severity:
        """Severity now: `info` once it is resolved or dismissed."""
        return "info" if self.resolved or self.dismissed else self.incident.severity

    @property
    def attempt(self) -> str:
        """Number of the attempt in which it began."""
        return self.incident.attempt

    @property
    def onset(self) -> float:
        """Where it began, on the log's axis."""
        return self.incident.onset

    @property
    def peak(self) -> float:
        """Where it was worst, on the log's axis."""
        return self.incident.peak

    @property
    def end(self) -> float | None:
        """Where it was over, on the log's axis; None: it lasts to the end of the log."""
        return self.incident.end

    @property
    def headline(self) -> str:
        """What happened, since when, and the first sign, in one line."""
        return self.incident.headline

    @property
    def causes(self) -> tuple[Cause, ...]:
        """Candidate causes, the most likely first."""
        return self.diagnosis.causes

    @property
    def is_open_alarm(self) -> bool:
        """Whether it calls for action: an alarm that is neither resolved nor dismissed."""
        return self.severity != "info"


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """The analysis of one run."""

    record: RunRecord
    incidents: tuple[IncidentAccount, ...]
    """Most severe first, then latest first."""
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    """Journal events, where the run has a journal."""
    read_s: float = 0.0
    layers: tuple[LayerReadings, ...] = ()
    """What was measured block by block, where the run did so."""
    path: str = ""
    """Path as given; empty for a record that was made in memory."""
    ended_badly: str = ""
    """Why the run is known to have ended badly; empty: that is not known."""
    coverage: Coverage | None = None
    """Which steps the guard of the run judged; None where no guard wrote it."""

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Stretches of rising steps with fixed settings; a restart begins a new one."""
        return self.record.attempts

    @property
    def verdict(self) -> RunVerdict:
        """`ended-badly`, else `incident`, else `not-judged`, else `healthy`.

        It rests on the alarms, on the number of train losses, and on what the guard of the run
        wrote: steps that it did not judge, and how it ended.
        """
        if self.ended_badly:
            return "ended-badly"
        if any(ia.is_open_alarm for ia in self.incidents):
            return "incident"
        missed = self.coverage is not None and not self.coverage.whole
        return "not-judged" if missed or not self.judged else "healthy"

    @property
    def judged(self) -> bool:
        """Whether the log holds enough train losses for the absence of alarms to mean anything."""
        return self.record.num_loss_rows >= MIN_RECORDS
