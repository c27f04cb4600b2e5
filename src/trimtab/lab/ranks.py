"""Runs a lab job on several ranks: one gloo process each on this machine."""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
import torch.distributed as dist

from trimtab.errors import ActError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

__all__ = ["on_ranks"]

T = TypeVar("T")


def on_ranks(count: int, work: Callable[..., T], *arguments: object) -> T:
    """Call a function on so many ranks and return what it gives on the first.

    Args:
        count: Ranks; with one, it is called here.
        work: A function of a module, called with the arguments after the group is made.
        arguments: Handed to each rank as copies.

    Raises:
        ActError: A rank ended with an error, which stands on standard error.
    """
    if count == 1:
        return work(*arguments)
    # A fork would copy torch's thread pool in whatever state it is in, and may hang.
    fresh = multiprocessing.get_context("spawn")
    receiver, sender = fresh.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as folder:
        # A file, not a port: jobs beside each other cannot collide.
        store = str(Path(folder) / "store")
        threads = torch.get_num_threads()
        ranks = [
            fresh.Process(
                target=_one_rank,
                args=(rank, count, store, threads, sender if rank == 0 else None, work, arguments),
            )
            for rank in range(count)
        ]
        for process in ranks:
            process.start()
        # The parent's end: while it is open, a first rank that dies gives no EOF, and `recv` waits.
        sender.close()
        try:
            result: T = receiver.recv()
        except EOFError:
            # The others wait for the first in a collective, and would do so until its time-out.
            for process in ranks:
                process.terminate()
            raise ActError(
                "the first rank ended with an error, see above; none of the run's figures counts"
            ) from None
        finally:
            for process in ranks:
                process.join()
    return result


def _one_rank(
    rank: int,
    count: int,
    store: str,
    threads: int,
    sender: Connection | None,
    work: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    torch.set_num_threads(threads)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    try:
        result = work(*arguments)
        if sender is not None:
            sender.send(result)
    finally:
        dist.destroy_process_group()
