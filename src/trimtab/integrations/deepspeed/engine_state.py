"""What a DeepSpeed engine holds, as the guard reads, saves and restores it, in all ZeRO stages.

Under ZeRO each rank holds flat partitions of equal length. They are shown to the guard as tensors
sharded over one dimension: so norms are global, each rank saves its own part, and a checkpoint
holds tensors only. What is restored is copied in place, because the engine holds views of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deepspeed import DeepSpeedEngine

    from trimtab.guard.port import Ranks

__all__ = ["EngineCounters", "EngineOptimizer", "EngineSchedule", "LossScale"]

T = TypeVar("T")

_COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


class _Group(MutableMapping[str, object]):
    """A group of the engine's optimizer, with all of its settings, and parameters of our own."""

    def __init__(self, real: dict[str, object], params: list[torch.Tensor]) -> None:
        self._real = real
        self._params = params

    def __getitem__(self, key: str) -> object:
        return self._params if key == "params" else self._real[key]

    def __setitem__(self, key: str, value: object) -> None:
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

    def __init__(self, engine: DeepSpeedEngine, ranks: Ranks, *, sharded: bool) -> None:
        """Take an engine that is set up; nothing of it is copied or changed."""
        # torch's own __init__ is left out: groups and state are the engine's.
        self._engine = engine
        self._real: torch.optim.Optimizer = engine.basic_optimizer
        self._mesh = _mesh(engine.device, ranks) if sharded and ranks.count > 1 else None
        self.has_masters = engine.optimizer is not self._real
        """Whether what is updated are not the module's own parameters."""
        # Only stage 3 partitions the 16-bit weights as well.
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
    def state(self) -> dict[torch.Tensor, dict[str, object]]:  # type: ignore[override]
        """What the optimizer holds of each parameter; tensors as they are in use."""
        shown = [p for g in self.param_groups for p in g["params"]]
        return {
            s: {k: self._show(v, p) for k, v in self._real.state[p].items()}
            for s, p in zip(shown, self._masters, strict=True)
            if p in self._real.state
        }

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do nothing: the engine has done it."""

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: ARG002, FBT001, FBT002
        """Release the weights that a forward pass has gathered (stage 3)."""
        if hasattr(self._engine.optimizer, "empty_partition_cache"):
            self._engine.optimizer.empty_partition_cache()

    def state_dict(self) -> dict[str, object]:
        """Return master weights, moments and settings; this rank's part of each."""
        state: dict[int, dict[str, object]] = {}
        for i, (p, weights) in enumerate(zip(self._masters, self._weights, strict=True)):
            state[i] = {k: self._show(v, p) for k, v in self._real.state.get(p, {}).items()}
            if self.has_masters:
                state[i]["master"] = self._show(p.detach(), p)
            if weights is not None:
                state[i]["weights"] = self._show(weights.detach(), p)
        groups = [{k: v for k, v in g.items() if k != "params"} for g in self.param_groups]
        return {"state": state, "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Copy a state into place.

        Raises:
            ValueError: It is of other partitions than this run's.
        """
        state = cast("dict[int, dict[str, object]]", state_dict["state"])
        groups = cast("list[dict[str, object]]", state_dict["param_groups"])
        if len(state) != len(self._masters):
            raise ValueError(
                f"{len(state)} partitions were saved, this run has {len(self._masters)}"
            )
        for i, (p, weights) in enumerate(zip(self._masters, self._weights, strict=True)):
            held = {k: _local(v) for k, v in state[i].items()}
            for name, target in (("master", p), ("weights", weights)):
                if name in held:
                    value = held.pop(name)
                    assert isinstance(value, torch.Tensor)
                    if target is None or value.shape != target.shape:
                        raise ValueError(f"partition {i}: {name} has another size here")
                    # In place, here and below: the engine holds views of this memory.
                    target.copy_(value)
            if held:
                self._put_back(self._real.state[p], held, p)
            else:
                self._real.state.pop(p, None)
        for saved, group in zip(groups, self.param_groups, strict=True):
            for key, value in saved.items():
                group[key] = value

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Let the engine go through its step without an update."""
        attributes = vars(self._real)
        own = attributes.get("step")  # of the instance, where torch's scheduler counts the calls
        attributes["step"] = lambda *_args, **_more: None
        try:
            yield
        finally:
            del attributes["step"]
            if own is not None:
                attributes["step"] = own

    def _put_back(
        self, live: dict[str, object], held: Mapping[str, object], p: torch.Tensor
    ) -> None:
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

    def _show(self, value: T, like: torch.Tensor) -> T | torch.Tensor:
        """Return a partition as a part of the whole; anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.shape != like.shape or self._mesh is None:
            return value
        # The check is a collective for each tensor, and partitions are equal by construction.
        return DTensor.from_local(value.detach(), self._mesh, [Shard(0)], run_check=False)


def _local(value: object) -> object:
    return value.to_local() if isinstance(value, DTensor) else value


def _mesh(device: torch.device, ranks: Ranks) -> DeviceMesh:
    if device.type == "cpu":
        assert ranks.group is not None
        return DeviceMesh.from_group(ranks.group, "cpu")
    return init_device_mesh(device.type, (ranks.count,))


class _Stepped(Protocol):
    def step(self) -> object: ...


class EngineSchedule:
    """The engine's scheduler, as the guard steps it: not where the engine left an update out."""

    def __init__(self, engine: DeepSpeedEngine, scheduler: _Stepped) -> None:
        """Wrap a scheduler."""
        self.scheduler = scheduler
        self._engine = engine

    def __getattr__(self, name: str) -> object:
        """Return what the wrapped scheduler has."""
        found: object = getattr(self.__dict__["scheduler"], name)
        return found

    def step(self) -> None:
        """Step, as the engine would."""
        if self._engine.was_step_applied():
            self.scheduler.step()


class LossScale:
    """The engine's loss scale in fp16, with the methods of torch's `GradScaler`.

    The engine scales, unscales and adapts it.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        """Find the scaler of an engine."""
        self._held = _scaler_of(engine.optimizer)

    def is_enabled(self) -> bool:
        """Whether losses are scaled."""
        return True

    def get_scale(self) -> float:
        """Return the scale of the next step."""
        return float(self._held.cur_scale)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing: the engine does it."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Do nothing: the engine has done it."""

    def update(self) -> None:
        """Do nothing: the engine has done it."""

    def state_dict(self) -> dict[str, float]:
        """Return the scale and what its growth is counted by."""
        return {"scale": self.get_scale(), "_growth_tracker": 0} | _plain(self._held)

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Put a scale in force."""
        for name in _plain(self._held):
            setattr(self._held, name, state_dict[name])
        self._held.cur_scale = state_dict["scale"]


class EngineCounters:
    """An engine's counters of steps and samples."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        """Keep an engine; nothing is read yet."""
        self._engine = engine

    def state_dict(self) -> dict[str, int]:
        """Return them as plain data."""
        return {name: int(getattr(self._engine, name)) for name in _COUNTERS}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Set them."""
        for name in _COUNTERS:
            setattr(self._engine, name, state_dict[name])


class _Scaled(Protocol):
    cur_scale: float


def _scaler_of(optimizer: object) -> _Scaled:
    """Return what holds the loss scale: the name differs between DeepSpeed's optimizers."""
    for name in ("loss_scaler", "loss_scale_config"):
        found: _Scaled | None = getattr(optimizer, name, None)
        if found:
            return found
    raise AttributeError(f"{type(optimizer).__name__} has no loss scale")


def _plain(held: object) -> dict[str, float]:
    return {k: v for k, v in vars(held).items() if isinstance(v, bool | int | float)}
