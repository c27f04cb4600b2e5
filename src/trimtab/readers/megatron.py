"""Text that Megatron-LM and Megatron-DeepSpeed print, also inside Markdown and behind rank prefixes.

    iteration  7000/ 159576 | consumed samples: 260912 | elapsed time per iteration (ms): 18706.1 |
    learning rate: 6.000E-05 | ... | lm loss: 6.444662E+00 | loss scale: 2048.0 | grad norm: ... |

The fields of a line are found by their keys, in any order; what units they have is settled over the
whole log afterwards (`megatron_units`). A line without its closing bar was cut off while it was
written and is left out: half a number is worse than none.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines
from trimtab.readers.megatron_units import Layout, settle_units
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.readers.sections import Sections
from trimtab.record import RecordBuilder, RunRecord
from trimtab.vocabulary import canonical, unit_scale

__all__ = ["MegatronReader"]

_ITERATION = re.compile(r"iteration\s+(\d{1,15})\s*/\s*(\d{1,15})\s*\|")
_ITERATION_BYTES = rb"iteration\s+\d+\s*/\s*\d+\s*\|[^\n]{0,2000}?:"
_VALIDATION = re.compile(
    r"valid(?:ation)? loss at (?:iteration\s+(\d{1,15})|the end of training)([^|]*)\|"
)
_RANK = re.compile(r"\[(?:default|rank)?\s*\d+\]\s*:|^\s*\d+\s*:")
_LINE_END = re.compile(r"\s*(?:\[(?:default|rank)?\s*\d*\]?:?|\d+:)?\s*")
"""What may stand after the last bar: nothing, or the prefix of another rank's next line."""
_LAST_KEY = "number of nan iterations:"
_ELISION = re.compile(r"\s*(?:\[\s*(?:\.{2,}|…)\s*\]|\.{3}|…)\s*")
_RECENT_ROWS = 256
_LAGGING_ROWS = 8


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
        return self.read_lines(lines, str(path), tail_notes=lines.notes)

    def read_lines(
        self, lines: Iterable[str], source: str, *, tail_notes: object = None
    ) -> RunRecord:
        """Read lines that need not come from a file; `source` names them.

        Raises:
            ReadError: There is no whole record among them.
        """
        parse = _Parse(RecordBuilder(source, self.name))
        for line in lines:
            parse.see(line)
        if parse.builder.num_rows == 0:
            raise ReadError(
                f"{source}: no whole record, looked for {self.looks_for}; "
                f"{parse.num_torn} were cut off"
            )
        parse.note()
        if callable(tail_notes):
            parse.builder.notes.extend(tail_notes())
        return settle_units(parse.builder.build(), parse.layout)


@dataclass
class _Parse:
    """The state of reading one log."""

    builder: RecordBuilder
    layout: Layout = field(default_factory=Layout)
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

    def __post_init__(self) -> None:
        self.sections = Sections(self.builder)

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
        self.sections.see(line)

    def _see_record(self, line: str, match: re.Match[str]) -> None:
        values = self._fields(line, match.end())
        closed = _LAST_KEY in line
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
            self.layout = Layout.of_line(line)
        if self.builder.num_rows == 0 or self.sections.pending:
            self.builder.facts["total_steps"] = float(match[2])
        if self.sections.pending:
            self.sections.begin()
            self.recent = {step: self.recent[step]}
        self.builder.add(step, values)

    def _see_validation(self, line: str, match: re.Match[str]) -> None:
        values = self._fields(line, match.end())
        if values is None:
            self.num_torn += 1
            return
        step = float(match[1]) if match[1] else self.builder.last_step
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
                continue
            try:
                values[name] = float(text) * factor
            except ValueError:
                self._odd_value(values, name, text)
        return values

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
            if same and values.get("step_time_s") == before[2][3]:
                return True
        self.recent[step] = (rank, row, (*shown, values.get("step_time_s")))
        if len(self.recent) > _RECENT_ROWS:
            del self.recent[next(iter(self.recent))]
        return False

    def note(self) -> None:
        """Put into words what was met on the way."""
        notes = self.builder.notes
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
