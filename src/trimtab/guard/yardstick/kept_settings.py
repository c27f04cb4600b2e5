"""Settings of the run that a user's function may change, put back after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.guard.state.serialization import clone
from trimtab.guard.yardstick.kept_values import same

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.state.training_state import Training

__all__ = ["KeptSettings"]


class KeptSettings:
    """What of the run and of torch stands outside of the model's values, as it is now.

    The optimizer's settings and the scheduler, which parameters are trained, and torch's own: grad
    mode, default dtype, autocast, deterministic algorithms, matmul precision, threads.
    """

    def __init__(self, training: Training) -> None:
        """Keep all as it is. Cost: a few microseconds a parameter."""
        self._training = training
        groups = training.optimizer.param_groups
        self._groups = [(g, {k: clone(v) for k, v in g.items() if k != "params"}) for g in groups]
        self._trained = [(p, p.requires_grad) for p in training.bare_model.parameters()]
        scheduler = training.scheduler
        self._scheduler = None if scheduler is None else clone(scheduler.state_dict())
        self._globals = {name: (get(), put) for name, (get, put) in _globals().items()}

    def put_back(self) -> tuple[str, ...]:
        """Put back what has changed; return what that was."""
        changed = [name for name, (was, put) in self._globals.items() if _put(name, was, put)]
        frozen = [(p, was) for p, was in self._trained if p.requires_grad != was]
        for parameter, was in frozen:
            parameter.requires_grad_(was)
        if frozen:
            changed.append(f"requires_grad of {len(frozen)} parameters")
        scheduler = self._training.scheduler
        if scheduler is not None and not _equal(scheduler.state_dict(), self._scheduler):
            scheduler.load_state_dict(clone(self._scheduler))
            changed.append("the scheduler's step")
        # last: a scheduler that is put back may set rates
        settings: dict[str, None] = {}
        for group, kept in self._groups:
            for name, value in kept.items():
                if not _equal(group.get(name), value):
                    group[name] = value
                    settings[name] = None
        return (*changed, *(f"the optimizer's {name}" for name in settings))


Global = tuple["Callable[[], object]", "Callable[[object], object]"]


def _globals() -> dict[str, Global]:
    """Return torch's own settings by name: how to read, and how to set each."""
    found: dict[str, Global] = {
        "grad mode": (torch.is_grad_enabled, lambda x: torch.set_grad_enabled(bool(x))),
        "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),  # type: ignore[dict-item]
        "deterministic algorithms": (
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda x: torch.use_deterministic_algorithms(x[0], warn_only=x[1]),  # type: ignore[index]
        ),
        "the float32 matmul precision": (
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,  # type: ignore[dict-item]
        ),
        "the number of threads": (torch.get_num_threads, torch.set_num_threads),  # type: ignore[dict-item]
    }
    for device in ("cpu", "cuda"):
        found[f"autocast on {device}"] = (
            lambda device=device: torch.is_autocast_enabled(device),  # type: ignore[misc]
            lambda x, device=device: torch.set_autocast_enabled(device, bool(x)),  # type: ignore[misc]
        )
    return found


def _put(name: str, was: object, put: Callable[[object], object]) -> bool:
    if _globals()[name][0]() == was:
        return False
    put(was)
    return True


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return same(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b or a != a)
