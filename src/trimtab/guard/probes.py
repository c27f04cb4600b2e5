"""What is measured at a step, from the objects that train: never from a config.

Everything of one step is gathered into one small vector and read by the host once. Cheap signals
are read every step; Adam's moments and the update norm every `every_steps`, which the record shows
as missing values in between. Sharded tensors are measured where they lie, see `sharding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from trimtab.errors import ActError
from trimtab.guard.sharding import copies, is_sharded, layouts, local, sum_over_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trimtab.guard.ranks import Ranks

__all__ = [
    "ActivationProbe",
    "UpdateProbe",
    "adam_second_moment",
    "checksum_of_copies",
    "clip_gradients",
    "find_output_layer",
    "global_grad_norm",
]


def clip_gradients(parameters: Sequence[torch.Tensor], limit: float | None, ranks: Ranks) -> float:
    """Clip the gradients to a global L2 norm, None: only measure it; return it as it was before.

    Where torch can clip them it does, bit for bit as a plain loop would; mixtures of plain and
    sharded gradients, or of several meshes, which it refuses, are clipped here. All ranks must call.
    """
    owners = [p for p in parameters if p.grad is not None]
    grads = [p.grad for p in owners if p.grad is not None]
    sharded = any(is_sharded(g) for g in grads)
    if layouts(grads) < 2 and (limit is not None or not sharded):
        if limit is None:
            return float(global_grad_norm(owners))
        norm = torch.nn.utils.clip_grad_norm_(owners, limit)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total = float(_sharded_norm(grads, ranks))
    if limit is not None:
        share = min(limit / (total + 1e-6), 1.0)  # NaN stays: nothing is clipped to it
        for grad in grads:
            local(grad).mul_(share)
    return total


def _sharded_norm(tensors: Sequence[torch.Tensor], ranks: Ranks) -> torch.Tensor:
    """Return the global L2 norm of tensors under any sharding, float64 scalar."""
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    norms = torch.stack([torch.linalg.vector_norm(local(t), dtype=torch.float32) for t in tensors])
    return sum_over_ranks(norms.double().square(), tensors, ranks).sqrt()


def global_grad_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the global L2 norm of unsharded gradients, a scalar tensor; 0 where there are none."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.zeros(())
    grads = [g.coalesce().values() if g.is_sparse else local(g) for g in grads]
    norms = torch._foreach_norm(grads)
    together = torch.stack([n.to(norms[0].device, torch.float32) for n in norms])
    total: torch.Tensor = torch.linalg.vector_norm(together)
    return total


def adam_second_moment(
    optimizer: torch.optim.Optimizer, names: dict[int, str], num_ranks: int
) -> tuple[float, float, str] | None:
    """Return (L1 norm, largest element, name of its tensor) of Adam's second moments.

    Of several ranks: this rank's share of the L1 norm (the shares add up to it) and what is largest
    here.

    Args:
        optimizer: Any optimizer; None is returned when it keeps no `exp_avg_sq`.
        names: Parameter names by `id(parameter)`.
        num_ranks: How many ranks train together.
    """
    found = [
        (names.get(id(p), "?"), state["exp_avg_sq"])
        for p, state in optimizer.state.items()
        if isinstance(state, dict) and "exp_avg_sq" in state
    ]
    if not found:
        return None
    moments = [v for _, v in found]
    mine = [local(v) for v in moments]
    totals = torch.stack(torch._foreach_norm(mine, 1))
    if num_ranks > 1:
        shares = [1.0 / copies(v, num_ranks) for v in moments]
        totals = totals.double() * torch.tensor(shares, dtype=torch.float64, device=totals.device)
        tops = torch.stack([_largest(v) for v in mine])
    else:
        tops = torch.stack(torch._foreach_norm(mine, float("inf")))
    packed = torch.stack([totals.sum(), tops.max(), tops.argmax().to(tops.dtype)]).tolist()
    where = int(packed[2]) if packed[2] == packed[2] else 0
    return float(packed[0]), float(packed[1]), found[where][0]


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute element; 0 of an empty shard."""
    return tensor.abs().max() if tensor.numel() else tensor.new_zeros(())


def checksum_of_copies(parameters: Sequence[torch.Tensor]) -> float:
    """Return a number that is the same on all ranks as long as what they hold alike is alike.

    Exact: the sum of the norms of the parameters that are not sharded; any bit counts that a norm
    in float32 can see. 0 where all are sharded.
    """
    alike = [p.detach() for p in parameters if not isinstance(p, DTensor)]
    if not alike:
        return 0.0
    return float(torch.stack([n.double() for n in torch._foreach_norm(alike)]).sum())


def find_output_layer(model: nn.Module) -> nn.Module | None:
    """Return the layer whose input is the last hidden state: `get_output_embeddings()` where the
    model has it, else the last Linear; None where there is neither."""  # noqa: D205, D209
    getter = getattr(model, "get_output_embeddings", None)
    if callable(getter):
        layer = getter()
        if isinstance(layer, nn.Module):
            return layer
    last: nn.Module | None = None
    for module in model.modules():
        if isinstance(module, nn.Linear):
            last = module
    return last


class ActivationProbe:
    """Root mean square of the last hidden state, measured by a hook on the output layer's input."""

    def __init__(self, model: nn.Module, layer: nn.Module | None = None) -> None:
        """Hook `layer`, or the output layer that `find_output_layer` finds; does nothing without one."""
        self.value: torch.Tensor | None = None
        self.enabled = True
        self.error: Exception | None = None
        self._root = 1.0
        target = layer or find_output_layer(model)
        self._handle = None if target is None else target.register_forward_pre_hook(self._hook)

    def _hook(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if not self.enabled or not torch.is_grad_enabled():  # not in an evaluation
            return
        try:
            self._measure(inputs)
        except Exception as error:  # noqa: BLE001 - inside the user's forward pass; told by `take`
            self.enabled, self.error = False, error

    def _measure(self, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point():
            hidden = inputs[0].detach()
            wide = hidden.dtype in (torch.float32, torch.float64)
            self.value = torch.linalg.vector_norm(hidden, dtype=None if wide else torch.float32)
            self._root = max(hidden.numel(), 1) ** 0.5

    def rms(self) -> float | None:
        """Return the value of the last forward pass with gradients; None without one."""
        return None if self.value is None else float(self.value) / self._root

    def take(self) -> float | None:
        """Return the value of the last forward pass with gradients, and forget it.

        Raises:
            ActError: Measuring it failed; it is not tried again.
        """
        if self.error is not None:
            error, self.error = self.error, None
            raise ActError(f"the last hidden state cannot be measured ({error})") from error
        found, self.value = self.rms(), None
        return found

    def close(self) -> None:
        """Remove the hook."""
        if self._handle is not None:
            self._handle.remove()


class UpdateProbe:
    """L2 norm of what an optimizer step really changed."""

    def __init__(self, parameters: Iterable[torch.Tensor], num_ranks: int) -> None:
        """Watch these parameters."""
        self._parameters = [p for p in parameters if p.requires_grad]
        self._num_ranks = num_ranks
        self._before: list[torch.Tensor] | None = None

    def before(self) -> None:
        """Remember the parameters as they are, this rank's shards of them."""
        self._before = [local(p).detach().clone() for p in self._parameters]

    def after(self) -> float | None:
        """Return the norm of the change since `before`; None when that was not called.

        Of several ranks: the square root of this rank's share; the squares add up to the whole's.
        """
        if self._before is None:
            return None
        change = torch._foreach_sub([local(p).detach() for p in self._parameters], self._before)
        self._before = None
        norms = torch.stack([n.float() for n in torch._foreach_norm(change)])
        if self._num_ranks > 1:
            shares = [copies(p, self._num_ranks) ** -0.5 for p in self._parameters]
            norms = norms.double() * torch.tensor(shares, dtype=torch.float64, device=norms.device)
        return float(torch.linalg.vector_norm(norms))
