"""The reader for text of any trainer that has no reader of its own.

The shape of the records is learned from the lines themselves (`shapes`): key-value pairs, tables
under a header, JSON or dicts in a line, step counters, rank and time prefixes, progress bars. What
the keys mean, what counts the steps and which lines belong together is decided over the whole file
(`resolve`). The notes of the record say what was guessed and how sure that is.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines, take_sample
from trimtab.readers.freetext.decimal_commas import (
    Commas,
    commas_of,
    has_decimal_commas,
    with_points,
)
from trimtab.readers.freetext.drawn import OPEN_BAR, last_states
from trimtab.readers.freetext.few_lines import are_records
from trimtab.readers.freetext.key_values import DECIMAL_COMMA_TOKEN, TOKEN
from trimtab.readers.freetext.keys import Kind, Meaning
from trimtab.readers.freetext.plain_forms import in_plain_form
from trimtab.readers.freetext.resolve import settle
from trimtab.readers.freetext.row_clocks import row_clocks
from trimtab.readers.freetext.row_times import seconds_per_epoch
from trimtab.readers.freetext.shapes import Shapes
from trimtab.readers.given_columns import all_given
from trimtab.readers.numbers import shown
from trimtab.readers.other_languages import translator
from trimtab.readers.running_means import own_values
from trimtab.readers.runs_in_file import marks_in
from trimtab.readers.skip_counter import skipped_as_share
from trimtab.record import RunRecord, most_values

__all__ = ["MOST_KEYS", "TextReader"]

_ANY_LOSS = (
    rb"(?i)(?:loss|nll|xent|cross.?entropy|cost|\btrl|objective|gnorm|grad.?norm|learning.rate|\blr"
    rb"|perplexity|\bppl|rmse|\bmsle|\bmae\b|\b[dg]_(?:a|b|gan|real|fake|l1)\b|\berr_?[dg]\b|\bscore at iteration\b|\xe6\x8d\x9f\xe5\xa4\xb1)[^\n]{0,200}?"
    rb"(?:\d|nan|inf)|\b(?:train|trn|tr|learn)["
    rb" :=\t]{1,9}\d*\.\d"
    rb"|(?<![a-z])(?:mae|b?ce|mse|elbo|kld|box|bbox|cls|recon|total|error|acc(?:uracy)?)[ :=\t]{1,9}"
    rb"(?:-?\d*\.\d|nan|inf)"
    rb"|\b(?:training|valid\w{0,20})'s \w{1,30}: ?-?\d"
    rb"|\b[dg] ?[:=] ?-?\d{0,9}\.\d[^\n]{0,120}?\b[dg] ?[:=] ?-?\d"
)
_VALUE_BEHIND = r"(?:\W{1,4}|[ _(][^\n:=|,]{0,40}[:=]\W{0,3})-?\d"
"""What stands behind a word that names a value: `: 5`, ` (mean of 100) = 5`."""
_ANY_REWARD = re.compile(
    rf"(?:(?<![A-Za-z])|(?<=avg)|(?<=mean)|(?<=average))(?:rewards?|fitness){_VALUE_BEHIND}"
    r"|(?<![A-Za-z])returns?['\"]?\s?[:=]\W{0,3}-?\d"
    rf"|\bep(?:isode)?\b[^\n]{{0,80}}\b(?:score|return|length){_VALUE_BEHIND}"
    rf"|\b(?:score|return){_VALUE_BEHIND}[^\n]{{0,80}}\bepisode\b",
    re.IGNORECASE,
)
MOST_KEYS = 64
"""Unknown keys that are told, the most frequent ones."""
_FEWEST_BARS = 8
"""Rows below which every state of a progress bar is one."""
_FEWEST_REWARDS = 5
"""Of an agent that logs no loss: as many rewards as make a record."""
_ANY_HEADER = rb"(?i)loss[^\n]{0,4000}\r?\n(?:[^\n]{0,4000}\n)?[^\n]{0,300}\d"
_KINDS: Mapping[str, Kind] = {"step": "step", "epoch": "epoch"}
_JOINED_LOSS = re.compile(r"(?<![A-Za-z])loss_[-+]?(?:\d+\.\d|nan\b|inf\b)", re.IGNORECASE)
_JOINED = re.compile(
    r"(?<=[A-Za-z])_(?=[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)(?:[\s:,;|)\]]|$))",
    re.IGNORECASE,
)
"""What joins a name to its value in a log whose losses read `loss_2.5`."""
_FEWEST_JOINED = 3


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """Reads text: of any trainer, or of one with a name."""

    name: str = "text"
    looks_for: str = "text with a loss on lines that repeat (`step 10 loss 2.5`)"
    pattern: bytes = b""
    """Regular expression that tells the format; empty: any text."""
    keys: Mapping[str, Meaning | None] = field(default_factory=dict)
    """Keys of this format, as `normalise` gives them, that mean something else than they seem to.
    """
    sureness: float = 0.93

    def sniff(self, sample: Sample) -> float:
        """Return `sureness` where the pattern occurs; 0.22 for any text that may log a loss."""
        if sample.is_binary:
            return 0.0
        if self.pattern and not all_given():
            return self.sureness if re.search(self.pattern, sample.windows) else 0.0
        if self.pattern:  # what a person says goes before what a format says
            return 0.0
        if (
            all_given()
            or re.search(_ANY_LOSS, sample.windows)
            or re.search(_ANY_HEADER, sample.windows)
            or len(_ANY_REWARD.findall(sample.text)) >= _FEWEST_REWARDS
        ):
            return 0.22
        if translator(sample.lines) is not None:
            return 0.22
        # Just above MIN_CONFIDENCE: any reader that knows the format goes before it.
        return 0.22 if sample.contains(_ANY_LOSS) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It is binary, or there is no series of losses in it.
        """
        sample = take_sample(path)
        if sample.is_binary:
            raise ReadError(f"{path}: binary data of no known format; give a training log")
        if OPEN_BAR not in sample.text:
            return self._read(path, sample, every_state=False)
        try:
            record = self._read(path, sample, every_state=False)
        except ReadError:
            return self._read(path, sample, every_state=True)
        # Of a few long epochs the states of the bar are all that there is, and where the own values
        # of the batches can be worked out of them they show what happens within an epoch.
        every = self._read(path, sample, every_state=True)
        few = record.num_loss_rows < _FEWEST_BARS
        return every if few or own_values(every) is not every else record

    def _read(self, path: Path, sample: Sample, *, every_state: bool) -> RunRecord:
        throughout = has_decimal_commas(sample.text)
        token = DECIMAL_COMMA_TOKEN if throughout else TOKEN
        commas = Commas() if throughout else commas_of(sample.text)
        shapes = Shapes({**self.keys, **_given_keys()}, token)
        lines = TextLines(path)
        one_by_one: Iterator[str] = itertools.chain.from_iterable(lines.blocks())
        if commas.decimal:
            one_by_one = map(with_points(commas.decimal), one_by_one)
        # A person's keys are words of the file.
        in_english = None if all_given() else translator(sample.lines)
        if in_english is not None:
            one_by_one = map(in_english, one_by_one)
        if len(_JOINED_LOSS.findall(sample.text)) >= _FEWEST_JOINED:
            one_by_one = (_JOINED.sub(" ", line) for line in one_by_one)
        plain = None if all_given() else in_plain_form(sample.text)
        if plain is not None:
            one_by_one = map(plain, one_by_one)
        shown_lines = _pieces(one_by_one) if "\b" in sample.text else one_by_one
        shapes.see(last_states(shown_lines, every_state=every_state))
        notes = [*lines.notes(), *commas.notes()]
        if in_english is not None:
            notes.append("the words of the log were put into English; keys are given in it")
        if lines.torn and shapes.drop_torn():
            notes.append("the last record was torn in mid-write and left out")
        try:
            record = settle(
                list(shapes.shapes.values()),
                str(path),
                self.name,
                known_format=bool(self.pattern),
                are_records=partial(are_records, path),
                seconds_per_epoch=partial(seconds_per_epoch, path),
                row_clocks=partial(row_clocks, path),
                marks=partial(marks_in, path),
                announced=shapes.announced,
                restarts=shapes.restarts,
                changes=shapes.changes,
            )
        except ReadError as error:
            unread = sorted(shapes.unread, key=lambda k: -shapes.unread[k])
            error.keys = tuple(unread[:MOST_KEYS])
            raise
        record = skipped_as_share(record)
        record = replace(record, unread=most_values({**shapes.unread, **record.unread}))
        told = [
            key for key in shapes.broken if any(f"{shown(key)} is NaN" in n for n in record.notes)
        ]
        notes += shapes.broken_notes([*record.keys.values(), *told])
        if not record.columns.keys() & {"val_loss", "val_perplexity"}:
            notes += shapes.unread_validation.notes()
        notes += shapes.chatter.notes(record.num_rows)
        return replace(record, notes=(*record.notes, *notes)) if notes else record


def _given_keys() -> dict[str, Meaning]:
    return {key: Meaning(_KINDS.get(name, "signal"), name, -1) for key, name in all_given().items()}


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Yield what a terminal showed one after the other where backspaces redraw a line."""
    for line in lines:
        # "\b" is the backspace here, not a word boundary: the string is not raw.
        yield from re.split("\b+", line) if "\b" in line else (line,)
