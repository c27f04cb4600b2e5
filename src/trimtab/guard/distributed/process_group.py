"""The processes that train together: what they tell each other, so that all decide alike.

Every rank runs the same guard on the same numbers: what differs from rank to rank goes through one
small `gather` a step. What only one of them can know (files, the clock) is asked of the first rank
and handed to all (`agree`). So a verdict is reached once and everywhere, and no rank waits for one
that decided otherwise. The group is our own, on the CPU: nothing of the user's is waited for.

Alone, all of it costs nothing and calls nothing.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from trimtab.errors import ActError, TrimtabError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Ranks"]

T = TypeVar("T")


class Ranks:
    """This process among those it trains with, or alone."""

    def __init__(self) -> None:
        """Join the ranks of torch's default process group, where there is one; all must do so."""
        self.index = 0
        self.count = 1
        self.group: dist.ProcessGroup | None = None
        """Group of all ranks on gloo; None alone."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.index, self.count = dist.get_rank(), dist.get_world_size()
            # Creating a group is itself a collective: every rank must come here, in the same order.
            # gloo moves host values without a device sync and does not queue behind NCCL kernels.
            self.group = dist.new_group(backend="gloo")

    def beside(self) -> Ranks:
        """Return the same ranks with a group of their own, for work in another thread.

        All ranks must call it.
        """
        return Ranks()

    @property
    def chief(self) -> bool:
        """Whether this rank writes the run down."""
        return self.index == 0

    def gather(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Return the values of all ranks, float64 [count, n]; NaN and Inf pass unchanged.

        Every rank must call it with as many values. One collective of n doubles.
        """
        mine = torch.tensor(values, dtype=torch.float64)
        if self.group is None:
            return mine.numpy()[None]
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        dist.all_gather(everyone, mine, group=self.group)
        return torch.stack(everyone).numpy()

    def gather_tensor(self, mine: torch.Tensor) -> torch.Tensor:
        """Return the same tensor [n] of all ranks, [count, n], on its device, without a sync.

        Every rank must call it. On an accelerator the run's own default group carries it.
        """
        if self.group is None:
            return mine[None]
        everyone = [torch.empty_like(mine) for _ in range(self.count)]
        # gloo is for host values; the default group carries device tensors in stream order.
        dist.all_gather(everyone, mine, group=self.group if mine.device.type == "cpu" else None)
        return torch.stack(everyone)

    def collect(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order; every rank must call it."""
        if self.group is None:
            return [value]
        everyone: list[Any] = [None] * self.count
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone

    def agree(self, find: Callable[[], T]) -> T:
        """Return what the first rank finds, to all ranks.

        Raises:
            TrimtabError: It failed there; the same error on all ranks.
        """
        if self.group is None:
            return find()
        # The first rank always broadcasts, even after an error: the others already wait for it.
        message = [_answer(find)] if self.chief else [b""]
        dist.broadcast_object_list(message, src=0, group=self.group)
        error, value = pickle.loads(message[0])
        if error is not None:
            raise error
        found: T = value
        return found

    def on_chief(self, work: Callable[[], T]) -> T | None:
        """Do work on the first rank only and return its result there, None elsewhere.

        Raises:
            TrimtabError: It failed there; the same error on all ranks.
        """
        kept: list[T] = []
        self.agree(lambda: kept.append(work()))
        return kept[0] if kept else None

    def together(self, work: Callable[[], T]) -> T:
        """Do work on every rank; where it fails on one, it has failed on all.

        Raises:
            Exception: What failed here.
            ActError: It failed elsewhere.
        """
        if self.group is None:
            return work()
        error, result = None, None
        try:
            result = work()
        except Exception as caught:  # noqa: BLE001 - raised again once the others know
            error = caught
        # Also a rank that failed must come to this gather: the others would wait for ever.
        failed = np.flatnonzero(self.gather([float(error is not None)])[:, 0])
        if error is not None:
            raise error
        if len(failed):
            raise ActError(f"rank {failed[0]} failed; its own output says at what")
        done: T = result  # type: ignore[assignment]
        return done


def _answer(find: Callable[[], object]) -> bytes:
    """Return (error or None, value) as bytes; what cannot be sent is an error too."""
    try:
        return pickle.dumps((None, find()))
    except TrimtabError as error:
        return pickle.dumps((error, None))
    except Exception as error:  # noqa: BLE001 - all ranks must hear of it
        return pickle.dumps((ActError(f"rank 0: {type(error).__name__}: {error}"), None))
