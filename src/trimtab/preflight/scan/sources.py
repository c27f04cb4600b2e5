"""Which files a path means, and which reader understands each."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.preflight.scan.block import Reader
from trimtab.preflight.scan.read_tables import Columns
from trimtab.preflight.scan.read_tar import TarShard
from trimtab.preflight.scan.read_text import JsonLines, PlainText
from trimtab.preflight.scan.read_tokens import megatron, npy, raw_bin
from trimtab.readers.base import open_bytes

__all__ = ["Reading", "expand", "find_sources", "open_source"]

_PACKED = (".gz", ".zst", ".zstd", ".xz", ".bz2")
_TABLES = (".parquet", ".arrow", ".feather")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How sources are read."""

    field: str | None = None
    """Name of the text field; None looks for it."""
    context: int | None = None
    """Tokens per sample of a token file (default 2048), bytes per window of plain text (default 8192)."""
    dtype: str | None = None
    """dtype of a raw `.bin`."""


def find_sources(given: str | Path) -> list[Path]:
    """Return the files that a path means, sorted: itself, or all of a directory.

    Raises:
        ReadError: There is nothing.
    """
    path = Path(given)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and not _is_hidden(p, path))
        indexed = {p.with_suffix(".bin") for p in found if p.suffix == ".idx"}
        found = [p for p in found if p not in indexed]
        if not found:
            raise ReadError(f"{given}: holds no file; give a file of data, or a directory of them")
        return found
    if not path.exists():
        raise ReadError(f"{given}: does not exist; give a file of data, or a directory of them")
    if path.suffix == ".bin" and path.with_suffix(".idx").exists():
        return [path.with_suffix(".idx")]
    return [path]


def _is_hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def open_source(path: Path, reading: Reading) -> tuple[str, Reader]:
    """Return the kind of a file and its reader, by name first and by content where that says nothing.

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
    if suffix == ".bin":
        return "tokens", raw_bin(path, tokens, reading.dtype)
    if suffix in _TABLES:
        return suffix[1:], Columns(path, reading.field)
    if suffix == ".tar":
        return "tar", TarShard(path, reading.field)
    if suffix in (".jsonl", ".ndjson") or _begins_with_json(path):
        return "jsonl", JsonLines(path, reading.field)
    return "text", PlainText(path, reading.context or 8192)


def _begins_with_json(path: Path) -> bool:
    with open_bytes(path) as stream:
        try:
            start = stream.read1(4096).lstrip()
        except (OSError, EOFError, ValueError):
            start = b""
    return start.startswith((b'{"', b"{ "))


def expand(paths: list[str]) -> Iterator[tuple[str, Path | ReadError]]:
    """Yield every file that the paths mean, each with the path as given; or why there is none."""
    for given in paths:
        try:
            for path in find_sources(given):
                yield given, path
        except ReadError as error:
            yield given, error
