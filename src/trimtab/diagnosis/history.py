"""What a run did before an incident: its lineage, its learning rate, its earlier failures.

Pure functions over a `RunRecord`; nothing here weighs evidence.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.incidents import Incident
from trimtab.record import RunRecord
from trimtab.signals.spans import lineage_spans

__all__ = [
    "JUMP_LOOKBACK_ROWS",
    "JUMP_SEEN_ROWS",
    "EarlierIncidents",
    "LrRise",
    "Recurrence",
    "believed_sign",
    "comes_back",
    "find_lr_jump",
    "find_recurrence",
    "find_warm_up_end",
    "rows_before",
    "warm_up_label",
]

JUMP_LOOKBACK_ROWS = 256
"""A change of learning rate further back than this many rows is not put before an incident. Ours.
"""

JUMP_SEEN_ROWS = JUMP_LOOKBACK_ROWS + 32
"""Rows that `find_lr_jump` looks at in all: the slopes before the first candidate, too."""

# As `lr_change`, which reports such a rise.
_JUMP_RATIO = 1.3
SECOND_RISE_ROWS = 128
"""A schedule that turns upwards further back is one of the run's ways, not a mistake. Ours."""
_STEEPER = 4.0
_FLAT_ROWS = 4
_WARM_UP_BAND = (0.95, 1.4)


def rows_before(record: RunRecord, attempt: int, end_row: int) -> NDArray[np.intp]:
    """Return the rows that led to `end_row`, oldest first, dead branches left out.

    Args:
        record: What the run logged.
        attempt: Index of the attempt that `end_row` belongs to.
        end_row: First row left out.
    """
    spans = lineage_spans(record, attempt, end_row)
    return np.concatenate([np.arange(*span, dtype=np.intp) for span in spans])


@dataclass(frozen=True, kw_only=True)
class LrRise:
    """A rise of the learning rate in force that its schedule so far does not explain."""

    index: int
    """Where it set in, into the arrays that were searched."""
    before: float
    after: float

    @property
    def ratio(self) -> float:
        """How many times the old rate the new one is."""
        return self.after / self.before


_NOTE_ROWS = 64
"""A note on another signal further back than this may be chance: a healthy loss scale falls, too.
Ours."""


def believed_sign(incident: Incident) -> tuple[float, float | None]:
    """Return (the step to go back before, an earlier sign that is not followed, or None).

    An alarm on another signal counts however early it came, a note only near the onset: over
    thousands of rows some signal always stands out once.
    """
    if incident.precursor_row is None or incident.precursor is None:
        return incident.first_step, None
    early = [f for f in incident.findings if f.onset_row < incident.onset_row]
    if not any(f.onset_row == incident.precursor_row for f in early):
        return incident.first_step, None  # the sign is known by its place alone
    believed = [
        f.onset
        for f in early
        if f.severity != "info"
        or incident.onset_row - f.onset_row <= _NOTE_ROWS
        or _is_under_way(f, incident)
    ]
    first = min([*believed, incident.onset])
    return first, incident.precursor if incident.precursor < first else None


def _is_under_way(f: Finding, incident: Incident) -> bool:
    """Whether values were not finite from there up to the onset: one event, not one of many."""
    last = incident.onset_row if f.end_row is None and not f.closed else f.end_row
    return f.kind == "non-finite" and last is not None and last >= incident.onset_row


def find_lr_jump(
    step: NDArray[np.float64], lr: NDArray[np.float64], *, rows: int = JUMP_LOOKBACK_ROWS
) -> LrRise | None:
    """Return the latest unexplained rise of the learning rate, or None.

    Either the rate rises much faster than in the rows before (slope above 4 times the steepest of
    the last 16 intervals, which a linear or cosine warm-up never does), or it rises again after it
    had been level or falling. A warm-up after a restart is neither: it starts with a drop and comes
    back to a rate that was in force before.

    Args:
        step: float64 [n], rising.
        lr: float64 [n], learning rate in force, finite and at least 0.
        rows: How many of the last ones it may lie in.
    """
    # Fewer than four slopes before it: the steepest of them says nothing.
    start = max(4, len(lr) - rows)
    old, new = lr[start - 1 : -1], lr[start:]
    for i in (start + np.flatnonzero((old > 0) & (new >= _JUMP_RATIO * old))[::-1]).tolist():
        slopes = np.abs(np.diff(lr[max(0, i - 17) : i])) / np.diff(step[max(0, i - 17) : i])
        slope = (lr[i] - lr[i - 1]) / (step[i] - step[i - 1])
        # The second test: a re-warm-up that only comes back to a rate in force before is no jump.
        if slope > _STEEPER * slopes.max() and lr[i] > 1.05 * lr[max(0, i - 17) : i].max():
            return LrRise(index=i, before=float(lr[i - 1]), after=float(lr[i:].max()))
    return _second_rise(lr, max(1, len(lr) - SECOND_RISE_ROWS))


def comes_back(lr: NDArray[np.float64]) -> bool:
    """Whether the learning rate has come down and gone up again, as in a schedule with restarts.

    A warm-up comes from below all that was in force.

    Args:
        lr: float64 [n], in force, finite.

    Example:
        >>> comes_back(np.array([1.0, 0.1, 0.01])), comes_back(np.array([1.0, 0.1, 0.8]))
        (False, True)
    """
    low = np.flatnonzero(_JUMP_RATIO * lr <= np.maximum.accumulate(lr))
    if not len(low):
        return False
    since = lr[low[0] :]
    return bool((since >= _JUMP_RATIO * np.minimum.accumulate(since)).any() and since.max() > 0)


def _second_rise(lr: NDArray[np.float64], start: int) -> LrRise | None:
    # Rounding moves a level rate by its last digit, which is no rise.
    falling = np.diff(lr) <= 1e-9 * np.abs(lr[:-1])
    for k in range(len(lr) - 2, max(start, _FLAT_ROWS) - 1, -1):
        stretch = lr[k - _FLAT_ROWS : k + 1]
        # A steep fall just before is a drop at a restart, after which the rate only comes back.
        if not falling[k - _FLAT_ROWS : k].all() or lr[k] <= 0 or stretch[0] > 1.5 * lr[k]:
            continue
        after = float(lr[k:].max())
        if after >= _JUMP_RATIO * lr[k]:
            return LrRise(index=k + 1, before=float(lr[k]), after=after)
        return None
    return None


def find_warm_up_end(lr: NDArray[np.float64]) -> int | None:
    """Return the index at which a warm-up from below half the peak ended; None if none is seen.

    The end is the first row within 0.1 % of the highest rate of the rise, provided that the rise
    was seen (at least 4 rows, starting below half of it) and had stopped (a later row exists).
    """
    if len(lr) < _FLAT_ROWS + 1:
        return None
    rising = np.diff(lr) > 0
    stops = np.flatnonzero(~rising)
    end = int(stops[0]) if len(stops) else len(lr) - 1
    if end < _FLAT_ROWS or end == len(lr) - 1 or lr[0] > 0.5 * lr[end]:
        return None
    # A constant phase printed with more digits may creep up by rounding long after the warm-up.
    return int(np.flatnonzero(lr[: end + 1] >= 0.999 * lr[end])[0])


def warm_up_label(position: float, end: float) -> str:
    """Return "warm-up end" for an event just after the end of warm-up, else an empty string.

    The three events on public record came at 1.16, 1.17 and 1.21 times the end (BigScience tr1-13B
    and tr8-104B chronicles); the band around them, 0.95 to 1.4, is ours.

    Example:
        >>> warm_up_label(252_272, 216_320), warm_up_label(4 * 216_320, 216_320)
        ('warm-up end', '')
    """
    low, high = _WARM_UP_BAND
    return "warm-up end" if end > 0 and low <= position / end <= high else ""


class EarlierIncidents(Sequence[Incident]):
    """Incidents in the order in which they were found, known by attempt.

    What came before an incident is found without a pass over all: a log may hold thousands.
    """

    def __init__(self, incidents: Iterable[Incident] = ()) -> None:
        """Start with these."""
        self._all: list[Incident] = []
        self._alarms: dict[str, list[Incident]] = {}
        self._ends: dict[str, list[int]] = {}
        for incident in incidents:
            self.append(incident)

    @classmethod
    def of(cls, incidents: Sequence[Incident]) -> "EarlierIncidents":
        """Return incidents as such; themselves where they are."""
        return incidents if isinstance(incidents, cls) else cls(incidents)

    def append(self, incident: Incident) -> None:
        """Add the next one."""
        self._all.append(incident)
        if incident.severity != "info":
            self._alarms.setdefault(incident.attempt, []).append(incident)
            if incident.end_row is not None:
                insort(self._ends.setdefault(incident.attempt, []), incident.end_row)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._all)

    @overload
    def __getitem__(self, index: int) -> Incident: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Incident]: ...

    def __getitem__(self, index: int | slice) -> Incident | Sequence[Incident]:
        """Return one of them, or some."""
        return self._all[index]

    def alarms_by_attempt(self) -> Mapping[str, Sequence[Incident]]:
        """Return those that are more than information, by the number of their attempt."""
        return self._alarms

    def last_end(self, attempt: str, row: int) -> int | None:
        """Return the last row up to `row` at which an alarm of an attempt ended."""
        ends = self._ends.get(attempt, ())
        place = bisect_right(ends, row)
        return ends[place - 1] if place else None


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """The same trouble in an earlier attempt."""

    count: int
    """How many earlier attempts failed too."""
    previous: Incident
    sooner_by: float
    """Steps by which it came back earlier; negative when it came later."""
    resumed_at: float | None
    """Step that the present attempt resumed from, or its first row where only that is known."""
    resume_stated: bool
    """Whether the log states `resumed_at`."""
    failed_distance: float | None
    """How far back that was from the earlier failure; it was not enough."""
    other_data: bool | None
    """Whether the present attempt saw other data; None where the log does not say."""
    data_change: str = ""
    """What changed of the data, such as `seed 42 -> 43`."""


_DATA_KEYS = ("seed", "data", "data_seed", "skipped_samples")
_LATER_TIMES = 4.0
_WHOLE_ROWS = 30
"""Shorter attempts may be excerpts, whose first row says nothing of where they resumed."""


def find_recurrence(
    record: RunRecord, incident: Incident, earlier: Sequence[Incident]
) -> Recurrence | None:
    """Return what the latest failure of an earlier attempt says about this incident.

    An earlier incident counts when it was more than information, belongs to an attempt that came
    before, and lies where this attempt could have met it: this attempt resumed before it, and
    failed no later than 4 times the distance.
    """
    here = record.attempt_index(incident.attempt)
    own = record.attempts[here]
    resumed_at = own.parent_step
    num_rows = own.end_row - own.first_row
    if resumed_at is None and own.parent is not None and num_rows >= _WHOLE_ROWS:
        first = float(record.step[own.first_row])
        resumed_at = first if first < incident.onset else None
    failures: dict[str, Incident] = {}
    for number, alarms in EarlierIncidents.of(earlier).alarms_by_attempt().items():
        # A guard's log holds branches that were tried later from the same point.
        if number == incident.attempt or record.attempt_index(number) >= here:
            continue
        latest = (a for a in reversed(alarms) if _met_again(a, incident, resumed_at))
        found = next(latest, None)
        if found is not None:
            failures[number] = found
    if not failures:
        return None
    previous = max(failures.values(), key=lambda f: record.attempt_index(f.attempt))
    other_data, change = _data_change(record, previous.attempt, incident.attempt)
    return Recurrence(
        count=len(failures),
        previous=previous,
        sooner_by=previous.onset - incident.onset,
        resumed_at=resumed_at,
        resume_stated=own.parent_step is not None,
        failed_distance=None if resumed_at is None else previous.first_step - resumed_at,
        other_data=other_data,
        data_change=change,
    )


def _met_again(other: Incident, incident: Incident, resumed_at: float | None) -> bool:
    if resumed_at is None:
        return True
    # It resumed behind the failure, so it cannot have met it.
    if resumed_at >= other.onset:
        return False
    return incident.onset - resumed_at <= _LATER_TIMES * (other.onset - resumed_at)


def _data_change(record: RunRecord, before: str, after: str) -> tuple[bool | None, str]:
    old = record.attempts[record.attempt_index(before)].settings
    new = record.attempts[record.attempt_index(after)].settings
    known = [k for k in _DATA_KEYS if k in old or k in new]
    changed = [k for k in known if old.get(k) != new.get(k)]
    if changed:
        pairs = (f"{k} {old.get(k, 'not stated')} -> {new.get(k, 'not stated')}" for k in changed)
        return True, ", ".join(pairs)
    return (False, "") if known else (None, "")
