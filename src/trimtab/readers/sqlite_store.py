"""SQLite stores of experiment trackers: MLflow, trackio, and tables of the same kinds.

Recognized by their columns, not their names:

- a value per row (`key`, `value`, `step`, a run): MLflow's `metrics`;
- a JSON object per row (`metrics`, `step`, a run): trackio's `metrics`;
- a column per signal (`step`, `loss`, ...), with or without a run.

One file may hold many runs; each becomes a record `FILE#RUN`.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import numpy as np

from trimtab.errors import ReadError
from trimtab.readers.base import Sample
from trimtab.readers.jsonl import flatten, parse_object
from trimtab.readers.numbers import BadNumberError, parse_number
from trimtab.readers.series import TagSeries, WantedTags, record_of_series, with_clock
from trimtab.readers.table import LogTable, is_known_key
from trimtab.record import RunRecord

__all__ = ["SqliteReader"]

_MAGIC = b"SQLite format 3\0"
_RUN_COLUMNS = ("run_uuid", "run_id", "run_name", "run", "experiment_id", "experiment", "log_id")
_KEY_COLUMNS = ("key", "name", "metric", "metric_name", "tag")
_VALUE_COLUMNS = ("value", "metric_value", "double_value")
_JSON_COLUMNS = ("metrics", "data", "payload", "values", "log")
_STEP_COLUMNS = ("step", "global_step", "iteration", "epoch")
_CLOCK = "timestamp"
_TIME_COLUMNS = ("timestamp", "time", "wall_time", "created_at", "wallclock", "id")


@dataclass(frozen=True)
class _Shape:
    """How one table keeps values."""

    table: str
    columns: tuple[str, ...]
    run: str | None
    key: str | None
    value: str | None
    json: str | None
    step: str | None
    time: str | None


class SqliteReader:
    """Reads SQLite stores."""

    name = "sqlite"
    looks_for = "SQLite stores of MLflow or trackio"

    def sniff(self, sample: Sample) -> float:
        """Return 0.95 where the file is an SQLite database."""
        return 0.95 if sample.raw.startswith(_MAGIC) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file, which must hold one run.

        Raises:
            ReadError: It holds no run, or several.
        """
        records = self.read_all(path)
        if len(records) > 1:
            names = ", ".join(r.source.rpartition("#")[2] for r in records[:4])
            raise ReadError(f"{path}: holds {len(records)} runs ({names} ...); export one of them")
        return records[0]

    def read_all(self, path: Path) -> list[RunRecord]:
        """Read every run in the file.

        Raises:
            ReadError: It holds none, or cannot be read.
        """
        errors: list[str] = []
        records: list[RunRecord] = []
        try:
            with closing(_open(path)) as database:
                for shape in _shapes(database):
                    for run in _runs(database, shape):
                        try:
                            records.append(_read_run(database, shape, run, path))
                        except ReadError as error:
                            errors.append(str(error))
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            what = " ".join(str(error).split())  # it may quote the file, over several lines
            raise ReadError(
                f"{path}: a broken SQLite file ({what[:200]}); restore or export it"
            ) from error
        if not records:
            raise ReadError(
                errors[0] if errors else f"{path}: no table with steps and values; {_HINT}"
            )
        return records


_HINT = "looked for MLflow's and trackio's `metrics`, or columns such as step and loss"


def _open(path: Path) -> sqlite3.Connection:
    """Open a database for reading; one in a directory that may not be written too."""
    where = f"file:{quote(str(path.resolve()))}?mode=ro"
    database = sqlite3.connect(where, uri=True)
    database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        database = sqlite3.connect(f"{where}&immutable=1", uri=True)
        database.text_factory = lambda raw: raw.decode("utf-8", errors="replace")
    return database


def _shapes(database: sqlite3.Connection) -> Iterator[_Shape]:
    """Yield the tables that keep values, those with the most telling shape alone."""
    found: list[_Shape] = []
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (table,) in rows:
        if not isinstance(table, str):  # damaged
            continue
        names = [str(r[1]) for r in database.execute(f"PRAGMA table_info({_quoted(table)})")]
        shape = _shape(str(table), names)
        if shape is not None:
            found.append(shape)
    long = [s for s in found if s.key or s.json]
    named = [s for s in long if s.table == "metrics"]
    yield from named or long or found


def _shape(table: str, names: Sequence[str]) -> _Shape | None:
    key, value, blob = (_first(names, c) for c in (_KEY_COLUMNS, _VALUE_COLUMNS, _JSON_COLUMNS))
    run, step, time = (_first(names, c) for c in (_RUN_COLUMNS, _STEP_COLUMNS, _TIME_COLUMNS))
    if key and value and step:
        blob = None
    elif blob and step:
        key = value = None
    elif any(is_known_key(n) for n in names):
        key = value = blob = None
    else:
        return None
    return _Shape(table, tuple(names), run, key, value, blob, step, time)


def _first(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    by_lower = {n.lower(): n for n in names}
    return next((by_lower[w] for w in wanted if w in by_lower), None)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _runs(database: sqlite3.Connection, shape: _Shape) -> list[object]:
    if shape.run is None:
        return [None]
    query = f"SELECT DISTINCT {_quoted(shape.run)} FROM {_quoted(shape.table)} ORDER BY rowid"
    return [row[0] for row in database.execute(query)]


def _select(
    database: sqlite3.Connection, shape: _Shape, columns: Sequence[str], run: object
) -> Iterator[tuple[object, ...]]:
    query = f"SELECT {', '.join(map(_quoted, columns))} FROM {_quoted(shape.table)}"
    if shape.run is None:
        yield from database.execute(f"{query} ORDER BY rowid")
    else:
        where = f"{query} WHERE {_quoted(shape.run)} IS ? ORDER BY rowid"
        yield from database.execute(where, (run,))


def _read_run(database: sqlite3.Connection, shape: _Shape, run: object, path: Path) -> RunRecord:
    source = str(path) if run is None else f"{path}#{run}"
    if shape.key is not None:
        return _read_long(database, shape, run, source)
    table = LogTable(source, "trackio" if shape.json else "sqlite")
    if shape.json is not None:
        columns = [c for c in (shape.step, shape.json, shape.time) if c is not None]
        for number, (step, text, *time) in enumerate(_select(database, shape, columns, run), 1):
            row = parse_object(text) if isinstance(text, str) else _from_bytes(text)
            table.put("_step", step, number)
            if time:
                table.put(_CLOCK, time[0], number)
            for key, value in flatten(row or {}):
                table.put(key, value, number)
            table.end_row()
    else:
        known = [c for c in shape.columns if table.role(c) != "nothing"]
        for number, cells in enumerate(_select(database, shape, known, run), 1):
            for key, value in zip(known, cells, strict=True):
                table.put(key, value, number)
            table.end_row()
    table.bad.clear()
    return table.to_record(columnar=False)


def _from_bytes(value: object) -> dict[str, object] | None:
    if not isinstance(value, bytes):
        return None
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _read_long(database: sqlite3.Connection, shape: _Shape, run: object, source: str) -> RunRecord:
    """Read a table with a value per row: MLflow's, whose `is_nan` marks NaN stored as 0."""
    nan = _first(shape.columns, ("is_nan",))
    names = [shape.key, shape.value, shape.step, shape.time or shape.step, nan or shape.value]
    columns = [n for n in names if n is not None]
    values: dict[str, list[tuple[float, float, float]]] = {}
    seen: Counter[str] = Counter()
    wanted = WantedTags()
    for place, (key, value, step, time, is_nan) in enumerate(
        _select(database, shape, columns, run)
    ):
        tag = str(key)
        seen[tag] += 1
        if not wanted(tag):
            continue
        number = np.nan if nan and is_nan else _number(value)
        at = _number(step)
        if number is not None and at is not None:
            when = _number(time) if isinstance(time, int | float) else None
            values.setdefault(tag, []).append((place if when is None else when, at, number))
    series = {tag: _series(rows) for tag, rows in values.items()}
    unread = {tag: num for tag, num in seen.items() if not wanted(tag)}
    return record_of_series(
        source, "mlflow", with_clock(series), tags_seen=sorted(seen), unread=unread
    )


def _number(value: object) -> float | None:
    try:
        return parse_number(value)
    except BadNumberError:
        return None


def _series(rows: list[tuple[float, float, float]]) -> TagSeries:
    """Return rows of (time, step, value) in the order of time, steps rising within one time."""
    table = np.array(rows, dtype=np.float64)
    order = np.lexsort((table[:, 1], table[:, 0]))
    return TagSeries(table[order, 0], table[order, 1], table[order, 2])
