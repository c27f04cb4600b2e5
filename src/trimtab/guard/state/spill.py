"""Snapshots on a fast local disk: written by a thread while training goes on, read back when asked.

The files are this process' own scratch space: they are removed with it and never read by another
one, so that nothing here is trusted across processes. What a snapshot holds beside its large
tensors (settings, random states, the position in the data) stays in memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import threading
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from trimtab.errors import ActError, ConfigError
from trimtab.guard.distributed.sharding import local

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from trimtab.guard.state.training_state import StateDict

__all__ = ["Spill", "Spilled", "spill_folder"]

_LEAST_BYTES = 1 << 12
"""Smaller tensors stay in memory."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies in a file."""

    offset: int
    num_bytes: int
    crc: int
    like: torch.Tensor
    """Its shape and type; on the meta device."""
    rebuild: Callable[[torch.Tensor], torch.Tensor]
    """Makes the tensor of this rank's part."""


class Spilled:
    """A training state whose large tensors are in a file."""

    def __init__(self, path: Path, tree: StateDict) -> None:
        """Stand for the state; the file goes when nothing refers to it any more."""
        self._path = path
        self._tree = tree
        weakref.finalize(self, _remove, path, os.getpid())

    def outline(self) -> StateDict:
        """Return the state with tensors of the right shape and no content in the place of large
        ones.
        """
        outline: StateDict = _mapped(self._tree, lambda x: x.like if isinstance(x, _Place) else x)
        return outline

    def read(self) -> StateDict:
        """Return the whole state.

        Raises:
            ActError: The file is gone, or is not what was written.
        """
        try:
            with self._path.open("rb") as file:
                state: StateDict = _mapped(
                    self._tree, lambda x: self._tensor(file, x) if isinstance(x, _Place) else x
                )
        except OSError as error:
            raise ActError(
                f"{self._path}: the snapshot cannot be read ({error.strerror}); recovery goes back"
                " to a checkpoint"
            ) from error
        return state

    def _tensor(self, file: Any, place: _Place) -> torch.Tensor:
        raw = np.empty(place.num_bytes, dtype=np.uint8)
        file.seek(place.offset)
        if file.readinto(memoryview(raw)) != place.num_bytes or zlib.crc32(raw) != place.crc:
            raise ActError(
                f"{self._path}: the snapshot is not what was written; recovery goes back to a"
                " checkpoint"
            )
        flat = torch.from_numpy(raw).view(place.like.dtype)
        return place.rebuild(flat.reshape(place.like.shape))


class Spill:
    """Writes snapshots to a folder, one at a time."""

    def __init__(self, folder: Path) -> None:
        """Write to `folder`, which is there already and belongs to this process alone."""
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._count = 0
        weakref.finalize(self, _remove, folder, os.getpid())

    def begin(self, payload: StateDict, *, keep: Collection[int]) -> None:
        """Begin to write the training state of a snapshot; the one before is waited for.

        Once it is written, `payload["training"]` is a `Spilled` and the memory is free.

        Args:
            payload: Of a snapshot, held by nobody else.
            keep: Storage addresses of the tensors that stay in memory, since others share them.
        """
        self.wait()
        self._count += 1
        path = self._folder / f"{self._count}.bin"
        self._thread = threading.Thread(
            target=self._write, args=(payload, path, frozenset(keep)), daemon=True, name="spill"
        )
        self._thread.start()

    def wait(self) -> None:
        """Wait for what is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take_trouble(self) -> str:
        """Return why a snapshot could not be written since the last call; empty where all were."""
        trouble, self._trouble = self._trouble, ""
        return trouble

    def _write(self, payload: StateDict, path: Path, keep: frozenset[int]) -> None:
        try:
            with path.open("wb") as file:
                tree = _mapped(payload["training"], lambda x: _written(file, x, keep))
        except Exception as error:  # noqa: BLE001 - a disk that fails costs memory, not the run
            _remove(path, os.getpid())
            self._trouble = f"{path}: {type(error).__name__}: {error}"
            return
        payload["training"] = Spilled(path, tree)


def spill_folder(spill_to: str, rank: int) -> Path:
    """Make a folder for the snapshots of this process, and remove those of processes that are gone.

    Raises:
        ConfigError: It cannot be made.
    """
    base = Path(spill_to)
    try:
        base.mkdir(parents=True, exist_ok=True)
        # of this host only: a process of another one may be alive under its number
        for old in [x for x in base.iterdir() if x.name.startswith(_ours())]:
            if not _is_alive(old.name):
                shutil.rmtree(old, ignore_errors=True)
        folder = base / f"{_ours()}{os.getpid()}-{rank}"
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"spill_to is {spill_to!r}: no folder can be made there ({error.strerror}); name one on"
            " a local disk"
        ) from error
    return folder


def _ours() -> str:
    return f"trimtab-spill-{socket.gethostname()}-"


def _is_alive(name: str) -> bool:
    pid = name.removeprefix(_ours()).partition("-")[0]
    if not pid.isdecimal():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _written(file: Any, value: object, keep: frozenset[int]) -> object:
    if not isinstance(value, torch.Tensor):
        return value
    mine = local(value)
    if mine.nbytes < _LEAST_BYTES or mine.untyped_storage().data_ptr() in keep:
        return value
    raw = mine.contiguous().reshape(-1).view(torch.uint8).numpy()
    offset = file.tell()
    file.write(raw)
    like = torch.empty(mine.shape, dtype=mine.dtype, device="meta")
    return _Place(offset, raw.nbytes, zlib.crc32(raw), like, _rebuilder(value))


def _rebuilder(value: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    if not isinstance(value, DTensor):
        return lambda part: part
    mesh, placements = value.device_mesh, value.placements
    shape, stride = value.shape, value.stride()
    return lambda part: DTensor.from_local(
        part, mesh, placements, run_check=False, shape=shape, stride=stride
    )


def _mapped(state: Any, change: Callable[[object], object]) -> Any:
    if type(state) is dict:
        return {k: _mapped(v, change) for k, v in state.items()}
    if type(state) is list:
        return [_mapped(v, change) for v in state]
    if type(state) is tuple:
        return tuple(_mapped(v, change) for v in state)
    return change(state)


def _remove(path: Path, pid: int) -> None:
    """Remove a file or folder, unless this is a forked child: they are its parent's."""
    if os.getpid() != pid:
        return
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
