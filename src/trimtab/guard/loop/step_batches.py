"""The batches of the step under way: what was handed out, and the losses it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments
from trimtab.guard.data.order import Fed

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.data.streams import Order

__all__ = ["Losses", "StepBatches"]

_EMPTY_EPOCHS = 1000
"""Epochs in a row without a batch that may be fed, after which the data counts as used up."""


class Losses:
    """The losses of one step, each the mean of one part of it."""

    def __init__(self) -> None:
        """None yet."""
        self._losses: list[torch.Tensor] = []
        self._parts: list[float] = []
        self._num_without = 0

    def __len__(self) -> int:
        """Return how many were noted, with those that another rank has."""
        return len(self._losses) + self._num_without

    @property
    def are_here(self) -> bool:
        """Whether this rank has any of them."""
        return bool(self._losses)

    def clear(self) -> None:
        """Forget them."""
        self._losses.clear()
        self._parts.clear()
        self._num_without = 0

    def note_elsewhere(self) -> None:
        """Take note of one that another rank has."""
        self._num_without += 1

    def note(self, loss: torch.Tensor, parts: float) -> None:
        """Take in the loss of one of so many parts."""
        self._losses.append(loss.detach().reshape(()))
        self._parts.append(parts)

    def mean(self) -> torch.Tensor:
        """Return their mean, each weighted with its share of the step; NaN where none is here."""
        if not self._losses:
            return torch.tensor(torch.nan)
        if len(self._losses) == 1:
            return self._losses[0]
        losses = torch.stack([x.float() for x in self._losses])
        if len(set(self._parts)) == 1:
            return losses.mean()
        shares = torch.tensor([1 / n for n in self._parts], device=losses.device)
        return (losses * shares).sum() / shares.sum()


class StepBatches:
    """Fetches batches, and keeps those that the next step is made of."""

    def __init__(
        self, order: Order, *, accumulate: int, count_tokens: Callable[[object], int]
    ) -> None:
        """Begin with nothing handed out.

        Args:
            order: Of the data.
            accumulate: Most batches that make one step.
            count_tokens: Gives the tokens of a batch.
        """
        self.fed: list[Fed] = []
        """What was handed out for the step under way."""
        self.losses = Losses()
        self.accumulate = accumulate
        self._order = order
        self._count_tokens = count_tokens

    @property
    def in_step(self) -> bool:
        """Whether a batch was handed out and not stepped yet."""
        return bool(self.fed)

    @property
    def step_is_due(self) -> bool:
        """Whether as many batches were handed out as make a step."""
        return len(self.fed) >= self.accumulate

    @property
    def gradients_add_up(self) -> bool:
        """Whether one batch has given several losses, whose gradients are then summed."""
        return len(self.losses) > len(self.fed)

    def fetch(self, *, whole: bool, ends: bool) -> tuple[object, int, int] | None:
        """Return the next batch that may be fed, with its first and last sample id.

        Args:
            whole: Go on into the next epoch; False: stop at the end of each.
            ends: Whether the data is gone through once only.

        Returns:
            None where the data, or the epoch, is used up.
        """
        for _ in range(_EMPTY_EPOCHS):
            fetched = self._order.fetch()
            if fetched is not None:
                return fetched
            if ends and whole:
                return None
            self._order.next_epoch()
            if not whole:
                return None
        return None

    def hand_out(self, batch: object, first: int, last: int) -> bool:
        """Take note of a batch that is handed out; return whether a step begins with it."""
        begins = not self.fed
        self.fed.append(Fed(first, last, self._count_tokens(batch), epoch=self._order.epoch))
        if begins:
            self.losses.clear()
        return begins

    def note_loss(self, loss: object, parts: float, *, may_lack: bool = False) -> None:
        """Take in the loss of one part of the step; None: another rank has it, where `may_lack`.

        Raises:
            ConfigError: It is no tensor of one real number, `parts` is below 1, or no batch was
                handed out.
        """
        if loss is None:
            self._note_elsewhere(may_lack=may_lack)
            return
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
            what = (
                f"a tensor {list(loss.shape)} of {loss.dtype}"
                if isinstance(loss, torch.Tensor)
                else arguments.shown(loss)
            )
            raise ConfigError(
                f"guard.backward({what}): expected the mean loss of the batch, a tensor of one real"
                " number"
            )
        if not 1 <= arguments.number("guard.backward(parts=...): parts", parts) < float("inf"):
            raise ConfigError(
                f"guard.backward(parts={parts!r}): expected how many parts make the step, at"
                " least 1"
            )
        self._check_fed()
        self.losses.note(loss, parts)

    def _note_elsewhere(self, *, may_lack: bool) -> None:
        if not may_lack:
            raise ConfigError(
                "guard.note_loss(None): no other rank trains with this one, which could have the"
                " loss; give it"
            )
        self._check_fed()
        self.losses.note_elsewhere()

    def _check_fed(self) -> None:
        if not self.fed:
            raise ConfigError(
                "guard.backward() needs a batch: call it in a `for batch in guard:` loop, before"
                " guard.step()"
            )

    def take(self) -> tuple[Fed, torch.Tensor]:
        """Return what the step is made of and its mean loss; the next step begins empty.

        Raises:
            ConfigError: No batch was handed out, or it gave no loss.
        """
        self.check_ready()
        fed = Fed.joined(self.fed)
        self.fed.clear()
        return fed, self.losses.mean()

    def give_up(self) -> Fed:
        """Throw away what was handed out; return what that was."""
        fed = Fed.joined(self.fed)
        self.forget()
        return fed

    def forget(self) -> None:
        """Begin empty."""
        self.fed.clear()
        self.losses.clear()

    def check_ready(self) -> None:
        """Refuse a step without a batch and its loss.

        Raises:
            ConfigError: One is missing.
        """
        if not self.fed or not self.losses:
            raise ConfigError(
                "guard.step() needs one batch from the guard and guard.backward(loss) before it"
            )

    def check_stepped(self) -> None:
        """Refuse to hand out more than one step is made of.

        Raises:
            ConfigError: `step()` was not called.
        """
        if not self.step_is_due:
            return
        last = "the last batch" if self.accumulate == 1 else f"the last {len(self.fed)} batches"
        every = "every batch" if self.accumulate == 1 else f"every {self.accumulate} batches"
        raise ConfigError(
            f"guard.step() was not called for {last}; call guard.backward(loss) for each and"
            f" guard.step() once for {every}; guard.drop_batch(why=...) before `continue` gives up"
            " what cannot be used"
        )
