"""Findings -> incidents: what belongs together as one episode, where it began, how it ended.

An incident is led by the condition that matters most (critical before warning, then a NaN before a
spike, a spike before a shift); the others stand in `also`. Its precursor is the earliest finding on
another signal that was still in force, or had only just ended, when the incident began; how far
back a signal is believed is its `lead_rows` in the vocabulary.

The end of the record is seen here: a spike that is still open there is told as unrecovered, and a
level behind a spike that stands still as a plateau. The detectors see no such thing.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.begun import as_begun
from trimtab.detectors.calm_signs import calm_sign, is_beyond_chance
from trimtab.detectors.confidence import calibrated
from trimtab.detectors.contract import Finding
from trimtab.detectors.endings import as_it_ended, place_text
from trimtab.detectors.falls_on import as_it_falls_on
from trimtab.detectors.kind_places import KindPlace, kind_places
from trimtab.detectors.missing_rows import as_missed
from trimtab.detectors.shared_fall import as_shared
from trimtab.kinds import KIND_BY_NAME, severity_rank
from trimtab.record import RunRecord
from trimtab.signals.ranks import is_flat, rank_correlations
from trimtab.signals.spans import median_spacing
from trimtab.text import OTHER
from trimtab.vocabulary import SIGNAL_BY_NAME, Severity

__all__ = [
    "Incident",
    "group_findings",
    "latest_tellings",
    "leading_finding",
    "newest_unhandled",
    "topic_of",
]

JOIN_ROWS = 8
"""Findings closer than this many rows are one episode; chosen on tuning seeds 0-9 of the lab."""

CONTINUATION_BLOCKS = 16  # after a divergence, in which a further rise is the same one

CHANGE_BLOCKS = 4  # from the onset of a change of level, in which it is the episode under way

RECURRENCE_ROWS = 2000
"""How far from an earlier incident on its lineage one is told as its recurrence."""

SLOW_LEAD_ROWS = 2000
"""How far before an onset a slow condition of another signal that lasts through it is its first
sign."""

SETTING_LEAD_ROWS = 32
"""How far before an onset a change of a setting, told as a note, is evidence. Ours."""
RARE_CHANGES = 3
"""Changes of one setting in an attempt, beyond which it moves by a plan. Ours."""

# As notes these happen all the time; in the topic of learning they would lead episodes of the loss.
_NOTED = ("resume-jump", "skipped-steps")

ELEVATED_SHARE = 0.03
"""A level this share above the one before is not the one before."""

_LEARNED_KINDS = ("overfitting", "memorised")
"""One condition, seen in validation and in training: an incident of its own, one per attempt."""

_SLOW_KINDS = ("plateau", "grad-drift", "never-learns", *_LEARNED_KINDS)
"""Conditions in the background of which other episodes come and go: incidents of their own."""

_CONDITIONS = frozenset(
    {
        "scale-collapse",
        "skipped-steps",
        "shift",
        "drift",
        "grad-explosion",
        "activation-reversal",
        "too-good",
        "signal-abnormal",
        "held-out-worse",
    }
)
"""Kinds that hold for a time in which other trouble comes and goes, each an incident of its own."""

_ACCEPTED_LATE = ("unrecovered-spike", "signal-abnormal")
"""Kinds of a level that is closed once it has stood for 200 rows."""

_LONGEST_LEAD_ROWS = max(SLOW_LEAD_ROWS, *(s.lead_rows for s in SIGNAL_BY_NAME.values()))
"""No finding further before an onset is its first sign, unless it belongs to the episode."""

# Ranks are sorted, for each pair of signals, each time that a growing incident is told.
_CORRELATED_ROWS = 4096

_SEEN_IN_THE_RECORD = (as_it_ended, as_it_falls_on, as_begun, as_shared, as_missed, calm_sign)
"""What the rows so far make of a finding, live and offline; each takes what the one before gave."""

_TOGETHER = ("loss", "grad_norm", "activation_norm", "loss_scale")


@dataclass(frozen=True, kw_only=True)
class Incident:
    """One episode: findings that belong together, named by the one that matters most."""

    kind: str
    also: tuple[str, ...] = ()
    attempt: str
    severity: Severity
    precursor_row: int | None = None
    """Row of the first sign on any signal; None where nothing spoke before the onset."""
    precursor: float | None = None
    precursor_signal: str | None = None
    onset_row: int
    onset: float
    peak_row: int
    peak: float
    end_row: int | None = None
    """None: it lasts to the end of the log."""
    end: float | None = None
    signals: tuple[str, ...]
    headline: str
    """One line: what happened, since when, the first sign."""
    kinds: tuple[KindPlace, ...] = ()
    """Each kind of a joint event with a place of its own, that of `kind` first."""
    confidence: float = 0.9  # that this is an incident at all
    shape: str = ""
    """fast, slow, unrecovered or empty."""
    risk: str = ""
    """Window of risk that it lies in: `warm-up end` or empty."""
    recurrence_of: float | None = None
    """Onset of the alarm before it on the same lineage, where there was one near."""
    findings: tuple[Finding, ...] = ()
    correlations: tuple[tuple[str, str, float], ...] = ()
    """Pairs of signals that moved together through the episode, with Spearman's rho."""

    @property
    def first_row(self) -> int:
        """Row to go back before: the first sign, or the onset where there is none."""
        row = self.precursor_row
        return self.onset_row if row is None else min(row, self.onset_row)

    @property
    def first_step(self) -> float:
        """Step to go back before."""
        return self.onset if self.precursor is None else min(self.precursor, self.onset)


def latest_tellings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the last telling of each condition, ordered by onset."""
    last: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        last[finding.key] = finding
    return tuple(sorted(last.values(), key=lambda f: (f.onset_row, f.row, f.signal)))


def group_findings(
    record: RunRecord, findings: Iterable[Finding], *, join_rows: int = JOIN_ROWS
) -> tuple[Incident, ...]:
    """Return the incidents that the findings make, in row order.

    Findings on the loss (and alarms on any signal) of one attempt and one topic that overlap, or
    stand closer than `join_rows`, are one incident; findings on other signals join as evidence and
    as precursors. A slow step is no part of a loss spike, nor the reason to call it one again.
    Of each condition the last telling counts; an incident is as severe as its worst finding, and an
    open condition has no end.
    """
    past = _Past(record)
    incidents: list[Incident] = []
    for index, group, here in _all_episodes(record, findings, join_rows):
        found = past.marked(_incident(record, index, group, here), index)
        past.add(found)
        incidents.append(_with_correlations(record, found))
    return tuple(incidents)


def newest_unhandled(
    record: RunRecord, findings: Iterable[Finding], handled: Set[tuple[str, str, int]]
) -> tuple[Incident, set[tuple[str, str, int]]] | None:
    """Return the latest alarm with a finding that is not handled, and the keys of its findings.

    It is the last such incident of `group_findings`. Only that one, and those near enough to be
    named as its recurrence, are worked out.

    Args:
        record: What the run recorded.
        findings: All that were made.
        handled: Keys of findings that were dealt with.
    """
    all_findings = tuple(findings)
    # The usual case in the loop, left before any work on episodes.
    if all(f.severity == "info" or f.key in handled for f in all_findings):
        return None
    episodes = _all_episodes(record, all_findings, JOIN_ROWS)
    # Newest first: the guard acts on what is going on, and an old alarm may be over.
    for place in reversed(range(len(episodes))):
        index, group, here = episodes[place]
        incident = _incident(record, index, group, here)
        keys = {f.key for f in incident.findings if f.severity != "info"}
        if incident.severity != "info" and keys - handled:
            past = _Past(record)
            for i, g, around in past.near(incident, index, episodes[:place]):
                past.add(_incident(record, i, g, around, places=False))
            return _with_correlations(record, past.marked(incident, index)), keys
    return None


def _all_episodes(
    record: RunRecord, findings: Iterable[Finding], join_rows: int
) -> list[tuple[int, Sequence[Finding], "_Around"]]:
    """Return what belongs together: index of the attempt, findings, all findings around them."""
    firsts = [a.first_row for a in record.attempts]
    told = latest_tellings(_at_home(findings, firsts, record.num_rows))
    told = latest_tellings(_where_it_rises(f, firsts, record, told) for f in told)
    by_attempt: dict[int, list[Finding]] = {}
    for f in told:
        index = bisect_right(firsts, f.onset_row) - 1
        for as_it_is in _SEEN_IN_THE_RECORD:
            f = as_it_is(f, record)
        by_attempt.setdefault(index, []).append(f)
    found: list[tuple[int, Sequence[Finding], _Around]] = []
    for index in sorted(by_attempt):
        here = _Around(by_attempt[index])
        main = [f for f in here.findings if _stands_alone(f)]
        groups = [
            group
            # Sorted, since the order of a set of strings changes from process to process.
            for topic in sorted({_topic(f) for f in main})
            for group in _with_slow([f for f in main if _topic(f) == topic], record, join_rows)
        ]
        groups += [[f] for f in here.findings if not _stands_alone(f) and _drifts_alone(f, groups)]
        found += [(index, group, here) for group in sorted(groups, key=lambda g: g[0].onset_row)]
    return found


class _Around:
    """The findings of one attempt by the row of their onset."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        """In the order of their onsets."""
        self.grain_rows = max(f.grain_rows for f in findings)
        self._rows = [f.onset_row for f in findings]
        # By identity: equal findings of two detectors must keep their places.
        self._place = {id(f): i for i, f in enumerate(findings)}

    def between(self, first_row: int, stop: int) -> Sequence[Finding]:
        """Return the findings whose onset lies in rows [first_row, stop)."""
        rows = self._rows
        return self.findings[bisect_left(rows, first_row) : bisect_left(rows, stop)]

    def before(self, row: int, group: Sequence[Finding]) -> Sequence[Finding]:
        """Return what may be a first sign: findings up to `row` within reach, and the group's."""
        far = row - _LONGEST_LEAD_ROWS
        # Its own findings are never too far: a drift may have begun thousands of rows before.
        own = [f for f in group if f.onset_row < far]
        own.sort(key=lambda f: self._place[id(f)])
        return [*own, *self.between(far, row + 1)]


def _topic(f: Finding) -> str:
    """Return what a finding is about.

    A note on a resume or on skipped steps is about nothing else.
    """
    if f.kind in _NOTED and f.severity == "info":
        return f.kind
    return KIND_BY_NAME[f.kind].topic if f.kind in KIND_BY_NAME else "learning"


def _stands_alone(f: Finding) -> bool:
    """Whether a finding makes an incident of its own; others are evidence only."""
    return f.signal == "loss" or f.severity != "info" or _topic(f) != "learning"


def _drifts_alone(f: Finding, groups: Sequence[Sequence[Finding]]) -> bool:
    """Whether a norm that creeps up, or a number that nobody knows, is a note of its own.

    Nothing else begins near it.
    """
    noted = f.kind == "grad-drift" or (f.detector == "lasting" and f.signal.startswith(OTHER))
    if not noted or f.severity != "info" or not f.closed or f.end_row is not None:
        return False
    return all(abs(g[0].onset_row - f.onset_row) > f.grain_rows for g in groups)


def _with_slow(
    findings: Sequence[Finding], record: RunRecord, join_rows: int
) -> list[list[Finding]]:
    """Return the episodes; a slow condition is one of its own, unless it began with another."""
    slow = [f for f in findings if f.kind in _SLOW_KINDS]
    # A plateau overlaps every spike within it, and would join them all into one episode.
    groups = _episodes([f for f in findings if f.kind not in _SLOW_KINDS], record, join_rows)
    learned = [f for f in slow if f.kind in _LEARNED_KINDS]
    slow = [f for f in slow if f.kind not in _LEARNED_KINDS]
    starts = [(g[0].onset_row, _began(g)) for g in groups] if slow else []
    if learned:
        groups.append(sorted(learned, key=lambda f: (f.onset_row, f.row)))
        starts.append((groups[-1][0].onset_row, groups[-1][0].onset_row))
    for f in sorted(slow, key=lambda f: (f.onset_row, f.row)):
        at = f.onset_row
        near = (
            i
            for i, (first, began) in enumerate(starts)
            # A run that never learns does not begin with a spike of its first rows.
            if f.kind != "never-learns" or any(g.kind == f.kind for g in groups[i])
            if abs(first - at) <= join_rows
            or abs(began - at) <= join_rows
            or _same_stall(f, groups[i])
        )
        home = next(near, None)
        if home is None:
            groups.append([f])
            starts.append((at, _began([f])))
        else:
            groups[home].append(f)
            starts[home] = (groups[home][0].onset_row, _began(groups[home]))
    return sorted(groups, key=lambda g: g[0].onset_row)


def _same_stall(f: Finding, group: Sequence[Finding]) -> bool:
    """Whether an episode already holds the standstill that lasts to the end of the log."""
    lasting = [g for g in (f, *group) if g.kind == "plateau" and g.end_row is None]
    return len(lasting) > 1 and lasting[0] is f


def _began(group: Sequence[Finding]) -> int:
    """Return the row of an episode's onset."""
    return min(f.onset_row for f in _onsets(group, _lead(group)))


def _at_home(
    findings: Iterable[Finding], first_rows: Sequence[int], num_rows: int
) -> list[Finding]:
    """Leave out findings of a later attempt on a condition that its parent has reported already.

    The judge goes on from the parent's state there, with the parent's open conditions.

    Args:
        findings: In the order in which they were made.
        first_rows: Of the attempts, in order.
        num_rows: Of the record.
    """
    kept, home = list[Finding](), set[tuple[str, str, int]]()
    for f in findings:
        # In a live run a finding may come before its row is in the record.
        said = bisect_right(first_rows, min(f.row, num_rows - 1))
        if said == bisect_right(first_rows, f.onset_row):
            home.add(f.key)
        elif f.key in home:
            continue
        kept.append(f)
    return kept


def _where_it_rises(
    f: Finding, first_rows: Sequence[int], record: RunRecord, told: Sequence[Finding]
) -> Finding:
    """Return a block-wise finding dated into the attempt in which the signal changes.

    A block may reach from the rows before a resume into those after it. What else was found of the
    signal right after the resume says so already, where hardly a row lies before it.
    """
    said = bisect_right(first_rows, min(f.row, record.num_rows - 1)) - 1
    home = bisect_right(first_rows, f.onset_row) - 1
    if f.grain_rows == 1 or said <= home or f.kind == "held-out-worse":
        return f
    begun = first_rows[said]
    stop = record.attempts[home].end_row
    rows = np.arange(f.onset_row, stop)
    rows = rows[record.step[rows] < record.step[begun]]
    if any(g.signal == f.signal and 0 <= g.onset_row - begun < f.grain_rows for g in told):
        few = len(rows) < f.grain_rows
        return replace(_dated(f, record, begun), severity="info") if few else f
    values = record.columns[f.signal].values[rows] if f.signal in record.columns else rows[:0]
    values = values[np.isfinite(values)]
    if len(rows) >= 2 * f.grain_rows or (
        len(values) and abs(np.median(values) - f.expected) > abs(np.median(values) - f.value)
    ):
        return f
    return _dated(f, record, begun)


def _dated(f: Finding, record: RunRecord, row: int) -> Finding:
    return replace(f, onset_row=row, onset=float(record.step[row]))


class _Past:
    """The incidents found so far, among which the alarm before a new one is looked up."""

    def __init__(self, record: RunRecord) -> None:
        self._record = record
        self._alarms: dict[str, list[tuple[float, int, Incident]]] = {}
        """By attempt, sorted by onset, with the number in the order they were found."""
        self._number = 0
        self._spacing: dict[int, float] = {}
        self._lineage: dict[int, set[str]] = {}

    def add(self, incident: Incident) -> None:
        self._number += 1
        if incident.severity != "info":
            known = self._alarms.setdefault(incident.attempt, [])
            insort(known, (incident.onset, self._number, incident))

    def marked(self, incident: Incident, attempt: int) -> Incident:
        """Name the alarm before it in the same attempt or an ancestor, where that was near."""
        if incident.severity == "info" or not self._alarms:
            return incident
        before = self._before(incident, attempt)
        if before is None:
            return incident
        incident = replace(incident, recurrence_of=before.onset)
        alike = self._before(incident, attempt, alike=True)
        if alike is None:
            return incident
        what, rest = incident.headline.split(" · ", 1)
        again = f"again after {self._record.axis} {place_text(alike.onset)}"
        return replace(incident, headline=f"{what}, {again} · {rest}")

    def near(
        self,
        incident: Incident,
        attempt: int,
        episodes: Iterable[tuple[int, Sequence[Finding], _Around]],
    ) -> Iterator[tuple[int, Sequence[Finding], _Around]]:
        """Yield the episodes on the lineage that may have begun within reach of an incident."""
        # A little more than the reach: `marked` decides with the exact bound, and round-off here
        # must not leave out what it would accept.
        reach = 1.001 * self._reach(attempt)
        lineage = self._lineage[attempt]
        for episode in episodes:
            index, group, _ = episode
            onsets = [f.onset for f in group]
            far = min(onsets) > incident.onset + reach or max(onsets) < incident.onset - reach
            if not far and self._record.attempts[index].number in lineage:
                yield episode

    def _reach(self, attempt: int) -> float:
        """Return how far from an incident one is its recurrence, on the axis of the record."""
        if attempt not in self._spacing:
            rows = self._record.rows_of(attempt)
            self._spacing[attempt] = median_spacing(self._record, rows.start, rows.stop) or 1.0
            self._lineage[attempt] = _lineage(self._record, attempt)
        return RECURRENCE_ROWS * self._spacing[attempt]

    def _before(self, incident: Incident, attempt: int, *, alike: bool = False) -> Incident | None:
        """Return the latest alarm of the same topic within reach that was over.

        Where `alike`, only one of the same kind that did not begin later.
        """
        reach = self._reach(attempt)
        near: list[tuple[int, Incident]] = []
        for number in self._lineage[attempt] & self._alarms.keys():
            known = self._alarms[number]
            first = bisect_left(known, incident.onset - 1.001 * reach, key=lambda a: a[0])
            for onset, order, other in known[first:]:
                if onset > incident.onset + 1.001 * reach:
                    break
                if abs(incident.onset - onset) <= reach:
                    near.append((order, other))
        topic = _topic(incident.findings[0])
        # By the number in which they were found: rows of a restarted attempt repeat its parent's
        # steps, so the onset alone does not say which came last.
        for _, other in sorted(near, key=lambda pair: -pair[0]):
            if alike and (other.onset > incident.onset or not _is_alike(other, incident)):
                continue
            if _topic(other.findings[0]) == topic and not _still_held(other, incident):
                return other
        return None


def _is_alike(before: Incident, incident: Incident) -> bool:
    """Whether the kind of an incident has come again; a spike is one however it ended."""
    kinds = (incident.kind, *(incident.also if incident.kind == "non-finite" else ()))
    kind = before.kind.removeprefix("unrecovered-")
    if (
        kind == "setting-jump"
        and leading_finding(before).signal != leading_finding(incident).signal
    ):
        return False
    return kind in {k.removeprefix("unrecovered-") for k in kinds}


def _still_held(before: Incident, incident: Incident) -> bool:
    """Whether an earlier incident of the same attempt was still under way.

    What lasts has not come again.
    """
    lasts = before.end_row is None or before.end_row >= incident.onset_row
    return lasts and before.attempt == incident.attempt


def _lineage(record: RunRecord, attempt: int) -> set[str]:
    """Return the numbers of an attempt and all it descends from."""
    parents = {a.number: a.parent for a in record.attempts}
    chain: set[str] = set()
    current: str | None = record.attempts[attempt].number
    while current is not None and current not in chain:
        chain.add(current)
        current = parents.get(current)
    return chain


def _last_row(f: Finding, record: RunRecord) -> int:
    """Return the last row from which a finding takes what begins there into its own episode."""
    if f.kind == "held-out-worse":
        return f.onset_row + f.grain_rows - 1
    if f.grain_rows > 1 and f.kind != "divergence":
        # a change of level lies where it happened; being sure of it, and its end, took longer
        told = f.row if f.end_row is None else f.end_row
        return min(told, f.onset_row + CHANGE_BLOCKS * f.grain_rows)
    if f.kind in _CONDITIONS:
        # A spike that comes while a scale is low or a norm is high is a spike of its own.
        return f.onset_row
    if f.end_row is not None:
        return max(f.end_row, f.onset_row)
    if not f.closed:
        return record.num_rows
    if f.kind == "divergence":
        return f.row + CONTINUATION_BLOCKS * f.grain_rows
    return f.row


def _is_more_of(condition: Finding, f: Finding) -> bool:
    """Whether a finding is a further sign, of the same detector, of a condition that lasts."""
    return (
        f.detector != condition.detector
        and f.detector.startswith(f"{condition.detector}-")
        and (f.kind, f.signal) == (condition.kind, condition.signal)
    )


def _episodes(
    findings: Sequence[Finding], record: RunRecord, join_rows: int
) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    lasting: list[tuple[Finding, list[Finding]]] = []
    reach = held = -1
    for f in sorted(findings, key=lambda f: (f.onset_row, f.row)):
        condition = f.kind in _CONDITIONS and f.signal != "loss"
        # A scale that fell and then lies at its floor is one fault, told by both its signs.
        if own := next((group for c, group in lasting if _is_more_of(c, f)), None):
            own.append(f)
            continue
        # The first trouble while a norm is high or a scale low is what that led to; what comes
        # later in the same condition is an incident of its own.
        # A change that is known to the row has no condition before it to thank for.
        apart = condition or f.kind == "setting-jump"
        if groups and f.onset_row <= max(reach, -1 if apart else held) + join_rows:
            groups[-1].append(f)
            held = held if condition else -1
        else:
            groups.append([f])
            # The reach of the group before must not join what comes after the next finding.
            reach = held = -1
        if condition and f.end_row is None:
            lasting.append((f, groups[-1]))
        reach = max(reach, _last_row(f, record))
        if condition and all(g.kind in _CONDITIONS for g in groups[-1]):
            held = max(held, _held_until(f, record))
    return groups


def _held_until(f: Finding, record: RunRecord) -> int:
    """Return the row up to which a condition holds; a level that was accepted is the usual one."""
    if f.end_row is not None:
        return f.end_row
    return f.row if f.closed else record.num_rows


def _incident(
    record: RunRecord,
    attempt: int,
    group: Sequence[Finding],
    around: _Around,
    *,
    places: bool = True,
) -> Incident:
    """Return an episode; `places`: say where each of its kinds lies, which is the dear part."""
    lead = _lead(group)
    dating = _onsets(group, lead)
    if lead.kind == "held-out-worse":
        # What has jumped since the last good reading, and is not back, says when they got worse.
        risen = around.between(lead.onset_row, lead.onset_row + lead.grain_rows)
        dating = [f for f in risen if _dates_readings(f)] or dating
    onset = min(dating, key=lambda f: f.onset_row)
    worst = max(group, key=lambda f: severity_rank(f.severity)).severity
    last = _end(group)
    # when such a change came is known to the row: what else was odd before did not lead to it
    known = lead.kind == "setting-jump"
    precursors = () if known else _precursors(onset.onset_row, group, around, record)
    if lead.kind == "held-out-worse":
        # A good reading came after what lasts for longer; only one right before it is too early.
        since = lead.onset_row - lead.grain_rows
        precursors = [f for f in precursors if f.onset_row >= since]
    first = min(precursors, key=lambda f: f.onset_row) if precursors else None
    taken = set(map(id, group))
    members = [*group, *(f for f in precursors if id(f) not in taken)]
    taken.update(map(id, members))
    kinds = [f.kind for f in sorted(members, key=lambda f: f.onset_row) if f.kind != lead.kind]
    if _has_plateau(record, attempt, lead):
        kinds.append("plateau")
    end_row = last.end_row if last else None
    stop = record.attempts[attempt].end_row if end_row is None else end_row + 1
    # A finding on blocks dates its onset to a block, so it may lie before the episode's.
    begun = around.between(onset.onset_row - around.grain_rows + 1, stop)
    members += [f for f in begun if _speaks_within(f, onset.onset_row, stop) and id(f) not in taken]
    taken.update(map(id, members))
    members += [f for f in _changes_before(onset.onset_row, around) if id(f) not in taken]
    end = last.end if last else None
    own = KindPlace(
        kind=lead.kind,
        signal=lead.signal,
        onset_row=onset.onset_row,
        onset=onset.onset,
        peak_row=lead.peak_row,
        peak=lead.peak,
        end_row=end_row,
        end=end,
    )
    return Incident(
        kind=lead.kind,
        also=tuple(dict.fromkeys(kinds)),
        attempt=record.attempts[attempt].number,
        severity=worst,
        precursor_row=first.onset_row if first else None,
        precursor=first.onset if first else None,
        precursor_signal=first.signal if first else None,
        onset_row=onset.onset_row,
        onset=onset.onset,
        peak_row=lead.peak_row,
        peak=lead.peak,
        end_row=end_row,
        end=last.end if last else None,
        signals=tuple(dict.fromkeys(f.signal for f in members)),
        kinds=kind_places(record, own, members, attempt) if places and worst != "info" else (),
        headline=_headline(record, lead, onset, first, end=last.end if last else None),
        confidence=calibrated(lead.detector, lead.score),
        shape=_shape(lead, onset.onset_row, end_row),
        findings=tuple(members),
    )


def _with_correlations(record: RunRecord, incident: Incident) -> Incident:
    """Return an incident with what moved together in it."""
    attempt = int(record.attempt[incident.onset_row])
    last = incident.end_row
    stop = record.attempts[attempt].end_row if last is None else last + 1
    span = slice(incident.onset_row, stop)
    return replace(incident, correlations=_correlations(record, span, attempt))


def _lead(group: Sequence[Finding]) -> Finding:
    """Return the finding that names an episode.

    Fixed batches that are read now and then name none in which the loss itself has spoken.
    """
    spoken = [f for f in group if f.kind != "held-out-worse"]
    if not any(f.signal == "loss" and f.severity != "info" for f in spoken):
        spoken = list(group)
    lead = min(spoken, key=_telling)
    if lead.kind in ("spike", "unrecovered-spike"):
        # It is the steep end of what blocks of rows had seen go up before.
        slow = [f for f in spoken if f.kind == "divergence" and _came_before(f, lead)]
        lead = min(slow, key=_telling, default=lead)
    return _of_the_resume(lead, group)


def _came_before(slow: Finding, f: Finding) -> bool:
    """Whether a finding on blocks of rows is as grave as another, and its first block was over."""
    return (
        slow.signal == f.signal
        and slow.severity == f.severity
        and slow.onset_row + slow.grain_rows <= f.onset_row
    )


def _of_the_resume(lead: Finding, group: Sequence[Finding]) -> Finding:
    """Return the lead; a spike that begins at a resume's jump is renamed to that jump."""
    if lead.kind not in ("spike", "unrecovered-spike"):
        return lead
    for f in group:
        if f.kind == "resume-jump" and abs(f.onset_row - lead.onset_row) <= 1:
            return replace(f, peak_row=lead.peak_row, peak=lead.peak, severity=lead.severity)
    return lead


def _telling(f: Finding) -> tuple[int, int, bool, int]:
    """Sort key: the most telling finding of an episode first; rows before blocks."""
    # Last, where a record of another version holds a kind that this one does not know.
    rank = KIND_BY_NAME[f.kind].rank if f.kind in KIND_BY_NAME else len(KIND_BY_NAME)
    return (-severity_rank(f.severity), rank, f.grain_rows > 1, f.onset_row)


def _onsets(group: Sequence[Finding], lead: Finding) -> Sequence[Finding]:
    """Return the findings that date the onset.

    What other signals said before trouble of the loss is its first sign, not its onset, and a
    block-wise finding dates an onset to a block, where a row-wise one knows better, unless it came
    only after that block was over: then it was late.
    """
    if lead.kind == "setting-jump":
        return (lead,)
    dating = [f for f in group if lead.signal != "loss" or f.signal == "loss"]
    if lead.kind == "held-out-worse":
        # One batch whose loss was high did not make the weights worse, nor did what began before
        # the last good reading, however long it has lasted since.
        dating = [
            f
            for f in dating
            if f.kind != "batch-outlier"
            and (f is lead or 0 <= f.onset_row - lead.onset_row < lead.grain_rows)
        ]
        sooner = [f for f in dating if f.grain_rows == 1]
        return sooner or (lead,)
    # What a jump of a setting did begins after it.
    dating = [f for f in dating if f.kind != "setting-jump" or lead.kind == f.kind]
    by_row = [f for f in dating if f.grain_rows == 1]
    first = min((f.onset_row for f in by_row), default=0)
    late = [f for f in dating if f.grain_rows > 1 and f.onset_row + f.grain_rows <= first]
    return by_row + [f for f in late if f.severity != "info"] or dating


def _dates_readings(f: Finding) -> bool:
    """Whether a finding tells when weights got worse that are read now and then."""
    jumped = f.kind in ("spike", "unrecovered-spike", "shift", "non-finite")
    lasts = f.end_row is None and not f.closed
    return jumped and lasts and f.grain_rows == 1 and _topic(f) == "learning"


def _speaks_within(f: Finding, first_row: int, stop: int) -> bool:
    """Whether a finding on another signal began within the episode: evidence, no further kind."""
    within = first_row - f.grain_rows < f.onset_row < stop
    known_before = f.detector == "batch"  # the batch was odd before the step
    return within and f.signal != "loss" and (known_before or f.kind != "batch-outlier")


def _changes_before(onset_row: int, around: _Around) -> list[Finding]:
    """Return the notes on settings that changed shortly before an onset: evidence, no kind of it.

    What the rate did is read off the rate itself; a setting that moves all the time says nothing.
    """
    near = around.between(onset_row - SETTING_LEAD_ROWS, onset_row + 1)
    noted = [
        f for f in near if f.kind == "setting-jump" and f.severity == "info" and f.signal != "lr"
    ]
    usual = Counter(f.signal for f in around.findings if f.kind == "setting-jump") if noted else {}
    return [f for f in noted if usual[f.signal] <= RARE_CHANGES]


def _end(group: Sequence[Finding]) -> Finding | None:
    """Return the finding that ends last; None where one lasts.

    A block-wise finding that still spoke of a change while a row-wise one saw it end is outdone.
    """
    rows = [f.end_row for f in group if f.grain_rows == 1 and f.end_row is not None]
    known = max(rows, default=-1_000_000)
    telling = [
        f
        for f in group
        if f.grain_rows == 1 or (f.row if f.end_row is None else f.end_row) > known + f.grain_rows
    ]
    if any(f.end_row is None for f in telling):
        return None
    return max(telling, key=lambda f: f.end_row or 0, default=None)


def _precursors(
    onset_row: int, group: Sequence[Finding], around: _Around, record: RunRecord
) -> list[Finding]:
    """Return findings on other signals that began before the onset and were still in force."""
    chosen: list[Finding] = []
    if _topic(group[0]) != "learning":
        return chosen
    for f in around.before(onset_row, group):
        lead = SIGNAL_BY_NAME[f.signal].lead_rows if f.signal in SIGNAL_BY_NAME else 0
        if f.signal == "loss" or f.kind == "batch-outlier":
            continue
        if _topic(f) != "learning" and not _is_lost_reward(f):
            continue
        if f.onset_row > onset_row - f.grain_rows:  # not before it, or not surely
            continue
        # A drift that lasts through the onset leads up to it, even from far back.
        slow = (*_SLOW_KINDS, "policy-collapse", "signal-abnormal")
        if f.kind in slow and f.severity != "info" and f.end_row is None:
            lead = max(lead, SLOW_LEAD_ROWS)
        near = f.onset_row >= onset_row - lead and _in_force(f, onset_row, record)
        near = near and is_beyond_chance(f, around.findings, onset_row, record)
        if near or any(f is g for g in group):
            chosen.append(f)
    return chosen


def _is_lost_reward(f: Finding) -> bool:
    """Whether an agent lost what it had learned: what its critic is fitted to changes with it."""
    return f.kind == "policy-collapse" and f.signal == "reward" and f.severity != "info"


def _in_force(f: Finding, at_row: int, record: RunRecord) -> bool:
    """Whether a condition still held at a row.

    For an accepted level, whether it still stands there.
    """
    if f.end_row is not None:
        return f.end_row >= at_row - JOIN_ROWS
    if not f.closed:
        return True
    known = SIGNAL_BY_NAME.get(f.signal)
    # A level of 200 rows and more has been the usual one for longer than such a sign leads. (What
    # is judged by blocks is closed as soon as its size is known.)
    if f.kind in _ACCEPTED_LATE and f.grain_rows == 1 and f.row < at_row:
        return False  # accepted after all those rows, before the trouble began
    late = f.row < at_row - max(known.lead_rows if known else 0, JOIN_ROWS)
    if f.grain_rows == 1 and late and not _is_lost_reward(f):
        return False
    recent = _finite(record, f.signal, slice(max(f.onset_row, at_row - 2 * JOIN_ROWS), at_row))
    between = (f.expected + f.value) / 2
    # Half-way on the scale on which the signal was judged: between 0.2 and 20 that is 2, not 10.
    if min(f.expected, f.value) > 0 and known is not None and known.scale == "log":
        between = float(np.sqrt(f.expected * f.value))
    if not len(recent):
        return True
    level = float(np.median(recent))
    return level < between if f.direction == "down" else level > between


def _has_plateau(record: RunRecord, attempt: int, lead: Finding) -> bool:
    """Whether the loss came down from the peak of an unrecovered spike to a flat, higher level.

    The last half of the rows after the peak must be flat (32 rows at least). In an excerpt of few
    rows each row after the peak counts, with the validation losses printed from the last row
    before the onset on; that branch was made for one published excerpt and is known to fit
    nothing else.
    """
    if lead.kind != "unrecovered-spike" or lead.signal != "loss":
        return False
    stop = record.attempts[attempt].end_row
    levels = _finite(record, "loss", slice(lead.peak_row + 1, stop))
    if lead.detector in ("excerpt", "excerpt-near"):
        validation = _finite(record, "val_loss", slice(lead.onset_row - 1, stop))
        levels = np.concatenate([levels, validation]) if len(levels) else levels
    else:
        levels = levels[len(levels) // 2 :] if len(levels) >= 32 else levels[:0]
    if not is_flat(levels):
        return False
    level = float(np.median(levels))
    return lead.expected * (1 + ELEVATED_SHARE) < level < lead.value * (1 - ELEVATED_SHARE)


def _finite(record: RunRecord, name: str, rows: slice) -> NDArray[np.float64]:
    values = record.columns[name].values[rows] if name in record.columns else np.zeros(0)
    return values[np.isfinite(values)]


def _shape(lead: Finding, onset_row: int, end_row: int | None) -> str:
    if lead.kind == "unrecovered-spike":
        return "unrecovered"
    if lead.kind != "spike":
        return ""
    if end_row is None:
        return "unrecovered"
    # BLOOM's spikes took about 30 steps (`evidence.SHORT_ROWS`); 50 leaves room for longer ones.
    return "fast" if end_row - onset_row <= 50 else "slow"


def topic_of(incident: Incident) -> str:
    """Return the topic of an incident; a slow condition is a topic of its own."""
    if incident.findings:
        topic = _topic(leading_finding(incident))
    else:
        topic = KIND_BY_NAME[incident.kind].topic if incident.kind in KIND_BY_NAME else "learning"
    return incident.kind if incident.kind in _SLOW_KINDS else topic


def leading_finding(incident: Incident) -> Finding:
    """Return the finding that names an incident."""
    named = [f for f in incident.findings if f.kind == incident.kind]
    return min(named or incident.findings, key=_telling)


def _headline(
    record: RunRecord, lead: Finding, onset: Finding, first: Finding | None, *, end: float | None
) -> str:
    title = KIND_BY_NAME[lead.kind].title if lead.kind in KIND_BY_NAME else lead.kind
    own = lead.signal not in ("loss", "nonfinite")  # the count of broken values is none itself
    if own and lead.kind in ("spike", "shift", "non-finite"):
        title = f"{lead.kind} of {lead.signal}"
    if lead.detector == "zero-loss":
        title = "loss became exactly 0"
    since = f"since {record.axis} {place_text(onset.onset)}"
    if onset.kind == "held-out-worse" and onset.grain_rows > 1:
        latest = record.step[min(onset.onset_row + onset.grain_rows, record.num_rows) - 1]
        since += f" at the earliest, {place_text(float(latest))} at the latest"
    if lead.kind == "non-finite" and lead.onset_row > onset.onset_row:
        began = f"trouble began at {place_text(onset.onset)}"
        word = "NaN" if np.isnan(lead.value) else "Inf"
        since = f"{word} at {record.axis} {place_text(lead.onset)}; {began}"
        since += f", over at {place_text(end)}" if end is not None else ""
    elif end is not None:
        until = f" to {place_text(end)}" if end != onset.onset else ""
        # Not "recovered" or "resolved": nobody dealt with it, see `analysis.resolution`.
        over = ", over" if _topic(lead) == "learning" else ""
        since = f"{record.axis} {place_text(onset.onset)}{until}{over}"
    if first is not None and first.detector == "lr-change" and lead.signal != "loss":
        jumped = f"jump of the learning rate · {record.axis} {place_text(first.onset)}"
        return f"{jumped} · {first.text} · then {title}, {since} · {lead.text}"
    sign = f" (first sign {place_text(first.onset)}, {first.signal})" if first else ""
    return f"{title} · {since}{sign} · {lead.text}"


def _correlations(
    record: RunRecord, span: slice, attempt: int
) -> tuple[tuple[str, str, float], ...]:
    """Return what moved together in an episode and as many rows before it, for the contrast."""
    rows = record.rows_of(attempt)
    # Within the episode alone both signals are high throughout, and their ranks are mere noise.
    width = max(span.stop - span.start, 12)
    first, stop = max(rows.start, span.start - width), min(rows.stop, span.stop)
    every = max((stop - first) // _CORRELATED_ROWS, 1)  # a rank correlation needs no more
    window = slice(first, stop, every)
    return rank_correlations(record, _TOGETHER, window)
