"""What a DeepSpeed engine holds, as the guard reads it, saves it and puts it back.

Alike for all ZeRO stages.

Under ZeRO each rank holds flat partitions of equal length. They are shown to the guard as tensors
sharded over one dimension: so norms are global, each rank saves its own part, and a checkpoint
holds tensors only. Whatever is put back is copied in place, because the engine holds views of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["EngineOptimizer", "EngineSchedule", "LossScale", "Place"]

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


class _Group(MutableMapping[str, Any]):
    """A group of the engine's optimizer, with all of its settings, and parameters of our own."""

    def __init__(self, real: dict[str, Any], params: list[torch.Tensor]) -> None:
        self._real = real
        self._params = params

    def __getitem__(self, key: str) -> Any:
        return self._params if key == "params" else self._real[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._real[key] = value

    def __delitem__(self, key: str) -> None:
        del self._real[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._real)

    def __len__(self) -> int:
        return len(self._real)


class EngineOptimizer(torch.optim.Optimizer):
    """The optimizer behind a DeepSpeed engine, seen whole: master weights, moments, settings.

    The engine's `step` does the update: `step` and `zero_grad` here do nothing.
    """

    def __init__(self, engine: Any, ranks: Ranks, *, sharded: bool) -> None:
        """Look at an engine that is set up; nothing of it is copied or changed."""
        self._engine = engine
        self._real = engine.basic_optimizer
        self._mesh = _mesh(engine.device, ranks) if sharded and ranks.count > 1 else None
        self.has_masters = engine.optimizer is not self._real
        """Whether what is updated are not the module's own parameters."""
        parts = getattr(engine.optimizer, "fp32_partitioned_groups_flat", None)  # stage 3
        groups = self._real.param_groups
        if parts is None:
            held = [list(g["params"]) for g in groups]
            self._weights: list[torch.Tensor | None] = [None] * sum(map(len, held))
        else:
            held = [[] for _ in groups]
            for i, part in enumerate(parts):
                held[engine.optimizer.sub_group_to_group_id[i]].append(part)
            self._weights = list(engine.optimizer.fp16_partitioned_groups_flat)
        self._masters = [p for params in held for p in params]
        shown = iter([self._show(p, p) for p in self._masters])
        self.defaults = self._real.defaults
        self.param_groups = [
            _Group(real, [next(shown) for _ in params])  # type: ignore[misc]
            for real, params in zip(groups, held, strict=True)
        ]

    @property
    def state(self) -> Any:  # type: ignore[override]
        """What the optimizer holds of each parameter; tensors as they are in use."""
        shown = [p for g in self.param_groups for p in g["params"]]
        return {
            s: {k: self._show(v, p) for k, v in self._real.state[p].items()}
            for s, p in zip(shown, self._masters, strict=True)
            if p in self._real.state
        }

    def step(self, closure: Any = None) -> Any:
        """Do nothing: the engine has done it."""

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002 - torch's signature
        """Let go of gathered weights (stage 3).

        A state is taken and put back with none gathered.
        """
        if hasattr(self._engine.optimizer, "empty_partition_cache"):
            self._engine.optimizer.empty_partition_cache()

    def state_dict(self) -> dict[str, Any]:
        """Return master weights, moments and settings; this rank's part of each."""
        state: dict[int, dict[str, Any]] = {}
        for i, (p, weights) in enumerate(zip(self._masters, self._weights, strict=True)):
            state[i] = {k: self._show(v, p) for k, v in self._real.state.get(p, {}).items()}
            if self.has_masters:
                state[i]["master"] = self._show(p.detach(), p)
            if weights is not None:
                state[i]["weights"] = self._show(weights.detach(), p)
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"state": state, "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Copy a state into place.

        Raises:
            ValueError: It is of other partitions than this run's.
        """
        if len(state_dict["state"]) != len(self._masters):
            raise ValueError(
                f"{len(state_dict['state'])} partitions were saved, this run has"
                f" {len(self._masters)}"
            )
        for i, (p, weights) in enumerate(zip(self._masters, self._weights, strict=True)):
            held = {k: _local(v) for k, v in state_dict["state"][i].items()}
            for name, target in (("master", p), ("weights", weights)):
                if name in held:
                    value = held.pop(name)
                    if target is None or value.shape != target.shape:
                        raise ValueError(f"partition {i}: {name} has another size here")
                    target.copy_(value)
            if held:
                self._put_back(self._real.state[p], held, p)
            else:
                self._real.state.pop(p, None)
        for saved, group in zip(state_dict["param_groups"], self.param_groups, strict=True):
            for key, value in saved.items():
                group[key] = value

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the engine go through its step without an update."""
        own = vars(self._real).get("step")
        self._real.step = lambda *_args, **_more: None
        try:
            yield
        finally:
            del self._real.step
            if own is not None:  # a scheduler of torch's counts the calls
                self._real.step = own

    def _put_back(self, live: dict[str, Any], held: dict[str, Any], p: torch.Tensor) -> None:
        for name in [n for n in live if n not in held]:
            del live[name]
        for name, value in held.items():
            target = live.get(name)
            if isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor):
                target.copy_(value)
            elif isinstance(value, torch.Tensor):
                live[name] = value.to(p.device if value.dim() else value.device, copy=True)
            else:
                live[name] = value

    def _show(self, value: Any, like: torch.Tensor) -> Any:
        """Return a partition as a part of the whole; anything else as it is."""
        whole = not isinstance(value, torch.Tensor) or value.shape != like.shape
        if whole or self._mesh is None:
            return value
        return DTensor.from_local(value.detach(), self._mesh, [Shard(0)], run_check=False)


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _mesh(device: torch.device, ranks: Ranks) -> DeviceMesh:
    if device.type == "cpu":
        assert ranks.group is not None
        return DeviceMesh.from_group(ranks.group, "cpu")
    return init_device_mesh(device.type, (ranks.count,))


class EngineSchedule:
    """The engine's scheduler, as the guard steps it: not where the engine left an update out."""

    def __init__(self, engine: Any, scheduler: Any) -> None:
        """Wrap a scheduler."""
        self.scheduler = scheduler
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        """Return what the wrapped scheduler has."""
        return getattr(self.__dict__["scheduler"], name)

    def step(self) -> None:
        """Step, as the engine would."""
        if self._engine.was_step_applied():
            self.scheduler.step()


class LossScale:
    """The engine's loss scale in fp16, in the words of torch's `GradScaler`.

    The engine keeps it up.
    """

    def __init__(self, engine: Any) -> None:
        """Look at an engine."""
        self._held = _scaler_of(engine.optimizer)

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return True

    def get_scale(self) -> float:
        """Return the scale of the next step."""
        return float(self._held.cur_scale)

    def unscale_(self, optimizer: Any) -> None:
        """Do nothing: the engine does it."""

    def step(self, optimizer: Any) -> None:
        """Do nothing: the engine has done it."""

    def update(self) -> None:
        """Do nothing: the engine has done it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and what its growth is counted by."""
        return {"scale": self.get_scale(), "_growth_tracker": 0} | _plain(self._held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put a scale in force."""
        for name in _plain(self._held):
            setattr(self._held, name, state_dict[name])
        self._held.cur_scale = state_dict["scale"]


class Place:
    """Where an engine is: its counters."""

    def __init__(self, engine: Any) -> None:
        """Look at an engine; nothing is read yet."""
        self._engine = engine

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: int(getattr(self._engine, name)) for name in _COUNTERS}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put it back."""
        for name in _COUNTERS:
            setattr(self._engine, name, state_dict[name])


def _scaler_of(optimizer: Any) -> Any:
    return getattr(optimizer, "loss_scaler", None) or optimizer.loss_scale_config


def _plain(held: Any) -> dict[str, Any]:
    return {k: v for k, v in vars(held).items() if isinstance(v, bool | int | float)}
