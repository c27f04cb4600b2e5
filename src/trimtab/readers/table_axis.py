"""What counts the rows of a table: a step, an epoch with its fraction, an epoch, or the row."""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.keys import without_number_word
from trimtab.readers.given_columns import given_meaning
from trimtab.readers.numbers import counted
from trimtab.readers.writers import other_writers
from trimtab.record import HELD_OUT, Axis, Column
from trimtab.vocabulary import may_count, normalise

__all__ = [
    "EPOCH_KEYS",
    "counting",
    "find_table_axis",
    "is_inner_step",
    "is_step",
    "may_count_rows",
    "names_epoch",
    "oldest_first",
]

_STEP_KEYS = (
    "step",
    "global step",
    "train/global step",
    "trainer/global step",
    "global step/max steps",
    "iteration",
    "iter",
    "train/step",
    "train/iteration",
    "num updates",
    "update",
    "updates",
    "optimizer step",
    "current steps",
    "train step",
    "training step",
    "steps",
    "iterations",
    "it",
    "num steps",
    "training iteration",
    "itr",
    "train iteration",
    "train iter",
    "current step",
    "total timesteps",
    "time/total timesteps",
    "num timesteps",
    "total num timesteps",
    "timesteps",
    "timesteps total",
    "num env steps",
    "env steps",
    "total env steps",
    "environment steps",
    "frames",
    "step end",
    "end step",
    "step start",
    "start step",
)
"""Names of the step, the best first, as `normalise` gives them; W&B's `_step` comes after all."""
_SQUEEZED = frozenset(key.replace(" ", "") for key in _STEP_KEYS if " " in key)
_INNER_KEYS = frozenset({"batch", "batch idx", "batch index", "batch id", "minibatch", "batch num"})
EPOCH_KEYS = ("epoch", "train/epoch", "epochs", "ep", "ep.")
_STEP_LEAVES = frozenset(
    ["step", "global step", "iteration", "iter", "training iteration", "kimg", "update", "updates"]
)
_TIMES = re.compile(r"tim(?:e|ing)|speed|perf|sec\b|per ")
"""Words of a path under which `step` is how long one takes."""
_MAX_REPEATED_STEPS, _MAX_REPEATED_EPOCHS = 0.2, 0.02
"""Share of rows whose step, or epoch, is that of the row before: of a run that was begun anew."""
_MIN_STEP_SHARE = 0.9
# Not all: an excerpt, a restart or an epoch of another length breaks some of them.
_MIN_TURNS = 0.6
_MIN_FALLS, _MIN_FALLING = 8, 0.95
"""Falls of the step, and their share of its moves, from which on a table has its newest row first."""
_MIN_REGULAR = 0.5
"""Share of the moves of one writer's step that are the usual one; lengths of episodes have none."""
_MOST_RESTARTS, _MAX_FALLING, _MAX_FALLS_OF_STEP = 3, 0.02, 0.25
"""Falls of a step, and their share of the rows, up to which they are restarts; share up to which it
still is the step where nothing else counts. As in text."""

Columns = Mapping[str, Column]


def is_step(key: str) -> bool:
    """Whether a key names a step, as it stands or at the end of a path (`data/step`)."""
    given = given_meaning(key)
    if given is not None:
        return given == "step"
    name = without_number_word(normalise(key))
    path, _, leaf = name.rpartition("/")
    return (
        name in _STEP_KEYS
        or name in _SQUEEZED
        or bool(path and leaf in _STEP_LEAVES and not _TIMES.search(path))
    )


def is_inner_step(key: str) -> bool:
    """Whether a key may count the batches of an epoch, and is no step of its own."""
    path, _, leaf = normalise(key).rpartition("/")
    # A step of several numbers (`jsonl`): its second one counts the batches.
    return leaf in _INNER_KEYS and (not path or path.rpartition("/")[2] in _STEP_LEAVES)


def may_count_rows(key: str) -> bool:
    """Whether a column may count the rows, if its values rise; `gen` is a generation in a table.

    In text it may as well be the generator of two nets.
    """
    return may_count(key) or normalise(key) == "gen"


def names_epoch(key: str) -> bool:
    """Whether a key names an epoch, as it stands or at the end of a path."""
    given = given_meaning(key)
    if given is not None:
        return given == "epoch"
    name = without_number_word(normalise(key))
    path, _, leaf = name.rpartition("/")
    return name in EPOCH_KEYS or bool(leaf == "epoch" and not _TIMES.search(path))


def find_table_axis(
    columns: Columns, signals: Columns, keep: NDArray[np.bool_], notes: list[str]
) -> tuple[Axis, NDArray[np.float64], str]:
    """Return what the rows are counted by, the place of each on it (NaN: none), and the key.

    Args:
        columns: All columns by their keys.
        signals: The columns that are signals, by canonical name.
        keep: Rows that count.
        notes: What was decided is added here.
    """
    num_rows = len(keep)
    main = signals.get("loss") or next(iter(signals.values()))
    rows = np.flatnonzero(main.present & keep)
    falling: list[str] = []
    for key in sorted((k for k in columns if is_step(k) or is_inner_step(k)), key=_step_rank):
        inner = _inside_epoch(columns, key, rows, notes)
        if inner is not None:
            return "epoch", _placed(inner, signals, key, notes), key
        # A step that stays the same over many rows counts something larger, such as evaluations.
        if not is_step(key) or not _counts(columns[key], rows):
            continue
        # The steps of an episode go up and down; another column may count these rows.
        if _falls_often(columns[key], rows):
            falling.append(key)
            continue
        return "step", _placed(columns[key], signals, key, notes), key
    for key in columns:
        if names_epoch(key) and _counts(columns[key], rows, share=_MAX_REPEATED_EPOCHS):
            notes.append(f"no step is logged; rows are counted by {key!r}")
            return "epoch", _placed(columns[key], signals, key, notes), key
    for key in columns:
        if may_count_rows(key) and not is_step(key) and _rises(columns[key], rows):
            notes.append(f"no step is logged; rows are counted by {key!r}")
            return "step", _placed(columns[key], signals, key, notes), key
    for key in falling:
        if given_meaning(key) == "step" or _goes_on(columns[key], rows):
            return "step", _placed(columns[key], signals, key, notes), key
    if falling:
        notes.append(f"{falling[0]!r} goes up and down from row to row: it counts no rows")
    notes.append("no step is logged; rows are counted by their place in the file, from 0")
    return "row", np.arange(num_rows, dtype=np.float64), ""


def counting(columns: Columns) -> list[Column]:
    """Return the columns that count steps or batches, the one with most different values first."""
    found = [c for k, c in columns.items() if is_step(k) or is_inner_step(k)]
    if len(found) < 2:
        return found
    return sorted(found, key=lambda c: -len(np.unique(c.logged())))


def oldest_first(columns: Columns, notes: list[str]) -> dict[str, Column]:
    """Return the columns of a table in the order of its steps where it has its newest row first."""
    steps = next(iter(counting(columns)), None)
    moves = np.diff(steps.logged()) if steps is not None else np.zeros(0)
    falls, moved = np.count_nonzero(moves < 0), np.count_nonzero(moves)
    if falls < _MIN_FALLS or falls < _MIN_FALLING * moved:
        return dict(columns)
    notes.append("the newest row stands first; the rows are read from the last to the first")
    return {k: Column(c.values[::-1], c.present[::-1]) for k, c in columns.items()}


def _inside_epoch(
    columns: Columns, key: str, rows: NDArray[np.intp], notes: list[str]
) -> Column | None:
    """Return epoch + share of it done where a step begins again in each epoch, else None."""
    epoch = next((columns[k] for k in columns if names_epoch(k)), None)
    step = columns[key]
    if epoch is None or not len(rows):
        return None
    placed = step.present[rows] & epoch.present[rows]
    # A last summary has no place in an epoch, and takes none from the others.
    if np.count_nonzero(placed) < _MIN_STEP_SHARE * len(rows):
        return None
    rows = rows[placed]
    falls = np.diff(step.values[rows]) < 0
    turns = np.diff(epoch.values[rows]) > 0
    begun = int(np.count_nonzero(falls & turns))
    if not begun or begun < _MIN_TURNS * max(np.count_nonzero(falls), np.count_nonzero(turns)):
        return None
    notes.append(f"{key!r} begins again in each epoch; rows are counted by the epoch")
    # Plus one: the last batch of an epoch must stay below the first of the next.
    size = float(np.max(step.values[rows])) + 1.0
    place = np.full(len(step.values), np.nan)
    place[rows] = epoch.values[rows] + np.clip(step.values[rows], 0.0, None) / size
    return Column(place, np.isfinite(place))


def _placed(step: Column, signals: Columns, key: str, notes: list[str]) -> NDArray[np.float64]:
    """Give validation rows without a step the step of the row before; others stay without."""
    place = step.values.copy()
    place[~step.present] = np.nan
    some = np.zeros(len(place), dtype=np.bool_)
    for column in signals.values():
        some |= column.present
    lacks = ~step.present & some
    for row in np.flatnonzero(lacks).tolist():
        here = {n for n, c in signals.items() if c.present[row]}
        # Evaluations follow the step that they belong to; a training row has no such place.
        if row and here <= HELD_OUT:
            place[row] = place[row - 1]
    lost = int((lacks & np.isnan(place)).sum())
    if lost:
        notes.append(f"{counted(lost, 'row')} without {key!r} left out")
    return place


def _step_rank(key: str) -> tuple[bool, int]:
    if given_meaning(key) == "step":
        return False, -1
    name = normalise(key)
    rank = _STEP_KEYS.index(name) if name in _STEP_KEYS else len(_STEP_KEYS)
    # W&B's `_step` counts calls of its log function, not steps of the trainer.
    return key.rpartition("/")[2].startswith("_"), rank


def _rises(column: Column, rows: NDArray[np.intp]) -> bool:
    """Whether a column that nothing but its name makes a count rises by whole numbers."""
    here = column.values[rows[column.present[rows]]]
    if not _counts(column, rows) or not np.array_equal(here, np.floor(here)):
        return False
    return int(np.count_nonzero(np.diff(here) > 0)) >= _MIN_STEP_SHARE * (len(here) - 1)


def _falls_often(column: Column, rows: NDArray[np.intp]) -> bool:
    """Whether a column falls more often than restarts make a step fall."""
    here = column.values[rows[column.present[rows]]]
    falls = int(np.count_nonzero(np.diff(here) < 0))
    return falls > max(_MOST_RESTARTS, _MAX_FALLING * len(here))


def _goes_on(column: Column, rows: NDArray[np.intp]) -> bool:
    """Whether a column that falls often is a step all the same.

    It falls at restarts, or several writers take turns, each of which goes on by the same number.
    """
    here = column.values[rows[column.present[rows]]]
    if np.count_nonzero(np.diff(here) < 0) <= _MAX_FALLS_OF_STEP * len(here):
        return True
    others = other_writers(here)
    gaps = np.diff(here[~others])
    usual = np.count_nonzero(gaps == np.median(gaps)) if len(gaps) else 0
    return bool(others.any() and usual >= _MIN_REGULAR * len(gaps))


def _counts(column: Column, rows: NDArray[np.intp], *, share: float = _MAX_REPEATED_STEPS) -> bool:
    """Whether a column counts these rows: nearly always there, hardly ever the same twice."""
    here = rows[column.present[rows] & np.isfinite(column.values[rows])]
    if len(here) == 0 or len(here) < _MIN_STEP_SHARE * len(rows):
        return False
    repeated = np.count_nonzero(np.diff(column.values[here]) == 0)
    return bool(repeated <= (max(1.0, share * len(here)) if share else 0.0))
