"""Shapes of a text -> RunRecord: which key is the loss, what counts the rows, what joins them."""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.by_values import named_by_values, note_by_values
from trimtab.readers.freetext.announced import part_announced, part_other_bars
from trimtab.readers.freetext.axis import RowAxis, epoch_lines, find_axis
from trimtab.readers.freetext.changes import ChangeLine, changes_of
from trimtab.readers.freetext.few_lines import AreRecords
from trimtab.readers.freetext.key_values import NAMELESS_SECONDS, TIME_COST
from trimtab.readers.freetext.keys import MEAN_NOTE, is_bare, is_part, is_whole, names_mean
from trimtab.readers.freetext.restarts import Restart, RestartLine, restarts_of
from trimtab.readers.freetext.row_clocks import CLOCK_NOTE, RowClocks
from trimtab.readers.freetext.row_times import EPOCH_TIMES_NOTE, SecondsPerEpoch
from trimtab.readers.freetext.rows import TextRows, choose_main, gather, one_rank
from trimtab.readers.freetext.runs import part_runs
from trimtab.readers.freetext.shapes import Shape
from trimtab.readers.given_columns import NAME_IT
from trimtab.readers.held_out_sets import accuracy_is_held_out, losses_by_set, since_then
from trimtab.readers.numbers import counted, shown
from trimtab.readers.other_columns import may_be_measured, others_of
from trimtab.readers.part_losses import (
    BROKEN_PARTS,
    name_entropy,
    name_latent,
    named_parts,
    watch_parts,
)
from trimtab.readers.placeholders import NOT_COMPUTED_HERE, drop_zero_norm, placeholder_rows
from trimtab.readers.rank_values import RANK_FACT
from trimtab.readers.runs_in_file import Marks
from trimtab.readers.scores_by_course import rises
from trimtab.readers.stated_settings import STAGE, STATED_SETTING, settings_in
from trimtab.readers.tags import (
    OF_A_TOTAL,
    distilled_beside,
    held_out_merit,
    parts_of,
    parts_of_total,
    terms_of,
    validation_beside,
)
from trimtab.readers.writers import (
    UNREAD_NOTE,
    WRITERS_NOTE,
    other_writers,
    other_writers_of_epochs,
)
from trimtab.record import HELD_OUT, Column, RecordBuilder, RunRecord
from trimtab.text import OTHER
from trimtab.vocabulary import alias_place

if TYPE_CHECKING:
    from trimtab.readers.freetext.key_values import Field

__all__ = ["settle"]

_MIN_ROWS = 3
_MOST_CHANGES_TOLD = 4
_MIN_ROWS_BY_PLACE = 10
_MIN_REWARDS = 5
"""Rewards that an episode counts, on lines of one wording. Ours."""
_MIN_REPEATS = 3
"""Lines per wording below which a text without steps is taken for prose."""
_MIN_DISTINCT = 0.3
_USUAL_SHARE = 0.05
_FAR_LINES = 30
_REACH = 4
_MIN_FULL = 0.02
"""A signal on lines of its own counts from this share of the rows on."""
_MIN_BESIDE = 0.8
"""Share of the rows that have a loss on a line nearby from which that is a part of the record."""
_MAX_AGAIN = 0.02
_MIN_COUNTING = 0.3
"""Where this share of the lines with a loss has a step, the others are repeats or summaries."""
_MIN_BEYOND = 0.1
"""Share of the rows from which losses under another key, before or behind them, are told."""
_BETTER = 1.2
"""Times the first of them, that the last scores are at least. Ours."""
_SPACY = "loss tok2vec"
_OF_SETS = "val_loss/"
_SCORES = frozenset({"eval_score", "eval_error"})
_TIMES = frozenset({"step_time_s", "throughput"})
_MIN_WHOLE = 0.8
"""Share of the rows that are one epoch each, from which their times are those of epochs."""


def settle(
    shapes: Sequence[Shape],
    source: str,
    format_name: str,
    *,
    known_format: bool,
    are_records: AreRecords,
    seconds_per_epoch: SecondsPerEpoch,
    row_clocks: RowClocks,
    marks: Marks,
    announced: Sequence[int] = (),
    restarts: Sequence[RestartLine] = (),
    changes: Sequence[ChangeLine] = (),
) -> RunRecord:
    """Return the record of a text.

    Args:
        shapes: What its lines have in common.
        source: Path, for the record and for messages.
        format_name: Name of the reader.
        known_format: Whether the text is of a format with a name; else notes say what was guessed.
        are_records: Asked of lines too few to be believed by their number.
        seconds_per_epoch: Asked where each row is an epoch and says nothing of its time.
        row_clocks: Asked where rows are counted by steps and say nothing of their time.
        marks: Asked for what names several runs.
        announced: Numbers of the lines that say that an evaluation begins.
        restarts: Lines that state a restart, or may.
        changes: Lines that announce another phase or setting.

    Raises:
        ReadError: There is no series of losses, nor of another signal, in it.
    """
    shapes = [s for s in shapes if s.lines]
    found = choose_main(shapes)
    draft = None
    if found is not None:
        draft = _draft(found[0], "loss", found[1], shapes, marks, announced)
        why, is_final = _refusal(draft)
        if why and (is_final or not _believed(draft, are_records)):
            draft = None
    else:
        why = "no line has a training loss"
    if draft is None:
        draft = _without_loss(shapes, marks)
    if draft is None:
        raise ReadError.of_no_log(
            f"{source}: {why}; looked for lines that repeat with a loss (`step 10 loss 2.5`, "
            f"`key: value`, tables with a header); give a training log; {NAME_IT}"
        )
    draft.take_times(seconds_per_epoch, row_clocks)
    draft.take_restarts(restarts)
    draft.take_changes(changes)
    return draft.record(source, format_name, known_format=known_format)


def _merit(field: "Field", column: Column) -> tuple[int, ...]:
    """Return a sort key for the fields of one signal: the surest, then the fullest."""
    held_out = held_out_merit(field.key, column.logged()) if field.name in HELD_OUT else ()
    return (-field.doubt, *held_out, int(column.present.sum()))


class _Draft:
    """The main rows, their axis, and the signals and notes that join them."""

    def __init__(self, key: str, name: str, rows: TextRows, others: Sequence[Shape]) -> None:
        self.key = key
        self.name = name
        self.rows = rows
        self.others = others
        self.position: RowAxis = find_axis(rows, others)
        self.signals: dict[str, Column] = {}
        self.keys: dict[str, str] = {}
        self.notes: list[str] = list(rows.notes)
        self.watched: tuple[str, ...] = ()
        """Keys of losses of which only NaN is told."""
        self._run_starts: tuple[tuple[int, str], ...] = ()
        self._restarts: Mapping[int, Restart] = {}
        self._announced: Mapping[str, Column] = {}

    @property
    def doubt(self) -> int:
        """Doubt of the loss key and of the axis."""
        field = self.rows.fields["signal", self.key]
        return field.doubt + self.position.doubt

    def take_times(self, seconds_per_epoch: SecondsPerEpoch, row_clocks: RowClocks) -> None:
        """Take the times on the lines, where no line says how long a step or an epoch took."""
        place = self.position.place
        whole = np.count_nonzero(np.diff(place) == 1) >= _MIN_WHOLE * (len(place) - 1)
        by_epoch = self.position.axis == "epoch" and whole
        timed = {
            # What an epoch costs says nothing of the rows within it.
            f.name
            for s in self.others
            for f in s.fields
            if by_epoch or f.key != TIME_COST
        } | {f.name for f, _ in self.rows.of_kind("signal")}
        if timed & _TIMES:
            return
        if by_epoch:
            seconds = seconds_per_epoch(self.rows.lines, place)
            if seconds is not None:
                self.signals["step_time_s"] = seconds
                self.notes.append(EPOCH_TIMES_NOTE)
        elif self.position.axis != "row":
            written = row_clocks(self.rows.lines)
            if written is not None:
                self.signals["wall_time_s"] = written
                self.notes.append(CLOCK_NOTE)

    def take_restarts(self, stated: Sequence[RestartLine]) -> None:
        """Let attempts begin where lines state it."""
        self._restarts = restarts_of(
            stated, self.rows.lines, self.position.place, self.position.axis
        )

    def take_changes(self, stated: Sequence[ChangeLine]) -> None:
        """Let settings change where lines announce it."""
        if stated:
            self._announced, notes = changes_of(stated, self.rows.lines)
            self.notes += notes[:_MOST_CHANGES_TOLD]

    def record(self, source: str, format_name: str, *, known_format: bool) -> RunRecord:
        self._take_signals()
        if self.rows.ranks is not None:
            self.rows.ranks.put(self.signals, self.keys)
        self._notes_on_values()
        builder = RecordBuilder(source, format_name, axis=self.position.axis)
        place, columns = self._merged()
        _add_all(builder, place, columns, dict(self._run_starts), self._restarts)
        builder.keys.update(self.keys)
        if self.rows.ranks is not None:
            builder.facts[RANK_FACT] = self.rows.ranks.here
        # A trainer known by name needs no note on how it was read, unless a key was guessed.
        if not known_format or self.doubt > 2:
            builder.notes.append(self._how())
        builder.notes.extend(self.notes)
        builder.notes.extend(self._beyond())
        builder.unread.update(self._unread())
        return builder.build()

    def _beyond(self) -> list[str]:
        """Say how many losses under other keys stand before the first record or behind the last."""
        if self.name != "loss":
            return []
        first, last = int(self.rows.lines[0]), int(self.rows.lines[-1])
        lines: dict[str, set[int]] = {}
        for shape in self.others:
            for f in shape.fields:
                if f.kind == "signal" and f.name == "loss" and f.key not in self.keys.values():
                    outside = (n for n in shape.lines if not first <= n <= last)
                    lines.setdefault(f.key, set()).update(outside)
        least = max(_MIN_ROWS_BY_PLACE, _MIN_BEYOND * self.rows.num)
        beyond = [
            f"{UNREAD_NOTE}{counted(len(at), 'line')} with {shown(key)} before or behind these records;"
            " give them as a file of their own to have them judged"
            for key, at in lines.items()
            if len(at) >= least
        ][:1]
        if not beyond and (num := self._goes_on(last)) >= least:
            beyond.append(
                f"{UNREAD_NOTE}{counted(num, 'line')} of later steps hold no loss, or one under a name"
                " that is not known"
            )
        return beyond

    def _goes_on(self, last: int) -> int:
        """Return how many lines of training there are behind a line, at steps behind its own."""
        if self.position.axis != "step" or not self.position.key:
            return 0
        end, num = float(self.position.place[-1]), 0
        for shape in self.others:
            names = {f.name for f in shape.fields if f.kind == "signal"}
            at = next((i for i, f in enumerate(shape.fields) if f.key == self.position.key), None)
            if at is None or names <= HELD_OUT or names & (HELD_OUT - {"perplexity"}):
                continue
            lines, values = shape.table()
            here = values[lines > last, at]
            # A test that follows counts anew.
            num += len(here) if len(here) and here.min() > end else 0
        return num

    def _unread(self) -> dict[str, int]:
        """Return how many values each key has that may be a signal and was not taken for one."""
        stated = self.keys.get(STATED_SETTING, "").split(", ")
        known = (k for name, k in self.keys.items() if not name.startswith(OTHER))
        taken = {*known, *stated, *self.watched}
        counts = {
            f.key: int(c.present.sum())
            for f, c in self.rows.of_kind("signal")
            if f.key not in taken
        }
        for shape in self.others:
            for f in shape.fields:
                if f.kind == "signal" and f.key not in taken and len(shape.lines) > 1:
                    counts[f.key] = counts.get(f.key, 0) + len(shape.lines)
        return counts

    def _take_signals(self) -> None:
        """Take the surest, then fullest, column of each signal on the main lines."""
        best: dict[str, tuple[tuple[int, ...], Field, Column]] = {}
        settings: dict[str, Column] = {}
        others: dict[str, Column] = {}
        for field, column in self.rows.of_kind("signal"):
            if field.name == STATED_SETTING:
                settings[field.key] = column
                continue
            if field.name.startswith(OTHER):
                others[field.key] = column
                continue
            if field.name == "loss" and field.key != self.key:
                continue
            # Seconds since the start never fall, and nothing says that these are of the epoch.
            if field.key in (NAMELESS_SECONDS, TIME_COST) and (np.diff(column.logged()) >= 0).all():
                continue
            # Of groups of parameters the one that is trained: a frozen one has a rate of 0.
            learns = int((column.logged() > 0).sum()) if field.name == "lr" else 0
            merit = (*_merit(field, column), -alias_place(field.key), learns)
            if field.name not in best or merit > best[field.name][0]:
                best[field.name] = merit, field, column
        loss = best["loss"][2] if "loss" in best else None
        held_out = [] if loss is None or "val_loss" in best else validation_beside(self.key, others)
        if held_out:
            self.signals["val_loss"], self.keys["val_loss"] = others.pop(held_out[0]), held_out[0]
        for name, (_, field, column) in best.items():
            if (
                name == "val_loss"
                and is_bare(field.doubt)
                and loss is not None
                and rises(column, loss)
            ):
                # What is named by its data alone and rises as the loss falls is a score.
                if "eval_score" not in best:
                    self.signals["eval_score"], self.keys["eval_score"] = column, field.key
                continue
            self.signals[name], self.keys[name] = column, field.key
        self._move_accuracy()
        if loss is not None and not is_bare(self.rows.fields["signal", self.key].doubt):
            self._take_scores_by_set(loss)
        if STAGE in self.signals:
            settings[self.keys[STAGE]] = self.signals[STAGE]
        if (stated := settings_in(settings, self._announced)) is not None:
            self.keys[STATED_SETTING], self.signals[STATED_SETTING] = stated
        if loss is not None:
            signals = {*self.signals, *(f.name for s in self.others for f in s.fields)}
            for name, key in named_by_values(others, loss, signals).items():
                self.signals[name], self.keys[name] = others.pop(key), key
                self.notes.append(note_by_values(name, key))
        others = {k: c for k, c in others.items() if may_be_measured(k)}
        for name, (key, column) in others_of(others, np.arange(self.rows.num), self.keys).items():
            self.signals[name], self.keys[name] = column, key
        for name, key in distilled_beside(self.key, others).items():
            self.signals[name], self.keys[name] = others[key], key
            self.signals.pop(OTHER + key, None)
            self.keys.pop(OTHER + key, None)
        if self.name == "loss" and is_whole(self.key):
            self._take_parts_of_total(others)
        scores = {k for n, k in self.keys.items() if n == "accuracy"}
        columns = {
            f.key: c
            for f, c in self.rows.of_kind("signal")
            if f.name == "loss" and f.key not in scores
        }
        if self.name == "loss":
            columns |= self._losses_nearby(columns)
        beside = {f.key: c for f, c in self.rows.of_kind("signal") if f.name in OF_A_TOTAL}
        values = {k: c.values for k, c in (columns | beside).items()}
        for name, key in parts_of(values, self.key, values).items():
            self.signals[name], self.keys[name] = columns[key], key
        terms = terms_of(self.keys)
        parts = {
            k: c
            for k, c in columns.items()
            if k in terms or (k not in self.keys.values() and not names_mean(k))
        }
        named = named_parts(columns)
        for name, key in named.items():
            if name not in self.signals:
                self.signals[name], self.keys[name] = columns[key], key
        name_latent(self.signals, self.keys)
        name_entropy(columns, self.signals, self.keys)
        if BROKEN_PARTS in self.signals or self.name != "loss":
            return
        known = True if is_whole(self.key) else None
        found = watch_parts(
            self.key,
            columns[self.key],
            parts,
            self.notes,
            is_whole=known,
            judged={*named.values(), *terms},
        )
        self.watched = found.keys
        if found.broken is not None:
            self.signals[BROKEN_PARTS], self.keys[BROKEN_PARTS] = found.broken

    def _take_parts_of_total(self, others: Mapping[str, Column]) -> None:
        """Take what a total adds up from as its parts, and say that it is the loss."""
        known = {f.key: c for f, c in self.rows.of_kind("signal") if is_part(f.key)}
        terms = {**others, **known}
        values = {k: c.values for k, c in (terms | {self.key: self.signals["loss"]}).items()}
        found = parts_of_total(values, self.key, terms)
        for name, key in found.items():
            self.signals[name], self.keys[name] = terms[key], key
            self.signals.pop(OTHER + key, None)
            self.keys.pop(OTHER + key, None)
        why = f", as the sum of {', '.join(map(shown, found.values()))}" if found else ""
        self.notes.append(
            f"no number is called a training loss; {shown(self.key)} is taken for it{why}"
        )

    def _move_accuracy(self) -> None:
        """Let an accuracy that stands on the rows of the validation loss alone be a held-out score.

        Beside another score it is a number of its own.
        """
        of_card = [self.keys.get(name, "") for name in ("loss", "val_loss", "accuracy")]
        keys = [f.key for f, _ in self.rows.of_kind("signal")]
        if not all(of_card) or not accuracy_is_held_out(keys, *of_card):
            return
        if (self.signals["accuracy"].present & ~self.signals["val_loss"].present).any():
            return
        key = self.keys.pop("accuracy")
        name = OTHER + key if "eval_score" in self.signals else "eval_score"
        self.signals[name], self.keys[name] = self.signals.pop("accuracy"), key

    def _take_scores_by_set(self, loss: Column) -> None:
        """Read `Train: 0.91, Val: 0.87, Test: 0.86` beside a loss: what rises is an accuracy.

        That of a second held-out set is a number of its own.
        """
        for f, column in self.rows.of_kind("signal"):
            if not is_bare(f.doubt) or f.key in self.keys.values() or not rises(column, loss):
                continue
            name = "accuracy" if f.name == "loss" else OTHER + f.key
            if name not in self.signals and ("eval_score" in self.signals or f.name == "loss"):
                self.signals[name], self.keys[name] = column, f.key

    def _losses_nearby(self, known: Collection[str]) -> dict[str, Column]:
        """Return other losses of records that take several lines, one value for each row."""
        keys = [
            f.key
            for s in self.others
            for f in s.fields
            if f.kind == "signal" and f.name == "loss" and f.key not in known
        ]
        found: dict[str, Column] = {}
        for key in dict.fromkeys(keys):
            side = gather(
                [
                    s
                    for s in self.others
                    if any((f.kind, f.key) == ("signal", key) for f in s.fields)
                ]
            )
            where = np.searchsorted(self.rows.lines, side.lines, side="right") - 1
            column = self._laid(side.columns["signal", key].values, where, None)
            if column is not None and column.present.sum() >= _MIN_BESIDE * self.rows.num:
                found[key] = column
        return found

    def _merged(self) -> tuple[NDArray[np.float64], dict[str, Column]]:
        """Return steps and columns of the main rows and of validation rows between them."""
        extra = [
            f
            for s in self.others
            for f in s.fields
            if f.kind == "signal"
            and f.name not in (*self.signals, STATED_SETTING, "loss")
            and not f.name.startswith(OTHER)
        ]
        steps, lines = self.position.place, self.rows.lines
        added: list[tuple[int, float, str, float]] = []
        names = list(dict.fromkeys(f.name for f in extra))
        sets = self._sets_alone([name for name in names if name.startswith(_OF_SETS)])
        for name in names:
            if name in sets or not name.startswith(_OF_SETS):
                added.extend(self._from_other_lines(name))
        self._run_starts = self.rows.run_starts()
        if not added:
            return steps, self.signals
        added.sort(key=lambda item: item[0])
        order = np.searchsorted(lines, [a[0] for a in added], side="left")
        # Each row put in moves those behind it by one.
        at = order + np.arange(len(added))
        num = len(steps) + len(added)
        main = np.ones(num, dtype=np.bool_)
        main[at] = False
        places = np.flatnonzero(main)
        self._run_starts = tuple((int(places[row]), name) for row, name in self._run_starts)
        self._restarts = {int(places[row]): said for row, said in self._restarts.items()}
        place = np.empty(num)
        place[main], place[at] = steps, [a[1] for a in added]
        columns: dict[str, Column] = {}
        for name in {*self.signals, *(a[2] for a in added)}:
            column = Column(np.full(num, np.nan), np.zeros(num, dtype=np.bool_))
            if name in self.signals:
                column.values[main] = self.signals[name].values
                column.present[main] = self.signals[name].present
            mine = [(i, a[3]) for i, a in zip(at.tolist(), added, strict=True) if a[2] == name]
            for i, value in mine:
                column.values[i], column.present[i] = value, True
            columns[name] = column
        return place, columns

    def _sets_alone(self, names: Sequence[str]) -> list[str]:
        """Return which signals of held-out sets that are named alone are losses."""
        loss = self.signals.get("loss")
        if loss is None or not names:
            return []
        level = since_then(loss)
        found: dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for name in names:
            side = gather([s for s in self.others if any(f.name == name for f in s.fields)])
            column = next(c for f, c in side.of_kind("signal") if f.name == name)
            row = np.searchsorted(self.rows.lines, side.lines, side="right") - 1
            found[name] = column.values, np.where(row >= 0, level[np.maximum(row, 0)], np.nan)
        return losses_by_set(found)

    def _from_other_lines(self, name: str) -> list[tuple[int, float, str, float]]:
        """Return (line, step, name, value) of a signal on lines without a training loss.

        Values that are no validation are laid into a row here; only validation gets rows.
        """
        mine = [s for s in self.others if any(f.name == name for f in s.fields)]
        often = max(len(s.lines) for s in mine) * _USUAL_SHARE
        mine = [s for s in mine if len(s.lines) >= often]  # not what a launch prints once
        side = gather(mine)
        candidates = [(f, c) for f, c in side.of_kind("signal") if f.name == name]
        field, column = max(candidates, key=lambda x: _merit(*x))
        at = np.flatnonzero(column.present)
        own = self._own_step(side)
        where = np.searchsorted(self.rows.lines, side.lines[at], side="right") - 1
        if name in HELD_OUT or name.startswith(_OF_SETS):
            found = self._validation(side, column, at, where, own)
            # A score that is printed once or twice is that of a last report.
            if name in _SCORES and len({step for _, step, _, _ in found}) < _MIN_ROWS:
                return []
            self.keys[name] = field.key
            return found
        self._lay_in(name, field.key, column.values[at], where, None if own is None else own[at])
        if name not in self.signals and self.position.axis == "epoch":
            self._lay_in_between(name, field.key, mine)
        return []

    def _lay_in_between(self, name: str, key: str, shapes: Sequence[Shape]) -> None:
        """Put values of records of several lines, whose epoch many rows share, into their rows."""
        side = gather(_regular(shapes))
        column = side.columns.get(("signal", key))
        if column is None or not np.any(self.position.place % 1):
            return
        at = np.flatnonzero(column.present)
        where = np.searchsorted(self.rows.lines, side.lines[at], side="right") - 1
        if len(at):
            self._lay_in(name, key, column.values[at], where, None)

    def _own_step(self, side: TextRows) -> NDArray[np.float64] | None:
        wanted = ("step", self.position.key) if self.position.axis == "step" else ("epoch", "epoch")
        column = side.columns.get(wanted)
        if column is None and self.position.axis == "step":
            steps = side.of_kind("step")
            column = steps[0][1] if steps else None
        if column is None and self.position.axis == "step":
            same = [c for f, c in side.of_kind("lead", "counter") if f.key == self.position.key]
            column = same[0] if same else None
        return None if column is None else column.values

    def _validation(
        self,
        side: TextRows,
        column: Column,
        at: NDArray[np.intp],
        where: NDArray[np.intp],
        own: NDArray[np.float64] | None,
    ) -> list[tuple[int, float, str, float]]:
        place = self.position.place
        result: list[tuple[int, float, str, float]] = []
        name = next(f.name for f, c in side.of_kind("signal") if c is column)
        for i, row in zip(at.tolist(), where.tolist(), strict=True):
            last = place[row] if row >= 0 else -np.inf
            following = place[row + 1] if row + 1 < len(place) else np.inf
            step = float(own[i]) if own is not None and np.isfinite(own[i]) else float(last)
            ahead = following if following > last else np.inf
            # A step outside those of the rows around it counts something else.
            if step >= last and step <= ahead and np.isfinite(step):
                # Behind the training row of the same step, which is printed on the next line.
                line = int(side.lines[i]) + (step == following)
                result.append((line, step, name, float(column.values[i])))
            elif row >= 0:
                result.append((int(side.lines[i]), float(last), name, float(column.values[i])))
        return result

    def _lay_in(
        self,
        name: str,
        key: str,
        values: NDArray[np.float64],
        where: NDArray[np.intp],
        own: NDArray[np.float64] | None,
    ) -> None:
        """Put values on other lines into the rows of the same step, or into the row before."""
        column = self._laid(values, where, own)
        if column is not None:
            self.signals[name], self.keys[name] = column, key

    def _laid(
        self,
        values: NDArray[np.float64],
        where: NDArray[np.intp],
        own: NDArray[np.float64] | None,
    ) -> Column | None:
        place = self.position.place
        num = len(place)
        target = where.copy()
        if own is not None:
            target[:] = -1
            for shift in range(-_REACH, _REACH + 1):
                row = np.clip(where + shift, 0, num - 1)
                target = np.where((target < 0) & (place[row] == own), row, target)
        # Without a step, values are laid in by place only where there is about one for each row.
        elif len(values) > 1.5 * num or len(values) < 0.5 * num or where[0] < 0:
            behind = where + 1
            if len(values) > 1.5 * num or len(values) < 0.5 * num or behind[-1] >= num:
                return None
            target = behind
        good = (target >= 0) & (target < num)
        if np.count_nonzero(good) < max(0.5 * len(good), 2.0, _MIN_FULL * num):
            return None
        column = Column(np.full(num, np.nan), np.zeros(num, dtype=np.bool_))
        column.values[target[good]] = values[good]
        column.present[target[good]] = True
        return column

    def _notes_on_values(self) -> None:
        loss = self.signals.get("loss")
        if loss is not None and loss.present.any() and np.all(loss.logged() == -1.0):
            self.notes.append(NOT_COMPUTED_HERE)
        if loss is not None and names_mean(self.key):
            self.notes.append(MEAN_NOTE.format(key=self.key))
        drop_zero_norm(self.signals, self.keys, self.notes)
        gaps = np.diff(self.position.place)
        gap = float(np.median(gaps[gaps > 0])) if np.any(gaps > 0) else 1.0
        if self.position.axis == "step" and gap > 1:
            self.notes.append(
                f"rows stand {gap:g} steps apart; a value may be a mean over the steps between"
            )

    def _how(self) -> str:
        sure = "high" if self.doubt <= 1 else "medium" if self.doubt <= 4 else "low"
        return (
            f"a format without a name, learned from its lines: {self.name} is {self.key!r}, rows"
            f" are counted {self.position.how}; {counted(self.rows.num, 'record')}, the first on"
            f" line {int(self.rows.lines[0])}; confidence {sure}"
        )


def _draft(
    key: str,
    name: str,
    main: Sequence[Shape],
    shapes: Sequence[Shape],
    marks: Marks,
    announced: Sequence[int] = (),
) -> _Draft:
    chosen = _near_the_rest(_regular(main))
    rows = gather(chosen)
    left_out = sum(len(s.lines) for s in main) - rows.num
    rows, evaluations = part_announced(rows, announced)
    headings = gather(epoch_lines([s for s in shapes if not any(s is m for m in chosen)])).lines
    rows, drawn = part_other_bars(rows, headings)
    evaluations += drawn
    if left_out:
        rows.notes.append(
            f"{counted(left_out, 'line')} with {key!r} without a step, or far from the others,"
            " left out"
        )
    rows = _since_the_row_before(one_rank(rows, key), key)
    # A summary that is left out may hold what only it has: the validation loss of its epoch.
    ids = {id(s) for s in chosen} | {
        id(s) for s in main if not any(f.name in HELD_OUT for f in s.fields)
    }
    others = [s for s in shapes if id(s) not in ids and len(s.lines)] + evaluations
    part_runs(rows, key, others, marks)
    rows = _of_one_writer(rows)
    draft = _Draft(key, name, rows, others)
    finite = np.isfinite(draft.position.place)
    if not finite.all():
        rows = rows.keep(finite)
        draft = _Draft(key, name, rows, others)
    if draft.position.axis == "step" and rows.run is None:
        loss = rows.columns["signal", key]
        written = np.where(loss.present, loss.values, np.nan)
        beside = other_writers(draft.position.place, written)
        if beside.any():
            rows = rows.keep(~beside)
            rows.notes.append(WRITERS_NOTE.format(rows=counted(int(beside.sum()), "row")))
            draft = _Draft(key, name, rows, others)
    return _without_placeholders(draft, key, name, others)


def _since_the_row_before(rows: TextRows, key: str) -> TextRows:
    """Leave out a low first row of spaCy's table: its losses are sums since the row before."""
    shared = rows.columns.get(("signal", _SPACY))
    step = next((c for _, c in rows.of_kind("step", "lead", "counter") if c.present.all()), None)
    if shared is None or step is None or rows.num <= _MIN_ROWS or step.values[0] != 0:
        return rows
    loss = rows.columns["signal", key].values
    if not (loss[0] < loss[1] / 2 and shared.values[0] <= shared.values[1] / 2):
        return rows
    rows = rows.keep(np.arange(rows.num) > 0)
    rows.notes.append(
        "losses are sums since the row before, so the first, of no steps, is left out"
    )
    return rows


def _of_one_writer(rows: TextRows) -> TextRows:
    """Leave out the rows of a second process in another epoch."""
    epochs, steps = rows.of_kind("epoch"), rows.of_kind("step", "maybe-step")
    if rows.run is not None or not epochs or not steps:
        return rows
    beside = other_writers_of_epochs(epochs[0][1].values, steps[0][1].values)
    if not beside.any():
        return rows
    rows = rows.keep(~beside)
    rows.notes.append(WRITERS_NOTE.format(rows=counted(int(beside.sum()), "row")))
    return rows


def _without_placeholders(draft: _Draft, key: str, name: str, others: Sequence[Shape]) -> _Draft:
    """Leave out -1 where another line has a loss for the same step.

    Ranks that do not compute it.
    """
    loss, place = draft.rows.columns["signal", key], draft.position.place
    notes: list[str] = []
    drop = placeholder_rows(loss, place, notes)
    if not drop.any():
        return draft
    rows = draft.rows.keep(~drop)
    rows.notes.extend(notes)
    return _Draft(key, name, rows, others)


def _regular(main: Sequence[Shape]) -> Sequence[Shape]:
    """Leave out lines without a step where nearly all others have one: summaries."""
    counting = [s for s in main if any(f.kind in ("step", "counter") for f in s.fields)]
    total = sum(len(s.lines) for s in main)
    return counting if sum(len(s.lines) for s in counting) >= _MIN_COUNTING * total else main


def _near_the_rest(main: Sequence[Shape]) -> Sequence[Shape]:
    """Leave out rare shapes far from all others, such as examples in source code in front."""
    total = sum(len(s.lines) for s in main)
    usual = [s for s in main if len(s.lines) >= _USUAL_SHARE * total]
    if not usual or len(usual) == len(main):
        return main
    lines = np.sort(np.concatenate([np.array(s.lines, dtype=np.int64) for s in usual]))
    kept = []
    for shape in main:
        here = np.array(shape.lines, dtype=np.int64)
        after = np.clip(np.searchsorted(lines, here), 0, len(lines) - 1)
        gap = np.minimum(abs(lines[after] - here), abs(lines[np.maximum(after - 1, 0)] - here))
        if len(shape.lines) >= _USUAL_SHARE * total or np.median(gap) <= _FAR_LINES:
            kept.append(shape)
    return kept


def _refusal(draft: _Draft) -> tuple[str, bool]:
    """Return why rows are not believed to be a run ("": they are), and whether nothing helps."""
    num, axis = draft.rows.num, draft.position.axis
    loss = draft.rows.columns["signal", draft.key]
    if not np.any(loss.present):
        return "no line has a training loss", True
    if axis == "row" and draft.doubt >= 10:
        return f"nothing but {shown(draft.key)} might be a loss, and no step is logged", True
    if num < _MIN_ROWS:
        return f"only {counted(num, 'line')} with a training loss", False
    # Any prose may name a loss a few times; without a step there must be more of it.
    if axis == "row" and num < _MIN_ROWS_BY_PLACE:
        return f"only {counted(num, 'line')} with a training loss and none with a step", False
    if num < _MIN_REPEATS * draft.rows.num_skeletons and (
        axis == "row" or num < 2 * draft.rows.num_skeletons
    ):
        why = f"{counted(num, 'line')} speak of {shown(draft.key)} but no two in the same words"
        return why, False
    finite = loss.logged()[np.isfinite(loss.logged())]
    if is_bare(draft.rows.fields["signal", draft.key].doubt) and _is_score(finite):
        return f"what is called {shown(draft.key)} rises as scores do", True
    if axis == "row" and len(np.unique(finite)) < min(_MIN_DISTINCT * len(finite), 20):
        what = f"{counted(num, 'line')} with {shown(draft.key)} without a step"
        return f"{what}, and hardly two differ", False
    return "", False


def _is_score(values: NDArray[np.float64]) -> bool:
    """Whether values named by their data alone are shares, of 1 or of 100, that only get better."""
    if len(values) < 2 * _MIN_ROWS or values.min() < 0 or not values.max() <= 100:
        return False
    last = float(np.median(values[-(len(values) // 3) :]))
    return bool(values[0] == values.min() and last > _BETTER * values[0])


def _believed(draft: _Draft, are_records: AreRecords) -> bool:
    loss = draft.rows.columns["signal", draft.key]
    broken = bool((loss.present & ~np.isfinite(loss.values)).any())
    return are_records(draft.rows.lines, broken=broken, counts=draft.position.axis != "row")


_SCORES_ALONE = ("eval_score", "eval_error", "accuracy")
"""What a log may hold alone, an epoch a line."""
_ALONE = (
    *("perplexity", "lr", "grad_norm", "loss_scale", "val_loss", "reward"),
    *_SCORES_ALONE,
    "episode_length",
)
"""What gives the rows of a log without a loss, the first that it has."""


def _without_loss(shapes: Sequence[Shape], marks: Marks) -> _Draft | None:
    """Return a record of steps with a learning rate or norm where no loss is logged."""
    counting = [s for s in shapes if any(f.kind == "step" for f in s.fields)]
    for name in _ALONE:
        # An agent is counted by its episodes, too, and may say so on a line nearby.
        of_agent = name in ("reward", "episode_length")
        of_epochs = of_agent or name == "perplexity" or name in _SCORES_ALONE
        # An evaluation may name its step by its place alone: `Eval @ 500`.
        by_place = of_epochs or name == "val_loss"
        found = choose_main(shapes if by_place else counting, name)
        if found is None:
            continue
        key, main = found
        least = _MIN_REWARDS if of_agent else _MIN_ROWS_BY_PLACE
        if sum(len(s.lines) for s in main) < least:
            continue
        draft = _draft(key, name, main, shapes, marks)
        repeated = draft.rows.num >= _MIN_REPEATS * draft.rows.num_skeletons
        counted_by = ("step", "epoch") if of_epochs else ("step",)
        if draft.position.axis in counted_by and repeated and draft.rows.num >= least:
            draft.notes.append("no training loss is logged")
            return draft
    return None


def _add_all(
    builder: RecordBuilder,
    steps: NDArray[np.float64],
    columns: dict[str, Column],
    runs: Mapping[int, str],
    restarts: Mapping[int, Restart],
) -> None:
    """Add rows, stretches of rising steps at once.

    An attempt begins where the text states it. A step that is logged again with another loss begins an attempt, if that is rare; where it is
    common (micro-batches) the first stands.
    """
    change = np.diff(steps)
    name = "reward" if "loss" not in columns else "loss"
    loss = columns.get(name)
    again = np.zeros(len(change), dtype=np.bool_)
    if loss is not None:
        values = loss.values
        # NaN is unequal to itself, but a line that is printed twice says the same.
        differs = ~np.isclose(values[1:], values[:-1], rtol=0, atol=0, equal_nan=True)
        again = (change == 0) & loss.present[1:] & loss.present[:-1] & differs
        if np.count_nonzero(again) > max(3.0, _MAX_AGAIN * len(steps)):
            again[:] = False
    starts = np.flatnonzero(change <= 0) + 1
    alone = {*starts.tolist(), *(starts + 1).tolist()}  # a row at the step before, then the rest
    bounds = sorted({0, len(steps), *alone, *runs, *restarts})
    for first, end in pairwise(bounds):
        if first in runs:
            builder.start_attempt(why=runs[first], anew=True)
        elif first in restarts:
            said = restarts[first]
            builder.start_attempt(parent_step=said.step, why=f"the log says {shown(said.why)}")
        elif 0 < first < end and again[first - 1]:
            builder.start_attempt(why=f"step {steps[first]:g} is logged again with another {name}")
        part = slice(first, end)
        builder.extend(
            steps[part], {n: Column(c.values[part], c.present[part]) for n, c in columns.items()}
        )
