"""Losses of unigram and bigram tables, which a trained model must beat."""

import math

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import ConfigError

__all__ = ["bigram_loss", "unigram_loss"]


def unigram_loss(train: NDArray[np.uint8], test: NDArray[np.uint8], *, vocab: int = 256) -> float:
    """Return the cross-entropy of single-token frequencies, add-one smoothed, in nats per token.

    Args:
        train: uint8 [n], counted.
        test: uint8 [m], judged.
        vocab: Token ids.

    Raises:
        ConfigError: A text is empty.

    Example:
        >>> same = np.zeros(1000, dtype=np.uint8)
        >>> unigram_loss(same, same, vocab=2) < 0.002
        True
    """
    if not train.size or not test.size:
        raise ConfigError("a text is empty; give some to count and some to judge")
    # Add-one: a token that the training text lacks would cost infinitely much.
    counts = np.bincount(train, minlength=vocab).astype(np.float64) + 1.0
    return float(-np.log(counts / counts.sum())[test].mean())


def bigram_loss(train: NDArray[np.uint8], test: NDArray[np.uint8], *, vocab: int = 256) -> float:
    """Return the cross-entropy of each token given the one before it, in nats per token.

    Row frequencies are smoothed with one pseudo-count spread as the single tokens are, so an unseen
    pair costs what its second token costs.

    Cost: O(n + m), and a table of vocab² numbers.
    """
    if train.size < 2 or test.size < 2:
        raise ConfigError("a text has fewer than two tokens; give more")
    pairs = train[:-1].astype(np.int64) * vocab + train[1:]
    table = np.bincount(pairs, minlength=vocab * vocab).astype(np.float64).reshape(vocab, vocab)
    single = np.bincount(train, minlength=vocab).astype(np.float64) + 1.0
    single /= single.sum()
    chance = (table + single) / (table.sum(axis=1, keepdims=True) + 1.0)
    loss = float(-np.log(chance[test[:-1], test[1:]]).mean())
    return loss if math.isfinite(loss) else math.inf
