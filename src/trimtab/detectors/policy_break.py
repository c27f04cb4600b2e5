"""One update that breaks the policy, and the reward falls with it.

Single updates of a policy are kept small: their divergence lies at 0.01 to 0.05, whatever else
moves. Of the last `memory_rows` values of both signals,

    far     divergence >= `least_kl`, `times_usual` their median, `times_highest` their largest
    before  median of the three rewards before that row
    fell    before - reward >= `threshold_sigma` of the noise of the rewards, and `least_share` of
            what had been gained since the first, in that row or one of the `wait_rows` after it

The entropy says so, too: where it comes at once to half of its lowest and the reward of that row,
or of one of the same few, lies below all before and below the first, the policy has settled on the
worst that it did. A row is enough, since the reward of a row is a mean of many episodes; where it is that of one, its
noise says so. It closes when three quarters of the fall are made good, or after `accept_rows`.

Blind where neither a divergence of single updates nor the entropy is logged, to a policy that leaves by many small steps,
and to rewards that fall later. See `domain_signs` for levels that change for long.
"""

import math
from dataclasses import dataclass

import numpy as np

from trimtab.detectors.contract import Finding, Row, changed
from trimtab.signals.robust import difference_sigma, median
from trimtab.text import number

__all__ = ["PolicyBreakDetector", "PolicyBreakState"]

_BEFORE_ROWS = 3
_BACK_SHARE = 0.25
_FLOOR_SHARE = 0.01
"""Smallest noise believed, as a share of the reward."""


@dataclass(frozen=True)
class PolicyBreakState:
    """The last values of the signals, and the break under way."""

    kls: tuple[float, ...] = ()
    entropies: tuple[float, ...] = ()
    rewards: tuple[float, ...] = ()
    first: float = math.nan
    best: float = -math.inf
    stage: int = 0
    """0: calm; 1: the policy moved far, the reward is waited for; 2: told."""
    age: int = 0
    """Rewards since then."""
    onset_row: int = 0
    onset: float = 0.0
    by_entropy: bool = False
    moved: float = 0.0
    """Divergence, or entropy, of that row."""
    usual: float = 0.0
    """Median divergence, or lowest entropy, before."""
    before: float = 0.0
    sigma: float = 0.0
    worst: float = 0.0
    worst_row: int = 0
    worst_step: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PolicyBreakDetector:
    """See the module; the amounts are ours."""

    name: str = "policy-break"
    signals: tuple[str, ...] = ("update_kl", "policy_entropy", "reward")
    least_kl: float = 0.1
    """Nats; targets of a divergence are 0.01 to 0.05 (Stable-Baselines3, CleanRL, TRL)."""
    times_usual: float = 5.0
    times_highest: float = 2.0
    entropy_share: float = 0.5
    """Of its lowest."""
    threshold_sigma: float = 6.0
    least_share: float = 0.25
    fewest_rows: int = 8
    memory_rows: int = 32
    wait_rows: int = 3
    accept_rows: int = 64

    def start(self) -> PolicyBreakState:
        """Return the state before any row."""
        return PolicyBreakState()

    def update(
        self, state: PolicyBreakState, row: Row
    ) -> tuple[PolicyBreakState, tuple[Finding, ...]]:
        """Judge one row; missing and non-finite values leave their signal as it is."""
        kl, entropy, reward = row.values.tolist()
        s = state
        if math.isfinite(kl):
            if s.stage == 0 and self._is_far(s, kl):
                s = self._moved(s, row, kl, median(np.array(s.kls)))
            s = changed(s, kls=(*s.kls[1 - self.memory_rows :], kl))
        if math.isfinite(entropy):
            if s.stage == 0 and self._is_spent(s, entropy):
                s = self._moved(s, row, entropy, min(s.entropies), by_entropy=True)
            s = changed(s, entropies=(*s.entropies[1 - self.memory_rows :], entropy))
        if not math.isfinite(reward):
            return s, ()
        s, found = self._take(s, reward, row)
        return (
            changed(
                s,
                rewards=(*s.rewards[1 - self.memory_rows :], reward),
                first=reward if math.isnan(s.first) else s.first,
                best=max(s.best, reward),
            ),
            found,
        )

    def _is_far(self, s: PolicyBreakState, kl: float) -> bool:
        if kl < self.least_kl or min(len(s.kls), len(s.rewards)) < self.fewest_rows:
            return False
        usual, highest = median(np.array(s.kls)), max(s.kls)
        return kl >= max(self.times_usual * usual, self.times_highest * highest)

    def _is_spent(self, s: PolicyBreakState, entropy: float) -> bool:
        if entropy < 0 or min(len(s.entropies), len(s.rewards)) < self.fewest_rows:
            return False
        return entropy <= self.entropy_share * min(s.entropies)

    def _moved(
        self,
        s: PolicyBreakState,
        row: Row,
        value: float,
        usual: float,
        *,
        by_entropy: bool = False,
    ) -> PolicyBreakState:
        """Return the state in which the reward is waited for."""
        return changed(
            s,
            stage=1,
            age=0,
            onset_row=row.index,
            onset=row.step,
            by_entropy=by_entropy,
            moved=value,
            usual=usual,
            before=median(np.array(s.rewards[-_BEFORE_ROWS:])),
            sigma=self._noise(s),
        )

    def _has_fallen(self, s: PolicyBreakState, reward: float) -> bool:
        if s.by_entropy:
            return reward < min(s.first, *s.rewards)
        least = max(self.threshold_sigma * s.sigma, self.least_share * (s.best - s.first))
        return s.before - reward >= least

    def _noise(self, s: PolicyBreakState) -> float:
        noise = difference_sigma(np.diff(np.array(s.rewards)))
        return max(noise, _FLOOR_SHARE * abs(s.rewards[-1]), 1e-12)

    def _take(
        self, s: PolicyBreakState, reward: float, row: Row
    ) -> tuple[PolicyBreakState, tuple[Finding, ...]]:
        """Hold a reward against the break under way."""
        if s.stage == 0:
            return s, ()
        s = changed(s, age=s.age + 1)
        fall = s.before - reward
        if s.stage == 1:
            if not self._has_fallen(s, reward):
                return (changed(s, stage=0) if s.age > self.wait_rows else s), ()
            s = changed(s, stage=2, worst=reward, worst_row=row.index, worst_step=row.step)
            return s, (self._finding(s, row, "open"),)
        if reward < s.worst:
            s = changed(s, worst=reward, worst_row=row.index, worst_step=row.step)
        if fall <= _BACK_SHARE * (s.before - s.worst):
            return changed(s, stage=0), (self._finding(s, row, "back"),)
        if s.age >= self.accept_rows:
            return changed(s, stage=0), (self._finding(s, row, "lasting"),)
        return s, ()

    def _finding(self, s: PolicyBreakState, row: Row, how: str) -> Finding:
        ended = how == "back"
        return Finding(
            detector="sign-policy-break",
            kind="policy-collapse",
            signal="reward",
            severity="warning",
            row=row.index,
            step=row.step,
            onset_row=s.onset_row,
            onset=s.onset,
            peak_row=s.worst_row,
            peak=s.worst_step,
            end_row=row.index if ended else None,
            end=row.step if ended else None,
            value=s.worst,
            expected=s.before,
            score=min((s.before - s.worst) / s.sigma, 99.0),
            direction="down",
            closed=how != "open",
            text=(
                f"{self._what(s)}: reward {number(s.before)} → {number(s.worst)}"
                + {"open": "", "back": ", back", "lasting": ", lasting"}[how]
            ),
        )

    def _what(self, s: PolicyBreakState) -> str:
        values = number(s.moved), number(s.usual)
        if s.by_entropy:
            return (
                "the policy's entropy was spent at once ({}, at least {} before) and the reward"
                " fell below all before".format(*values)
            )
        return (
            "an update moved the policy far (divergence {}, usually {}) and the reward fell with"
            " it".format(*values)
        )
