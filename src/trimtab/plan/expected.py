"""Changes that were announced with `guard.expect`: what, from which step, until when.

Inside the window of an announced change the guard does not act on what the change explains, and a
change of the settings it names is no suspect. Non-finite values, a loss scale that collapses and
impossible optimizer states are acted on all the same: no plan leads there.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "DEFAULT_STEPS",
    "EXPECTABLE",
    "NEVER_EXPECTED",
    "ExpectedChange",
    "ExpectedChanges",
    "check_what",
]

EXPECTABLE: Mapping[str, tuple[str, ...]] = {
    "batch size": ("batch_size",),
    "learning rate": ("lr",),
    "unfreezing": ("requires_grad", ".training"),
    "warm restart": ("lr", "beta1", "beta2", "momentum"),
    "curriculum": (".p", "dropout", "batch"),
    "data mix": ("batch",),
    "loss": ("loss_scale", "loss.factor"),
    "freezing": ("requires_grad", ".training"),
    "sequence length": ("batch_size",),
    "weight decay": ("weight_decay",),
    "optimizer": ("beta1", "beta2", "eps", "momentum", "weight_decay", "clip"),
    "dropout": (".p", "dropout", "dropout_p", "drop_prob", "attention_dropout", "attn_dropout"),
    "evaluation mode": (".training",),
}
"""What can be announced, and the settings that it explains; of the loss it explains all kinds but
`NEVER_EXPECTED`."""
NEVER_EXPECTED = ("non-finite", "scale-collapse", "skipped-steps")
"""Kinds of incident that no announcement explains."""

DEFAULT_STEPS = 200
"""Length of a window that is not given: the level is learned anew in it. Ours: the longest memory
of a detector of levels is shorter."""
_MOST_WINDOWS = 64


@dataclass(frozen=True, kw_only=True)
class ExpectedChange:
    """One announced change."""

    what: str
    from_step: int
    until_step: int
    """Last step of the window."""
    why: str = ""

    def holds(self, step: float) -> bool:
        """Tell whether a step lies in the window."""
        return self.from_step <= step <= self.until_step

    def overlaps(self, first: float, last: float) -> bool:
        """Tell whether the window covers any step from `first` to `last`."""
        return first <= self.until_step and last >= self.from_step


class ExpectedChanges:
    """What was announced, the last `_MOST_WINDOWS` of it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.windows: tuple[ExpectedChange, ...] = ()

    def announce(self, change: ExpectedChange) -> None:
        """Take in an announcement; the same one again changes nothing."""
        if change not in self.windows:
            self.windows = (*self.windows[-_MOST_WINDOWS + 1 :], change)

    def covers(self, setting: str, step: int) -> str:
        """Return what was announced that explains a change of a setting; empty for nothing."""
        for window in self.windows:
            if window.holds(step) and _explains(EXPECTABLE[window.what], setting):
                return window.what
        return ""

    def at(self, step: float) -> ExpectedChange | None:
        """Return an announced change in whose window a step lies; None where there is none."""
        return next((w for w in self.windows if w.holds(step)), None)


def _explains(names: Iterable[str], setting: str) -> bool:
    return any(setting == n or (n.startswith(".") and setting.endswith(n)) for n in names)


def check_what(what: object) -> str:
    """Return what is announced, as it is listed.

    Raises:
        ConfigError: It is none of `EXPECTABLE`.
    """
    if isinstance(what, str) and what in EXPECTABLE:
        return what
    near = difflib.get_close_matches(str(what), EXPECTABLE, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(EXPECTABLE)}"
    raise ConfigError(f"expect({what!r:.80}): is no change that can be announced; {hint}")
