"""Training text: this Python's own sources by default, or any file or directory of text.

Held out for validation is what a hash of the path says (of the block number, for a single file), so
the split does not depend on the order of listing and a file stays on its side as others come and
go.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["MIN_TRAIN_BYTES", "MIN_VALIDATION_BYTES", "Text", "load_text", "split_text"]

MIN_VALIDATION_BYTES = 64 * 1024
MIN_TRAIN_BYTES = 64 * 1024
_MAX_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 64 * 1024
_HELD_OUT_ONE_IN = 16
_SNIFF_BYTES = 8192

# Tests are left out because they repeat themselves, installed packages and what the build wrote
# (`_sysconfigdata*`, `config-*`) because they differ between machines with the same Python.
_NOT_LIBRARY = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages"})
_NOT_LIBRARY_PREFIXES = ("_sysconfigdata", "config-")


@dataclass(frozen=True, kw_only=True)
class Text:
    """Training and held-out bytes of one corpus; a token is a byte."""

    source: str
    """Where it came from, as shown to the user."""
    train: NDArray[np.uint8] = field(repr=False)
    """uint8 [n_train_bytes], to be trained on."""
    validation: NDArray[np.uint8] = field(repr=False)
    """uint8 [n_validation_bytes], at least 64 kB, never trained on."""
    train_sha256: str
    """Hash of the training bytes, hexadecimal."""
    validation_sha256: str
    """Hash of the held-out bytes, hexadecimal."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids: 256, one per byte."""
        return 256


def load_text(path: str | Path | None = None, *, max_bytes: int = _MAX_BYTES) -> Text:
    """Read a corpus and split it into training and held-out bytes.

    Args:
        path: A file or a directory of text; None takes the standard library's `*.py` files
            (about 12 MB) without its tests. Of a directory, hidden and binary files are left out.
        max_bytes: Read no more than about this much; what is cut is chosen by path hash, so that
            the cut is not alphabetical. Of a single file, its beginning is read.

    Raises:
        ConfigError: Nothing is there, it cannot be read, or it is too small to split.
    """
    if path is None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        source = (
            f"Python {'.'.join(sysconfig.get_python_version().split('.')[:2])} standard library"
        )
        pieces = _read_files(stdlib, _library_files(stdlib), max_bytes)
    else:
        root = Path(path)
        source = str(root)
        if root.is_dir():
            pieces = _read_files(root, _text_files(root), max_bytes)
        elif root.is_file():
            pieces = {root.name: _read(root, max_bytes)}
        else:
            raise ConfigError(f"text path {source!r} does not exist; give a file or a directory")
    return split_text(pieces, source=source)


def split_text(pieces: dict[str, bytes], *, source: str) -> Text:
    """Hold out about one piece in sixteen by hash of its name, and at least 64 kB.

    One piece alone is first cut into blocks of 64 kB, named by their number.

    Args:
        pieces: Content by name; names are relative paths with forward slashes.
        source: What to call the corpus in messages.

    Raises:
        ConfigError: Too little is left for training or for validation.
    """
    total_bytes = sum(map(len, pieces.values()))
    if total_bytes < MIN_TRAIN_BYTES + MIN_VALIDATION_BYTES:
        raise ConfigError(
            f"text {source!r} has {total_bytes} bytes; at least "
            f"{MIN_TRAIN_BYTES + MIN_VALIDATION_BYTES} are needed (64 kB of them are held out): "
            "give a larger file or directory of text"
        )
    if len(pieces) == 1:
        (content,) = pieces.values()
        # Numbers are padded so that sorting by name is sorting by position.
        pieces = {
            f"{start // _BLOCK_BYTES:08d}": content[start : start + _BLOCK_BYTES]
            for start in range(0, len(content), _BLOCK_BYTES)
        }
    held_out = _held_out(pieces)
    validation = b"".join(pieces[name] for name in sorted(held_out))
    train = b"".join(pieces[name] for name in sorted(pieces.keys() - held_out))
    if len(train) < MIN_TRAIN_BYTES:
        raise ConfigError(
            f"text {source!r} has {len(train)} bytes left for training after holding out "
            f"{len(validation)}; at least {MIN_TRAIN_BYTES} are needed: give more files"
        )
    return Text(
        source=source,
        train=np.frombuffer(train, dtype=np.uint8),
        validation=np.frombuffer(validation, dtype=np.uint8),
        train_sha256=hashlib.sha256(train).hexdigest(),
        validation_sha256=hashlib.sha256(validation).hexdigest(),
    )


def _held_out(pieces: dict[str, bytes]) -> set[str]:
    """Names whose hash is 0 modulo 16, and more in order of hash until they hold 64 kB."""
    held_out = {name for name in pieces if _name_hash(name) % _HELD_OUT_ONE_IN == 0}
    num_bytes = sum(len(pieces[name]) for name in held_out)
    for name in sorted(pieces.keys() - held_out, key=_name_hash):
        if num_bytes >= MIN_VALIDATION_BYTES:
            break
        held_out.add(name)
        num_bytes += len(pieces[name])
    return held_out


def _name_hash(name: str) -> int:
    # Not `hash`, which is seeded anew in each process. Names that are no UTF-8 exist on Linux.
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())


def _library_files(root: Path) -> Iterator[Path]:
    for path in _walk(root, skipped=_NOT_LIBRARY):
        parts = path.relative_to(root).parts
        if path.suffix == ".py" and not any(p.startswith(_NOT_LIBRARY_PREFIXES) for p in parts):
            yield path


def _text_files(root: Path) -> Iterator[Path]:
    for path in _walk(root, skipped=frozenset()):
        if not path.name.startswith(".") and b"\0" not in _read(path, _SNIFF_BYTES):
            yield path


def _walk(root: Path, *, skipped: frozenset[str]) -> Iterator[Path]:
    """Yield the regular files below root; symbolic links are not followed."""
    for folder, subfolders, names in os.walk(root):
        # In place: os.walk descends into what is left in this very list.
        subfolders[:] = [
            name
            for name in subfolders
            if name not in skipped and name != "__pycache__" and not name.startswith(".")
        ]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _read_files(root: Path, paths: Iterator[Path], max_bytes: int) -> dict[str, bytes]:
    """Read files in order of the hash of their relative path until `max_bytes` are there."""
    named = {path.relative_to(root).as_posix(): path for path in paths}
    pieces: dict[str, bytes] = {}
    room_bytes = max_bytes
    for name in sorted(named, key=_name_hash):
        if room_bytes <= 0:
            break
        content = _read(named[name], room_bytes)
        if content:
            pieces[name] = content
            room_bytes -= len(content)
    return pieces


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes)
    except OSError as error:
        raise ConfigError(f"text file {str(path)!r} cannot be read: {error.strerror}") from error
