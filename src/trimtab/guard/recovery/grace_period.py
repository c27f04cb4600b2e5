"""How long a spike is trained through.

A deadline, put off once while the loss is on its way back.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Policy

__all__ = ["Patience"]

_BLOCK = 4
"""Losses of which a median is taken; two of them tell whether it falls."""
_RATE_ROWS = 64
"""Steps before a spike within which a jump of the rate is held to be its cause."""


class Patience:
    """Waits, says until when, and says when the wait was right."""

    def __init__(self, policy: Policy, decide: Callable[[str, str], None]) -> None:
        """Use a policy's deadlines; `decide(what, why)` journals."""
        self._policy = policy
        self._decide = decide
        self._losses: deque[float] = deque(maxlen=64)
        self._waiting: dict[tuple[str, str, int], int] = {}
        self._rate_raised: float = -math.inf
        """Step of the newest jump of the learning rate in force."""

    def take_in(self, loss: float, step: int, findings: Iterable[Finding]) -> None:
        """Take in a calm step: a spike that opens starts a wait, one that closes ends it."""
        self._losses.append(loss)
        for f in findings:
            if f.detector == "lr-change":
                self._rate_raised = f.onset
            if f.signal != "loss" or f.kind == "non-finite":
                continue
            if f.closed and f.key in self._waiting:
                del self._waiting[f.key]
                self._decide(
                    "train through",
                    f"the loss came back {step - f.onset:g} steps after {f.onset:g}: nothing was"
                    " done",
                )
            elif not f.closed and f.severity != "info" and f.key not in self._waiting:
                self._waiting[f.key] = deadline = int(f.step) + self._policy.patience_steps
                further = deadline + self._policy.healing_steps
                self._decide(
                    "wait",
                    f"{f.kind} at {f.onset:g}: trained through until step {deadline}, until"
                    f" {further} at most while the loss is on its way back; acted on then",
                )

    def forget(self) -> None:
        """Begin anew on another branch."""
        self._losses.clear()
        self._waiting.clear()
        self._rate_raised = -math.inf

    def lasts(self, finding: Finding, step: int) -> bool:
        """Whether an open finding on the loss is still trained through, past its first deadline.

        Not where the learning rate had just jumped: the loss may fall again, its cause stays.
        """
        if finding.onset - _RATE_ROWS <= self._rate_raised <= finding.onset + _BLOCK:
            return False
        deadline = self._waiting.get(finding.key)
        further = self._policy.healing_steps
        return deadline is not None and step < deadline + further and self._heals(finding)

    def _heals(self, finding: Finding) -> bool:
        """Whether the loss is half-way back from its peak at least, and still falls.

        Its excess over the level must have fallen by 15 % from one block to the next: half of a way
        back in 17 steps or fewer.
        """
        since = [x - finding.expected for x in self._losses]
        if len(since) < 2 * _BLOCK or not all(math.isfinite(x) for x in since[-2 * _BLOCK :]):
            return False
        peak = max(x for x in since if math.isfinite(x))
        now = float(np.median(since[-_BLOCK:]))
        before = float(np.median(since[-2 * _BLOCK : -_BLOCK]))
        return now <= 0.1 * peak or (now <= 0.5 * peak and now <= 0.85 * before)
