"""The test that separates the leading causes, as a command for the framework that wrote the log."""

import shlex
from collections.abc import Mapping

from trimtab.diagnosis.experiments import step_text
from trimtab.diagnosis.features import Features
from trimtab.diagnosis.history import believed_sign
from trimtab.incidents import Incident
from trimtab.plan.flags import experiment_flags, located
from trimtab.plan.rollback import RollbackChoice
from trimtab.record import RunRecord

__all__ = ["next_test_flags", "suspect_row"]

_STEP, _EARLIER = "STEP", "EARLIER_STEP"
"""Stand for a checkpoint that is not known."""


def next_test_flags(
    record: RunRecord,
    incident: Incident,
    features: Features,
    choice: RollbackChoice,
    *,
    experiment: str,
    framework: str,
) -> str:
    """Return the command or flags of an experiment, or an empty string where there are none.

    Without a known checkpoint, the text holds STEP and says what it must be.
    """
    values = _values(record, incident, features, choice)
    flags = experiment_flags(framework, experiment, values)
    if choice.target is not None and choice.target.path:
        flags = located(flags, choice.target.path)
    if _EARLIER in flags:
        return f"{flags}  ({_EARLIER}: a checkpoint before the first incident of the series)"
    if _STEP in flags:
        before = step_text(believed_sign(incident)[0])
        return f"{flags}  ({_STEP}: the newest checkpoint before {before})"
    return flags


def suspect_row(incident: Incident, f: Features) -> int:
    """Return the last row whose data may be to blame.

    Rows above half the height of the loss; those of the recovery are what the weights do. Without
    a shape, the rows of the incident, up to the peak of an open one.
    """
    if f.core_last_row is not None:
        return f.core_last_row
    return incident.peak_row if incident.end_row is None else incident.end_row


def _last_suspect(record: RunRecord, incident: Incident, f: Features) -> float:
    """Return the last position whose batch is suspect: a window is named whole."""
    row = suspect_row(incident, f)
    known = f.core_last_row is not None and row < record.num_rows
    return max(float(record.step[row]), incident.peak) if known else incident.peak


def _values(
    record: RunRecord, incident: Incident, f: Features, choice: RollbackChoice
) -> Mapping[str, str]:
    """Return what the templates ask for; a value that is not known has no key."""
    # 0.2 as in `RollbackChoice.target`: what scores less lies after the first sign or has failed.
    steps = sorted(c.checkpoint.step for c in choice.candidates if c.score >= 0.2)
    values = {
        "at": _STEP if choice.target is None else str(choice.target.step),
        "earlier": str(steps[0]) if len(steps) > 1 else _EARLIER,
        "first": step_text(believed_sign(incident)[0]),
        "last": step_text(_last_suspect(record, incident, f)),
        "attempt": shlex.quote(incident.attempt),
        "log": shlex.quote(record.source),
    }
    parent = record.attempts[record.attempt_index(incident.attempt)].parent
    if parent is not None:
        values["parent"] = shlex.quote(parent)
    if f.lr_onset is not None and f.lr_peak_share:
        # Half of the schedule's peak, which is what flags set; the rate in force may be lower.
        values["half_lr"] = f"{0.5 * f.lr_onset / f.lr_peak_share:.4g}"
    if f.lr_before_jump is not None:
        values["old_lr"] = f"{f.lr_before_jump:.4g}"
    return values
