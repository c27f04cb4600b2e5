"""For how long trained parameters have got no gradient other than exactly 0.

A gradient that is exactly 0 at one step is no fault: units are off for a batch, experts get no
token, networks are trained in turn, an adapter begins at 0. So it is counted, parameter by
parameter, since when every gradient that was looked at was 0 or none. A parameter that never had a
gradient tensor is not counted, nor one that needs none: nobody trains it. Embeddings, of which few
rows are used, and which are most of many models, are counted where there is nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from trimtab.guard.distributed.sharding import local

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["HALF", "NoGradientProbe"]

HALF = 0.5
"""Share of the elements that `num_steps` speaks of, and from which each step is looked at."""
_NAMED = 8


class NoGradientProbe:
    """See the module; of what this rank holds."""

    def __init__(
        self, model: nn.Module, parameters: Sequence[torch.Tensor], names: Mapping[int, str]
    ) -> None:
        """Nothing was looked at yet."""
        tables = {
            id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)
        }
        others = [p for p in parameters if id(p) not in tables]
        # Biases alone would speak for tables of any size.
        self._counted = others if any(p.dim() > 1 for p in others) else list(parameters)
        self._names = names
        self._last: dict[int, int] = {}
        """Step of the last gradient other than 0, or the one before the first that was looked at."""
        self._step = 0

    def look(self, step: int, squares: Mapping[int, float] | None = None) -> None:
        """Look at the gradients of a step.

        Args:
            step: Counted from 1.
            squares: Sum of squares of a gradient, by its parameter's id, where that is known; the
                host reads the largest element of the others, and of those whose sum is 0.
        """
        if step <= self._step:  # the run went back
            self._last = {key: min(last, step - 1) for key, last in self._last.items()}
        self._step = step
        before = dict(self._last)
        # Of a sharded one this rank may hold nothing.
        owners = [p for p in self._counted if p.grad is not None and local(p.grad).numel()]
        unclear = [p for p in owners if squares is None or squares.get(id(p), 0.0) == 0]
        for p in owners:
            self._last[id(p)] = step
        for p, is_zero in zip(unclear, _are_zero([p.grad for p in unclear]), strict=True):
            if is_zero:
                self._last[id(p)] = before.get(id(p), step - 1)

    def num_steps(self) -> tuple[float, float] | None:
        """Return the share of elements without a gradient, and for how many steps half were so.

        None where no parameter has had a gradient.
        """
        known = [p for p in self._counted if p.requires_grad and id(p) in self._last]
        total = sum(p.numel() for p in known)
        if not total:
            return None
        silent = sorted(((self._since(p), p.numel()) for p in known), reverse=True)
        share, steps, so_far = 0.0, 0, 0
        for since, size in silent:
            if since and so_far < HALF * total:
                steps = since if so_far + size >= HALF * total else 0
            so_far += size
            share += size / total if since else 0.0
        return share, float(steps)

    def _since(self, parameter: torch.Tensor) -> int:
        return self._step - self._last[id(parameter)]

    def named(self) -> str:
        """Return the names of the parameters without one, longest first."""
        known = [p for p in self._counted if p.requires_grad and id(p) in self._last]
        silent = sorted((p for p in known if self._since(p)), key=lambda p: -self._since(p))
        some = [self._names.get(id(p), "?") for p in silent[:_NAMED]]
        return ", ".join(some) + (f" and {len(silent) - _NAMED} more" * (len(silent) > _NAMED))


def _are_zero(grads: Sequence[torch.Tensor | None]) -> list[bool]:
    """Return for each gradient whether all of it is exactly 0; NaN is not."""
    whole = [g.coalesce().values() if g.is_sparse else local(g) for g in grads if g is not None]
    zero = [True] * len(whole)
    filled = [i for i, g in enumerate(whole) if g.numel()]
    if filled:
        # The largest and not the sum of squares, which small ones leave at 0.
        tops = torch._foreach_norm([whole[i].detach() for i in filled], torch.inf)
        together = torch.stack([top.to(tops[0].device, torch.float32) for top in tops])
        for i, top in zip(filled, together.tolist(), strict=True):
            zero[i] = top == 0
    return zero
