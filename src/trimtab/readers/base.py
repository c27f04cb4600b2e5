"""The protocol of a reader, and its view of a file: a sample to recognize it by, lines to read.

A reader turns one log on disk into a `RunRecord`. `sniff` says how sure it is, by the content of
the file, that the format is its own; the surest reader reads (`read`).
"""

import bz2
import codecs
import errno
import gzip
import io
import itertools
import lzma
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import zstandard

from trimtab.errors import ReadError
from trimtab.limits import (
    MAX_LINE_CHARS,
    MAX_SOUGHT_BYTES,
    MAX_SOUGHT_S,
    MAX_UNPACKED_RATIO,
    MAX_UNPACKED_SMALL_BYTES,
)
from trimtab.record import RunRecord

__all__ = [
    "CUT_STREAM",
    "Reader",
    "Sample",
    "TextLines",
    "is_plain",
    "loss_lines_among",
    "num_loss_lines",
    "open_bytes",
    "read_tail",
    "take_sample",
    "watching",
]

SAMPLE_SIZE_BYTES = 1 << 16
MAX_TAIL_BYTES = 1 << 16
MAX_TAIL_LINES = 400
_STATES = 8
"""States kept of a line that was drawn over."""
MAX_COUNTED_BYTES = 1 << 26
_MIN_SAMPLE_LINES = 8
_MAX_SAMPLE_SIZE_BYTES = 1 << 22
_MAX_NUL_READS = 1 << 14
_CHUNK_SIZE_BYTES = 1 << 20
_WINDOW_SIZE_BYTES = 1 << 17
_BLOCK_LINES = 1 << 12
_WIDE_HEAD_BYTES = 256
_MIN_SOUND = 3
_MIN_SOUND_SHARE = 0.8
"""Share of lines without a control character above which a file with NULs is a damaged text."""
_CONTROL = re.compile(rb"[\0-\6\x0e-\x1a\x1c-\x1f]|[\x80-\xff]{4}")
_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"BZh", "bzip2"),
)
CUT_STREAM = (EOFError, OSError, lzma.LZMAError, zlib.error, zstandard.ZstdError)


@runtime_checkable
class Reader(Protocol):
    """One log format."""

    @property
    def name(self) -> str:
        """Name of the format, as in `RunRecord.format`."""
        ...

    @property
    def looks_for(self) -> str:
        """What it recognizes its format by, as a clause for an error message."""
        ...

    def sniff(self, sample: "Sample") -> float:
        """Return how sure it is, 0 to 1, that the file is of its format."""
        ...

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: Nothing in it can be read, or a line is broken.
        """
        ...


@dataclass(frozen=True)
class Sample:
    """The start of a file, decompressed, and a way to look further."""

    path: Path
    raw: bytes
    """First `SAMPLE_SIZE_BYTES` bytes."""
    whole: bool
    """Whether that is all of it."""
    found: dict[bytes, bool] = field(default_factory=dict, repr=False)

    @cached_property
    def text(self) -> str:
        """The bytes as text; what is not text reads as U+FFFD."""
        raw = self.raw.replace(b"\0", b"")  # damage, or it is no text
        return raw.decode(_encoding(raw), errors="replace").lstrip("\ufeff")

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """Whole lines of the sample that are not blank; one cut off by its end is left out."""
        lines = re.split(r"\r\n|\r|\n", self.text)
        if not self.whole and len(lines) > 1:
            lines.pop()
        return tuple(line for line in lines if line.strip())

    @property
    def is_binary(self) -> bool:
        """Whether it cannot be text: NULs and no lines beside them, or a tenth undecodable.

        A power cut leaves NULs in a log, one or whole blocks; the lines around them are lines.
        """
        if not self.raw:
            return False
        if self.text.count("\ufffd") > 0.1 * len(self.text):
            return True
        if b"\0" not in self.raw:
            return False
        lines = [line for line in self.raw.split(b"\n") if line.strip(b"\0\r")]
        sound = [line for line in lines if not _CONTROL.search(line.strip(b"\0"))]
        return len(sound) < max(_MIN_SOUND, _MIN_SOUND_SHARE * len(lines))

    @cached_property
    def windows(self) -> bytes:
        """The whole file where it is small, else stretches from its start to its end.

        What repeats through a log is in them; several formats can be sought without as many passes.
        """
        if self.whole:
            return self.raw
        with open_bytes(self.path) as stream:
            if isinstance(stream, io.BufferedReader) and is_plain(stream):
                return _stretches(stream, self.path.stat().st_size)
            parts = [self.raw]
            try:
                for i in itertools.count():
                    chunk = stream.read1(_CHUNK_SIZE_BYTES)
                    if not chunk:
                        break
                    # Ever rarer, since searches run over all parts.
                    if i & (i - 1) == 0:  # 1, 2, 4, 8 ... MiB
                        parts.append(chunk[:_WINDOW_SIZE_BYTES])
            except CUT_STREAM:
                pass
        return b"\n".join(parts)

    def contains(self, pattern: bytes) -> bool:
        """Whether the regular expression occurs in the file, deep in it too.

        Some logs print megabytes of library noise before their first record. Cost: one pass over
        the file's first 256 MiB, remembered per pattern; matches longer than 4 KiB may be missed.
        """
        if pattern not in self.found:
            self.found[pattern] = self._search(re.compile(pattern))
        return self.found[pattern]

    def _search(self, expression: re.Pattern[bytes]) -> bool:
        if expression.search(self.raw) is not None:
            return True
        if self.whole:
            return False
        left, end = MAX_SOUGHT_BYTES, time.monotonic() + MAX_SOUGHT_S
        with open_bytes(self.path) as stream:
            tail = b""
            try:
                while left > 0 and (chunk := stream.read1(_CHUNK_SIZE_BYTES)):
                    if expression.search(tail + chunk) is not None:
                        return True
                    # A match may lie across two chunks.
                    tail = chunk[-4096:]
                    left -= len(chunk)
                    if time.monotonic() > end:
                        return False
            except CUT_STREAM:
                return False
        return False


def _stretches(stream: io.BufferedReader, size: int) -> bytes:
    if size <= 4 * _WINDOW_SIZE_BYTES:
        return stream.read()
    parts: list[bytes] = []
    for quarter in range(5):
        stream.seek(quarter * (size - _WINDOW_SIZE_BYTES) // 4)
        parts.append(stream.read(_WINDOW_SIZE_BYTES))
    return b"\n".join(parts)


def take_sample(path: Path) -> Sample:
    """Return the start of a file.

    Raises:
        ReadError: The file is missing, unreadable or empty.
    """
    with open_bytes(path) as stream:
        parts: list[bytes] = []
        size = num_lines = num_skipped = 0
        wanted = SAMPLE_SIZE_BYTES
        try:
            # One byte more than the sample shows whether that was the whole file.
            while size <= wanted and (part := stream.read1(wanted + 1 - size)):
                # Where a log was cut by a rotation its writer leaves NULs up to its old place.
                part = part if parts else part.lstrip(b"\0")
                num_skipped += not part
                if num_skipped > _MAX_NUL_READS:
                    break
                parts += [part] if part else []
                size += len(part)
                num_lines += part.count(b"\n")
                # A header of a thousand names fills a sample: lines are needed, not bytes.
                if size > wanted and num_lines < _MIN_SAMPLE_LINES and b"\0" not in parts[0]:
                    wanted = min(4 * wanted, _MAX_SAMPLE_SIZE_BYTES)
        except CUT_STREAM as error:
            if not parts:
                raise ReadError(
                    f"{path}: its compressed data is damaged ({error}); check the file"
                ) from error
    raw = b"".join(parts)
    if not raw.strip():
        raise ReadError(f"{path}: empty; nothing has been logged yet, or it is the wrong file")
    return Sample(path, raw[:wanted], len(raw) <= wanted)


_LOSS_LINE = re.compile(
    rb"(?i:loss|nll|cost)[^\n\r]{0,60}?[:=| \t]['\"\[(]{0,2}"
    rb"[-+]?(?:\d+\.\d|\d+[eE][-+]|\.\d|nan|inf)"
    rb"[^\n\r]*"
)


_HELD_OUT_LINE = re.compile(
    rb"(?i)(?:val|valid|validation|eval|test|dev)[_ /.-]?(?:lm )?(?:loss|nll)"
)


def _num_in(text: bytes) -> int:
    return sum(
        1 for m in _LOSS_LINE.finditer(text) if not _HELD_OUT_LINE.search(m.string, *_near(m))
    )


def _near(match: re.Match[bytes]) -> tuple[int, int]:
    """Return where a line's first loss is named, with the word in front of it."""
    return max(match.start() - 12, 0), min(match.start() + 12, match.end())


def loss_lines_among(lines: Sequence[str]) -> int:
    """Return how many of some lines name a training loss and then a number with a fraction."""
    return _num_in("\n".join(lines).encode("utf-8", "replace"))


def num_loss_lines(path: Path) -> int:
    """Return how many lines name a training loss and then a number with a fraction.

    Cost: one pass over the first 64 MiB.
    """
    num, left, rest = 0, MAX_COUNTED_BYTES, b""
    with open_bytes(path) as stream:
        try:
            while left > 0 and (chunk := stream.read1(_CHUNK_SIZE_BYTES)):
                left -= len(chunk)
                whole, mark, rest_of = (rest + chunk).rpartition(b"\n")
                rest = rest_of if mark else whole + rest_of
                rest = rest[-_CHUNK_SIZE_BYTES:]
                num += _num_in(whole) if mark else 0
        except CUT_STREAM:
            pass
    return num + _num_in(rest)


def read_tail(path: Path) -> tuple[str, ...]:
    """Return the last lines of a text file, decompressed: at most `MAX_TAIL_LINES` and 64 KiB.

    What stands before a carriage return was drawn over: of each line the last states are kept, each
    as a line of its own, which is enough to see a bar move on.

    Raises:
        ReadError: The file is missing or may not be read.
    """
    with open_bytes(path) as stream:
        encoding = _encoding(_peek(stream))
        data = b""
        try:
            if is_plain(stream):
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - MAX_TAIL_BYTES))
                data = stream.read(MAX_TAIL_BYTES)
            else:
                while chunk := stream.read1(_CHUNK_SIZE_BYTES):
                    data = (data + chunk)[-MAX_TAIL_BYTES:]
        except CUT_STREAM:
            pass
    text = data.decode(encoding, errors="replace").lstrip("\ufeff\ufffd\0")
    drawn = (line.split("\r") for line in text.split("\n"))
    lines = (state for states in drawn for state in [s for s in states if s.strip()][-_STATES:])
    return tuple(lines)[-MAX_TAIL_LINES:]


_watch: ContextVar[Callable[[str, int], None] | None] = ContextVar("watch", default=None)


@contextmanager
def watching(seen: Callable[[str, int], None]) -> Iterator[None]:
    """Have `seen(path, position_bytes)` called as files are read, for a progress bar.

    A file may be read more than once, from its start. Readers pass no such thing around: it holds
    for whatever this thread reads inside the block.
    """
    token = _watch.set(seen)
    try:
        yield
    finally:
        _watch.reset(token)


class _Disk(io.FileIO):
    """A file on disk; its I/O errors are raised as `ReadError`, unlike damaged contents."""

    def readinto(self, buffer: Any, /) -> int | None:
        try:
            size = super().readinto(buffer)
            if size is None:  # such as /proc/kmsg: a file by its kind, a device by what it does
                raise BlockingIOError(errno.EAGAIN, "it would have to be waited for")
            seen = _watch.get()
            if seen is not None:
                seen(str(self.name), self.tell())
        except OSError as error:
            raise _unreadable(self.name, error) from error
        return size

    def readall(self) -> bytes:
        try:
            return super().readall() or b""
        except OSError as error:
            raise _unreadable(self.name, error) from error


def _open_at_once(path: str, flags: int) -> int:
    # A pipe that was put in the place of the file since it was checked would block the open.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _unreadable(path: object, error: Exception) -> ReadError:
    why = getattr(error, "strerror", None) or error
    return ReadError(
        f"{path}: cannot be read ({why}); give the path of a log or of a directory of logs"
    )


@contextmanager
def open_bytes(path: Path) -> Iterator[io.BufferedIOBase]:
    """Open a file for reading, decompressing gzip, zstd, xz and bzip2 as their first bytes say.

    Raises:
        ReadError: The file is missing, may not be read, or is a pipe or a device.
    """
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):  # a pipe would be waited on, and read once
            raise ReadError(
                f"{path}: not a regular file but a pipe, socket or device; "
                "write the log to a file and give that"
            )
        raw: io.BufferedReader = io.BufferedReader(_Disk(path, opener=_open_at_once))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    with raw:
        magic = raw.read(6)
        raw.seek(0)
        form = next((form for m, form in _MAGIC if magic.startswith(m)), "")
        if not form:
            encoding = _wide_encoding(raw)
            yield io.BufferedReader(_Recoded(raw, encoding)) if encoding else raw
            return
        with _decompress(raw, form) as stream:
            yield io.BufferedReader(_Unpacked(stream, path))


def _wide_encoding(raw: io.BufferedReader) -> str:
    """Return the UTF-16 that a file is written in, by its mark or by its NULs; "" for any other."""
    head = raw.read(_WIDE_HEAD_BYTES)
    raw.seek(0)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding, odd in (("utf-16-le", 1), ("utf-16-be", 0)):
        # ASCII in two bytes: every other one is NUL, and none of those between.
        if len(head) >= 16 and not head[odd::2].strip(b"\0") and b"\0" not in head[1 - odd :: 2]:
            return encoding
    return ""


class _Recoded(io.RawIOBase):
    """UTF-16, such as PowerShell's `>` writes it, read as UTF-8."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while not self._rest:
            data = self._stream.read1(len(buffer))
            self._rest = self._decoder.decode(data, final=not data).encode("utf-8", "replace")
            if not data:
                break
        part, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)


class _Stream(Protocol):
    def read1(self, size: int = -1, /) -> bytes:
        """Return what one read of the compressed data gives, at most `size` bytes."""
        ...


def _decompress(
    raw: io.BufferedReader, form: str
) -> "gzip.GzipFile | lzma.LZMAFile | bz2.BZ2File | zstandard.ZstdDecompressionReader":
    """Return a stream whose `read1` gives what is whole before a break in the compressed data."""
    if form == "gzip":
        return gzip.GzipFile(fileobj=raw)
    if form == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
    return lzma.LZMAFile(raw) if form == "xz" else bz2.BZ2File(raw)


class _Unpacked(io.RawIOBase):
    """What a compressed file holds, up to a size that no log unpacks to."""

    def __init__(self, stream: _Stream, path: Path) -> None:
        self._stream = stream
        self._path = path
        self._left = max(MAX_UNPACKED_SMALL_BYTES, MAX_UNPACKED_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        data = self._stream.read1(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise ReadError(
                f"{self._path}: unpacks to more than {MAX_UNPACKED_RATIO} times its size, as no log"
                " does; "
                "if it is one, unpack it and give the result"
            )
        buffer[: len(data)] = data
        return len(data)


class TextLines:
    r"""The lines of a text file, one by one; any of `\n`, `\r\n` and a lone `\r` ends one.

    A carriage return is what a progress bar prints before it draws itself again. After the last
    line, `torn` says whether it had no end (the writer is still at it) and `cut` whether the
    compressed stream broke off.
    """

    def __init__(self, path: Path) -> None:
        """Remember the path; nothing is opened yet."""
        self.path = path
        self.torn = False
        self.cut = False
        self.begun = False
        """Whether a line was given."""
        self.num_long = 0
        """Lines of more than `MAX_LINE_CHARS` characters, given as empty ones."""
        self.num_damaged = 0
        """Lines with NUL bytes, those that begin a file left aside."""

    def __iter__(self) -> Iterator[str]:
        """Yield the lines without their ends.

        Raises:
            ReadError: The file is missing or may not be read.
        """
        with open_bytes(self.path) as stream:
            encoding = _encoding(_peek(stream))
            text = io.TextIOWrapper(
                cast("io.BufferedReader", stream), encoding=encoding, errors="replace"
            )
            line = "\n"
            try:
                while line := text.readline(MAX_LINE_CHARS):
                    if len(line) == MAX_LINE_CHARS and not line.endswith("\n"):
                        line = self._rest_of(text)
                    yield (self._sound(line) if "\0" in line else line).rstrip("\n")
                    self.begun = True
                    self.torn = not line.endswith("\n")
            except CUT_STREAM:
                self.cut = True
            finally:
                # Closing the wrapper would close the stream, which its owner closes.
                text.detach()

    def _sound(self, line: str) -> str:
        """Return what is whole of a line with NULs: what stands behind those that begin a file.

        A rotation leaves those, and the writer goes on with a whole line. Any others took the place
        of something: the numbers around them may be cut, and the line is given as an empty one.
        """
        rest = line if self.begun else line.lstrip("\0")
        self.num_damaged += self.begun or "\0" in rest
        return rest if "\0" not in rest else "\n" if line.endswith("\n") else ""

    def _rest_of(self, text: io.TextIOWrapper) -> str:
        """Read on to the end of a line that is too long; return only that end."""
        self.num_long += 1
        line = ""
        while part := text.readline(MAX_LINE_CHARS):
            line = part
            if part.endswith("\n"):
                break
        return "\n" if line.endswith("\n") else ""

    def blocks(self) -> Iterator[list[str]]:
        """Yield the same lines, thousands at a time."""
        with open_bytes(self.path) as stream:
            if not is_plain(stream):  # what is whole before a break is known line by line only
                lines = iter(self)
                while block := list(itertools.islice(lines, _BLOCK_LINES)):
                    yield block
                return
            encoding = _encoding(_peek(stream))
            text = io.TextIOWrapper(
                cast("io.BufferedReader", stream), encoding=encoding, errors="replace"
            )
            rest, in_long = "", False
            try:
                while chunk := text.read(_CHUNK_SIZE_BYTES):
                    together = rest + chunk
                    damaged = "\0" in together
                    block = together.split("\n")
                    # The last piece may be half a line.
                    rest = block.pop()
                    if block and (in_long or len(block[0]) > MAX_LINE_CHARS):
                        self.num_long += not in_long
                        block[0], in_long = "", False
                    if in_long or len(rest) > MAX_LINE_CHARS:
                        self.num_long += not in_long
                        rest, in_long = "", True
                    yield self._sound_block(block) if damaged else block
                    self.begun = True
            finally:
                text.detach()
            self.torn = bool(rest) or in_long
            if self.torn:
                yield self._sound_block([rest]) if "\0" in rest else [rest]

    def _sound_block(self, block: list[str]) -> list[str]:
        sound = []
        for line in block:
            sound.append(self._sound(line) if "\0" in line else line)
            self.begun = True
        return sound

    def notes(self) -> list[str]:
        """What is to be said about the end of the file."""
        said = []
        if self.num_long:
            lines = "1 line" if self.num_long == 1 else f"{self.num_long} lines"
            said.append(f"{lines} of more than {MAX_LINE_CHARS:,} characters left out")
        if self.num_damaged:
            lines = "1 line" if self.num_damaged == 1 else f"{self.num_damaged} lines"
            said.append(
                f"NUL bytes in {lines}, as a power cut or a full disk leaves them; rows may be lost"
            )
        if self.cut:
            said.append("the compressed file breaks off; what came before was read")
        return said


def is_plain(stream: io.BufferedIOBase) -> bool:
    """Whether a file is read as it lies on the disk."""
    return isinstance(stream, io.BufferedReader) and isinstance(stream.raw, io.FileIO)


def _peek(stream: io.BufferedIOBase) -> bytes:
    peek = getattr(stream, "peek", None)
    try:
        return bytes(peek(4)) if peek is not None else b""
    except CUT_STREAM:
        return b""


def _encoding(raw: bytes) -> str:
    return "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
