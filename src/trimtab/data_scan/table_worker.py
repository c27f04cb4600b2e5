"""Process that reads Parquet and Arrow for a scan: `python -m trimtab.data_scan.table_worker`.

pyarrow trusts much of what a file says of itself: a damaged one can end the process. It ends this
one, and the scan goes on. Requests come as lines of JSON on stdin, one file each; blocks of its
text leave on stdout, framed by `frame`.
"""

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import BLOCK_BYTES
from trimtab.data_scan.read_text import ORIGINS, TEXT_FIELDS

__all__ = ["NoTextColumnError", "main"]

_ROWS = 1024
_MAX_SHOWN = 200


class NoTextColumnError(Exception):
    """A table has no column of text, or not the one that was named."""


class _Field(Protocol):
    """What is used of `pyarrow.Field`; pyarrow has no types of its own."""

    name: str
    type: object


class _Column(Protocol):
    """What is used of `pyarrow.Array`."""

    type: object
    offset: int
    null_count: int

    def __len__(self) -> int: ...

    def cast(self, target: object, /) -> "_Column": ...

    def validate(self, *, full: bool) -> None: ...

    def buffers(self) -> list[memoryview | None]: ...

    def to_pylist(self) -> list[bytes | None]: ...


class _Batch(Protocol):
    """What is used of `pyarrow.RecordBatch`."""

    num_rows: int
    num_columns: int
    nbytes: int

    def column(self, index: int, /) -> _Column: ...

    def slice(self, offset: int, length: int, /) -> "_Batch": ...


def main() -> None:
    """Serve requests until stdin ends."""
    # What libraries print must not get between the frames.
    out = os.fdopen(os.dup(1), "wb", buffering=1 << 20)
    os.dup2(2, 1)
    import pyarrow as pa
    from pyarrow import parquet  # noqa: F401 - loaded before the clock of the first file runs

    _send(out, {"ready": True})
    for line in sys.stdin.buffer:
        request = json.loads(line)
        limit_memory(int(request["memory_bytes"]))
        try:
            for number, batch in enumerate(_batches(request)):
                if number >= int(request["cursor"]):
                    _send_block(out, batch, number + 1)
            _send(out, {"end": True})
        except NoTextColumnError as error:
            _send(out, {"no_column": str(error)})
        except (MemoryError, pa.ArrowMemoryError):
            _send(out, {"memory": True})
        # Whatever a library makes of a damaged file is the file's fault, and is told as such.
        except Exception as error:  # noqa: BLE001
            _send(out, {"error": f"{type(error).__name__}: {error}"[: 4 * _MAX_SHOWN]})


def limit_memory(size_bytes: int) -> None:
    """Bound what this process may allocate; files that are mapped do not count."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # a system without such limits
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        if most != resource.RLIM_INFINITY:
            size_bytes = min(size_bytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (size_bytes, most))


def _send(out: BinaryIO, head: Mapping[str, object], *parts: bytes | memoryview) -> None:
    """Write one frame: a line of JSON, then as many bytes as it says."""
    out.write(json.dumps(head).encode() + b"\n")
    for part in parts:
        out.write(part)
    out.flush()


def _batches(request: Mapping[str, str]) -> Iterator[_Batch]:
    import pyarrow as pa
    from pyarrow import parquet

    path, field, by = Path(request["path"]), request["field"], request["by"]
    with path.open("rb") as file:
        magic = file.read(6)
    if magic.startswith(b"PAR1"):
        with parquet.ParquetFile(path) as table:
            names = _columns(table.schema_arrow, field, by)
            for batch in table.iter_batches(batch_size=_ROWS, columns=names, use_threads=False):
                yield batch.select(names)
        return
    with pa.memory_map(str(path)) as source:
        if magic == b"ARROW1":
            reader = pa.ipc.open_file(source)
            names = _columns(reader.schema, field, by)
            for i in range(reader.num_record_batches):
                yield from _cut(reader.get_batch(i).select(names))
        else:
            stream = pa.ipc.open_stream(source)
            names = _columns(stream.schema, field, by)
            for batch in stream:
                yield from _cut(batch.select(names))


def _columns(schema: Iterable[_Field], field: str | None, by: str | None) -> list[str]:
    """Return the column of the text, and that of the origins, if there is one.

    Raises:
        NoTextColumnError: There is no column of text.
    """
    from pyarrow import types

    texts = [f.name for f in schema if types.is_string(f.type) or types.is_large_string(f.type)]
    # The usual names first: a table may have other text columns, such as a title, before them.
    for name in (field,) if field else (*TEXT_FIELDS, *texts):
        if name in texts:
            origin = (o for o in ((by,) if by else ORIGINS) if o in texts)
            return [str(name), *itertools.islice((o for o in origin if o != name), 1)]
    what = f"no text column {field!r}" if field else "no text column"
    shown = ", ".join(
        f.name[:_MAX_SHOWN] if f.name in texts else f"{f.name[:_MAX_SHOWN]} ({f.type})"
        for f in list(schema)[:20]
    )
    raise NoTextColumnError(f"{what}; it has {shown[:1000]}; name one of text with --field")


def _cut(batch: _Batch) -> Iterator[_Batch]:
    """Yield a batch in slices that make blocks of bounded size."""
    rows = _ROWS if batch.nbytes < BLOCK_BYTES * 64 else 64
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _send_block(out: BinaryIO, batch: _Batch, cursor: int) -> None:
    starts, data, num_null = _texts(batch.column(0))
    origins: list[str] = []
    if batch.num_columns > 1:
        said = _checked(batch.column(1)).to_pylist()
        origins = [(o or b"").decode("utf-8", "replace")[:_MAX_SHOWN] for o in said]
    head = {
        "cursor": cursor,
        "count": len(starts) - 1,
        "bytes": len(data),
        "null": num_null,
        "origins": origins,
    }
    _send(out, head, starts.data.cast("B"), data.data)


def _checked(column: _Column) -> _Column:
    """Return a column of text as bytes, after its offsets were compared with its buffers.

    As bytes, since text that is no UTF-8 is a finding of the scan, and no damage.

    Raises:
        pyarrow.ArrowInvalid: The offsets do not rise, or point outside of the buffers.
    """
    import pyarrow as pa

    kind = pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary()
    found: _Column = pa.Array.from_buffers(
        kind, len(column), column.buffers(), offset=column.offset
    )
    found.validate(full=True)
    return found


def _texts(column: _Column) -> tuple[NDArray[np.int64], NDArray[np.uint8], int]:
    """Return int64 starts [rows + 1] from 0, the bytes, and how many rows are null."""
    import pyarrow as pa

    if not len(column):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8), 0
    whole = _checked(column).cast(pa.large_binary())
    _, offsets, values = whole.buffers()
    assert offsets is not None
    starts = np.frombuffer(offsets, np.int64)[whole.offset : whole.offset + len(whole) + 1]
    raw = np.frombuffer(values, np.uint8) if values is not None else np.zeros(0, np.uint8)
    # A slice of a column shares the buffers of the whole, so its offsets do not start at 0.
    return starts - starts[0], raw[starts[0] : starts[-1]], whole.null_count


if __name__ == "__main__":
    main()
