"""Where the blocks and routers of each rank's part lie in the whole model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trimtab.guard.distributed.holders import Holders
    from trimtab.guard.distributed.process_group import Ranks

__all__ = ["PartLayout"]

_NUMBER = re.compile(r"(\d+)\D*$")


class PartLayout:
    """Places of this rank's blocks and routers among those of all stages.

    Blocks go by the last number in their names where each has its own over all stages, else by the
    order of the stages, which is that of their first ranks.
    """

    def __init__(
        self, ranks: Ranks, holders: Holders, *, blocks: Sequence[str], routers: Sequence[int]
    ) -> None:
        """Compare the parts; all ranks must call it. One collective where there are several.

        Args:
            ranks: Those that train together.
            holders: Which of them are of one stage.
            blocks: Names of this rank's blocks, in their order.
            routers: Experts of each of its routers.
        """
        found = [_NUMBER.search(name) for name in blocks]
        here = ([None if m is None else int(m[1]) for m in found], list(routers))
        self._holders = holders
        self._known: tuple[tuple[int, ...], tuple[list[int], int]] = ((), ([], 0))
        """The stages of the ranks, and what `blocks` said of them."""
        self._parts = ranks.collect(here)

    def _firsts(self) -> list[int]:
        return sorted(set(self._holders.firsts()))

    def blocks(self) -> tuple[list[int], int]:
        """Return the place of each block of this rank, and how many there are in all."""
        if self._known[0] != self._holders.stage_of:
            self._known = (self._holders.stage_of, self._places())
        return self._known[1]

    def _places(self) -> tuple[list[int], int]:
        firsts = self._firsts()
        numbers = [n for rank in firsts for n in self._parts[rank][0]]
        order = list(range(len(numbers)))
        known = [n for n in numbers if n is not None]
        if len(firsts) > 1 and len(set(known)) == len(numbers):
            order = sorted(order, key=lambda i: known[i])
        stages = [stage for stage, rank in enumerate(firsts) for _ in self._parts[rank][0]]
        return [k for k, i in enumerate(order) if stages[i] == self._holders.stage], len(order)

    def spread(self, mine: Sequence[float], absent: float) -> list[float]:
        """Return this rank's values by block among those of all stages, `absent` for theirs."""
        places, count = self.blocks()
        whole = [absent] * count
        for place, value in zip(places, mine, strict=True):
            whole[place] = value
        return whole

    def routers(self) -> tuple[list[int], list[int], list[int]]:
        """Return the experts of the routers in the stages before, in this one and behind it."""
        stages: tuple[list[int], list[int], list[int]] = ([], [], [])
        mine = self._holders.stage
        for stage, rank in enumerate(self._firsts()):
            stages[(stage > mine) - (stage < mine) + 1].extend(self._parts[rank][1])
        return stages
