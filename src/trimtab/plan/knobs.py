"""Effect of settings: every change of an attempt, and the few knobs there are, with their outcome.

A change is judged by four metrics, against the attempt that it left.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.plan.changes import change_set
from trimtab.plan.labels import ChangeLabel, StepWindow, label_change
from trimtab.record import RunRecord
from trimtab.signals.robust import mad_sigma
from trimtab.text import number

__all__ = ["KNOBS", "Knob", "KnobOutcome", "Toggle", "knob_ledger", "knob_menu"]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One of the few things that are turned while a run goes on."""

    id: str
    title: str
    keys: tuple[str, ...]
    """What frameworks, and the guard, call its setting: the last part of a dotted key."""
    remedy: str
    """What is known of it elsewhere, by `REMEDY_BY_ID`."""


KNOBS: tuple[Knob, ...] = (
    Knob(id="roll-back", title="roll back", keys=(), remedy="roll-back"),
    Knob(
        id="learning-rate",
        title="learning rate",
        keys=("lr", "learning_rate", "max_lr", "peak_lr", "lr_limit", "lr_factor", "lr_cuts"),
        remedy="lower-lr",
    ),
    Knob(
        id="gradient-clip",
        title="gradient clip",
        keys=(
            *("clip", "clip_grad", "clip_norm", "clip_factor", "grad_clip", "gradient_clipping"),
            *("gradient_clip_val", "max_grad_norm", "max_norm"),
        ),
        remedy="lower-clip",
    ),
    Knob(
        id="weight-decay",
        title="weight decay",
        keys=("weight_decay", "wd", "start_weight_decay", "end_weight_decay"),
        remedy="weight-decay",
    ),
    Knob(
        id="adam-beta2",
        title="Adam's beta2",
        keys=("beta2", "adam_beta2", "betas", "adam_betas"),
        remedy="adam-beta2",
    ),
)
"""The levers of OPT-175B's and BLOOM-176B's logbooks: nobody turned others in mid-run. Sources as
`REMEDY_BY_ID` gives them."""


_UNSTATED = "not stated"


@dataclass(frozen=True, kw_only=True)
class KnobOutcome:
    """One knob, and what came of turning it last."""

    knob: Knob
    attempt: str = ""
    """Which attempt turned it last; "": none of this run did."""
    parent: str = ""
    text: str = ""
    """How it was turned."""
    steps: int = 0
    """Steps compared on either side."""
    label: ChangeLabel | None = None
    with_others: bool = False
    """Whether the attempt turned others too: which of them did it is not known."""


@dataclass(frozen=True, kw_only=True)
class Toggle:
    """One change of settings and its effect."""

    attempt: str
    parent: str
    keys: tuple[str, ...]
    """What changed; more than one: which of them did it is not known."""
    was: tuple[str, ...]
    now: tuple[str, ...]
    steps: int
    """Steps compared on either side."""
    label: ChangeLabel

    @property
    def text(self) -> str:
        """The change as a clause."""
        return ", ".join(
            f"{k} {a} to {b}" for k, a, b in zip(self.keys, self.was, self.now, strict=True)
        )


def knob_ledger(record: RunRecord, *, window_rows: int = 200) -> tuple[Toggle, ...]:
    """Return every change of settings from a parent attempt to its child, in order.

    Compared are the child's rows with the parent's at the same steps, where the parent continued;
    else with the parent's last rows before the branch. What the child does not state is no change:
    a guard's trial states what it sets, and nothing else.

    Args:
        record: A run whose attempts state their settings.
        window_rows: Most rows compared on either side.
    """
    found = []
    for index, child in enumerate(record.attempts):
        parent = _parent(record, index)
        if parent is None:
            continue
        both = change_set(record.attempts[parent].settings, child.settings).changes
        changes = tuple(c for c in both if c.now is not None)
        if not changes:
            continue
        steps, label = _effect(record, index, parent, window_rows)
        found.append(
            Toggle(
                attempt=child.number,
                parent=record.attempts[parent].number,
                keys=tuple(c.key for c in changes),
                was=tuple(_said(c.was) for c in changes),
                now=tuple(_said(c.now) for c in changes),
                steps=steps,
                label=label,
            )
        )
    return tuple(found)


def knob_menu(record: RunRecord, *, window_rows: int = 200) -> tuple[KnobOutcome, ...]:
    """Return each of `KNOBS` with its last outcome in this run, compared as in `knob_ledger`.

    A roll-back is an attempt that went on from before its parent's last step.
    """
    last = {knob.id: KnobOutcome(knob=knob) for knob in KNOBS}
    toggles = {t.attempt: t for t in knob_ledger(record, window_rows=window_rows)}
    for index, child in enumerate(record.attempts):
        toggle = toggles.get(child.number)
        keys = () if toggle is None else toggle.keys
        turned = {k.id: key for k in KNOBS for key in keys if key.rpartition(".")[2] in k.keys}
        parent = _parent(record, index)
        if parent is None:
            continue
        went_back = _went_back(record, index, parent)
        if not turned and not went_back:
            continue
        steps, label = _effect(record, index, parent, window_rows)
        shared = KnobOutcome(
            knob=KNOBS[0],
            attempt=child.number,
            parent=record.attempts[parent].number,
            steps=steps,
            label=label,
            with_others=len(keys) + went_back > 1,
        )
        if went_back:
            text = f"to step {number(float(child.parent_step or 0.0))}"
            last["roll-back"] = replace(shared, text=text)
        for knob in KNOBS:
            if knob.id in turned and toggle is not None:
                i = keys.index(turned[knob.id])
                was = "" if toggle.was[i] == _UNSTATED else f"{toggle.was[i]} to "
                text = f"{keys[i]} {was}{toggle.now[i]}"
                last[knob.id] = replace(shared, knob=knob, text=text)
    return tuple(last.values())


def _parent(record: RunRecord, index: int) -> int | None:
    wanted = record.attempts[index].parent
    found = (i for i, a in enumerate(record.attempts) if wanted and a.number == wanted)
    return next((i for i in found if i != index), None)


def _went_back(record: RunRecord, index: int, parent: int) -> bool:
    attempt = record.attempts[index]
    if attempt.why.startswith("resumed"):  # after a stop or a crash: nobody chose to go back
        return False
    start = attempt.parent_step
    steps = record.step[record.attempt == parent]
    return start is not None and bool((steps > start).any())


def _effect(
    record: RunRecord, index: int, parent: int, window_rows: int
) -> tuple[int, ChangeLabel]:
    """Return how many steps were compared on either side, and what they say."""
    mine = np.flatnonzero(record.attempt == index)[:window_rows]
    theirs = np.flatnonzero(record.attempt == parent)
    beside = theirs[np.isin(record.step[theirs], record.step[mine])]
    # The same steps on both sides take the trend of the loss out of the comparison.
    if len(beside) >= 8:
        mine = mine[np.isin(record.step[mine], record.step[beside])]
    else:
        start = record.attempts[index].parent_step
        beside = theirs[record.step[theirs] <= (np.inf if start is None else start)][-window_rows:]
    label = label_change(_stretch(record, beside), _stretch(record, mine))
    return min(len(mine), len(beside)), label


def _said(value: str | None) -> str:
    return _UNSTATED if value is None else value


def _stretch(record: RunRecord, rows: NDArray[np.intp]) -> StepWindow:
    columns = {
        name: record.columns[name].values[rows]
        for name in ("loss", "grad_norm")
        if name in record.columns
    }
    nothing = np.full(len(rows), np.nan)
    losses = columns.get("loss", nothing)
    stretch = StepWindow()
    level = np.nanmedian(losses) if np.isfinite(losses).any() else np.nan
    known = losses[~np.isnan(losses)]  # an infinite loss counts as far away, a NaN as not logged
    spread = mad_sigma(known, center=float(level)) if np.isfinite(level) else np.nan
    # float32 resolves no less, where all losses of a stretch are alike
    floor = 1e-6 * float(np.abs(known).max(initial=0, where=np.isfinite(known)))
    for loss, norm in zip(losses, columns.get("grad_norm", nothing), strict=True):
        # 8 sigma as in `spike`
        odd = not np.isfinite(loss) or abs(loss - level) > max(8 * spread, floor)
        stretch.add(float(loss), float(norm), alarms=int(odd))
    return stretch
