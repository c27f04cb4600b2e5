"""A small twin of a run: the same kind of model, optimizer and schedule, trained in a minute.

What does not carry over between widths is scaled by what is known to: Adam's rate ∝ 1/width (Tensor
Programs V, arXiv:2203.03466), init std ∝ 1/√width. So a rate or an init that is too large for its
own width is too large in the twin, and in the same proportion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from trimtab.configs.settings import Settings

__all__ = ["Twin", "shrink"]

_MAX_STD = 10.0


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A small transformer and how it is trained."""

    hidden: int = 64
    """Width, in channels."""
    layers: int = 3
    heads: int = 4
    """Attention heads; divides `hidden`, and the width of one head is even for rotary positions."""
    vocab: int = 256
    """Token ids; 256 = one per byte."""
    context: int = 64
    """Tokens of a sequence."""
    norm: Literal["layernorm", "rmsnorm"] = "rmsnorm"
    gated: bool = False
    activation: Literal["gelu", "gelu-tanh", "relu", "silu"] = "gelu"
    position: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    tied: bool = False
    qk_norm: bool = False
    embed_norm: bool = False
    init_std: float = math.sqrt(0.4 / 64)
    """Standard deviation of all matrices; output layers have it over √(2 layers)."""
    mup: bool = False
    """Maximal update parametrisation, with `base_hidden` as the width at which both are alike."""
    base_hidden: int = 64
    lr: float = 6e-3
    """Peak rate; chosen on seeds 0-3 of the lab's text for width 64."""
    warmup_share: float = 0.08
    """Part of the steps in which the rate rises."""
    final_lr_share: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest gradient norm; 0 does not clip."""
    batch: int = 16
    """Sequences of a step."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """What was scaled, and what is not carried over."""
    caveats: tuple[str, ...] = field(default=(), compare=False)
    """What a pass does not cover, since the config does not state it."""

    def __post_init__(self) -> None:
        """Refuse impossible values."""
        for name in ("hidden", "layers", "heads", "vocab", "context", "batch", "base_hidden"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            raise ConfigError(
                f"hidden is {self.hidden} and heads is {self.heads}; give a width that is an even"
                " multiple of the heads"
            )
        for name in ("lr", "eps", "init_std"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; give a positive number")
        if not all(0 <= b < 1 for b in self.betas):
            raise ConfigError(f"betas are {self.betas}; give two numbers from 0 to below 1")
        for name in ("weight_decay", "clip"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; give 0 or more")


def shrink(settings: Settings, *, hidden: int = 64, layers: int = 3) -> Twin:
    """Return the small twin of a run.

    Kept: optimizer betas, eps, decay, clip, the share of warm-up, the kinds of norm, activation,
        gate,
    positions, tying, QK-norm and embedding norm. Scaled: lr × width/hidden, init std ×
    √(width/hidden). Not carried over: batch, data, precision, vocabulary, layout (for that:
    parity).

    Args:
        settings: As `reading.read_config` gives them; what is absent takes the twin's own defaults.
        hidden: Width of the twin.
        layers: At most so many blocks.

    Raises:
        ConfigError: A setting is impossible, such as a rate of 0.
    """
    width, notes, caveats = settings.number("hidden"), [], []
    if width is not None and not 1 <= width < math.inf:
        raise ConfigError(f"hidden is {width:g}; give at least 1")
    kept: dict[str, object] = {"hidden": hidden, "base_hidden": hidden}
    if depth := settings.number("layers"):
        kept["layers"] = max(1, min(layers, int(depth)))
    ratio = width / hidden if width else 1.0
    lr, std = settings.number("lr"), settings.number("init_std")
    if lr is None:
        caveats.append(
            f"no learning rate is stated: the twin has its own, {Twin.lr:g}; --lr states it"
        )
    elif width is None:
        caveats.append(
            f"the width is not stated, so lr {lr:g} was tried as it stands at width {hidden}, where"
            " a rate may be larger: a pass says nothing of it; --hidden states the width"
        )
    if lr is not None:
        kept["lr"] = lr * ratio
        notes.append(
            f"lr {lr:g} × {ratio:.4g} (width {width or hidden:.0f} → {hidden}) = {lr * ratio:.3g}"
        )
    if std is not None and 0 < std < _MAX_STD:
        kept["init_std"] = std * math.sqrt(ratio)
        notes.append(f"init std {std:g} × √{ratio:.4g} = {std * math.sqrt(ratio):.3g}")
    else:
        kept["init_std"] = math.sqrt(0.4 / hidden)
    for name in ("eps", "weight_decay", "clip"):
        if (value := settings.number(name)) is not None:
            kept[name] = value
    beta1, beta2 = settings.number("beta1"), settings.number("beta2")
    kept["betas"] = (0.9 if beta1 is None else beta1, 0.95 if beta2 is None else beta2)
    kept |= _kinds(settings) | _schedule(settings)
    if settings.get("position") and "position" not in kept:
        notes.append(
            f"positions {settings.get('position')!s:.20} are not among the twin's kinds; learned"
            " ones stand in"
        )
    if other := settings.get("architecture"):
        caveats.append(
            f"the config names a model of kind {other!s:.20}, and the twin is a transformer: what was"
            " tried are its rate, schedule and optimizer, and a pass says nothing of that model;"
            " trimtab audit --python PATH.py:FUNCTION looks at the model itself"
        )
    notes.append("not carried over: batch, data, precision, vocabulary, layout")
    return Twin(**kept, notes=tuple(notes), caveats=tuple(caveats))  # type: ignore[arg-type]


def _kinds(settings: Settings) -> dict[str, object]:
    """Return the kinds of parts, where they are known and the twin has them."""
    kinds: dict[str, object] = {}
    for name, ours in (
        ("gated_ffn", "gated"),
        ("tied_embeddings", "tied"),
        ("qk_norm", "qk_norm"),
        ("embed_norm", "embed_norm"),
    ):
        if isinstance(value := settings.get(name), bool):
            kinds[ours] = value
    norm = str(settings.get("norm") or "").lower()
    if norm:
        kinds["norm"] = "rmsnorm" if "rms" in norm else "layernorm"
    activation = str(settings.get("activation") or "").lower()
    for word, ours in (
        ("swiglu", "silu"),
        ("silu", "silu"),
        ("swish", "silu"),
        ("relu", "relu"),
        ("tanh", "gelu-tanh"),
        ("new", "gelu-tanh"),
        ("gelu", "gelu"),
    ):
        if word in activation:
            kinds["activation"] = ours
            break
    position = str(settings.get("position") or "").lower()
    for word, ours in (
        ("learned", "learned"),
        ("absolute", "learned"),
        ("sinus", "sinusoidal"),
        ("rot", "rotary"),
        ("rope", "rotary"),
        ("none", "none"),
    ):
        if word in position:
            kinds["position"] = ours
            break
    return kinds


def _schedule(settings: Settings) -> dict[str, object]:
    """Return the shares of warm-up and of the final rate, where the run's length is known."""
    shares: dict[str, object] = {}
    for warm, whole in (
        ("warmup_steps", "train_steps"),
        ("warmup_samples", "train_samples"),
        ("warmup_tokens", "train_tokens"),
    ):
        first, total = settings.number(warm), settings.number(whole)
        if first is not None and total and total > 0:
            # a long run's warm-up of 0.1 % would be less than one step here
            shares["warmup_share"] = min(max(first / total, 0.02 if first else 0.0), 0.5)
            break
    low, peak = settings.number("min_lr"), settings.number("lr")
    if low is not None and peak and peak > 0:
        shares["final_lr_share"] = min(max(low / peak, 0.0), 1.0)
    return shares
