"""First weights against width and depth: matrices, output layers, embeddings, positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from trimtab.config_rules.rules.rule import compact
from trimtab.configs.facts import small_init, wide_init
from trimtab.model_checks.anatomy import is_norm, local
from trimtab.model_checks.book import found, listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.anatomy import Anatomy, Part

__all__ = [
    "TensorStats",
    "embedding_kind",
    "is_sinusoidal",
    "is_xavier_uniform",
    "judge_embeddings",
    "judge_matrices",
    "judge_positions",
    "measure",
]

TOLERANCE = 0.05
"""How near to a rule a std counts as following it."""
_LOUD = 0.5
"""An embedding std that is as good as 1: torch's default, or a scale by the root of the width."""

Position = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """One parameter as it is now."""

    name: str
    role: str
    shape: tuple[int, ...]
    std: float
    """Standard deviation of the elements this rank holds, computed in fp32.

    NaN for fewer than two elements, or where one is NaN."""
    mean: float
    expected: Mapping[str, float]
    """Rule → std by that rule."""
    follows: str
    """Name of the rule it follows within 5 % (and three standard errors of the measurement)."""
    trainable: bool


def measure(anatomy: Anatomy, asked: Mapping[str, float] | None = None) -> tuple[TensorStats, ...]:
    """Return the std of every parameter beside what the rules would give it.

    Small init √(2/5h), wide init √(1/3h); for layers that write to the residual stream also
    σ/√(2L), with σ the median std of the other matrices in the blocks, and 2/(L√h).

    Args:
        anatomy: The model.
        asked: Parameter → std that its init asks for, instead of a measurement.

    Cost: reads each weight once, on its device; one device sync per parameter. On the meta device
    a std that was not given is NaN.
    """
    stds = {p.name: _moments(p.parameter) for p in anatomy.parts}
    if asked is not None:
        stds |= {n: (math.nan, std) for n, std in asked.items() if n in stds}
    sigma = _sigma(anatomy, stds)
    rows = []
    for part in anatomy.parts:
        mean, std = stds[part.name]
        expected = _expected(part, anatomy, sigma)
        rows.append(
            TensorStats(
                name=part.name,
                role=part.role,
                shape=tuple(part.parameter.shape),
                std=std,
                mean=mean,
                expected=expected,
                follows=_follows(std, part.parameter.numel(), expected),
                trainable=part.parameter.requires_grad,
            )
        )
    return tuple(rows)


def _moments(weight: Tensor) -> tuple[float, float]:
    held = local(weight.detach())
    if held.is_meta or held.numel() < 2 or not held.dtype.is_floating_point:
        return math.nan, math.nan
    values = held.float()
    return float(values.mean()), float(values.std())


def _sigma(anatomy: Anatomy, stds: Mapping[str, tuple[float, float]]) -> float:
    # Residual outputs are left out: they are what sigma is compared with.
    inner = [stds[p.name][1] for p in anatomy.of("matrix") if p.in_block]
    finite = [s for s in inner if math.isfinite(s) and s > 0]
    return median(finite) if finite else math.nan


def _expected(part: Part, anatomy: Anatomy, sigma: float) -> dict[str, float]:
    h, layers = anatomy.hidden, anatomy.layers
    if h is None or part.role not in ("matrix", "residual output", "head", "token embedding"):
        return {}
    rules = {"√(2/5h)": small_init(h), "√(1/3h)": wide_init(h)}
    if part.role == "residual output" and layers:
        rules = {
            "σ/√(2L)": sigma / math.sqrt(2 * layers),
            "2/(L√h)": 2 / (layers * math.sqrt(h)),
        } | rules
    return rules


def _follows(std: float, size: int, expected: Mapping[str, float]) -> str:
    # The standard error of a standard deviation of n values is 1/sqrt(2n) of it.
    slack = TOLERANCE + 3 / math.sqrt(2 * max(size, 1))
    for rule, value in expected.items():
        if math.isfinite(std) and value > 0 and abs(std / value - 1) <= slack:
            return rule
    return ""


def judge_matrices(
    anatomy: Anatomy, rows: Sequence[TensorStats], *, tamed: bool = False
) -> Iterator[ConfigFinding]:
    """Compare the matrices with small init, and the output layers with σ/√(2L).

    Args:
        anatomy: The model.
        rows: Its measured weights.
        tamed: Queries and keys are normalised: a large init is then a remark.
    """
    h = anatomy.hidden
    if h is None:
        return
    small = small_init(h)
    big = [r for r in rows if r.role in ("matrix", "residual output") and r.std > 1.45 * small]
    limit = 1.45 if h >= 4096 else 3.0  # narrow models train at 0.02 and more, as GPT-2 and OPT did
    worst = max(big, key=lambda r: r.std, default=None)
    if worst is not None and worst.std > limit * small:
        ratio = worst.std / small
        severe = ratio >= 2.5 and (anatomy.num_params >= 1e10 or ratio >= 5)
        yield found(
            "L01",
            "info" if tamed else "error" if severe else "warning",
            f"{len(big)} of {sum(r.role in ('matrix', 'residual output') for r in rows)} matrices"
            f" start too large: {worst.name} has std {compact(worst.std)}, {ratio:.2g} ×"
            f" √(2/(5·{h})) = {small:.5f}; √(1/(3·{h})) = {wide_init(h):.5f}",
            values={
                "tensor": worst.name,
                "std": worst.std,
                "sqrt(2/5h)": small,
                "sqrt(1/3h)": wide_init(h),
                "ratio": ratio,
                "tensors": [r.name for r in big],
            },
            instead=f"init std {small:.3g}",
        )
    yield from _judge_output_layers(anatomy, rows, tamed=tamed)


def _judge_output_layers(
    anatomy: Anatomy, rows: Sequence[TensorStats], *, tamed: bool
) -> Iterator[ConfigFinding]:
    outputs = [r for r in rows if r.role == "residual output" and math.isfinite(r.std)]
    scaled = "σ/√(2L)"
    off = [
        r
        for r in outputs
        if r.follows not in (scaled, "2/(L√h)") and r.std > r.expected.get(scaled, math.inf)
    ]
    if not off or not anatomy.layers or anatomy.layers < 2:
        return
    worst = max(off, key=lambda r: r.std / r.expected[scaled])
    ratio = worst.std / worst.expected[scaled]
    yield found(
        "L02",
        "warning" if ratio > 1.5 and anatomy.layers >= 24 and not tamed else "info",
        f"{len(off)} of {len(outputs)} layers that write to the residual stream are not scaled with"
        f" depth: {worst.name} has std {compact(worst.std)}, {ratio:.2g} × σ/√(2·{anatomy.layers})"
        f" = {worst.expected[scaled]:.5f}",
        values={
            "tensor": worst.name,
            "std": worst.std,
            "sigma/sqrt(2L)": worst.expected[scaled],
            "ratio": ratio,
            "tensors": [r.name for r in off],
        },
        instead=f"init std {worst.expected[scaled]:.3g} for {listed(r.name for r in off)}",
    )


def is_xavier_uniform(weight: Tensor) -> bool:
    """Whether a matrix looks drawn from U(±√(6/(rows + columns))).

    Its largest value and its std agree with that within 5 %; needs a few hundred elements.
    """
    held = local(weight.detach())
    if held.is_meta or held.dim() != 2 or held.numel() < 256:
        return False
    bound = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
    largest, std = float(held.float().abs().max()), float(held.float().std())
    # Both: a normal distribution has that std too, but its largest value lies far beyond the bound.
    return 0.95 * bound <= largest <= 1.001 * bound and abs(std * math.sqrt(3) / bound - 1) <= 0.05


def is_sinusoidal(table: Tensor) -> bool:
    """Whether a table [positions, width] holds sines and cosines.

    All rows have norm √(width/2), values within ±1.
    """
    held = local(table.detach())
    if held.is_meta or held.dim() != 2 or held.shape[1] < 4:
        return False
    values = held.float()
    norms = values.square().sum(1)[1:] / (held.shape[1] / 2)  # a padding row may be 0
    return bool((values.abs() <= 1.001).all() and ((norms - 1).abs() < 0.02).float().mean() > 0.95)


def embedding_kind(anatomy: Anatomy) -> str:
    """Return "StableEmbedding", "embedding with LayerNorm", or "plain embedding"; "" without one.

    A StableEmbedding (bitsandbytes) is LayerNorm after a Xavier-uniform embedding. The norm is a
    child of the embedding, or a norm outside the blocks that is named after it.
    """
    tokens = anatomy.of("token embedding")
    if not tokens:
        return ""
    inside = any(is_norm(m) for m in tokens[0].module.modules())
    normed = inside or any(True for _ in anatomy.of("embedding norm"))
    if not normed:
        return "plain embedding"
    return (
        "StableEmbedding" if is_xavier_uniform(tokens[0].parameter) else "embedding with LayerNorm"
    )


def judge_embeddings(
    rows: Sequence[TensorStats], *, kind: str, effective: float | None, tamed: bool
) -> Iterator[ConfigFinding]:
    """Compare the token embedding's std, and that of the first block's input, with GPT-2's 0.02.

    Args:
        rows: The measured weights.
        kind: As `embedding_kind` gives it; a norm behind the embedding takes the scale out.
        effective: std of the token embedding's share of what enters the first block; None where it
            could not be measured.
        tamed: Queries and keys are normalised.
    """
    own = next((r.std for r in rows if r.role == "token embedding"), math.nan)
    if not math.isfinite(own) or kind != "plain embedding":
        return
    entering = own if effective is None else effective
    values = {"std": own, "effective_std": entering, "kind": kind}
    if own >= _LOUD:
        yield found(
            "L03",
            "error",
            f"the token embedding starts at std {compact(own)} and enters the first block with"
            f" {compact(entering)}; GPT-2 has 0.02",
            values=values,
            instead="std 0.02 for token embeddings, 0.01 for positions",
        )
    elif entering >= _LOUD:
        yield found(
            "L03",
            "info" if tamed else "warning",
            f"embeddings enter the first block with std {compact(entering)}: init {compact(own)} ×"
            f" scale {compact(entering / own)}",
            values=values | {"scale": entering / own},
            instead="no scale on the embedding output, or a norm behind it",
        )


def judge_positions(
    anatomy: Anatomy,
    rows: Sequence[TensorStats],
    *,
    meant: Position | None,
    seen: str | None = None,
) -> tuple[str, list[ConfigFinding]]:
    """Return what kind of positions a model has, and what is wrong with them.

    Kinds: `learned` (starts Gaussian), `learned, starts sinusoidal`, `sinusoidal`, `frozen`, and
    `none found`; without weights `rotary` or `alibi` where the model or the config shows it. The
    gradient probe reports whether a gradient arrives.

    Args:
        anatomy: The model.
        rows: Its measured weights.
        meant: What the config says; learned positions that are frozen are then an error whatever
            they hold, and a fixed sinusoidal table is silent.
        seen: What the model shows of positions without weights
            (`anatomy.positions_without_weights`).
    """
    positions = anatomy.of("position embedding")
    if not positions:
        return _judge_absent_positions(meant, seen)
    part = positions[0]
    waves, learns = is_sinusoidal(part.parameter), part.parameter.requires_grad
    if learns:
        kind = "learned, starts sinusoidal" if waves else "learned"
    else:
        kind = "sinusoidal" if waves else "frozen"
    std = next(r.std for r in rows if r.name == part.name)
    values = {"tensor": part.name, "std": std, "kind": kind, "meant": meant}
    if not learns and not (waves and meant == "sinusoidal"):
        wrong = [_frozen_positions(part.name, waves=waves, meant=meant, values=values)]
    elif meant in ("rotary", "alibi", "none") or (meant == "sinusoidal" and not waves):
        wrong = [_unmeant_positions(part.name, kind=kind, meant=meant, values=values)]
    elif learns and waves and meant in (None, "learned"):
        wrong = [
            found(
                "L04",
                "info" if meant is None else "warning",
                f"learned positions start as sines ({part.name}); GPT-2 starts them at std 0.01",
                values=values,
                instead="a normal distribution of std 0.01",
            )
        ]
    else:
        wrong = []
    # Sines have a std of 0.7 by construction.
    if math.isfinite(std) and std >= _LOUD and not waves:
        loud = found(
            "L03",
            "error",
            f"position embeddings start at std {compact(std)}; GPT-2 has 0.01",
            values=values,
            instead="std 0.01 for positions",
        )
        wrong.append(loud)
    return kind, wrong


def _judge_absent_positions(
    meant: Position | None, seen: str | None
) -> tuple[str, list[ConfigFinding]]:
    if meant == "learned":
        text = f"position embeddings are to be {meant}, and the model has none"
        kind = seen or "none found"
        return kind, [found("L04", "error", text, values={"position": meant})]
    if seen is not None and meant is None:
        return f"{seen}, nothing to measure", []
    if meant in ("sinusoidal", "rotary", "alibi"):
        return f"{meant}, nothing to measure", []
    return "none found", []


def _frozen_positions(
    name: str, *, waves: bool, meant: Position | None, values: Mapping[str, object]
) -> ConfigFinding:
    sure = not waves or meant == "learned"
    sines = " and holds sines" if waves else ""
    return found(
        "L04",
        "error" if sure else "warning",
        f"position embeddings are frozen: {name} has requires_grad False{sines}",
        values=values,
        instead='requires_grad True; or say position="sinusoidal" if a fixed table is meant',
    )


def _unmeant_positions(
    name: str, *, kind: str, meant: Position | None, values: Mapping[str, object]
) -> ConfigFinding:
    instead = kind if kind == "sinusoidal" else "learned"
    return found(
        "L04",
        "warning",
        f"positions are to be {meant}, and the model has a table of {kind} ones: {name}",
        values=values,
        instead=f'take the table out, or say position="{instead}"',
    )


def fill_noise(weight: Tensor, std: float = 0.02) -> None:
    """Overwrite a weight with small noise of the current generator."""
    with torch.no_grad():
        local(weight).normal_(std=std)
