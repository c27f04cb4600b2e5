"""The branches that may be tried from a restore point, as data: what each asks, costs and may hide.

One that changes nothing is the control. The others change one thing each: the data, the state, the
number format, or a setting. What a branch sets is a `Trial`; which come in which order is
`ladder`'s, by `Policy.arms`.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trimtab.errors import PlanError

__all__ = ["ARMS", "ARM_BY_ID", "DEFAULT_ORDER", "Arm", "SettingPutBack", "Trial", "in_order"]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One kind of branch."""

    id: str
    title: str
    question: str
    """What its outcome says."""
    cost: float
    """What keeping it costs, 0 nothing to 1 very much; decides between two that hold. Ours."""
    prior: float
    """How often it is the answer, 0 to 1, before anything is known of the incident. Ours, read off
    the public runs of the table of remedies."""
    keepable: bool = True
    """Whether the run may continue with it; False: it only separates causes."""
    evidence: str = ""
    """What is not known about it."""


@dataclass(frozen=True, kw_only=True)
class SettingPutBack:
    """A setting that changed without being announced, and what puts it back."""

    name: str
    """As in the ledger of settings, such as `weight_decay` or `Dropout.p`."""
    step: int
    """First step under the new value."""
    values: tuple[float, ...]
    """Before the change; one per group, module or parameter that has it."""
    changed_to: tuple[float, ...] = ()
    shown: str
    """In words, such as `weight_decay back to 0.1`."""
    ended: bool = False
    """Whether the script has put it back by itself since."""
    moved: bool = False
    """Whether the script has set it to another value again since."""

    @property
    def factors_loss(self) -> str:
        """How a factor on the loss is known: `measured`, `guessed`; empty: it is no such change."""
        if self.name != "loss.factor":
            return ""
        return "measured" if len(self.values) > 1 else "guessed"  # with its step, or without


# The order is the default of `Policy.arms`: cheap and likely ones first.
ARMS: tuple[Arm, ...] = (
    Arm(
        id="replay",
        title="no change",
        cost=0.0,
        prior=0.15,
        question=(
            "does it happen again? bit for bit the same: not the hardware; well this time: a fault"
            " that does not recur"
        ),
    ),
    Arm(
        id="no-update",
        title="the same steps at a rate next to 0",
        cost=0.0,
        prior=0.0,
        question=(
            "does the loss leap though the weights stand still? then no update made it, but the"
            " loop itself"
        ),
        keepable=False,
    ),
    Arm(
        id="put-back",
        title="a setting that nobody announced, put back",
        cost=0.1,
        prior=0.5,
        question="did the change of that setting do it?",
    ),
    Arm(
        id="other-data",
        title="without the suspect data",
        cost=0.05,
        prior=0.4,
        question="is it this data, under this state?",
    ),
    Arm(
        id="lower-lr",
        title="a lower learning rate",
        cost=0.2,
        prior=0.35,
        question="is the rate too high here?",
    ),
    Arm(
        id="fp32",
        title="the same steps in fp32",
        cost=0.8,
        prior=0.15,
        question=(
            "is it the number format? if fp32 fails too, softmax, attention and loss scale are not"
            " to blame"
        ),
    ),
    Arm(
        id="bf16",
        title="bf16 in place of fp16",
        cost=0.1,
        prior=0.15,
        question="does the wider range of bf16 do?",
    ),
    Arm(
        id="other-state",
        title="the same data from an older state",
        cost=0.0,
        prior=0.1,
        question="is it this state, with this data?",
        keepable=False,
    ),
    Arm(
        id="lower-clip",
        title="a tighter clip",
        cost=0.25,
        prior=0.1,
        question="do single large gradients do it?",
        evidence="delays only?",
    ),
    Arm(
        id="adam-beta2",
        title="Adam's beta2 at 0.95",
        cost=0.3,
        prior=0.08,
        question="is the second moment too slow?",
        evidence="mixed",
    ),
    Arm(
        id="adam-eps",
        title="a higher eps",
        cost=0.35,
        prior=0.04,
        question="do tiny second moments do it?",
        evidence="mixed",
    ),
    Arm(
        id="optimizer-reset",
        title="moments reset, rate warmed up again",
        cost=0.5,
        prior=0.05,
        question="are the moments spoiled?",
        evidence="relapses are known",
    ),
)

ARM_BY_ID: Mapping[str, Arm] = {a.id: a for a in ARMS}

DEFAULT_ORDER: tuple[str, ...] = tuple(a.id for a in ARMS)


def in_order(arms: Iterable[str], first: Iterable[str] = ()) -> tuple[str, ...]:
    """Return ids in their order, those of `first` that are among them before the others.

    Example:
        >>> in_order(("replay", "other-data", "lower-lr"), first=("lower-lr", "fp32"))
        ('lower-lr', 'replay', 'other-data')
    """
    arms = tuple(arms)
    # Only arms that the policy allows: what worked once does not overrule it.
    front = tuple(dict.fromkeys(a for a in first if a in arms))
    return front + tuple(a for a in arms if a not in front)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Run a short branch from the restore point."""

    name: str
    skip: tuple[int, int] | None = None
    """First and last sample id to leave out, both included."""
    lr_factor: float = 1.0
    """Factor on the learning rate that the schedule asks for; never above 1."""
    lr_limit: float | None = None
    """Learning rate of the first group that is not passed, whatever the schedule asks for, before
    the factor; None: no limit."""
    lr_share: float = 1.0
    """With `lr_sound`: factor on the rate that the schedule asks for, below the limit; a schedule
    that was raised as a whole keeps its shape."""
    lr_sound: float | None = None
    """Rate before it was raised: the limit ends where the script's own rate is back there; None:
    the limit stays."""
    lr_from_step: int | None = None
    """First step at which factor and limit hold: that of the rate's jump; None: from the restore
    point."""
    precision: str = ""
    """fp32 or bf16 in place of the run's own; empty: the run's own."""
    clip_factor: float = 1.0
    """Factor on the clipping threshold; never above 1."""
    settings: tuple[tuple[str, float], ...] = ()
    """Settings of the optimizer, by name, as `Guard.set_optimizer` takes them."""
    rewarm_steps: int | None = None
    """Reset the moments, and let the rate rise again over so many steps; None: leave them."""
    put_back: tuple[SettingPutBack, ...] = ()
    """Settings that changed without being announced: put back, and held there."""
    older_state: bool = False
    """Feed the data from a state before the restore point; such a branch is never kept."""
    over_limit: bool = False
    """Whether it leaves out more data than may be: it only shows whether the data is to blame, and
    is never kept."""
    stands_still: bool = False
    """Replay the steps with weights that are hardly updated; such a branch is never kept."""
    calm_steps: int = 0
    """Replay only so many steps, all before the first sign, to see how far this job repeats itself;
    such a branch is neither judged nor kept."""

    def __post_init__(self) -> None:
        """Refuse a raise."""
        if not 0 < self.lr_factor <= 1:
            raise PlanError(
                f"trial {self.name!r} has learning-rate factor {self.lr_factor}, expected above 0 "
                "and at most 1: a rate is never raised"
            )
        if self.lr_limit is not None and not 0 < self.lr_limit < math.inf:
            raise PlanError(
                f"trial {self.name!r} has learning-rate limit {self.lr_limit}, expected a finite"
                " rate above 0"
            )
        if not 0 < self.lr_share <= 1:
            raise PlanError(
                f"trial {self.name!r} has learning-rate share {self.lr_share}, expected above 0 and"
                " at most 1: a rate is never raised"
            )
        if not 0 < self.clip_factor <= 1:
            raise PlanError(
                f"trial {self.name!r} has clip factor {self.clip_factor}, expected above 0 and at"
                " most 1"
            )

    @property
    def arms(self) -> tuple[str, ...]:
        """Ids of what it changes; `replay` where it changes nothing.

        Example:
            >>> Trial(name="x", skip=(0, 7), lr_factor=0.5).arms, Trial(name="as it was").arms
            (('other-data', 'lower-lr'), ('replay',))
        """
        if self.stands_still:
            return ("no-update",)
        changed = {
            "other-state": self.older_state,
            "put-back": bool(self.put_back),
            "other-data": self.skip is not None,
            "lower-lr": self.lr_factor != 1.0 or self.lr_limit is not None,
            self.precision: bool(self.precision),
            "lower-clip": self.clip_factor != 1.0,
            **{f"adam-{name}": True for name, _ in self.settings},
            "optimizer-reset": self.rewarm_steps is not None,
        }
        return tuple(name for name, on in changed.items() if on) or ("replay",)

    @property
    def only_asks(self) -> bool:
        """Whether it separates causes, and is never kept.

        Example:
            >>> Trial(name="x", older_state=True).only_asks, Trial(name="x", skip=(0, 7)).only_asks
            (True, False)
        """
        return self.older_state or self.over_limit or self.stands_still

    @property
    def unchanged(self) -> bool:
        """Whether it is the control."""
        return self.arms == ("replay",) and not self.calm_steps
