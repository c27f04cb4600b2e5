"""Columns in memory -> a run record: a mapping, a pandas or a polars frame.

Neither library is imported: a frame is known by its methods. The columns go the way of the columns
of a CSV file, so a frame gives the same record as the file that it was read from.

None, `pandas.NA`, masked and null cells are missing. NaN in a float column means what `nan` in a
CSV file means, which the pattern of the column tells (`readers.nan_policy`): numbers at regular
distances were logged every so often, anything else is NaN that the run logged. pandas cannot hold
a missing cell in a float column and writes NaN for it. There one more rule holds: a row with a
held-out value (`val_loss`) and no finite training value is an evaluation row, and its NaN cells
are missing.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Protocol, TypeGuard, runtime_checkable

from trimtab.errors import ReadError
from trimtab.readers.long_form import LongForm, fill_series
from trimtab.readers.table import LogTable
from trimtab.readers.tags import signal_of_tag
from trimtab.record import RunRecord

__all__ = ["FRAME_FORMAT", "is_columns", "record_of_columns"]

FRAME_FORMAT = "columns"
"""Format of a record that was made from columns in memory."""

_OF_EVALUATION = frozenset({"val_loss", "perplexity"})
_COUNTERS = frozenset({"tokens_seen", "samples_seen"})
"""Signals that an evaluation row states, too; they do not make it a training row."""


@runtime_checkable
class _Listed(Protocol):
    """An array, a pandas or a polars series."""

    def tolist(self) -> list[object]:
        """Return the values as Python objects."""
        ...


@runtime_checkable
class _Scalar(Protocol):
    """A scalar of NumPy, or a tensor."""

    def item(self) -> object:
        """Return the value as a Python object."""
        ...


class _PandasIndex(Protocol):
    names: Sequence[object]

    def get_level_values(self, level: int) -> _Listed:
        """Return the values of one level."""
        ...


@runtime_checkable
class _PandasFrame(Protocol):
    columns: Iterable[object]
    index: _PandasIndex

    def items(self) -> Iterable[tuple[object, "_Listed"]]:
        """Yield (name, series)."""
        ...


@runtime_checkable
class _PolarsSeries(Protocol):
    name: str

    def to_list(self) -> list[object]:
        """Return the values as Python objects; null is None."""
        ...


@runtime_checkable
class _PolarsFrame(Protocol):
    def get_columns(self) -> Sequence[_PolarsSeries]:
        """Return the columns."""
        ...


@runtime_checkable
class _LazyFrame(Protocol):
    def collect(self) -> object:
        """Return the frame itself."""
        ...


def is_columns(source: object) -> bool:
    """Tell whether a source holds columns: a mapping, or a frame of pandas or polars."""
    # The types are asked in this order: `columns` of a lazy frame would scan its file.
    return isinstance(source, (_LazyFrame, Mapping, _PolarsFrame, _PandasFrame))


def record_of_columns(source: object, *, name: str = "columns") -> RunRecord:
    """Return the record of columns in memory.

    Args:
        source: A mapping of names to sequences of one length, a pandas or a polars frame. An index
            of a pandas frame that has a name counts as a column.
        name: What the record calls its source.

    Raises:
        ReadError: The columns differ in length, hold no rows, or none of them is known.
    """
    if isinstance(source, _LazyFrame):
        source = source.collect()
    columns = _columns(source)
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        told = ", ".join(f"{k} {len(v)}" for k, v in list(columns.items())[:6])
        raise ReadError(f"{name}: the columns differ in length ({told}); give as many values each")
    if not lengths or lengths == {0}:
        raise ReadError(f"{name}: holds no rows; give columns such as step and loss")
    if _is_pandas(source):
        columns = _without_padding(columns)
    table = LogTable(name, FRAME_FORMAT)
    header = list(columns)
    long_form = LongForm.told_by(header)
    if long_form is not None:
        for row in zip(*columns.values(), strict=True):
            long_form.add(dict(zip(header, row, strict=True)))
        fill_series(table, long_form.series)
    else:
        keys = tuple(key for key in header if table.role(key) != "nothing")
        for line, row in enumerate(zip(*(columns[k] for k in keys), strict=True), 1):
            table.add(keys, row, line)
    table.settle_problems([], "a number")
    return table.to_record(columnar=True)


def _columns(source: object) -> dict[str, list[object]]:
    """Return every column as Python values; None where a cell is missing."""
    if isinstance(source, _PolarsFrame):
        return {c.name: c.to_list() for c in source.get_columns()}
    if _is_pandas(source):
        columns = dict[str, list[object]]()
        for name, series in source.items():  # of two of one name the first is read, as in a file
            columns.setdefault(str(name), _cells(series))
        # `index.names` and not `index.name`: of several levels, one may be the step
        levels = {
            str(name): _cells(source.index.get_level_values(level))
            for level, name in enumerate(source.index.names)
            if name is not None and str(name) not in columns
        }
        return levels | columns
    if isinstance(source, Mapping):
        return {str(name): _cells(values) for name, values in source.items()}
    raise ReadError(
        f"a {type(source).__name__} is no source; give a path, a run record, a pandas or polars"
        " frame, or a mapping of columns"
    )


def _is_pandas(source: object) -> TypeGuard[_PandasFrame]:
    # A mapping of columns has `items`, too, but no index.
    return isinstance(source, _PandasFrame) and not isinstance(source, Mapping)


def _cells(values: object) -> list[object]:
    """Return one column as Python values; masked and NA cells are None."""
    if isinstance(values, _PolarsSeries) and not isinstance(values, _Listed):
        return values.to_list()
    if isinstance(values, _Listed):
        listed = values.tolist()
        if not isinstance(listed, list):  # an array without dimensions
            raise ReadError(f"a column is the single value {listed!r}, expected a sequence")
    elif isinstance(values, Iterable) and not isinstance(values, str | bytes):
        listed = list(values)
    else:
        raise ReadError(f"a column is a {type(values).__name__}, expected a sequence of values")
    return [_cell(value) for value in listed]


def _cell(value: object) -> object:
    """Return one value as Python has it; None for a missing one."""
    # by the names of their types: pandas may not be installed
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if isinstance(value, Decimal):
        return float(value)
    # scalars of NumPy and tensors without dimensions, in a list or an object column
    if not isinstance(value, int | float | str) and isinstance(value, _Scalar):
        return value.item() if getattr(value, "ndim", 0) == 0 else value
    return value


def _without_padding(columns: Mapping[str, list[object]]) -> dict[str, list[object]]:
    """Return columns in which the NaN cells of evaluation rows are missing."""
    of_training, of_evaluation = list[str](), list[str]()
    for key in columns:
        signal = signal_of_tag(key)
        if signal in _OF_EVALUATION:
            of_evaluation.append(key)
        elif signal is not None and signal not in _COUNTERS:
            of_training.append(key)
    num_rows = len(next(iter(columns.values())))
    evaluates = [
        any(_is_finite(columns[k][row]) for k in of_evaluation)
        and not any(_is_finite(columns[k][row]) for k in of_training)
        for row in range(num_rows)
    ]
    if not any(evaluates):
        return dict(columns)
    return {
        key: [None if e and _is_nan(v) else v for v, e in zip(values, evaluates, strict=True)]
        for key, values in columns.items()
    }


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)
