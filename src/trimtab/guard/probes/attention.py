"""Attention logits and entropy by layer, also where a fused kernel hides them.

While armed, the calls of one forward pass are watched: of `scaled_dot_product_attention` a few rows
are computed once more from its own queries and keys; of an explicit softmax over four dimensions
the input is looked at. Layers are numbered in the order of their calls. A model that is compiled,
whole or in parts, is not watched: its calls are inside the compiled code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from trimtab.guard.distributed.sharding import local

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AttentionProbe", "is_compiled"]

MAX_ROWS = 16
"""Queries looked at of each head; the last one, which sees all keys, among them."""
MAX_BATCH = 2

_SOFTMAX: tuple[object, ...] = (torch.softmax, functional.softmax, torch.Tensor.softmax)


class AttentionProbe:
    """Largest logit and mean entropy (nats) of each attention call, while `armed`."""

    def __init__(self, model: nn.Module) -> None:
        """Watch a model's forward passes; does nothing where it is compiled."""
        self.armed = False
        self.error: Exception | None = None
        self.seen: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._mode: _Watch | None = None
        self.possible = not any(is_compiled(m) for m in model.modules())
        self._handles = []
        if self.possible:
            self._handles = [
                model.register_forward_pre_hook(self._enter),
                model.register_forward_hook(self._leave, always_call=True),
            ]

    def _enter(self, _module: nn.Module, _inputs: object) -> None:
        if self.armed and self._mode is None and torch.is_grad_enabled():
            self.seen.clear()  # of several forward passes in a step the last counts
            self._mode = _Watch(self._see)
            # Entered by hand: the forward pass lies between two hooks, where no `with` block can.
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        if self._mode is not None:
            mode, self._mode = self._mode, None
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _see(self, func: object, args: tuple[Any, ...], kwargs: Mapping[str, object]) -> None:
        try:
            with torch.no_grad():
                if func is functional.scaled_dot_product_attention:
                    self.seen.append(of_queries(*_named(args, kwargs)))
                elif _is_attention_softmax(args, kwargs):
                    self.seen.append(_of_logits(_sampled(local(args[0].detach())).float()))
        except Exception as error:  # noqa: BLE001 - inside the user's forward pass
            # Kept for after the step, where the probe is left out: here it would break the
            # forward pass.
            self.armed, self.error = False, error

    def take(self, num_layers: int) -> tuple[list[float], list[float]]:
        """Return the largest logit and the mean entropy by layer, NaN beyond the calls seen."""
        seen, self.seen = self.seen[:num_layers], []
        top, entropy = [float("nan")] * num_layers, [float("nan")] * num_layers
        if seen:
            numbers = torch.stack([t for pair in seen for t in pair]).tolist()
            top[: len(seen)], entropy[: len(seen)] = numbers[0::2], numbers[1::2]
        return top, entropy

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


class _Watch(TorchFunctionMode):
    """Hands the attention calls of a forward pass on to `see`, and changes nothing."""

    def __init__(
        self, see: Callable[[object, tuple[Any, ...], Mapping[str, object]], None]
    ) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention or func in _SOFTMAX:
            self._see(func, args, kwargs)
        return func(*args, **kwargs)


def is_compiled(module: nn.Module) -> bool:
    """Whether a module, or a part of it, runs as compiled code."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _is_attention_softmax(args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    x = args[0] if args else None
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    return isinstance(x, torch.Tensor) and x.dim() == 4 and dim in (-1, 3) and x.shape[-1] > 1


def _named(args: tuple[object, ...], kwargs: Mapping[str, object]) -> tuple[Any, ...]:
    """Return (query, key, mask, is_causal, scale) of a call."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
    return (
        given["query"],
        given["key"],
        given.get("attn_mask"),
        bool(given.get("is_causal", False)),
        given.get("scale"),
    )


def of_queries(
    query: torch.Tensor, key: torch.Tensor, mask: object, causal: object, scale: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (largest logit, mean entropy) of sampled rows.

    Shapes: query [B, H, T, K], key [B, G, S, K].
    """
    q, k = local(query.detach()), local(key.detach())
    if q.dim() > 3:
        q, k = q[:MAX_BATCH], k[:MAX_BATCH]
    rows, later = _rows(q.shape[-2], k.shape[-2], q.device)
    q, k = q[..., rows, :].float(), k.float()
    if q.dim() > 2 and k.shape[-3] != q.shape[-3]:  # grouped queries share a key
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    logits = q @ k.transpose(-2, -1)
    logits *= q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        logits.masked_fill_(later, -torch.inf)
    if isinstance(mask, torch.Tensor):
        m = local(mask.detach())
        m = m[..., rows, :] if m.shape[-2] == query.shape[-2] else m
        m = m[:MAX_BATCH] if m.dim() > 3 and m.shape[0] > 1 else m
        logits = logits.masked_fill(~m, -torch.inf) if m.dtype == torch.bool else logits + m
    return _of_logits(logits)


def _sampled(logits: torch.Tensor) -> torch.Tensor:
    rows, _ = _rows(logits.shape[-2], logits.shape[-1], logits.device)
    return logits[:MAX_BATCH][..., rows, :]


@lru_cache(maxsize=8)
def _rows(count: int, num_keys: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return up to `MAX_ROWS` row numbers, and [rows, keys]: whether a key lies after a row.

    The rows are evenly spread, and the last one is among them.
    """
    rows = torch.linspace(0, count - 1, min(count, MAX_ROWS), device=device).round().long()
    return rows, torch.arange(num_keys, device=device)[None] > rows[:, None]


def _of_logits(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (largest logit, mean entropy in nats) of rows of logits.

    Masked logits are -inf or very negative.
    """
    entropy = torch.special.entr(torch.softmax(logits, dim=-1)).sum()
    return logits.max(), entropy / max(logits.numel() // logits.shape[-1], 1)
