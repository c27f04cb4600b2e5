"""Whether a resume is exact: some steps, back to the checkpoint before them, and the same again.

The checkpoint is written to disk and read back, so what is tested is what a restart would do. What
comes out is compared step by step: the batches by a checksum of their tokens, the losses, and the
weights at the end. The run goes on from the second pass.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from trimtab.guard.distributed.sharding import local
from trimtab.guard.probes.batch import find_tokens
from trimtab.guard.recovery.curves import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from trimtab.guard.state.training_state import Snapshot
    from trimtab.guard.step.run_context import RunContext

__all__ = ["ReplayCheck", "ReplayVerdict", "compare"]


@dataclass
class ReplayPass:
    """What one pass over the steps gave."""

    losses: list[float] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    weights: int = 0


@dataclass(frozen=True)
class ReplayVerdict:
    """How the second pass differs from the first."""

    kind: str
    """bit-equal; rounding: kernels are not deterministic; other-data: another order or a sampler
    that restarts; different: a state that decides the future is not saved, or the hardware errs."""
    largest: float
    """Largest absolute difference of two losses."""
    relative: float
    text: str


def compare(first: ReplayPass, second: ReplayPass) -> ReplayVerdict:
    """Return what two passes over the same steps say."""
    gaps = [abs(a - b) for a, b in zip(first.losses, second.losses, strict=True) if a != b]
    largest = max(gaps, default=0.0)
    scale = max((abs(x) for x in first.losses if math.isfinite(x)), default=1.0)
    relative = largest / max(scale, 1e-12)
    n = len(first.losses)
    figures = f"largest difference of the loss {largest:.3g} ({relative:.1g} of it)"
    if first.batches != second.batches:
        at = next(
            i for i, (a, b) in enumerate(zip(first.batches, second.batches, strict=True)) if a != b
        )
        text = f"the data is not the same from step {at + 1} of {n} on: the order is not restored"
        return ReplayVerdict("other-data", largest, relative, f"{text}; {figures}")
    if not gaps and first.weights == second.weights:
        return ReplayVerdict("bit-equal", 0.0, 0.0, f"{n} steps repeat bit for bit")
    if relative <= ROUNDING:
        text = f"{n} steps repeat but for rounding, {figures}: kernels are not deterministic"
        return ReplayVerdict("rounding", largest, relative, text)
    text = (
        f"{n} steps do not repeat on the same data, {figures}: something that decides the future is"
        " not saved (a module's own counters, a random state of its own), or the hardware errs"
    )
    return ReplayVerdict("different", largest, relative, text)


class ReplayCheck:
    """Runs the check at the start of a loop."""

    def __init__(self, parts: RunContext, steps: int, say: Callable[[str], None]) -> None:
        """Check so many steps of a run."""
        self.verdict: ReplayVerdict | None = None
        self._parts = parts
        self._steps = steps
        self._say = say
        self._first, self._second = ReplayPass(), ReplayPass()
        self._back: Snapshot | None = None
        self._parent = ""

    @property
    def active(self) -> bool:
        """Whether it is under way."""
        return self.verdict is None

    def begin(self) -> None:
        """Save the state that is gone back to.

        Raises:
            ActError: It cannot be saved.
            ReadError: It cannot be read back.
        """
        parts = self._parts
        self._parent = parts.recorder.attempt
        parts.points.save("for the resume check")
        self._back = parts.points.on_disk(parts.state.counters.step)

    def see_batch(self, batch: object) -> None:
        """Take in the batch of the step that begins."""
        tokens = find_tokens(batch)
        if tokens is not None:
            data = local(tokens.detach()).to("cpu").contiguous().numpy().tobytes()
            self._now.batches.append(zlib.crc32(data))

    @property
    def _now(self) -> ReplayPass:
        return self._first if len(self._first.losses) < self._steps else self._second

    def after_step(self, loss: float) -> None:
        """Take in the loss of a finished step; goes back after the first pass."""
        here = self._now
        here.losses.append(loss)
        if len(here.losses) < self._steps:
            return
        here.weights = self._checksum()
        state, back = self._parts.state, self._back
        if here is self._first and back is not None:
            self._parts.data.forget_order()  # a restart would have to draw it again
            state.restore(back)
            state.begin_attempt(
                parent=self._parent,
                parent_step=back.step,
                trial=False,
                why=f"resume check: the first {self._steps} steps again",
            )
            return
        self._conclude()

    def _conclude(self) -> None:
        parts, step = self._parts, self._parts.state.counters.step
        found = compare(self._first, self._second)
        kinds = ("bit-equal", "rounding", "different", "other-data")
        # `kinds` is sorted by severity, so the largest index over the ranks is the run's verdict.
        worst = int(parts.ranks.gather([float(kinds.index(found.kind))]).max())
        if kinds[worst] != found.kind:
            found = ReplayVerdict(
                kinds[worst], found.largest, found.relative, f"on another rank: {kinds[worst]}"
            )
        self.verdict = found
        verdict = "worked" if worst < 2 else "did not"
        parts.recorder.event(
            "outcome",
            step=step,
            remedy="resume check",
            verdict=verdict,
            figures={"largest": found.largest, "relative": found.relative, "steps": self._steps},
            text=found.text,
            trial=True,
        )
        mark = "✓" if worst < 2 else "✗"
        self._say(f"step {step:>6,}  resume check {mark}  {found.text}")

    def _checksum(self) -> int:
        total = 0
        for parameter in self._parts.training.parameters:
            raw = local(parameter.detach()).to("cpu").contiguous().flatten()
            total = zlib.crc32(raw.view(torch.uint8).numpy().tobytes(), total)
        return total
