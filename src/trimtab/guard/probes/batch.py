"""A batch before the step: the only early sign of bad data that there is.

Anything measured after the forward pass leads the loss by no step where the data is bad. How well
the tokens compress, and how evenly they are spread, is known before.
"""

from __future__ import annotations

import math
import zlib

import numpy as np
import torch

from trimtab.guard.distributed.sharding import local

__all__ = ["batch_statistics", "find_tokens"]

MAX_TOKENS = 4096
"""Tokens looked at; compressing them takes a fraction of a millisecond."""


_MAX_TABLE = 1 << 17
"""Spread of token ids up to which they are counted in a table; sorting takes ten times as long."""


def find_tokens(batch: object) -> torch.Tensor | None:
    """Return the first integer tensor with at least two dimensions; None without one."""
    if isinstance(batch, torch.Tensor):
        whole = not batch.is_floating_point() and not batch.is_complex()
        return batch if batch.dim() >= 2 and whole and batch.dtype != torch.bool else None
    parts = (
        batch.values()
        if isinstance(batch, dict)
        else batch
        if isinstance(batch, list | tuple)
        else ()
    )
    for part in parts:
        found = find_tokens(part)
        if found is not None:
            return found
    return None


def batch_statistics(batch: object) -> dict[str, float]:
    """Return how well a batch of tokens compresses and how evenly they are spread.

    `batch_compression`: bytes after zlib over bytes before; near 1 for noise, near 0 for
    repetition. `batch_entropy`: nats per token of the batch's own token counts. Empty where the
    batch holds no tokens on the CPU: reading them from a device would make the host wait for it.
    """
    tokens = find_tokens(batch)
    if tokens is None or tokens.device.type != "cpu" or not tokens.numel():
        return {}
    rows = local(tokens.detach()).flatten(0, -2).numpy()  # a view; numpy is quicker on so little
    few = max(MAX_TOKENS // max(rows.shape[-1], 1), 1)
    flat = rows[:: max(-(-len(rows) // few), 1)].ravel()[:MAX_TOKENS]  # neighbours stay together
    low, high = int(flat.min()), int(flat.max())
    small = low >= 0 and high < 256
    raw = flat.astype(np.uint8 if small else np.int32)
    counts = (
        np.bincount(flat - low)
        if high - low < _MAX_TABLE
        else np.unique(flat, return_counts=True)[1]
    )
    counts = counts[counts > 0]
    # -sum (c / n) log (c / n), with the division left to the end
    entropy = math.log(len(flat)) - float(counts @ np.log(counts)) / len(flat)
    return {
        "batch_compression": len(zlib.compress(raw.tobytes(), 1)) / raw.nbytes,
        "batch_entropy": entropy,
    }
