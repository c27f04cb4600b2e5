"""Several optimizers, or schedulers, as one: stepped, saved, put back and skipped together.

Muon for the matrices beside AdamW for the rest is one step of one run. Here their groups stand in
one list, in the order in which the optimizers were given, and their states are numbered as one
optimizer would number them, so that whatever reads groups and states needs to know nothing of it.
The optimizers stay the user's: each does its own step, with its own hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import torch

from trimtab.errors import ActError, ConfigError

if TYPE_CHECKING:
    from collections import defaultdict
    from collections.abc import Iterator

    from trimtab.guard.state.training_state import Scheduler, StateDict

__all__ = [
    "OptimizerSet",
    "SchedulerSet",
    "device_of",
    "has_moments",
    "has_second_moment",
    "one_optimizer",
    "one_scheduler",
    "optimizers_in",
]


def device_of(optimizer: torch.optim.Optimizer) -> torch.device | None:
    """Return where the first parameter lies; None without any."""
    return next((p.device for g in optimizer.param_groups for p in g["params"]), None)


_WITHOUT_SQUARES = ("lion", "signum", "tiger")
"""Optimizers, by a word of their name, whose second beta is of no mean of squares."""


def has_second_moment(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer, or one of several, keeps means of squares with a beta2, as Adam does."""
    return any(
        "betas" in group
        for one in optimizers_in(optimizer)
        if not any(word in type(one).__name__.lower() for word in _WITHOUT_SQUARES)
        for group in one.param_groups
    )


def has_moments(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer keeps moments: only SGD and its like without momentum are known not to."""
    return any(
        group.get("momentum", 1) != 0 or "betas" in group for group in optimizer.param_groups
    )


class OptimizerSet(torch.optim.Optimizer):
    """Several optimizers behind the face of one.

    It keeps nothing of its own: groups and states are read from its members each time.
    """

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        """Take them together; none is changed.

        Raises:
            ConfigError: A parameter belongs to two of them.
        """
        # `Optimizer.__init__` would make groups and states of its own
        self.members = tuple(members)
        self.defaults: dict[str, Any] = {}
        owner: dict[int, int] = {}
        for number, member in enumerate(members):
            for p in chain.from_iterable(g["params"] for g in member.param_groups):
                first = owner.setdefault(id(p), number)
                if first != number:
                    raise ConfigError(
                        f"optimizer: a parameter {list(p.shape)} is in optimizer {first}"
                        f" ({type(members[first]).__name__}) and in optimizer {number}"
                        f" ({type(member).__name__}); it would be updated twice a step: give it to"
                        " one of them"
                    )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all members, in their order; the dicts are the members' own."""
        return [g for member in self.members for g in member.param_groups]

    @param_groups.setter
    def param_groups(self, _groups: object) -> None:
        raise AttributeError("the groups are the members' own; change those of a member")

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:
        """What the members keep, by parameter."""
        # a view: a dict of its own would be filled anew each time it is asked for one parameter
        return cast("defaultdict[torch.Tensor, Any]", _States(self.members))

    @state.setter
    def state(self, _states: object) -> None:
        raise AttributeError("the states are the members' own; change that of a member")

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Do the step of each member.

        Raises:
            ConfigError: A closure was given.
        """
        if closure is not None:
            raise ConfigError("step(closure) of several optimizers: call it without a closure")
        for member in self.members:
            member.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        """Drop or zero the gradients of all members."""
        for member in self.members:
            member.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> StateDict:
        """Return states and groups, numbered through as those of one optimizer are."""
        states: StateDict = {}
        groups: list[StateDict] = []
        first = 0
        for member in self.members:
            own = member.state_dict()
            states |= {first + n: held for n, held in own["state"].items()}
            groups += [_moved(g, first) for g in own["param_groups"]]
            first += sum(len(g["params"]) for g in own["param_groups"])
        return {"state": states, "param_groups": groups}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Put back what `state_dict` gave.

        Raises:
            ActError: It has another number of groups or parameters; nothing was changed.
        """
        groups = list(state_dict["param_groups"])
        sizes = [len(g["params"]) for g in groups]
        here = [len(g["params"]) for g in self.param_groups]
        if sizes != here:
            raise ActError(
                f"the saved optimizers have {sizes} parameters by group, these have {here}; hand"
                " over the same ones in the same order"
            )
        first = start = 0
        for member in self.members:
            end = start + len(member.param_groups)
            size = sum(sizes[start:end])
            own = {
                n - first: held
                for n, held in state_dict["state"].items()
                if first <= n < first + size
            }
            member.load_state_dict(
                {"state": own, "param_groups": [_moved(g, -first) for g in groups[start:end]]}
            )
            first, start = first + size, end

    def __repr__(self) -> str:
        """Name the members."""
        return " + ".join(type(m).__name__ for m in self.members)


class _States(Mapping[torch.Tensor, Any]):
    """The states of several optimizers by parameter; a parameter without one is absent."""

    def __init__(self, members: Sequence[torch.optim.Optimizer]) -> None:
        self._members = members

    def __getitem__(self, key: torch.Tensor) -> Any:
        for member in self._members:
            if key in member.state:
                return member.state[key]
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(key in member.state for member in self._members)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return chain.from_iterable(member.state for member in self._members)

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)


def _moved(group: StateDict, by: int) -> StateDict:
    return {**group, "params": [n + by for n in group["params"]]}


class SchedulerSet:
    """Several learning-rate schedulers behind the face of one."""

    def __init__(self, members: Sequence[Scheduler]) -> None:
        """Take them together, in the order in which they are stepped."""
        self.members = tuple(members)

    def step(self) -> None:
        """Do the step of each."""
        for member in self.members:
            member.step()

    def state_dict(self) -> StateDict:
        """Return the states, in order."""
        return {"schedulers": [member.state_dict() for member in self.members]}

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Put back what `state_dict` gave.

        Raises:
            ActError: It is that of another number of schedulers.
        """
        saved = state_dict.get("schedulers")
        if not isinstance(saved, list) or len(saved) != len(self.members):
            was = len(saved) if isinstance(saved, list) else 1
            raise ActError(
                f"the run was saved with {was} scheduler{'s' if was > 1 else ''}, this launch has"
                f" {len(self.members)}; hand over the same ones in the same order"
            )
        for member, state in zip(self.members, saved, strict=True):
            member.load_state_dict(state)


def one_optimizer(given: Any) -> torch.optim.Optimizer:
    """Return one optimizer for what was given: itself, or a list of several taken together.

    Raises:
        ConfigError: The list is empty, or a parameter belongs to two of them.
    """
    members = _listed(given, "optimizer")
    first: torch.optim.Optimizer = members[0]
    return first if len(members) == 1 else OptimizerSet(members)


def one_scheduler(given: Any) -> Scheduler | None:
    """Return one scheduler for what was given, as `one_optimizer` does; None for none."""
    if given is None:
        return None
    members = _listed(given, "scheduler")
    first: Scheduler = members[0]
    return first if len(members) == 1 else SchedulerSet(members)


def _listed(given: Any, what: str) -> list[Any]:
    members = list(given) if isinstance(given, list | tuple) else [given]
    if not members:
        raise ConfigError(f"{what} is empty; give one, or a list of them")
    return members


def optimizers_in(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """Return the optimizers that do the steps: the members of a set, or the one itself."""
    return optimizer.members if isinstance(optimizer, OptimizerSet) else (optimizer,)
