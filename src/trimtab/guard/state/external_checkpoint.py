"""What a guard adds to a checkpoint that another trainer writes, and how a run resumes from one.

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
from trimtab.guard.state.resume import Resumed
from trimtab.guard.state.serialization import clone, join, split
from trimtab.guard.state.training_state import capture_rng, restore_rng

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trimtab.guard.distributed.process_group import Ranks
    from trimtab.guard.state.checkpoint_store import Store
    from trimtab.guard.state.judgement import Judgement
    from trimtab.guard.state.resume import Resumption
    from trimtab.guard.state.run_state import RunState
    from trimtab.guard.state.training_state import StateDict, Training

__all__ = ["check_launch", "companion_of", "go_on_from", "legible"]


def companion_of(state: RunState, *, judgement: Judgement, ranks: Ranks, attempt: str) -> StateDict:
    """Return the companion of a run between two steps, as tensors and JSON text.

    All ranks must call.
    """
    own = {
        "rng": capture_rng(),
        "data": state.data.state_dict() if state.data is not None else None,
    }
    whole = {
        # one companion serves all ranks, though random states and positions are each rank's own
        "own": ranks.collect(clone(own)),
        "judge": judgement.to_json(),
        "counters": asdict(state.counters),
        "script_changes": [list(c) for c in state.script_changes()],
        "standing": state.standing(),
        "settings": state.training.settings,
        "data_shape": state.data.shape if state.data is not None else None,
        "num_ranks": ranks.count,
        "attempt": attempt,
    }
    tensors, tree = split(whole, "companion")
    return {"schema": 1, "tensors": clone(tensors), "rest": json.dumps(tree)}


def check_launch(launched: Training, companion: Mapping[str, object]) -> None:
    """Refuse to go on under other settings of the optimizer: a trainer's load silently undoes them.

    Args:
        launched: The run's objects, taken before the trainer loaded its checkpoint.
        companion: From `companion_of`.

    Raises:
        ActError: A setting differs, and the message names it; or the companion is not legible.
    """
    launched.check_settings(legible(companion)["settings"])


def go_on_from(
    state: RunState,
    step: int,
    companion: Mapping[str, object] | None,
    *,
    judgement: Judgement,
    ranks: Ranks,
    store: Store,
    resumption: Resumption,
) -> Resumed:
    """Go on after a step that a trainer has loaded.

    Our own checkpoints of later steps are moved aside: they are of the way that was left. Decisions
    taken since stay in force.

    Args:
        state: Of a run that has not begun; model and the like hold the trainer's state.
        step: The trainer's step.
        companion: From `companion_of`; None: the trainer's checkpoint has none, then the detectors
            begin anew, and what the trainer does not put back (random states, order of the data) as
            well; a note says so.
        judgement: The run's judge.
        ranks: Those that train together.
        store: The run's checkpoints.
        resumption: Puts decisions in force.

    Raises:
        ActError: The companion is of another step, or not legible.
    """
    found = Resumed(rng=capture_rng(), checkpoint=f"the trainer's own of step {step}")
    saved = _read(companion, step)
    decided = store.decided_since(None)
    notes: list[str] = []
    if saved is None:
        state.set_counters(Counters(step=step))
        notes.append(
            "the trainer's checkpoint holds nothing of the guard's: detectors and counters begin"
            " anew, and so do random states and the order of the data where the trainer does not"
            " put them back"
        )
    else:
        found.attempt = saved["attempt"]
        state.set_counters(Counters(**saved["counters"]))
        state.training.adopt_settings(saved["settings"])
        state.adopt_script_changes(saved)
        try:
            judgement.restore(judgement.from_json(saved["judge"]))
        except ReadError as error:
            notes.append(f"detectors start anew: {error}")
        # Random states belong to one rank; the first rank's position serves any number.
        same_ranks = saved["num_ranks"] == ranks.count
        own = saved["own"][ranks.index if same_ranks else 0]
        if state.data is not None and own["data"] is not None:
            state.data.load_state_dict(own["data"])
            notes.append(state.data.differs(saved["data_shape"]))
        if same_ranks:
            found.rng = own["rng"]
        else:
            notes.append(
                f"saved on {saved['num_ranks']} ranks, resumed on {ranks.count}: the run goes"
                " on, but not bit for bit"
            )
        assert found.rng is not None
        # After the data position: finding it may have drawn from the random states.
        restore_rng(found.rng)
    resumption.take_over(decided or (saved or {}).get("standing"), found.notes)
    store.set_aside_after(
        step, first_sign=math.inf, now=step, why=f"the run went on from the trainer's step {step}"
    )
    found.notes += [text for text in notes if text]
    return found


def _read(companion: Mapping[str, object] | None, step: int) -> StateDict | None:
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


def legible(companion: Mapping[str, Any]) -> StateDict:
    """Return what a companion holds.

    Raises:
        ActError: It is damaged, or something else.
    """
    try:
        saved: StateDict = join(dict(companion["tensors"]), json.loads(companion["rest"]))
        int(saved["counters"]["step"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ActError(
            f"what trimtab added to the trainer's checkpoint is not legible ({error}); resume from"
            " another one"
        ) from error
    return saved
