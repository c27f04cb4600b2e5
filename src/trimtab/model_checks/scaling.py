"""Loss scaling: the scaler's logic, the order of unscaling and clipping, and gradient averaging."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import local
from trimtab.model_checks.book import found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trimtab.config_rules.lint import ConfigFinding

__all__ = ["ScalerRules", "check_clip_order", "check_predivide", "check_scaler"]

_NEUTRAL = 1e-6


class TwinScaler(Protocol):
    """What `check_scaler` calls; `torch.amp.GradScaler` has it."""

    def scale(self, outputs: Tensor, /) -> Tensor:
        """Return the loss times the scale."""

    def step(self, optimizer: torch.optim.Optimizer, /) -> object:
        """Unscale the gradients and update, unless they overflow."""

    def update(self) -> None:
        """Grow or shrink the scale."""

    def get_scale(self) -> float:
        """Return the scale."""


class SavedScaler(Protocol):
    """What `check_clip_order` calls; `torch.amp.GradScaler` has it."""

    def scale(self, outputs: Tensor, /) -> Tensor:
        """Return the loss times the scale."""

    def update(self, new_scale: float, /) -> None:
        """Set the scale."""

    def state_dict(self) -> dict[str, object]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, object], /) -> None:
        """Go back to a state."""


@dataclass(frozen=True, kw_only=True)
class ScalerRules:
    """What a dynamic loss scaler should do; torch's own numbers by default."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    """Steps without an overflow before it grows."""


def check_scaler(
    make: Callable[[], TwinScaler],
    rules: ScalerRules | None = None,
    *,
    growth_interval: int | None = None,
) -> tuple[ConfigFinding, ...]:
    """Play a fixed sequence of steps through a scaler.

    Its scale and its skipped steps are compared with the rules.

    The sequence: an overflow; steps without one until it should grow; one more; an overflow one
    step before it should grow; steps until it should grow again. After each, scale and weight are
    compared: on an overflow the scale shrinks and the weight stays, else the weight moves by the
    unscaled gradient.

    Args:
        make: Gives a new scaler with the interface of `torch.amp.GradScaler`: scale, step, update,
            get_scale.
        rules: What it should do; None takes torch's numbers.
        growth_interval: Instead of that of `rules`; make the scaler with a short one, or this takes
            long.

    Returns:
        An error naming the first step at which it does otherwise; none where it does as it should.

    Cost: 2 × growth_interval + 2 steps of one number.
    """
    rule = rules or ScalerRules()
    interval = growth_interval or rule.growth_interval
    # Each part shows one error: no shrinking, growth a step too early or too late, a count that an
    # overflow does not reset.
    script = [True, *[False] * (interval + 1), *[False] * (interval - 2), True, *[False] * interval]
    weight = nn.Parameter(torch.zeros(1))
    optimizer, scaler = torch.optim.SGD([weight], lr=1.0), make()
    scale, quiet, at = rule.init_scale, 0, 0.0
    for number, overflows in enumerate(script, start=1):
        optimizer.zero_grad()
        # A gradient of 0.5 and a rate of 1: every sound step moves the weight by exactly half.
        scaler.scale((weight * 0.5).sum()).backward()  # type: ignore[no-untyped-call]
        if overflows:
            weight.grad = torch.full_like(weight, math.inf)
        scaler.step(optimizer)
        scaler.update()
        quiet = 0 if overflows else quiet + 1
        scale *= rule.backoff_factor if overflows else 1.0
        at -= 0.0 if overflows else 0.5
        if quiet == interval:
            scale, quiet = scale * rule.growth_factor, 0
        for what, has, should in (
            ("scale", float(scaler.get_scale()), scale),
            ("weight", float(weight.detach()), at),
        ):
            if not math.isclose(has, should, rel_tol=1e-6, abs_tol=1e-6):
                return (
                    found(
                        "L25",
                        "error",
                        f"at step {number} of the sequence ("
                        + ("an overflow" if overflows else f"{quiet or interval} without overflow")
                        + ")"
                        f" the {what} is {has:g}, it should be {should:g}",
                        values={
                            "step": number,
                            "what": what,
                            "has": has,
                            "should": should,
                            "overflow": overflows,
                        },
                        instead="torch.amp.GradScaler",
                    ),
                )
    return ()


def check_clip_order(
    step: Callable[[], object],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scaler: SavedScaler,
) -> tuple[ConfigFinding, ...]:
    """Do one of the user's steps at two loss scales; what reaches the optimizer must not change.

    Clipped before it is unscaled, the gradient's norm ends at clip/scale: 1.53e-5 at 65 536 and
    clip 1, so the update is too small, and smaller the larger the scale. Weights, optimizer and
    scaler are put back, random state too.

    Args:
        step: One whole step as the training loop does it: zero_grad, forward, scaled backward,
            unscale, clip, `scaler.step(optimizer)`, `scaler.update()`; the same batch each time.
        model: Its weights are looked at, and put back.
        optimizer: Whose step is watched.
        scaler: With `get_scale`, `update(new_scale)`, and `state_dict`/`load_state_dict`.

    Returns:
        An error where the gradient at the update depends on the scale; a warning where the
        optimizer was not called at all (an overflow at both scales).

    Cost: two steps, a copy of weights and of the optimizer's state.
    """
    norms: list[float] = []

    def watch(_optimizer: object, _args: object, _named: object) -> None:
        grads = [local(w.grad).float().norm() for w in model.parameters() if w.grad is not None]
        norms.append(float(torch.stack(grads).norm()) if grads else math.nan)

    kept = (
        copy.deepcopy(model.state_dict()),
        copy.deepcopy(optimizer.state_dict()),
        copy.deepcopy(scaler.state_dict()),
    )
    scaler.scale(
        torch.zeros((), device=next(model.parameters()).device)
    )  # torch makes its scale on the first use
    hook = optimizer.register_step_pre_hook(watch)
    # Powers of two change no digit of the gradients, and 256 overflows fp16 less often than 65536.
    scales = (256.0, 16.0)
    try:
        for scale in scales:
            # The same dropout at both scales.
            with torch.random.fork_rng(devices=[]):
                scaler.update(scale)
                step()
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(copy.deepcopy(kept[1]))
    finally:
        hook.remove()
        model.load_state_dict(kept[0])
        optimizer.load_state_dict(kept[1])
        scaler.load_state_dict(kept[2])
        model.zero_grad(set_to_none=True)
    if len(norms) < len(scales):
        return (
            found(
                "L14",
                "warning",
                "the optimizer was not called: the step overflows at loss scales of 16 and 256",
                values={"norms": norms},
            ),
        )
    # 5 %: fp16 rounds differently at two scales, while a wrong order differs by a factor of 16.
    if math.isclose(norms[0], norms[1], rel_tol=0.05):
        return ()
    return (
        found(
            "L14",
            "error",
            "the gradient is clipped before it is unscaled: its norm at the update is"
            f" {norms[0]:.3g} at scale {scales[0]:g} and {norms[1]:.3g} at scale {scales[1]:g}",
            values={"scales": scales, "norms": norms},
            instead="scaler.unscale_(optimizer), then clip, then scaler.step(optimizer)",
        ),
    )


def check_predivide(
    gradients: Sequence[Tensor],
    *,
    factor: float,
    reduce: Callable[[Sequence[Tensor], float], Tensor] | None = None,
) -> tuple[ConfigFinding, ...]:
    """Average the ranks' gradients with and without dividing first.

    Both must agree to one in a million.

    Dividing by `factor` before the sum and by ranks/factor after it changes what can overflow, and
    nothing else. A factor that is applied once only makes every update that many times too small.

    Args:
        gradients: One per rank, alike in shape; computed in the type they have.
        factor: The divisor before the sum, as OPT's 32.
        reduce: (gradients, factor) → mean, to test your own; None tests the arithmetic itself.

    Raises:
        ConfigError: There are no gradients, or the factor is not positive.
    """
    if not gradients or not 0 < factor < math.inf:
        raise ConfigError(
            f"{len(gradients)} gradients and factor {factor}; give one per rank and a positive"
            " factor"
        )
    plain = torch.stack([g.double() for g in gradients]).mean(0)
    ours = (reduce or _divided)(gradients, factor).double()
    gap = float((ours - plain).norm() / plain.norm().clamp_min(1e-30))
    if gap <= _NEUTRAL:
        return ()
    return (
        found(
            "L31",
            "error",
            f"dividing gradients by {factor:g} before the sum changes their mean by {gap:.2g}",
            values={"factor": factor, "ranks": len(gradients), "error": gap},
            instead=f"divide by {len(gradients) / factor:g} after the sum",
        ),
    )


def _divided(gradients: Sequence[Tensor], factor: float) -> Tensor:
    total = gradients[0] / factor
    for gradient in gradients[1:]:
        total = total + gradient / factor
    return total * (factor / len(gradients))
