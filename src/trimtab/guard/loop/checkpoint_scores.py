"""A user's evaluation of every few checkpoints, filed in the journal under the attempt and step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trimtab.chronicle.journal import read_journal
from trimtab.guard.yardstick.isolation import Isolation
from trimtab.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import TypeAlias

    from trimtab.guard.recording.fault_barrier import Edge
    from trimtab.guard.step.run_context import RunContext

    Evaluation: TypeAlias = Callable[[], object]
    """A user's function that scores the model as it is: a number, or {name: number}."""

__all__ = ["AUTHOR", "CheckpointScores", "checked_scores"]

AUTHOR = "evaluation"
"""Author of the notes that hold scores."""


@dataclass
class _Evaluated:
    name: str
    function: Evaluation
    every: int
    since: int
    """Checkpoints since the last score."""


class CheckpointScores:
    """Scores the state that was just saved, every few checkpoints; nothing of the run differs."""

    def __init__(self, parts: RunContext, edge: Edge) -> None:
        """Score nothing yet.

        Args:
            parts: Of the run.
            edge: Tells what a user's function raised.
        """
        self._parts = parts
        self._edge = edge
        self._wanted: list[_Evaluated] = []

    def add(self, function: Evaluation, *, every: int, name: str) -> None:
        """Have a function called after every so many checkpoints; all ranks must call it.

        A run that goes on counts the checkpoints of the processes before.
        """
        since = self._parts.ranks.agree(lambda: self._since_last(name))
        self._wanted.append(_Evaluated(name, function, every, since))

    def _since_last(self, name: str) -> int:
        count = 0
        for event in read_journal(self._parts.recorder.directory.journal)[0]:
            if event.event == "checkpoint" and "path" in event.data:
                count += 1
            elif event.data.get("evaluation") == name:
                count = 0
        return count

    def after_save(self) -> None:
        """Take note of a checkpoint, and score it where it is time. On all ranks, at one step."""
        for wanted in self._wanted:
            wanted.since += 1
            if wanted.since >= wanted.every:
                wanted.since = 0
                self._score(wanted)

    def _score(self, wanted: _Evaluated) -> None:
        parts, step = self._parts, self._parts.state.counters.step
        isolation = Isolation(parts.state.training.bare_model, keep_parameters=True)
        try:
            if isolation.refused:
                raise ValueError(f"{', '.join(isolation.refused[:3])} could not be put back")
            scores = checked_scores(wanted.function(), wanted.name)
        except Exception as error:  # noqa: BLE001 - a user's function ends no protection
            self._edge.tell_callback(
                f"the evaluation {wanted.name}",
                error,
                f"the checkpoint of step {step} has no score; training goes on",
            )
            return
        finally:
            isolation.look_for_writes()
            changed = isolation.put_back()
        parts.recorder.event(
            "note",
            step=step,
            text=f"evaluated at the checkpoint of step {step}",
            author=AUTHOR,
            evaluation=wanted.name,
            results=scores,
            **({"not_put_back": list(changed[:3])} if changed else {}),
        )


def checked_scores(found: object, name: str) -> dict[str, float]:
    """Return what a user's evaluation gave; a number alone has the function's name.

    NaN and Inf are scores as others are.

    Raises:
        ValueError: It is neither a number nor {name: number}.
    """
    pairs: Iterable[tuple[object, Any]] = (
        found.items() if isinstance(found, Mapping) else [(name, found)]
    )
    scores: dict[str, float] = {}
    for key, value in pairs:
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            scores[plain(key, limit=80)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"it returned {str(found)[:80]}; expected a number, or {{name: number}}, such as"
                " {'accuracy': 0.71}"
            ) from None
    return scores
