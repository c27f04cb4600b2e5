"""WebDataset shards: tar files whose members share a key per sample. Nothing is written to disk."""

import tarfile
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path
from typing import IO, cast

from trimtab.data_scan.block import BLOCK_BYTES, MAX_DOC_BYTES, DataBlock, Unit, block_of
from trimtab.data_scan.read_text import Records, load_json, opened
from trimtab.errors import ReadError

__all__ = ["TarShard"]

_TEXTS = (".txt", ".text", ".md", ".html")
_MOST_EMPTY_READS = 4
"""A reader of tar asks once or twice behind the end; one that skips a member that is not there asks
for ever."""
_HEADER_SLACK_BYTES = 1 << 24
"""Bytes of headers believed between two members; long names and pax records are far shorter."""


class TarShard:
    """One shard; unit: the sample, all members whose names agree up to the first dot."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None, by: str | None = None) -> None:
        """Remember the path; nothing is opened yet."""
        self.path, self.records = path, Records(path, field, by)
        self.total = 0
        self.notes: list[str] = []
        self._origin = ""

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield blocks of whole samples; the cursor counts samples."""
        docs: list[bytes] = []
        origins: list[str] = []
        size = bad = 0
        for number, (text, origin) in enumerate(self._samples()):
            if number < cursor:
                continue
            bad += text is None
            docs.append(text or b"")
            origins.append(origin)
            size += len(docs[-1])
            if size >= BLOCK_BYTES:
                self.records.check()
                yield self._block(docs, next_id, bad, size, origins), number + 1
                next_id, cursor = next_id + len(docs), number + 1
                docs, origins, size, bad = [], [], 0, 0
        self.records.check()
        if docs:
            yield self._block(docs, next_id, bad, size, origins), cursor + len(docs)

    def _block(
        self, docs: list[bytes], next_id: int, bad: int, size: int, origins: list[str]
    ) -> DataBlock:
        says = origins if self.records.say_origins else []
        return block_of(docs, next_id, num_unreadable=bad, size_bytes=size, origins=says)

    def _samples(self) -> Iterator[tuple[bytes | None, str]]:
        """Yield each sample's text, None where it cannot be read, and its origin."""
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
                        # WebDataset: members with one name up to the first dot are one sample
                        here = f"{name[0]}/{name[2].partition('.')[0]}"
                        if here != key:
                            if key is not None:
                                yield text if readable else None, self._origin
                            key, text, readable, self._origin = here, b"", True, ""
                        found = self._text(tar, member)
                        readable = readable and found is not None
                        text = text or found or b""
                    self._check_end(metered, tar.offset)
            except (
                tarfile.TarError,
                OSError,
                EOFError,
                ValueError,
                OverflowError,
                RecursionError,  # a header that describes a header that describes …
            ) as error:
                where = "" if key is None else f" behind sample {key[:200]!r}"
                raise ReadError(
                    f"{self.path}: cannot be read as a tar shard{where}"
                    f" ({str(error)[:200]}); write the shard again"
                ) from error
        if key is not None:
            yield text if readable else None, self._origin

    def _check_end(self, metered: "_Metered", end_bytes: int) -> None:
        """Say where the mark of the end is missing.

        Raises:
            ReadError: More than zeros follows it.
        """
        # tarfile takes the end of the file for the end of the archive, so a cut shard looks whole.
        if metered.total_bytes <= end_bytes:
            self.notes.append("the shard has no mark of its end; it may have been cut there")
        while rest := metered.rest():
            if rest.strip(b"\0"):
                raise ReadError(
                    f"{self.path}: something lies behind the end of the archive (two shards in one"
                    " file?); readers of tar leave it out; write the shard again"
                )

    def _text(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes | None:
        """Return a member's text; empty where it is not text, None where it is unreadable."""
        lower = member.name.lower()
        if not lower.endswith((*_TEXTS, ".json")):
            return b""
        # A sparse member of a few bytes stands for as many zeros as it likes.
        if member.size > MAX_DOC_BYTES or member.issparse():
            return None
        file = tar.extractfile(member)
        raw = file.read() if file is not None else b""
        if not lower.endswith(".json"):
            return raw
        try:
            record = load_json(raw)
        except (ValueError, RecursionError):
            return None
        found, origin = self.records.take(record)
        self._origin = origin or self._origin
        return found or b""


class _Metered:
    """A stream that bounds the bytes read between two members of an archive."""

    def __init__(self, path: Path, stream: BufferedIOBase) -> None:
        self._path, self._stream = path, stream
        self._left = _HEADER_SLACK_BYTES
        self._empty_reads = 0
        self.total_bytes = 0

    def allow(self, size: int) -> None:
        """Allow a member of this size, and the headers of the next."""
        self._left = size + _HEADER_SLACK_BYTES

    def read(self, size: int) -> bytes:
        """Read like a file."""
        part = self._stream.read(size)
        self._left -= len(part)
        self.total_bytes += len(part)
        self._empty_reads += not part
        if self._empty_reads > _MOST_EMPTY_READS:
            raise ReadError(
                f"{self._path}: ends in the middle of a member, at byte {self.total_bytes:,}; the"
                " copy is not whole"
            )
        if self._left < 0:
            raise ReadError(
                f"{self._path}: a header of {_HEADER_SLACK_BYTES >> 20} MiB and more; this is no"
                " honest tar file"
            )
        return part

    def rest(self) -> bytes:
        """Return a part of what the tar reader did not ask for."""
        return self._stream.read(_HEADER_SLACK_BYTES)
