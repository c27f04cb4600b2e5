"""W&B's offline transaction log, `run-ID.wandb`: LevelDB's log framing around protobuf records.

Only the history records are read; their items are JSON texts by key, and NaN is written as a bare
word, which JSON does not allow. Rows are counted by W&B's own `_step`, as its pages do; where the
trainer logs a step of its own, a note says how the two are related.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from trimtab.errors import ReadError
from trimtab.readers.base import Sample
from trimtab.readers.clock_columns import written_at
from trimtab.readers.jsonl import flatten
from trimtab.readers.leveldb_log import LogDamage, log_records
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.readers.protobuf import BYTES, VARINT, WireError, WireField, fields, signed
from trimtab.readers.series import WHEN, TagSeries, WantedTags, record_of_series
from trimtab.readers.table_axis import is_step
from trimtab.readers.tags import choose_tags
from trimtab.readers.whole import read_whole
from trimtab.record import RunRecord
from trimtab.vocabulary import normalise

__all__ = ["TRAINER_STEPS", "WandbReader", "history_row"]

_MAGIC = b":W&B"
_HEADER_SIZE_BYTES = 7
TRAINER_STEPS = frozenset(
    {"step", "global step", "iteration", "iter", "train/global step", "trainer/global step"}
)
_MIN_STEPS = 10
_MAX_FALLS = 0.02
"""Share of rows at which the trainer's step may fall back: more often it counts something else."""
_TIMESTAMP = "_timestamp"
_HISTORY = 2
_ITEM, _STEP = 1, 2
_MAX_SCALAR_LENGTH = 40
"""Longer texts are captions; "NaN" and "Infinity" are values."""
_KEY, _NESTED_KEY, _VALUE_JSON = 1, 2, 16


class WandbReader:
    """Reads `.wandb` files."""

    name = "wandb"
    looks_for = "W&B transaction logs (`run-ID.wandb`)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.99 where the file starts with W&B's mark."""
        return 0.99 if sample.raw.startswith(_MAGIC) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It holds no history, or no key of it is known.
        """
        data, cut = read_whole(path)
        history = _History()
        damage = LogDamage()
        num_bad = 0
        for record in log_records(data, _HEADER_SIZE_BYTES, damage):
            try:
                history.add(history_row(record))
            except WireError:
                num_bad += 1
        if not history.steps:
            raise ReadError(
                f"{path}: a W&B log without history; nothing has been logged yet, or it is broken"
            )
        series = history.series()
        notes = [*_damage_notes(damage, num_bad, cut=cut), *history.step_note()]
        seen = sorted(history.columns)
        return record_of_series(
            str(path),
            self.name,
            series,
            notes=notes,
            tags_seen=seen,
            unread=history.unread(),
        )


class _History:
    """The rows of the history, by key."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.appended = ""
        """How the trainer's step falls back, where rows are counted by it."""
        self.columns: dict[str, list[tuple[int, float]]] = {}
        self._wanted = WantedTags()

    def add(self, row: list[tuple[str, object]]) -> None:
        """Add one row; values that are no numbers (captions, tables) are left out."""
        if not row:
            return
        place = len(self.steps)
        step = self.steps[-1] + 1 if self.steps else 0.0
        for key, value in row:
            try:
                number = parse_number(value)
            except (BadNumberError, OverflowError):
                number = None
            if number is None:
                self.columns.setdefault(key, [])
            elif key == "_step":
                step = number
            else:
                self.columns.setdefault(key, []).append((place, number))
        self.steps.append(step)

    def series(self) -> dict[str, TagSeries]:
        """Return the series of every key that may be a signal.

        They are counted by W&B's own step, which only rises; by the trainer's where that falls
        back, since another attempt was appended then.
        """
        own = self._trainer_steps()
        steps = np.array(self.steps) if own is None else own
        found: dict[str, TagSeries] = {}
        for key, cells in self.columns.items():
            if cells and self._wanted(key):
                table = np.array(cells)
                places = table[:, 0].astype(np.int64)
                found[key] = TagSeries(table[:, 0], steps[places], table[:, 1])
        return found | self._clock(found)

    def _clock(self, series: Mapping[str, TagSeries]) -> dict[str, TagSeries]:
        """Return when the rows with a loss were written."""
        chosen, _ = choose_tags({t: s.value for t, s in series.items()})
        lead, stamps = series.get(chosen.get("loss", "")), self.columns.get(_TIMESTAMP, [])
        if lead is None or not stamps:
            return {}
        at = np.full(len(self.steps), np.nan)
        table = np.array(stamps)
        at[table[:, 0].astype(np.int64)] = table[:, 1]
        at = at[lead.order.astype(np.int64)]
        written = written_at(at, is_local=False)
        return {} if written is None else {WHEN: TagSeries(lead.order, lead.step, written)}

    def _trainer_steps(self) -> NDArray[np.float64] | None:
        """Return the trainer's step at each row, float64 [n_rows], where it falls back; else None.

        Rows without one have that of the row before.
        """
        for key, cells in self.columns.items():
            if normalise(key) not in TRAINER_STEPS or len(cells) < _MIN_STEPS:
                continue
            places = np.array([place for place, _ in cells])
            values = np.array([value for _, value in cells])
            falls = int(np.count_nonzero(np.diff(values) < 0))
            if 0 < falls <= _MAX_FALLS * len(values) and np.isfinite(values).all():
                at = np.searchsorted(places, np.arange(len(self.steps)), side="right") - 1
                self.appended = f"{key} falls back {counted(falls, 'time')}"
                return np.asarray(values[np.maximum(at, 0)], dtype=np.float64)
        return None

    def unread(self) -> dict[str, int]:
        """Return the number of values of every key that is no signal and counts nothing."""
        return {
            key: len(cells)
            for key, cells in self.columns.items()
            if cells and not self._wanted(key) and not key.startswith("_") and not is_step(key)
        }

    def step_note(self) -> list[str]:
        """Say which keys count the trainer's own steps, and how they go with W&B's."""
        if self.appended:
            return [f"rows are counted by the trainer's step: {self.appended} while W&B's runs on"]
        for key in self.columns:
            cells = self.columns[key]
            if normalise(key) in TRAINER_STEPS and len(cells) > 1 and cells[-1][1] > cells[0][1]:
                (first, begin), (last, end) = cells[0], cells[-1]
                return [
                    f"rows are counted by W&B's _step; {self.steps[first]:g} to "
                    f"{self.steps[last]:g} there are {key} {begin:g} to {end:g}"
                ]
        return []


def _damage_notes(damage: LogDamage, num_bad: int, *, cut: bool) -> list[str]:
    notes: list[str] = []
    if damage.num_damaged or num_bad:
        places = counted(damage.num_damaged + num_bad, "place")
        notes.append(f"damaged in {places}; what stands there was left out")
    if cut:
        notes.append("the compressed file breaks off; what came before was read")
    elif damage.torn:
        notes.append("the last record was torn in mid-write and left out")
    return notes


def history_row(record: bytes) -> list[tuple[str, object]]:
    """Return the (key, value) pairs of a history record; none for any other record."""
    row: list[tuple[str, object]] = []
    for part in fields(record):
        if part.number != _HISTORY or part.kind != BYTES:
            continue
        step: int | None = None
        for item in fields(record, part.start, part.end):
            if item.number == _ITEM and item.kind == BYTES:
                row.extend(_item(record, item))
            elif item.number == _STEP and item.kind == BYTES:
                numbers = fields(record, item.start, item.end)
                step = next((signed(n.value) for n in numbers if n.kind == VARINT), 0)
        if step is not None and all(key != "_step" for key, _ in row):
            row.append(("_step", step))
    return row


def _item(record: bytes, item: WireField) -> Iterator[tuple[str, object]]:
    path: list[str] = []
    text = b""
    for part in fields(record, item.start, item.end):
        if part.number in (_KEY, _NESTED_KEY) and part.kind == BYTES:
            path.append(record[part.start : part.end].decode("utf-8", errors="replace"))
        elif part.number == _VALUE_JSON and part.kind == BYTES:
            text = record[part.start : part.end]
    key = "/".join(p for p in path if p)
    value = _value(text)
    if isinstance(value, dict):
        yield from flatten(value, f"{key}/")
    elif not isinstance(value, list) and len(str(value)) < _MAX_SCALAR_LENGTH:
        yield key, value


def _value(text: bytes) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
