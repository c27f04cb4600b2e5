"""How far apart snapshots are where a device must wait for them: within a share of the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.plan.policy import Policy

__all__ = ["SnapshotPace"]

_LEAST_SECONDS = 0.02
"""Of copying, below which it is not worth a word. Ours."""
_MOST_TIMES = 64
"""The policy's distance by this much is the widest. Ours: 1,280 steps of the default."""


class SnapshotPace:
    """Widens the distance of snapshots while copying from a device takes more than its share.

    Only what is copied from a device counts: it waits for that, and the time is known well. A host
    copies a state in less than one of its steps. What finding memory takes the first times does not
    count. The distance doubles, so that the wider one meets steps of the narrower; all ranks keep
    that of the first one.
    """

    def __init__(
        self, policy: Policy, ranks: Ranks, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin at the policy's distance."""
        self.every_steps = policy.snapshot_every_steps
        """Distance of snapshots now, optimizer steps."""
        self._widest = _MOST_TIMES * policy.snapshot_every_steps
        self._share = policy.snapshot_time_share
        self._ranks = ranks
        self._clock = clock
        self._last: tuple[int, float] | None = None

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is due after a step."""
        return step % self.every_steps == 0

    def note_taken(self, step: int, seconds: float) -> str:
        """Settle the distance anew after a snapshot; a collective.

        Args:
            step: The step that it is of.
            seconds: What copying it from a device took; 0: nothing lies on one.

        Returns:
            What to say of a wider distance; empty where it stays.
        """
        then, self._last = self._last, (step, self._clock())
        if then is None or step <= then[0]:  # the first, or the run went back
            return ""
        step_seconds = max(self._last[1] - then[1] - seconds, 0.0) / (step - then[0])
        wanted = self.every_steps
        while (
            seconds > max(_LEAST_SECONDS, self._share * wanted * step_seconds)
            and 2 * wanted <= self._widest
        ):
            wanted *= 2
        wanted = self._ranks.agree(lambda: wanted)
        if wanted == self.every_steps:
            return ""
        before, self.every_steps = self.every_steps, wanted
        return (
            f"snapshots: every {wanted} steps from here on, not {before}: copying one from the"
            f" device takes {seconds:.2g} s, a step {step_seconds:.2g} s, and snapshot_time_share"
            f" is {self._share:g}"
        )
