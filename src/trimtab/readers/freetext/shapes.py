"""The shapes of the lines of a text, and the numbers of the lines of each shape.

A line without its numbers is its skeleton. Lines with one skeleton hold the same fields, so a line
is parsed once per skeleton and then read by position. Skeletons with the same fields are one
`Shape`. Lines without fields, such as prose or source code, cost little and give none.
"""

import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.chatter import Chatter
from trimtab.readers.freetext.changes import ChangeLine, states_change
from trimtab.readers.freetext.header import Header, read_header
from trimtab.readers.freetext.key_values import (
    BAR,
    CLOCK,
    NUMBER,
    PROGRESS_BAR,
    TOKEN,
    Field,
    fields_of,
    is_clock,
    to_number,
)
from trimtab.readers.freetext.keys import Meaning, announces, is_held_out
from trimtab.readers.freetext.restarts import RestartLine, states_restart
from trimtab.readers.freetext.unread_validation import UnreadValidation, may_be_validation
from trimtab.readers.numbers import shown
from trimtab.said_by_words import name_norms

__all__ = ["Shape", "Shapes"]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# tqdm's bar: its fill is noise, and its length differs from terminal to terminal.
_BAR = re.compile(r"(?<!\w)\|[^|\w]*\|(?=\s*[\d?])")
# Box drawing of rich tables, full-width punctuation of Chinese logs, the minus sign, hard blanks,
# and the blocks that bars are drawn with.
_GLYPHS = str.maketrans(
    {"│": "|", "┃": "|", "║": "|", "\uff1a": ":", "\u2212": "-", "\xa0": " ", "\u202f": " "}
    | {"\uff0c": ",", "\uff1b": ";", "\uff08": "(", "\uff09": ")", "\u3002": "."}
    | {chr(c): " " for c in range(0x2580, 0x25A0)}
)
_HEADING = re.compile(r"(\s*)[*#=>\-\s]*((?:[A-Za-z]+ ?){1,3}):?[\s*#=\-]*:?\s*")
"""Words alone on a line; those that name held-out data apply to the lines indented below."""
_PREFIX = re.compile(
    rf"\s*(?:(?:\[?(?:rank|default|worker)[ _]?\d+\]?:?|\d{{1,4}}\s*:|\[?(?:{CLOCK})\]?:?)\s?)+",
    re.IGNORECASE,
)
"""Rank and time that a launcher puts before every line, the rows of tables too."""
_OWNER = re.compile(
    r"(?<=\w)'s (?:(l[12]|rmse|mape|huber|fair|quantile|poisson|gamma|tweedie)\b|(?=\w))"
)
"""`valid_0's l2`, as LightGBM calls what it measures on a set of data; its losses by their names."""
_GAP = re.compile(r"[ \t]{50,}")
_LONG_LINE_LENGTH = 1_000
_MAX_HEADING_LENGTH = 120
_MAX_LINE_LENGTH = 20_000
_MAX_SKELETONS = 20_000
_HEADER_PATIENCE = 2_000

_FAST_AFTER = 50
"""Lines of a skeleton after which an expression is compiled for it."""
_MAX_COMPILED = 400
"""Most parts of a line for which one is compiled: that takes a millisecond for each ten."""
_MAX_ANNOUNCED = 100_000
_MAX_LEARNT = 200_000
"""Wordings after which no new one is looked at: the text is no log, or its records are known."""
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_ODD = re.compile(rf"(?<![\w.]){_NOT_FINITE.pattern}(?!\w)", re.IGNORECASE)
_MAX_BROKEN_TOLD = 5
_OF_SETTINGS = frozenset({"lr", "batch_size", "stage", "stated_setting"})
"""Signals that a line may hold which announces a change."""
_MIN_LINES_OF_KEY = 2
"""Lines of one wording below which its keys name settings rather than signals."""


@dataclass
class Shape:
    """Lines with the same fields in the same order."""

    fields: tuple[Field, ...]
    lines: "array[int]" = field(default_factory=lambda: array("q"))
    values: "array[float]" = field(default_factory=lambda: array("d"))
    """Row after row, one value per field."""
    num_skeletons: int = 0
    """How many wordings of the line there were; free prose never repeats one."""
    ends_in_words: bool = False
    """Whether a wording goes on behind its last number: `Epoch 5 finished`, not `Epoch 5/10`."""

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return line numbers [n] and values [n, n_fields]."""
        lines = np.array(self.lines, dtype=np.int64)
        values = np.array(self.values, dtype=np.float64)
        return lines, values.reshape(len(lines), len(self.fields))


def _may_announce(plan: "_Plan | None") -> bool:
    """Whether a line holds no value but that of a setting."""
    fields = () if plan is None else plan.shape.fields
    return all(f.name in _OF_SETTINGS for f in fields if f.kind == "signal")


def _with_norms(literals: list[str]) -> list[str]:
    """Return the texts of a line with `|g|` called a norm, where the bars are not those of cells."""
    # `|loss|2.5|g|0.7|`, and the losses of two nets.
    if any(text.startswith("|") for text in literals[1:-1]) or "|d|" in "".join(literals).lower():
        return literals
    return [name_norms(text) for text in literals]


def _owned(match: re.Match[str]) -> str:
    return f" {match[1]} loss" if match[1] else " "


@dataclass
class _Plan:
    """How to read the lines of one skeleton."""

    shape: Shape
    places: tuple[tuple[int, float], ...]
    """Index of each field's number among the parts of the line, and its factor."""
    unread: Mapping[str, int] = field(default_factory=dict)
    """Keys of numbers that nobody knows, with the place of each among the parts of the line."""
    num_lines: int = 0
    num_slow: int = 0
    fast: Callable[[str], re.Match[str] | None] | None = None

    def compile(self, skeleton: tuple[str, ...], tokens: Sequence[str]) -> None:
        """Make `fast`: an expression for just these lines, twice as fast as taking them apart."""
        # only for numbers in the order of the line, with text between all of them
        wanted = [place for place, _ in self.places if place >= 0]
        if wanted != sorted(wanted) or not all(skeleton[1:-1]) or len(skeleton) > _MAX_COMPILED:
            return
        pattern = re.escape(skeleton[0])
        for i, literal in enumerate(skeleton[1:]):
            group = "" if 2 * i + 1 in wanted else "?:"
            number = CLOCK if is_clock(tokens[i]) else NUMBER
            pattern += f"[ \\t]{{0,60}}({group}{number})" + re.escape(literal)
        self.fast = re.compile(pattern).fullmatch


class Shapes:
    """Collects the shapes of a text, line by line."""

    def __init__(
        self,
        extra: Mapping[str, Meaning | None] | None = None,
        token: re.Pattern[str] = TOKEN,
    ) -> None:
        """Start with no shape; `extra` are meanings of keys that go before the general ones."""
        self.shapes: dict[tuple[tuple[str, str], ...], Shape] = {}
        self.num_lines = 0
        self._extra = dict(extra or {})
        self._token = token
        self._number: Callable[[str], float] = to_number
        if token is not TOKEN:
            self._number = _comma_number
        self._plans: dict[tuple[str, ...], _Plan | None] = {}
        self._header: Header | None = None
        self._since_header = 0
        self._num_learnt = 0
        self._below: int | None = None
        """Indent of a heading over lines of validation data."""
        self.announced = array("q")
        """Lines without a number that say that an evaluation begins, at most 100,000 of them."""
        self.restarts: list[RestartLine] = []
        """Lines that state a restart, or may, at most 100,000 of them."""
        self._restarting: set[tuple[str, ...]] = set()
        """Wordings of such lines with a number."""
        self.changes: list[ChangeLine] = []
        """Lines that announce another phase or setting, at most 100,000 of them."""
        self._changing: set[tuple[str, ...]] = set()
        """Wordings of such lines with a number."""
        self.unread: dict[str, int] = {}
        """Keys of numbers that nobody knows, on lines that hold a value or a count."""
        self.broken: dict[str, tuple[int, int]] = {}
        """Keys with NaN or Inf: on how many lines, and the first of them."""
        self.unread_validation = UnreadValidation()
        self.chatter = Chatter()
        """How often each warning occurs, numbers left out; at most 1,000 of them."""

    def see(self, lines: Iterable[str]) -> None:
        """Look at every line."""
        split, plans = self._token.split, self._plans
        number = 0
        fast: _Plan | None = None
        for number, line in enumerate(lines, 1):
            # A NaN in any number is told, also in one that a fast plan does not take.
            broken = (
                "nan" in line or "inf" in line or "NaN" in line or "NAN" in line or "Inf" in line
            ) and _ODD.search(line) is not None
            if fast is not None and fast.fast is not None and self._header is None and not broken:
                # most lines repeat the last wording: one regular expression reads them whole
                match = fast.fast(line)
                if match is not None:
                    _put(fast, match.groups(), number, self._number)
                    continue
            if "\x1b" in line:
                line = _ANSI.sub("", line)
            if not line.isascii():
                line = line.translate(_GLYPHS)
            if "%|" in line:
                line = _BAR.sub(BAR, line)
            # a line this long is a dump of data, and costly to split
            if len(line) > _MAX_LINE_LENGTH:
                continue
            # Columns padded to a terminal's width; only long lines are worth the search.
            if len(line) > _LONG_LINE_LENGTH:
                line = _GAP.sub("    ", line)
            if self._below is not None:
                line = self._under_heading(line)
            if self._header is not None and self._see_row(line, number):
                continue
            # `split` with one group: text and numbers alternate, the text at even places.
            parts = split(line)
            if len(parts) == 1:
                self._see_words(line)
                if len(self.announced) < _MAX_ANNOUNCED and announces(line):
                    self.announced.append(number)
                self._see_restart(line, number)
                self._see_change(line, number)
                if self._below is not None:
                    fast = None
                self.chatter.see(line)
                continue
            skeleton = tuple(parts[::2])
            try:
                plan = plans[skeleton]
            except KeyError:
                plan = self._learn(skeleton, parts, line)
                if states_restart(line, number) is not None:
                    self._restarting.add(skeleton)
                if _may_announce(plan) and states_change(line, number) is not None:
                    self._changing.add(skeleton)
                names_signal = plan is not None and any(
                    f.kind == "signal" for f in plan.shape.fields
                )
                if not names_signal and may_be_validation(skeleton, parts[1::2]):
                    self.unread_validation.begin(skeleton, line, number)
            if self.unread_validation and skeleton in self.unread_validation:
                self.unread_validation.see(skeleton)
            if self._restarting and skeleton in self._restarting:
                self._see_restart(line, number)
            if self._changing and skeleton in self._changing:
                self._see_change(line, number)
            if plan is not None:
                if broken:
                    self._see_broken(plan, parts, number)
                _put(plan, [parts[p] for p, _ in plan.places if p >= 0], number, self._number)
                plan.num_slow += 1
                # Again at each multiple: two wordings may take turns.
                if plan.num_slow % _FAST_AFTER == 0 and self._may_go_fast(skeleton):
                    if plan.num_slow == _FAST_AFTER:
                        plan.compile(skeleton, parts[1::2])
                    fast = plan if self._below is None else None
            else:
                self.chatter.see(line, wording="#".join(skeleton))
        self.num_lines = number
        self._count_unread()

    def _may_go_fast(self, skeleton: tuple[str, ...]) -> bool:
        return self._token is TOKEN and skeleton not in self.unread_validation

    def _see_restart(self, line: str, number: int) -> None:
        said = states_restart(line, number) if len(self.restarts) < _MAX_ANNOUNCED else None
        if said is not None:
            self.restarts.append(said)

    def _see_change(self, line: str, number: int) -> None:
        said = states_change(line, number) if len(self.changes) < _MAX_ANNOUNCED else None
        if said is not None:
            self.changes.append(said)

    def _count_unread(self) -> None:
        for skeleton, plan in self._plans.items():
            if plan is not None and plan.num_lines >= _MIN_LINES_OF_KEY:
                for key in plan.unread:
                    self.unread[key] = self.unread.get(key, 0) + plan.num_lines
                # A warning with a number in it that could be a signal is one all the same.
                text = "#".join(skeleton)
                self.chatter.see(text, wording=text, times=plan.num_lines)

    def _see_broken(self, plan: _Plan, parts: Sequence[str], number: int) -> None:
        """Count the numbers of a line that are NaN or Inf, by their keys."""
        known = zip((f.key for f in plan.shape.fields), (p for p, _ in plan.places), strict=True)
        for key, place in (*known, *plan.unread.items()):
            if place >= 0 and _NOT_FINITE.fullmatch(parts[place].strip()):
                num, first = self.broken.get(key, (0, number))
                self.broken[key] = num + 1, first

    def broken_notes(self, told: Iterable[str]) -> list[str]:
        """Return what numbers are NaN or Inf, other than those of keys that are told elsewhere."""
        said, told = list[str](), set(told)
        for key, (num, first) in [*self.broken.items()]:
            if key not in told:
                lines = f"line {first}" if num == 1 else f"{num} lines, the first is line {first}"
                said.append(
                    f"{shown(key)} is NaN or Inf on {lines}; it is no signal that is judged"
                )
        more = len(said) - _MAX_BROKEN_TOLD
        return said[:_MAX_BROKEN_TOLD] + ([f"so are {more} other keys"] if more > 0 else [])

    def drop_torn(self) -> bool:
        """Leave out the last line if it holds fewer fields than the shape before it.

        Say whether.
        """
        last = [s for s in self.shapes.values() if s.lines and s.lines[-1] == self.num_lines]
        # A shape that occurs before is a whole line, however short.
        if not last or len(last[0].lines) > 1:
            return False
        shape = last[0]
        begun = tuple(f.key for f in shape.fields)
        longer = any(
            len(s.fields) > len(begun) and tuple(f.key for f in s.fields[: len(begun)]) == begun
            for s in self.shapes.values()
        )
        if longer:
            shape.lines.pop()
            del shape.values[-len(shape.fields) :]
        return longer

    def _learn(self, skeleton: tuple[str, ...], parts: list[str], line: str) -> _Plan | None:
        self._num_learnt += 1
        if self._num_learnt > _MAX_LEARNT:
            return None
        # free prose makes a skeleton a line; forgetting them all bounds the memory
        if len(self._plans) >= _MAX_SKELETONS:
            self._count_unread()
            self._plans.clear()
        unread: dict[str, int] = {}
        literals = [_OWNER.sub(_owned, text) for text in _with_norms(parts[::2])]
        fields = fields_of(literals, parts[1::2], self._extra, unread)
        plan: _Plan | None = None
        if any(f.kind in ("signal", "step", "epoch") or f.key == PROGRESS_BAR for f in fields):
            shape = self._shape(fields)
            shape.num_skeletons += 1
            shape.ends_in_words |= any(map(str.isalpha, skeleton[-1]))
            places = tuple((2 * f.index + 1 if f.index >= 0 else -1, f.factor) for f in fields)
            plan = _Plan(shape, places, {key: 2 * i + 1 for key, i in unread.items()})
        self._plans[skeleton] = plan
        if plan is None or all(f.kind != "signal" for f in fields):
            below = self._below
            self._see_words(line)
            if self._below != below:
                del self._plans[skeleton]  # a heading: look again each time
        return plan

    def _shape(self, fields: tuple[Field, ...]) -> Shape:
        key = tuple((f.kind, f.key + (f.name if f.index < 0 else "")) for f in fields)
        shape = self.shapes.get(key)
        if shape is None:
            shape = self.shapes[key] = Shape(fields)
        return shape

    def _under_heading(self, line: str) -> str:
        """Put the word into a line that is indented below `Validation:`."""
        own = _without_prefix(line)
        indent = len(own) - len(own.lstrip())
        if not own.strip() or (self._below is not None and indent > self._below):
            return f"validation | {line}"
        self._below = None
        return line

    def _see_words(self, line: str) -> None:
        line = _without_prefix(line)
        heading = _HEADING.fullmatch(line) if len(line) <= _MAX_HEADING_LENGTH else None
        if heading is not None and is_held_out(heading[2]):
            self._below = len(heading[1])
        # Two cheap searches: without a loss among its names no table is of use here.
        header = read_header(line, self._extra) if "oss" in line or "OSS" in line else None
        if header is not None:
            self._header, self._since_header = header, 0

    def _see_row(self, line: str, number: int) -> bool:
        """Read a line as a row of the table under the last header."""
        header = self._header
        assert header is not None
        found = header.row(line) or header.row(_without_prefix(line))
        if found is None:
            self._since_header += 1
            if self._since_header > _HEADER_PATIENCE:
                self._header = None
            return False
        self._since_header = 0
        shape = self._shape(found[0])
        shape.num_skeletons = 1
        shape.lines.append(number)
        shape.values.extend(found[1])
        return True


def _without_prefix(line: str) -> str:
    match = _PREFIX.match(line)
    return line if match is None else line[match.end() :]


def _put(plan: _Plan, tokens: Sequence[str], number: int, convert: Callable[[str], float]) -> None:
    shape = plan.shape
    shape.lines.append(number)
    plan.num_lines += 1
    put = shape.values.append
    if len(tokens) < len(plan.places):
        put(_tag(shape))
    for token, (_, factor) in zip(tokens, plan.places[-len(tokens) :], strict=True):
        try:
            put(float(token) * factor)
        except ValueError:
            put(convert(token) * factor)


def _tag(shape: Shape) -> float:
    """Return the rank that is a word in the lines of a shape (`[rank3]`)."""
    return next(float(f.name) for f in shape.fields if f.index < 0)


def _comma_number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return to_number(text)
