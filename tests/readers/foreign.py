"""What a log of another trainer is for the tests.

One record printed by our own code, and what it says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["PER_EPOCH", "RECORDS", "Foreign", "Record", "bar", "held_out"]

NUM = 80
PER_EPOCH = 20


@dataclass(frozen=True)
class Record:
    """What is logged at one step: `e`poch and `b`atch count from 0, `val` is another number."""

    i: int
    loss: float
    norm: float
    lr: float

    @property
    def e(self) -> int:
        return self.i // PER_EPOCH

    @property
    def b(self) -> int:
        return self.i % PER_EPOCH

    @property
    def val(self) -> float:
        return round(self.loss + 1.5, 4)

    @property
    def ends_epoch(self) -> bool:
        return self.b == PER_EPOCH - 1


RECORDS = tuple(
    Record(
        i,
        round(6 * math.exp(-i / 30) + 2 + 0.05 * math.sin(i * 7) + 1e-4 * i, 4),
        round(1 + 0.3 * math.sin(i * 5), 4),
        float(f"{1e-3 * (1 - i / 200):.4e}"),
    )
    for i in range(NUM)
)


@dataclass(frozen=True, kw_only=True)
class Foreign:
    """One format: how a record is printed, and what a reader should find."""

    line: Callable[[Record], str]
    head: str = ""
    foot: str = ""
    end: str = "\n"
    axis: Literal["step", "epoch", "row"] = "step"
    first: float = 0
    gap: float = 1
    """First step and distance of steps, where `axis` is step."""
    norm: bool = False
    lr: bool = False
    num_val: int | None = 0
    """How many validation losses there are; None: whatever is found must be one."""

    whole: Callable[[], str] | None = None
    """All of the file at once, where it is not made of lines."""
    file: str = "out.log"

    def text(self) -> str:
        if self.whole is not None:
            return self.whole()
        return self.head + "".join(self.line(r) + self.end for r in RECORDS) + self.foot


def held_out(r: Record, text: str) -> str:
    """Return a further line at the end of each epoch."""
    return f"\n{text}" if r.ends_epoch else ""


def bar(done: int, total: int) -> str:
    """Return the bar of tqdm between its two strokes, with the percentage in front."""
    share = done / total
    drawn = "\u2588" * int(10 * share)
    return f"{100 * share:3.0f}%|{drawn:10s}| {done}/{total}"
