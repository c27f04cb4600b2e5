"""A run that is started again and again from one checkpoint, and gets no farther.

Each start is sound by itself: the losses go on at their level, and the next start repeats them. What
says that something ends the run is their number: `FEWEST` attempts begin at one and the same step
behind the first of the run, one after the other or nearly so, and hardly any comes farther than
the ones before.

In hindsight. Blind to runs that write no row before they end, and to starts from the beginning,
which are folds, seeds and trials as often.
"""

from collections import Counter

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import number

__all__ = ["restart_loop_findings"]

FEWEST = 4
MOST_ATTEMPTS = 256
FEWEST_BEFORE = 3
WORN, ALIKE = 0.5, 0.75
"""Rows before that step; share of the starts from there that do not come beyond the farthest before
them; and most of them that end at one step. Ours."""


def restart_loop_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding for the step that most attempts begin at, where they get no farther."""
    attempts = record.attempts
    if not FEWEST < len(attempts) <= MOST_ATTEMPTS or not record.num_rows:
        return ()
    spans = [record.rows_of(i) for i in range(len(attempts))]
    begun = [float(record.step[s.start]) for s in spans if s.start < s.stop]
    at, count = Counter(begun[1:]).most_common(1)[0] if len(begun) > 1 else (0.0, 0)
    first = spans[0]
    before = int((record.step[first] < at).sum())
    if count < FEWEST or at <= min(begun) or before < FEWEST_BEFORE:
        return ()
    own = [s for s in spans if s.start < s.stop and float(record.step[s.start]) == at]
    ends = np.array([float(record.step[s].max()) for s in own])
    reached = np.array([float(record.step[: s.start].max()) for s in own])
    if np.mean(ends <= reached) < WORN:
        return ()
    alike = max(Counter(ends.tolist()).values()) > ALIKE * len(ends)
    if alike and float(np.median(ends)) > float(record.step[first].max()):
        return ()  # branches, trials and tasks end where they were to end
    return (
        finding_at(
            record,
            detector="restart-loop",
            kind="resume-jump",
            signal="loss",
            severity="info" if alike else "warning",
            row=own[-1].start,
            onset_row=own[0].start,
            end_row=own[-1].stop - 1 if own[-1].stop < record.num_rows else None,
            value=float(count),
            expected=0.0,
            score=min(99.0, 2.0 * count),
            closed=False,
            text=(
                f"{count} times it starts again from {record.axis} {number(at)}, and comes to"
                f" {number(median(ends))} or so: "
                + ("the same thing ends it each time, or these are branches of it" * alike)
                + ("something ends the run, or it is started by hand" * (not alike))
                + " (in hindsight)"
            ),
        ),
    )
