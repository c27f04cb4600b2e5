"""The coordinate check of µP: whether the change of activations depends on the width."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import dissect
from trimtab.model_checks.book import found, listed
from trimtab.model_checks.gradients import tiny_batch, token_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.gradients import LossFunction

__all__ = ["Coordinates", "coordinate_check"]

LIMIT = 0.25
"""Largest slope that passes; chosen on the twin, seeds 0 to 9: µP up to 0.05, standard from 1.8."""


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """How much activations change in a few steps, by width."""

    widths: tuple[int, ...]
    change: Mapping[str, tuple[float, ...]]
    """Layer → per width the mean magnitude of (activation after the steps − before), by seeds'
    mean."""
    slope: Mapping[str, float]
    """Layer → slope of log(change) on log(width): 0 under µP, NaN where a change is 0 or not
    finite."""
    findings: tuple[ConfigFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether every slope is at most 0.25."""
        return not self.findings

    def table(self) -> str:
        """Return widths, changes and slopes as text, a line per layer."""
        rows = [f"{'layer':<28}" + "".join(f"{w:>12}" for w in self.widths) + f"{'slope':>8}"]
        rows += [
            f"{n:<28}" + "".join(f"{c:>12.4g}" for c in self.change[n]) + f"{s:>8.2f}"
            for n, s in self.slope.items()
        ]
        return "\n".join(rows)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {"passed": self.passed} | asdict(self)

    def svg(self, title: str = "coordinate check") -> str:
        """Return the curves, change over width on log axes, one per layer, as an SVG picture."""
        return _draw(self, title)


def coordinate_check(
    build: Callable[[int], tuple[nn.Module, torch.optim.Optimizer]],
    widths: Sequence[int] = (64, 128, 256),
    *,
    batch: object = None,
    loss: LossFunction | None = None,
    steps: int = 4,
    seeds: int = 2,
) -> Coordinates:
    """Train a few steps at several widths and fit the change of each activation over width.

    For every layer the mean of |x_after − x_before| over batch and coordinates is taken. Under µP
    it does not depend on the width; in the standard parametrisation with one rate for Adam it grows
    about as its root or faster, so a rate found on a small model is too large for a wide one.

    Args:
        build: width → (model, optimizer), with the rates of that width. torch is seeded before each
            call.
        widths: Two or more, rising.
        batch: The same for all; None makes random tokens for the model's vocabulary.
        loss: (model, batch) → scalar; None takes next-token cross-entropy.
        steps: Updates before the activations are compared.
        seeds: Models per width; changes are averaged over them.

    Raises:
        ConfigError: There are fewer than two widths, or a model has no layers in common with the
            first.

    Cost: widths × seeds × (steps + 1) passes.
    NaN: a layer whose activations are not finite fails.

    References:
        Yang et al. (2022), Tensor Programs V, arXiv:2203.03466, appendix D.1.
    """
    if len(widths) < 2 or list(widths) != sorted(set(widths)) or steps < 1 or seeds < 1:
        raise ConfigError(
            f"widths are {list(widths)}, steps {steps}, seeds {seeds}; give two or more rising"
            " widths, one step and seed"
        )
    per_width = [
        _mean([_change(build, w, seed, batch, loss, steps) for seed in range(seeds)])
        for w in widths
    ]
    layers = [n for n in per_width[0] if all(n in p for p in per_width)]
    if not layers:
        raise ConfigError("the models of two widths have no layer of the same name")
    change = {n: tuple(p[n] for p in per_width) for n in layers}
    slope = {n: _slope(widths, change[n]) for n in layers}
    return Coordinates(
        widths=tuple(widths), change=change, slope=slope, findings=tuple(_judge(slope, change))
    )


def _change(
    build: Callable[[int], tuple[nn.Module, torch.optim.Optimizer]],
    width: int,
    seed: int,
    batch: object,
    loss: LossFunction | None,
    steps: int,
) -> dict[str, float]:
    # The caller's random state stays as it was, although torch is seeded for each model.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model, optimizer = build(width)
        anatomy = dissect(model)
        if batch is None and anatomy.vocab is None:
            raise ConfigError("no token embedding was recognised; give batch= and loss=")
        # One batch for all steps and widths: data must not add to the change that is compared.
        given = (
            tiny_batch(anatomy.vocab or 2, anatomy.parts[0].parameter.device)
            if batch is None
            else batch
        )
        judge: LossFunction = loss or token_loss
        before = _activations(model, given, judge)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            judge(model, given).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        after = _activations(model, given, judge)
    return {
        n: float((after[n] - x).abs().mean())
        for n, x in before.items()
        if n in after and after[n].shape == x.shape
    }


def _activations(model: nn.Module, batch: object, loss: LossFunction) -> dict[str, Tensor]:
    """Return the output of every leaf with a matrix.

    The whole model has the name "output".
    """
    kept: dict[str, Tensor] = {}

    def keeper(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _inputs: object, output: object) -> None:
            value = getattr(output, "logits", output)
            if isinstance(value, Tensor) and value.dtype.is_floating_point:
                kept[name] = value.detach().float()

        return keep

    matrices = [
        (n, m)
        for n, m in model.named_modules()
        # Norms and biases have no width to scale by; µP is about matrices.
        if any(p.dim() >= 2 for p in m.parameters(recurse=False))
    ]
    hooks = [m.register_forward_hook(keeper(n)) for n, m in matrices]
    hooks.append(model.register_forward_hook(keeper("output")))
    try:
        with torch.no_grad():
            loss(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {n: float(np.mean([r[n] for r in rows])) for n in rows[0]}


def _slope(widths: Sequence[int], values: Sequence[float]) -> float:
    # Zero has no logarithm: a layer that does not move has no slope, and passes.
    if not all(0 < v < math.inf for v in values):
        return math.nan
    return float(np.polyfit(np.log(widths), np.log(values), 1)[0])


def _judge(
    slope: Mapping[str, float], change: Mapping[str, tuple[float, ...]]
) -> list[ConfigFinding]:
    wild = [n for n, values in change.items() if not all(map(math.isfinite, values))]
    # Only upwards: a change that shrinks with the width is safe, if slow. NaN passes no comparison.
    steep = {n: s for n, s in slope.items() if s > LIMIT}
    if not steep and not wild:
        return []
    worst = max(steep, key=lambda n: steep[n], default=wild[0] if wild else "")
    grown = (
        f"grow with the width, fastest {worst} ∝ width^{slope[worst]:.2f}"
        if steep
        else f"are not finite: {listed(wild)}"
    )
    return [
        found(
            "L33",
            "warning",
            f"updates of {len(steep) or len(wild)} of {len(slope)} layers {grown}; a rate tuned on"
            " a narrow model does not carry over",
            values={"slope": dict(slope), "limit": LIMIT, "not_finite": wild},
            instead=(
                "µP: hidden rates ∝ 1/width, scores over the width of a head, logits over the"
                " width; or a rate per width"
            ),
        )
    ]


_W, _H, _LEFT, _TOP = 640.0, 360.0, 60.0, 30.0
_COLOURS = ("#1b6ca8", "#c8553d", "#588157", "#8e5572", "#b08900", "#2a9d8f", "#6d597a", "#444444")


def _draw(check: Coordinates, title: str) -> str:
    values = [v for row in check.change.values() for v in row if 0 < v < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    x0, x1 = math.log(check.widths[0]), math.log(check.widths[-1])

    def x(width: float) -> float:
        return _LEFT + (math.log(width) - x0) / (x1 - x0) * (_W - _LEFT - 220)

    def y(value: float) -> float:
        return _TOP + (high - math.log10(value)) / max(high - low, 1) * (_H - _TOP - 40)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_W:g} {_H:g}"'
        ' font-family="sans-serif" font-size="11"><rect width="100%" height="100%"'
        f' fill="white"/><text x="{_LEFT}" y="18" font-size="13">{escape(title)}: change of'
        " activations over width</text>"
    ]
    for power in range(low, high + 1):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_W - 220:g}" y1="{y(10.0**power):.1f}"'
            f' y2="{y(10.0**power):.1f}" stroke="#ddd"/><text x="{_LEFT - 6}"'
            f' y="{y(10.0**power) + 4:.1f}" text-anchor="end">1e{power}</text>'
        )
    parts += [
        f'<text x="{x(w):.1f}" y="{_H - 18:g}" text-anchor="middle">{w}</text>'
        for w in check.widths
    ]
    steepest = sorted(
        check.slope, key=lambda n: -(check.slope[n] if math.isfinite(check.slope[n]) else math.inf)
    )
    for i, name in enumerate(steepest):
        points = [
            (x(w), y(v))
            for w, v in zip(check.widths, check.change[name], strict=True)
            if 0 < v < math.inf
        ]
        if not points:
            continue
        colour = _COLOURS[i % len(_COLOURS)]
        way = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        if i < 20:
            parts.append(
                f'<text x="{_W - 212:g}" y="{_TOP + 14 * i + 8:.1f}"'
                f' fill="{colour}">{check.slope[name]:+.2f} {escape(name)}</text>'
            )
    return "".join([*parts, "</svg>\n"])
