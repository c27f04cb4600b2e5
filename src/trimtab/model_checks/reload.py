"""What is in effect after loading a checkpoint: optimizer settings, step count, added layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from trimtab.errors import ConfigError
from trimtab.model_checks.anatomy import dissect, local
from trimtab.model_checks.book import found, listed, ordered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from trimtab.config_rules.lint import ConfigFinding

__all__ = ["check_loaded", "check_reload", "judge_added_layers"]


def check_reload(
    optimizer: torch.optim.Optimizer,
    wanted: Mapping[str, object] | Sequence[Mapping[str, object]],
    *,
    step: int | None = None,
) -> tuple[ConfigFinding, ...]:
    """Compare the optimizer, after `load_state_dict`, with the config; an error names the field.

    `load_state_dict` takes lr, betas, eps and weight_decay from the checkpoint, so a changed config
    is silently undone. It also takes Adam's step: where that is lost, bias correction restarts
    on old moments, and updates are up to 1/√(1-β2) too small or, with the moments lost, too large.

    Args:
        optimizer: After the load.
        wanted: Field → value for all groups, or one mapping per group.
        step: Updates done before the checkpoint; None checks only that one was counted.

    Returns:
        Errors, none where all is as wanted. A field that a group does not have is an error, too.

    Raises:
        ConfigError: There are not as many mappings as groups.

    NaN in a field equals nothing, and is an error.
    """
    groups = optimizer.param_groups
    per_group = [wanted] * len(groups) if isinstance(wanted, Mapping) else list(wanted)
    if len(per_group) != len(groups):
        raise ConfigError(
            f"{len(per_group)} mappings for {len(groups)} groups; give one for all, or one each"
        )
    findings: list[ConfigFinding] = []
    for number, (group, fields) in enumerate(zip(groups, per_group, strict=True)):
        for name, value in fields.items():
            has = group.get(name)
            if not _same(has, value):
                findings.append(
                    found(
                        "L34",
                        "error",
                        f"{name} of group {number} is {has} after the load, the config says"
                        f" {value}",
                        values={"field": name, "group": number, "effective": has, "wanted": value},
                        instead=(
                            f"optimizer.param_groups[{number}][{name!r}] = {value!r} after the load"
                        ),
                    )
                )
    return ordered([*findings, *_steps(optimizer, step)])


def check_loaded(
    optimizer: torch.optim.Optimizer,
    wanted: Mapping[str, object] | Sequence[Mapping[str, object]],
    *,
    step: int | None = None,
) -> None:
    """Do what `check_reload` does, and raise where something differs.

    Raises:
        ConfigError: Names every field that differs.
    """
    wrong = check_reload(optimizer, wanted, step=step)
    if wrong:
        raise ConfigError("; ".join(f.message for f in wrong))


def _same(has: object, value: object) -> bool:
    if isinstance(value, list | tuple):
        return (
            isinstance(has, list | tuple) and len(has) == len(value) and all(map(_same, has, value))
        )
    if isinstance(has, Tensor):
        # `capturable` optimizers may keep lr as a tensor
        has = has.item()
    if isinstance(has, int | float) and isinstance(value, int | float):
        # Checkpoints hold float64 and configs print decimals: both may differ in the last bit.
        return math.isclose(has, value, rel_tol=1e-9, abs_tol=0.0)
    return bool(has == value)


def _steps(optimizer: torch.optim.Optimizer, step: int | None) -> Iterator[ConfigFinding]:
    """Yield a missing step count of the optimizer's moments, and counts that differ."""
    counts: dict[float, int] = {}
    lost = 0
    for state in optimizer.state.values():
        moment = next(
            (state[k] for k in ("exp_avg_sq", "exp_avg", "max_exp_avg_sq") if k in state), None
        )
        count = state.get("step")
        if count is not None:
            counts[float(count)] = counts.get(float(count), 0) + 1
        # A moment of zeros with count 0 is a fresh state, not a lost count.
        if isinstance(moment, Tensor) and bool(local(moment).any()) and not count:
            lost += 1
    if not optimizer.state and step:
        yield found(
            "BIAS",
            "error",
            f"the optimizer has no state after {step} steps",
            values={"wanted": step},
            instead="load the optimizer's state with the model's",
        )
    elif lost:
        yield found(
            "BIAS",
            "error",
            f"Adam's step is lost for {lost} parameters: moments are there and the count is 0",
            values={"parameters": lost, "wanted": step},
            instead="save and load state['step'] with the moments",
        )
    elif step is not None and counts and set(counts) != {float(step)}:
        told = ", ".join(f"{c:g} for {n} parameters" for c, n in sorted(counts.items()))
        yield found(
            "BIAS",
            "error",
            f"Adam's step is {told}; the run is at {step}",
            values={"steps": sorted(counts), "wanted": step},
            instead=f"state['step'] = {step}",
        )


def judge_added_layers(
    model: nn.Module, checkpoint: Mapping[str, object]
) -> Iterator[ConfigFinding]:
    """Yield layers that the model has and the checkpoint has not; an embedding norm is an error.

    It has weights of its own and changes every activation, so it is there from step 0 or never.
    """
    bare = {str(name).removeprefix("module.").removeprefix("_orig_mod.") for name in checkpoint}
    added = [p for p in dissect(model).parts if p.name not in bare]
    norms = [p.name for p in added if p.role == "embedding norm"]
    if norms:
        yield found(
            "L05",
            "error",
            f"an embedding LayerNorm is added after step 0: the checkpoint has no {listed(norms)}",
            values={"tensors": norms},
            instead="start a new run with it, or go on without it",
        )
    others = [p.name for p in added if p.name not in norms]
    if others:
        yield found(
            "UNTOUCHED",
            "warning",
            f"{len(others)} parameters are not in the checkpoint: {listed(others)}",
            values={"tensors": others},
            instead="compare the names of both",
        )
