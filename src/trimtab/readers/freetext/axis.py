"""What counts the rows of a text: a step on the line or near it, an epoch, or the row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.key_values import PROGRESS_BAR, Field
from trimtab.readers.freetext.keys import STEP_KEYS
from trimtab.readers.freetext.rows import TextRows, gather
from trimtab.readers.freetext.shapes import Shape
from trimtab.record import Axis, Column

__all__ = ["RowAxis", "epoch_lines", "find_axis"]

_MIN_SHARE = 0.9
_MAX_FALLS = 0.02
_MIN_DISTINCT = 0.5
_FULL = 0.95
_MIN_FALLS = 2
_MAX_HEADING_FALLS = 0.1
"""Share of the headings at which a count begins again: runs of ten epochs and more."""
_FEW = 8
_MOST_ANEW = 0.6
"""Share of the new beginnings, whose loss lies nearer that of the same count before than the last."""
_MOST_RESTARTED = 0.4
"""Share of the rows that may begin anew, of a count that else rises by ones. Ours."""


@dataclass(frozen=True)
class RowAxis:
    """The axis of the rows, and how it was found."""

    axis: Axis
    place: NDArray[np.float64]
    key: str
    how: str
    doubt: int
    """0: a step by name on the line; more: less sure."""


def find_axis(rows: TextRows, others: Sequence[Shape]) -> RowAxis:
    """Return the best axis; where there are several runs, the same for each by itself."""
    if rows.run is None:
        return _axis_of(rows, others)
    found = [_axis_of(rows.keep(rows.run == run), others) for run in np.unique(rows.run).tolist()]
    first = found[0]
    if any((a.axis, a.key) != (first.axis, first.key) for a in found):
        by_place = [np.arange(len(a.place), dtype=np.float64) for a in found]
        return RowAxis("row", np.concatenate(by_place), "", "by their place in each run", 4)
    return replace(first, place=np.concatenate([a.place for a in found]))


def _axis_of(rows: TextRows, others: Sequence[Shape]) -> RowAxis:
    """Return the best axis of one run.

    In this order: a step named on the line, or a number of a total that stays (`500/9000`); one on a
    line in front of or behind it (records of several lines); a number without a name that counts; an
    epoch, refined by the place inside it;
    the row.

    Args:
        rows: The training rows.
        others: Shapes of other lines.
    """
    epoch = _best_epoch(rows)
    # Before names: `Batch 4/203700` has a name that would otherwise win with the wrong number.
    found = _epoch_slash_batch(rows)
    if found is not None:
        return found
    for field, column in _by_name(rows):
        # `Episode 7 - truncated at step 1000`: a limit that most rows reach counts none of them.
        if _ties(column) and _another_counts(rows):
            continue
        # `Epoch 2/5` on a line of its own, over batches that begin again in each
        above = _carried_epoch(rows, others) if epoch is None and _falls(column) else epoch
        found = _step_or_inner(field, column, above, rows, doubt=0)
        if found is not None:
            return found
    for field, column in rows.of_kind("maybe-step"):
        if epoch is not None and np.all(np.diff(epoch[1].values) > 0):
            break
        found = _step_or_inner(field, column, epoch, rows, doubt=0)
        if found is not None:
            return found
    found = _of_total(rows)
    if found is not None:
        return found
    carried = _carried(rows, others)
    if carried is not None:
        return carried
    if epoch is None:
        epoch = _carried_epoch(rows, others)
    found = None if epoch is not None else _bar_inside(rows)
    if found is not None:
        return found
    for field, column in sorted(rows.of_kind("counter", "lead"), key=lambda item: _ties(item[1])):
        if field.kind == "lead" and epoch is not None and np.all(np.diff(column.values) > 0):
            continue  # more likely the seconds since the start
        if epoch is not None and _ties(column) and not _ties(epoch[1]):
            continue  # the end of a bar, in each epoch
        around = epoch or _leading_epoch(rows, field.key) or _turns(field, column, rows)
        found = _step_or_inner(field, column, around, rows, doubt=2)
        if found is not None:
            return found
    restarts = epoch is not None and _restarts(epoch[1].values, _losses(rows))
    return _by_epoch(epoch, rows.num, restarts=restarts) or RowAxis(
        "row", np.arange(rows.num, dtype=np.float64), "", "by their place in the text", 4
    )


def _by_name(rows: TextRows) -> list[tuple[Field, Column]]:
    """Columns named like a step, the surest first, those that stay constant last."""

    def order(item: tuple[Field, Column]) -> tuple[bool, int, int]:
        f, c = item
        rank = STEP_KEYS.index(f.name) if f.name in STEP_KEYS else len(STEP_KEYS)
        return _ties(c), f.doubt, rank

    return sorted(rows.of_kind("step"), key=order)


def _ties(column: Column) -> bool:
    """Whether a count mostly stays constant."""
    still = np.count_nonzero(np.diff(column.values) == 0)
    return bool(still > _MIN_DISTINCT * len(column.values))


def _another_counts(rows: TextRows) -> bool:
    """Whether a count without the name of a step is another one, and larger, in nearly each row."""
    num = _MIN_SHARE * (rows.num - 1)
    return any(
        c.present.all() and np.count_nonzero(np.diff(c.values) > 0) >= num
        for _, c in rows.of_kind("maybe-step", "epoch")
    )


def _falls(column: Column) -> bool:
    return bool((np.diff(column.values) < 0).any())


def _epoch_slash_batch(rows: TextRows) -> RowAxis | None:
    """Read `Batch 4/203700` as epoch 4, batch 203700, where what looks like the total counts."""
    for field, total in rows.of_kind("total"):
        owner = next(
            (f for f, _ in rows.of_kind("step", "counter", "epoch") if f"of {f.key}" == field.key),
            None,
        )
        if owner is None or not _is_count(total, rows.num) or _ties(total):
            continue
        column = rows.columns[owner.kind, owner.key]
        if not _is_count(column, rows.num) or not _ties(column):
            continue
        found = _step_or_inner(field, total, (owner.key, column), rows, doubt=1)
        if found is not None and found.axis == "epoch":
            return found
    return None


def _of_total(rows: TextRows) -> RowAxis | None:
    """Read `5000/58874` on the line as the step where it rises and the total stays."""
    for field, column in rows.of_kind("counter"):
        total = rows.columns.get(("total", f"of {field.key}"))
        if total is None or not total.present.all() or not _is_count(column, rows.num):
            continue
        rises = np.count_nonzero(np.diff(column.values) > 0) >= _MIN_SHARE * (rows.num - 1)
        if rises and not _falls(column) and np.ptp(total.values) == 0:
            return RowAxis("step", column.values, field.key, f"by numbers {field.key!r}", 2)
    return None


def _is_count(column: Column, num: int) -> bool:
    values = column.values[column.present]
    if len(values) < _MIN_SHARE * num or not np.all(np.isfinite(values)) or np.any(values < 0):
        return False
    whole = np.count_nonzero(values == np.floor(values)) >= _MIN_SHARE * len(values)
    return bool(whole and (len(values) == 1 or np.ptp(values) > 0))


def _step_or_inner(
    field: Field, column: Column, epoch: tuple[str, Column] | None, rows: TextRows, *, doubt: int
) -> RowAxis | None:
    if not _is_count(column, rows.num):
        return None
    values = column.values
    change = np.diff(values)
    falls = change < 0
    num_falls = int(np.count_nonzero(falls))
    if epoch is not None and num_falls:
        turns = np.diff(epoch[1].values) > 0
        # An epoch that is another one in each row counts them itself, and what has no total, such
        # as the length of an episode, is no place in it.
        alone = ("total", f"of {field.key}") not in rows.columns
        if alone and rows.num > _FEW and np.count_nonzero(turns) >= _MIN_SHARE * len(turns):
            return None
        # 0.6 as `table_axis` has it: restarts and torn epochs break some turns.
        if np.count_nonzero(falls & turns) >= 0.6 * num_falls:
            return _inside_epoch(field, column, epoch, rows)
    if field.kind in ("lead", "counter") and rows.num == 1:
        return None  # of one row nothing says which of its numbers counts
    if field.kind in ("lead", "maybe-step"):
        rising = np.count_nonzero(change > 0) >= _MIN_SHARE * len(change)
        ok = rising and num_falls <= 2
    else:
        # A number without a name must hardly ever fall; a step by name may, at each restart.
        limit = max(3.0, _MAX_FALLS * rows.num) if doubt else max(3.0, 0.25 * rows.num)
        ok = num_falls <= limit
    if not ok:
        return None
    lead = "numbers" if field.kind in ("lead", "counter") else "the step"
    return RowAxis("step", values, field.key, f"by {lead} {field.key!r}", doubt + field.doubt)


def _inside_epoch(
    field: Field, column: Column, epoch: tuple[str, Column], rows: TextRows
) -> RowAxis:
    """Return epoch + share of it done: a step that begins again in each epoch is no axis."""
    total = rows.columns.get(("total", f"of {field.key}"))
    size = np.nanmax(column.values)
    if total is not None and total.present.all():
        totals = np.maximum(total.values, 1.0)
    else:
        totals = np.full(rows.num, max(size, 1.0))
    # Below 1, so that the last batch of an epoch stays in front of the first of the next.
    share = np.clip(column.values / (totals + 1.0), 0.0, 1.0 - 1e-6)
    place = _untied(epoch[1].values + share)
    how = f"by {epoch[0]!r} and the share of it done, since {field.key!r} begins again in each"
    return RowAxis("epoch", place, epoch[0], how, 1)


def _untied(place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Part rows at one place, in their order: a progress bar drawn again at the same count."""
    starts = np.flatnonzero(np.concatenate([[True], np.diff(place) != 0]))
    sizes = np.diff(np.append(starts, len(place)))
    # Far below any batch's share, and enough for rows to rise.
    return place + 1e-9 * (np.arange(len(place)) - np.repeat(starts, sizes))


def _best_epoch(rows: TextRows) -> tuple[str, Column] | None:
    for f, c in rows.of_kind("epoch"):
        if c.present.all() and np.all(np.isfinite(c.values)):
            falls = np.count_nonzero(np.diff(c.values) < 0)
            if falls <= max(3, _MAX_FALLS * rows.num) or _restarts(c.values, _losses(rows)):
                return f.key, c
    return None


def _losses(rows: TextRows) -> NDArray[np.float64] | None:
    """Return the losses of the rows; None where not all have one."""
    found = (c.values for f, c in rows.of_kind("signal") if f.name == "loss" and c.present.all())
    return next(found, None)


def _restarts(values: NDArray[np.float64], losses: NDArray[np.float64] | None) -> bool:
    """Whether a count goes up by ones and, more than a few times, begins again where it had been.

    Each time is a restart from a checkpoint, or a new run: the loss begins again with it. In rounds
    that have epochs of their own it goes on from where it was.
    """
    moves = np.diff(values)
    again = int(np.count_nonzero(moves <= 0))
    at = np.flatnonzero(moves < 0) + 1
    up = bool((moves[moves > 0] == 1).all())
    if losses is None or not up or len(at) <= _MIN_FALLS or again >= 2 * len(at):
        return False
    if again > _MOST_RESTARTED * len(values):
        return False
    anew = []
    for k in at.tolist():
        before = np.flatnonzero(values[:k] == values[k])
        if len(before):
            was, left = losses[before[-1]], losses[k - 1]
            anew.append(abs(losses[k] - was) < abs(losses[k] - left))
    return len(anew) > _MIN_FALLS and sum(anew) >= _MOST_ANEW * len(anew)


def _leading_epoch(rows: TextRows, but: str) -> tuple[str, Column] | None:
    """Return a number without a name that never falls, as `Train: 3 [ 50/1000]` has it."""
    for f, c in rows.of_kind("lead", "counter"):
        if f.key == but or not c.present.all() or not np.all(np.isfinite(c.values)):
            continue
        falls = np.count_nonzero(np.diff(c.values) < 0)
        steady = falls == 0 or (falls <= _MIN_FALLS and _ties(c))
        if steady and 0 < np.ptp(c.values) < rows.num:
            return f.key, c
    return None


def _bar_inside(rows: TextRows) -> RowAxis | None:
    """Read `001/200:  25%|...| 1/4`: a bar that begins again whenever the number in front rises.

    It is drawn several times at each count, so that neither of the two tells the rows apart.
    """
    bar = rows.columns.get(("counter", PROGRESS_BAR))
    if bar is None or not _is_count(bar, rows.num) or not _ties(bar):
        return None
    falls = np.diff(bar.values) < 0
    for f, c in rows.of_kind("lead", "counter"):
        if f.key == PROGRESS_BAR or not c.present.all() or not _is_count(c, rows.num):
            continue
        turns = np.diff(c.values) != 0
        both = np.count_nonzero(falls & turns)
        if both and both >= _MIN_SHARE * max(np.count_nonzero(falls), np.count_nonzero(turns)):
            epoch = f.key, c
            return _inside_epoch(rows.fields["counter", PROGRESS_BAR], bar, epoch, rows)
    return None


def _turns(field: Field, column: Column, rows: TextRows) -> tuple[str, Column] | None:
    """Count how often a bar began again after it was full: the epochs of a log that names none."""
    total = rows.columns.get(("total", f"of {field.key}"))
    if field.kind != "counter" or total is None or not total.present.all():
        return None
    falls = np.flatnonzero(np.diff(column.values) < 0)
    full = column.values[falls] >= _FULL * total.values[falls]
    if len(falls) < _MIN_FALLS or not full.all():
        return None
    turn = np.zeros(rows.num)
    turn[falls + 1] = 1.0
    return "full bar", Column(np.cumsum(turn), np.ones(rows.num, dtype=np.bool_))


def _by_epoch(
    epoch: tuple[str, Column] | None, num: int, *, restarts: bool = False
) -> RowAxis | None:
    if epoch is None or num < 2:
        return None
    key, column = epoch
    values = column.values
    if np.all(np.diff(values) != 0) or restarts:
        return RowAxis("epoch", values, key, f"by {key!r}", 1)
    if np.any(values != np.floor(values)) or np.ptp(values) == 0:
        return None
    starts = np.concatenate([[0], np.flatnonzero(np.diff(values) != 0) + 1, [num]])
    sizes = np.diff(starts)
    inside = np.arange(num) - np.repeat(starts[:-1], sizes)
    share = inside / np.repeat(sizes, sizes)
    how = f"by {key!r}, its rows spread evenly over it"
    return RowAxis("epoch", values + share, key, how, 3)


def _carried(rows: TextRows, others: Sequence[Shape]) -> RowAxis | None:
    """Take the step from lines of their own, one before or after each loss."""
    found: list[tuple[tuple[int, float], RowAxis]] = []
    counts = {
        (f.kind, f.key)
        for s in others
        for f in s.fields
        if f.kind == "step" or f.key == PROGRESS_BAR
    }
    for kind, name in sorted(counts):
        mine = [s for s in others if any((f.kind, f.key) == (kind, name) for f in s.fields)]
        side = gather(mine)
        column = side.columns.get((kind, name))
        if column is None or side.num < _MIN_DISTINCT * rows.num or not _is_count(column, side.num):
            continue
        field = side.fields[kind, name]
        for place, distance in _nearby(
            rows.lines, side.lines, column.values, are_headings=_are_headings(mine)
        ):
            change = np.diff(place)
            # A step that stands still over many losses belongs to something else on that line.
            if np.count_nonzero(change > 0) < 0.75 * len(change):
                continue
            how = f"by the step {name!r} on a line nearby"
            rank = STEP_KEYS.index(field.name) if field.name in STEP_KEYS else 99
            found.append(((rank, distance), RowAxis("step", place, name, how, 1)))
    if not found:
        return None
    return min(found, key=lambda item: item[0])[1]


def _carried_epoch(rows: TextRows, others: Sequence[Shape]) -> tuple[str, Column] | None:
    mine = epoch_lines(others)
    side = gather(mine)
    for f, column in side.of_kind("epoch"):
        values = column.values[column.present]
        if len(values) < 2 or not np.all(np.isfinite(values)):
            continue
        if np.count_nonzero(np.diff(values) < 0) > max(3, _MAX_HEADING_FALLS * len(values)):
            continue
        for place, _ in _nearby(
            rows.lines, side.lines[column.present], values, are_headings=_are_headings(mine)
        ):
            everywhere = np.ones(rows.num, dtype=np.bool_)
            if np.ptp(place) > 0:
                return f.key, Column(place, everywhere)
    return None


def epoch_lines(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the lines that name an epoch: headings alone, where there are any.

    `Epoch 00018: early stopping` between them says what happened, and in its own count.
    """
    mine = [s for s in shapes if any(f.kind == "epoch" for f in s.fields)]
    headings = [s for s in mine if _are_headings([s])]
    return headings or mine


def _are_headings(shapes: Sequence[Shape]) -> bool:
    """Whether lines hold a count and nothing behind it, as `Epoch 3/10` over what belongs to it."""
    return not any(s.ends_in_words or any(f.kind == "signal" for f in s.fields) for s in shapes)


def _nearby(
    lines: NDArray[np.int64],
    at: NDArray[np.int64],
    values: NDArray[np.float64],
    *,
    are_headings: bool,
) -> list[tuple[NDArray[np.float64], float]]:
    """Return the values on the line before and on the line after, with their usual distances."""
    before = np.searchsorted(at, lines, side="right") - 1
    after = np.searchsorted(at, lines, side="left")
    result = []
    # A log that begins with what its first line counted, from 0 or 1 on, has its counts behind.
    cut = are_headings and len(at) > 1 and values[0] > max(1.0, values[1] - values[0])
    if len(at) > 1 and before[0] < 0 <= before[-1] and (cut or after[-1] == len(at)):
        # An excerpt that begins behind its first header: what that counted is one step less.
        first = 2 * values[0] - values[1]
        place = np.where(before < 0, first, values[before])
        known = before >= 0
        result.append((place, float(np.median((lines - at[before])[known]))))
    elif len(at) and before[0] >= 0:
        result.append((values[before], float(np.median(lines - at[before]))))
    if len(at) and after[-1] < len(at):
        result.append((values[after], float(np.median(at[after] - lines))))
    # The nearer side first: records print their step always before the loss, or always behind.
    return sorted(result, key=lambda item: item[1])
