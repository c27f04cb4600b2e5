"""Counts of one source while it is read, as plain numbers and arrays that can be saved."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from trimtab.data_scan.block import DataBlock, show

__all__ = ["MAX_EXAMPLES", "CountsState", "Example", "SourceCounts", "Tally"]

CountsState: TypeAlias = dict[str, Any]
"""The fields of `SourceCounts` by name, as JSON values and arrays."""

MAX_EXAMPLES = 3
MAX_ORIGINS = 100
OTHER_ORIGINS = "(others)"


class Example(TypedDict):
    """A stretch of data that shows what a rule found."""

    id: int
    offset: int
    text: str
    path: NotRequired[str]
    """The file, where the finding is about several."""


@dataclass
class Tally:
    """Units that one rule hit: how many, which, and a few as examples."""

    ranges: list[list[int]] = field(default_factory=list)
    """[first, last] of unit numbers, rising."""
    examples: list[Example] = field(default_factory=list)

    @property
    def num_units(self) -> int:
        """Units hit."""
        return sum(last - first + 1 for first, last in self.ranges)

    def add(self, ids: Iterable[int]) -> None:
        """Add units, in rising order from one call to the next; the last one may come again."""
        for number in ids:
            # Neighbours are merged at once: a rule that hits every unit keeps one range.
            if self.ranges and number <= self.ranges[-1][1] + 1:
                self.ranges[-1][1] = max(number, self.ranges[-1][1])
            else:
                self.ranges.append([number, number])


@dataclass
class SourceCounts:
    """One source."""

    path: str
    kind: str
    unit: str
    context: int | None
    vocab: int | None = None
    """Rows of the embedding, where they are known."""
    size_bytes: int = 0
    num_units: int = 0
    num_docs: int = 0
    num_elements: int = 0
    """Bytes of text, or tokens."""
    num_unreadable: int = 0
    compressed_bytes: int = 0
    judged_bytes: int = 0
    """Bytes that were compressed to measure how well they do."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(256, np.int64))
    """int64 [values]: how often each byte, or token id, occurs."""
    ratio_low: bytearray = field(default_factory=bytearray)
    """A byte for each unit: worst compression ratio of a piece of each unit, in 1/200; 255 where
    none was judged."""
    totals: dict[str, int] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    """How many documents have each length."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    origins: dict[str, dict[str, int]] = field(default_factory=dict)
    """Origin as documents state it → units, bytes, compressed, judged, and units hit by each rule.
    """
    notes: list[str] = field(default_factory=list)

    def hit(
        self,
        rule: str,
        block: DataBlock,
        units: NDArray[np.int64],
        at: NDArray[np.int64] | None = None,
    ) -> None:
        """Note units of a block; `at` holds where in the block each is to be shown."""
        if not len(units):
            return
        tally = self.tallies.setdefault(rule, Tally())
        tally.add(block.ids[units].tolist())
        for unit in units.tolist() if block.origins else ():
            self.add_of_origin(block.origins[unit], rule, 1)
        for i in range(min(len(units), MAX_EXAMPLES - len(tally.examples))):
            unit = int(units[i])
            start = int(block.starts[unit]) if at is None else int(at[i])
            end = int(block.starts[unit + 1])
            tally.examples.append(
                {
                    "id": int(block.ids[unit]),
                    "offset": start - int(block.starts[unit]),
                    "text": show(block.data, start, end),
                }
            )

    def add_of_origin(self, origin: str, name: str, number: int) -> None:
        """Add to a named count of an origin; beyond `MAX_ORIGINS` origins share one row."""
        if origin not in self.origins and len(self.origins) >= MAX_ORIGINS:
            # A field such as a URL has one value per document, and would fill memory.
            origin = OTHER_ORIGINS
        counts = self.origins.setdefault(origin, {})
        counts[name] = counts.get(name, 0) + number

    def state(self) -> CountsState:
        """Return it as JSON and arrays."""
        state = dict(vars(self))
        state["ratio_low"] = np.frombuffer(bytes(self.ratio_low), np.uint8)
        state["lengths"] = {
            "length": np.fromiter(self.lengths, np.int64, len(self.lengths)),
            "number": np.fromiter(self.lengths.values(), np.int64, len(self.lengths)),
        }
        state["tallies"] = {
            rule: {"ranges": np.array(t.ranges, np.int64).reshape(-1, 2), "examples": t.examples}
            for rule, t in self.tallies.items()
        }
        return state

    @classmethod
    def from_state(cls, state: CountsState) -> "SourceCounts":
        """Return the counts that `state` was taken of."""
        lengths, tallies = state["lengths"], state["tallies"]
        return cls(
            **{
                **state,
                "counts": state["counts"].copy(),
                "ratio_low": bytearray(state["ratio_low"].tobytes()),
                "lengths": dict(
                    zip(lengths["length"].tolist(), lengths["number"].tolist(), strict=True)
                ),
                "tallies": {
                    r: Tally(t["ranges"].tolist(), list(t["examples"])) for r, t in tallies.items()
                },
            }
        )

    def add_total(self, name: str, number: int) -> None:
        """Add to a named count."""
        self.totals[name] = self.totals.get(name, 0) + int(number)
