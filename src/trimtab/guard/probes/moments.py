"""What the optimizer holds and does: Adam's moments, the update, the settings in force."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from trimtab.guard.sharding import copies, local

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "Moments",
    "UpdateProbe",
    "checksum_of_copies",
    "largest_of",
    "read_moments",
    "rms_ratio",
    "settings",
    "starved",
]


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Adam's moments of one step; of several ranks this rank's shares of the sums."""

    m_l1: float
    v_l1: float
    m_max: float
    """Largest absolute element of the first moment."""
    v_max: float
    v_max_at: str
    """Tensor that holds it."""
    broken: tuple[str, ...]
    """What makes no sense, as "NAME: what": a first moment that is not finite, a second that is
    negative or not finite. In the optimizer's order."""


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
    ranges = [_range(v) for v in second]
    read = [
        *torch._foreach_norm(first, 1),
        *torch._foreach_norm(second, 1),
        *(largest_of(m) for m in first),
        *(high for _, high in ranges),
        *(low for low, _ in ranges),
    ]
    # one read of the device
    everything = torch.stack([t.float() for t in read]).double().to("cpu").view(5, -1)
    m_l1, v_l1 = (float((sums * shares).sum()) for sums in everything[:2])
    m_sums, (v_tops, v_lows) = everything[0].isfinite().tolist(), everything[3:].tolist()
    broken = [
        f"{name}: {what}"
        for (name, *_), m_finite, low, high in zip(found, m_sums, v_lows, v_tops, strict=True)
        for what, is_so in (
            ("exp_avg is not finite", not m_finite),
            ("exp_avg_sq is negative", low < 0),
            ("exp_avg_sq is not finite", not math.isfinite(high)),
        )
        if is_so
    ]
    where = int(everything[3].argmax())
    return Moments(
        m_l1=m_l1, v_l1=v_l1, m_max=float(everything[2].max()), v_max=float(everything[3, where]),
        v_max_at=found[where][0], broken=tuple(broken),
    )  # fmt: skip


def _range(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest element; 0 of an empty shard, NaN where there is one."""
    if not tensor.numel():
        return tensor.new_zeros(()), tensor.new_zeros(())
    low, high = torch.aminmax(tensor)
    return low, high


def largest_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute element; 0 of an empty shard, NaN where there is one."""
    low, high = _range(tensor)
    return torch.maximum(-low, high)


def starved(optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the tensors whose second moment is 0 where the gradient just used is not, by name.

    Call it after the update and before the gradients are cleared. A gradient counts only where
    (1 - beta2) g^2 is a normal number of the moment's type, which no sound update loses.
    """
    found = []
    for group in optimizer.param_groups:
        betas = group.get("betas")
        if not isinstance(betas, tuple | list) or len(betas) < 2:
            continue
        for p in group["params"]:
            state: Any = optimizer.state.get(p)
            if p.grad is None or p.grad.is_sparse or not state or "exp_avg_sq" not in state:
                continue
            v, g = local(state["exp_avg_sq"]), local(p.grad)
            if not v.numel() or v.shape != g.shape or float(v.min()) != 0:
                continue
            least = (torch.finfo(v.dtype).tiny / (1.0 - float(betas[1]))) ** 0.5
            if bool(((v == 0) & (g.abs().float() > 2 * least)).any()):
                found.append(f"{names.get(id(p), '?')}: exp_avg_sq is 0 where the gradient is not")
    return tuple(found)


_SAMPLED = 1024
"""Elements of a tensor that its RMS ratio is read from, evenly spread."""
_MEDIAN_OF_SQUARE = 0.4549
"""Median of the square of a standard normal number."""


def rms_ratio(
    optimizer: torch.optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> tuple[float, int] | None:
    """Return the largest typical g / sqrt(v) of a matrix, and its index in `parameters`.

    Of each tensor sqrt(median(g^2 / v) / 0.4549) over a sample of its elements, v without its bias:
    1 where g is normal with variance v. Above about 2 in one tensor Adam's second moment is behind
    the gradient, which precedes spikes (StableAdamW, 2023). That work takes the mean, which single
    elements with hardly any past rule: it reaches 1e3 in sound runs.
    Needs gradients as they are before the step; of several ranks: what is largest here.

    Args:
        optimizer: Any; None where it keeps no second moments yet.
        parameters: Those to look at; embeddings, whose rows are rare, left out.
    """
    beta2 = {
        id(p): float(g["betas"][1])
        for g in optimizer.param_groups
        if isinstance(g.get("betas"), tuple | list) and len(g["betas"]) > 1
        for p in g["params"]
    }
    medians, places = [], []
    for i, p in enumerate(parameters):
        state: Any = optimizer.state.get(p)
        if p.grad is None or not state or "exp_avg_sq" not in state or p.dim() < 2:
            continue
        g, v = local(p.grad).flatten(), local(state["exp_avg_sq"]).flatten()
        if not g.numel() or id(p) not in beta2:
            continue
        every = max(g.numel() // _SAMPLED, 1) | 1  # odd: no column of a matrix by itself
        step = float(state["step"]) if "step" in state else 0.0
        bias = 1 - beta2[id(p)] ** max(step, 1.0)
        medians.append((g[::every].float().square() / (v[::every].float() + 1e-30)).median() * bias)
        places.append(i)
    if not medians:
        return None
    together = (torch.stack(medians) / _MEDIAN_OF_SQUARE).sqrt()
    ratio, at = together.max(dim=0)
    return float(ratio), places[int(at)]


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

    def after(self) -> tuple[float, float, float] | None:
        """Return the squared norms of the change since `before` and of the weights before it, and
        the largest absolute weight now.

        None when that was not called. Of several ranks: this rank's shares, which add up, and the
        largest that it holds.
        """  # noqa: D205
        before, self._before = self._before, None
        if not before:
            return None
        now = [local(p).detach() for p in self._parameters]
        change = torch._foreach_sub(now, before)
        read = torch.stack(
            [n.float() for n in (*torch._foreach_norm(change), *torch._foreach_norm(before))]
            + [largest_of(w).float() for w in now]
        )
        numbers = read.double().to("cpu").view(3, -1)
        squares = numbers[:2].square()
        shares = torch.tensor(
            [1.0 / copies(p, self._num_ranks) for p in self._parameters], dtype=torch.float64
        )
        changed, weights = (squares * shares).sum(dim=1).tolist()
        return changed, weights, float(numbers[2].max())
