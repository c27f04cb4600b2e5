"""What a guard adds to a checkpoint that another trainer writes, and how a run goes on from one.

The trainer saves and loads model, optimizer, scheduler and scaler itself; the companion holds the
rest: random states, position in the data, detectors, counters, decisions. A trainer whose own
checkpoint lacks the random states goes on bit for bit with it.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from trimtab.errors import ActError, ReadError
from trimtab.guard.state.decisions import Counters
from trimtab.guard.state.serialization import clone, join, split
from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.training_state import Training

__all__ = ["check_launch", "companion_of", "go_on_from", "legible"]


def companion_of(state: RunState) -> dict[str, Any]:
    """Return the companion of a run between two steps, as tensors and JSON text.

    All ranks must call.
    """
    own = {
        "rng": capture_rng(),
        "data": state.data.state_dict() if state.data is not None else None,
    }
    whole = {
        "own": state.ranks.collect(clone(own)),
        "judge": state.judge_state.to_json(state.judge),
        "counters": asdict(state.counters),
        "standing": state.standing(),
        "settings": state.training.settings,
        "data_shape": state.data.shape if state.data is not None else None,
        "num_ranks": state.ranks.count,
        "attempt": state.recorder.attempt,
    }
    tensors, tree = split(whole, "companion")
    return {"schema": 1, "tensors": clone(tensors), "rest": json.dumps(tree)}


def check_launch(launched: Training, companion: Mapping[str, Any]) -> None:
    """Refuse to go on under other settings of the optimizer.

    The trainer's load silently undoes them.

    Args:
        launched: The run's objects, taken before the trainer loaded its checkpoint.
        companion: From `companion_of`.

    Raises:
        ActError: A setting differs, and the message names it; or the companion is not legible.
    """
    launched.check_settings(legible(companion)["settings"])


def go_on_from(state: RunState, step: int, companion: Mapping[str, Any] | None) -> dict[str, Any]:
    """Go on after a step that a trainer has loaded; return the random states to go on with.

    Our own checkpoints of later steps are moved aside: they are of the way that was left. Decisions
    taken since stay in force.

    Args:
        state: Of a run that has not begun; model and the like hold the trainer's state.
        step: The trainer's step.
        companion: From `companion_of`; None: the trainer's checkpoint has none, then the detectors
            begin anew, and what the trainer does not put back (random states, order of the data) as
            well; a note says so.

    Raises:
        ActError: The companion is of another step, or not legible.
    """
    fresh = capture_rng()
    saved = _read(companion, step)
    decided = state.store.decided_since(None)
    seen: dict[str, Any] = {"checkpoint": f"the trainer's own of step {step}", "from_attempt": None}
    notes = []
    if saved is None:
        state.counters = Counters(step=step)
        notes.append(
            "the trainer's checkpoint holds nothing of the guard's: detectors and counters begin"
            " anew, and so do random states and the order of the data where the trainer does not"
            " put them back"
        )
    else:
        seen["from_attempt"] = saved["attempt"]
        state.counters = Counters(**saved["counters"])
        state.training.settings = saved["settings"]
        try:
            state.judge_state = state.judge.state_from_json(saved["judge"])
        except ReadError as error:
            notes.append(f"detectors start anew: {error}")
        own = saved["own"][state.ranks.index if saved["num_ranks"] == state.ranks.count else 0]
        if state.data is not None and own["data"] is not None:
            state.data.load_state_dict(own["data"])
            notes.append(state.data.differs(saved["data_shape"]))
        if saved["num_ranks"] == state.ranks.count:
            fresh = own["rng"]
        else:
            notes.append(
                f"saved on {saved['num_ranks']} ranks, resumed on {state.ranks.count}: the run goes"
                " on, but not bit for bit"
            )
        restore_rng(fresh)
    state.take_over(decided or (saved or {}).get("standing"))
    state.store.set_aside_after(
        step, first_sign=math.inf, now=step, why=f"the run went on from the trainer's step {step}"
    )
    for text in filter(None, notes):
        state.resumed.append(("note", {"author": "trimtab", "text": text}))
    state.resumed.append(("resume", seen))
    return fresh


def _read(companion: Mapping[str, Any] | None, step: int) -> dict[str, Any] | None:
    if companion is None:
        return None
    saved = legible(companion)
    saved_step = saved["counters"]["step"]
    if saved_step != step:
        raise ActError(
            f"the trainer's checkpoint is of step {step}, what trimtab added to it of step"
            f" {saved_step}; resume from another one"
        )
    return saved


def legible(companion: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a companion holds.

    Raises:
        ActError: It is damaged, or something else.
    """
    try:
        saved: dict[str, Any] = join(dict(companion["tensors"]), json.loads(companion["rest"]))
        int(saved["counters"]["step"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ActError(
            f"what trimtab added to the trainer's checkpoint is not legible ({error}); resume from"
            " another one"
        ) from error
    return saved
