"""What the optimizer holds and does: Adam's moments, the update, the settings in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from trimtab.guard.sharding import copies, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Moments", "UpdateProbe", "checksum_of_copies", "read_moments", "rms_ratio", "settings"]


class Moments:
    """Adam's moments of one step; of several ranks this rank's shares, which add up to the whole."""

    def __init__(self, m_l1: float, v_l1: float, v_max: float, v_max_at: str) -> None:
        """Hold the L1 norms of both moments, and the largest second moment with its tensor's name."""
        self.m_l1, self.v_l1, self.v_max, self.v_max_at = m_l1, v_l1, v_max, v_max_at


def read_moments(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], num_ranks: int
) -> Moments | None:
    """Return Adam's moments; None for an optimizer that keeps no `exp_avg_sq`.

    Args:
        optimizer: Any optimizer.
        names: Parameter names by `id(parameter)`.
        num_ranks: How many ranks train together.
    """
    found = [
        (names.get(id(p), "?"), state["exp_avg"], state["exp_avg_sq"])
        for p, state in optimizer.state.items()
        if isinstance(state, dict) and "exp_avg_sq" in state and "exp_avg" in state
    ]
    if not found:
        return None
    first = [local(m) for _, m, _ in found]
    second = [local(v) for *_, v in found]
    shares = torch.tensor([1.0 / copies(v, num_ranks) for *_, v in found], dtype=torch.float64)
    totals = torch.stack([*torch._foreach_norm(first, 1), *torch._foreach_norm(second, 1)])
    tops = torch.stack([_largest(v) for v in second])
    everything = torch.cat([totals.double(), tops.double()]).to("cpu")  # one read of the device
    n = len(found)
    m_l1, v_l1 = (float((everything[i : i + n] * shares).sum()) for i in (0, n))
    where = int(everything[2 * n :].argmax())
    return Moments(m_l1, v_l1, float(everything[2 * n + where]), found[where][0])


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest element of a second moment; 0 of an empty shard, NaN where there is one."""
    return tensor.max() if tensor.numel() else tensor.new_zeros(())


def rms_ratio(optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]) -> float | None:
    """Return the largest RMS of g / sqrt(v) over the matrices, embeddings left out.

    Above about 2 in one tensor Adam's second moment is behind the gradient, which precedes spikes
    (StableAdamW, 2023). An embedding's rare rows reach 1e5 in healthy runs and say nothing.
    Needs gradients as they are before the step; of several ranks: what is largest here.

    Args:
        optimizer: Any; None where it keeps no second moments yet.
        parameters: Those to look at.
    """
    pairs = []
    for p in parameters:
        state: Any = optimizer.state.get(p)
        if p.grad is not None and state and "exp_avg_sq" in state and p.dim() > 1:
            step = float(state["step"]) if "step" in state else 0.0
            pairs.append((local(p.grad), local(state["exp_avg_sq"]), step))
    if not pairs:
        return None
    beta2 = float(optimizer.param_groups[0].get("betas", (0.9, 0.999))[1])
    means = [
        (g.float().square() / (v.float() / (1 - beta2 ** max(t, 1.0)) + 1e-30)).mean()
        for g, v, t in pairs
        if g.numel()
    ]
    return float(torch.stack(means).max().sqrt()) if means else None


def settings(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return betas, eps and the largest weight decay as the optimizer has them now."""
    groups = optimizer.param_groups
    found: dict[str, float] = {}
    betas = groups[0].get("betas")
    if isinstance(betas, tuple | list) and len(betas) >= 2:
        found["beta1"], found["beta2"] = float(betas[0]), float(betas[1])
    if isinstance(groups[0].get("eps"), int | float):
        found["adam_eps"] = float(groups[0]["eps"])
    decays = [g["weight_decay"] for g in groups if isinstance(g.get("weight_decay"), int | float)]
    if decays:
        found["weight_decay"] = float(max(decays))
    return found


def checksum_of_copies(parameters: Iterable[torch.Tensor]) -> float:
    """Return a number that is the same on all ranks as long as what they hold alike is alike.

    The sum of the norms of the parameters that are not sharded: what a float32 norm can see of a
    difference. 0 where all are sharded.
    """
    alike = [p.detach() for p in parameters if not isinstance(p, DTensor)]
    if not alike:
        return 0.0
    return float(torch.stack([n.double() for n in torch._foreach_norm(alike)]).sum())


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

    def after(self) -> tuple[float, float] | None:
        """Return the squared norms of the change since `before` and of the weights before it.

        None when that was not called. Of several ranks: this rank's shares, which add up.
        """
        before, self._before = self._before, None
        if not before:
            return None
        change = torch._foreach_sub([local(p).detach() for p in self._parameters], before)
        norms = torch.stack(
            [n.float() for n in (*torch._foreach_norm(change), *torch._foreach_norm(before))]
        )
        squares = norms.double().square().to("cpu")
        shares = torch.tensor(
            [1.0 / copies(p, self._num_ranks) for p in self._parameters], dtype=torch.float64
        )
        n = len(before)
        return float((squares[:n] * shares).sum()), float((squares[n:] * shares).sum())
