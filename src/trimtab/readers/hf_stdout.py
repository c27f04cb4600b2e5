"""What Hugging Face's Trainer prints: Python dicts, alone or behind a progress bar.

    {'loss': 2.1, 'grad_norm': 0.9, 'learning_rate': 1e-05, 'epoch': 0.1}

Other trainers print such dicts as well, with a step. Without one, rows are counted by the progress
bar that is drawn before each (`10/4854`), else by the epoch where no two say the same, else by their
place: an evaluation then belongs to the training row before it. A fall of the epoch begins a new
attempt: scripts that train several times in a row. What DeepSpeed says between them belongs to the
row behind it: its step, the steps it skipped, the loss scale it came down to, and when.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines
from trimtab.readers.numbers import BadNumberError, parse_number
from trimtab.readers.table import LogTable, is_known_key
from trimtab.readers.tags import set_of_tag
from trimtab.record import Attempt, RunRecord
from trimtab.vocabulary import canonical, normalise

__all__ = ["HfStdoutReader"]

# Possessive quantifiers: without them a line of many open braces backtracks without end.
_DICT = re.compile(r"\{\s*['\"](?:[^{}]++|\{[^{}]*+\})*+\}")
# No `ast.literal_eval`: nan, inf, tensor(...) and np.float64(...) are no literals of Python.
_PAIR = re.compile(
    r"""(['"])(?P<key>[^'"]+)\1\s*:\s*
        (?:(?:[a-zA-Z_.]+[\w.]*\(\s*)?(?P<number>[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))\b
         | [a-zA-Z_.]+[\w.]*\(\s*\[{1,2}\s*
           (?P<only>[-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|\.\d+|nan|inf))\s*\]
         | (?P<word>None|True|False)
         | (?P<quote>['"])(?P<text>.*?)(?P=quote)(?=\s*[,}]))""",
    re.VERBOSE,
)
# Bounded repetitions, since this runs over whole files of any kind.
_LOSS_PAIR = rb"\{[^\n{}]{0,400}?'[\w/ -]{0,40}(?:loss|grad_norm)[\w/ -]{0,20}'\s*:\s*['A-Za-z(\[]{0,20}[-+\dni.]"


_BAR = re.compile(r"%\|[^|\n]{0,400}\|\s{0,20}(\d{1,12})/(\d{1,12})(?=\s{0,4}\[)")
"""The count of tqdm's bar: `10/4854 [00:15<`."""
_DEEPSPEED_STEP = re.compile(r"\bstep=(\d{1,12}), skipped=(\d{1,12})\b")
_OVERFLOW = re.compile(
    r"overflow!.{0,80}?loss scale: (\d[\d.e+]{0,20})(?:, reducing to (\d[\d.e+]{0,20}))?",
    re.IGNORECASE,
)
_REDUCED = re.compile(
    r"reducing dynamic loss scale from (\d[\d.e+]{0,20}) to (\d[\d.e+]{0,20})", re.IGNORECASE
)
_SAYS = ("skipped=", "verflow!", "OVERFLOW!", "dynamic loss scale")
_WRITTEN = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[,.]\d{1,6})?\]")
_MAX_BARS = 64
_OF_EVALUATION = frozenset({"val_loss", "perplexity", "eval_score", "eval_error"})
_MIN_RISING = 0.9


class HfStdoutReader:
    """Reads printed dicts."""

    name = "hf-stdout"
    looks_for = "printed dicts (`{'loss': 2.1, 'learning_rate': 1e-05, 'epoch': 0.1}`)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.9 where a dict with a loss occurs, however deep in the file."""
        if sample.is_binary:
            return 0.0
        if sample.text.lstrip().startswith('{"'):  # JSON lines: no need to look through them all
            return 0.0
        return 0.9 if sample.contains(_LOSS_PAIR) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: There is no dict with a loss.
        """
        lines = TextLines(path)
        bars, deepspeed = _Bars(), _DeepSpeed()
        rows = list(_rows(chain.from_iterable(lines.blocks()), bars, deepspeed))
        table = LogTable(str(path), self.name)
        has_step = any(table.role(key) == "step" for _, row in rows for key in row)
        if not has_step and bars.count([row for _, row in rows]):
            table.notes.append("the step is that of the progress bar before each record")
        elif not has_step and deepspeed.count([row for _, row in rows]):
            table.notes.append("the step is that of DeepSpeed's line before each record")
        deepspeed.join([row for _, row in rows])
        epochs = _fill(table, rows, merges=not has_step)
        if table.num_rows == 0:
            raise ReadError(f"{path}: no records that can be read; looked for {self.looks_for}")
        table.notes.extend(lines.notes())
        table.bad.clear()  # what is no number in such a dict is a setting
        record = table.to_record(columnar=False)
        return record if record.axis != "row" else _cut_where_epoch_falls(record, epochs)


class _Bars:
    """Where the progress bars stood at each row, by their totals: those of loading, of training."""

    def __init__(self) -> None:
        self._now: dict[int, int] = {}
        self._at_rows: list[dict[int, int]] = []
        self._after_first: dict[int, int] = {}
        self._last = ""

    def see(self, text: str) -> None:
        """Look at a piece of a line."""
        # Around each row the same bar is drawn two or three times.
        text = text.strip()
        if text == self._last:
            return
        self._last = text
        for match in _BAR.finditer(text):
            total = int(match[2])
            if total in self._now or len(self._now) < _MAX_BARS:
                self._now[total] = int(match[1])
                if len(self._at_rows) == 1:
                    self._after_first.setdefault(total, int(match[1]))

    def mark(self) -> None:
        """Remember where they stand at a row."""
        self._at_rows.append(dict(self._now))
        if len(self._at_rows) == 1:
            self._last = ""  # drawn again behind the first row, the same bar says more

    def count(self, rows: list[dict[str, object]]) -> bool:
        """Give each training row the count of the bar that moves on with them; say whether one does."""
        trains = [i for i, row in enumerate(rows) if _trains(row) and "train_runtime" not in row]
        found: list[tuple[int, list[int]]] = []
        for total in sorted(self._now, reverse=True):
            # An excerpt may begin with a row; the bar is drawn again behind it.
            if trains and trains[0] == 0 and total in self._after_first:
                self._at_rows[0].setdefault(total, self._after_first[total])
            places = [self._at_rows[i][total] for i in trains if total in self._at_rows[i]]
            rising = np.count_nonzero(np.diff(places) > 0)
            if len(places) == len(trains) > 1 and rising >= _MIN_RISING * (len(places) - 1):
                found.append((total, places))
        if not found:
            return False
        last = -1
        for k, (i, place) in enumerate(zip(trains, found[0][1], strict=True)):
            # A bar that was not drawn anew since the last row stands behind the step of this one.
            here = last + 1 if k and found[0][1][k - 1] <= place <= last else place
            rows[i]["step"] = last = here
        return True


class _DeepSpeed:
    """What DeepSpeed says before each row."""

    def __init__(self) -> None:
        self._now: dict[str, object] = {}
        self._at_rows: list[dict[str, object]] = []
        self._total: tuple[int, int] | None = None

    def see(self, line: str) -> None:
        """Look at a line without a dict."""
        said = _DEEPSPEED_STEP.search(line)
        if said is not None:
            self._now["step"] = said[1]
            share = self._skipped(int(said[1]), int(said[2]))
            if share is not None:
                self._now["skipped"] = share
        overflow = _OVERFLOW.search(line) or _REDUCED.search(line)
        if overflow is not None:
            self._now["loss_scale"] = overflow[2] or overflow[1]
        written = _WRITTEN.search(line) if said is not None or overflow is not None else None
        if written is not None:
            self._now["timestamp"] = written[1]

    def _skipped(self, step: int, total: int) -> float | None:
        """Return the share of the steps since the last count that were skipped; counts are totals."""
        last, self._total = self._total, (step, total)
        if last is None or step <= last[0] or total < last[1]:
            return None
        return min((total - last[1]) / (step - last[0]), 1.0)

    def mark(self) -> None:
        """Give what was said since the last row to this one."""
        self._at_rows.append(self._now)
        self._now = {}

    def count(self, rows: list[dict[str, object]]) -> bool:
        """Give each training row its step; say whether each has one, and they rise."""
        trains = [i for i, row in enumerate(rows) if _trains(row) and "train_runtime" not in row]
        places = [int(str(self._at_rows[i].get("step", -1))) for i in trains]
        rising = np.count_nonzero(np.diff(places) > 0)
        if len(places) < 2 or min(places) < 0 or rising < _MIN_RISING * (len(places) - 1):
            return False
        for i, place in zip(trains, places, strict=True):
            rows[i]["step"] = place
        return True

    def join(self, rows: list[dict[str, object]]) -> None:
        """Put all but the step into the rows, beside what they say themselves."""
        for row, said in zip(rows, self._at_rows, strict=True):
            for key, value in said.items():
                if key != "step":
                    row.setdefault(key, value)


def _rows(
    lines: Iterable[str], bars: _Bars, deepspeed: _DeepSpeed
) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield (line number, values) of every dict that is a record."""
    for number, line in enumerate(lines, 1):
        drawn = "%|" in line
        if "{" not in line:
            if drawn:
                bars.see(line)
            if any(words in line for words in _SAYS):
                deepspeed.see(line)
            continue
        seen = 0
        for match in _DICT.finditer(line):
            row = _pairs(match[0])
            if any(_speaks_of_training(key, value) for key, value in row.items()):
                if drawn:
                    bars.see(line[seen : match.start()])
                    seen = match.end()
                bars.mark()
                deepspeed.mark()
                yield number, row
        if drawn:
            bars.see(line[seen:])


def _trains(row: dict[str, object]) -> bool:
    return any(canonical(key) in ("loss", "grad_norm") for key in row)


def _pairs(text: str) -> dict[str, object]:
    row: dict[str, object] = {}
    for match in _PAIR.finditer(text):
        value = match["number"] or match["only"]
        value = match["text"] if value is None else value
        if value is not None:
            # The first of a key: nested dicts repeat keys of the outer one.
            row.setdefault(match["key"], value)
    return row


def _speaks_of_training(key: str, value: object) -> bool:
    """Whether a pair makes its dict a record.

    A loss or a grad norm, not a setting such as an LR.
    """
    if not _names_training(key):
        return False
    try:
        return parse_number(value) is not None
    except BadNumberError:
        return False


@lru_cache(maxsize=4096)
def _names_training(key: str) -> bool:
    name = canonical(key)
    if name is not None:
        return name in ("loss", "val_loss", "grad_norm")
    return is_known_key(key) and any("loss" in w for w in normalise(key).replace("/", " ").split())


def _fill(
    table: LogTable, rows: list[tuple[int, dict[str, object]]], *, merges: bool
) -> list[object]:
    """Put rows into a table; return the epoch of each row as printed, None where it has none.

    With `merges`, a row without a training value is put into the row before it.
    """
    epochs: list[object] = []
    keys: list[str] = []
    values: list[object] = []
    at = 0
    # Evaluations join the training row before them, where there are any but a last summary.
    trains = [_trains(row) and "train_runtime" not in row for _, row in rows]
    trained = any(trains)
    for (number, row), is_training in zip(rows, trains, strict=True):
        # The Trainer prints evaluations and its last summary as dicts behind a training row.
        if merges and trained and keys and not is_training:
            kept = [k for k in row if canonical(k) in _OF_EVALUATION or set_of_tag(k) is not None]
            keys += kept
            values += [row[k] for k in kept]
            continue
        if keys:
            table.add(tuple(keys), values, at)
        keys, values, at = list(row), list(row.values()), number
        epochs.append(row.get("epoch"))
    if keys:
        table.add(tuple(keys), values, at)
    return epochs


def _epoch(value: object) -> float | None:
    try:
        return parse_number(value)
    except BadNumberError:
        return None


def _cut_where_epoch_falls(record: RunRecord, epochs: list[object]) -> RunRecord:
    """Return a record counted by rows with a new attempt at each fall of the epoch."""
    at = [_epoch(epochs[int(row)]) for row in record.step]
    cuts: list[int] = []
    last = -np.inf
    for row, epoch in enumerate(at):
        if epoch is None:
            continue
        if epoch < last:
            cuts.append(row)
        last = epoch
    # Attempts that the table has found by a step are surer than those by the epoch.
    if not cuts or len(record.attempts) > 1:
        return record
    bounds = [0, *cuts, record.num_rows]
    attempts = tuple(
        Attempt(
            number=f"1.{i}",
            parent=f"1.{i - 1}" if i else None,
            first_row=bounds[i],
            end_row=bounds[i + 1],
            why="the epoch falls back" if i else "",
        )
        for i in range(len(cuts) + 1)
    )
    index = np.repeat(np.arange(len(attempts), dtype=np.int32), np.diff(bounds))
    return replace(record, attempt=index, attempts=attempts)
