"""The analysis of one run: what a report, a terminal and `--json` all show, as one value."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from trimtab.analysis.self_test import MIN_RECORDS, SelfTest
from trimtab.analysis.verdict import Ending, RunJudgement, bad_verdict, judgement_of
from trimtab.chronicle.coverage import Coverage
from trimtab.chronicle.journal import Event
from trimtab.diagnosis.diagnose import Cause, Diagnosis
from trimtab.incidents import Incident
from trimtab.kinds import RunVerdict, severity_rank
from trimtab.plan.plan import Plan
from trimtab.readers.layers import LayerReadings
from trimtab.record import Attempt, RunRecord
from trimtab.vocabulary import Severity

__all__ = ["MIN_RECORDS", "IncidentAccount", "RunAccount", "any_fails_on", "fails_on"]


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


def _not_tested() -> None:
    return None


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
    ending: Ending | None = None
    """How the run is known to have ended badly; None: that is not known."""
    coverage: Coverage | None = None
    """Which steps the guard of the run judged; None where no guard wrote it."""
    tested: Callable[[], SelfTest | None] = _not_tested
    """Gives `self_test`, which costs more than all the rest and is worked out when asked for."""
    judged_signals: frozenset[str] = frozenset()
    """Signals that some detector of its judge reads."""

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Stretches of rising steps with fixed settings; a restart begins a new one."""
        return self.record.attempts

    @property
    def ended_badly(self) -> str:
        """Why the run is known to have ended badly; empty: that is not known."""
        return "" if self.ending is None else self.ending.why

    @property
    def self_test(self) -> SelfTest | None:
        """What faults injected into copies of the run's rows showed; None: that was not tried."""
        return self.tested()

    @property
    def has_open_alarm(self) -> bool:
        """Whether an alarm stands that is neither resolved nor dismissed."""
        return any(ia.is_open_alarm for ia in self.incidents)

    @property
    def verdict(self) -> RunVerdict:
        """`ended-badly`, else `incident`, else `not-judged`, else `healthy`."""
        found = bad_verdict(self.ending, open_alarm=self.has_open_alarm)
        return found or self.judgement.verdict

    @cached_property
    def judgement(self) -> RunJudgement:
        """The verdict with what it rests on, and what could not be judged."""
        return judgement_of(
            self.record,
            open_alarm=self.has_open_alarm,
            ending=self.ending,
            coverage=self.coverage,
            self_test=self.self_test,
            judged_signals=self.judged_signals,
            level_explained=min(
                (ia.incident.onset_row for ia in self.incidents if self._explains_level(ia)),
                default=None,
            ),
        )

    def _explains_level(self, ia: IncidentAccount) -> bool:
        """Whether it is a dismissed rise of the loss that lasts to the end of the final lineage."""
        incident = ia.incident
        if not ia.dismissed or incident.end is not None or "loss" not in incident.signals:
            return False
        lineage = self.record.lineage_rows()
        return bool(len(lineage)) and incident.onset_row in lineage


def fails_on(account: RunAccount, name: str | None) -> bool:
    """Tell whether a run fails on a word of `FAIL_ON`; on None nothing does."""
    if name is None:
        return False
    if account.verdict == "ended-badly":
        return True
    if name == "not-judged" and account.verdict == "not-judged":
        return True
    return any_fails_on(account.incidents, name)


def any_fails_on(incidents: Iterable[IncidentAccount], name: str) -> bool:
    """Tell whether an incident is as severe as a word of `FAIL_ON` asks."""
    least = severity_rank("warning" if name == "not-judged" else name)
    return least >= 0 and any(severity_rank(i.severity) >= least for i in incidents)
