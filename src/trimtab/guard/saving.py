"""Training state to disk and back: tensors through torch's distributed checkpoint, the rest JSON.

The manifest's hashes are compared before a byte is interpreted. Torch's distributed checkpoint
keeps its own index in a pickle (`.metadata`); it is read only from a folder whose manifest matches,
written by this user's own run.
"""

from __future__ import annotations

import json
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from trimtab.checkpoints.manifest import commit, move_aside, verify
from trimtab.errors import ActError, ReadError
from trimtab.guard.codec import join, split

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["load_state", "save_state"]


def save_state(state: Any, final: Path, *, step: int, attempt: str, aside: Path) -> None:
    """Write a nested state as the checkpoint folder `final`; whole or not at all.

    Args:
        state: What `codec.split` can take apart.
        final: The folder; one of that name is moved to `aside` once the new one is written.
        step: Last step whose update it holds.
        attempt: The attempt it belongs to.
        aside: Where an earlier checkpoint of the same step goes.

    Raises:
        ActError: It cannot be saved; training can go on.
    """
    partial = final.with_name(final.name + ".partial")
    try:
        if partial.exists():  # left by a process that died in mid-save
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
        tensors, tree = split(state)
        _write_tensors(tensors, partial / "tensors")
        (partial / "state.json").write_text(json.dumps(tree), encoding="utf-8")
        if final.exists():
            move_aside(final, aside)
        commit(partial, final, step=step, attempt=attempt)
    except (OSError, ActError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, ActError):
            raise
        raise ActError(
            f"{final}: cannot be saved ({error}); training goes on without this checkpoint"
        ) from error


def _write_tensors(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that no process group is initialised
            save(tensors, checkpoint_id=str(folder), no_dist=True)
    except CheckpointException as error:  # a BaseException: it would pass every `except Exception`
        why = "; ".join(sorted({str(e) for e, _ in error.failures.values()}))
        raise ActError(
            f"{folder}: cannot be saved ({why}); training goes on without this checkpoint"
        ) from error


def load_state(path: Path) -> Any:
    """Return the nested state of a checkpoint.

    Raises:
        ReadError: The folder is not whole; the message says what is wrong with it.
    """
    problem = verify(path)
    if problem:
        raise ReadError(f"{path}: {problem}; resume from an older checkpoint")
    tree = json.loads((path / "state.json").read_text(encoding="utf-8"))
    reader = FileSystemReader(str(path / "tensors"))
    tensors: dict[str, Any] = {}
    for name, known in reader.read_metadata().state_dict_metadata.items():
        if not isinstance(known, TensorStorageMetadata):
            raise ReadError(f"{path}: {name} is not a tensor; this is not a checkpoint of trimtab")
        tensors[name] = torch.empty(known.size, dtype=known.properties.dtype)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise ReadError(f"{path}: cannot be read ({error}); resume from an older one") from error
    return join(tensors, tree)
