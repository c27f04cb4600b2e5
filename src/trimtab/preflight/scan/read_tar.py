"""WebDataset shards: tar files whose members share a key per sample. Nothing is written to disk."""

import tarfile
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO, cast

from trimtab.errors import ReadError
from trimtab.preflight.scan.block import BLOCK_BYTES, MAX_DOC_BYTES, Block, Unit, block_of
from trimtab.preflight.scan.read_text import CUT_STREAM, check_expansion, load_json, opened, text_of

__all__ = ["TarShard"]

_TEXTS = (".txt", ".text", ".md", ".html")
_HEADER_SLACK_BYTES = 1 << 24
"""Bytes of headers believed between two members; long names and pax records are far shorter."""


class TarShard:
    """One shard; unit: the sample, all members whose names agree up to the first dot."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.field = path, field
        self.total = 0
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[Block, int]]:
        """Yield blocks of whole samples; the cursor counts samples."""
        docs: list[bytes] = []
        size = bad = 0
        for number, text in enumerate(self._samples()):
            if number < cursor:
                continue
            bad += text is None
            docs.append(text or b"")
            size += len(docs[-1])
            if size >= BLOCK_BYTES:
                yield block_of(docs, next_id, num_unreadable=bad, size_bytes=size), number + 1
                next_id, cursor = next_id + len(docs), number + 1
                docs, size, bad = [], 0, 0
        if docs:
            yield block_of(docs, next_id, num_unreadable=bad, size_bytes=size), cursor + len(docs)

    def _samples(self) -> Iterator[bytes | None]:
        """Yield each sample's text; None for one whose text cannot be read."""
        key, text = None, b""
        readable = True
        with opened(self.path, 0) as stream:
            metered = _Metered(self.path, stream)
            try:
                with tarfile.open(fileobj=cast("IO[bytes]", metered), mode="r|") as tar:
                    for member in tar:
                        metered.allow(max(member.size, 0))
                        if not member.isreg():
                            continue
                        name = member.name.rpartition("/")
                        here = f"{name[0]}/{name[2].partition('.')[0]}"
                        if here != key:
                            if key is not None:
                                yield text if readable else None
                            key, text, readable = here, b"", True
                        found = self._text(tar, member)
                        readable = readable and found is not None
                        text = text or found or b""
            except (tarfile.TarError, *CUT_STREAM) as error:
                if key is None:
                    raise ReadError(
                        f"{self.path}: cannot be read as a tar shard ({error}); check the file"
                    ) from error
                self.notes.append(f"the shard breaks off ({error}); what came before was read")
        if key is not None:
            yield text if readable else None

    def _text(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
        """Return a member's text; empty for one that is no text, None for one that is unreadable."""
        lower = member.name.lower()
        if not lower.endswith((*_TEXTS, ".json")):
            return b""
        if member.size > MAX_DOC_BYTES:
            return None
        file = tar.extractfile(member)
        raw = file.read() if file is not None else b""
        if not lower.endswith(".json"):
            return raw
        try:
            record = load_json(raw)
        except (ValueError, RecursionError):
            return None
        return (text_of(record, self.field) or "").encode("utf-8", "surrogatepass")


class _Metered:
    """A stream that refuses to give more between two members than they and their headers can need."""

    def __init__(self, path: Path, stream: BufferedIOBase) -> None:
        self._path, self._stream = path, stream
        self._left = _HEADER_SLACK_BYTES
        self._read = 0

    def allow(self, size: int) -> None:
        """Allow a member of this size, and the headers of the next."""
        self._left = size + _HEADER_SLACK_BYTES

    def read(self, size: int) -> bytes:
        """Read like a file."""
        part = self._stream.read(size)
        self._left -= len(part)
        self._read += len(part)
        check_expansion(self._path, self._read)
        if self._left < 0:
            raise ReadError(
                f"{self._path}: a header of {_HEADER_SLACK_BYTES >> 20} MiB and more; this is no honest tar file"
            )
        return part
