"""Plain text and JSON lines, also compressed, a block at a time."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import orjson

from trimtab.data_scan.block import BLOCK_BYTES, MAX_DOC_BYTES, DataBlock, Unit, block_of
from trimtab.data_scan.unpack import open_data
from trimtab.errors import ReadError

__all__ = ["ORIGINS", "TEXT_FIELDS", "JsonLines", "PlainText", "Records", "load_json", "opened"]

ORIGINS = (
    "source",
    "meta.source",
    "metadata.source",
    "meta.pile_set_name",
    "pile_set_name",
    "meta.redpajama_set_name",
    "redpajama_set_name",
    "dataset",
    "subset",
    "meta.src",
    "domain",
)
"""Names under which mixtures of several corpora say which of them a document is from."""
_LOOKED_FOR_ORIGIN = 64
LONG_RECORD_BYTES = 1 << 23
MOST_VALUES = {
    (b"{", b"[", b'",', b'":'): 4_000_000,
    (b" ,", *(f"{digit},".encode() for digit in range(10))): 16_000_000,
}
"""Marks of values, and how many a record of over 8 MiB may have: documents of that length hold text
and few values, while `{}`, two bytes, takes 64 of memory."""
TEXT_FIELDS = ("text", "content", "raw_content", "body", "document", "article", "code")
"""Usual names of the text of a document."""
_FIELDS = (*TEXT_FIELDS, "output")


@contextmanager
def opened(path: Path, cursor: int) -> Iterator[BufferedIOBase]:
    """Open at a byte of the unpacked stream.

    Compressed files are unpacked up to there once more.
    """
    with open_data(path) as stream:
        if stream.seekable():
            stream.seek(cursor)
        while not stream.seekable() and cursor and (part := stream.read(min(cursor, BLOCK_BYTES))):
            cursor -= len(part)
        yield stream


class PlainText:
    """A text file, cut into windows of `context` bytes: the samples of a byte-level model."""

    unit: Unit = "sample"

    def __init__(self, path: Path, context: int) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.context = path, context
        self.total = path.stat().st_size
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield blocks; the cursor counts bytes of the unpacked text."""
        step = max(BLOCK_BYTES // self.context, 1) * self.context
        with opened(self.path, cursor) as stream:
            while raw := stream.read(step):
                cursor += len(raw)
                starts = np.append(np.arange(0, len(raw), self.context, dtype=np.int64), len(raw))
                ids = np.arange(next_id, next_id + len(starts) - 1, dtype=np.int64)
                next_id += len(ids)
                yield (
                    DataBlock(np.frombuffer(raw, np.uint8), starts, ids, starts, 0, len(raw)),
                    cursor,
                )


class JsonLines:
    """JSON lines; unit: the record, and one that cannot be read keeps its number and is empty."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None, by: str | None = None) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.records = path, Records(path, field, by)
        self.total = path.stat().st_size
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield blocks of whole records; the cursor counts bytes of the unpacked text."""
        with opened(self.path, cursor) as stream:
            while True:
                docs, origins, bad, size = self._gather(stream)
                if not size:
                    return
                self.records.check()
                cursor += size
                if docs:
                    block = block_of(
                        docs, next_id, num_unreadable=bad, size_bytes=size, origins=origins
                    )
                    yield block, cursor
                next_id += len(docs)

    def _gather(self, stream: BufferedIOBase) -> tuple[list[bytes], list[str], int, int]:
        """Return documents, origins, number of unreadable records and bytes of the next block."""
        docs: list[bytes] = []
        origins: list[str] = []
        bad = size = 0
        while size < BLOCK_BYTES:
            line = stream.readline(MAX_DOC_BYTES)
            if not line:
                break
            if len(line) == MAX_DOC_BYTES and not line.endswith(b"\n"):
                raise ReadError(
                    f"{self.path}: a line is longer than {MAX_DOC_BYTES >> 20} MiB; this is not"
                    " JSON lines, or one document is the whole corpus: split it"
                )
            size += len(line)
            if line.isspace():
                continue
            text, origin = self.records.read(line)
            bad += text is None
            docs.append(text or b"")
            origins.append(origin)
        return docs, origins if self.records.say_origins else [], bad, size


class Records:
    """What is wanted of JSON records: the text, and where it is from."""

    def __init__(self, path: Path, field: str | None, by: str | None) -> None:
        """Start with nothing seen."""
        self._path, self._field, self._by = path, field, by
        self._names: tuple[str, ...] = ()
        self._has_field = field is None
        self._looked_for_origin = 0

    def read(self, raw: bytes) -> tuple[bytes | None, str]:
        """Return a record's text, None where unreadable, and its origin, "" where not stated."""
        try:
            record = load_json(raw)
        except (ValueError, RecursionError):
            return None, ""
        return self.take(record)

    def take(self, record: object) -> tuple[bytes | None, str]:
        """Return text and origin of a record that was read."""
        text = text_of(record, self._field)
        if isinstance(record, Mapping) and not self._has_field:
            self._has_field = text is not None
            self._names = self._names or tuple(map(str, record))
        found = None if text is None else text.encode("utf-8", "surrogatepass")
        return found, self._origin(record)

    def _origin(self, record: object) -> str:
        if not isinstance(record, Mapping):
            return ""
        if self._by is None and self._looked_for_origin < _LOOKED_FOR_ORIGIN:
            self._looked_for_origin += 1
            self._by = next((n for n in ORIGINS if isinstance(_dig(record, n), str)), None)
        value = _dig(record, self._by) if self._by is not None else None
        return value[:200] if isinstance(value, str) else ""

    @property
    def say_origins(self) -> bool:
        """Whether a field was found or named that says where records are from."""
        return self._by is not None

    def check(self) -> None:
        """Refuse a named field that no record so far has.

        Raises:
            ReadError: Names the fields there are.
        """
        if not self._has_field and self._names:
            raise ReadError(
                f"{self._path}: no text field {self._field!r}; there are"
                f" {', '.join(self._names[:20])}; name one with --field"
            )


def load_json(raw: bytes) -> object:
    """Return the document; what only Python's own reader takes (NaN, lone surrogates) is taken too.

    Raises:
        ValueError: It is no JSON, or holds more values than a record of text does.
        RecursionError: It nests too deep.
    """
    if len(raw) > LONG_RECORD_BYTES:
        for marks, most in MOST_VALUES.items():
            if sum(map(raw.count, marks)) > most:
                raise ValueError("more values than a record of text has")
    try:
        # orjson is several times faster, and refuses what Python's own reader takes.
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        if len(raw) > LONG_RECORD_BYTES:  # Python's own reader would take eight times the memory
            raise
        return json.loads(raw)


def text_of(record: object, field: str | None) -> str | None:
    """Return a record's text, or None.

    From the named field (`meta.text` descends into objects), else from a usual field, else the
    longest string.
    """
    if isinstance(record, str):
        return record
    if not isinstance(record, Mapping):
        return None
    for name in (field,) if field else _FIELDS:
        value = _dig(record, name)
        if isinstance(value, str):
            return value
    texts = [v for v in record.values() if isinstance(v, str)] if not field else []
    return max(texts, key=len, default=None)


def _dig(record: Mapping[str, object], name: str) -> object:
    # A key with a dot in it wins over the path that the dot would mean.
    if name in record:
        return record[name]
    value: object = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
