"""The order in which reports list the incidents of a run, and their letters."""

import math

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.resolution import settled
from trimtab.kinds import severity_rank

__all__ = ["letters", "listed_order"]

MANY = 5
"""More alarms than this are ordered by how far they are out of the noise, too; fewer, the latest first.
Ours."""


def letters(account: RunAccount) -> tuple[str, ...]:
    """Return the letter of each incident of the account: A is told first, then B ... AA."""
    result = [""] * len(account.incidents)
    for rank, index in enumerate(listed_order(account)):
        result[index] = _letter(rank)
    return tuple(result)


def listed_order(account: RunAccount) -> list[int]:
    """Return the incidents by index as they are told: what was dealt with after what was not."""
    past = settled(account)
    alarms = [i for i, ia in enumerate(account.incidents) if ia.incident.severity != "info"]
    many = len(alarms) > MANY
    return sorted(
        range(len(account.incidents)),
        key=lambda i: (
            i not in alarms,
            i in past,
            _lightness(account.incidents[i], many=many),
            i,
        ),
    )


def _lightness(ia: IncidentAccount, *, many: bool) -> tuple[float, ...]:
    """Sort key of alarms: severe, then lasting; of many then what is far out of the noise."""
    i = ia.incident
    rank = -severity_rank(i.severity)
    if not many:
        return (rank, i.end_row is not None)
    score = max((f.score for f in i.findings if math.isfinite(f.score)), default=0.0)
    left = bool(ia.plan.remedies) and ia.plan.remedies[0].remedy == "patience"
    return (rank, left, i.end_row is not None, -score)


def _letter(rank: int) -> str:
    text = ""
    rank += 1
    while rank:
        rank, rest = divmod(rank - 1, 26)
        text = chr(65 + rest) + text
    return text
