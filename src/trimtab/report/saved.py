"""What a guard saved and what it cost: the first screen of a run on which it acted."""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.resolution import resolved
from trimtab.analysis.timeline import answers
from trimtab.chronicle.journal import Event
from trimtab.record import RunRecord, axis_word
from trimtab.report.wording import capital, final_loss
from trimtab.text import action_words, number, reworded, verdict_text, words

__all__ = ["cost_sentence", "saved_of", "saved_sentence"]

_AGAIN = re.compile(r", again after \S+ [\d.]+")
_CLEAR_RISE = 0.1
"""A loss that rose by a smaller share of itself is not told as a rise. Ours."""


def saved_sentence(account: RunAccount) -> str:
    """Return what was dealt with and how the run stands; empty where no guard acted."""
    done = answers(account)
    if not done:
        return _told_by_the_journal(account)
    past = resolved(account)
    dealt = [i for i in done if i in past]
    open_ = len(done) - len(dealt)
    parts = []
    if dealt:
        worst = min(dealt)  # incidents stand with the most severe first
        parts.append(saved_of(account, account.incidents[worst], done[worst]))
        if len(dealt) > 1:
            parts.append(f"{len(dealt) - 1} more dealt with.")
    if open_:
        what = "incident" if open_ == 1 else "incidents"
        worst = min(i for i in done if i not in past)
        deeds = [action_words(e.step, e.data) for e in done[worst] if e.event == "action"]
        tried = [words(e.data.get("remedy")).removeprefix("trial: ") for e in done[worst]]
        told = f": {deeds[-1]}" if deeds else f": trials that did not hold: {', '.join(tried)}"
        parts.append(f"{number(open_)} {what} acted on without a proven cure{told}.")
    return " ".join(parts)


def saved_of(account: RunAccount, ia: IncidentAccount, events: tuple[Event, ...]) -> str:
    """Return what came of the actions about one incident, in one sentence.

    What would have been without them is not known without a run beside it, and is not claimed:
    the sentence has how far the loss went, what was done, and where it stands now.
    """
    return _saved(
        account.record, ia.incident.headline, ia.incident.onset, _worst(account.record, ia), events
    )


def _told_by_the_journal(account: RunAccount) -> str:
    """Return the same of what the guard saw and the rows do not show, such as a setting."""
    opened: Event | None = None
    answered: list[Event] = []
    for event in account.events:
        if event.event == "incident" and event.data.get("state") == "open":
            opened, answered = event, []
        elif event.event in ("action", "outcome") and opened is not None:
            answered.append(event)
    if opened is None or not any(e.event == "action" for e in answered):
        return ""
    return _saved(account.record, opened.data.get("headline"), opened.step, "", answered)


def _saved(
    record: RunRecord, headline: object, onset: float, worst: str, events: Sequence[Event]
) -> str:
    axis = axis_word(record)
    what = _AGAIN.sub("", reworded(headline).split(" · ")[0])
    since = f"{capital(what)} at {axis} {number(onset)}{worst}."
    worked = [e for e in events if e.event == "outcome" and e.data.get("verdict") == "worked"]
    action = next((e for e in reversed(events) if e.event == "action"), None)
    deed = (
        "Its branch was given up"
        if action is None
        else capital(action_words(action.step, action.data))
    )
    said = verdict_text(worked[-1].data)[1] if worked else ""
    proof = f"; since then {said}" if said else ""
    last = final_loss(record)
    now = "" if last is None else f" The loss is {number(last[1])} at {axis} {number(last[0])}."
    return f"{since} {deed}{proof}.{now}"


def _worst(record: RunRecord, ia: IncidentAccount) -> str:
    """Return how bad the loss became in the attempt of an incident."""
    loss = record.columns.get("loss")
    try:
        rows = record.rows_of(record.attempt_index(ia.incident.attempt))
    except KeyError:
        return ""
    if loss is None:
        return ""
    start = min(max(ia.incident.onset_row, rows.start), rows.stop)
    stop = rows.stop if ia.incident.end_row is None else min(ia.incident.end_row + 1, rows.stop)
    values = loss.values[start:stop][loss.present[start:stop]]
    if not len(values):
        return ""
    if not np.isfinite(values).all():
        return ", and the loss was not finite"
    before = loss.finite_rows(slice(rows.start, start))[-1:]
    level, top = loss.values[before], float(values.max())
    if len(level) and top - float(level[0]) <= _CLEAR_RISE * abs(float(level[0])):
        return ""
    return f", and the loss reached {number(top)}"


def cost_sentence(account: RunAccount) -> str:
    """Return the steps that were run and given up, in trials and else; empty without any."""
    record = account.record
    live = np.zeros(record.num_rows, dtype=np.bool_)
    live[record.lineage_rows()] = True
    steps, trials, seconds, executed = 0.0, 0.0, 0.0, 0.0
    for index, attempt in enumerate(record.attempts):
        rows = record.rows_of(index)
        spacing = _spacing(record, rows)
        lost = int((~live[rows]).sum()) * spacing
        executed += (rows.stop - rows.start) * spacing
        steps += lost
        trials += lost if attempt.trial else 0.0
        seconds += sum(_seconds(record, rows, live)) * spacing
    if not steps or not executed:
        return ""
    axis = axis_word(record)
    within = f", {number(round(trials))} of them in trials" if trials else ""
    took = f"; {_span(seconds)} of training" if seconds > 0 else ""
    return (
        f"{number(round(steps))} {axis}s given up, {steps / executed:.1%} of the"
        f" {number(round(executed))} that were run{within}{took}."
    )


def _spacing(record: RunRecord, rows: slice) -> float:
    gaps = np.diff(record.step[rows])
    return float(np.median(gaps)) if len(gaps) else 1.0


def _seconds(record: RunRecord, rows: slice, live: NDArray[np.bool_]) -> Iterator[float]:
    times = record.columns.get("step_time_s")
    if times is not None:
        lost = times.present[rows] & ~live[rows] & np.isfinite(times.values[rows])
        yield float(times.values[rows][lost].sum())


def _span(seconds: float) -> str:
    """Return a time in the two units that tell most of it."""
    if not math.isfinite(seconds):
        return "an unknown time"
    for unit, size, below in (("d", 86_400, "h"), ("h", 3_600, "min"), ("min", 60, "s")):
        if seconds >= size:
            small = {"h": 3_600, "min": 60, "s": 1}[below]
            whole = int(seconds // size)
            return f"{whole} {unit} {int((seconds - whole * size) // small)} {below}"
    return f"{seconds:.3g} s"
