"""Plain text and JSON lines, also compressed, a block at a time."""

import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zstandard

from trimtab.errors import ReadError
from trimtab.preflight.scan.block import BLOCK_BYTES, MAX_DOC_BYTES, Block, Unit, block_of
from trimtab.readers.base import open_bytes

__all__ = ["JsonLines", "PlainText", "load_json", "text_of"]

CUT_STREAM = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError)
MAX_EXPANSION = 2000
"""A compressed file that unpacks to more than this many times its size, and to more than
`MAX_UNPACKED_BYTES`, is taken for a bomb. gzip cannot exceed 1032."""
MAX_UNPACKED_BYTES = 1 << 33
_FIELDS = ("text", "content", "raw_content", "body", "document", "article", "code", "output")


@contextmanager
def opened(path: Path, cursor: int) -> Iterator[BufferedIOBase]:
    """Open at a byte of the unpacked stream; compressed files are unpacked up to there once more."""
    with open_bytes(path) as stream:
        try:
            if stream.seekable():
                stream.seek(cursor)
            while (
                not stream.seekable() and cursor and (part := stream.read(min(cursor, BLOCK_BYTES)))
            ):
                cursor -= len(part)
        except CUT_STREAM as error:
            raise ReadError(
                f"{path}: cannot go on at byte {cursor} ({error}); scan it anew"
            ) from error
        yield stream


def check_expansion(path: Path, unpacked: int) -> None:
    """Refuse to go on with a file that unpacks beyond measure.

    Raises:
        ReadError: It does.
    """
    if unpacked > MAX_UNPACKED_BYTES and unpacked > MAX_EXPANSION * path.stat().st_size:
        raise ReadError(
            f"{path}: unpacks to more than {unpacked >> 30} GiB, over {MAX_EXPANSION} times its size; "
            "unpack it by hand and scan that, if it is meant to be so"
        )


class PlainText:
    """A text file, cut into windows of `context` bytes: the samples of a byte-level model."""

    unit: Unit = "sample"

    def __init__(self, path: Path, context: int) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.context = path, context
        self.total = path.stat().st_size
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[Block, int]]:
        """Yield blocks; the cursor counts bytes of the unpacked text."""
        step = max(BLOCK_BYTES // self.context, 1) * self.context
        with opened(self.path, cursor) as stream:
            while raw := self._read(stream, step):
                cursor += len(raw)
                check_expansion(self.path, cursor)
                starts = np.append(np.arange(0, len(raw), self.context, dtype=np.int64), len(raw))
                ids = np.arange(next_id, next_id + len(starts) - 1, dtype=np.int64)
                next_id += len(ids)
                yield Block(np.frombuffer(raw, np.uint8), starts, ids, starts, 0, len(raw)), cursor

    def _read(self, stream: BufferedIOBase, size: int) -> bytes:
        parts, missing = [], size
        try:
            while missing and (part := stream.read1(missing)):
                parts.append(part)
                missing -= len(part)
        except CUT_STREAM as error:
            self.notes.append(
                f"the compressed file breaks off ({error}); what came before was read"
            )
        return b"".join(parts)


class JsonLines:
    """JSON lines; unit: the record, and one that cannot be read keeps its number and is empty."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.field = path, field
        self.total = path.stat().st_size
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[Block, int]]:
        """Yield blocks of whole records; the cursor counts bytes of the unpacked text."""
        with opened(self.path, cursor) as stream:
            while True:
                docs, bad, size = self._gather(stream)
                if not size:
                    return
                cursor += size
                check_expansion(self.path, cursor)
                if docs:
                    yield block_of(docs, next_id, num_unreadable=bad, size_bytes=size), cursor
                next_id += len(docs)

    def _gather(self, stream: BufferedIOBase) -> tuple[list[bytes], int, int]:
        """Return the documents of the next block, how many were unreadable, and the bytes read."""
        docs: list[bytes] = []
        bad = size = 0
        while size < BLOCK_BYTES:
            try:
                line = stream.readline(MAX_DOC_BYTES)
            except CUT_STREAM as error:
                self.notes.append(
                    f"the compressed file breaks off ({error}); what came before was read"
                )
                break
            if not line:
                break
            if len(line) == MAX_DOC_BYTES and not line.endswith(b"\n"):
                raise ReadError(
                    f"{self.path}: a line is longer than {MAX_DOC_BYTES >> 20} MiB; this is not JSON lines, "
                    "or one document is the whole corpus: split it"
                )
            size += len(line)
            if line.isspace():
                continue
            text = self._text(line)
            bad += text is None
            docs.append(text or b"")
        return docs, bad, size

    def _text(self, line: bytes) -> bytes | None:
        try:
            record = load_json(line)
        except (ValueError, RecursionError):
            return None
        text = text_of(record, self.field)
        return None if text is None else text.encode("utf-8", "surrogatepass")


def load_json(raw: bytes) -> Any:
    """Return the document; what only Python's own reader takes (NaN, lone surrogates) is taken too.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It nests too deep.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def text_of(record: Any, field: str | None) -> str | None:
    """Return a record's text: of the named field (`meta.text` goes into objects), else of a usual one, else the longest string."""
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


def _dig(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
