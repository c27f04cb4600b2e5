"""Find the faulty machine: halve the pool, probe one half, and repeat.

A pool fails a probe if any machine in it is faulty. Each faulty machine found is removed and the
search continues with the rest, so any number is found, one after the other, in about log2(n) probes
each.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

__all__ = ["Search", "find_faulty"]


@dataclass
class Search:
    """The state of a search: what to run next, and what has been found.

    Example:
        >>> search = Search(machines=("n0", "n1", "n2", "n3"))
        >>> while search.next_pool:
        ...     search.report(failed="n2" in search.next_pool)
        >>> search.faulty, search.num_probes
        (['n2'], 3)
    """

    machines: tuple[str, ...]
    """All that are suspected, known to fail together."""
    faulty: list[str] = field(default_factory=list)
    num_probes: int = 0
    _suspects: tuple[str, ...] = ()
    """Holds at least one faulty machine."""
    _pool: tuple[str, ...] = ()
    _checking_rest: bool = False

    def __post_init__(self) -> None:
        """Begin with all of them."""
        self._suspects = tuple(self.machines)
        self._narrow()

    @property
    def next_pool(self) -> tuple[str, ...]:
        """Machines to run the next probe on; empty once all is known."""
        return self._pool

    @property
    def most_left(self) -> int:
        """Probes until the next faulty machine is known, at most."""
        return math.ceil(math.log2(len(self._suspects))) if self._suspects else 0

    def report(self, *, failed: bool) -> None:
        """Record whether the pool failed."""
        self.num_probes += 1
        pool, self._pool = self._pool, ()
        # A sound rest ends the search; a failing one holds a further faulty machine.
        if self._checking_rest:
            self._checking_rest = False
            self._suspects = pool if failed else ()
        else:
            rest = tuple(m for m in self._suspects if m not in pool)
            # The rest needs no probe: some suspect is faulty, so it must be in there.
            self._suspects = pool if failed else rest
        self._narrow()

    def _narrow(self) -> None:
        if len(self._suspects) == 1:
            self.faulty.append(self._suspects[0])
            self._suspects = ()
            self._pool = tuple(m for m in self.machines if m not in self.faulty)
            self._checking_rest = bool(self._pool)
            return
        self._pool = self._suspects[: (len(self._suspects) + 1) // 2]


def find_faulty(
    machines: Sequence[str], fails: Callable[[Sequence[str]], bool]
) -> tuple[list[str], list[tuple[tuple[str, ...], bool]]]:
    """Return the faulty machines and the probes (pool, whether it failed) that found them.

    Args:
        machines: All that are suspected; together they are known to fail.
        fails: Runs a pool.

    Cost: ceil(log2 n) probes for the first, one to see whether the rest is sound, and so on.
    """
    search = Search(machines=tuple(machines))
    probes = []
    while search.next_pool:
        pool = search.next_pool
        failed = fails(pool)
        probes.append((pool, failed))
        search.report(failed=failed)
    return search.faulty, probes
