"""Training state to disk and back: tensors through torch's distributed checkpoint, the rest JSON.

    tensors/          shards of all ranks; what ranks hold alike is written once
    state.json        what they share
    rank-00000.json   what is this rank's own: random states, position in the data, and its part of
                      a model that is no rank's as a whole

The manifest's hashes are compared before a byte is interpreted, and a file that it does not list is
refused. Torch's distributed checkpoint keeps its own index in a pickle (`.metadata`); torch never
gets to unpickle it, see `tensor_index`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from typing import TYPE_CHECKING

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from trimtab.checkpoints.manifest import commit, verify
from trimtab.durable import make_folder, move
from trimtab.errors import ActError, ReadError
from trimtab.guard.distributed.sharding import local
from trimtab.guard.state.serialization import join, split
from trimtab.guard.state.tensor_index import IndexedReader

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.state.training_state import StateDict, Training

__all__ = ["load_state", "save_state"]

_OF_MODEL = re.compile(r"(?:state|rank-\d+)\.training\.model\.(.+)")
_OF_OPTIMIZER = re.compile(r"(?:state|rank-\d+)\.training\.optimizer\.state\.(\d+)\.")


def save_state(
    shared: StateDict,
    own: StateDict,
    final: Path,
    *,
    step: int,
    attempt: str,
    aside: Path,
    ranks: Ranks,
    doubt: str = "",
) -> None:
    """Write a nested state as the checkpoint folder `final`; whole or not at all.

    Args:
        shared: What `codec.split` can take apart, alike on all ranks but for shards.
        own: The same, of this rank only.
        final: The folder; one of that name is moved to `aside` once the new one is written.
        step: Last step whose update it holds.
        attempt: The attempt it belongs to.
        aside: Where an earlier checkpoint of the same step goes.
        ranks: All must call.
        doubt: Why it is suspect from the first; empty: it is healthy.

    Raises:
        ActError: It cannot be saved; training can go on.
    """
    partial = final.with_name(final.name + ".partial")

    def make_room() -> None:
        make_folder(final.parent)
        _clear(partial)  # left by a process that died in mid-save, or by a disk that failed
        partial.mkdir()

    def put_in_place() -> None:
        commit(partial, final, step=step, attempt=attempt, doubt=doubt, aside=aside)

    try:
        # Each of the three ends with a collective: no rank writes before the folder is there,
        # which gets its final name only after every rank has written its part.
        ranks.on_chief(_or_act_error(final, make_room))
        ranks.together(_or_act_error(final, lambda: write_tensors(shared, own, partial, ranks)))
        ranks.on_chief(_or_act_error(final, put_in_place))
    except BaseException:
        if ranks.chief:
            shutil.rmtree(partial, ignore_errors=True)
        raise


def _clear(partial: Path) -> None:
    """Have nothing lie under a name; what cannot be removed is renamed, and removed later."""
    shutil.rmtree(partial, ignore_errors=True)
    number = 1
    while os.path.lexists(partial):
        number += 1
        rest = partial.with_name(f"{partial.stem}.removing" + (f".{number}" if number > 2 else ""))
        if not os.path.lexists(rest):
            move(partial, rest)


def _or_act_error(final: Path, work: Callable[[], object]) -> Callable[[], None]:
    def tried() -> None:
        try:
            work()
        except OSError as error:
            raise ActError(
                f"{final}: cannot be saved ({error}); training goes on without this checkpoint"
            ) from error

    return tried


_COPY_AHEAD = 10_000_000
"""Bytes that torch copies from a device ahead of what it writes; its own default."""


def _ahead(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return the bytes to copy ahead: none of what is on the host, for which CUDA would start."""
    return _COPY_AHEAD if any(t.device.type != "cpu" for t in tensors.values()) else 0


def write_tensors(shared: StateDict, own: StateDict, partial: Path, ranks: Ranks) -> None:
    # The same paths on all ranks: torch's planner saves what ranks hold alike only once.
    tensors, tree = split({**shared, "num_ranks": ranks.count})
    mine, my_tree = split(own, _own_name(ranks.index))
    (partial / f"{_own_name(ranks.index)}.json").write_text(json.dumps(my_tree), encoding="utf-8")
    if ranks.chief:
        (partial / "state.json").write_text(json.dumps(tree), encoding="utf-8")
    folder = partial / "tensors"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns that no process group is initialised
            # What is this rank's own is whole as it lies here: of a sharded tensor, the shard.
            held = {**tensors, **{key: local(tensor) for key, tensor in mine.items()}}
            save(
                held,
                storage_writer=FileSystemWriter(folder, per_thread_copy_ahead=_ahead(held)),
                process_group=ranks.group,
                no_dist=ranks.group is None,
            )
    except CheckpointException as error:  # a BaseException: it would pass every `except Exception`
        why = "; ".join(sorted({str(e) for e, _ in error.failures.values()}))
        raise ActError(
            f"{folder}: cannot be saved ({why}); training goes on without this checkpoint"
        ) from error


def _own_name(index: int) -> str:
    return f"rank-{index:05d}"


def load_state(path: Path, training: Training, *, ranks: Ranks) -> StateDict:
    """Return the nested state of a checkpoint: shared and this rank's own, `num_ranks` with it.

    A rank that was not there when it was saved gets no `rng` (None) and the first rank's `data`.

    Args:
        path: Its folder.
        training: What it is for; tensors are read sharded as they are there.
        ranks: All must call.

    Raises:
        ReadError: The folder is not whole; the message says what is wrong with it.
    """
    problem = ranks.agree(lambda: verify(path))
    if problem:
        raise ReadError(f"{path}: {problem}; resume from an older checkpoint")
    return ranks.together(lambda: _read(path, training, ranks))


def _read(path: Path, training: Training, ranks: Ranks) -> StateDict:
    try:
        return _load(path, training, ranks)
    except OSError as error:
        raise ReadError(
            f"{path}: cannot be read ({error}); mount the disk or restore its rights, then start"
            " again"
        ) from error


def _load(path: Path, training: Training, ranks: Ranks) -> StateDict:
    tree = json.loads((path / "state.json").read_text(encoding="utf-8"))
    known_here = (path / f"{_own_name(ranks.index)}.json").exists()
    name = _own_name(ranks.index if known_here else 0)
    own_tree = json.loads((path / f"{name}.json").read_text(encoding="utf-8"))
    if "training" in own_tree and tree["num_ranks"] != ranks.count:
        raise ReadError(
            f"{path}: holds the parts of a model of {tree['num_ranks']} ranks, these are"
            f" {ranks.count}; go on with as many, or load your trainer's own checkpoint"
        )
    reader = IndexedReader(path)
    tensors: dict[str, torch.Tensor] = {}
    sharded: dict[str, torch.Tensor] = {}
    model, parameters = training.bare_model.state_dict(), training.parameters
    for key, known in reader.index.state_dict_metadata.items():
        assert isinstance(known, TensorStorageMetadata)  # the reader has refused any other
        if not key.startswith("rank-") or key.startswith(name):
            tensors[key] = _room_for(key, known, model, parameters)
            if key.startswith("rank-"):
                sharded[key], tensors[key] = tensors[key], local(tensors[key])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Each rank reads what it needs by itself; `together` tells the others of an error.
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise ReadError(f"{path}: cannot be read ({error}); resume from an older one") from error
    state: StateDict = {**join(tensors, tree), **join(sharded, own_tree)}
    if not known_here:
        state["rng"] = None
    return state


def _room_for(
    key: str,
    known: TensorStorageMetadata,
    model: Mapping[str, object],
    parameters: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Return a tensor to load into: sharded as its counterpart in this run is, or whole."""
    of_model = _OF_MODEL.fullmatch(key)
    like: object = model.get(of_model[1]) if of_model else None
    moment = _OF_OPTIMIZER.match(key)
    if moment and int(moment[1]) < len(parameters):
        like = parameters[int(moment[1])]
    if isinstance(like, DTensor) and known.size in (like.shape, local(like).shape):
        return torch.empty_like(like, dtype=known.properties.dtype)
    return torch.empty(known.size, dtype=known.properties.dtype)
