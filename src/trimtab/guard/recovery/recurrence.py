"""Spikes that heal and come back: each is harmless, together they say that the rate is too high.

What counts is a spike of the loss, a single row of it that stood out as far, and a row in which
gradient norm and last hidden state stood out together: the weights were at the edge then, whatever
the loss said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Policy

__all__ = ["Returning"]

_EDGE = ("grad_norm", "activation_norm")
_STANDS_OUT = ("spike", "batch-outlier")
_OUTLIER_SHARE = 0.5
"""Excess of a single row over the expected loss from which it counts as a spike, share."""


class Returning:
    """Remembers the loss spikes of this branch, and says when one is one too many."""

    def __init__(self, policy: Policy) -> None:
        """Use a policy's count and horizon."""
        self._policy = policy
        self._onsets: list[int] = []
        self._apart: dict[int, set[str]] = {}
        """Signals other than the loss that stood out, by onset."""

    def take_in(self, findings: Iterable[Finding]) -> tuple[Finding, ...]:
        """Note spikes of the loss, and single rows that stood out as far, by their onset.

        Returns:
            The findings; a single row that is one too many is told as a spike that is still open.
        """
        return tuple(self._escalated(f) for f in findings)

    def _escalated(self, f: Finding) -> Finding:
        onset = int(f.onset)
        if f.direction != "up" or f.kind not in _STANDS_OUT or onset in self._onsets:
            return f
        if f.signal in _EDGE:
            apart = self._apart.setdefault(onset, set())
            apart.add(f.signal)
            if len(apart) == len(_EDGE):
                self._onsets.append(onset)
        if f.signal != "loss":
            return f
        alone = f.kind == "batch-outlier" and f.value - f.expected > _OUTLIER_SHARE * f.expected
        if f.kind == "spike" or alone:
            self._onsets.append(onset)
        if alone:
            spike = replace(
                f, kind="spike", severity="warning", closed=False, end_row=None, end=None
            )
            return spike if self.returns(spike) else f
        return f

    def returns(self, finding: Finding) -> bool:
        """Whether an open spike is one more than the policy trains through within its horizon."""
        if finding.kind != "spike" or finding.signal != "loss" or finding.closed:
            return False
        since = finding.onset - self._policy.spike_horizon_steps
        earlier = [onset for onset in self._onsets if since <= onset < finding.onset]
        return len(earlier) >= self._policy.spikes_trained_through

    def first_of(self, finding: Finding) -> int:
        """Return the onset of the earliest spike that it returns from, or its own."""
        since = finding.onset - self._policy.spike_horizon_steps
        return min((onset for onset in self._onsets if onset >= since), default=int(finding.onset))

    def forget(self) -> None:
        """Begin anew: another branch, or a remedy in force."""
        self._onsets.clear()
        self._apart.clear()
