"""Rows of named values, with any logger's names and units -> RunRecord.

JSONL and CSV share this. The keys are decided over the whole file, not line by line: which key
counts the steps, which of several keys with one meaning has most values, and, in columnar files,
whether `nan` means "not recorded" (`nan_policy`).
"""

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.limits import MAX_CELL_CHARS, MAX_CELLS, MAX_COLUMNS
from trimtab.readers.by_values import may_be_timed, named_by_values, note_by_values
from trimtab.readers.clock_columns import (
    is_clock_key,
    since_start,
    time_of,
    times_of,
    written_at,
)
from trimtab.readers.csv_block import BlockColumn
from trimtab.readers.freetext.keys import (
    ETA,
    MEAN_NOTE,
    are_rates,
    counts_episodes,
    is_held_out,
    is_of_critic,
    is_part,
    meaning,
    names_mean,
    score_place,
)
from trimtab.readers.given_columns import given_meaning, missing_among
from trimtab.readers.held_out_sets import (
    accuracy_is_held_out,
    losses_by_set,
    set_alone,
    since_then,
)
from trimtab.readers.layer_norms import layer_of_tag, layers_of
from trimtab.readers.loss_scaling import scale_slope
from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.numbers import (
    MISSING,
    BadNumberError,
    counted,
    parse_number,
    parse_step,
    shown,
)
from trimtab.readers.other_columns import MAX_CANDIDATES, TIME_BESIDE, may_be_measured, others_of
from trimtab.readers.part_losses import (
    BROKEN_PARTS,
    GAN_PAIR,
    name_entropy,
    name_latent,
    named_parts,
    net_of,
    watch_parts,
)
from trimtab.readers.placeholders import drop_zero_norm, placeholder_rows, repeated_rows
from trimtab.readers.rank_times import over_ranks, slowest_note
from trimtab.readers.rank_values import COMPARED, RANK_FACT, RankColumns, part_ranks, ranks_of_keys
from trimtab.readers.renamed import renamed
from trimtab.readers.runs_in_file import RUN_WORDS, RUNS_NOTE, runs_by_name
from trimtab.readers.skip_counter import skipped_as_share
from trimtab.readers.spread import gather, spread_groups
from trimtab.readers.stated_settings import STAGE, STATED_SETTING, may_state_setting, settings_in
from trimtab.readers.table_axis import (
    counting,
    find_table_axis,
    is_inner_step,
    is_step,
    may_count_rows,
    names_epoch,
    oldest_first,
)
from trimtab.readers.tags import (
    distilled_beside,
    held_out_merit,
    is_called_total,
    of_training,
    parts_of,
    parts_of_total,
    set_of_tag,
    sets_of,
    signal_of_tag,
    stand_in_rank,
    stands_still,
    terms_of,
    total_of,
    trained_beside,
    validation_beside,
)
from trimtab.readers.writers import (
    WRITERS_NOTE,
    beside_main,
    other_writers,
    other_writers_of_epochs,
)
from trimtab.record import HELD_OUT, Column, RecordBuilder, RunRecord
from trimtab.vocabulary import (
    SIGNAL_BY_NAME,
    TIMES,
    alias_place,
    canonical,
    normalise,
    unit_scale,
)

__all__ = ["BadValue", "LogTable", "is_known_key", "is_step_key"]

_SPLIT_KEYS = frozenset(
    {
        "split",
        "mode",
        "phase",
        "stage",
        "subset",
        "type",
        "kind",
        "event",
        "partition",
        "prefix",
        "set",
        "dataset",
    }
)
"""Names of a column that says whether a row is of training or of held-out data."""
_MAY_STATE = frozenset({"phase", "stage", "dataset"})
"""Those of them that may as well say what is learned, or from what."""
_FEW_AGAIN, _MAX_AGAIN = 3, 0.02
"""Rewards again at a step, and their share of the rows, up to which they are of other attempts. As
in text."""
_NO_WORDS = MISSING | {"nan"}
MONITOR = frozenset({"r", "l", "t"})
"""Return, length and time of an episode, by the names that Gym's monitor gives them."""
_OF_A_SPREAD = frozenset({"num", "std", "count", "var", "variance", "n"})
"""Last words of statistics of a loss other than its mean."""
_OF_TRAINING = frozenset({"lr", "grad_norm", "loss_scale", "step_time_s"})
_OF_NO_AXIS = frozenset(
    {
        "nothing",
        "maybe-clock",
        "maybe-time",
        "layer",
        "signal",
        "domain",
        "data-set",
        "count",
        "maybe-loss",
        "maybe-held-out",
        "maybe-monitor",
        "maybe-score",
        "maybe-rate",
        "maybe-setting",
        "maybe-total",
        "over-ranks",
        "other",
    }
)
_OF_NO_USE_ALONE = frozenset(
    {
        "nothing",
        "maybe-clock",
        "maybe-time",
        "layer",
        "split",
        "run",
        "inner",
        "maybe-held-out",
        "maybe-monitor",
        "maybe-score",
        "maybe-rate",
        "maybe-setting",
        "maybe-total",
        "over-ranks",
        "other",
        "count",
        "maybe-gan",
    }
)
_ULTRALYTICS = frozenset({"time", "train/box_loss", "lr/pg0"})
"""Columns of a table whose `time` is in seconds since the run began."""
_BY_VALUES = ("other", "maybe-clock", "maybe-time")
_RANK_KEYS = ("rank", "global rank", "local rank", "process index")
_NOT_A_TRAIN_LOSS = ("val", "eval", "test", "scale", "best", "min", "aux", "valid")
_MAX_BAD_SHARE = 0.01
_MAX_BROKEN_SHARE = 0.05
"""Damaged lines, such as a job killed in mid-write leaves; more of them are another format."""
_MIN_SLOPE_CHANGES = 3
_FEWEST_BEFORE, _FEWEST_EMPTY, _MOST_GAPS = 30, 3, 0.01
"""Losses before, and empty ones at the end, from which those are NaN, and most gaps before. Ours.
"""
_FIRST_NAME = -2.0
"""What the first word is stored as: no number of a run, and not what stands for none."""
_MAX_NAMES = 1000
"""Most words under the name of a run; more name something else."""
_LEAST_LEARNED = 2
_MAX_WAITING = 1 << 10
_MAX_TOLD = 6
_MAX_SETTINGS = 32
"""Keys that may be settings by their names, of which the values are kept."""


@dataclass(frozen=True)
class BadValue:
    """A value that should be a number and is not."""

    line: int
    key: str
    value: str


@dataclass
class _Cells:
    role: str
    """signal, domain (a signal of one kind of training), gathered (into one of these), data-set
    (the loss of one of several), layer (the gradient norm of one of several), step, inner (step of an epoch), epoch, count (which may be a step),
    rank, over-ranks (of their times), split, run (one of several in the file), maybe-loss, maybe-gan (beside the other of the pair),
    maybe-held-out, maybe-monitor (beside the others of an episode), maybe-score
    (beside an episode), maybe-rate, maybe-clock, maybe-time, maybe-total and maybe-setting (by their values) or nothing."""
    rows: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    stretches: list[tuple[int, NDArray[np.float64]]] = field(default_factory=list)
    """(first row, values) of rows that all have one; these need no row numbers."""
    missing: "array[int]" = field(default_factory=lambda: array("q"))
    """Rows that name the key of a signal and give it nothing: null, or an empty cell."""
    num_unread: int = 0
    """Numbers under a key that is for nothing."""
    names: dict[str, int] = field(default_factory=dict)
    """Words that name runs, or values of a setting, in their order; the k-th is stored as -2 - k."""
    is_local: bool = False
    """Whether times are text that names no zone."""

    def put_name(self, value: str, row: int) -> None:
        """Store a word in place of a number; no more than name runs or settings."""
        is_one = len(self.names) < _MAX_NAMES and 0 < len(value) <= MAX_CELL_CHARS
        if value in self.names or is_one:
            self.rows.append(row)
            self.values.append(_FIRST_NAME - self.names.setdefault(value, len(self.names)))

    @property
    def num_values(self) -> int:
        return len(self.rows) + sum(len(values) for _, values in self.stretches)

    def column(self, num_rows: int) -> Column:
        values = np.full(num_rows, np.nan)
        present = np.zeros(num_rows, dtype=np.bool_)
        for first, stretch in self.stretches:
            values[first : first + len(stretch)] = stretch
            present[first : first + len(stretch)] = True
        index = np.array(self.rows, dtype=np.int64)
        values[index] = np.array(self.values, dtype=np.float64)
        present[index] = True
        return Column(values, present)


def _plain_numbers(column: Sequence[object], *, finite: bool) -> NDArray[np.float64] | None:
    """Return a column that holds nothing but numbers, or text of numbers; None for any other."""
    kinds = set(map(type, column))
    try:
        # `type`, not isinstance: a bool is an int, and takes the slow path.
        if kinds <= {float, int}:
            numbers = np.array(column, dtype=np.float64)
        # `float` takes 1_000, `parse_number` does not: the fast path must agree with it.
        elif kinds == {str} and "_" not in "".join(texts := cast("Sequence[str]", column)):
            if max(map(len, texts)) > MAX_CELL_CHARS:
                return None
            numbers = np.array(list(map(float, texts)), dtype=np.float64)
        else:
            return None
    except (ValueError, OverflowError):  # missing, 12/294 ...; an integer of more than 308 digits
        return None
    return None if finite and not np.isfinite(numbers).all() else numbers


def _spells_number(value: object) -> bool:
    try:
        return parse_number(value) is not None
    except BadNumberError:
        return False


def _is_a_word(value: object) -> bool:
    """Whether a value says something: a word, or a number that stands for one."""
    return isinstance(value, str | int | float) and str(value).strip().lower() not in _NO_WORDS


def _num_numbers(column: Sequence[object]) -> int:
    """Return how many values of a column are numbers; text counts by its first number."""
    kinds = set(map(type, column))
    if kinds <= {float, int}:
        return len(column)
    if kinds <= {float, int, type(None), bool, list, dict}:
        return sum(type(v) in (float, int) for v in column)
    texts = [v for v in column if isinstance(v, str) and v.strip()]
    if not texts or len(texts[0]) > MAX_CELL_CHARS:
        return 0
    try:
        return 0 if parse_number(texts[0]) is None else len(texts)
    except BadNumberError:
        return 0


def is_known_key(key: str) -> bool:
    """Whether a key names a signal or a step, or might be a training loss."""
    return _role(key) not in _OF_NO_USE_ALONE


def is_step_key(key: str) -> bool:
    """Whether a key names what counts the rows."""
    return _role(key) in ("step", "epoch")


def _role(key: str) -> str:
    name = normalise(key)
    # The order: a step may be under a path that a signal would match, too.
    if is_step(key):
        return "step"
    if names_epoch(key):
        return "epoch"
    if is_inner_step(key):
        return "inner"
    if name in _RANK_KEYS:
        return "rank"
    if name in _SPLIT_KEYS:
        return "split"
    if name in RUN_WORDS:
        return "run"
    if over_ranks(key):
        return "over-ranks"
    signal = signal_of_tag(key)
    if signal is not None:
        return "domain" if SIGNAL_BY_NAME[signal].domain else "signal"
    if set_of_tag(key) is not None:
        return "data-set"
    if layer_of_tag(key) is not None:
        return "layer"
    if may_count_rows(key):
        return "count"
    if score_place(key) is not None:
        return "maybe-score"
    if name == ETA:
        return "maybe-rate"
    if is_clock_key(key):
        return "maybe-clock"
    if key in MONITOR:
        return "maybe-monitor"
    if net_of(key) in GAN_PAIR:
        return "maybe-gan"
    if _may_stand_in(key):
        return "maybe-loss"
    beside = trained_beside(key)
    if beside and _may_stand_in(beside):
        return "maybe-held-out"
    if may_state_setting(key):
        return "maybe-setting"
    if is_called_total(key):
        return "maybe-total"
    if may_be_measured(key):
        return "other"
    return "maybe-time" if may_be_timed(key) else "nothing"


def _is_monitor(columns: Mapping[str, Column]) -> bool:
    """Whether `r`, `l` and `t` are returns, whole lengths and rising times of episodes."""
    if not columns.keys() >= MONITOR:
        return False
    lengths, times = columns["l"].logged(), columns["t"].logged()
    whole = len(lengths) > 0 and bool((lengths == np.floor(lengths)).all() and lengths.min() >= 1)
    return whole and bool((np.diff(times) >= 0).all())


def _may_stand_in(key: str) -> bool:
    """Whether a key may be the training loss where nothing better is there."""
    # a loss under an unknown name may still be the training loss, if nothing better is there
    words = normalise(key).replace("/", " ").split()
    if words[-1:] and words[-1] in _OF_A_SPREAD:
        return False
    guessed = any("loss" in w for w in words) or (
        # `cost`, `G_GAN` and the like: what text would take for a loss
        (found := meaning(key)) is not None and found.name == "loss"
    )
    return guessed and not any(
        w.startswith(_NOT_A_TRAIN_LOSS) and w not in ("value", "values") for w in words
    )


class LogTable:
    """Collects rows, then becomes a record."""

    def __init__(self, source: str, format_name: str) -> None:
        """Start with no rows."""
        self.source = source
        self.format_name = format_name
        self.num_rows = 0
        self.notes: list[str] = []
        self.bad: list[BadValue] = []
        self._cells: dict[str, _Cells] = {}
        self._is_full = False
        self._num_settings = self._num_others = 0
        self._watched: tuple[str, ...] = ()
        self._renamed: list[str] = []
        """Keys of losses of which only NaN is told."""
        self._held_out: list[int] = []
        """Rows that a column of words says to be of held-out data."""
        self._keys: tuple[str, ...] = ()
        self._waiting: list[Sequence[object]] = []
        """Rows under `_keys` that are not stored yet, the last at row `num_rows`."""
        self._lines: list[int] = []

    def role(self, key: str) -> str:
        """Return what a key is for; `nothing` for one that can be left out."""
        cells = self._cells.get(key)
        if cells is None:
            if len(self._cells) >= MAX_COLUMNS:
                if not self._is_full:
                    self.notes.append(f"more than {MAX_COLUMNS:,} names; the others are left out")
                self._is_full = True
                return "nothing"
            role = _role(key)
            if role == "maybe-setting":
                self._num_settings += 1
                role = role if self._num_settings <= _MAX_SETTINGS else "nothing"
            if role == "other":
                self._num_others += 1
                role = role if self._num_others <= MAX_CANDIDATES else "nothing"
            cells = self._cells[key] = _Cells(role)
        return cells.role

    def add(self, keys: tuple[str, ...], values: Sequence[object], line: int) -> None:
        """Add a row; of values under one key the first that is not missing counts."""
        # rows with the same keys are stored together, as columns: one check of types for all
        if keys != self._keys or len(self._lines) >= _MAX_WAITING:
            self._store()
            self._keys = keys
        self._waiting.append(values)
        self._lines.append(line)
        self.num_rows += 1

    def add_block(
        self,
        keys: Sequence[str],
        columns: Mapping[int, BlockColumn],
        num_filled: Sequence[int],
        num_rows: int,
    ) -> bool:
        """Add rows that are columns already; False where they have to be added one by one.

        Args:
            keys: Names of all columns.
            columns: By the place of its key; those of keys that are for nothing are not needed.
            num_filled: How many cells of each column are not empty.
            num_rows: How many rows there are.
        """
        for index, column in columns.items():
            if self.role(keys[index]) == "step" and not np.isfinite(column.values).all():
                return False
        self._store()
        self._check_size()
        rows = np.arange(self.num_rows, self.num_rows + num_rows)
        for index, key in enumerate(keys):
            cells = self._cells.get(key)
            if cells is None:
                continue
            found = columns.get(index)
            if found is None:
                cells.num_unread += int(num_filled[index])
                continue
            cells.is_local |= found.is_local
            if found.present.all():
                # a copy: a view would keep all columns of the block
                cells.stretches.append((self.num_rows, found.values.copy()))
                continue
            if cells.role == "signal":
                cells.missing.frombytes(rows[~found.present].tobytes())
            cells.rows.frombytes(rows[found.present].tobytes())
            cells.values.frombytes(found.values[found.present].tobytes())
        self.num_rows += num_rows
        return True

    def put(self, key: str, value: object, line: int) -> None:
        """Store one value of the current row; missing ones are left out."""
        self._put(key, value, self.num_rows, line)

    def end_row(self) -> None:
        """Close the current row."""
        self.num_rows += 1

    def _store(self) -> None:
        """Store the rows that wait, column by column: most are numbers from top to bottom."""
        lines, waiting = self._lines, self._waiting
        self._lines, self._waiting = [], []
        first = self.num_rows - len(lines)
        # a repeated key needs the rule for missing values, row by row
        if len(set(self._keys)) < len(self._keys):
            for k, values in enumerate(waiting):
                for key, value in zip(self._keys, values, strict=True):
                    self._put(key, value, first + k, lines[k])
            return
        self._check_size()
        for key, column in zip(self._keys, zip(*waiting, strict=True), strict=False):
            role = self.role(key)
            if role == "nothing":
                if key in self._cells:
                    self._cells[key].num_unread += _num_numbers(column)
                continue
            numbers = None
            if role != "split":
                numbers = _plain_numbers(column, finite=role == "step")
            if numbers is None and role == "maybe-clock" and set(map(type, column)) == {str}:
                said = times_of(cast("Sequence[str]", column))
                if said is not None:
                    numbers, is_local = said
                    self._cells[key].is_local |= is_local
            if numbers is not None:
                self._cells[key].stretches.append((first, numbers))
                continue
            for k, value in enumerate(column):
                self._put(key, value, first + k, lines[k])

    def _check_size(self) -> None:
        if sum(cells.num_values for cells in self._cells.values()) > MAX_CELLS:
            raise ReadError(
                f"{self.source}: more than {MAX_CELLS:,} values; split it into several files"
            )

    def _put(self, key: str, value: object, row: int, line: int) -> None:
        """Store one value of a row; missing ones are left out."""
        role = self.role(key)
        if role == "nothing":
            if key in self._cells:
                self._cells[key].num_unread += _num_numbers((value,))
            return
        cells = self._cells[key]
        if role == "split" and not (signal_of_tag(key) and _spells_number(value)):
            if isinstance(value, str) and is_held_out(value.replace("_", " ")):
                self._held_out.append(row)
            elif normalise(key) in _MAY_STATE and _is_a_word(value):
                cells.put_name(str(value), row)
            return
        if role == "maybe-clock" and isinstance(value, str):
            said = time_of(value)
            if said is not None:
                cells.is_local |= not said[1]
                value = said[0]
        try:
            counts = role == "step" or (isinstance(value, str) and self._counts(key, role, value))
            number = parse_step(value) if counts else parse_number(value)
        except BadNumberError as error:
            if role == "step" and isinstance(value, str) and value.strip().isalpha():
                return  # `"step": "final"`: a row beside the steps
            words = role in ("run", "maybe-setting") or signal_of_tag(key) == "stage"
            if words and isinstance(value, str) and _is_a_word(value):
                cells.put_name(value, row)
            # Other keys are guesses; text under them is no fault of the file.
            if role in ("signal", "step"):
                self.bad.append(BadValue(line, key, str(error)))
            return
        if number is None and role == "signal":
            cells.missing.append(row)
        # The first value of a key in a row stands: nested objects repeat keys of the outer one.
        if number is not None and not (cells.rows and cells.rows[-1] == row):
            cells.rows.append(row)
            cells.values.append(number)

    def _counts(self, key: str, role: str, text: str) -> bool:
        """Whether text under a key counts something, beside the steps."""
        of_tokens = "," in text and signal_of_tag(key) == "tokens_seen"
        return role in ("epoch", "inner") or of_tokens

    def settle_problems(self, broken: Sequence[tuple[int, str]], expected: str) -> None:
        """Raise for the first bad line or value, or note how many were left out if under 1 %.

        Args:
            broken: (line, what is wrong) of lines that gave no row.
            expected: What a value should be, for the message.

        Raises:
            ReadError: 1 % of the lines or more are bad.
        """
        self._store()
        values = [
            (b.line, f"{b.key[:80]} is {b.value[:60]}, expected {expected}") for b in self.bad
        ]
        problems = sorted([*broken, *values])
        if not problems:
            return
        num_lines = self.num_rows + len(broken)
        where = f"{self.source}:{problems[0][0]}: {problems[0][1]}"
        # a few torn lines are normal; many mean that the format was misread
        if len(values) >= _MAX_BAD_SHARE * num_lines or len(broken) > _MAX_BROKEN_SHARE * num_lines:
            raise ReadError(
                f"{where}; {len(problems)} such in {num_lines} lines: correct or remove them"
            )
        self.notes.append(f"{counted(len(problems), 'bad value')} left out, the first: {where}")

    def to_record(self, *, columnar: bool) -> RunRecord:
        """Settle the keys and return the record.

        Args:
            columnar: Whether `nan` may stand for a cell that was not recorded.

        Raises:
            ReadError: No key of the file is known.
        """
        self._store()
        columns = {k: c.column(self.num_rows) for k, c in self._cells.items() if c.num_values}
        columns = oldest_first(columns, self.notes)
        self._pair_up(columns)
        self._part_held_out(columns)
        self._gather(columns)
        signals, keys = self._signals(columns, columnar=columnar)
        if not signals:
            lacks = missing_among(k for k in self._cells if k)
            error = ReadError(
                f"{self.source}: {lacks}; correct --columns"
                if lacks
                else f"{self.source}: no known signal; looked for a loss, reward, grad norm and others, "
                f"found {_some(self._cells)}; rename a column, e.g. to 'loss', or say"
                " --columns loss=COLUMN,step=COLUMN (of an agent: reward=COLUMN)"
            )
            error.keys = tuple(k for k, cells in self._cells.items() if k)
            raise error
        # ranks log each step; judging all of them would multiply every event
        ranks = self._ranks(columns, signals)
        keep = _any_present(signals, self.num_rows)
        if ranks is not None:
            keep &= ranks.keep
            self.notes.extend(ranks.notes)
            ranks.put(signals, keys)
        self._tell_slowest(columns)
        drop_zero_norm(signals, keys, self.notes)
        loss, counts = signals.get("loss"), counting(columns)
        if loss is not None and counts:
            keep &= ~repeated_rows(keep, counts, signals, self.notes)
            left = Column(loss.values, loss.present & keep)
            keep &= ~placeholder_rows(left, counts[0].values, self.notes)
        if "loss" in keys and names_mean(keys["loss"]):
            self.notes.append(MEAN_NOTE.format(key=keys["loss"]))
        keep &= ~self._of_another_writer(columns, keep)
        axis, step, counted_by = find_table_axis(columns, signals, keep, self.notes)
        # a row without a place on the axis cannot be compared with any other
        rows = np.flatnonzero(keep & np.isfinite(step))
        runs: dict[int, str] = {}
        found = self._runs(columns, rows, step, signals.get("loss"))
        if found is not None:
            rows, runs = found
        elif axis == "step":
            main = signals["loss"].present[rows] if "loss" in signals else rows >= 0
            others = np.zeros(len(rows), dtype=np.bool_)
            others[main] = other_writers(
                step[rows[main]], loss.values[rows[main]] if loss is not None else None
            )
            if others.any():
                self.notes.append(WRITERS_NOTE.format(rows=counted(int(others.sum()), "row")))
                rows, main = rows[~others], main[~others]
            rows = rows[beside_main(step[rows], main)]
        builder = RecordBuilder(self.source, self.format_name, axis=axis)
        builder.keys.update(keys)
        if ranks is not None:
            builder.facts[RANK_FACT] = ranks.here
        builder.notes.extend(self.notes)
        stated = keys.get(STATED_SETTING, "").split(", ")
        kept = {n: Column(c.values[rows], c.present[rows]) for n, c in signals.items()}
        if axis != "epoch":
            epoch = next((columns[k] for k in columns if names_epoch(k)), None)
        else:
            epoch = Column(step, np.isfinite(step))
        if epoch is not None and "loss" in kept:
            # Beside the losses alone: an epoch makes no row.
            beside = epoch.present[rows] & kept["loss"].present
            kept["epochs_seen"] = Column(np.where(beside, epoch.values[rows], np.nan), beside)
        if axis != "row" and "wall_time_s" not in kept:
            builder.keys.update(self._take_clock(columns, rows, kept))
        taken = [*builder.keys.values(), *stated, *self._watched, *self._renamed, counted_by]
        builder.unread.update(self._unread(taken))
        unknown = {k: c for k, c in columns.items() if self._cells[k].role == "other"}
        for name, (key, column) in others_of(unknown, rows, builder.keys).items():
            kept[name], builder.keys[name] = column, key
        _extend(builder, step[rows], kept, runs)
        return skipped_as_share(_with_slope_note(builder.build()))

    def _loss_without_name(self, columns: Mapping[str, Column]) -> dict[str, list[str]]:
        """Return the column that is the loss though none is called so, and note it; empty: none is.

        A total that is the sum of others goes first: a part must not stand beside the whole. The
        loss of a generator or a policy is a signal of its own, and may stand in too.
        """
        whole = total_of({k: c.values for k, c in columns.items()}, self._terms(columns))
        if whole:
            chosen, why = whole, ", as the sum of others"
        else:
            stand_in = [k for k in columns if self._stands_in(k)]
            if not stand_in:
                return {}
            chosen, why = min(stand_in, key=lambda k: _stand_in_order(k, columns[k])), ""
        self.notes.append(
            f"no column is called a training loss; {shown(chosen)} is taken for it{why}"
        )
        return {"loss": [chosen]}

    def _signals(
        self, columns: dict[str, Column], *, columnar: bool
    ) -> tuple[dict[str, Column], dict[str, str]]:
        """Return the fullest column of each canonical signal, in its unit, and its key."""
        found: dict[str, list[str]] = {}
        for key in columns:
            name = signal_of_tag(key)
            # A stage in numbers is that of a curriculum.
            cells = self._cells[key]
            if cells.role in ("signal", "domain", "split") and name is not None and not cells.names:
                found.setdefault(name, []).append(key)
        if "loss" not in found:
            found |= self._loss_without_name(columns)
        if "step_time_s" not in found:
            found |= self._time_beside(columns)
        found |= self._by_values(found, columns)
        if "lr" not in found:
            rates = [
                k
                for k, c in columns.items()
                if self._cells[k].role == "maybe-rate" and are_rates(c.logged())
            ]
            found |= {"lr": rates[:1]} if rates else {}
        if "reward" not in found and "loss" not in found and _is_monitor(columns):
            found["reward"] = ["r"]
            self.notes.append(
                "'r', 'l' and 't' are read as Stable-Baselines3's monitor writes them"
            )
        if "reward" not in found and counts_episodes(columns, has_loss="loss" in found):
            scores = sorted(
                (k for k in columns if self._cells[k].role == "maybe-score"),
                key=lambda k: score_place(k) or 0,
            )
            if scores:
                found["reward"] = scores[:1]
                self._note_others("reward", scores[0], scores)
        if "val_loss" not in found and "loss" in found:
            free = (k for k in columns if signal_of_tag(k) is None)
            beside = validation_beside(found["loss"][0], free)
            found |= {"val_loss": beside} if beside else {}
        _move_accuracy(found, columns)
        signals: dict[str, Column] = {}
        keys: dict[str, str] = {}
        for name, candidates in found.items():
            # The mean over a validation set says more than its batches, though it has fewer values.
            means = [k for k in candidates if name == "val_loss" and canonical(k) == name]
            given = [k for k in candidates if given_meaning(k) == name]
            best = max(given or means or candidates, key=lambda k: _rank(k, name, columns[k]))
            column = self._scaled(best, name, columns[best])
            if columnar:
                scores = found.get("eval_score", []) if name == "val_loss" else []
                scored = max((columns[k] for k in scores), key=_fullness, default=None)
                column = self._nan_settled(best, name, column, scored)
            if name not in HELD_OUT and len(candidates) > 1:
                column, candidates = self._joined(name, best, column, candidates, columns)
            if name == "loss":
                column = self._emptied(best, column, columns)
            if column.present.any():
                signals[name], keys[name] = column, best
            others = (k for k in candidates if k != best)
            ranks = ranks_of_keys(others) if name in COMPARED else {}
            for rank, key in ranks.items():
                keys[f"rank {rank}/{name}"] = key
                signals[f"rank {rank}/{name}"] = self._scaled(key, name, columns[key])
            self._note_others(name, best, [k for k in candidates if k not in ranks.values()])
        self._take_settings(columns, signals, keys)
        name_latent(signals, keys)
        values = {k: c.values for k, c in columns.items()}
        whole = keys.get("loss", "")
        parts = parts_of(columns, whole, values)
        if is_called_total(whole):
            parts = parts_of_total(values, whole, self._terms(columns))
            parts |= _tested(parts, columns)
        plain = [k for k in columns if self._cells[k].role == "other" and k not in keys.values()]
        parts |= distilled_beside(whole, plain) if whole else {}
        sets = self._sets_alone(columns, signals.get("loss")) if not parts else {}
        for of_set, key in (sets | parts | sets_of(columns)).items():
            if columns[key].present.any():
                signals[of_set], keys[of_set] = columns[key], key
        self._watch_parts(columns, signals, keys)
        if signals:
            norms = (k for k in columns if self._cells[k].role == "layer")
            for of_layer, key in layers_of(norms).items():
                signals[of_layer], keys[of_layer] = columns[key], key
        return signals, keys

    def _time_beside(self, columns: Mapping[str, Column]) -> dict[str, list[str]]:
        """Return the key of the time of a step, where another beside it says which it is."""
        by_word = {normalise(k): k for k in self._cells}
        if not TIME_BESIDE.keys() <= by_word.keys():
            return {}
        timed = [by_word[k] for k, is_step in TIME_BESIDE.items() if is_step]
        return {"step_time_s": timed} if set(timed) <= columns.keys() else {}

    def _by_values(
        self, found: Mapping[str, Sequence[str]], columns: dict[str, Column]
    ) -> dict[str, list[str]]:
        """Return the keys that are signals by what their values do, on the rows of the loss."""
        if "loss" not in found:
            return {}
        loss = max((columns[k] for k in found["loss"]), key=_fullness)
        free = {k: c for k, c in columns.items() if self._cells[k].role in _BY_VALUES}
        named = named_by_values(free, loss, found)
        for name, key in named.items():
            column = columns[key]
            columns[key] = Column(column.values, column.present & loss.present)
            self.notes.append(note_by_values(name, key))
        return {name: [key] for name, key in named.items()}

    def _tell_slowest(self, columns: Mapping[str, Column]) -> None:
        """Name the rank that others wait for, where a column says who took longest."""
        told = {over_ranks(k): c for k, c in columns.items() if self._cells[k].role == "over-ranks"}
        timed = [
            k
            for k, c in columns.items()
            if signal_of_tag(k) == "step_time_s" and np.isfinite(c.values).any()
        ]
        if "who" not in told or not timed:
            return
        # Where a mean and the largest stand side by side, the largest is that of the slowest.
        most = max(timed, key=lambda k: float(np.nanmedian(columns[k].values)))
        least = min(timed, key=lambda k: float(np.nanmedian(columns[k].values)))
        values = told["least"].values if "least" in told else columns[least].values
        note = slowest_note(told["who"].values, values, columns[most].values)
        self.notes += [note] if note else []

    def _take_settings(
        self, columns: Mapping[str, Column], signals: dict[str, Column], keys: dict[str, str]
    ) -> None:
        """Read the settings that are held and changed, in numbers or in words."""
        settings = {
            k: self._in_numbers(k, c, signals.get("loss"))
            for k, c in columns.items()
            if self._cells[k].role == "maybe-setting"
            or (self._cells[k].role in ("domain", "split") and self._cells[k].names)
            or k == keys.get(STAGE)
        }
        if (stated := settings_in(settings)) is None:
            return
        keys[STATED_SETTING], signals[STATED_SETTING] = stated
        for key in keys[STATED_SETTING].split(", "):
            if names := self._cells.get(key, _Cells("nothing")).names:
                said = ", ".join(
                    f"{i} is {shown(n)}" for i, n in enumerate([*names][:_MAX_TOLD], 1)
                )
                more = " ..." if len(names) > _MAX_TOLD else ""
                self.notes.append(f"{shown(key)} is a word, read as a number: {said}{more}")

    def _in_numbers(self, key: str, column: Column, loss: Column | None) -> Column:
        """Return a setting with 1, 2 ... for its words, on the rows of the loss."""
        if not self._cells[key].names:
            return column
        values = np.where(column.values <= _FIRST_NAME, -1.0 - column.values, column.values)
        return Column(values, column.present if loss is None else column.present & loss.present)

    def _take_clock(
        self, columns: Mapping[str, Column], rows: NDArray[np.intp], kept: dict[str, Column]
    ) -> dict[str, str]:
        """Add when the rows with a loss were written, and return the key that says so."""
        every = np.ones(len(rows), dtype=np.bool_)
        beside = kept["loss"].present if "loss" in kept else every
        for key, column in columns.items():
            if self._cells[key].role != "maybe-clock":
                continue
            values = np.where(column.present[rows], column.values[rows], np.nan)[beside]
            at = written_at(values, is_local=self._cells[key].is_local)
            if at is None and columns.keys() >= _ULTRALYTICS:
                at = since_start(values)
            if at is not None:
                written = np.full(len(rows), np.nan)
                written[beside] = at
                kept["wall_time_s"] = Column(written, np.isfinite(written))
                return {"wall_time_s": key}
        return {}

    def _pair_up(self, columns: Mapping[str, Column]) -> None:
        """Let `G` and `D` be losses where both are there, and nothing where one is."""
        pair = [k for k in columns if self._cells[k].role == "maybe-gan"]
        named = [net_of(k) for k in pair]
        role = "maybe-loss" if set(named) == GAN_PAIR and len(named) == 2 else "nothing"
        for key in pair:
            self._cells[key].role = role

    def _watch_parts(
        self, columns: Mapping[str, Column], signals: dict[str, Column], keys: dict[str, str]
    ) -> None:
        """Have NaN in losses that no signal takes told."""
        if "loss" not in keys or BROKEN_PARTS in signals:
            return
        losses = {
            k: c
            for k, c in columns.items()
            if self._cells[k].role == "maybe-loss"
            or (self._cells[k].role == "domain" and _may_stand_in(k))
        }
        name_entropy(losses, signals, keys)
        named = named_parts(losses)
        for name, key in named.items():
            if name not in signals:
                signals[name], keys[name] = columns[key], key
        if keys.get("value_loss") in named.values() and "value_loss" not in named:
            del signals["value_loss"], keys["value_loss"]
        told = {*named.values(), *terms_of(keys)}
        parts = {
            k: c
            for k, c in losses.items()
            if k != keys["loss"] and (k in told or k not in keys.values())
        }
        found = watch_parts(keys["loss"], signals["loss"], parts, self.notes, judged=told)
        self._watched = found.keys
        if found.broken is not None:
            signals[BROKEN_PARTS], keys[BROKEN_PARTS] = found.broken

    def _emptied(self, key: str, loss: Column, columns: dict[str, Column]) -> Column:
        """Return the loss with NaN in its last rows where they are empty, and none is before.

        Several loggers write NaN as null, and pandas as an empty cell. Rows at the end that hold
        what the others do not, as those of a last evaluation, are rows of another kind.
        """
        rows, missing = np.flatnonzero(loss.present), self._cells[key].missing
        if len(rows) < _FEWEST_BEFORE or not len(missing):
            return loss
        end = int(rows[-1]) + 1
        num = self.num_rows - end
        gone = np.array(missing, dtype=np.int64)
        gaps = end - int(rows[0]) - len(rows)
        if num < _FEWEST_EMPTY or int((gone >= end).sum()) < num or gaps > _MOST_GAPS * end:
            return loss
        others = [c.present for k, c in columns.items() if k != key]
        new = any(p[end:].mean() > p[:end].mean() + 0.5 for p in others)
        sparse = any(0 < c.num_unread < 0.9 * self.num_rows for c in self._cells.values())
        if new or sparse:
            return loss
        self.notes.append(
            f"{shown(key)} is empty in the last {counted(num, 'row')}, and was in none before:"
            " read as NaN, which many loggers write so"
        )
        present = loss.present.copy()
        present[end:] = True
        return Column(np.where(np.arange(self.num_rows) < end, loss.values, np.nan), present)

    def _unread(self, taken: Collection[str]) -> dict[str, int]:
        """Return how many numbers there are under each key that is no signal and no axis."""
        return {
            key: cells.num_unread or cells.num_values
            for key, cells in self._cells.items()
            if key and cells.role in _OF_NO_AXIS and key not in taken and not cells.names
        }

    def _terms(self, columns: Iterable[str]) -> list[str]:
        """Return what a total may be made of: losses by their names, else numbers of training.

        Else numbers under other names, if two of them are of what is learned: by their names, or as
        they stand again on held-out data. The parts of a time add up, too.
        """
        columns = list(columns)
        others = [k for k in columns if self._cells[k].role == "other"]
        named = [k for k in columns if self._stands_in(k)] or [k for k in others if of_training(k)]
        # `recon` is a signal of its own, and a part beside a total.
        known = [
            k for k in columns if self._cells[k].role == "domain" and is_part(k) and k not in named
        ]
        if named:
            return named + known
        tested = {trained_beside(k) for k in columns} - {""}
        plain = [k for k in (*others, *known) if not trained_beside(k)]
        learned = [k for k in plain if is_part(k) or _as_path(k) in tested]
        return plain if len(learned) >= _LEAST_LEARNED else []

    def _sets_alone(self, columns: Mapping[str, Column], loss: Column | None) -> dict[str, str]:
        """Return `val_loss/SET` -> key of losses that are named by their held-out sets alone."""
        named = {s: k for k in columns if self._cells[k].role == "other" and (s := set_alone(k))}
        # `val_gap` beside `train_gap` is a metric of both.
        trained = {_as_path(k).removeprefix("train/") for k in columns if not trained_beside(k)}
        named = {s: k for s, k in named.items() if trained_beside(k) not in trained}
        if loss is None or not named:
            return {}
        level = since_then(loss)
        here = {s: columns[k].present for s, k in named.items()}
        values = {s: (columns[k].values[here[s]], level[here[s]]) for s, k in named.items()}
        return {s: named[s] for s in losses_by_set(values)}

    def _stands_in(self, key: str) -> bool:
        role = self._cells[key].role
        return role == "maybe-loss" or (role in ("domain", "data-set") and _may_stand_in(key))

    def _gather(self, columns: dict[str, Column]) -> None:
        """Put what is logged once for each layer or expert together, under the signal's name."""
        keys = [k for k in columns if self._cells[k].role == "domain"]
        groups = spread_groups(keys)
        if not groups:
            return
        found, notes = gather(groups, {k: columns[k].values for k in keys})
        for key in {key for group in groups.values() for key in group}:
            del columns[key]
            self._cells[key].role = "gathered"
        self.notes.extend(notes)
        for name, values in found.items():
            columns[name] = Column(values, np.isfinite(values))
            self._cells[name] = _Cells("domain")

    def _part_held_out(self, columns: dict[str, Column]) -> None:
        """Give the losses and accuracies on rows of held-out data a column of their own."""
        held_out = np.zeros(self.num_rows, dtype=np.bool_)
        held_out[self._held_out] = True
        for key in list(columns):
            role, column = self._cells[key].role, columns[key]
            trains = self._stands_in(key) or (role == "signal" and signal_of_tag(key) == "loss")
            here = column.present & held_out
            if trains and here.any() and not np.array_equal(here, column.present):
                columns[key] = Column(column.values, column.present & ~held_out)
                columns[f"val/{key}"] = Column(column.values, here)
                self._cells[f"val/{key}"] = _Cells("signal" if role == "signal" else "nothing")
            elif role == "domain" and signal_of_tag(key) == "accuracy" and here.any():
                # Under its last word: what a path of training is called is no name of a set.
                own = f"val/{key.rpartition('/')[2]}"
                if signal_of_tag(own) == "eval_score" and own not in columns:
                    columns[key] = Column(column.values, column.present & ~held_out)
                    columns[own], self._cells[own] = Column(column.values, here), _Cells("domain")
            elif role == "signal" and signal_of_tag(key) in _OF_TRAINING and not here.all():
                columns[key] = Column(column.values, column.present & ~held_out)

    def _scaled(self, key: str, name: str, column: Column) -> Column:
        factor = unit_scale(key) if name in TIMES else 1.0
        return column if factor == 1.0 else Column(column.values * factor, column.present)

    def _nan_settled(self, key: str, name: str, column: Column, beside: Column | None) -> Column:
        missing, why = nan_means_missing(column, is_loss=name == "loss", beside=beside)
        if not missing.any():
            return column
        self.notes.append(
            f"{key}: nan in {counted(int(missing.sum()), 'cell')}, taken as not recorded ({why})"
        )
        return Column(column.values, column.present & ~missing)

    def _joined(
        self,
        name: str,
        best: str,
        column: Column,
        candidates: Sequence[str],
        columns: Mapping[str, Column],
    ) -> tuple[Column, list[str]]:
        """Return a signal with what stands of it under other keys, and the keys that are left."""
        others = {k: self._scaled(k, name, columns[k]) for k in candidates if k != best}
        found = renamed(
            name,
            best,
            np.flatnonzero(column.present),
            column.logged(),
            {k: (np.flatnonzero(c.present), c.logged()) for k, c in others.items()},
        )
        if found.note:
            self.notes.append(found.note)
        for key in found.joined:
            here = others[key].present & ~column.present
            column = Column(
                np.where(here, others[key].values, column.values), column.present | here
            )
        self._renamed.extend(found.joined)
        return column, [k for k in candidates if k not in found.joined]

    def _note_others(self, name: str, best: str, candidates: Sequence[str]) -> None:
        others = [k for k in candidates if k != best]
        if others:
            self.notes.append(f"{name} is read from {shown(best)}; left out: {_some(others)}")

    def _runs(
        self,
        columns: dict[str, Column],
        rows: NDArray[np.intp],
        step: NDArray[np.float64],
        loss: Column | None,
    ) -> tuple[NDArray[np.intp], dict[int, str]] | None:
        """Return the rows run by run, and where each but the first begins, with its name.

        None where no column tells several runs apart.
        """
        for key, cells in self._cells.items():
            if cells.role != "run" or key not in columns or loss is None:
                continue
            labels = columns[key].values[rows]
            if not len(rows) or not np.isfinite(labels).all():
                continue
            _, first, run = np.unique(labels, return_index=True, return_inverse=True)
            if not 1 < len(first) <= len(rows) / 3:
                continue
            # Seeds may be logged side by side, epoch by epoch: each by itself is a run.
            ordered = rows[np.argsort(first[run.reshape(-1)], kind="stable")]
            values = np.where(loss.present, loss.values, np.nan)[ordered]
            starts = runs_by_name(columns[key].values[ordered], values, [step[ordered]])
            if starts is None:
                continue
            said = {_FIRST_NAME - k: name for name, k in cells.names.items()}
            label = {int(k): float(columns[key].values[ordered[k]]) for k in starts[1:]}
            names = {
                k: f"{key} {shown(said[x]) if x in said else f'{x:g}'}" for k, x in label.items()
            }
            self.notes.append(RUNS_NOTE.format(runs=len(starts)))
            return ordered, names
        return None

    def _of_another_writer(
        self, columns: Mapping[str, Column], keep: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Return the rows of a second process in another epoch."""
        epoch = next((c for k, c in columns.items() if names_epoch(k)), None)
        step = next(iter(counting(columns)), None)
        others = np.zeros(self.num_rows, dtype=np.bool_)
        has_runs = any(cells.role == "run" for cells in self._cells.values())
        if epoch is None or step is None or has_runs:
            return others
        rows = np.flatnonzero(keep & epoch.present & step.present)
        others[rows] = other_writers_of_epochs(epoch.values[rows], step.values[rows])
        if others.any():
            self.notes.append(WRITERS_NOTE.format(rows=counted(int(others.sum()), "row")))
        return others

    def _ranks(
        self, columns: dict[str, Column], signals: Mapping[str, Column]
    ) -> RankColumns | None:
        """Return which rank is read and what the others log; None where there is but one."""
        counts = [c for k, c in columns.items() if is_step(k) or is_inner_step(k) or names_epoch(k)]
        for key, cells in self._cells.items():
            if cells.role == "rank" and key in columns:
                found = part_ranks(columns[key], counts, signals)
                if found is not None:
                    return found
        return None


def _extend(
    builder: RecordBuilder,
    step: NDArray[np.float64],
    signals: dict[str, Column],
    runs: Mapping[int, str],
) -> None:
    """Add all rows.

    An attempt begins where a step falls back, or is logged again with another loss or reward.
    """
    cuts = sorted({0, *_again(step, signals), *runs, len(step)})
    for first, end in pairwise(cuts):
        if first in runs:
            builder.start_attempt(why=runs[first], anew=True)
        elif first:
            what = "loss" if "loss" in signals else "reward"
            builder.start_attempt(why=f"step {step[first]:g} is logged again with another {what}")
        part = slice(first, end)
        builder.extend(
            step[part], {n: Column(c.values[part], c.present[part]) for n, c in signals.items()}
        )


def _again(step: NDArray[np.float64], signals: dict[str, Column]) -> list[int]:
    """Return the rows that log the step and all the signals of the row before, differently.

    Of rows with a loss, or with a reward where no loss is logged.
    """
    loss = signals.get("loss")
    main = signals.get("reward") if loss is None else loss
    if main is None:
        return []
    rows = np.flatnonzero(main.present)
    tied = np.diff(step[rows]) == 0
    if not tied.any():
        return []
    # Agents side by side have a reward each at one step, over and over: that is no other attempt.
    if loss is None and np.count_nonzero(tied) > max(_FEW_AGAIN, _MAX_AGAIN * len(rows)):
        return []
    # Printed twice within round-off is a repeat; another loss for the step is another attempt.
    differs = ~np.isclose(main.values[rows[1:]], main.values[rows[:-1]], rtol=0, equal_nan=True)
    again = differs & tied
    for column in signals.values():
        # A row that only adds signals to its step continues the row before.
        again &= column.present[rows[1:]] | ~column.present[rows[:-1]]
    return [int(row) for row in rows[1:][again]]


def _move_accuracy(found: dict[str, list[str]], columns: Mapping[str, Column]) -> None:
    """Let an accuracy that stands on the rows of the validation loss alone be a held-out score."""
    loss, val_loss, bare = (found.get(n, []) for n in ("loss", "val_loss", "accuracy"))
    if [len(loss), len(val_loss), len(bare)] != [1, 1, 1]:
        return
    apart = columns[bare[0]].present & ~columns[val_loss[0]].present
    if not apart.any() and accuracy_is_held_out([*columns], loss[0], val_loss[0], bare[0]):
        found["eval_score"] = [*found.get("eval_score", []), *found.pop("accuracy")]


def _as_path(key: str) -> str:
    """Return the words of a key as `trained_beside` gives them."""
    return "/".join(w for w in re.split(r"[^a-z0-9]+", normalise(key)) if w)


def _tested(parts: Mapping[str, str], columns: Iterable[str]) -> dict[str, str]:
    """Return `val_loss/PART` -> key of the parts of a loss that stand again on held-out data."""
    held_out = {trained_beside(k): k for k in columns if trained_beside(k)}
    return {
        f"val_loss/{name.partition('/')[2]}": held_out[_as_path(key)]
        for name, key in parts.items()
        if _as_path(key) in held_out
    }


def _rank(key: str, name: str, column: Column) -> tuple[int, ...]:
    merit = held_out_merit(key, column.logged()) if name in HELD_OUT else ()
    exact = normalise(key) == normalise(name)
    # Of groups of parameters the one that is trained: a frozen one has a rate of 0.
    learns = int(np.count_nonzero(column.logged() > 0)) if name == "lr" else 0
    return (*merit, _fullness(column), canonical(key) == name, exact, -alias_place(key), learns)


def _fullness(column: Column) -> int:
    """Cells with a number; NaN counts for less than any number."""
    return 2 * int(np.isfinite(column.values[column.present]).sum()) + int(column.present.sum())


def _any_present(signals: dict[str, Column], num_rows: int) -> NDArray[np.bool_]:
    result = np.zeros(num_rows, dtype=np.bool_)
    for column in signals.values():
        result |= column.present
    return result


def _some(keys: Sequence[str] | dict[str, _Cells]) -> str:
    names = [shown(k) for k in keys]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _with_slope_note(record: RunRecord) -> RunRecord:
    norm, scale = record.columns.get("grad_norm"), record.columns.get("loss_scale")
    if norm is None or scale is None:
        return record
    both = norm.present & scale.present
    slope, changes = scale_slope(norm.values[both], scale.values[both], record.attempt[both])
    if changes >= _MIN_SLOPE_CHANGES and slope > 0.75:
        text = (
            f"grad norm moves with the loss scale (log-log slope {slope:.2f} over {changes}"
            " changes): it may be the norm of scaled gradients; it is left as logged"
        )
        return replace(record, notes=(*record.notes, text))
    return record


def _stand_in_order(key: str, column: Column) -> tuple[object, ...]:
    """Return a sort key for columns that may stand in for the loss; the first is taken."""
    return (
        signal_of_tag(key) == "ema_loss",
        *stand_in_rank(key)[:3],
        is_of_critic(key),
        stands_still(column.logged()),
        len(key),
        key,
    )
