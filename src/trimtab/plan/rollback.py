"""How far to roll back: to a healthy checkpoint before the first sign, further with each failure.

Pure functions over checkpoint steps. The newest checkpoint before the first precursor is best as
long as nothing was tried; once a rollback has failed, the distance that failed is doubled with
each recurrence, and once more when the trouble came back sooner.

References:
    OPT-175B logbook: restarts close to the explosion exploded again, later ones went further back.
    BigScience tr8-104B chronicles, Try 4: 3000 better than 4000 better than 6000 after a restart
    from 6210 had failed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "CheckpointInfo",
    "Grade",
    "RollbackCandidate",
    "RollbackChoice",
    "choose_target",
    "parse_candidate",
    "wanted_distance",
]

Grade = Literal["healthy", "suspect", "poisoned"]

_LOST_WEIGHT = 0.1
"""How much giving up the whole run would cost, as a share of the score. Ours."""


@dataclass(frozen=True, kw_only=True)
class CheckpointInfo:
    """A checkpoint that the run could roll back to."""

    step: int
    grade: Grade = "healthy"
    """Decided by the estimated onset, not by age."""
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class RollbackCandidate:
    """One checkpoint with its score."""

    checkpoint: CheckpointInfo
    score: float
    """From 0, useless, to 1."""
    reason: str


@dataclass(frozen=True, kw_only=True)
class RollbackChoice:
    """Where to roll back to."""

    candidates: tuple[RollbackCandidate, ...]
    """Best first."""
    before: float
    """The first sign; no target lies after it."""
    at_most: float
    """Step that the target should not lie after, recurrences considered."""
    further_back_than: float | None = None
    """Step that an earlier attempt resumed from before it failed."""

    @property
    def target(self) -> CheckpointInfo | None:
        """The best checkpoint; None where none lies before the first sign."""
        best = self.candidates[0] if self.candidates else None
        # 0.05 and 0.1 lie after the first sign or have failed; from 0.2 on something speaks for it.
        return best.checkpoint if best is not None and best.score >= 0.2 else None


# global_step6210 (Megatron-DeepSpeed), iter_0003000 (Megatron-LM), checkpoint-3000 (Hugging Face).
_STEP_PATTERN = re.compile(r"(?:global_step|iter_|step[-_]?|checkpoint-)(\d+)")


def parse_candidate(text: str) -> CheckpointInfo | None:
    """Return the checkpoint that a path or a number names; None where no step is in it.

    Example:
        >>> parse_candidate("checkpoints/global_step6210").step, parse_candidate("3000").step
        (6210, 3000)
        >>> parse_candidate("final") is None
        True
    """
    name = Path(text.strip()).name
    if name.isdecimal():
        return CheckpointInfo(step=int(name), path=text if "/" in text else "")
    found = _STEP_PATTERN.findall(name)
    return CheckpointInfo(step=int(found[-1]), path=text) if found else None


def wanted_distance(
    failed_distance: float | None, recurrences: int, *, sooner: bool = False
) -> float:
    """Return how far before the first sign to go back, steps.

    failed_distance * 2 ** recurrences, doubled once more when the trouble came back sooner; 0
    where nothing has failed yet.

    Example:
        >>> wanted_distance(100, 1), wanted_distance(100, 2), wanted_distance(None, 0)
        (200.0, 400.0, 0.0)
    """
    # A resume behind the first sign (distance below 0) shows nothing about how far is enough.
    if not recurrences or failed_distance is None or failed_distance <= 0:
        return 0.0
    return float(failed_distance * 2 ** (recurrences + int(sooner)))


def choose_target(
    checkpoints: Sequence[CheckpointInfo],
    first_sign_step: float,
    recurrences: int,
    *,
    failed_distance: float | None = None,
    resumed_at: float | None = None,
    sooner: bool = False,
    margin_steps: int = 0,
) -> RollbackChoice:
    """Return the checkpoints ranked as rollback targets.

    Args:
        checkpoints: What could be gone back to, in any order.
        first_sign_step: Step of the first precursor, not of the detection.
        recurrences: How many rollbacks of this trouble have failed.
        failed_distance: How far before its first sign the last of them went, steps.
        resumed_at: Step that it resumed from; nothing at or after it is a target again.
        sooner: Whether the trouble came back at an earlier step.
        margin_steps: Steps to leave between target and first sign, at least.
    """
    wanted = wanted_distance(failed_distance, recurrences, sooner=sooner)
    margin_steps = max(margin_steps, 1)  # a checkpoint of the first sign's own step holds it
    # the first sign, not the detection: the state is in doubt from there on
    at_most = first_sign_step - max(wanted, margin_steps)
    # a resume that did not fail is no evidence against its checkpoint
    tried = resumed_at if recurrences else None
    candidates = [
        _score(c, first_sign_step, max(at_most, 0.0), tried, margin_steps) for c in checkpoints
    ]
    # of equal scores the newest, which gives up the fewest steps
    candidates.sort(key=lambda c: (-c.score, -c.checkpoint.step))
    return RollbackChoice(
        candidates=tuple(candidates),
        before=first_sign_step,
        at_most=max(at_most, 0.0),
        further_back_than=tried,
    )


def _score(
    checkpoint: CheckpointInfo,
    first_sign: float,
    at_most: float,
    tried: float | None,
    margin: int,
) -> RollbackCandidate:
    step = checkpoint.step
    if checkpoint.grade == "poisoned":
        return RollbackCandidate(checkpoint=checkpoint, score=0.0, reason="poisoned")
    if step > first_sign - margin:
        text = f"after the first sign at {first_sign:g}"
        if step < first_sign:
            text = f"within {margin} steps of the first sign at {first_sign:g}"
        return RollbackCandidate(checkpoint=checkpoint, score=0.05, reason=text)
    if tried is not None and step >= tried:
        text = f"not further back than {tried:g}, which failed"
        return RollbackCandidate(checkpoint=checkpoint, score=0.1, reason=text)
    lost = f"gives up {first_sign - step:g} steps before the first sign at {first_sign:g}"
    score = 1.0
    if step > at_most:
        # At most 0.8, below the 0.9 that every checkpoint beyond the wanted distance has at least.
        score = 0.3 + 0.5 * (first_sign - step) / max(first_sign - at_most, 1.0)
        lost += f", nearer than the wanted {first_sign - at_most:g}"
    else:
        score -= _LOST_WEIGHT * (at_most - step) / max(at_most, 1.0)
    # half, not zero: where nothing healthy is left, a suspect checkpoint beats none
    if checkpoint.grade == "suspect":
        score *= 0.5
        lost += "; suspect"
    return RollbackCandidate(checkpoint=checkpoint, score=round(score, 4), reason=lost)
