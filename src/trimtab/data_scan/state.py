"""State of an unfinished scan: one `.npz` of JSON and arrays, replaced atomically."""

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from trimtab.durable import sync_folder
from trimtab.errors import ConfigError, ReadError

__all__ = ["load_state", "save_state"]


def save_state(path: Path, state: Mapping[str, object]) -> None:
    """Write a state; a kill or a power cut leaves the old one or the new one.

    Raises:
        ConfigError: It cannot be written.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    text = json.dumps(_take_arrays(state, arrays)).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no file of another's
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, json=np.frombuffer(text, np.uint8), **arrays)
            file.flush()
            # Without it the rename may reach the disk before the data.
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"{path}: the state cannot be written ({error.strerror}); choose another --state"
        ) from error


def load_state(path: Path) -> dict[str, Any]:
    """Return what was saved.

    Raises:
        ReadError: There is none, or it is damaged.
    """
    try:
        with path.open("rb") as file, _loaded(path, file) as saved:
            state = _put_arrays(json.loads(saved["json"].tobytes()), saved)
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror or 'damaged'})") from error
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        EOFError,
        RuntimeError,  # an encrypted member; also nesting beyond measure
        NotImplementedError,
        MemoryError,
        OverflowError,
        SyntaxError,
        TokenError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        raise ReadError(
            f"{path}: holds no state of a scan, or a damaged one; leave out --resume and take it"
            " away to start from the beginning"
        ) from error
    if not isinstance(state, dict) or "accounts" not in state:
        raise ReadError(f"{path}: holds no state of a scan")
    return state


def _loaded(path: Path, file: BinaryIO) -> NpzFile:
    """Open an archive of arrays whose members are stored, as `save_state` writes them.

    Raises:
        ValueError: It is none, or one that unpacks to more than its size.
    """
    with zipfile.ZipFile(file) as archive:
        if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
            raise ValueError("it unpacks to more than its size")
    file.seek(0)
    saved = np.load(file, allow_pickle=False)
    assert isinstance(saved, NpzFile)
    return saved


def _take_arrays(value: object, arrays: dict[str, NDArray[np.generic]]) -> object:
    if isinstance(value, np.ndarray):
        name = f"a{len(arrays)}"
        arrays[name] = value
        return {"__array__": name}
    if isinstance(value, dict):
        return {k: _take_arrays(v, arrays) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_take_arrays(v, arrays) for v in value]
    return value


def _put_arrays(value: object, saved: Mapping[str, NDArray[np.generic]]) -> object:
    if isinstance(value, dict):
        if set(value) == {"__array__"}:
            return saved[value["__array__"]]
        return {k: _put_arrays(v, saved) for k, v in value.items()}
    if isinstance(value, list):
        return [_put_arrays(v, saved) for v in value]
    return value
