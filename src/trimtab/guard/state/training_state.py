"""Everything that decides the future of a run, as one value: captured, restored, kept in a ring.

A snapshot holds model, optimizer, scheduler and scaler states, the random states of Python, NumPy
and torch, the data position, the judge's state and the step counters. What the guard decided (LR
factor, skipped ids, how often it acted) is not part of it: a rollback must not undo decisions.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from trimtab.errors import ActError
from trimtab.guard.state.serialization import clone
from trimtab.guard.state.spill import Spilled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Scaler",
    "Scheduler",
    "Snapshot",
    "SnapshotRing",
    "StateDict",
    "Stateful",
    "Training",
    "capture_rng",
    "is_out_of_memory",
    "restore_rng",
]

StateDict = dict[str, Any]
"""Nested plain data and tensors, as torch's own `state_dict` gives them."""


_PLAIN = (bool, int, float, str, tuple, list, type(None))
"""Types of an optimizer's settings that can be compared."""


_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")
"""What torch says of it."""


class Stateful(Protocol):
    """An object whose state is a mapping of plain data and tensors."""

    def state_dict(self) -> StateDict:
        """Return the state."""

    def load_state_dict(self, state_dict: StateDict, /) -> object:
        """Put a state back."""


class Scheduler(Stateful, Protocol):
    """What a guard needs of a learning-rate scheduler."""

    def step(self) -> object:
        """Move the rates on by one step."""


class Scaler(Stateful, Protocol):
    """What a guard needs of a loss scaler, as `torch.amp.GradScaler` gives it."""

    def is_enabled(self) -> bool:
        """Whether losses are scaled at all."""

    def scale(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the loss, scaled."""

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale."""

    def step(self, optimizer: torch.optim.Optimizer) -> object:
        """Update, unless a gradient is not finite."""

    def update(self) -> None:
        """Move the scale on by one step."""

    def get_scale(self) -> float:
        """Return the scale."""


@dataclass
class Training:
    """The user's objects that hold state, by role; None where there is none."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Scheduler | None = None
    scaler: Scaler | None = None
    extra: dict[str, Stateful] = field(default_factory=dict)
    """Further objects, by name; kept apart from the roles of torch."""
    loaded: list[str] = field(default_factory=list, init=False)
    """What the last `load` has put back, in its order."""
    settings: list[StateDict] = field(init=False)
    """The optimizer's settings as launched, by group; a schedule may move them later."""

    def __post_init__(self) -> None:
        """Note the settings as launched."""
        self.settings = [_settings_of(g) for g in self.optimizer.param_groups]
        self._sizes = self._group_sizes()
        self._before_state: list[Callable[[], object]] = []

    def before_state(self, callback: Callable[[], object]) -> None:
        """Call `callback` each time before live states are read."""
        self._before_state.append(callback)

    def adopt_settings(self, saved: list[StateDict]) -> None:
        """Take the settings as launched from a checkpoint that another trainer has loaded."""
        self.settings = saved

    def note_new_groups(self) -> bool:
        """Note the settings of groups that were added since; return whether parameters were."""
        sizes = self._group_sizes()
        if sizes == self._sizes:
            return False
        self._sizes = sizes
        added = self.optimizer.param_groups[len(self.settings) :]
        self.settings = [*self.settings, *map(_settings_of, added)]
        return True

    def _group_sizes(self) -> list[int]:
        return [len(g["params"]) for g in self.optimizer.param_groups]

    @property
    def bare_model(self) -> torch.nn.Module:
        """The model without wrappers such as DDP and torch.compile.

        Its names are the same on any number of ranks, compiled or not.
        """
        model = self.model
        while True:
            inner = getattr(model, "_orig_mod", None)
            if isinstance(model, DistributedDataParallel):
                inner = model.module
            if not isinstance(inner, torch.nn.Module):
                return model
            model = inner

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The optimizer's parameters, in the order in which its state numbers them."""
        return [p for g in self.optimizer.param_groups for p in g["params"]]

    def state(self) -> StateDict:
        """Return live states, by role; tensors are not copied."""
        for callback in self._before_state:
            callback()
        state: StateDict = {
            "model": self.bare_model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        if self.scaler is not None:
            state["scaler"] = self.scaler.state_dict()
        if self.extra:
            state["extra"] = {name: x.state_dict() for name, x in self.extra.items()}
        return state

    def load(self, state: StateDict) -> None:
        """Put saved states back.

        Raises:
            ActError: A role is missing in `state`, or here, or the optimizer holds other settings
                after the load than were loaded.
        """
        self.loaded = []
        for role, target in (
            ("model", self.bare_model),
            ("optimizer", self.optimizer),
            ("scheduler", self.scheduler),
            ("scaler", self.scaler),
        ):
            if target is None and role in state:
                raise ActError(
                    f"the saved state has a {role}, this run has none; hand it over again"
                )
            if target is None:
                continue
            if role not in state:
                raise ActError(f"the saved state has no {role}; it is from a run without one")
            if role == "optimizer":
                _release(self.optimizer)
            # A copy: some optimizers keep the tensors they are given, and a snapshot is used again.
            lent = _LENT if _copies_what_it_loads(target) else None
            target.load_state_dict(clone(state[role], lent))
            self.loaded.append(role)
            if role == "optimizer":
                self._check_loaded(state[role].get("param_groups", ()))
        for name, extra in self.extra.items():
            if name not in state.get("extra", {}):
                raise ActError(
                    f"the saved state has no {name!r}; it is from a run without that extra state"
                )
            extra.load_state_dict(clone(state["extra"][name]))
            self.loaded.append(name)

    def misfit(self, state: StateDict) -> str:
        """Return why a state of this process' own cannot be put back; empty where it can.

        A user may have changed the optimizer's groups or the model's tensors since it was taken.
        """
        groups = state["optimizer"].get("param_groups", ())
        sizes = [len(g["params"]) for g in groups if "params" in g]  # not every state has them
        if sizes and sizes != self._group_sizes():
            return (
                f"the optimizer had {sizes} parameters by group then and has"
                f" {self._group_sizes()} now"
            )
        then, now = _shapes(state["model"]), _shapes(self.bare_model.state_dict())
        odd = next((k for k in {**then, **now} if then.get(k) != now.get(k)), None)
        if odd is not None:
            return (
                f"the model's {odd} was {then.get(odd, 'not there')} then and is"
                f" {now.get(odd, 'not there')} now"
            )
        return ""

    def _check_loaded(self, saved: Sequence[Mapping[str, object]]) -> None:
        """Compare what is in force after a load with what was loaded, field by field."""
        for i, (old, new) in enumerate(zip(saved, self.optimizer.param_groups, strict=False)):
            for key, value in old.items():
                if key != "params" and isinstance(value, _PLAIN) and new.get(key) != value:
                    raise ActError(
                        f"optimizer group {i}: {key} is {new.get(key)!r} after the load, {value!r}"
                        f" was loaded; {type(self.optimizer).__name__}.load_state_dict sets it by"
                        " itself"
                    )

    def order_of_parameters(self) -> list[str]:
        """Return a digest of the names of each group's parameters, in their order.

        The optimizer's state is saved by number: in another order it would be another parameter's.
        """
        names = {id(p): name for name, p in self.bare_model.named_parameters()}
        groups = [[names.get(id(p), "") for p in g["params"]] for g in self.optimizer.param_groups]
        return [
            hashlib.blake2b("\n".join(group).encode(), digest_size=8).hexdigest()
            if all(group)  # empty: of those that are no part of the model nothing is known
            else ""
            for group in groups
        ]

    def check_order(self, saved: object) -> None:
        """Refuse a state of parameters in another order; one that does not say it is taken.

        Raises:
            ActError: The names of a group's parameters, or their order, are others.
        """
        now = self.order_of_parameters()
        pairs = enumerate(zip(saved, now, strict=False)) if isinstance(saved, list) else ()
        odd = next((i for i, (a, b) in pairs if a and b and a != b), None)
        if odd is not None:
            raise ActError(
                f"optimizer group {odd} holds other parameters than in the run, or in another"
                " order: each would get the moments of another one; give them as the run did, or"
                " start a new run directory"
            )

    def check_settings(self, saved: list[StateDict]) -> None:
        """Refuse to resume under other settings: loading a state would silently undo them.

        Raises:
            ActError: A setting of the optimizer as launched is not the saved one.
        """
        if len(saved) != len(self.settings):
            raise ActError(
                f"the run has {len(saved)} optimizer groups, this launch has {len(self.settings)}; "
                "use the run's, or start a new run directory"
            )
        for i, (old, new) in enumerate(zip(saved, self.settings, strict=True)):
            if set(old) != set(new):
                odd = ", ".join(sorted(set(old) ^ set(new)))
                raise ActError(
                    f"optimizer group {i} has other settings than the run's ({odd}): another kind "
                    "of optimizer; use the run's, or start a new run directory"
                )
            for key in sorted(old):
                if old[key] != new[key]:
                    name = (
                        "lr" if key == "initial_lr" else key
                    )  # a scheduler keeps the launch's there
                    raise ActError(
                        f"optimizer group {i} was launched with {name}={old[key]!r}, now with "
                        f"{new[key]!r}, which resuming would undo; set it back (then scale_lr or "
                        "override_lr can change the rate), or start a new run directory"
                    )


def _release(optimizer: torch.optim.Optimizer) -> None:
    """Let go of an optimizer's state on an accelerator before another one is loaded.

    torch makes new tensors for it: with the old ones beside them a device that is nearly full has
    no room. Only where torch's own loading follows, which needs nothing of the old state.
    """
    for one in getattr(optimizer, "members", (optimizer,)):
        away = any(p.device.type != "cpu" for g in one.param_groups for p in g["params"])
        if away and type(one).load_state_dict is torch.optim.Optimizer.load_state_dict:
            one.state.clear()


class _Lent:
    """Large tensors as they are, for one who copies them to a device anyway."""

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        return tensor if tensor.nbytes >= _LEAST_LENT else None


_LENT = _Lent()
_LEAST_LENT = 1 << 16
"""Bytes; counts of steps and the like stay on the host, where they would be kept."""


def _copies_what_it_loads(target: object) -> bool:
    """Whether torch's own loading moves large tensors to a device, and keeps none it was given.

    To copy a state of 14 GB on the host first would take seconds, and as much memory again.
    """
    if isinstance(target, torch.nn.Module):
        own = type(target).load_state_dict is torch.nn.Module.load_state_dict
        return own and all(p.device.type != "cpu" for p in target.parameters())
    members = getattr(target, "members", (target,))
    return all(
        isinstance(one, torch.optim.Optimizer)
        and type(one).load_state_dict is torch.optim.Optimizer.load_state_dict
        and all(p.device.type != "cpu" for g in one.param_groups for p in g["params"])
        for one in members
    )


def _shapes(state: Mapping[str, object]) -> dict[str, tuple[int, ...]]:
    return {k: tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor)}


def _settings_of(group: Mapping[str, object]) -> StateDict:
    return {k: clone(v) for k, v in group.items() if k != "params" and isinstance(v, _PLAIN)}


def capture_rng() -> StateDict:
    """Return the random states of Python, NumPy, torch and, where initialised, CUDA."""
    state: StateDict = {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002
        "torch": torch.get_rng_state(),
    }
    # Asking for CUDA's state would start CUDA in a process that does not use it.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: StateDict) -> None:
    """Put random states back."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(tuple(state["numpy"]))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def is_out_of_memory(error: BaseException) -> bool:
    """Whether something failed because memory, of the host or of a device, is used up."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    # torch's allocator for the host raises a plain RuntimeError
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


@dataclass(frozen=True)
class Snapshot:
    """The state after the update of `step`."""

    step: int
    attempt: str
    sample_id: int
    """Sample id that comes next."""
    payload: StateDict
    """Copies: training, rng, data, judge, counters. Where `training` was written to a disk it is a
    `Spilled`; read it through `training` or `outline`."""

    @property
    def in_memory(self) -> bool:
        """Whether the large tensors are in memory."""
        return not isinstance(self.payload["training"], Spilled)

    @property
    def training(self) -> StateDict:
        """The training state, read back where it is on a disk.

        Raises:
            ActError: It cannot be read.
        """
        held: StateDict | Spilled = self.payload["training"]
        return held.read() if isinstance(held, Spilled) else held

    @property
    def outline(self) -> StateDict:
        """The training state; large tensors that are on a disk have their shape only."""
        held: StateDict | Spilled = self.payload["training"]
        return held.outline() if isinstance(held, Spilled) else held


class SnapshotRing:
    """Snapshots in memory: the newest ones at every interval, older ones thinned out."""

    def __init__(self, keep: int) -> None:
        """Keep at most `keep` snapshots."""
        self._keep = keep
        self._items: list[Snapshot] = []

    @property
    def items(self) -> Sequence[Snapshot]:
        """Snapshots, oldest first."""
        return tuple(self._items)

    def add(self, snapshot: Snapshot) -> None:
        """Add the newest one; where there are too many, thin the older half, keeping the oldest."""
        self._items.append(snapshot)
        if len(self._items) > self._keep:
            self.thin()

    def thin(self) -> None:
        """Forget the one of the older half that is nearest to its neighbours, but the oldest.

        Of less than four it is the oldest.
        """
        older = self._items[: (len(self._items) - 1) // 2]
        gaps = [older[i + 1].step - older[i - 1].step for i in range(1, len(older) - 1)]
        victim = 1 + gaps.index(min(gaps)) if gaps else 0
        del self._items[victim]

    def make_room(self) -> int:
        """Forget the older half, and keep no more than one beside the rest from now on.

        Returns:
            How many snapshots are kept from now on.
        """
        self._items = self._items[(len(self._items) + 1) // 2 :]
        self._keep = len(self._items) + 1
        return self._keep

    def before(self, step: int) -> Snapshot | None:
        """Return the newest snapshot taken at or before `step`; None if there is none."""
        good = [s for s in self._items if s.step <= step]
        return good[-1] if good else None

    def drop_after(self, step: int) -> None:
        """Forget the snapshots taken after `step`: they hold what is rolled back."""
        self._items = [s for s in self._items if s.step <= step]
