"""Parquet and Arrow files: the text column alone, a batch at a time. Needs the `data` extra."""

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from trimtab.data_scan.block import BLOCK_BYTES, DataBlock, Unit
from trimtab.data_scan.read_text import ORIGINS
from trimtab.errors import MissingExtraError, ReadError

__all__ = ["Columns"]

_FIELDS = ("text", "content", "raw_content", "body", "document", "article", "code")
_ROWS = 1024


class _Field(Protocol):
    """What is used of `pyarrow.Field`; pyarrow has no types of its own."""

    name: str
    type: object


class _Column(Protocol):
    """What is used of `pyarrow.Array`."""

    offset: int
    null_count: int

    def __len__(self) -> int: ...

    def cast(self, target: object, /) -> "_Column": ...

    def buffers(self) -> tuple[object, memoryview, memoryview | None]: ...

    def to_pylist(self) -> list[str | None]: ...


class _Batch(Protocol):
    """What is used of `pyarrow.RecordBatch`."""

    num_rows: int
    num_columns: int
    nbytes: int

    def column(self, index: int, /) -> _Column: ...

    def slice(self, offset: int, length: int, /) -> "_Batch": ...


class Columns:
    """The rows of one Parquet or Arrow file; unit: the row. The cursor counts batches."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None, by: str | None = None) -> None:
        """Remember the path.

        Raises:
            MissingExtraError: pyarrow is not there.
        """
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(f"Reading {path.name}", "data") from error
        self.path, self.field, self.by = path, field, by
        self.total = 0
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield one block per record batch of at most `_ROWS` rows."""
        import pyarrow as pa

        try:
            for number, batch in enumerate(self._batches()):
                if number >= cursor:
                    yield _block(batch, next_id), number + 1
                    next_id += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise ReadError(
                f"{self.path}: cannot be read as a table ({str(error)[:200]}); check the file"
            ) from error

    def _batches(self) -> Iterator[_Batch]:
        import pyarrow as pa
        from pyarrow import parquet

        with self.path.open("rb") as file:
            magic = file.read(6)
        if magic.startswith(b"PAR1"):
            with parquet.ParquetFile(self.path) as table:
                names = self._columns(table.schema_arrow)
                for batch in table.iter_batches(batch_size=_ROWS, columns=names):
                    yield batch.select(names)
            return
        with pa.memory_map(str(self.path)) as source:
            if magic == b"ARROW1":
                reader = pa.ipc.open_file(source)
                names = self._columns(reader.schema)
                for i in range(reader.num_record_batches):
                    yield from _cut(reader.get_batch(i).select(names))
            else:
                stream = pa.ipc.open_stream(source)
                names = self._columns(stream.schema)
                for batch in stream:
                    yield from _cut(batch.select(names))

    def _columns(self, schema: Iterable[_Field]) -> list[str]:
        """Return the column of the text.

        The second is the column of origins, if there is one.

        Raises:
            ReadError: There is no column of text.
        """
        from pyarrow import types

        texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
        # The usual names first: a table may have other text columns, such as a title, before them.
        for name in (self.field,) if self.field else (*_FIELDS, *texts):
            if name in texts:
                origin = (o for o in ((self.by,) if self.by else ORIGINS) if o in texts)
                return [str(name), *itertools.islice((o for o in origin if o != name), 1)]
        what = f"no text column {self.field!r}" if self.field else "no text column"
        raise ReadError(
            f"{self.path}: {what}; it has"
            f" {', '.join(self._shown(f, texts) for f in list(schema)[:20])}; name one of text with"
            " --field"
        )

    @staticmethod
    def _shown(column: _Field, texts: list[str]) -> str:
        return str(column.name) if column.name in texts else f"{column.name} ({column.type})"


def _cut(batch: _Batch) -> Iterator[_Batch]:
    """Yield a batch in slices that make blocks of bounded size."""
    rows = _ROWS if batch.nbytes < BLOCK_BYTES * 64 else 64
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _block(batch: _Batch, first_id: int) -> DataBlock:
    import pyarrow as pa

    column = batch.column(0).cast(pa.large_binary())
    count = len(column)
    _, offsets, values = column.buffers()
    starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + count + 1]
    raw = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
    data = raw[starts[0] : starts[-1]] if count else raw[:0]
    # A slice of a column shares the buffers of the whole, so its offsets do not start at 0.
    starts = (starts - starts[0]) if count else np.zeros(1, np.int64)
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    says = batch.column(1).to_pylist() if batch.num_columns > 1 else []
    origins = tuple((o or "")[:200] for o in says)
    return DataBlock(data, starts, ids, starts, column.null_count, len(data), origins)
