"""Single operations in low precision: attention scores, GELU, and each module against fp32."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks.book import found, listed
from trimtab.model_checks.gradients import token_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.gradients import LossFunction

__all__ = [
    "Loss",
    "Scores",
    "attention_scores",
    "judge_activations",
    "judge_ranking",
    "judge_scores",
    "rank_modules",
]

_TANH_GELU = ("newgelu", "fastgelu", "gelutanh", "pytorchgelutanh", "quickgelutanh", "gelunew")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """One attention score of constant queries and keys, scaled outside and inside the product."""

    product: float
    """q·k before any scale."""
    outside: float
    """The product rounded to the type, times n = 1/√d: Inf where the product overflows."""
    inside: float
    """(√n q)·(√n k), every number rounded to the type."""
    fused: float
    """`torch.baddbmm` with alpha = n on this backend: Inf where it applies alpha after rounding."""
    device: str
    dtype: str

    @property
    def fused_overflows(self) -> bool:
        """Whether the backend's fused product overflows."""
        return not math.isfinite(self.fused)


def attention_scores(
    *,
    query: float = 60.0,
    key: float = 60.0,
    head_dim: int = 128,
    device: str = "cpu",
    dtype: torch.dtype = torch.float16,
) -> Scores:
    """Compute one attention score with the scale n = 1/√d outside, inside and fused into q·k.

    With q = k = 60 and d = 128 the product is 460 800, seven times fp16's largest number, 65 504;
    scaled inside it is 40 729. A backend that accumulates in fp32 and scales before it rounds does
    not overflow with alpha, one that rounds first does: that is measured, not assumed.

    Raises:
        ConfigError: The device is not there, or cannot multiply this type.

    Cost: a product of 8 × d by d × 8 numbers on the device.

    Example:
        >>> s = attention_scores()
        >>> s.product, s.outside, 40_000 < s.inside < 41_500
        (460800.0, inf, True)

    References:
        GLM-130B (arXiv:2210.02414); CogView (arXiv:2105.13290); Megatron-LM's baddbmm with alpha.
    """
    n = 1.0 / math.sqrt(head_dim)
    try:
        q = torch.full((1, 8, head_dim), query, dtype=dtype, device=device)
        k = torch.full((1, head_dim, 8), key, dtype=dtype, device=device)
        bias = torch.zeros((1, 8, 8), dtype=dtype, device=device)
        fused = torch.baddbmm(bias, q, k, beta=0.0, alpha=n)
        root = math.sqrt(n)
        inside = torch.bmm(q * root, k * root)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"device {device!r} cannot multiply {dtype}: {str(error).splitlines()[0]}"
        ) from error
    product = query * key * head_dim
    # Computed in float64 and rounded once, as a kernel does that accumulates in high precision.
    outside = (torch.tensor(product, dtype=torch.float64).to(dtype) * n).item()
    return Scores(
        product=product,
        outside=outside,
        inside=float(inside[0, 0, 0]),
        fused=float(fused[0, 0, 0]),
        device=device,
        dtype=str(dtype).removeprefix("torch."),
    )


def judge_scores(scores: Scores) -> Iterator[ConfigFinding]:
    """Say whether this backend overflows where the scale is given as alpha."""
    values = {
        "product": scores.product,
        "inside": scores.inside,
        "fused": scores.fused,
        "device": scores.device,
        "dtype": scores.dtype,
    }
    if scores.fused_overflows:
        yield found(
            "L29",
            "warning",
            f"baddbmm on {scores.device} in {scores.dtype} overflows at q·k = {scores.product:.0f},"
            f" despite its alpha; scaled inside the score is {scores.inside:.0f}",
            values=values,
            instead="(q·√n)(k·√n), n = 1/√d; or a fused attention kernel; or bf16",
        )
    else:
        yield found(
            "L29",
            "info",
            f"baddbmm on {scores.device} in {scores.dtype} scales before it rounds: q·k ="
            f" {scores.product:.0f} gives {scores.fused:.0f}",
            values=values,
        )


def judge_activations(model: nn.Module) -> Iterator[ConfigFinding]:
    """Name the tanh-GELU modules of a model that trains in fp16: x³ is Inf from x = 40.4 on.

    Blind to a GELU that is called as a function.
    """
    names = [n or type(m).__name__ for n, m in model.named_modules() if _is_tanh_gelu(m)]
    if names:
        x = torch.tensor(41.0, dtype=torch.float16)
        yield found(
            "L30",
            "info",
            f"tanh-GELU in fp16 ({listed(names)}): at x = 41, x³ is {float(x**3)} (41³ = 68921, the"
            " largest number is 65504)",
            values={"tensors": names, "cube": float(x**3)},
            instead="nn.GELU() (erf form), ReLU, or bf16",
        )


def _is_tanh_gelu(module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    return (isinstance(module, nn.GELU) and module.approximate == "tanh") or any(
        k in kind for k in _TANH_GELU
    )


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What one module loses in low precision, its input being that of the fp32 pass."""

    module: str
    kind: str
    error: float
    """‖y − y₃₂‖ / ‖y₃₂‖; Inf where a finite result became Inf or NaN."""
    largest_output: float
    """Largest magnitude of the fp32 result."""


def rank_modules(
    model: nn.Module,
    batch: object,
    *,
    loss: LossFunction | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[Loss, ...]:
    """Return every module that computes, with its error in low precision, the worst first.

    One fp32 pass notes each leaf's input and output. Then each leaf is cast and run alone on the
    same input, rounded: so errors do not add up, and rank the module, not its place.

    Cost: one fp32 pass and each leaf once more; a copy of one leaf at a time.
    NaN: an input that is NaN already is not the module's loss; its error is then NaN and ranks
        last.
    Blind to functions between modules, such as softmax or a product written as `q @ k`.
    """
    chosen: LossFunction = loss or token_loss
    kept: dict[str, tuple[tuple[object, ...], Tensor]] = {}
    hooks = []
    for name, module in model.named_modules():
        # Dropout is random: its difference between two runs says nothing on precision.
        if any(module.children()) or isinstance(module, nn.Dropout):
            continue

        def keep(
            _m: nn.Module, given: tuple[object, ...], output: object, name: str = name
        ) -> None:
            if isinstance(output, Tensor) and output.dtype.is_floating_point:
                kept[name] = (given, output.detach().float())

        hooks.append(module.register_forward_hook(keep))
    try:
        with torch.no_grad():
            chosen(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    rows = [_lost(model, name, given, whole, dtype) for name, (given, whole) in kept.items()]
    return tuple(
        sorted(
            rows, key=lambda r: (math.isnan(r.error), -r.error if not math.isnan(r.error) else 0.0)
        )
    )


def _lost(
    model: nn.Module, name: str, given: tuple[object, ...], whole: Tensor, dtype: torch.dtype
) -> Loss:
    module = copy.deepcopy(model.get_submodule(name)).to(dtype)
    # Hooks of the caller are copied too, and would see a pass that is not theirs.
    module._forward_hooks.clear()
    low = tuple(
        g.detach().to(dtype) if isinstance(g, Tensor) and g.dtype.is_floating_point else g
        for g in given
    )
    with torch.no_grad():
        rounded = module(*low).float()
    gap = float((rounded - whole).norm() / whole.norm().clamp_min(1e-30))
    # The fp32 result is finite, so Inf or NaN is the work of the low precision.
    if not math.isfinite(gap) and bool(whole.isfinite().all()):
        gap = math.inf
    return Loss(
        module=name, kind=type(module).__name__, error=gap, largest_output=float(whole.abs().max())
    )


def judge_ranking(rows: tuple[Loss, ...]) -> Iterator[ConfigFinding]:
    """Report modules whose result overflows in low precision."""
    broken = [r for r in rows if r.error == math.inf]
    if broken:
        yield found(
            "LOWP",
            "error",
            f"{len(broken)} modules overflow in low precision: {listed(r.module for r in broken)}",
            values={"tensors": [r.module for r in broken]},
            instead="fp32 for these, or bf16",
        )
