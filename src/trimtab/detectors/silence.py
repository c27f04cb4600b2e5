"""Silences: nothing was logged for long between two rows. Offline, from the times of writing.

A gap between two rows of an attempt is a hang when it is `FACTOR` times the usual one and half an
hour or longer: collectives time out after 10 to 30 minutes, and a save or an evaluation that takes
as long each time is the run's way, so a gap also has to be twice the fourth longest. The log went
on, so it is a warning: the time is lost, and the reason is worth knowing. Of an attempt the longest
is reported.

A log that ends in silence has no row to say so; whether its run is alive is for a watcher to see.
"""

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.record import RunRecord

__all__ = ["silence_findings"]

FACTOR = 50.0
LEAST_S = 1800.0
RANK = 3
MIN_ROWS = 30


def silence_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return one finding at most per attempt."""
    column = record.columns.get("wall_time_s")
    if column is None:
        return ()
    findings: list[Finding] = []
    for index in range(len(record.attempts)):
        span = record.rows_of(index)
        rows = column.finite_rows(span)
        if len(rows) < MIN_ROWS:
            continue
        gaps = np.diff(column.values[rows])
        # The median is not moved by the gaps that are looked for.
        usual = float(np.median(gaps))
        ranked = np.sort(gaps)[::-1]
        # Up to three long gaps may each be an outage; more of them are saves or evaluations.
        longest, others = float(ranked[0]), float(ranked[RANK])
        if usual <= 0 or longest < max(LEAST_S, FACTOR * usual, 2.0 * others):
            continue
        at = int(np.argmax(gaps))
        before, after = int(rows[at]), int(rows[at + 1])
        text = (
            f"nothing was logged for {longest / 3600:.3g} h, where a row comes every {usual:.3g} s;"
            " then the log continues"
        )
        findings.append(
            finding_at(
                record,
                detector="silence",
                kind="hang",
                signal="wall_time_s",
                severity="warning",
                row=after,
                onset_row=before,
                peak_row=after,
                end_row=after,
                value=longest,
                expected=usual,
                score=longest / usual,
                closed=True,
                text=text,
            )
        )
    return tuple(findings)
