"""What the routers of a mixture of experts do: load, entropy, experts without tokens, balance.

A router is a module whose class says so (`MixtralTopKRouter`), or one called gate or router beside
the experts. While armed, its output is held: the logits (or probabilities) over the experts and,
where it gives them, its choices. Counted over all ranks that route for themselves; the layer that
is worst off speaks for the model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.attention import is_compiled
from trimtab.guard.probes.kept_error import KeptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["RouterProbe", "router_signals"]

_NAMES = ("gate", "router", "wg")
_CHOICES = ("top_k", "num_experts_per_tok", "k", "topk")
_DEAD_SHARE = 0.05
"""Load below which an expert counts as dead, share of the mean load. Ours."""
_LEAST_LOAD = 32
"""Mean load, tokens, from which experts without tokens are not chance: e^-32. Ours."""


class RouterProbe:
    """Watches the routers of a model while `armed`; `count` is 0 where it has none."""

    def __init__(self, model: nn.Module) -> None:
        """Hook the routers; does nothing in a model that is compiled."""
        self.armed = False
        self.kept = KeptError()
        self._routers = [] if any(map(is_compiled, model.modules())) else _find(model)
        self._held: list[tuple[int, torch.Tensor, torch.Tensor | None]] = []
        self._loss: torch.Tensor | None = None
        self._handles = [
            router.register_forward_hook(lambda _module, _inputs, output, i=i: self._see(i, output))
            for i, (router, _, _) in enumerate(self._routers)
        ]
        if self._routers:
            self._handles.append(model.register_forward_hook(self._see_model))

    @property
    def count(self) -> int:
        """How many routers are watched; the same on all ranks."""
        return len(self._routers)

    @property
    def sizes(self) -> list[int]:
        """Experts of each router."""
        return [experts for _, experts, _ in self._routers]

    def forget(self) -> None:
        """Forget what was seen of a step."""
        self._held, self._loss = [], None

    def _see(self, index: int, output: object) -> None:
        if not self.armed or not torch.is_grad_enabled():
            return
        try:
            self._hold(index, output)
        except Exception as error:  # noqa: BLE001 - in the user's forward pass; `take` raises it
            self.armed, self.kept.error = False, error

    def _hold(self, index: int, output: object) -> None:
        found = output if isinstance(output, tuple | list) else (output,)
        tensors = [local(t.detach()) for t in found if isinstance(t, torch.Tensor)]
        experts = self._routers[index][1]
        scores = [t for t in tensors if t.is_floating_point() and t.shape[-1] == experts]
        chosen = [t for t in tensors if t.dtype in (torch.int64, torch.int32)]
        if scores:
            self._held.append((index, scores[0], chosen[0] if chosen else None))

    def _see_model(self, _module: nn.Module, _inputs: object, output: Any) -> None:
        loss = getattr(output, "aux_loss", None)
        if self.armed and torch.is_grad_enabled() and isinstance(loss, torch.Tensor):
            self._loss = loss.detach()

    def take(self) -> list[float]:
        """Return this rank's sums, in a fixed order and number; forget what was seen.

        Of each router: tokens by expert, probabilities by expert, tokens, sum of squared log Z;
        then the auxiliary loss that the model gave, or NaN.
        """
        self.kept.raise_once()
        sums = [np.zeros(2 * experts + 2) for experts in self.sizes]
        for index, scores, chosen in self._held:
            _, experts, k = self._routers[index]
            rows = scores.reshape(-1, experts).float()
            log_z = torch.logsumexp(rows, dim=-1)
            # some routers give probabilities, of which there is no log Z
            given = bool((rows >= 0).all()) and bool((rows.sum(-1) - 1).abs().max() < 1e-2)
            shares = rows if given else torch.softmax(rows, dim=-1)
            picks = rows.topk(k).indices if chosen is None else chosen
            load = torch.bincount(picks.reshape(-1).long(), minlength=experts)[:experts]
            square = torch.full((), math.nan) if given else log_z.square().sum()
            parts = (load.float(), shares.sum(0), rows.new_tensor([len(rows)]), square.reshape(1))
            sums[index] += torch.cat([p.to("cpu", torch.float64) for p in parts]).numpy()
        loss = math.nan if self._loss is None else float(self._loss)
        self.forget()
        return [*np.concatenate(sums).tolist(), loss] if sums else []

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def router_signals(table: NDArray[np.float64], sizes: Sequence[int]) -> dict[str, float]:
    """Return the signals of a step from what all ranks took, float64 [ranks, n].

    Of one router with load n_e over E experts and mean probabilities p_e:

        expert_load_max, _min   largest and smallest n_e over their mean
        dead_experts            experts below 0.05 of the mean; none said below 32 tokens an expert
        router_entropy          -sum p ln p, nats: low where the same few get all, however sure the
                                router is of single tokens
        router_z_loss           mean of squared log Z
        aux_loss                as the model gave it, else E sum (n_e / n) p_e (Switch, 2021)

    The worst router speaks; of the dead experts it is the sum. Blind to tokens that are dropped.
    """
    sums, given = np.nansum(table[:, :-1], axis=0), table[:, -1]
    at, found = 0, []
    for experts in sizes:
        load, shares = sums[at : at + experts], sums[at + experts : at + 2 * experts]
        tokens, square = sums[at + 2 * experts], table[:, at + 2 * experts + 1].sum()
        at += 2 * experts + 2
        if tokens > 0 and load.sum() > 0:
            mean, p = load.mean(), shares / tokens
            dead = float((load < _DEAD_SHARE * mean).sum()) if mean >= _LEAST_LOAD else math.nan
            entropy = -float((p * np.log(np.maximum(p, 1e-30))).sum())
            balance = experts * float((load / load.sum() * p).sum())
            ends = load.max() / mean, load.min() / mean
            found.append((*ends, dead, entropy, square / tokens, balance))
    if not found:
        return {}
    top, low, dead, entropy, z, balance = np.array(found, dtype=np.float64).T
    known = given[np.isfinite(given)]
    signals = {
        "expert_load_max": top.max(),
        "expert_load_min": low.min(),
        "dead_experts": dead.sum(),
        "router_entropy": entropy.min(),
        "router_z_loss": z.max(),
        "aux_loss": known.mean() if len(known) else balance.mean(),
    }
    return {name: float(value) for name, value in signals.items() if not math.isnan(value)}


def _find(model: nn.Module) -> list[tuple[nn.Module, int, int]]:
    """Return (router, experts, choices for each token) of each router, in the model's order."""
    found = []
    modules = dict(model.named_modules())
    for name, module in modules.items():
        parent = modules[name.rpartition(".")[0]]
        beside = name.rpartition(".")[2] in _NAMES and hasattr(parent, "experts")
        if not (beside or type(module).__name__.endswith("Router")):
            continue
        weight = getattr(module, "weight", None)
        experts = getattr(module, "num_experts", None)
        if not isinstance(experts, int):
            experts = weight.shape[0] if isinstance(weight, torch.Tensor) else 0
        owners = [getattr(o, key, None) for o in (module, parent) for key in _CHOICES]
        k = next((n for n in owners if isinstance(n, int)), 1)
        if experts > 1:
            found.append((module, experts, min(k, experts)))
    return found
