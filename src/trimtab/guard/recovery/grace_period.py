"""How long a spike is trained through before it is acted on.

There is one deadline, extended once while the loss is on its way back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trimtab.detectors.contract import changed
from trimtab.guard.state.decisions import is_back

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trimtab.detectors.contract import Finding
    from trimtab.guard.recovery.values import Key
    from trimtab.plan.policy import Policy

__all__ = ["GracePeriod"]

_LOSSES = 64
"""Losses that are kept."""
_BLOCK = 4
"""Losses of which a median is taken; two of them tell whether it falls."""
_RATE_ROWS = 64
"""Steps before a spike within which a jump of the rate counts as its cause."""


@dataclass(frozen=True)
class GracePeriod:
    """The spikes that are being trained through, and the losses since."""

    losses: tuple[float, ...] = ()
    """Of the last calm steps, nats per token."""
    waiting: Mapping[Key, int] = field(default_factory=dict)
    """First deadline of each spike that is trained through, by its finding."""
    rate_raised: float = -math.inf
    """Step of the newest jump of the learning rate in force."""
    rate_sound: float = 0.0
    """Rate before that jump; 0: there was none."""

    def take_in(
        self, policy: Policy, loss: float, step: int, findings: Sequence[Finding]
    ) -> tuple[GracePeriod, tuple[tuple[str, str], ...]]:
        """Take in a calm step: a spike that opens starts a wait, one that closes ends it.

        Returns:
            The new state, and the decisions (what, why) to journal.
        """
        losses = (*self.losses[-_LOSSES + 1 :], loss)
        if not findings:
            return changed(self, losses=losses), ()
        waiting, raised, sound = dict(self.waiting), self.rate_raised, self.rate_sound
        decisions: list[tuple[str, str]] = []
        for f in findings:
            if f.detector == "lr-change":
                raised, sound = f.onset, f.expected
            if f.signal != "loss" or f.kind == "non-finite":
                continue
            if f.closed and f.key in waiting:
                del waiting[f.key]
                decisions.append(
                    (
                        "train through",
                        f"the loss came back {step - f.onset:g} steps after {f.onset:g}: nothing"
                        " was done",
                    )
                )
            elif not f.closed and f.severity != "info" and f.key not in waiting:
                waiting[f.key] = deadline = int(f.step) + policy.patience_steps
                further = deadline + policy.healing_steps
                decisions.append(
                    (
                        "wait",
                        f"{f.kind} at {f.onset:g}: trained through until step {deadline}, until"
                        f" {further} at most while the loss is on its way back; acted on then",
                    )
                )
        state = replace(self, losses=losses, waiting=waiting, rate_raised=raised, rate_sound=sound)
        return state, tuple(decisions)

    def lasts(self, policy: Policy, finding: Finding, step: int, *, lr: float = math.nan) -> bool:
        """Whether an open finding on the loss is still trained through, past its first deadline.

        It is not where the learning rate had just jumped: the loss may fall, but the cause stays.
        Where the script has put the rate back itself, the cause is over, and the state is judged
        as after any other spike.

        Args:
            policy: Gives how long.
            finding: The open one.
            step: Of now.
            lr: Rate that the script asks for; NaN: not known.
        """
        jumped = finding.onset - _RATE_ROWS <= self.rate_raised <= finding.onset + _BLOCK
        if jumped and not is_back(lr, self.rate_sound):
            return False
        deadline = self.waiting.get(finding.key)
        further = policy.healing_steps
        return deadline is not None and step < deadline + further and self._heals(finding)

    def _heals(self, finding: Finding) -> bool:
        """Whether the loss is at least half-way back from its peak, and still falls.

        Its excess over the level must have fallen by 15 % from one block to the next, which halves
        it in 17 steps or fewer.
        """
        since = [x - finding.expected for x in self.losses]
        if len(since) < 2 * _BLOCK or not all(math.isfinite(x) for x in since[-2 * _BLOCK :]):
            return False
        peak = max(x for x in since if math.isfinite(x))
        now = float(np.median(since[-_BLOCK:]))
        before = float(np.median(since[-2 * _BLOCK : -_BLOCK]))
        return now <= 0.1 * peak or (now <= 0.5 * peak and now <= 0.85 * before)
