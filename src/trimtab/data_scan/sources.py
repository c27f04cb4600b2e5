"""Which files a path means, and which reader understands each."""

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from trimtab.data_scan.block import BlockReader
from trimtab.data_scan.places import is_own_file
from trimtab.data_scan.read_tables import Columns
from trimtab.data_scan.read_tar import TarShard
from trimtab.data_scan.read_text import JsonLines, PlainText
from trimtab.data_scan.read_tokens import megatron, npy, raw_bin
from trimtab.data_scan.unpack import open_data
from trimtab.errors import ReadError

__all__ = ["FoundFiles", "ReadSettings", "expand", "find_sources", "open_source"]

_PACKED = (".gz", ".zst", ".zstd", ".xz", ".bz2")
_TABLES = (".parquet", ".arrow", ".feather")


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How sources are read."""

    field: str | None = None
    """Name of the text field; None looks for it."""
    context: int | None = None
    """Tokens per sample of a token file (default 2048), bytes per window of plain text (default
    8192)."""
    dtype: str | None = None
    """dtype of a raw `.bin`."""
    by: str | None = None
    """Name of the field that says where a document is from; None looks for it."""


@dataclass
class FoundFiles:
    """The files that some paths mean."""

    files: list[Path] = field(default_factory=list)
    errors: list[dict[str, str]] = field(default_factory=list)
    """Paths that mean none, and links in directories that lead nowhere."""
    notes: list[str] = field(default_factory=list)
    """What in a directory was passed over."""

    def _fail(self, path: str | Path, why: str) -> None:
        self.errors.append({"path": str(path), "error": f"{path}: {why}"})


def find_sources(given: str | Path) -> list[Path]:
    """Return the files that a path means, sorted: itself, or all of a directory.

    Raises:
        ReadError: There is nothing, or a part of it cannot be reached.
    """
    found = expand([str(given)])
    if found.errors:
        raise ReadError(found.errors[0]["error"])
    return found.files


def expand(paths: list[str]) -> FoundFiles:
    """Return every file that the paths mean, and what they mean that cannot be read."""
    found = FoundFiles()
    for given in paths:
        path = Path(given)
        if path.is_dir():
            _walk(path, found)
        elif path.is_symlink() and not path.exists():
            found._fail(given, "is a link that leads nowhere; correct it, or give the file itself")
        elif not path.exists():
            found._fail(given, "does not exist; give a file of data, or a directory of them")
        elif path.suffix == ".bin" and path.with_suffix(".idx").exists():
            found.files.append(path.with_suffix(".idx"))
        else:
            found.files.append(path)
    return found


def _walk(root: Path, found: FoundFiles) -> None:
    """Collect the files of a directory, sorted by name; files that are not data are noted."""
    files: list[Path] = []
    before = len(found.errors)
    for folder, folders, names in os.walk(root, onerror=lambda e: _unreadable(e, found)):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in folders:
            if Path(folder, name).is_symlink():
                found.notes.append(
                    f"{Path(folder, name)}: a link to a directory, not followed; give it by itself"
                    " to scan it"
                )
        for name in sorted(n for n in names if not n.startswith(".")):
            path = Path(folder, name)
            if _is_data(path, found):
                files.append(path)
    files.sort()
    # A Megatron .bin is read through its .idx; listing both would scan it twice.
    indexed = {p.with_suffix(".bin") for p in files if p.suffix == ".idx"}
    files = [p for p in files if p not in indexed]
    found.files += files
    if not files and len(found.errors) == before:
        found._fail(root, "holds no file; give a file of data, or a directory of them")


def _is_data(path: Path, found: FoundFiles) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        found._fail(path, "is a link that leads nowhere; a shard is missing")
        return False
    if not stat.S_ISREG(mode):
        found.notes.append(f"{path}: a pipe, socket or device, passed over")
        return False
    if is_own_file(path):
        found.notes.append(f"{path}: a skip list or state of a scan, passed over")
        return False
    return True


def _unreadable(error: OSError, found: FoundFiles) -> None:
    found._fail(str(error.filename), f"cannot be read ({error.strerror})")


def open_source(path: Path, reading: ReadSettings) -> tuple[str, BlockReader]:
    """Return the kind of a file and its reader, by its name or else by its content.

    Raises:
        ReadError: It cannot be read.
        MissingExtraError: It needs the `data` extra.
    """
    names = [s.lower() for s in path.suffixes if s.lower() not in _PACKED]
    suffix = names[-1] if names else ""
    tokens = reading.context or 2048
    if suffix == ".idx":
        return "megatron", megatron(path, tokens)
    if suffix == ".npy":
        return "npy", npy(path, tokens)
    if suffix == ".npz":
        raise ReadError(
            f"{path}: an .npz is an archive of arrays, and does not say which of them training"
            " reads; save the tokens with numpy.save as .npy"
        )
    if suffix == ".bin":
        return "tokens", raw_bin(path, tokens, reading.dtype)
    if suffix in _TABLES:
        return suffix[1:], Columns(path, reading.field, reading.by)
    if suffix == ".tar":
        return "tar", TarShard(path, reading.field, reading.by)
    if suffix in (".jsonl", ".ndjson") or _begins_with_json(path):
        return "jsonl", JsonLines(path, reading.field, reading.by)
    return "text", PlainText(path, reading.context or 8192)


def _begins_with_json(path: Path) -> bool:
    with open_data(path) as stream:
        try:
            start = stream.read1(4096).lstrip()
        except ReadError:  # the reader reports it when it reads the whole file
            start = b""
    return start.startswith((b'{"', b"{ "))
