"""The steps of a run that were not judged, as they come about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trimtab.chronicle.coverage import Coverage, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from trimtab.chronicle.coverage import Fault, Gap

__all__ = ["JudgedSteps"]


class JudgedSteps:
    """Keeps the ranges of steps that were not judged; a step that is done again is judged anew."""

    def __init__(
        self,
        step: Callable[[], int],
        degraded: Callable[[], str],
        faults: Callable[[], tuple[Fault, ...]] = tuple,
    ) -> None:
        """Begin with nothing missed.

        Args:
            step: Gives the step of the run.
            degraded: Says what is degraded, empty where nothing is.
            faults: Gives what was degraded for a time and is not any more.
        """
        self._faults = faults
        self._step = step
        self._degraded = degraded
        self._gaps: list[Gap] = []
        self._base = 0

    def begin(self, *, base: int, gaps: Iterable[Gap] = ()) -> None:
        """Begin after a step that others judged, with what was missed before it.

        Args:
            base: Steps that are no part of this run: another trainer did them.
            gaps: What the run missed so far.
        """
        self._base, self._gaps = base, list(gaps)

    def miss(self, step: int, why: str, *, first: int | None = None) -> None:
        """Take note that a step, or all from `first` to it, was not judged."""
        first = step if first is None else first
        if self._gaps and self._gaps[-1][2] == why and self._gaps[-1][1] == first - 1:
            self._gaps[-1] = (self._gaps[-1][0], step, why)
        else:
            self._gaps.append((first, step, why))

    def went_back(self, step: int) -> None:
        """Forget what was missed after a step that was gone back to."""
        if self._gaps and self._gaps[-1][1] > step:
            self._gaps = [(a, min(b, step), why) for a, b, why in self._gaps if a <= step]

    def missed_since(self, step: int) -> tuple[Gap, ...]:
        """Return what was missed from a step on."""
        return joined((max(a, step), b, why) for a, b, why in self._gaps if b >= step)

    @property
    def doubt(self) -> str:
        """What is degraded now; empty where nothing is."""
        return self._degraded()

    def coverage(self) -> Coverage:
        """Return what was judged so far."""
        return Coverage(
            steps=max(self._step() - self._base, 0),
            gaps=joined(self._gaps),
            degraded=self._degraded(),
            faults=self._faults(),
        )
