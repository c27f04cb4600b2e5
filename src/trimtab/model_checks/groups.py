"""The optimizer: parameters by group, their weight decay, and the dtype of its states."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trimtab.model_checks.anatomy import local
from trimtab.model_checks.book import found, listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trimtab.config_rules.lint import ConfigFinding
    from trimtab.model_checks.anatomy import Anatomy

__all__ = ["decay_of", "judge_groups", "judge_precision", "judge_states", "state_types"]

_FLOATS = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
}


def decay_of(anatomy: Anatomy, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return weight decay by parameter; one that the optimizer does not hold is absent."""
    names = {id(p.parameter): p.name for p in anatomy.parts}
    return {
        names[id(weight)]: float(group.get("weight_decay", 0.0))
        for group in optimizer.param_groups
        for weight in group["params"]
        if id(weight) in names
    }


def judge_groups(anatomy: Anatomy, optimizer: torch.optim.Optimizer) -> Iterator[ConfigFinding]:
    """Tell parameters in the wrong group, in no group, in two.

    Also yield parameters of the optimizer that the model does not have.
    """
    decay = decay_of(anatomy, optimizer)
    yield from _judge_membership(anatomy, optimizer, decay)
    if not any(decay.values()):
        return  # nothing decays, so nothing decays wrongly
    spared = [p for p in anatomy.of("norm", "embedding norm", "bias") if decay.get(p.name, 0.0) > 0]
    if spared:
        yield found(
            "L12",
            "warning",
            f"weight decay acts on {len(spared)} norms and biases:"
            f" {listed(p.name for p in spared)}",
            values={"tensors": [p.name for p in spared], "weight_decay": decay[spared[0].name]},
            instead="weight_decay 0 for "
            + listed(p.name for p in spared)
            + "; OLMo 2 decays norms on purpose",
        )
    heads = {name for names in anatomy.tied for name in names}
    embeddings = [
        p for p in anatomy.of("token embedding", "position embedding") if decay.get(p.name, 0.0) > 0
    ]
    if embeddings:
        tied = [p.name for p in embeddings if p.name in heads]
        yield found(
            "L12",
            "info",
            f"weight decay acts on embeddings: {listed(p.name for p in embeddings)}"
            + (f"; {listed(tied)} is the output layer, too" if tied else ""),
            values={"tensors": [p.name for p in embeddings], "tied": tied},
            instead="weight_decay 0 for embeddings, as OLMo 2 has it",
        )
    matrices = [
        p for p in anatomy.of("matrix", "residual output", "head") if p.parameter.requires_grad
    ]
    # The most common value, since no absolute one is right for every run.
    usual = Counter(decay[p.name] for p in matrices if p.name in decay).most_common(1)
    odd = [p for p in matrices if p.name in decay and usual and decay[p.name] != usual[0][0]]
    if odd:
        yield found(
            "L12",
            "warning",
            f"{len(odd)} matrices decay by {decay[odd[0].name]:g}, the other"
            f" {len(matrices) - len(odd)} by {usual[0][0]:g}: {listed(p.name for p in odd)}",
            values={
                "tensors": [p.name for p in odd],
                "weight_decay": decay[odd[0].name],
                "usual": usual[0][0],
            },
            instead=f"the group with weight_decay {usual[0][0]:g}",
        )


def _judge_membership(
    anatomy: Anatomy, optimizer: torch.optim.Optimizer, decay: Mapping[str, float]
) -> Iterator[ConfigFinding]:
    held = Counter(id(w) for group in optimizer.param_groups for w in group["params"])
    absent = [p.name for p in anatomy.parts if p.parameter.requires_grad and p.name not in decay]
    if absent:
        yield found(
            "UNTOUCHED",
            "error",
            f"{len(absent)} trainable parameters are not in the optimizer: {listed(absent)}",
            values={"tensors": absent},
            instead="add them to a group",
        )
    twice = [p.name for p in anatomy.parts if held[id(p.parameter)] > 1]
    if twice:
        yield found(
            "L12",
            "error",
            f"{len(twice)} parameters are updated twice a step: {listed(twice)}",
            values={"tensors": twice, "tied": [list(n) for n in anatomy.tied]},
            instead="each parameter once; group tied weights by id(), not by name",
        )
    # A wrapper, a cast or sharding exchanges parameters: the old ones are updated for nothing.
    foreign = len(held) - len(decay)
    if foreign > 0:
        yield found(
            "UNTOUCHED",
            "warning",
            f"the optimizer holds {foreign} parameters that the model does not have",
            values={"count": foreign},
            instead="make the optimizer after the model is wrapped, sharded or cast",
        )


def state_types(optimizer: torch.optim.Optimizer) -> dict[str, str]:
    """Return state → type, such as `exp_avg` → `fp32`.

    Before the first step there is no state, so a trial makes some. The trial updates three numbers
    of each parameter type with an optimizer of the same class and settings. A class that cannot be
    made that way gives nothing.
    """
    types: dict[str, set[str]] = {}
    for state in optimizer.state.values():
        _note(state, types)
    if not types:
        for dtype in {w.dtype for g in optimizer.param_groups for w in g["params"]}:
            weight = torch.zeros(3, dtype=dtype, requires_grad=True)
            weight.grad = torch.ones_like(weight)
            # `defaults` may hold keys that the constructor does not take.
            taken = inspect.signature(type(optimizer)).parameters
            defaults = {k: v for k, v in optimizer.defaults.items() if k in taken}
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    make: Callable[..., torch.optim.Optimizer] = type(optimizer)
                    trial = make([weight], **defaults)
                    trial.step()
            except (TypeError, ValueError, RuntimeError):
                continue
            for state in trial.state.values():
                _note(state, types)
    return {name: "/".join(sorted(found_types)) for name, found_types in types.items()}


def _note(state: Mapping[str, object], types: dict[str, set[str]]) -> None:
    for name, value in state.items():
        # Single numbers are counts of steps, which are fp32 in any optimizer.
        if isinstance(value, Tensor) and local(value).numel() > 1:
            types.setdefault(name, set()).add(
                _FLOATS.get(str(value.dtype), str(value.dtype).removeprefix("torch."))
            )


def judge_states(types: Mapping[str, str]) -> Iterator[ConfigFinding]:
    """Warn of states that are not fp32; say nothing where they are."""
    low = {name: kind for name, kind in types.items() if set(kind.split("/")) - {"fp32", "fp64"}}
    if low:
        yield found(
            "L27",
            "warning",
            "optimizer states are not fp32: " + ", ".join(f"{n} {k}" for n, k in low.items()),
            values={"states": dict(types)},
            instead="fp32 master weights, so that the states are fp32, too",
        )


def judge_precision(
    anatomy: Anatomy, dtype: str | None, scaler: object | None
) -> Iterator[ConfigFinding]:
    """Refuse fp16 without a loss scaler, before the first step.

    Args:
        anatomy: The model; fp16 weights that are to be trained count as training in fp16.
        dtype: Type of autocast, `fp16`, `bf16`, `fp32`; None where there is none.
        scaler: The loss scaler; a `GradScaler` that is switched off counts as none.
    """
    weights = any(
        p.parameter.dtype == torch.float16 and p.parameter.requires_grad for p in anatomy.parts
    )
    is_on = scaler is not None and getattr(scaler, "is_enabled", lambda: True)()
    if (dtype == "fp16" or weights) and not is_on:
        yield found(
            "L25",
            "error",
            "fp16 without a loss scaler: gradients below 6e-8 are 0",
            values={"dtype": dtype, "fp16_weights": weights, "scaler": scaler is not None},
            instead="torch.amp.GradScaler, or bf16",
        )
    if weights and is_on and isinstance(scaler, torch.amp.GradScaler):
        yield found(
            "L27",
            "error",
            "weights themselves are fp16, and torch's GradScaler refuses to unscale their"
            " gradients",
            values={"dtype": "fp16"},
            instead="fp32 weights under torch.autocast",
        )
