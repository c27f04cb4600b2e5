"""Compressed shards, unpacked to their end; truncated and damaged ones are refused.

A truncated log is still worth reading. A truncated shard of training data is not: it has a
different number of documents, so every id after it refers to another document.
"""

import bz2
import io
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import zstandard

from trimtab.errors import ReadError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["check_regular", "open_data"]

MAX_EXPANSION = 100
"""What unpacks to more than this many times what was read so far, and to more than
`MAX_SMALL_BYTES`, is taken for a bomb. Text comes to 3 to 10, shards of the repeats that the scan
looks for to 50."""
MAX_SMALL_BYTES = 1 << 26
_READ_BYTES = {"gzip": 1 << 16, "xz": 1 << 16, "bzip2": 1 << 16, "zstd": 1 << 12}
"""Packed bytes given to a decoder at once. That of zstd knows no limit on what it returns: 4 KiB
can make 128 MiB."""
_XZ_MEMORY_BYTES = 1 << 28
"""The header of an .xz asks for its dictionary: `xz -9` for 64 MiB, a hostile one for 4 GiB."""
_PIECE_BYTES = 1 << 20
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
)
_DAMAGED = (OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError, EOFError, ValueError)


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...


def check_regular(path: Path) -> None:
    """Refuse what is no file with an end.

    Raises:
        ReadError: It is missing, or a pipe, a device or a directory.
    """
    try:
        regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReadError(f"{path}: cannot be read ({why}); give a file of data") from error
    if not regular:
        raise ReadError(
            f"{path}: not a regular file but a pipe, socket, device or directory; write the"
            " data to a file and give that"
        )


@contextmanager
def open_data(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file of data for reading, unpacked as its first bytes say.

    Raises:
        ReadError: It is missing, may not be read, is a pipe or a device, or, while it is read: it
            ends in the middle, is damaged, goes on behind its end, or unpacks beyond measure.
    """
    check_regular(path)
    try:
        raw = path.open("rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ReadError(f"{path}: cannot be read ({why}); give a file of data") from error
    with raw:
        magic = raw.read(6)
        raw.seek(0)
        form = next((form for m, form in _MAGIC if magic.startswith(m)), "")
        yield io.BufferedReader(_Unpacked(raw, path, form), _PIECE_BYTES) if form else raw


class _Unpacked(io.RawIOBase):
    """What a compressed file holds: every member of it, each checked to its end."""

    def __init__(self, raw: io.BufferedReader, path: Path, form: str) -> None:
        self._raw, self._path, self._form = raw, path, form
        self._taken = self._given = 0
        self._decoder = _decoder(form)
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        target = memoryview(buffer).cast("B")
        try:
            while not self._ready and self._more(len(target)):
                pass
        except _DAMAGED as error:
            raise ReadError(
                f"{self._path}: the {self._form} stream is damaged ({str(error)[:100]}); write the"
                " shard again"
            ) from error
        size = min(len(target), len(self._ready))
        target[:size] = self._ready[:size]
        self._ready = self._ready[size:]
        self._given += size
        if self._given > max(MAX_SMALL_BYTES, MAX_EXPANSION * self._taken):
            raise ReadError(
                f"{self._path}: {self._taken:,} bytes unpack to more than {self._given:,}, over"
                f" {MAX_EXPANSION} times as many; if it is meant to be so, unpack it by hand and"
                " scan the result"
            )
        return size

    def _more(self, wanted: int) -> bool:
        """Unpack a little; False at the end of the file.

        Raises:
            ReadError: The file ends where a member does not, or goes on with what is none.
        """
        if self._decoder.eof:
            return self._next_member()
        if not self._packed and getattr(self._decoder, "needs_input", True):
            self._packed = self._read()
            if not self._packed:
                raise ReadError(
                    f"{self._path}: ends in the middle of the {self._form} stream, after"
                    f" {self._given:,} unpacked bytes; the copy is not whole"
                )
        self._ready = memoryview(self._unpack(max(wanted, 1)))
        return True

    def _read(self) -> bytes:
        packed = self._raw.read(_READ_BYTES[self._form])
        self._taken += len(packed)
        return packed

    def _unpack(self, wanted: int) -> bytes:
        decoder = self._decoder
        packed, self._packed = self._packed, b""
        if self._form == "zstd":
            done = decoder.decompress(packed)
        else:
            done = decoder.decompress(packed, wanted)
        if self._form == "gzip":
            # Only zlib hands back what it did not get to; the others keep it inside.
            self._packed = getattr(decoder, "unconsumed_tail", b"")
        if decoder.eof:
            self._packed = decoder.unused_data
        return done

    def _next_member(self) -> bool:
        while not (rest := self._packed.lstrip(b"\0")):  # writers to tape fill up with zeros
            self._packed = self._read()
            if not self._packed:
                return False
        rest += self._raw.read(max(6 - len(rest), 0))
        magic = next(m for m, form in _MAGIC if form == self._form)
        if not (rest.startswith(magic) or (self._form == "zstd" and rest[1:4] == b"\x2a\x4d\x18")):
            raise ReadError(
                f"{self._path}: something that is no {self._form} lies behind the end of the"
                " stream; write the shard again"
            )
        self._packed, self._decoder = rest, _decoder(self._form)
        return True


def _decoder(form: str) -> _Decoder:
    makers: dict[str, Callable[[], _Decoder]] = {
        "gzip": lambda: zlib.decompressobj(31),
        "xz": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY_BYTES),
        "bzip2": bz2.BZ2Decompressor,
        # It takes no `max_length`, and is never given one.
        "zstd": lambda: cast("_Decoder", zstandard.ZstdDecompressor().decompressobj()),
    }
    return makers[form]()
