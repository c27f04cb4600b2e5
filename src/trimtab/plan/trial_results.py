"""Results of the branches from one restore point: a ranked table, and data against state.

The unchanged row is always there: where it was not run again, it is the run as recorded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trimtab.plan.effects import Effect
from trimtab.plan.trials import ARM_BY_ID

__all__ = ["Cells", "Readout", "Repeat", "TrialRow", "read_out"]

Repeat = Literal["", "bit-equal", "rounding", "different"]
"""How an unchanged replay compares with the record, up to where the trouble was seen."""

Suspect = Literal["bad data", "state", "both together", "transient", "inconclusive"]


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """One branch."""

    name: str
    arms: tuple[str, ...]
    held: bool
    loss: float
    """At its end, nats per token; NaN where it was not finite."""
    expected: float
    steps: int
    effect: Effect | None = None
    """Against the control; None for the control itself, and from another state."""
    recorded: bool = False
    """Whether it is the run as it was recorded, and no replay."""
    rate_back: bool = False
    """Whether a replay ran at the rate from before its rise, as the script raised it no more."""

    @property
    def cost(self) -> float:
        """What keeping it costs: the sum of its arms'."""
        return sum(ARM_BY_ID[a].cost for a in self.arms)

    @property
    def label(self) -> str:
        """What it says, in a word or two: held or failed, and the effect."""
        said = "held" if self.held else "failed"
        return said if self.effect is None else f"{said}, {self.effect}"

    def text(self) -> str:
        """Return the row as a line."""
        how = " (as recorded)" if self.recorded else ""
        return (
            f"{self.name}{how}: {self.label}; loss {self.loss:.4g}, expected {self.expected:.4g},"
            f" {self.steps} steps"
        )


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Data and state, each the same or another; True: it went well; None: not tried."""

    same: bool | None
    """Same data, same state: the control."""
    other_data: bool | None
    """Other data, same state."""
    other_state: bool | None
    """Same data, another state."""
    both_other: bool | None
    """Other data, another state: the run's own past."""
    counts: bool = True
    """Whether the trouble is far beyond what replays of calm steps of this job differ by: else a
    replay that goes well, or fails otherwise, says nothing."""

    @property
    def suspect(self) -> Suspect:
        """What the table blames."""
        if self.same:
            return "transient" if self.counts else "inconclusive"
        if self.same is None or self.other_data is None or self.other_state is None:
            return "inconclusive"
        if self.other_data and self.other_state:
            return "both together"
        if self.other_data:
            return "bad data"
        return "state" if self.other_state else "inconclusive"

    @property
    def tested(self) -> bool:
        """Whether it was tried far enough to blame something."""
        return bool(self.same) or None not in (self.other_data, self.other_state)

    def text(self) -> str:
        """Return the table as a sentence and its reading."""
        said = {True: "goes well", False: "fails"}
        if self.same:
            return f"the same data under the same state goes well: {self.suspect}"
        tried = [
            f"{what} it {said[held]}"
            for what, held in (
                ("without this data", self.other_data),
                ("under another state", self.other_state),
            )
            if held is not None
        ]
        open_ = [
            what
            for what, held in (("the data", self.other_data), ("the state", self.other_state))
            if held is None
        ]
        control = "not run again" if self.same is None else "as it was, it fails"
        reading = self.suspect
        if self.other_data and self.other_state is None:
            reading = "bad data"
        elif self.other_state and self.other_data is None:
            reading = "state"
        rest = f"; whether {' or '.join(open_)} matters was not tested" if open_ else ""
        return f"{', '.join([*tried, control])}: {reading}{rest}"


@dataclass(frozen=True, kw_only=True)
class Readout:
    """The whole table."""

    rows: tuple[TrialRow, ...]
    """The control first, then those that held, cheapest first, then the others by effect."""
    cells: Cells
    repeat: Repeat
    repeat_text: str
    precision: str
    """not fp16 / fp16 / empty where it was not tested."""
    pruned: tuple[str, ...]
    """Hypotheses that need not be looked at any more."""

    @property
    def verdict(self) -> str:
        """The overall result in one line."""
        return self._together(self.cells.text())

    @property
    def news(self) -> str:
        """The verdict for people; empty while the table shows nothing yet."""
        return self._together(self.cells.text() if self.cells.tested else "")

    def _together(self, table: str) -> str:
        parts = [self.repeat_text, table, self.precision]
        if self.pruned:
            parts.append(f"no need to look at {', '.join(self.pruned)}")
        return "; ".join(p for p in parts if p)

    def as_json(self) -> dict[str, Any]:
        """Return it for the journal."""
        return {
            "repeat": self.repeat,
            "suspect": self.cells.suspect,
            "cells": {
                "same data, same state": self.cells.same,
                "other data, same state": self.cells.other_data,
                "same data, other state": self.cells.other_state,
                "other data, other state": self.cells.both_other,
            },
            "precision": self.precision,
            "pruned": list(self.pruned),
            "table": [
                {
                    "name": r.name,
                    "arms": list(r.arms),
                    "held": r.held,
                    "loss": r.loss,
                    "expected": r.expected,
                    "steps": r.steps,
                    "cost": r.cost,
                    "recorded": r.recorded,
                    "effect": None if r.effect is None else r.effect.size,
                    "low": None if r.effect is None else r.effect.low,
                    "high": None if r.effect is None else r.effect.high,
                    "label": "" if r.effect is None else r.effect.label,
                }
                for r in self.rows
            ],
        }


def read_out(
    rows: Sequence[TrialRow],
    *,
    recorded: TrialRow,
    repeat: Repeat = "",
    low_precision: str = "",
    counts: bool = True,
) -> Readout:
    """Summarize the results of the branches.

    Args:
        rows: Those that were run, in order.
        recorded: The run as recorded, which stands in for a control that was not run.
        repeat: How the control compares with the record.
        low_precision: What the forward pass runs in, where below fp32.
        counts: As `Cells.counts`.

    Example:
        >>> at = {"expected": 2.0, "steps": 20}
        >>> failed = TrialRow(name="no change", arms=("replay",), held=False, loss=9.0, **at)
        >>> skip = TrialRow(name="without", arms=("other-data",), held=True, loss=2.0, **at)
        >>> read_out([skip], recorded=failed).cells.suspect
        'inconclusive'
    """
    by_arms: dict[tuple[str, ...], TrialRow] = {}
    for row in rows:
        # The first of each kind: stronger cuts that followed answer another question.
        by_arms.setdefault(row.arms, row)
    run = by_arms.get(("replay",))
    control = run or recorded
    cells = Cells(
        same=control.held,
        other_data=_held(by_arms, "other-data"),
        other_state=_held(by_arms, "other-state"),
        # The run's own past is that cell: other data under an older state went well, or nothing
        # would have been there to roll back to.
        both_other=True,
        counts=counts,
    )
    others = sorted((r for r in rows if r is not run), key=_rank)
    # Where the unchanged replay held, an fp32 branch that held shows nothing.
    asked = None if control.held else _held(by_arms, "fp32")
    name = "fp16" if low_precision == "fp16" else f"the precision of {low_precision or 'fp16'}"
    return Readout(
        rows=(control, *others),
        cells=cells,
        repeat=repeat,
        repeat_text=_repeat_text(repeat, run, counts=counts) if run is not None else "",
        precision="" if asked is None else name if asked else f"not {name}",
        pruned=_NUMERICS if asked is False else (),
    )


_NUMERICS = ("softmax", "attention", "loss scale")


def _held(rows: Mapping[tuple[str, ...], TrialRow], arm: str) -> bool | None:
    row = rows.get((arm,))
    return None if row is None else row.held


def _rank(row: TrialRow) -> tuple[bool, float, float]:
    # x == x is False for NaN, which would make the order of the sort arbitrary.
    size = row.effect.size if row.effect is not None and row.effect.size == row.effect.size else 0.0
    return (not row.held, row.cost if row.held else 0.0, size)


def _repeat_text(repeat: Repeat, run: TrialRow, *, counts: bool) -> str:
    if run.held and run.rate_back:
        return "the replay went well: the script does not raise the learning rate any more"
    if run.held and not counts:
        return (
            "the replay without any change went well, which says nothing: this job repeats calm"
            " steps no closer, or how closely is not known"
        )
    if run.held:
        return (
            "the replay without any change went well: something that happened once outside of data,"
            " state and settings (the script's own change, the machine)"
        )
    return {
        "bit-equal": "the replay repeats bit for bit: deterministic, not the hardware",
        "rounding": "the replay repeats within rounding: not the hardware",
        "different": (
            "the replay fails in another way than the run, though this job repeats calm steps far"
            " more closely"
            if counts
            else "the replay fails in another way than the run, as this job repeats no step closely"
        ),
        "": "",
    }[repeat]
