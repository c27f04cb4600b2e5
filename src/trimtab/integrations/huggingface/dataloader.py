"""A Trainer's training data, handed out by the guard; and the end of an accumulated epoch."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, cast

from trimtab.errors import ConfigError
from trimtab.guard.port import StreamOrder, is_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    from trimtab.guard.port import TrainerPort

__all__ = ["EpochLength", "FedTrainer", "Feed"]


class FedTrainer(Protocol):
    """What the feed asks of the Trainer it feeds."""

    @property
    def port(self) -> TrainerPort | None:
        """Port of the guard; None while there is none."""

    @property
    def accelerator(self) -> Accelerator:
        """The Trainer's accelerator."""

    @property
    def group_size(self) -> int:
        """Batches of the step under way."""

    @property
    def group_done(self) -> int:
        """Batches of the step under way that were trained on."""


class Feed:
    """Stands in for the Trainer's data loader; each pass over it is what is left of one epoch."""

    def __init__(self, trainer: FedTrainer, loader: DataLoader[object]) -> None:
        """Take the loader that the Trainer made; it has no guard yet."""
        self._trainer = trainer
        self.loader = loader
        self.dataset = loader.dataset
        self.batch_size = loader.batch_size
        self.num_workers = loader.num_workers
        self._pass: Generator[object] | None = None
        self._skip = 0
        self._skipped: Callable[[], None] = lambda: None
        self._batches: Generator[object] | None = None

    def __len__(self) -> int:
        """Return the batches of one epoch."""
        return len(self.loader)

    @property
    def num_batches(self) -> int | None:
        """Batches of one epoch; None for a stream without a length."""
        try:
            return len(self)
        except (TypeError, NotImplementedError):
            return None

    def source(self, *, total_batches: int) -> DataLoader[object]:
        """Return what the guard reads from: for a stream the loader within Accelerate's.

        Accelerate's own fetches a batch ahead, so that the stream's position would be one too far.

        Args:
            total_batches: Of the whole run: the Trainer's epoch if a stream has no length.

        Raises:
            ConfigError: The first rank deals a stream's batches out to the others.
        """
        loader = self.loader
        if not is_stream(loader):
            return loader
        num_ranks = self._trainer.accelerator.num_processes
        if num_ranks > 1 and hasattr(loader, "slice_fn"):
            raise ConfigError(
                f"train_dataset is {type(self.dataset).__name__}, a stream that rank 0 deals out to"
                f" {num_ranks} ranks, where it cannot be rewound; set"
                ' accelerator_config={"dispatch_batches": False}: each rank reads its own part'
            )
        within = getattr(loader, "base_dataloader", loader)
        order = StreamOrder(within, replicas=num_ranks, epoch_batches=total_batches)
        return cast("DataLoader[object]", order)  # the guard takes an order as it is

    def skip(self, batches: int, then: Callable[[], None]) -> None:
        """Leave out so many batches of the run, through epochs, for a run without a guard.

        Args:
            batches: Of this rank, that a checkpoint has seen.
            then: Called before the first batch that is handed out: fetching draws random numbers.
        """
        epochs, self._skip = divmod(batches, self.num_batches or sys.maxsize)
        # Accelerate's loader orders an epoch by this attribute, which plain loaders lack.
        self.loader.iteration = epochs
        self._skipped = then

    def __iter__(self) -> Generator[object]:
        """Begin an epoch, or go on with it."""
        self.close()
        self._pass = self._epoch()
        return self._pass

    def _epoch(self) -> Generator[object]:
        port = self._trainer.port
        if port is None:
            skip, self._skip = self._skip, 0
            for number, batch in enumerate(self.loader):
                if number == skip > 0:
                    self._skipped()
                if number >= skip:
                    yield batch
            return
        # Twice: the Trainer leaves an epoch at its last batch, the guard only when asked for more,
        # so the first pass may be the empty end of the epoch before.
        for _ in range(2):
            self._batches = port.epoch()  # kept: it watches for interrupts until the next one
            handed_out = False
            for batch in self._batches:
                handed_out = True
                yield batch
                if port.epoch_is_over:  # the next epoch is drawn when it begins, as by a loader
                    return
            if handed_out:
                return

    def close(self) -> None:
        """Leave the epoch; an interrupt that came meanwhile is written down."""
        for batches in (self._pass, self._batches):
            if batches is not None:
                batches.close()
        self._pass = self._batches = None


class EpochLength(int):
    """An epoch's batches, equal also to the count at which its last, shorter step is complete.

    The Trainer asks `batches_done == steps_in_epoch` whether to step although fewer batches than it
    accumulates were seen. After a rollback it has counted batches that the epoch does not have, so
    the question is answered from the batches that were handed out.
    """

    _trainer: FedTrainer

    def __new__(cls, length: int, trainer: FedTrainer) -> EpochLength:
        """Return the length, which knows its trainer."""
        self = super().__new__(cls, length)
        self._trainer = trainer
        return self

    def __eq__(self, other: object) -> bool:
        """Whether the step under way has the last of its batches at hand."""
        if not isinstance(other, int):
            return NotImplemented
        return self._trainer.group_done + 1 == self._trainer.group_size

    __hash__ = int.__hash__
