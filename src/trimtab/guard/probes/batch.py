"""A batch before the step: the only early sign of bad data that there is.

Anything measured after the forward pass leads the loss by no step where the data is bad. How well
the tokens compress, how evenly they are spread, whether a value is NaN and whether the same batch
was handed out before is known before.
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


MAX_CHECKED = 1 << 20
"""Values of one tensor that are looked at for NaN and Inf; their sum takes some 0.1 ms."""

_SAMPLED = 1024
"""Values of one tensor that go into the fingerprint of a batch."""

_MAX_TENSORS = 16


def _tensors(batch: object, depth: int = 3) -> list[torch.Tensor]:
    """Return the first tensors of a batch that lie on the CPU and hold anything."""
    if isinstance(batch, torch.Tensor):
        plain = batch.device.type == "cpu" and batch.layout == torch.strided and batch.numel()
        return [local(batch.detach())] if plain and not batch.is_quantized else []
    parts: list[object] = []
    if isinstance(batch, dict):
        parts = list(batch.values())
    elif isinstance(batch, list | tuple):
        parts = list(batch)
    if not depth:
        return []
    found = [t for part in parts[:_MAX_TENSORS] for t in _tensors(part, depth - 1)]
    return found[:_MAX_TENSORS]


def _content(tensors: list[torch.Tensor]) -> dict[str, float]:
    """Return what of the content of tensors is known at once; see `batch_statistics`."""
    if not tensors:
        return {}
    broken, whole, code = 0.0, 0, 0
    for t in tensors:
        flat = t.reshape(-1)
        if flat.is_floating_point():
            checked = flat[:MAX_CHECKED]
            # One sum for all: most batches are finite, and a sum of finite values may overflow.
            if not math.isfinite(float(checked.sum())):
                broken += float((~torch.isfinite(checked)).sum())
        elif not flat.is_complex() and flat.dtype != torch.bool:
            whole += 1
        # An odd stride, so that it does not fall into the same column of each sample.
        few = flat[:: (len(flat) // _SAMPLED) | 1].contiguous()
        code = zlib.crc32(few.view(torch.uint8).numpy().tobytes(), code)
    return {
        "batch_nonfinite": broken,
        "batch_integers": float(whole),
        "batch_fingerprint": float(code),
    }


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
    """Return what is known of a batch before its step.

    `batch_nonfinite`: values that are NaN or Inf; `batch_integers`: tensors of whole numbers, such
    as labels; `batch_fingerprint`: a checksum of values all over the batch. Of tokens also
    `batch_compression`: bytes after zlib over bytes before; near 1 for noise, near 0 for
    repetition. `batch_entropy`: nats per token of the batch's own token counts. Nothing where the
    batch is not on the CPU: reading it from a device would make the host wait for it.
    """
    seen = _content(_tensors(batch))
    tokens = find_tokens(batch)
    if tokens is None or tokens.device.type != "cpu" or not tokens.numel():
        return seen
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
    return seen | {
        "batch_compression": len(zlib.compress(raw.tobytes(), 1)) / raw.nbytes,
        "batch_entropy": entropy,
    }
