"""Measurements that a live run allows beyond its log: losses of upcoming data, short branches."""

from dataclasses import dataclass

__all__ = ["DataProbe", "TrialResult"]


@dataclass(frozen=True, kw_only=True)
class DataProbe:
    """Losses of upcoming batches under the healthy state, forward only."""

    num_batches: int
    num_outliers: int
    first_sample: int | None = None
    """First sample id of the outlying range, absolute; None where nothing stood out."""
    last_sample: int | None = None
    """Last sample id of that range, included."""
    median_loss: float
    """nats per token."""
    worst_loss: float
    """nats per token."""


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Outcome of one short branch from the restore point."""

    name: str
    held: bool
    """Whether its loss stayed on the pre-onset trend."""
    loss: float
    """Loss at its end, nats per token; NaN when it was not finite."""
    expected_loss: float
    """What the trend expects there, nats per token."""
    steps: int
    unit: float | None = None
    """What shares of the loss are taken of, nats per token; None: the expected loss."""
    skipped: bool = False
    """Whether the suspect data was left out."""
    only_asks: bool = False
    """Whether it cannot be kept, whatever came of it."""
    lr_factor: float = 1.0
    """Factor on the learning rate that the schedule asks for."""
    lr_limit: float | None = None
    """Learning rate that it held to at most; None: no limit."""
    changed: tuple[str, ...] = ()
    """What else it changed, by the ids of `trimtab.plan.trials`."""
    bitwise: bool | None = None
    """Whether a branch that changed nothing repeated the recorded losses before the onset bit for
    bit, so that this machine is known to be reproducible; None: that is not known."""
    beyond_noise: bool | None = None
    """Whether the trouble is far beyond what replays of calm steps of this job differ by; None:
    that was not measured."""

    @property
    def counts(self) -> bool:
        """Whether it says something that an unchanged replay goes well or does not."""
        return self.bitwise is True or self.beyond_noise is True

    @property
    def cuts_rate(self) -> bool:
        """Whether the learning rate was lowered."""
        return self.lr_factor < 1.0 or self.lr_limit is not None

    @property
    def cut_text(self) -> str:
        """How far, for people."""
        if self.lr_limit is not None:
            return f"learning rate held at {self.lr_limit:.3g}"
        return f"{self.lr_factor:.3g} x the learning rate"
