"""The account of one run: what a report, a terminal and `--json` all say, as one value."""

from dataclasses import dataclass

from trimtab.chronicle.journal import Event
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.incidents import Incident
from trimtab.plan.plan import Plan
from trimtab.readers.layers import LayerReadings
from trimtab.record import RunRecord

__all__ = ["IncidentAccount", "RunAccount"]


@dataclass(frozen=True, kw_only=True)
class IncidentAccount:
    """One incident with its explanation and plan."""

    incident: Incident
    diagnosis: Diagnosis
    plan: Plan
    dismissed: str = ""
    """Why a person called it fine; empty: nobody did."""


@dataclass(frozen=True, kw_only=True)
class RunAccount:
    """Everything said about one run."""

    record: RunRecord
    incidents: tuple[IncidentAccount, ...]
    """Most severe first, then latest first."""
    notes: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    """Journal events, where the run has a journal."""
    read_s: float = 0.0
    layers: tuple[LayerReadings, ...] = ()
    """What was measured block by block, where the run did so."""
