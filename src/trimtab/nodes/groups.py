"""Which one or two hosts of a pool are bad, by running a test on groups of them.

A job that fails or is slow on the whole pool says nothing about a host. The hosts are laid out as
a square; a test runs on all rows at once, then on all columns, then on all diagonals: three runs
whatever the size of the pool. Two hosts share at most one group, so up to two bad hosts are the
only ones all of whose groups fail.

References:
    Kautz and Singleton (1964), Nonrandom binary superimposed codes, IEEE Trans. Inf. Theory 10(4).
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trimtab.errors import ConfigError

__all__ = ["GroupPlan", "GroupVerdict", "decide", "plan_groups", "slow_groups"]


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """Groups to run the test on; those of one round have no host in common."""

    rounds: tuple[tuple[tuple[str, ...], ...], ...]

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """All groups; the number of a group is its place here."""
        return tuple(group for one in self.rounds for group in one)


@dataclass(frozen=True, kw_only=True)
class GroupVerdict:
    """What the outcomes say."""

    bad: tuple[str, ...]
    """Hosts all of whose groups failed; at most two where `sure`."""
    sure: bool
    says: str


def plan_groups(hosts: Sequence[str]) -> GroupPlan:
    """Return the groups of a pool.

    Args:
        hosts: At least four, each once.

    Raises:
        ConfigError: There are fewer, or one is named twice.

    Example:
        >>> plan_groups(["a", "b", "c", "d"]).rounds[0]
        (('a', 'b'), ('c', 'd'))
    """
    if len(hosts) < 4 or len(set(hosts)) < len(hosts):
        raise ConfigError(
            f"{len(hosts)} hosts, {len(set(hosts))} of them different; group tests need at least"
            " four different ones: test fewer one by one"
        )
    side = math.isqrt(len(hosts) - 1) + 1
    rounds = []
    cells = [divmod(i, side) for i in range(len(hosts))]
    rows, columns = [row for row, _ in cells], [column for _, column in cells]
    for lines in (rows, columns, [sum(cell) % side for cell in cells]):
        groups: dict[int, list[str]] = {}
        for host, line in zip(hosts, lines, strict=True):
            groups.setdefault(line, []).append(host)
        rounds.append(tuple(tuple(g) for _, g in sorted(groups.items())))
    return GroupPlan(rounds=tuple(rounds))


def decide(plan: GroupPlan, failed: Collection[int]) -> GroupVerdict:
    """Say which hosts are bad.

    Args:
        plan: The groups.
        failed: Numbers of the groups on which the test failed or was slow.

    Raises:
        ConfigError: There is no group of that number.
    """
    groups = plan.groups
    for number in failed:
        if not 0 <= number < len(groups):
            raise ConfigError(f"group {number} is not in the plan; it has 0 to {len(groups) - 1}")
    if not failed:
        return GroupVerdict(
            bad=(), sure=True, says="no group failed: the fault shows on the whole pool only"
        )
    fine = {host for i, group in enumerate(groups) if i not in failed for host in group}
    hosts = dict.fromkeys(host for group in groups for host in group)
    bad = tuple(host for host in hosts if host not in fine)
    unexplained = [i for i in failed if not set(groups[i]) & set(bad)]
    if unexplained:
        return GroupVerdict(
            bad=bad,
            sure=False,
            says="a group failed without a host that always fails: a link or switch between hosts,"
            " or a fault that comes and goes; run the test again",
        )
    if len(bad) > 2:
        return GroupVerdict(
            bad=bad,
            sure=False,
            says=f"{len(bad)} hosts are in failed groups only, more than two may be bad: test these"
            " one by one",
        )
    return GroupVerdict(bad=bad, sure=True, says=f"bad: {', '.join(bad)}; leave out and replace")


def slow_groups(step_time_s: Mapping[int, float], *, factor: float = 1.05) -> tuple[int, ...]:
    """Return the numbers of the groups whose steps are slow against the median group.

    Args:
        step_time_s: Group -> time of a step, seconds; NaN and Inf count as slow.
        factor: Share of the median from which a group is slow; BLOOM lost 5 % to one node.
    """
    known = [t for t in step_time_s.values() if math.isfinite(t)]
    if not known:
        return tuple(step_time_s)
    limit = factor * statistics.median_low(known)
    return tuple(i for i, t in step_time_s.items() if not math.isfinite(t) or t > limit)
