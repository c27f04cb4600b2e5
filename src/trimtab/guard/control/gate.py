"""When a call by hand is allowed: before the end, and for some calls only between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from trimtab.errors import ConfigError
from trimtab.guard.control import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CallGate", "Settle"]


class Settle(Protocol):
    """Reads, records and judges a step that is pending."""

    def __call__(self, *, act: bool = True) -> bool:
        """Return whether it was acted upon; `act`: do what follows from it, too."""


class CallGate:
    """Refuses calls that come at the wrong time."""

    def __init__(
        self,
        *,
        has_ended: Callable[[], bool],
        in_step: Callable[[], bool],
        settle: Settle,
        leave_to_step: Callable[[str], bool],
    ) -> None:
        """Judge by the run.

        Args:
            has_ended: Whether the run has ended.
            in_step: Whether a batch was handed out and not stepped yet.
            settle: Reads what is pending, before anything else is done.
            leave_to_step: Whether a call comes while fixed batches are read; says so once.
        """
        self._has_ended = has_ended
        self._in_step = in_step
        self._settle = settle
        self.leave_to_step = leave_to_step

    @property
    def in_step(self) -> bool:
        """Whether a batch was handed out and not stepped yet."""
        return self._in_step()

    def check_open(self, call: str) -> None:
        """Refuse a call after the end; before any other, what is pending of the last step is read.

        Raises:
            ConfigError: The run has ended.
        """
        if self._has_ended():
            raise ConfigError(
                f"guard.{call}() was called after the end; make a new Guard on the run directory to"
                " go on"
            )
        self._settle(act=not self._in_step())

    def check_reason(self, call: str, why: object) -> None:
        """Refuse a change after the end, or one whose reason cannot be written down.

        Raises:
            ConfigError: The run has ended, or `why` is no text.
        """
        self.check_open(call)
        arguments.reason(call, why)

    def check_between(self) -> None:
        """Refuse a call in the midst of a step.

        Raises:
            ConfigError: A batch was handed out and not stepped yet.
        """
        if self._in_step():
            raise ConfigError(
                "a step is under way; call guard.checkpoint() between guard.step() and the next"
                " batch, or give the batch up with guard.drop_batch(why=...)"
            )
