"""Matches alarms with labels.

An alarm's interval, widened by three records or one per cent of the run, must touch the label's. An
interval longer than a fifth of the run proves little: it must begin inside the label or lie half
inside it. A condition that lasts to the end of the log is met by an alarm of its family that begins
anywhere in it. Where steps restart, meeting by record numbers is enough.
"""

from benchmarks.manifest import NOISY, Label, LabelledRun, Span, make_span
from benchmarks.predictions import Claim

__all__ = ["belongs", "in_broken_run", "meets", "names_rightly", "onset_error"]

BLANKET_SHARE = 0.2
BLANKET_RECORDS = 50


def names_rightly(claim: Claim, label: Label) -> bool:
    """Whether the alarm is of the label's family.

    Instability made of spikes may be called spike.
    """
    return claim.family == label.family or (label.kind in NOISY and claim.family == "spike")


def meets(run: LabelledRun, claim: Claim, label: Label) -> bool:
    """Whether an alarm finds a label."""
    if _touches_time(run, claim, label.span):
        return True
    if label.rows is not None and _touches_rows(run, claim, label.rows):
        return True
    starts_inside = label.onset - run.slack <= claim.onset <= run.last
    return label.open_ended and starts_inside and names_rightly(claim, label)


def belongs(run: LabelledRun, claim: Claim, label: Label) -> bool:
    """Whether a label accounts for an alarm: met, or at another place that the label names."""
    return (
        meets(run, claim, label)
        or any(_touches_time(run, claim, place) for place in label.also)
        or any(_touches_rows(run, claim, place) for place in label.also_rows)
    )


def in_broken_run(run: LabelledRun, claim: Claim) -> bool:
    """Whether a label says that the run was broken before the alarm."""
    return any(lab.breaks and claim.onset >= lab.onset - run.slack for lab in run.labels)


def onset_error(run: LabelledRun, claim: Claim, label: Label) -> float:
    """Return by how many records the alarm's onset is late (negative: early).

    The nearer of two ways.
    """
    by_time = (claim.onset - label.onset) / run.unit
    if claim.onset_row is None or label.rows is None:
        return by_time
    return min(by_time, float(claim.onset_row) - label.rows[0], key=abs)


def _touches_time(run: LabelledRun, claim: Claim, place: Span) -> bool:
    longest = max(BLANKET_RECORDS * run.unit, BLANKET_SHARE * (run.last - run.first))
    return _touches(claim.span, place, run.slack, longest)


def _touches_rows(run: LabelledRun, claim: Claim, place: Span) -> bool:
    if claim.onset_row is None:
        return False
    longest = max(float(BLANKET_RECORDS), BLANKET_SHARE * run.records)
    return _touches(make_span(claim.onset_row, claim.end_row), place, run.slack_rows, longest)


def _touches(said: Span, place: Span, slack: float, longest: float) -> bool:
    if said[1] < place[0] - slack or said[0] > place[1] + slack:
        return False
    length = said[1] - said[0]
    if length <= longest or place[0] - slack <= said[0] <= place[1] + slack:
        return True
    return min(said[1], place[1]) - max(said[0], place[0]) >= 0.5 * length
