"""What may be done without a person: each class of action is never, ask or act, with daily limits.

One value for the guard and for the supervisor, and one form in a file::

    [policy.authority]
    restore = "act"
    skip-data = "ask"
    change-setting = "never"

    [policy.per_day]
    restore = 4

`ask` stages the action: it is journaled with its cost and its undo, an alert goes out, training
goes on as it is, and `trimtab approve RUN ID` (or `--deny`) decides. Without an answer,
`at_deadline` holds.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from trimtab.errors import ConfigError
from trimtab.text import is_number

__all__ = [
    "ACTION_CLASSES",
    "ARM_CLASS",
    "ActionClass",
    "AtDeadline",
    "Authority",
    "Permission",
    "strictest",
]

Permission = Literal["never", "ask", "act"]
AtDeadline = Literal["wait", "never", "act"]
ActionClass = Literal[
    "restore",
    "skip-data",
    "cut-rate",
    "raise-rate",
    "change-setting",
    "restart",
    "change-flags",
    "exclude-node",
]

ACTION_CLASSES: Mapping[str, str] = {
    "restore": "go back to an earlier state of this run",
    "skip-data": "leave samples out of the data",
    "cut-rate": "lower the learning rate",
    "raise-rate": "give back a part of a cut of the rate that was made early, once the run is calm",
    "change-setting": "change or put back any other setting: clip, Adam's settings, number format",
    "restart": "start the training command again after it ended or hung",
    "change-flags": "start it again with other flags",
    "exclude-node": "start it again without a node",
}
"""What each class covers. The first five are the guard's, the others the supervisor's."""

_UNLESS_NAMED: Mapping[str, Permission] = {"raise-rate": "never"}
"""Permission of a class that no table names, where it is another than `act`."""

ARM_CLASS: Mapping[str, ActionClass] = {
    "other-data": "skip-data",
    "lower-lr": "cut-rate",
    "fp32": "change-setting",
    "bf16": "change-setting",
    "lower-clip": "change-setting",
    "adam-beta2": "change-setting",
    "adam-eps": "change-setting",
    "optimizer-reset": "change-setting",
    "put-back": "change-setting",
}
"""Class of each branch of `plan.trials.ARMS`; one that is not here changes nothing but the state,
which is `restore`."""

_LONGEST_S = 30 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Authority:
    """Which actions are allowed, and what happens where a person does not answer.

    Example:
        >>> a = Authority(allowed={"skip-data": "ask"}, per_day={"restore": 2})
        >>> a.permission("skip-data"), a.permission("restore")
        ('ask', 'act')
        >>> a.permission("restore", used_today=2)
        'never'
    """

    allowed: Mapping[str, Permission] = field(default_factory=dict)
    """Permission of each class; what is not named may act, as far as the mode allows it, but for
    raise-rate, which is `never`."""
    per_day: Mapping[str, int] = field(default_factory=dict)
    """Most actions of a class within 24 hours, count; beyond it the class is `never`. A class that
    is not named has no limit here."""
    ask_deadline_s: float = 3600.0
    """How long an answer is waited for, seconds."""
    at_deadline: AtDeadline = "wait"
    """What holds without an answer. wait: nothing is done and the request stays open, training goes
    on as it is, and the alert is sent again at each further deadline; never: as if denied; act: as
    if approved."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ConfigError: A class or permission is none, or a limit or deadline is impossible.
        """
        check_authority(self.allowed)
        check_per_day(self.per_day)
        if not is_number(self.ask_deadline_s) or not 0 < self.ask_deadline_s <= _LONGEST_S:
            raise ConfigError(
                f"ask_deadline_s is {self.ask_deadline_s!r}, expected seconds above 0 and at most"
                f" {_LONGEST_S:g}"
            )
        if self.at_deadline not in get_args(AtDeadline):
            raise ConfigError(f"at_deadline is {self.at_deadline!r}, expected wait, never or act")

    def permission(self, action: str, *, used_today: int = 0) -> Permission:
        """Return whether a class of action may be done.

        Args:
            action: One of `ACTION_CLASSES`.
            used_today: Actions of the class within the last 24 hours, count.
        """
        if used_today >= self.per_day.get(action, used_today + 1):
            return "never"
        return self.allowed.get(action, _UNLESS_NAMED.get(action, "act"))

    def why_not(self, action: str, *, used_today: int = 0) -> str:
        """Return why a class is `never`; empty where it is not."""
        if self.allowed.get(action) == "never":
            return f"the policy allows {action} never"
        if used_today >= self.per_day.get(action, used_today + 1):
            return (
                f"{used_today} × {action} within 24 hours, the policy allows {self.per_day[action]}"
            )
        return ""


def strictest(permissions: Iterable[Permission]) -> Permission:
    """Return the permission that an action of several classes needs.

    Example:
        >>> strictest(["act", "ask"]), strictest(["ask", "never"]), strictest([])
        ('ask', 'never', 'act')
    """
    order = get_args(Permission)
    return min(permissions, key=order.index, default="act")


def check_authority(table: object) -> None:
    """Refuse a table of permissions that names what is none.

    Raises:
        ConfigError: It is no table, or a class or permission is none.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(
            f'authority is {table!r}, expected a table such as {{"skip-data": "ask"}}'
        )
    for action, permission in table.items():
        _check_class("authority", action)
        if permission not in get_args(Permission):
            raise ConfigError(f"authority: {action} is {permission!r}, expected never, ask or act")


def check_per_day(table: object) -> None:
    """Refuse a table of limits that names what is none, or counts that are none.

    Raises:
        ConfigError: It is no table, or a class or count is none.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f'per_day is {table!r}, expected a table such as {{"restore": 4}}')
    for action, count in table.items():
        _check_class("per_day", action)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 10**6:
            raise ConfigError(
                f"per_day: {action} is {count!r}, expected a whole number from 0 to 1000000"
            )


def _check_class(where: str, action: object) -> None:
    if action not in ACTION_CLASSES:
        near = difflib.get_close_matches(str(action), ACTION_CLASSES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(ACTION_CLASSES)}"
        raise ConfigError(f"{where} names {action!r}, which is no class of action; {hint}")
