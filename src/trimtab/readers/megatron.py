"""Text of Megatron-LM and Megatron-DeepSpeed, also inside Markdown and behind rank prefixes.

    iteration  7000/ 159576 | consumed samples: 260912 | elapsed time per iteration (ms): 18706.1 |
    learning rate: 6.000E-05 | ... | lm loss: 6.444662E+00 | loss scale: 2048.0 | grad norm: ... |

The fields of a line are found by their keys, in any order; what units they have is settled over the
whole log afterwards (`megatron_units`). A line without its closing bar was cut off while it was
written and is left out: half a number is worse than none.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines
from trimtab.readers.chatter import Chatter
from trimtab.readers.freetext.changes import ChangeLine, changes_of, states_change
from trimtab.readers.line_layout import LaidOut, Layouts, RecordLayout, learn_record
from trimtab.readers.megatron_units import MegatronFork, settle_units
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.readers.rank_times import RankTimes
from trimtab.readers.sections import Sections
from trimtab.readers.stated_settings import STATED_SETTING, settings_in
from trimtab.record import RecordBuilder, RunRecord
from trimtab.vocabulary import canonical, unit_scale

__all__ = ["MegatronReader"]

_ITERATION = re.compile(r"iteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|")
# The bound keeps the search linear in a file without line ends.
_ITERATION_BYTES = rb"iteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,2000}?:"
_VALIDATION = re.compile(
    r"valid(?:ation)? loss at (?:iteration\s+(\d{1,15})|the end of training)([^|]*)\|"
)
# `[default3]:` of torchrun, `[rank3]:`, and `3:` of srun --label.
_RANK = re.compile(r"\[(?:default|rank)?\s*\d+\]\s*:|^\s*\d+\s*:")
_LINE_END = re.compile(r"\s*(?:\[(?:default|rank)?\s*\d*\]?:?|\d+:)?\s*")
"""Text allowed after the last bar: nothing, or the prefix of another rank's next line."""
_LAST_KEY = "number of nan iterations:"
_ELISION = re.compile(r"\s*(?:\[\s*(?:\.{2,}|…)\s*\]|\.{3}|…)\s*")
_RECENT_ROWS = 256
_LAGGING_ROWS = 8
_FEW_LINES = 16
"""Records in a row that are not worth more than a look at each."""


class MegatronReader:
    """Reads Megatron text."""

    name = "megatron"
    looks_for = "Megatron lines (`iteration 10/ 1000 | ... | lm loss: ...`)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.95 where the record line occurs, however deep in the file."""
        if sample.is_binary:
            return 0.0
        return 0.95 if sample.contains(_ITERATION_BYTES) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It holds no whole record.
        """
        lines = TextLines(path)
        return self._read_blocks(lines.blocks(), str(path), tail_notes=lines.notes)

    def read_lines(self, lines: Iterable[str], source: str) -> RunRecord:
        """Read lines that need not come from a file; `source` names them.

        Raises:
            ReadError: There is no whole record among them.
        """
        return self._read_blocks(([line] for line in lines), source)

    def _read_blocks(
        self, blocks: Iterable[list[str]], source: str, *, tail_notes: object = None
    ) -> RunRecord:
        parse = _Parse(RecordBuilder(source, self.name))
        for block in blocks:
            parse.see_block(block)
        if parse.builder.num_rows == 0:
            raise ReadError(
                f"{source}: no whole record, looked for {self.looks_for}; "
                f"{parse.num_torn} were cut off"
            )
        parse.note()
        parse.builder.unread.update(parse.unread)
        if callable(tail_notes):
            parse.builder.notes.extend(tail_notes())
        return settle_units(parse.with_changes(parse.builder.build()), parse.layout)


_MOST_CHANGES = 256


@dataclass
class _Parse:
    """The state of reading one log."""

    builder: RecordBuilder
    layout: MegatronFork = field(default_factory=MegatronFork)
    has_last_key: bool = False
    """Whether the lines so far end with the counter of NaN iterations, as nearly all do."""
    num_torn: int = 0
    num_bad_values: int = 0
    num_rank_repeats: int = 0
    num_elisions: int = 0
    sections: Sections = field(init=False)
    known: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Key as printed -> canonical name ("" for one that no alias knows) and factor."""
    recent: dict[int, tuple[str, int, tuple[float | None, ...]]] = field(default_factory=dict)
    """Step -> rank that printed it, when, and what."""

    layouts: Layouts = field(default_factory=Layouts)
    chatter: Chatter = field(default_factory=Chatter)
    rank_times: RankTimes = field(default_factory=RankTimes)
    changes: list[ChangeLine] = field(default_factory=list)
    """Lines that announce a change; their number is that of the records before them."""
    unread: Counter[str] = field(default_factory=Counter)
    """Keys that no alias knows, and how many records have a number under each."""

    def __post_init__(self) -> None:
        self.sections = Sections(self.builder)

    def with_changes(self, record: RunRecord) -> RunRecord:
        """Return the record with what lines between its records announce."""
        columns, notes = changes_of(self.changes, np.arange(record.num_rows, dtype=np.int64))
        found = settings_in({}, columns)
        if found is None or STATED_SETTING in record.columns:
            return record
        key, column = found
        return replace(
            record,
            columns={**record.columns, STATED_SETTING: column},
            keys={**record.keys, STATED_SETTING: key},
            notes=(*record.notes, *(n.replace("line", "behind record", 1) for n in notes)),
        )

    def see_block(self, lines: list[str]) -> None:
        """Look at lines in their order.

        Records in a row by their layouts, all others one by one.
        """
        seen = 0
        # The first record is read by the slow path, which learns the keys that a layout needs.
        while seen < len(lines) and (not self.known or len(lines) < _FEW_LINES):
            self.see(lines[seen])
            seen += 1
        if seen == len(lines):
            return
        lines = lines[seen:]
        found = self.layouts.lay_over(lines, self._layout_of)
        run: list[int] = []
        for at, kind in enumerate(found.kinds.tolist()):
            if kind >= 0:
                run.append(at)
            elif _is_inert(lines[at]):
                self.chatter.see(lines[at])
                self.rank_times.see(lines[at])
                if states_change(lines[at], 1) is not None:
                    self._see_run(lines, run, found)
                    run = []
                    self._see_change(lines[at])
            else:
                self._see_run(lines, run, found)
                run = []
                self.see(lines[at])
        self._see_run(lines, run, found)

    def _layout_of(self, line: str) -> RecordLayout | None:
        """Return the layout of a record line; None where it is none, or has a key not yet seen."""
        match = _ITERATION.search(line)
        if match is None or not line.isascii():
            return None
        keys = (part.partition(":") for part in line[match.end() :].split("|"))
        # An unknown key may be a new signal, or show which fork it is: the slow path looks at it.
        if any(colon and key not in self.known for key, colon, _ in keys):
            return None
        # Learning is a trial: the line is read again, and must not be counted twice.
        before = self.num_bad_values
        unread = self.unread.copy()
        values = self._fields(line, match.end())
        keys_here = tuple((self.unread - unread).keys())
        self.unread = unread
        if values is None or self.num_bad_values != before:
            self.num_bad_values = before
            return None
        fields = {"step": (match.span(1), 1.0)}
        at = match.end()
        for part in line[at:].split("|"):
            key, colon, _ = part.partition(":")
            name, factor = self.known.get(key, ("", 1.0)) if colon else ("", 1.0)
            span = (at + len(key) + 1, at + len(part))
            if colon and (name in values or not name):
                fields[name or f"? {at}"] = (span, factor)
            at += len(part) + 1
        rank = "".join(_RANK.findall(line[: match.start()]))
        return learn_record(
            line, fields, {"step": float(match[1]), **values}, (rank, _LAST_KEY in line), keys_here
        )

    def _see_run(self, lines: list[str], run: list[int], found: LaidOut) -> None:
        """Take records that follow one another, in one piece where their steps rise."""
        if not run:
            return
        places = np.array(run)
        shapes = found.shapes(places)
        # Where a step falls or repeats there may be a restart or another rank: `see` decides.
        falls = np.diff(found.values[places, 0]) <= 0
        for part in np.split(places, np.flatnonzero(falls | (np.diff(shapes) != 0)) + 1):
            self._see_rising(lines, part, found)

    def _see_rising(self, lines: list[str], places: NDArray[np.intp], found: LaidOut) -> None:
        layout = found.layouts[found.kinds[places[0]]]
        steps = found.values[places, 0]
        at = 0
        while at < len(places) and not self._may_extend(layout, steps[at:]):
            self.see(lines[places[at]])
            at += 1
        rest = places[at:]
        if not len(rest):
            return
        first = self.builder.num_rows
        columns = layout.columns(found.values[rest])
        self.builder.extend(steps[at:], columns)
        for key in layout.unread:
            self.unread[key] += len(rest)
        self.has_last_key = layout.closed
        late = np.arange(max(0, len(rest) - _RECENT_ROWS), len(rest))
        cells = [
            columns[n].values[late].tolist() if n in columns else [None] * len(late)
            for n in ("loss", "grad_norm", "samples_seen", "step_time_s")
        ]
        for row, step, *shown in zip(late.tolist(), steps[at:][late].tolist(), *cells, strict=True):
            # As `_is_rank_repeat` leaves it: another rank may repeat these lines later.
            self.recent[int(step)] = (layout.rank, first + row, tuple(shown))
        for step in list(self.recent)[: len(self.recent) - _RECENT_ROWS]:
            del self.recent[step]

    def _may_extend(self, layout: RecordLayout, steps: NDArray[np.float64]) -> bool:
        """Whether records can be nothing but new rows of the attempt under way."""
        last = self.builder.last_step
        if last is None or self.sections.pending or len(steps) < _FEW_LINES or steps[0] <= last:
            return False
        # A line that ends early is torn where all others have the last key.
        if self.has_last_key and not layout.closed:
            return False
        return bool(steps[0] > max(self.recent, default=-1))

    def see(self, line: str) -> None:
        if "|" in line:
            match = _ITERATION.search(line)
            if match is not None:
                self._see_record(line, match)
                return
            match = _VALIDATION.search(line)
            if match is not None:
                self._see_validation(line, match)
                return
        elif ("..." in line or "…" in line) and _ELISION.fullmatch(line):
            self.num_elisions += 1
            return
        self.chatter.see(line)
        self.rank_times.see(line)
        self.sections.see(line)
        self._see_change(line)

    def _see_change(self, line: str) -> None:
        if self.builder.num_rows > 0 and len(self.changes) < _MOST_CHANGES:
            said = states_change(line, self.builder.num_rows)
            self.changes += [said] if said is not None else []

    def _see_record(self, line: str, match: re.Match[str]) -> None:
        values = self._fields(line, match.end())
        closed = _LAST_KEY in line
        # A line cut off right behind a bar looks whole but for its last key.
        if values is None or (self.has_last_key and not closed):
            self.num_torn += 1
            return
        self.has_last_key = closed
        step = int(match[1])
        prefix = line[: match.start()]
        if self._is_rank_repeat(step, prefix, values):
            self.num_rank_repeats += 1
            return
        if self.builder.num_rows == 0:
            self.layout = MegatronFork.of_line(line)
        if self.builder.num_rows == 0 or self.sections.pending:
            self.builder.facts["total_steps"] = float(match[2])
        if self.sections.pending:
            self.sections.begin()
            # After a restart the same steps come again, with other values, and are no repeats.
            self.recent = {step: self.recent[step]}
        self.builder.add(step, values)

    def _see_validation(self, line: str, match: re.Match[str]) -> None:
        values = self._fields(line, match.end())
        if values is None:
            self.num_torn += 1
            return
        step = float(match[1]) if match[1] else self.builder.last_step
        # Megatron prints the test loss of the end in the words of a validation.
        if step is None or "test" in match[2]:
            return
        wanted = {n: v for n, v in values.items() if n in ("val_loss", "perplexity")}
        if wanted:
            self.builder.add(step, wanted)

    def _fields(self, line: str, start: int) -> dict[str, float] | None:
        """Return the known fields of a line, None where it was cut off."""
        parts = line[start:].split("|")
        if not _LINE_END.fullmatch(parts[-1]):
            return None
        values: dict[str, float] = {}
        for part in parts:
            key, colon, text = part.partition(":")
            if not colon:
                continue
            known = self.known.get(key)
            if known is None:
                known = self._learn(key)
            name, factor = known
            if not name:
                self._count_unread(key, text)
                continue
            try:
                # `float` strips blanks and takes nan and inf; other spellings are rare.
                values[name] = float(text) * factor
            except ValueError:
                self._odd_value(values, name, text)
        return values

    def _count_unread(self, key: str, text: str) -> None:
        try:
            float(text)
        except ValueError:
            return
        self.unread[key.strip()] += 1

    def _odd_value(self, values: dict[str, float], name: str, text: str) -> None:
        try:
            number = parse_number(text)
        except BadNumberError:
            self.num_bad_values += 1
            return
        if number is not None:
            values[name] = number

    def _learn(self, key: str) -> tuple[str, float]:
        name = canonical(key) or ""
        factor = unit_scale(key) if name == "step_time_s" else 1.0
        if name and name not in self.builder.keys:
            self.builder.keys[name] = key.strip()
        self.known[key] = (name, factor)
        return name, factor

    def _is_rank_repeat(self, step: int, prefix: str, values: dict[str, float]) -> bool:
        """Whether another rank has printed this line before.

        The same step with the same figures from another rank, or twice the same line to the last
        digit, is a repeat; so is another rank's line that lags by a few rows. What follows a
        launch or a heading is never one: that is a restart.
        """
        rank = "".join(_RANK.findall(prefix))
        shown = (values.get("loss"), values.get("grad_norm"), values.get("samples_seen"))
        row = self.builder.num_rows
        before = self.recent.get(step)
        if before is not None and not self.sections.pending:
            other_rank = rank != before[0]
            same = shown == before[2][:3]
            lags = row - before[1] <= _LAGGING_ROWS
            if other_rank and (same or lags):
                return True
            # From the same rank only an equal time, too, shows that it is the same line: a restart
            # may reproduce the loss to the last digit.
            if same and values.get("step_time_s") == before[2][3]:
                return True
        self.recent[step] = (rank, row, (*shown, values.get("step_time_s")))
        if len(self.recent) > _RECENT_ROWS:
            del self.recent[next(iter(self.recent))]
        return False

    def note(self) -> None:
        """Add a note for each kind of record that was left out."""
        notes = self.builder.notes
        notes.extend(self.chatter.notes(self.builder.num_rows))
        notes.extend(self.rank_times.notes())
        if self.num_rank_repeats:
            notes.append(
                f"{counted(self.num_rank_repeats, 'record')} repeated by other ranks left out"
            )
        if self.num_elisions:
            notes.append(f"{counted(self.num_elisions, 'elision')} ([...]): rows are missing there")
        if self.num_torn:
            notes.append(f"{counted(self.num_torn, 'record')} cut off in mid-line and left out")
        if self.num_bad_values:
            notes.append(f"{counted(self.num_bad_values, 'value')} that are no numbers left out")
        notes.extend(self.sections.close())


def _is_inert(line: str) -> bool:
    """Whether a line that is no record changes nothing: no validation, no elision, no launch."""
    if line[:1] in ("#", "-", "*") or "..." in line or "…" in line or "loaded checkpoint" in line:
        return False
    return "|" not in line or ("iteration" not in line and "valid" not in line)
