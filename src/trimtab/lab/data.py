"""Training samples in a fixed order: the same seed gives the same bytes in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trimtab.lab.corruption import Corruption

__all__ = ["TextWindows", "make_loader"]


class TextWindows(Dataset[dict[str, Tensor]]):
    """Windows of a text in seeded order; the index of a sample is its absolute sample id.

    The text is cut into windows that overlap by one token. Each pass over it visits all of them
    in a new order, a function of (seed, pass), so any sample can be read without the ones before.

    Args:
        text: uint8 [n_bytes], the training bytes.
        context_tokens: Tokens the model reads; a sample has one more.
        num_samples: Length of the data set; beyond one pass over the text windows come again.
        seed: Chooses the order, and the damage of a corruption.
        corruption: Damages a window of sample ids; None leaves all clean.

    Raises:
        ConfigError: The text is shorter than one sample.
    """

    def __init__(
        self,
        text: NDArray[np.uint8],
        *,
        context_tokens: int,
        num_samples: int,
        seed: int,
        corruption: Corruption | None = None,
    ) -> None:
        self.num_windows = (text.size - 1) // context_tokens
        if self.num_windows < 1:
            raise ConfigError(
                f"text has {text.size} bytes, less than one sample of {context_tokens + 1}; "
                "give more text or a shorter context"
            )
        self.context_tokens = context_tokens
        self.num_samples = num_samples
        self.seed = seed
        self.corruption = corruption
        self._rows = np.lib.stride_tricks.sliding_window_view(text, context_tokens + 1)
        # A permutation of all windows costs milliseconds; a batch seldom spans two passes.
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return sample `index` as {"tokens": int64 [context_tokens + 1]}."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """Return several samples at once; DataLoader prefers this, and it is much cheaper."""
        tokens = torch.from_numpy(self.read(np.asarray(indices, dtype=np.int64)).astype(np.int64))
        return [{"tokens": row} for row in tokens]

    def read(self, sample_ids: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the bytes of these samples, uint8 [n_samples, context_tokens + 1].

        Raises:
            IndexError: A sample id is not in [0, num_samples).
        """
        outside = sample_ids[(sample_ids < 0) | (sample_ids >= self.num_samples)]
        if outside.size:
            raise IndexError(f"sample id {outside[0]} is not in [0, {self.num_samples})")
        passes, slots = np.divmod(sample_ids, self.num_windows)
        windows = np.empty_like(slots)
        for number in np.unique(passes):
            chosen = passes == number
            windows[chosen] = self._window_order(int(number))[slots[chosen]]
        rows: NDArray[np.uint8] = self._rows[windows * self.context_tokens]
        if self.corruption is None:
            return rows
        return self.corruption.apply(rows, sample_ids, seed=self.seed)

    def _window_order(self, number: int) -> NDArray[np.int64]:
        """Return the order of windows in one pass; the last one asked for is kept."""
        if self._order[0] != number:
            # By (seed, pass): a resume need not draw the passes before it.
            rng = np.random.default_rng([self.seed, number])
            self._order = (number, rng.permutation(self.num_windows))
        return self._order[1]


def make_loader(
    dataset: TextWindows, *, batch_size: int, rank: int = 0, ranks: int = 1
) -> DataLoader[dict[str, Tensor]]:
    """Return a loader whose batch b holds samples b * batch_size and the ones after it.

    Of several ranks each gets its share of these very samples. It has a generator of its own: a
    DataLoader draws from torch's global one at each start, which would make the number of restarts
    visible in the training run.
    """
    sampler: DistributedSampler[dict[str, Tensor]] | None = None
    if ranks > 1:
        # Without shuffling, or the ranks together would train on other samples than one rank does.
        sampler = DistributedSampler(dataset, ranks, rank, shuffle=False)
    return DataLoader(
        dataset,
        batch_size=batch_size // ranks,
        shuffle=False,
        sampler=sampler,
        generator=torch.Generator().manual_seed(0),
    )
