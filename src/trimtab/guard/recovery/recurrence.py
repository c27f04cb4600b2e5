"""Spikes that heal and come back: each is harmless, together they mean that the rate is too high.

A spike of the loss counts, a single row of it that stood out as far, and a row in which gradient
norm and last hidden state stood out together: training was close to diverging there, even where the
loss did not show it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trimtab.detectors.contract import Finding
    from trimtab.plan.policy import Policy

__all__ = ["RecurringSpikes"]

_EDGE = ("grad_norm", "activation_norm")
_STANDS_OUT = ("spike", "batch-outlier")
_OUTLIER_SHARE = 0.5
"""Excess of a single row over the expected loss from which it counts as a spike, share; a loss that
may be negative has no shares, and its single rows count as such."""
_LEAST_PERIOD = 8
"""Steps apart from which spikes at equal distances are what the loop does in turn. Ours."""
_MOST_APART = 256
"""Rows remembered in which one signal of `_EDGE` stood out alone; it bounds the cost of a step."""


@dataclass(frozen=True)
class RecurringSpikes:
    """The loss spikes of this branch."""

    onsets: tuple[int, ...] = ()
    """Steps, in the order in which the spikes were found."""
    apart: tuple[tuple[int, str], ...] = ()
    """Signals other than the loss that stood out, with the onset."""

    def take_in(
        self, policy: Policy, findings: Iterable[Finding]
    ) -> tuple[RecurringSpikes, tuple[Finding, ...]]:
        """Note spikes of the loss, and single rows that stood out as far, by their onset.

        Returns:
            The new state and the findings; a single row that is one too many is turned into a
            spike that is still open.
        """
        state, taken = self, []
        for finding in findings:
            state, f = state._take_in(policy, finding)
            taken.append(f)
        return state, tuple(taken)

    def _take_in(self, policy: Policy, f: Finding) -> tuple[RecurringSpikes, Finding]:
        onset = int(f.onset)
        if f.direction != "up" or f.kind not in _STANDS_OUT or onset in self.onsets:
            return self, f
        state = self
        if f.signal in _EDGE:
            if (onset, f.signal) not in state.apart:
                apart = (*state.apart[-_MOST_APART + 1 :], (onset, f.signal))
                state = replace(state, apart=apart)
            if all((onset, signal) in state.apart for signal in _EDGE):
                state = state._with(policy, onset)
        if f.signal != "loss":
            return state, f
        far = f.expected > 0 and f.value - f.expected > _OUTLIER_SHARE * f.expected
        alone = f.kind == "batch-outlier" and far
        if f.kind == "spike" or alone:
            state = state._with(policy, onset)
        if alone:
            spike = replace(
                f, kind="spike", severity="warning", closed=False, end_row=None, end=None
            )
            return state, spike if state.returns(policy, spike) else f
        return state, f

    def _with(self, policy: Policy, onset: int) -> RecurringSpikes:
        # no more than these can lie within the horizon; older ones never count again
        kept = max(policy.spike_horizon_steps, _MOST_APART)
        return replace(self, onsets=(*self.onsets[-kept + 1 :], onset))

    def returns(self, policy: Policy, finding: Finding) -> bool:
        """Whether an open spike is one more than the policy trains through within its horizon."""
        if finding.kind != "spike" or finding.signal != "loss" or finding.closed:
            return False
        since = finding.onset - policy.spike_horizon_steps
        earlier = [onset for onset in self.onsets if since <= onset < finding.onset]
        by_plan = _at_equal_distances((*earlier, int(finding.onset)))
        return len(earlier) >= policy.spikes_trained_through and not by_plan

    def first_of(self, policy: Policy, finding: Finding) -> int:
        """Return the onset of the earliest spike that it returns from, or its own."""
        since = finding.onset - policy.spike_horizon_steps
        return min((onset for onset in self.onsets if onset >= since), default=int(finding.onset))


def _at_equal_distances(onsets: tuple[int, ...]) -> bool:
    """Whether spikes lie whole periods apart, to the step, some left out.

    So does a loop that in each n-th step trains another part by another loss; trouble does not.
    """
    steps = sorted(set(onsets))
    apart = [b - a for a, b in pairwise(steps)]
    least = min(apart, default=0)
    return len(apart) >= 2 and least >= _LEAST_PERIOD and all(d % least == 0 for d in apart)
