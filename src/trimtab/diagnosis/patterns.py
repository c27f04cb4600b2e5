"""Name the shape of a loss curve as texts on ML engineering name it.

An incident's kind says what a detector saw. Its pattern is the common name of the whole picture,
with its surroundings: the start of an attempt, the losses of single datasets, the validation loss.
Losses of single datasets are columns called `loss/NAME`.

Source: S. Bekman, Machine Learning Engineering, "Understanding training loss patterns".
"""

from typing import Literal

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.hindsight import MIN_ROWS
from trimtab.incidents import Incident
from trimtab.readers.tags import set_of_tag
from trimtab.record import RunRecord

__all__ = ["Pattern", "dataset_losses", "name_pattern"]

Pattern = Literal[
    "fast spike",
    "slow spike",
    "spike that does not fully recover",
    "divergence without a spike",
    "spikes of several datasets",
    "spike at a resume",
    "grokking",
    "none of these",
]

RESUME_ROWS = 10
"""Rows from the start of an attempt within which a spike is one of the resume."""
DATASET_RATIO = 1.25
"""A dataset's loss spikes with the whole if it is this far above its own level."""

_RISING = ("divergence", "drift", "shift")


def name_pattern(record: RunRecord, incident: Incident) -> Pattern:
    """Return the pattern of an incident of the loss; "none of these" for all else."""
    kinds = (incident.kind, *incident.also)
    spiked = any("spike" in kind and "grad" not in kind for kind in kinds)
    if incident.kind == "grokking":
        return "grokking"
    if "resume-jump" in kinds or (spiked and _at_resume(record, incident)):
        return "spike at a resume"
    # One dataset alone may have a bad stretch of its own data.
    if spiked and len(_spiking(record, incident)) > 1:
        return "spikes of several datasets"
    if spiked and (incident.shape == "unrecovered" or incident.end_row is None):
        return "spike that does not fully recover"
    if spiked:
        return "slow spike" if incident.shape == "slow" else "fast spike"
    if incident.kind in _RISING and _of_loss(incident.findings):
        return "divergence without a spike"
    return "none of these"


def dataset_losses(record: RunRecord) -> tuple[str, ...]:
    """Return the columns that hold the loss of one dataset each."""
    return tuple(
        sorted(
            name
            for name in record.columns
            if name.startswith("loss/") and set_of_tag(record.keys.get(name, name)) is not None
        )
    )


def _of_loss(findings: tuple[Finding, ...]) -> bool:
    return any(f.signal == "loss" for f in findings)


def _at_resume(record: RunRecord, incident: Incident) -> bool:
    attempt = record.attempts[record.attempt_index(incident.attempt)]
    return attempt.parent is not None and incident.onset_row - attempt.first_row < RESUME_ROWS


def _spiking(record: RunRecord, incident: Incident) -> tuple[str, ...]:
    """Return the datasets whose loss is far above its own level of the rows before."""
    found: list[str] = []
    for name in dataset_losses(record):
        values = record.columns[name].values
        before = values[max(0, incident.first_row - MIN_ROWS) : incident.first_row]
        within = values[incident.onset_row : incident.peak_row + 2]
        before, within = before[np.isfinite(before)], within[np.isfinite(within)]
        if len(before) and len(within) and within.max() > DATASET_RATIO * np.median(before):
            found.append(name)
    return tuple(found)
