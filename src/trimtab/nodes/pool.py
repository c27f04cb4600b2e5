"""Hosts in use and spares: a bad host goes out, a spare comes in."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimtab.errors import ConfigError

__all__ = ["HostPool", "num_spares"]


@dataclass(frozen=True, kw_only=True)
class HostPool:
    """Which hosts train, which wait, and which are out."""

    active: tuple[str, ...]
    """In the order of their ranks."""
    spares: tuple[str, ...]
    excluded: tuple[str, ...] = ()

    @classmethod
    def of(cls, active: Sequence[str], spares: Sequence[str]) -> "HostPool":
        """Return a pool of whole hosts.

        Raises:
            ConfigError: A host is named twice.
        """
        names = [*active, *spares]
        if len(set(names)) < len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise ConfigError(f"host {twice!r} is named twice; a host is active or a spare")
        return cls(active=tuple(active), spares=tuple(spares))

    def replaced(self, host: str) -> "HostPool":
        """Return the pool with a bad host out, and the first spare at its place.

        Without a spare the pool shrinks: the launcher waits for a host, or trains with fewer.

        Raises:
            ConfigError: The host is not active.

        Example:
            >>> HostPool.of(["a", "b"], ["s"]).replaced("a").active
            ('s', 'b')
        """
        if host not in self.active:
            raise ConfigError(f"host {host!r} is not active, so it cannot be replaced")
        at = self.active.index(host)
        return replace(
            self,
            active=(*self.active[:at], *self.spares[:1], *self.active[at + 1 :]),
            spares=self.spares[1:],
            excluded=(*self.excluded, host),
        )

    def repaired(self, host: str) -> "HostPool":
        """Return the pool with an excluded host back among the spares."""
        left = tuple(name for name in self.excluded if name != host)
        back = (host,) if len(left) < len(self.excluded) else ()
        return replace(self, spares=(*self.spares, *back), excluded=left)


def num_spares(num_hosts: int, *, failures_per_day: float, repair_days: float) -> int:
    """Return how many spares a run should keep: enough for all but 1 day in 1,000.

    The number out for repair is Poisson with mean failures_per_day x repair_days; at least 3 % of
    the hosts, as OPT-175B kept (32 of 1,024 GPUs).

    Example:
        >>> num_spares(128, failures_per_day=2.0, repair_days=2.0)
        11

    References:
        S. Zhang et al. (2022), OPT: Open Pre-trained Transformer Language Models.
    """
    mean = failures_per_day * repair_days
    if num_hosts < 1 or not 0 <= mean < 1e6:
        raise ConfigError(
            f"{num_hosts} hosts with {mean} out for repair; give at least one host and a mean"
            " from 0 to 1,000,000"
        )
    term = math.exp(-mean) if mean < 700 else 0.0
    if term == 0.0:
        return max(math.ceil(mean + 3.1 * math.sqrt(mean)), math.ceil(0.03 * num_hosts))
    total, num = term, 0
    while total < 0.999:
        num += 1
        term *= mean / num
        total += term
    return max(num, math.ceil(0.03 * num_hosts))
