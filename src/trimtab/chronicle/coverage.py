"""Which steps of a guarded run were judged, and which were not: every claim of health rests on it.

A guard journals a `fault` where one of its parts fails, and `rearmed`, with the steps that were not
judged meanwhile, where the part works again. What was killed in between, or ended so, shows a
fault that nothing follows.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.chronicle.journal import Event
from trimtab.text import plain

__all__ = ["PROTECTING", "Coverage", "Fault", "Gap", "coverage_of", "joined", "rearmed_words"]

Gap = tuple[int, int, str]
"""First step, last step, why they were not judged."""

Fault = tuple[str, int, int, str]
"""Part that did not work for a time, first step, step at which it worked again, why."""

PROTECTING = ("recovery", "journal", "snapshot", "checkpoint")
"""Parts without which steps are judged and the run is less protected all the same."""
_JUDGING = ("record", "rows", "judge")
"""Parts without which a step is not judged, or what it was judged on is lost."""
_MOST_KEPT = 100
"""Faults that are kept, the newest."""
_MOST_SAID = 3
"""Ranges that a sentence names; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What of a run was judged."""

    steps: int
    """Steps of its final lineage."""
    gaps: tuple[Gap, ...] = ()
    """Ranges of steps that were not judged, in order."""
    degraded: str = ""
    """What is degraded, since when and why; empty where nothing is."""
    faults: tuple[Fault, ...] = ()
    """Parts of the protection that did not work for a time, and do again."""

    @property
    def judged_steps(self) -> int:
        """Steps that were judged."""
        return max(self.steps - sum(last - first + 1 for first, last, _ in self.gaps), 0)

    @property
    def whole(self) -> bool:
        """Whether all steps were judged, and the next one will be."""
        return not (self.gaps or self.degraded)

    @property
    def reasons(self) -> frozenset[str]:
        """Why steps were not judged, and what is or was degraded, without where."""
        faults = {f"{part} ({why})" for part, _, _, why in self.faults}
        now = {re.sub(r" since step \d+", "", self.degraded)} if self.degraded else set[str]()
        return frozenset({why for _, _, why in self.gaps} | faults | now)

    def text(self) -> str:
        """Return it as a clause; empty where all steps were judged and nothing is degraded."""
        parts: list[str] = []
        if self.gaps:
            said = ", ".join(
                f"{first}-{last} ({plain(why)})" if last > first else f"{first} ({plain(why)})"
                for first, last, why in self.gaps[:_MOST_SAID]
            )
            more = len(self.gaps) - _MOST_SAID
            said += f" and {more} more" if more > 0 else ""
            parts.append(f"judged {self.judged_steps} of {self.steps} steps; not judged: {said}")
        if self.faults:
            said = ", ".join(
                f"{part} {first}-{last} ({plain(why)})"
                for part, first, last, why in self.faults[:_MOST_SAID]
            )
            more = len(self.faults) - _MOST_SAID
            said += f" and {more} more" if more > 0 else ""
            parts.append(f"degraded for a time: {said}")
        if self.degraded:
            parts.append(f"degraded: {plain(self.degraded)}")
        return "; ".join(parts)

    def brief(self) -> str:
        """Return it in a few words, for who has read `text()`; empty where that is.

        Example:
            >>> told = Coverage(steps=9, gaps=((2, 4, "disk full"),), degraded="rows since step 2")
            >>> told.text(), told.brief()
            ('judged 6 of 9 steps; not judged: 2-4 (disk full); degraded: rows since step 2',
             'judged 6 of 9 steps; degraded')
        """
        parts: list[str] = []
        if self.gaps:
            parts.append(f"judged {self.judged_steps} of {self.steps} steps")
        if self.faults:
            times = len(self.faults)
            parts.append(f"degraded for a time{f', {times} times' * (times > 1)}")
        return "; ".join([*parts, *(["degraded"] if self.degraded else [])])

    def to_json(self) -> dict[str, object]:
        """Return what `verdict.json` and `inspect --json` hold as `judged`."""
        return {
            "steps": self.judged_steps,
            "of": self.steps,
            "not_judged": [
                {"from": first, "to": last, "why": why} for first, last, why in self.gaps
            ],
        }

    def faults_to_json(self) -> list[dict[str, object]]:
        """Return what `verdict.json` holds as `faults`."""
        return [
            {"part": part, "from": first, "to": last, "why": why}
            for part, first, last, why in self.faults
        ]


def rearmed_words(data: Mapping[str, object]) -> str:
    """Return what a `rearmed` event says, in one line."""
    missed = data.get("steps_not_judged")
    lost = f"; {missed} steps were not judged" if isinstance(missed, int) and missed else ""
    since = f"degraded since step {data.get('since_step')} ({data.get('why')})"
    return plain(f"{data.get('where')} works again, {since}{lost}")


def joined(gaps: Iterable[Gap]) -> tuple[Gap, ...]:
    """Return ranges in order, those of one reason that touch or overlap as one."""
    found: list[Gap] = []
    for first, last, why in sorted(gaps):
        if found and found[-1][2] == why and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]), why)
        elif found and first <= found[-1][1]:  # named already, for another reason
            if last > found[-1][1]:
                found.append((found[-1][1] + 1, last, why))
        else:
            found.append((first, last, why))
    return tuple(found)


def coverage_of(events: Sequence[Event], last_step: int) -> Coverage:
    """Return what of a guarded run was judged, by its journal.

    Args:
        events: Its journal.
        last_step: Last step of its final lineage that is recorded.
    """
    gaps: list[Gap] = []
    open_faults: dict[str, tuple[int, str]] = {}
    others: dict[str, tuple[int, str]] = {}
    faults: list[Fault] = []
    latest = 0
    for event in events:
        d, where = event.data, str(event.data.get("where"))
        if event.event == "fault" and where in _JUDGING:
            why = str(d.get("why") or d.get("error") or "a fault of trimtab's own")
            open_faults.setdefault(where, (event.step, why))
        elif event.event == "fault" and where in PROTECTING:
            others.setdefault(where, (event.step, str(d.get("why") or d.get("error") or "")))
        elif event.event == "rearmed":
            open_faults.pop(where, None)
            if where in others:
                faults.append((where, others[where][0], event.step, others.pop(where)[1]))
            gaps += _ranges(d.get("not_judged"))
        elif event.event == "resume":
            gaps += _never_over(open_faults, latest)
            open_faults = {}
            faults += [(part, since, latest, why) for part, (since, why) in others.items()]
            others = {}
        elif event.event == "attempt" and isinstance(d.get("parent_step"), int):
            # what was done after that step is done again
            parent_step = int(d["parent_step"])
            gaps = [(a, min(b, parent_step), why) for a, b, why in gaps if a <= parent_step]
        elif event.event == "end" and isinstance(d.get("judged"), Mapping):
            gaps = _ranges(d["judged"].get("not_judged"))
        latest = max(latest, event.step)
    gaps += _never_over(open_faults, last_step)
    degraded = "; ".join(
        f"{part} since step {step} ({why})" for part, (step, why) in (open_faults | others).items()
    )
    return Coverage(
        steps=last_step, gaps=joined(gaps), degraded=degraded, faults=tuple(faults[-_MOST_KEPT:])
    )


def _never_over(open_faults: Mapping[str, tuple[int, str]], last_step: int) -> list[Gap]:
    """Return what was not judged under faults that nothing ended; lost rows have no record."""
    return [
        (step, last_step, why)
        for part, (step, why) in open_faults.items()
        if part != "rows" and step <= last_step
    ]


def _ranges(told: object) -> list[Gap]:
    """Return ranges as journalled; what no guard writes is left out."""
    found: list[Gap] = []
    for entry in told if isinstance(told, list) else ():
        if isinstance(entry, Mapping):
            first, last = entry.get("from"), entry.get("to")
            if isinstance(first, int) and isinstance(last, int):
                found.append((first, last, str(entry.get("why", ""))))
    return found
