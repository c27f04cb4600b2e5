"""Whether training can continue from a state: its weights and moments are finite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.moments import kept_tensors
from trimtab.guard.probes.packs import largest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimtab.guard.probes.trained import Trained

__all__ = ["unsound"]

_READ = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def unsound(training: Trained) -> str:
    """Return the name of the first trained tensor, or moment of one, that holds NaN or Inf.

    Empty where all that this rank holds are finite, or where they cannot be read. Buffers, frozen
    weights and what is no known part of an optimizer's state (`moments.kept_tensors`) are not
    looked at: masks hold Inf, and scratch space anything. One pass over all of it, one read of the
    device.
    """
    found = [(name, local(t.detach())) for name, t in _trained(training)]
    found = [(name, t) for name, t in found if t.dtype in _READ and t.numel()]
    if not found:
        return ""
    try:
        # One flag per tensor, read together: a sync for each would cost more than the pass.
        tops = largest([t for _, t in found])
        if len({(t.dtype, t.device) for t in tops}) == 1:
            read = torch.stack(tops).isfinite().tolist()
        else:
            read = torch.stack([t.isfinite().to(tops[0].device) for t in tops]).tolist()
    except (RuntimeError, TypeError):  # a tensor of a kind of its own
        return ""
    return next((name for (name, _), is_so in zip(found, read, strict=True) if not is_so), "")


def _trained(training: Trained) -> Iterator[tuple[str, torch.Tensor]]:
    names = {id(p): n for n, p in training.bare_model.named_parameters()}
    for p in training.parameters:
        if not p.requires_grad:
            continue
        name = names.get(id(p), "a parameter")
        yield name, p
        held = training.optimizer.state.get(p)
        for key, value in kept_tensors(p, held) if isinstance(held, dict) else ():
            yield f"{key} of {name}", value
