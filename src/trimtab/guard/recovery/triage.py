"""Which findings mean trouble, and which incident they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.incidents import newest_unhandled
from trimtab.kinds import KIND_BY_NAME
from trimtab.plan.expected import NEVER_EXPECTED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import Key
    from trimtab.incidents import Incident
    from trimtab.plan.expected import ExpectedChange
    from trimtab.record import RunRecord

__all__ = [
    "BY_NO_UPDATE",
    "COUNTED",
    "EARLY_SIGNS",
    "NO_RISE",
    "SLOW_RISES",
    "explained_by",
    "factor_needed",
    "find_incident",
    "is_no_updates_doing",
    "is_trouble",
    "puts_in_doubt",
    "saturates",
    "speaks_of_data",
    "speaks_of_state",
    "speaks_of_trial",
]

EARLY_SIGNS = ("saturation", "rewritten", "corrupt", "loss-count", "batch-scale")
"""Detectors whose alarm is trouble before the loss says so, or where it never does. Of suspect
changes of settings only a loss whose sign has turned, and inputs of 255 times their scale: most of
a model frozen, batches of another scale and a rate that climbs are as often meant (LISA, a
curriculum, a second warm-up), so that they are told, and undone only where
the loss or the fixed batches get worse."""
_ACTED_ON = frozenset(
    (
        "non-finite",
        "scale-collapse",
        "unrecovered-spike",
        "divergence",
        "spike",
        "shift",
        "drift",
        "skipped-steps",
        "too-good",
        "held-out-worse",
    )
)
"""Kinds of ours that may lead to a rollback. Other kinds ask for a person: going back does not help
a model that overfits, or a setting that somebody changed on purpose. Kinds of a user's own
detectors may, too."""
BY_NO_UPDATE = ("weights-grew", "moments-lost")
"""Detectors of a matrix that grew, and of moments that went, by no update: notes, unless the fixed
batches are worse."""
_NO_UPDATE_DID = (*BY_NO_UPDATE, "corrupt")
COUNTED = 4.0
"""Times the loss of before, of the same state, from which the loop counts it otherwise. Ours."""
SLOW_RISES = ("drift", "divergence")
"""Kinds of a rise of the loss without a jump: what makes it may as well be meant."""
_READ_NOW_AND_THEN = ("held-out-worse",)
"""Kinds of signals that few rows have: their onset is the row after the last good reading."""
NO_RISE = frozenset(("memorised", "too-good", "plateau", "overfitting", "never-learns"))
"""Kinds of the loss that are no rise of it: no remedy fails by them."""
_PATIENCES = 4
"""Times its patience after which a loss whose sign has turned is acted on: a loop that ascends and
descends in turn takes it back until then. Ours."""
_AT_ONCE = ("unrecovered-spike", "scale-collapse", "skipped-steps")
"""Kinds that the detectors report only after a wait of their own."""


def speaks_of_state(finding: Finding) -> bool:
    """Whether a finding may put the weights in doubt.

    The pace, the data and the logging do not. A loss scale that merely sinks is an early warning:
    it is reported, checkpoints are saved as before, and nothing is rolled back.
    """
    if finding.kind == "skipped-steps":
        return finding.severity == "critical"  # no update is applied any more
    kind = KIND_BY_NAME.get(finding.kind)
    return (kind is None or kind.topic == "learning") and finding.detector != "scale-drift"


def speaks_of_data(finding: Finding) -> bool:
    """Whether a finding is about what is fed, and not about the weights."""
    kind = KIND_BY_NAME.get(finding.kind)
    return kind is not None and kind.topic == "data"


def puts_in_doubt(finding: Finding) -> bool:
    """Whether a checkpoint that is saved under a finding is suspect.

    It is under critical findings about the weights, and under spikes and shifts of the loss.
    """
    risen = finding.kind in ("spike", "shift") and finding.signal == "loss"
    grave = finding.severity == "critical" or (risen and finding.severity != "info")
    return grave and speaks_of_state(finding)


def speaks_of_trial(finding: Finding, *, reads: bool = False) -> bool:
    """Whether an alarm in a trial means that it failed: one on the loss, or an early sign of it.

    Args:
        finding: The alarm.
        reads: Whether the fixed batches are read at its end: then only a loss that rises means it,
            and not one that is low, flat or learned by heart.
    """
    if reads and finding.kind in NO_RISE:
        return False
    return finding.signal == "loss" or finding.detector in EARLY_SIGNS


def is_no_updates_doing(incident: Incident) -> bool:
    """Whether weights or moments changed as no update changes them: no batch and no rate did it.

    It may have happened after the last loss on record, in which it then does not show.
    """
    return any(f.detector in _NO_UPDATE_DID for f in incident.findings)


def saturates(incident: Incident) -> bool:
    """Whether attention saturated before the loss rose, or the first updates wrote the weights anew.

    Of either a loss that is low for a while says nothing.
    """
    return any(f.detector in ("saturation", "rewritten") for f in incident.findings)


def factor_needed(incident: Incident) -> float:
    """Return the factor that brings the first updates to the size of sound ones; 1: none is known.

    Of weights that were written anew by a rate that is far too high from the start.
    """
    found = next((f for f in incident.findings if f.detector == "rewritten"), None)
    return 1.0 if found is None else min(1.0, found.expected / found.value)


def is_trouble(
    finding: Finding,
    age: int,
    patience: int,
    *,
    last: bool,
    scaled: bool,
    waits: Callable[[Finding], bool] = lambda _: False,
) -> bool:
    """Whether an alarm has outlasted the patience, so that something must be done.

    Args:
        finding: The alarm, as last reported.
        age: Rows since its onset.
        patience: Rows that a spike is trained through.
        last: Whether the run would end here.
        scaled: Whether there is a loss scaler, for which a gradient that overflows is normal.
        waits: Whether a spike is still given time to heal.
    """
    f = finding
    if f.kind in KIND_BY_NAME and f.kind not in _ACTED_ON and f.detector not in EARLY_SIGNS:
        return False
    if f.kind == "non-finite":
        # one skipped update needs nothing more; a second in a row does. A gradient that is never
        # finite leaves the loss unchanged, so it gets the full patience; with a scaler it is normal
        if f.signal == "grad_norm":
            return not f.closed and age >= patience and not scaled
        return f.signal == "loss" and not f.closed and (age >= 2 or last)
    if f.kind == "held-out-worse":
        return f.severity == "critical" and not f.closed
    if f.detector.startswith("level") and f.signal == "loss":
        # for a while, a spike that heals looks like a change of level
        return last or not waits(f)
    if f.detector == "loss-count":
        return last or (not f.closed and age >= _PATIENCES * patience)
    if f.detector == "batch-scale":
        return f.severity != "info" and (last or (not f.closed and age >= patience))
    if f.detector.startswith(("level", *EARLY_SIGNS)) or f.kind in _AT_ONCE:
        return True
    if f.closed or f.signal != "loss" or age < patience:
        return False
    return last or not waits(f)


def explained_by(expected: Sequence[ExpectedChange], finding: Finding) -> ExpectedChange | None:
    """Return the announced change that explains a finding; None where none does.

    It explains what begins in its window, but no value that is not finite and no loss scale that
    collapses: no plan leads there. What is read now and then may have begun anywhere between the
    last good reading and this one.
    """
    f = finding
    if f.kind in NEVER_EXPECTED:
        return None
    last = f.onset + f.grain_rows - 1
    if f.kind in _READ_NOW_AND_THEN:
        last = max(last, f.step)
    return next((c for c in expected if c.overlaps(f.onset, last)), None)


def find_incident(
    record: RunRecord, findings: Sequence[Finding], handled: Set[Key]
) -> tuple[Incident, frozenset[Key]] | None:
    """Return the latest incident that is not yet handled, and the keys of its findings."""
    here = [f for f in findings if f.onset_row < record.num_rows]
    found = newest_unhandled(record, here, handled)
    return None if found is None else (found[0], frozenset(found[1]))
