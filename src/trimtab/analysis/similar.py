"""Search other runs for incidents similar to a given one.

An incident becomes a handful of numbers that do not depend on the run's own units (shares, ratios,
rows) and the shape of loss and grad norm around its onset. The distance of two incidents is the
weighted mean of the differences in what both logs tell; where only one of them tells, it counts as
half different. BigScience found the like of tr8's trouble by reading tr1-13B's logs again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.json_form import incident_to_json
from trimtab.analysis.timeline import done_after
from trimtab.diagnosis.features import Features, incident_features
from trimtab.incidents import Incident
from trimtab.record import RunRecord

__all__ = ["Likeness", "actions_about", "likeness", "likeness_to_json", "similar_incidents"]

_ONE_SIDED = 0.5
_POINTS = 48
_LEAST_ROWS, _MOST_ROWS = 16, 2_000
_FULL = 2.0
"""A difference of so many natural logarithms (a factor 7) counts in full. Ours."""


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """One incident of another run, and how like it is."""

    path: str
    told: IncidentAccount
    distance: float
    """0: the same in all that is known; 1: different in all."""

    alike: tuple[str, ...]
    """What is nearly the same, for people."""
    unlike: tuple[str, ...]

    @property
    def score(self) -> float:
        """1: the same in all that is known; 0: different in all."""
        return 1.0 - self.distance


def _log(value: float | None) -> float | None:
    return None if value is None or not value > 0 or not math.isfinite(value) else math.log(value)


_NUMBERS: Mapping[str, tuple[float, Callable[[Features], float | None]]] = {
    "height": (1.5, lambda f: _log(f.height)),
    "grad norm rise": (1.5, lambda f: _log(f.gnorm_rise)),
    "duration": (1.0, lambda f: _log(f.num_rows)),
    "time to the top": (1.0, lambda f: _log(None if f.rise_rows is None else 1 + f.rise_rows)),
    "grad norm over clip": (0.5, lambda f: _log(f.clip_ratio)),
    "halvings of the loss scale": (1.0, lambda f: f.scale_halvings),
    "jump of the learning rate": (1.0, lambda f: _log(f.lr_jump)),
    "place in the warm-up": (0.5, lambda f: _log(f.warm_up_ratio)),
}
"""Weight, and the number on a scale of natural logarithms."""

_FACTS: Mapping[str, tuple[float, Callable[[Features], object]]] = {
    "recovery": (1.5, lambda f: f.recovered),
    "what was not finite first": (1.0, lambda f: f.nonfinite_first),
    "a restart just before": (0.5, lambda f: f.resume_rows is not None and f.resume_rows <= 5),
    "suddenness": (1.0, lambda f: f.abrupt),
    "order of grad norm and loss": (
        0.5,
        lambda f: None if f.gnorm_lead_rows is None else np.sign(f.gnorm_lead_rows),
    ),
}

_COUNTED = frozenset({"halvings of the loss scale", "jump of the learning rate"})
_SPOKEN = frozenset({"what was not finite first", "a restart just before"})
"""What two incidents that lack it are no more alike for, to a reader."""


def similar_incidents(
    account: RunAccount, index: int, others: Sequence[tuple[str, RunAccount]]
) -> tuple[Likeness, ...]:
    """Return the incidents of other runs, the most like first.

    Args:
        account: The run of the incident.
        index: Of the incident in the account.
        others: (path, account); an incident is never compared with itself, by whatever path or copy
            its run is given.
    """
    given = account.incidents[index].incident
    own = incident_features(account.record, given)
    shape = _shapes(account.record, given)
    found = []
    for path, other in others:
        own_run = _same_run(account.record, other.record)
        for told in other.incidents:
            same = (told.incident.kind, told.incident.onset_row) == (given.kind, given.onset_row)
            if not (own_run and same):
                theirs = incident_features(other.record, told.incident)
                found.append(
                    likeness(path, told, own, theirs, shape, _shapes(other.record, told.incident))
                )
    return tuple(sorted(found, key=lambda x: (x.distance, x.path, x.told.incident.onset_row)))


def actions_about(found: Likeness, account: RunAccount) -> tuple[str, ...]:
    """Return what was done about a similar incident, in words, where its journal records it."""
    return done_after(account).get(account.incidents.index(found.told), ())


def likeness_to_json(found: Likeness, account: RunAccount) -> dict[str, object]:
    """Return one row of `trimtab similar --json`; `account` is the run of the similar incident."""
    return {
        "path": found.path,
        "likeness": found.score,
        "distance": found.distance,
        "alike": list(found.alike),
        "unlike": list(found.unlike),
        "incident": incident_to_json(account.record, found.told),
        "done": list(actions_about(found, account)),
    }


def _same_run(a: RunRecord, b: RunRecord) -> bool:
    """Whether two records hold the same steps and losses; the path says nothing of that."""
    one, other = a.columns.get("loss"), b.columns.get("loss")
    if a.num_rows != b.num_rows or not np.array_equal(a.step, b.step):
        return False
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one.values, other.values, equal_nan=True))


def likeness(
    path: str,
    told: IncidentAccount,
    own: Features,
    theirs: Features,
    shape: Mapping[str, NDArray[np.float64]],
    other_shape: Mapping[str, NDArray[np.float64]],
) -> Likeness:
    """Return how like two incidents are, feature by feature."""
    parts = [("kind", 3.0, 1.0 - _overlap(own.kinds, theirs.kinds))]
    absent: set[str] = set()
    for name, (weight, number) in _NUMBERS.items():
        a, b = number(own), number(theirs)
        if a is not None or b is not None:
            one_sided = a is None or b is None
            d = _ONE_SIDED if one_sided else min(1.0, abs((a or 0.0) - (b or 0.0)) / _FULL)
            parts.append((name, weight, d))
            if a == b == 0 and name in _COUNTED:
                absent.add(name)
    for name, (weight, fact) in _FACTS.items():
        c, d_ = fact(own), fact(theirs)
        if not c and not d_ and name in _SPOKEN:
            absent.add(name)
        if c is not None or d_ is not None:
            parts.append((name, weight, _ONE_SIDED if c is None or d_ is None else float(c != d_)))
    for name in sorted({*shape, *other_shape}):
        one_sided = name not in shape or name not in other_shape
        d = _ONE_SIDED if one_sided else _shape_distance(shape[name], other_shape[name])
        parts.append((f"shape of the {name.replace('_', ' ')}", 2.0, d))
    distance = sum(w * d for _, w, d in parts) / sum(w for _, w, _ in parts)
    return Likeness(
        path=path,
        told=told,
        distance=distance,
        alike=tuple(name for name, _, d in parts if d <= 0.15 and name not in absent),
        unlike=tuple(name for name, _, d in parts if d >= 0.6),
    )


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a | b else 1.0


def _shapes(record: RunRecord, incident: Incident) -> dict[str, NDArray[np.float64]]:
    """Return loss and log grad norm around the onset, resampled to level 0 and height 1."""
    part = record.rows_of(record.attempt_index(incident.attempt))
    end = part.stop - 1 if incident.end_row is None else incident.end_row
    width = int(np.clip(end - incident.onset_row + 1, _LEAST_ROWS, _MOST_ROWS))
    rows = np.arange(
        max(part.start, incident.onset_row - width), min(part.stop, incident.onset_row + 2 * width)
    )
    found = {}
    for name in ("loss", "grad_norm"):
        column = record.columns.get(name)
        known = rows[:0]
        if column is not None:
            known = rows[column.present[rows] & np.isfinite(column.values[rows])]
        if column is None or len(known) < 4:
            continue
        y = column.values[known]
        y = np.log(np.maximum(y, 1e-12)) if name == "grad_norm" else y
        before = y[known < incident.onset_row]
        y = y - (np.median(before) if len(before) else y[0])
        size = float(np.abs(y).max())
        at = np.linspace(incident.onset_row - width, incident.onset_row + 2 * width, _POINTS)
        found[name] = np.interp(at, known, y / size if size > 0 else y)
    return found


def _shape_distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Return 0 for the same shape, 1 for none in common: root mean square difference, height 1."""
    return float(min(1.0, 2 * np.sqrt(np.mean((a - b) ** 2))))
