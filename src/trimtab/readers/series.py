"""One series per tag, each with its own steps -> RunRecord, as TensorBoard and MLflow store them.

The training loss decides where attempts end: where its step falls back, or where the store says
that a new one starts. The other series follow it; between the last loss of one attempt and the
first of the next they are split where their own step falls.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.clock_columns import written_at
from trimtab.readers.given_columns import missing_among
from trimtab.readers.layer_norms import layer_of_tag, layers_of
from trimtab.readers.numbers import counted, shown
from trimtab.readers.other_columns import MAX_CANDIDATES, MAX_OTHERS, is_measured, may_be_measured
from trimtab.readers.part_losses import BROKEN_PARTS, Watched, watch_parts
from trimtab.readers.renamed import renamed
from trimtab.readers.skip_counter import skipped_as_share
from trimtab.readers.spread import gather, spread_groups
from trimtab.readers.stated_settings import STAGE, STATED_SETTING, may_state_setting, stated_setting
from trimtab.readers.tags import choose_tags, might_be_loss, set_of_tag, signal_of_tag, terms_of
from trimtab.record import HELD_OUT, Axis, Column, RecordBuilder, RunRecord
from trimtab.text import OTHER
from trimtab.vocabulary import TIMES, unit_scale

__all__ = ["WHEN", "Start", "TagSeries", "WantedTags", "record_of_series", "with_clock"]

WHEN = "wall_time_s"
"""The series that says when the losses were written; no tag of the store."""
_MAX_REPEATED_STEPS = 0.2


@dataclass(frozen=True)
class TagSeries:
    """One tag: when each value was written, at which step, and what it is; float64 [n] each."""

    order: NDArray[np.float64]
    """Rises; comparable between the tags of a run."""
    step: NDArray[np.float64]
    value: NDArray[np.float64]


@dataclass(frozen=True)
class Start:
    """A place where the store says that a new attempt starts."""

    order: float
    why: str


class WantedTags:
    """Which tags of a run are kept: those that are known, and the first that may be measured."""

    def __init__(self) -> None:
        self._others: set[str] = set()

    def __call__(self, tag: str) -> bool:
        """Whether a tag names a signal, might be a loss, a setting, or one of the unknown ones."""
        if _is_known(tag) or tag in self._others:
            return True
        if len(self._others) >= MAX_CANDIDATES or not may_be_measured(tag):
            return False
        self._others.add(tag)
        return True


def _is_known(tag: str) -> bool:
    known = signal_of_tag(tag) is not None or might_be_loss(tag) or set_of_tag(tag) is not None
    return known or may_state_setting(tag) or layer_of_tag(tag) is not None


def with_clock(series: Mapping[str, TagSeries]) -> dict[str, TagSeries]:
    """Return series with when the losses were written, where their order is the time of it."""
    chosen, _ = choose_tags({t: s.value for t, s in series.items()})
    lead = series.get(chosen.get("loss", ""))
    at = None if lead is None else written_at(lead.order, is_local=False)
    if lead is None or at is None:
        return dict(series)
    return {**series, WHEN: TagSeries(lead.order, lead.step, at)}


def record_of_series(
    source: str,
    format_name: str,
    series: Mapping[str, TagSeries],
    *,
    starts: Sequence[Start] = (),
    notes: Sequence[str] = (),
    tags_seen: Sequence[str] = (),
    unread: Mapping[str, int] | None = None,
) -> RunRecord:
    """Return the record of a run.

    Args:
        source: Path as given.
        format_name: Name of the reader.
        series: By tag; each in the order of writing.
        starts: Where new attempts are known to start.
        notes: What the reader has to say so far.
        tags_seen: All tags of the store, for the message when none is known.
        unread: Number of values of tags that were not wanted.

    Raises:
        ReadError: No tag is known.
    """
    series, gathered = _gathered(series)
    chosen, tag_notes = choose_tags({tag: s.value for tag, s in series.items() if len(s.step)})
    if not chosen:
        if lacks := missing_among(sorted({*tags_seen, *series})):
            raise ReadError(f"{source}: {lacks}; correct --columns")
        names = ", ".join(shown(t) for t in sorted({*tags_seen, *series})[:8]) or "no scalars"
        raise ReadError(
            f"{source}: no known signal; looked for a loss, reward, grad norm and others, found "
            f"{names}; log one under such a name"
        )
    taken = set(chosen.values())
    others = {
        t: s.value
        for t, s in series.items()
        if (t not in taken and signal_of_tag(t) is None) or t == chosen.get(STAGE)
    }
    if (setting := stated_setting(others)) is not None:
        chosen[STATED_SETTING] = setting
    chosen |= layers_of(t for t, s in series.items() if len(s.step))
    signals = {name: _scaled(name, tag, series[tag]) for name, tag in chosen.items()}
    renamed_tags = _join_renamed(signals, chosen, series, tag_notes)
    lead = signals.get("loss") or max(signals.values(), key=lambda s: len(s.step))
    watched: tuple[str, ...] = ()
    if "loss" in signals and BROKEN_PARTS not in signals:
        found = _parts(series, chosen, lead, tag_notes)
        watched = found.keys
        if found.broken is not None:
            column, chosen[BROKEN_PARTS] = found.broken
            signals[BROKEN_PARTS] = TagSeries(lead.order, lead.step, column.values)
    for name, tag in _others(series, {*chosen.values(), *watched, *renamed_tags}).items():
        chosen[name], signals[name] = tag, series[tag]
    axis: Axis = "step" if _counts(lead.step) else "row"
    builder = RecordBuilder(source, format_name, axis=axis)
    builder.keys.update({name: tag for name, tag in chosen.items() if name != WHEN})
    builder.notes.extend([*notes, *gathered, *tag_notes])
    builder.unread.update(unread or {})
    taken = {*chosen.values(), *watched, *renamed_tags}
    left = {t: len(s.step) for t, s in series.items() if t not in taken}
    builder.unread.update(left)
    if axis == "row":
        builder.notes.append("the steps stand still; rows are counted by their place, from 0")
        _fill_by_place(builder, signals, lead)
    else:
        _fill(builder, signals, lead, starts)
    return skipped_as_share(builder.build())


def _join_renamed(
    signals: dict[str, TagSeries],
    chosen: Mapping[str, str],
    series: Mapping[str, TagSeries],
    notes: list[str],
) -> tuple[str, ...]:
    """Give signals what stands of them under other tags, before or behind; return these tags."""
    taken: list[str] = []
    for name, tag in chosen.items():
        if name in HELD_OUT:
            continue
        others = {
            t: _scaled(name, t, s)
            for t, s in series.items()
            if t not in chosen.values() and len(s.step) and signal_of_tag(t) == name
        }
        if not others:
            continue
        mine = signals[name]
        found = renamed(
            name, tag, mine.order, mine.value, {t: (s.order, s.value) for t, s in others.items()}
        )
        if found.note:
            notes.append(found.note)
        if not found.joined:
            continue
        taken.extend(found.joined)
        left_out = f"{name} is read from {tag!r}; left out:"
        notes[:] = [n for n in notes if not n.startswith(left_out)]
        parts = [mine, *(others[t] for t in found.joined)]
        order, step, value = (
            np.concatenate([getattr(part, what) for part in parts])
            for what in ("order", "step", "value")
        )
        written = np.argsort(order, kind="stable")
        signals[name] = TagSeries(order[written], step[written], value[written])
    return tuple(taken)


def _parts(
    series: Mapping[str, TagSeries], chosen: Mapping[str, str], lead: TagSeries, notes: list[str]
) -> Watched:
    """Return what of other losses is told, of those that are logged at the steps of the loss."""
    every = np.ones(len(lead.step), dtype=np.bool_)
    terms = terms_of(chosen)
    parts = {
        tag: Column(s.value, every)
        for tag, s in series.items()
        if (tag in terms or tag not in chosen.values())
        and signal_of_tag(tag) is None
        and might_be_loss(tag)
        and np.array_equal(s.step, lead.step)
    }
    return watch_parts(chosen["loss"], Column(lead.value, every), parts, notes, judged=terms)


def _others(series: Mapping[str, TagSeries], taken: Collection[str]) -> dict[str, str]:
    """Return name -> tag of those that nobody knows and that are measured."""
    kept = (
        tag
        for tag, s in series.items()
        if tag not in taken
        and not _is_known(tag)
        and may_be_measured(tag)
        and is_measured(Column(s.value, np.ones(len(s.value), dtype=np.bool_)), tag)
    )
    return {OTHER + tag: tag for tag in islice(kept, MAX_OTHERS)}


def _gathered(series: Mapping[str, TagSeries]) -> tuple[Mapping[str, TagSeries], list[str]]:
    """Return the series with one for each signal that is logged by layer or expert, and notes."""
    groups: dict[str, list[str]] = {}
    for name, tags in spread_groups(series).items():
        # Rows are put together by place, so only series with the same steps can be.
        lead = max(tags, key=lambda t: len(series[t].step))
        same = [t for t in tags if np.array_equal(series[t].step, series[lead].step)]
        if len(same) > 1:
            groups[name] = same
    if not groups:
        return series, []
    taken = {tag for tags in groups.values() for tag in tags}
    # By group: series of different groups may differ in length.
    merged = {tag: s for tag, s in series.items() if tag not in taken}
    notes: list[str] = []
    for name, tags in groups.items():
        found, told = gather({name: tags}, {t: series[t].value for t in tags})
        notes += told
        merged.update(
            {n: TagSeries(series[tags[0]].order, series[tags[0]].step, v) for n, v in found.items()}
        )
    return merged, notes


def _scaled(name: str, tag: str, series: TagSeries) -> TagSeries:
    factor = unit_scale(tag) if name in TIMES else 1.0
    finite = np.isfinite(series.step)
    if factor == 1.0 and finite.all():
        return series
    return TagSeries(series.order[finite], series.step[finite], series.value[finite] * factor)


def _counts(step: NDArray[np.float64]) -> bool:
    """Whether steps count their values: hardly ever twice the same in a row."""
    repeated = int(np.count_nonzero(np.diff(step) == 0))
    return repeated <= max(1.0, _MAX_REPEATED_STEPS * len(step)) or repeated < len(step) // 2


def _fill_by_place(
    builder: RecordBuilder, signals: Mapping[str, TagSeries], lead: TagSeries
) -> None:
    num_rows = len(lead.step)
    columns = {
        name: Column(s.value, np.ones(num_rows, dtype=np.bool_))
        for name, s in signals.items()
        # A series of another length has no place beside the loss once steps are given up.
        if len(s.step) == num_rows
    }
    builder.extend(np.arange(num_rows, dtype=np.float64), columns)


def _fill(
    builder: RecordBuilder,
    signals: Mapping[str, TagSeries],
    lead: TagSeries,
    starts: Sequence[Start],
) -> None:
    cuts = _cuts(lead, starts)
    bounds = {name: _bounds(s, lead, [c for c, _ in cuts]) for name, s in signals.items()}
    repeats = 0
    for index in range(len(cuts) + 1):
        if index:
            builder.start_attempt(why=cuts[index - 1][1])
        parts = {name: slice(bounds[name][index], bounds[name][index + 1]) for name in signals}
        repeats += _extend(builder, signals, parts)
    if repeats:
        builder.notes.append(f"{counted(repeats, 'value')} repeated at the same step left out")


def _cuts(lead: TagSeries, starts: Sequence[Start]) -> list[tuple[int, str]]:
    """Return (index of the first value of the lead, why) of each attempt but the first."""
    falls = np.flatnonzero(np.diff(lead.step) < 0) + 1
    cuts = {int(i): f"the step falls back to {lead.step[i]:g}" for i in falls}
    for start in starts:
        index = int(np.searchsorted(lead.order, start.order))
        if 0 < index < len(lead.order):
            cuts[index] = start.why
    return sorted(cuts.items())


def _bounds(series: TagSeries, lead: TagSeries, cuts: Sequence[int]) -> list[int]:
    """Return where each attempt begins in a series, and its end.

    A value written between two attempts' losses belongs to the later one from where the series'
    own step falls, or where it lies beyond the last loss before it would not fit.
    """
    bounds = [0]
    for cut in cuts:
        low = int(np.searchsorted(series.order, lead.order[cut - 1], side="right"))
        high = int(np.searchsorted(series.order, lead.order[cut], side="left"))
        first = max(low - 1, 0)
        falls = np.flatnonzero(np.diff(series.step[first : high + 1]) < 0)
        # Values may be written late: one of the old attempt may follow the new start.
        at = first + 1 + int(falls[0]) if len(falls) else high
        bounds.append(max(min(at, high), bounds[-1]))
    return [*bounds, len(series.step)]


def _extend(
    builder: RecordBuilder, signals: Mapping[str, TagSeries], parts: Mapping[str, slice]
) -> int:
    """Add one attempt; return how many values repeat a step."""
    firsts: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
    repeats = 0
    for name, part in parts.items():
        step, value = signals[name].step[part], signals[name].value[part]
        if len(step) and not np.all(np.diff(step) > 0):
            # The first of equal steps stands, as in the other readers.
            unique, index = np.unique(step, return_index=True)
            repeats += len(step) - len(unique)
            step, value = unique, value[index]
        firsts[name] = step, value
    steps = _union([step for step, _ in firsts.values()])
    if not len(steps):
        return repeats
    columns: dict[str, Column] = {}
    for name, (step, value) in firsts.items():
        values = np.full(len(steps), np.nan)
        present = np.zeros(len(steps), dtype=np.bool_)
        places = np.searchsorted(steps, step)
        values[places], present[places] = value, True
        columns[name] = Column(values, present)
    builder.extend(steps, columns)
    return repeats


def _union(steps: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    # Series logged together share their steps: comparing arrays costs less than sorting them again.
    longest = max(steps, key=len)
    others = [s for s in steps if len(s) and not np.array_equal(s, longest)]
    return np.unique(np.concatenate([longest, *others])) if others else longest
