"""One JSON document per file: rows, columns, or values by step, at any depth.

    {"log_history": [{"step": 1, "loss": 2.0}, ...], ...}               rows (HF's trainer_state)
    [{"step": 1, "loss": 2.0}, ...]                                     rows
    {"loss": [2.0, 1.9, ...], "val_loss": [...]}                        columns (Keras history)
    {"steps": [...], "loss": [...], "val_steps": [...], "val_loss": [...]}    columns (`own_steps`)
    {"lm loss": {"start_step": 1, "step_interval": 5, "values": {"1": 2.0, ...}}, ...}
    {"lm loss": {"1": 2.0, "5": 1.9, ...}}                              values by step (Megatron)
    {"loss": [[1, 2.0], ...]}, {"loss": {"steps": [...], "values": [...]}}    series (Sacred, ...)
    {"meta": {...}, "iterations": [{"learn": [0.68], ...}, ...]}        rows of `catboost`

Python's own print of one (`{'loss': nan, ...}`) is read, too. The largest such part with a known
name is the run. In values by step, the string "nan" means that nothing was recorded: those files are
filled up to a fixed length. A list of rows that was cut off while it was written is read up to there.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from trimtab.errors import ReadError
from trimtab.readers.base import Sample
from trimtab.readers.catboost import boosting_rows
from trimtab.readers.given_columns import all_given, columns_given
from trimtab.readers.jsonl import as_json, flatten
from trimtab.readers.long_form import (
    LongForm,
    StepValues,
    fill_series,
    main_series,
    numbers_of,
    series_of,
)
from trimtab.readers.numbers import counted
from trimtab.readers.own_steps import placed
from trimtab.readers.table import LogTable, is_known_key, is_step_key
from trimtab.readers.table_axis import is_inner_step, may_count_rows
from trimtab.readers.tags import tag_of_file
from trimtab.readers.whole import read_whole
from trimtab.record import RunRecord

__all__ = ["JsonDocumentReader", "names_of_columns"]

_MAX_DEPTH = 4
_MAX_DIGITS = 15
_MAX_RUNS = 8
"""How many objects of a list are looked into for lists of their own."""
_ROWS, _COLUMNS, _BY_STEP, _SERIES = "rows", "columns", "by step", "series"
_OPENING = re.compile(r"\s*(?:\{\s*[\"']|\[\s*(?:[\[{]|-?\d[\d.eE+-]*\s*,))")
"""An object's first key, a list's first row or number; not a time stamp in brackets."""
_LABEL = re.compile(rb"\s*[A-Za-z][\w ]{0,40}\s?[:=]\s?(?=\{\s*[\"'])")
"""What a program prints in front of a document: `train history: {'loss': [...], ...}`."""
_SIGNS = re.compile(
    r'"log_history"\s*:\s*\[|"(?:start_step|step_interval)"\s*:|"learn_metrics"\s*:\s*\['
)
_META = re.compile(r'\s*\{\s*"meta"\s*:\s*(?=\{)')
"""What a document begins with that says above its rows what their values are."""
_LOSS_KEY = re.compile(
    r"([\"'])[^\"']{0,40}loss[^\"']{0,20}\1\s*:\s*(?:[\[{\d]|nan|inf)", re.IGNORECASE
)
_FORMATS = {"log_history": "hf-trainer-state", "values": "golden-values", "learn": "catboost"}


class JsonDocumentReader:
    """Reads JSON documents."""

    name = "json"
    looks_for = "a JSON document with rows, columns or values by step (trainer_state.json)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.95 where a document has the marks of a known writer or holds a run."""
        lines = sample.lines
        text = _without_label(sample.text.encode()).decode()
        if sample.is_binary or not lines or not _OPENING.match(text):
            return 0.0
        if len(lines) > 1 and text == sample.text and _is_whole(lines[0]):
            return 0.0  # JSON lines
        if sample.whole:
            document = _parse(text.encode())
            if document is not None:
                return 0.95 if _best(document, sample.path) is not None else 0.0
        # The document is larger than the sample, so its parts cannot be looked at yet.
        if _SIGNS.search(sample.text):
            return 0.95
        return 0.6 if _LOSS_KEY.search(sample.text) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It is no JSON, or there is no known signal in it.
        """
        data, _ = read_whole(path)
        document = _parse(data)
        notes: list[str] = []
        if document is None:
            document, is_torn = _salvage(data, path)
            if is_torn:
                notes.append("the document breaks off; the rows before the break were read")
        found = _best(document, path)
        if found is None:
            raise ReadError(
                f"{path}: no rows, columns or values by step with a known name; looked for a loss, "
                "reward, grad norm and others; give a training log"
            )
        table = LogTable(str(path), _FORMATS.get(found.name, self.name))
        table.notes.extend(notes)
        # What a person says of a column goes before what the document says.
        said = found.meanings and not all_given()
        with columns_given(found.meanings) if said else nullcontext():
            _FILL[found.kind](table, found.part)
            table.settle_problems([], "a number")
            return table.to_record(columnar=False)


@dataclass(frozen=True)
class _Found:
    """A part of a document that can be a run."""

    kind: str
    name: str
    """Its key; `values` for values by step."""
    part: object
    size: int
    meanings: Mapping[str, str] = field(default_factory=dict)
    """Canonical name -> key, where the document says what its values are."""


def _parse(data: bytes) -> object:
    """Return the document, None where the bytes are not JSON."""
    text = _without_label(data.removeprefix(b"\xef\xbb\xbf"))
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)  # NaN and Infinity, which the standard forbids
    except (ValueError, RecursionError):
        pass
    try:
        return json.loads(as_json(text.decode("utf-8")))  # what Python prints
    except (ValueError, RecursionError):
        return None


def _without_label(data: bytes) -> bytes:
    """Return a document without the word in front of it, and what is printed behind it then."""
    label = _LABEL.match(data)
    if label is None:
        return data
    end = data.rfind(b"}") + 1  # none in the sample of a large one
    return data[label.end() : end or len(data)]


def _is_whole(line: str) -> bool:
    return isinstance(_parse(line.encode()), dict)


def _salvage(data: bytes, path: Path) -> tuple[object, bool]:
    """Return the whole rows of a list that breaks off, or objects in a row, and whether it is torn.

    What stands above the rows and names their values comes with them, as in the whole document.

    Raises:
        ReadError: There is no list with whole rows.
    """
    text = data.decode("utf-8", errors="replace")
    rows, is_torn = _rows_in(text)
    if is_torn or not rows:
        # What Python prints may break off, too, and have its first NaN behind whole rows.
        printed = _rows_in(as_json(text))
        rows, is_torn = max((rows, is_torn), printed, key=lambda found: len(found[0]))
    if rows:
        meta = _meta_of(text)
        return (rows if meta is None else {"meta": meta, "iterations": rows}), is_torn
    line, what = _first_fault(text)
    raise ReadError(f"{path}:{line}: no whole JSON document ({what}); it may have been cut off")


def _meta_of(text: str) -> object:
    begins = _META.match(text)
    if begins is None:
        return None
    try:
        return json.JSONDecoder().raw_decode(text, begins.end())[0]
    except (ValueError, RecursionError):
        return None


def _rows_in(text: str) -> tuple[list[object], bool]:
    """Return the whole rows of a list, or objects in a row, and whether it breaks off."""
    # trainer_state.json has settings in front of its list, and the list may lie megabytes deep.
    named = r'"log_history"\s*:\s*\[|(?<=[},\s])"iterations"\s*:\s*\[\s*(?=\{)'
    start = re.search(named, text) or re.match(r"\s*(?:\[|(?=\{))", text)
    # rows of a list, or objects one after another
    rows: list[object] = []
    at = start.end() if start is not None else len(text)
    decoder = json.JSONDecoder()
    gap = re.compile(r"[\s,]*")
    try:
        while (gap_end := gap.match(text, at)) is not None and gap_end.end() < len(text):
            # Row by row: what is whole before the break is read, as with any torn log.
            row, at = decoder.raw_decode(text, gap_end.end())
            rows.append(row)
    except (ValueError, RecursionError):
        pass
    return rows, at < len(text.rstrip())


def _first_fault(text: str) -> tuple[int, str]:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.lineno, error.msg
    except (ValueError, RecursionError) as error:
        return 1, type(error).__name__
    return 1, "not understood"


def _best(document: object, path: Path) -> _Found | None:
    """Return the largest part of a document that can be a run."""
    series, tag = series_of(document) or numbers_of(document), tag_of_file(path)
    # A lone list of pairs, or of numbers, has no name inside; that of its file is all there is.
    if series is not None and tag:
        return _Found(_SERIES, "series", {tag: series}, len(series))
    return max(_candidates(document, "", 0), key=lambda f: f.size, default=None)


def _candidates(part: object, name: str, depth: int) -> Iterator[_Found]:
    if isinstance(part, list):
        rows = [row for row in part if isinstance(row, dict)]
        named = _named_series(rows)
        if named:
            yield _Found(_SERIES, "series", named, max(map(len, named.values())))
        elif rows and _rows_know(rows):
            yield _Found(_ROWS, name, rows, len(rows))
        for row in rows[:_MAX_RUNS] if depth <= _MAX_DEPTH else ():
            for key, value in row.items():
                if isinstance(value, list):
                    yield from _candidates(value, key, depth + 1)
        return
    if not isinstance(part, dict) or depth > _MAX_DEPTH:
        return
    boosting = boosting_rows(part)
    if boosting is not None:
        yield _Found(_ROWS, "learn", boosting.rows, len(boosting.rows), boosting.meanings)
        return
    table = _rows_of_frame(part)
    if table:
        yield _Found(_ROWS, name, table, len(table))
        return
    series = {k: s for k, v in part.items() if (s := series_of(v)) is not None}
    if any(is_known_key(k) for k in series):
        yield _Found(_SERIES, "series", series, max(map(len, series.values())))
    nested = {
        f"{k}/{name}": v
        for k, inner in part.items()
        if isinstance(inner, dict)
        for name, v in inner.items()
        if _is_column(v) and is_known_key(f"{k}/{name}")
    }
    if len(nested) > 1:
        yield _Found(_COLUMNS, "", nested, max(map(len, nested.values())))
    columns = {k: v for k, v in part.items() if _is_column(v) and is_known_key(k)}
    if columns:
        yield _Found(_COLUMNS, name, part, max(len(v) for v in columns.values()))
    by_step = {k: steps for k, v in part.items() if (steps := _values_by_step(v)) is not None}
    if any(is_known_key(k) for k in by_step):
        yield _Found(_BY_STEP, "values", by_step, max(map(len, by_step.values())))
    for key, value in part.items():
        if isinstance(value, dict | list) and key not in by_step:
            yield from _candidates(value, key, depth + 1)


def names_of_columns(text: str) -> tuple[str, ...]:
    """Return the names of the columns of a document of nothing else; none for another text."""
    document = _parse(text.encode()) if _OPENING.match(text) else None
    if not isinstance(document, dict):
        return ()
    return tuple(str(key) for key, value in document.items() if _is_column(value))


def _rows_know(rows: list[dict[str, object]]) -> bool:
    # Both ends: evaluation keys often appear late, training keys may end before a summary.
    heads = [*rows[:20], *rows[-20:]]
    keys = {key for row in heads for key, _ in flatten(row)}
    return any(is_known_key(key) for key in keys) or LongForm.told_by(rows[0]) is not None


def _named_series(rows: list[dict[str, object]]) -> dict[str, StepValues]:
    """Return the series of `[{"name": "loss", "x": [...], "y".

    [...]}, ...]`, none of other rows.
    """
    found: dict[str, StepValues] = {}
    for row in rows:
        name = next((row[k] for k in ("name", "metric", "tag", "key") if k in row), None)
        series = series_of(row)
        if isinstance(name, str) and series is not None:
            found[name] = series
    return found


def _rows_of_frame(part: dict[str, Any]) -> list[dict[str, object]]:
    """Return the rows of a data frame as pandas writes it, or of rows by their step; else none.

    `{"columns": [...], "data": [[...], ...]}`, `{"step": {"0": 1, ...}, "loss": {"0": 2.5, ...}}`
    and `{"1": {"loss": 2.5}, "2": ...}`.
    """
    names, data = part.get("columns"), part.get("data")
    if isinstance(names, list) and isinstance(data, list):
        return [
            dict(zip(map(str, names), row, strict=True))
            for row in data
            if isinstance(row, list) and len(row) == len(names)
        ]
    if not part or not all(isinstance(v, dict) for v in part.values()):
        return []
    if any(is_step_key(k) for k in part):
        index = list(next(v for k, v in part.items() if is_step_key(k)))
        return [{k: v.get(i) for k, v in part.items()} for i in index]
    if all(k.isdecimal() and len(k) <= _MAX_DIGITS for k in part) and _rows_know(
        list(part.values())
    ):
        keys = {key for row in part.values() for key, _ in flatten(row)}
        counted_by = (
            {} if any(is_step_key(k) for k in keys) else {k: {"step": int(k)} for k in part}
        )
        return [{**counted_by.get(k, {}), **v} for k, v in part.items()]
    return []


def _is_column(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(v is None or isinstance(v, int | float | str) for v in value)
    )


def _values_by_step(value: object) -> dict[float, object] | None:
    """Return the values of one signal by step, None for anything else."""
    if not isinstance(value, dict):
        return None
    values = value.get("values", value)
    if isinstance(values, list) and "start_step" in value:
        start, interval = value.get("start_step"), value.get("step_interval", 1)
        if isinstance(start, int) and isinstance(interval, int):
            # Golden values as a list, with the step of the first and the distance of all.
            return {float(start + i * interval): v for i, v in enumerate(values)}
    if not isinstance(values, dict) or not values:
        return None
    try:
        return {float(k): v for k, v in values.items()}
    except (TypeError, ValueError, OverflowError):
        return None


def _fill_rows(table: LogTable, rows: list[dict[str, object]]) -> None:
    long_form = LongForm.told_by(rows[0])
    if long_form is not None:
        for row in rows:
            long_form.add(row)
        fill_series(table, long_form.series)
        return
    for number, row in enumerate(rows, 1):
        for key, value in flatten(row):
            table.put(key, value, number)
        table.end_row()


def _fill_columns(table: LogTable, part: dict[str, list[object]]) -> None:
    lists = {k: v for k, v in part.items() if _is_column(v)}
    columns = {k: v for k, v in lists.items() if table.role(k) != "nothing"}
    found = placed(lists, main_series(columns))
    for key in (k for k in lists if k not in columns):
        for value in lists[key] if found is None or key in found.series else ():
            table.put(key, value, 1)  # counted, as of a key that nobody knows
    if found is not None:
        table.notes.extend(found.notes)
        fill_series(table, found.series, counted_by=found.axis)
        return
    by_epoch = _is_of_epochs(lists, table.source)
    if by_epoch:
        table.notes.append("lists of a history: each value is taken for that of an epoch, from 1")
    for row in range(max(map(len, columns.values()))):
        if by_epoch:
            table.put("epoch", row + 1, row + 1)
        for key, values in columns.items():
            if row < len(values):
                table.put(key, values[row], row + 1)
        table.end_row()


def _is_of_epochs(lists: Mapping[str, list[object]], source: str) -> bool:
    """Whether lists are a history as Keras keeps it: each metric again on held-out data.

    All of one length, and none of them counts. A file that is called so may have no held-out data.
    """
    if any(is_step_key(k) or is_inner_step(k) or may_count_rows(k) for k in lists):
        return False
    if len(set(map(len, lists.values()))) != 1:
        return False
    tested = [k for k in lists if k.startswith("val_")]
    paired = bool(tested) and all(k.removeprefix("val_") in lists for k in tested)
    return paired or (not tested and "history" in Path(source).stem.lower())


def _fill_by_step(table: LogTable, part: dict[str, dict[float, object]]) -> None:
    wanted = {k: v for k, v in part.items() if table.role(k) != "nothing"}
    steps = sorted({step for values in wanted.values() for step in values})
    num_missing = 0
    for number, step in enumerate(steps, 1):
        table.put("step", step, number)
        for key, values in wanted.items():
            value = values.get(step)
            # A NaN of the run would be the bare word; the string is filling.
            if isinstance(value, str) and value.strip().lower() == "nan":
                num_missing += 1
            else:
                table.put(key, value, number)
        table.end_row()
    if num_missing:
        cells = counted(num_missing, "value")
        table.notes.append(f'"nan" as a string in {cells}, taken as not recorded')


_FILL: dict[str, Callable[[LogTable, Any], None]] = {
    _ROWS: _fill_rows,
    _COLUMNS: _fill_columns,
    _BY_STEP: _fill_by_step,
    _SERIES: fill_series,
}
