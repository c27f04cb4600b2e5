"""Samples of the families in a fixed order: sample i is the same in every run of a seed.

The index of a sample is its absolute id, so that leaving data out and going back mean the same for
every family. A damage changes a window of ids and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from trimtab.lab.text import load_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["Damage", "Samples", "digits", "held_out_text", "loader_of", "text_windows"]

CONTEXT = 32
"""Tokens that a text model reads."""
_HELD_OUT_DIGITS = 360


@dataclass(frozen=True)
class Damage:
    """A window of sample ids and what is done to the samples in it."""

    first: int
    last: int
    change: Callable[[tuple[Tensor, ...], np.random.Generator], tuple[Tensor, ...]]
    """Takes the tensors of a batch [n, …] and a generator; gives tensors of the same shapes."""


class Samples(Dataset[tuple[Tensor, ...]]):
    """Samples by absolute id: each pass goes through the source in an order of its own.

    Args:
        source: Gives the tensors of rows, int64 [n] -> tensors [n, …].
        num_rows: Rows of the source.
        num_samples: Length of the data set; beyond a pass the rows come again.
        seed: Chooses the orders and the damage.
        damage: What is done to a window of ids.
    """

    def __init__(
        self,
        source: Callable[[NDArray[np.int64]], tuple[Tensor, ...]],
        num_rows: int,
        *,
        num_samples: int,
        seed: int,
        damage: Damage | None = None,
    ) -> None:
        self._source = source
        self._num_rows = num_rows
        self._num_samples = num_samples
        self._seed = seed
        self._damage = damage

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, ...]]:
        """Return several samples at once, as DataLoader prefers it."""
        ids = np.asarray(indices, dtype=np.int64)
        passes, slots = np.divmod(ids, self._num_rows)
        rows = np.empty_like(slots)
        for number in np.unique(passes):
            chosen = passes == number
            rows[chosen] = _order(self._seed, int(number), self._num_rows)[slots[chosen]]
        found = self._source(rows)
        d = self._damage
        if d is not None:
            bad = np.flatnonzero((ids >= d.first) & (ids <= d.last))
            if len(bad):
                # by the first id: the same batch is damaged alike whenever it is read
                rng = np.random.default_rng([self._seed, int(ids[bad[0]])])
                changed = d.change(tuple(x[bad] for x in found), rng)
                found = tuple(x.clone() for x in found)
                for x, y in zip(found, changed, strict=True):
                    x[bad] = y.to(x.dtype)
        return list(zip(*found, strict=True))


@cache
def _order(seed: int, number: int, num_rows: int) -> NDArray[np.int64]:
    return np.random.default_rng([seed, number]).permutation(num_rows)


def loader_of(samples: Samples, batch_size: int) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader whose batch b holds samples b * batch_size and the ones after it."""
    return DataLoader(samples, batch_size=batch_size, generator=torch.Generator())


@cache
def text_windows() -> tuple[Callable[[NDArray[np.int64]], tuple[Tensor, ...]], int]:
    """Return the rows of a text model: bytes of Python's own sources, int64 [n, CONTEXT + 1]."""
    text = load_text(max_bytes=4_000_000).train
    view = np.lib.stride_tricks.sliding_window_view(text, CONTEXT + 1)
    count = (text.size - 1) // CONTEXT

    def rows(index: NDArray[np.int64]) -> tuple[Tensor, ...]:
        return (torch.from_numpy(view[index * CONTEXT].astype(np.int64)),)

    return rows, count


@cache
def held_out_text(num_rows: int = 256) -> Tensor:
    """Return windows that no model trains on, int64 [num_rows, CONTEXT + 1]."""
    text = load_text(max_bytes=4_000_000).validation
    starts = np.linspace(0, text.size - CONTEXT - 2, num_rows).astype(np.int64)
    return torch.from_numpy(np.stack([text[s : s + CONTEXT + 1] for s in starts]).astype(np.int64))


@cache
def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 8 x 8 scans of handwritten digits, scaled to mean 0 and deviation 1.

    Returns:
        Images float [n, 1, 8, 8] and labels int64 [n] to train on, and the same held out.

    Source:
        UCI optical recognition of handwritten digits, as scikit-learn ships it: 1,797 scans.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).float()[:, None]
    images = (images - images.mean()) / images.std()
    labels = torch.from_numpy(bunch.target).long()
    cut = len(images) - _HELD_OUT_DIGITS
    return images[:cut], labels[:cut], images[cut:], labels[cut:]
