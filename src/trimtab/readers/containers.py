"""Files that contain logs: archives, notebooks, HTML pages with tables, NumPy arrays.

The content is unpacked as text, never executed, and read like any file. Archives are bounded:
members beyond the size limits are left out.
"""

import io
import json
import re
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

import numpy as np

from trimtab.errors import ReadError
from trimtab.limits import MAX_MEMBER_BYTES, MAX_MEMBERS, MAX_MEMBERS_BYTES, MAX_PAGE_BYTES
from trimtab.readers.base import CUT_STREAM, open_bytes
from trimtab.readers.tags import tag_of_file

__all__ = ["Cell", "Member", "file_name", "members_of", "name_of_binary", "notebook_cells"]

_HEAD_SIZE_BYTES = 1 << 12
_TAR_MARK = slice(257, 262)
_NO_ARCHIVE_OF_LOGS = re.compile(
    r"(?:^|/)(?:data\.pkl|constants\.pkl|\[Content_Types\]\.xml|METADATA|AndroidManifest\.xml)$"
)
_PICKLE = (
    "a pickle, which is never opened, as that may run code; write the history as JSON and give that"
)
_BINARIES: tuple[tuple[bytes, str], ...] = (
    (
        b"PAR1",
        "a Parquet table; write it as CSV (pandas.read_parquet(...).to_csv(...)) and give that",
    ),
    (b"ARROW1", "an Arrow file; write it as CSV and give that"),
    (b"\x89HDF\r\n", "an HDF5 file; write its history as CSV or JSON and give that"),
    *((bytes([0x80, protocol]), _PICKLE) for protocol in (2, 3, 4, 5)),
    (b"PK\x03\x04", "an archive without a log in it, such as a checkpoint; give the log"),
)


@dataclass(frozen=True)
class Member:
    """One file inside another, unpacked."""

    name: str
    """Path inside the archive; "" where there is only one and it has no name."""
    data: bytes


def name_of_binary(raw: bytes) -> str:
    """Return what a binary file is by its first bytes and what to do about it, "" if unknown."""
    return next((text for magic, text in _BINARIES if raw.startswith(magic)), "")


def members_of(path: Path) -> Iterator[Member] | None:
    """Return the files inside a container, None for any other file.

    Raises:
        ReadError: The file is missing or may not be read.
    """
    with open_bytes(path) as stream:
        try:
            head = stream.read(_HEAD_SIZE_BYTES)
        except (*CUT_STREAM, ValueError):
            return None
    if head.startswith(b"PK\x03\x04"):
        return _of_zip(path)
    if head[_TAR_MARK] == b"ustar":
        return _of_tar(path)
    if head.startswith(b"\x93NUMPY"):
        return _of_array(path)
    if head.lstrip()[:1] == b"{" and b'"cells"' in head and _is_notebook(path):
        lines = [line for cell in notebook_cells(path) for line in cell.lines]
        return iter([Member("", "\n".join(lines).encode(errors="replace"))])
    if re.match(rb"\s*(?:<!doctype html|<html|<table|<div)", head, re.IGNORECASE):
        page = _Page()
        page.feed(_page(path).decode("utf-8", errors="replace"))
        return iter([Member("", "\n".join(page.lines).encode())])
    return None


def _of_zip(path: Path) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(_NO_ARCHIVE_OF_LOGS.search(e.filename) for e in entries[:50]):
                return
            arrays: dict[str, list[object]] = {}
            total = 0
            for entry in entries[:MAX_MEMBERS]:
                total += entry.file_size
                if (
                    entry.is_dir()
                    or entry.file_size > MAX_MEMBER_BYTES
                    or total > MAX_MEMBERS_BYTES
                ):
                    continue
                with archive.open(entry) as stream:
                    data = stream.read(MAX_MEMBER_BYTES)
                if data.startswith(b"\x93NUMPY"):
                    arrays[entry.filename.removesuffix(".npy")] = _column(data)
                else:
                    yield Member(entry.filename, data)
    except (
        zipfile.BadZipFile,
        RuntimeError,
        NotImplementedError,
        EOFError,
        OSError,
        ValueError,
    ) as error:
        raise ReadError(
            f"{path}: this archive cannot be unpacked ({error}); unpack it by hand"
        ) from error
    if arrays:
        yield Member("", json.dumps({k: v for k, v in arrays.items() if v}).encode())


def _of_tar(path: Path) -> Iterator[Member]:
    total = 0
    try:
        with open_bytes(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
            for number, entry in enumerate(archive):
                if number >= MAX_MEMBERS or total > MAX_MEMBERS_BYTES:
                    return
                if not entry.isfile() or entry.size > MAX_MEMBER_BYTES:
                    continue
                total += entry.size
                file = archive.extractfile(entry)
                if file is not None:
                    yield Member(entry.name, file.read())
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if not total:
            raise ReadError(
                f"{path}: this archive cannot be unpacked ({error}); unpack it by hand"
            ) from error


def _of_array(path: Path) -> Iterator[Member]:
    with open_bytes(path) as stream:
        values = _column(stream.read(MAX_MEMBER_BYTES))
    tag = tag_of_file(path)
    if values and tag:
        yield Member("", json.dumps({tag: values}).encode())


def _column(data: bytes) -> list[object]:
    """Return the numbers of a one-dimensional array, [] of another; objects are never unpickled."""
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError):
        return []
    if array.ndim != 1 or array.dtype.kind not in "fiu":
        return []
    return list(array.astype(np.float64).tolist())


def _is_notebook(path: Path) -> bool:
    with open_bytes(path) as stream:
        data = stream.read(MAX_PAGE_BYTES)
    return b'"nbformat"' in data


def _page(path: Path) -> bytes:
    with open_bytes(path) as stream:
        return stream.read(MAX_PAGE_BYTES)


@dataclass(frozen=True)
class Cell:
    """What a cell of a notebook shows: its tables as lines with bars, and all its lines."""

    number: int
    """Place in the notebook, from 1."""
    tables: list[str]
    lines: list[str]


def notebook_cells(path: Path) -> list[Cell]:
    """Return the cells of a Jupyter notebook that printed something; none for any other file."""
    with open_bytes(path) as stream:
        try:
            head = stream.read(_HEAD_SIZE_BYTES)
        except (*CUT_STREAM, ValueError):
            return []
    if head.lstrip()[:1] != b"{" or b'"cells"' not in head or not _is_notebook(path):
        return []
    try:
        document = json.loads(_page(path))
    except (ValueError, RecursionError):
        return []
    cells = document.get("cells") if isinstance(document, dict) else None
    found = (_cell(n, c) for n, c in enumerate(cells if isinstance(cells, list) else [], 1))
    return [cell for cell in found if cell.lines]


def _cell(number: int, cell: object) -> Cell:
    outputs = cell.get("outputs") if isinstance(cell, dict) else None
    tables: list[str] = []
    lines: list[str] = []
    for output in outputs if isinstance(outputs, list) else []:
        if not isinstance(output, dict):
            continue
        data = output.get("data")
        parts = data if isinstance(data, dict) else {}
        if "text/html" in parts:
            page = _Page()
            page.feed(_joined(parts["text/html"]))
            tables += page.lines
            lines += page.lines
        else:
            lines += _joined(output.get("text", parts.get("text/plain", ""))).split("\n")
    return Cell(number, tables, lines)


def _joined(text: object) -> str:
    if isinstance(text, list):
        return "".join(t for t in text if isinstance(t, str))
    return text if isinstance(text, str) else ""


class _Page(HTMLParser):
    """Turns the tables of a page into lines with bars, and the rest into lines of text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self._row: list[str] | None = None
        self._cell: list[str] | None = None
        self._is_hidden = False

    def handle_starttag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],  # noqa: ARG002
    ) -> None:
        if tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._cell = []
        self._is_hidden = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None and self._row is not None:
            self._row.append(" ".join("".join(self._cell).split()))
            self._cell = None
        elif tag == "tr" and self._row is not None:
            self.lines.append("| " + " | ".join(self._row) + " |")
            self._row = None
        self._is_hidden = False

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)
        elif self._row is None and not self._is_hidden and data.strip():
            self.lines.extend(data.split("\n"))


def file_name(member: Member) -> str:
    """Return a plain name for a member on disk; no part of its path leads anywhere."""
    name = PurePosixPath(member.name.replace("\\", "/")).name
    return re.sub(r"[^\w.\- ]", "_", name)[-100:].lstrip(".") or "log"
