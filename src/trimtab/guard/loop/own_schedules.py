"""What the user's loop steps by itself, put back where it runs a batch of the guard's own.

A loop that calls `scheduler.step()`, sets the rate, or averages the weights does so with each batch
it is given: also with those of a reading or a probe, which are no steps of the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from trimtab.guard.state.serialization import clone
from trimtab.guard.yardstick.isolation import held_by_callers

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["OwnSchedules"]

_CONTAINERS = (list, dict, set)


class OwnSchedules:
    """Schedules, rates and averages of the loop, from when a batch is handed out until the next."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, given: object, tell: Callable[[str], None]
    ) -> None:
        """Begin without any.

        Args:
            optimizer: Whose settings a loop may set.
            given: The scheduler that the guard steps itself; None: there is none.
            tell: Says a sentence, once of each kind.
        """
        self._optimizer = optimizer
        self._given = _parts_of(given)
        self._tell = tell
        self._undo: list[tuple[str, Callable[[], bool]]] = []
        self._rates: list[dict[str, object]] = []
        self.active = False

    def keep(self) -> None:
        """Keep all as it is: the loop is handed a batch that is no step.

        Cost: a walk over what the callers hold, about 10 ms at most, and a copy of averaged
        weights.
        """
        self.active = True
        self._undo = [
            (type(value).__name__, _undo_of(value))
            for _, value in held_by_callers(_is_stepped)
            if id(value) not in self._given
        ]
        self._rates = self._now()

    def before_step(self) -> None:
        """Put back what the loop's body has set before `step()`, which may do so itself."""
        if self.active:
            self._put_back_rates()

    def after_step(self) -> None:
        """Keep the settings as `step()` leaves them: it may have gone back to another state."""
        if self.active:
            self._rates = self._now()

    def put_back(self) -> None:
        """Put all back: the loop asks for the next batch."""
        if not self.active:
            return
        self.active = False
        undo, self._undo = self._undo, []
        stepped = sorted({name for name, back in undo if back()})
        self._put_back_rates(known=bool(stepped))
        if stepped:
            self._tell(
                f"the loop steps {', '.join(stepped)} by itself, also after batches that are no"
                " steps of the run: that was put back. A rollback takes only what the guard was"
                " given: Guard(scheduler=...) steps it, and your loop must not; or pass over it"
                ' where guard.phase == "probe"'
            )

    def _put_back_rates(self, *, known: bool = False) -> None:
        kept, changed = self._rates, False
        for group, values in zip(self._optimizer.param_groups, kept, strict=False):
            for name, value in values.items():
                if not _same(group.get(name), value):
                    changed = True
                    group[name] = clone(value)
        if changed and not known:
            self._tell(
                "the loop sets the optimizer's settings also with batches that are no steps of the"
                " run: that was put back. Go by guard.step_number, not by a count of batches"
            )

    def _now(self) -> list[dict[str, object]]:
        return [
            {k: clone(v) for k, v in group.items() if k != "params"}
            for group in self._optimizer.param_groups
        ]


def _parts_of(scheduler: object) -> set[int]:
    """Return the ids of a scheduler and of what it is made of."""
    found, todo = set[int](), [scheduler]
    while todo:
        value = todo.pop()
        if value is None or id(value) in found:
            continue
        found.add(id(value))
        todo += [*getattr(value, "members", ()), *_inner(value)]
        todo.append(getattr(value, "scheduler", None))
    return found


def _is_stepped(value: object) -> bool:
    return isinstance(value, LRScheduler | AveragedModel)


def _undo_of(value: object) -> Callable[[], bool]:
    """Return what puts a schedule or average back, and says whether it had changed."""
    if isinstance(value, AveragedModel):
        weights = clone(value.state_dict())

        def put_weights_back() -> bool:
            changed = int(value.n_averaged) != int(weights["n_averaged"])
            if changed:
                value.load_state_dict(weights)
            return changed

        return put_weights_back
    assert isinstance(value, LRScheduler)
    inner = [_undo_of(x) for x in _inner(value)]
    kept = {k: clone(v) if isinstance(v, _CONTAINERS) else v for k, v in _plain(value).items()}

    def put_back() -> bool:
        for back in inner:
            back()
        now = _plain(value)
        changed = any(not _same(now.get(k), v) for k, v in kept.items())
        vars(value).update(kept)
        return changed

    return put_back


def _inner(value: object) -> list[LRScheduler]:
    """Return the schedules that one is made of, as those in sequence are."""
    lists = [v for v in getattr(value, "__dict__", {}).values() if isinstance(v, list | tuple)]
    return [x for v in lists for x in v if isinstance(x, LRScheduler)]


def _plain(schedule: LRScheduler) -> dict[str, object]:
    inner = set(map(id, _inner(schedule)))
    return {
        k: v
        for k, v in vars(schedule).items()
        if not (k == "optimizer" or callable(v))
        and not (isinstance(v, list | tuple) and any(id(x) in inner for x in v))
    }


def _same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and torch.equal(a, b)
    return type(a) is type(b) and a == b
