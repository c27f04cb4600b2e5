"""The unit traps of Megatron text, settled over the whole log.

1. A line without `lm loss` is a step whose loss was not finite or that was skipped, not a parse
   error: it is counted as non-finite.
2. `number of skipped iterations` counts since the last line; over the log interval it is a share.
3. A grad norm of exactly 0.000 was not computed.
4. On a step skipped for overflow, Megatron-DeepSpeed prints the norm of the step before again.
5. With fp16, Megatron-DeepSpeed prints the norm still multiplied by the loss scale. See
   `decide_scaling` for how that is distinguished from Megatron-LM's own, which is the true norm.
6. Where lines are several steps apart, the loss is a mean over the steps between.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.loss_scaling import decide_scaling
from trimtab.readers.numbers import counted
from trimtab.record import Column, RunRecord

__all__ = ["MegatronFork", "settle_units"]

# A single 0.000 may be a norm that was rounded or skipped; five in a row were not computed.
_UNWIRED_ROWS = 5
_DISTINCT_NORM = 1000.0
"""A printed norm from here on has at least seven digits: it does not recur by chance."""


@dataclass(frozen=True)
class MegatronFork:
    """Which of Megatron's descendants printed the log, as far as the lines show it."""

    newer_megatron_lm: bool = False
    """Fields that only Megatron-LM's own later versions print; their norm is the true one."""

    @classmethod
    def of_line(cls, line: str) -> "MegatronFork":
        """Judge by the first record line."""
        return cls(newer_megatron_lm="throughput per GPU" in line or "params norm" in line)


@dataclass
class _Draft:
    """A record whose columns and notes are being settled."""

    record: RunRecord
    columns: dict[str, Column]
    notes: list[str]
    facts: dict[str, float]
    train: NDArray[np.bool_]
    """Rows that are training records, not only validation."""
    interval: float
    """Steps between records; the most common distance."""

    def values(self, name: str) -> NDArray[np.float64]:
        """Values with absent ones as NaN."""
        column = self.columns.get(name)
        return np.full(self.record.num_rows, np.nan) if column is None else column.values


def settle_units(record: RunRecord, layout: MegatronFork) -> RunRecord:
    """Return the record with every signal in the unit of the vocabulary, and notes on changes."""
    draft = _Draft(
        record,
        dict(record.columns),
        list(record.notes),
        dict(record.facts),
        _train_rows(record.columns, record.num_rows),
        1.0,
    )
    # The order matters: what is no norm goes first, or the loss scale would be judged by it.
    draft.interval = _interval(record, draft.train)
    _drop_unwired_norm(draft)
    _mark_reprinted_norm(draft)
    _share_of_skipped(draft)
    _count_missing_loss(draft)
    _undo_loss_scale(draft, layout)
    _note_interval(draft)
    columns = {n: c for n, c in draft.columns.items() if c.present.any()}
    return replace(record, columns=columns, notes=tuple(draft.notes), facts=draft.facts)


def _train_rows(columns: Mapping[str, Column], num_rows: int) -> NDArray[np.bool_]:
    train = np.zeros(num_rows, dtype=np.bool_)
    for name in ("loss", "lr", "step_time_s", "skipped", "grad_norm", "loss_scale"):
        if name in columns:
            train |= columns[name].present
    return train


def _interval(record: RunRecord, train: NDArray[np.bool_]) -> float:
    rows = np.flatnonzero(train)
    gaps = np.diff(record.step[rows])[np.diff(record.attempt[rows]) == 0]
    if len(gaps) == 0:
        return 1.0
    # The most common, not the median: torn and skipped records only make gaps longer.
    sizes, counts = np.unique(gaps, return_counts=True)
    return max(1.0, float(sizes[np.argmax(counts)]))


def _drop_unwired_norm(draft: _Draft) -> None:
    column = draft.columns.get("grad_norm")
    if column is None:
        return
    rows = np.flatnonzero(column.present)
    zero = column.values[rows] == 0.0
    dead = np.zeros(len(rows), dtype=np.bool_)
    starts = np.flatnonzero(np.diff(zero.astype(np.int8), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(zero.astype(np.int8), append=0) == -1) + 1
    for start, end in zip(starts, ends, strict=True):
        if end - start >= _UNWIRED_ROWS or zero.all():
            dead[start:end] = True
    if not dead.any():
        return
    draft.columns["grad_norm"] = _without(column, rows[dead])
    draft.notes.append(
        f"grad norm: exactly 0.000 in {counted(int(dead.sum()), 'record')}, which means that it was"
        " not computed; it counts as missing there"
    )


def _mark_reprinted_norm(draft: _Draft) -> None:
    column = draft.columns.get("grad_norm")
    if column is None:
        return
    rows = np.flatnonzero(column.present)
    norm, scale = column.values[rows], draft.values("loss_scale")[rows]
    loss = draft.columns.get("loss")
    no_loss = np.zeros(len(rows), np.bool_) if loss is None else ~loss.present[rows]
    repeats = np.isfinite(norm[1:]) & (norm[1:] == norm[:-1])
    repeats &= np.diff(draft.record.attempt[rows]) == 0
    # An equal norm alone may be chance, at three decimals: one of these must hold, too.
    certain = (
        (draft.values("skipped")[rows][1:] > 0)
        | (scale[1:] < scale[:-1])
        | no_loss[1:]
        | (norm[1:] >= _DISTINCT_NORM)
    )
    again = rows[1:][repeats & certain]
    if len(again) == 0:
        return
    draft.columns["grad_norm"] = _without(column, again)
    _raise_to(draft, "skipped", again, 1.0)
    draft.notes.append(
        "grad norm: the one before is repeated to the last digit in"
        f" {counted(len(again), 'record')}: such steps were skipped for overflow; their norm counts"
        " as missing"
    )


def _share_of_skipped(draft: _Draft) -> None:
    column = draft.columns.get("skipped")
    if column is None or draft.interval <= 1.0:
        return
    share = np.minimum(column.values / draft.interval, 1.0)
    draft.columns["skipped"] = Column(share, column.present)


def _count_missing_loss(draft: _Draft) -> None:
    loss = draft.columns.get("loss")
    if loss is None:
        return
    absent = draft.train & ~loss.present
    bad = absent | (loss.present & ~np.isfinite(loss.values))
    if not bad.any():
        return
    _raise_to(draft, "nonfinite", np.flatnonzero(bad), 1.0)
    if absent.any():
        draft.notes.append(
            f"{counted(int(absent.sum()), 'record')} without a loss, which was skipped or not"
            " finite: counted as non-finite"
        )


def _undo_loss_scale(draft: _Draft, layout: MegatronFork) -> None:
    norm, scale = draft.columns.get("grad_norm"), draft.columns.get("loss_scale")
    if norm is None or scale is None:
        return
    # A scale of 1 multiplies nothing: bf16 runs print it in every line.
    both = norm.present & scale.present & (scale.values > 1.0)
    if not both.any():
        return
    decision = decide_scaling(
        norm.values[both],
        scale.values[both],
        draft.record.attempt[both],
        prints_true_norm=layout.newer_megatron_lm,
    )
    if decision.scaled:
        row = int(np.flatnonzero(both)[0])
        true = norm.values[row] / scale.values[row]
        draft.columns["grad_norm"] = Column(
            np.where(both, norm.values / np.where(both, scale.values, 1.0), norm.values),
            norm.present,
        )
        draft.facts["grad_norm_was_scaled"] = 1.0
        draft.notes.append(
            "grad norm: the printed one is multiplied by the loss scale (Megatron-DeepSpeed fp16); "
            f"it is divided out here, as at {draft.record.step[row]:g}: {norm.values[row]:.9g} / "
            f"{scale.values[row]:g} = {true:.4g} ({decision.why})"
        )
    else:
        draft.notes.append(f"grad norm: {decision.note}")


def _note_interval(draft: _Draft) -> None:
    if draft.interval > 1.0 and "loss" in draft.columns:
        draft.notes.append(
            f"one record per {draft.interval:g} steps: the loss is a mean over them, so the heights"
            " of spikes are lower bounds and times are no finer than that"
        )


def _without(column: Column, rows: NDArray[np.intp]) -> Column:
    values, present = column.values.copy(), column.present.copy()
    values[rows], present[rows] = np.nan, False
    return Column(values, present)


def _raise_to(draft: _Draft, name: str, rows: NDArray[np.intp], least: float) -> None:
    """Let a counter be at least `least` in these rows."""
    column = draft.columns.get(name)
    n = draft.record.num_rows
    values = np.full(n, np.nan) if column is None else column.values.copy()
    present = np.zeros(n, dtype=np.bool_) if column is None else column.present.copy()
    # fmax takes the number where the other is NaN, which is what an absent value holds.
    values[rows] = np.fmax(values[rows], least)
    present[rows] = True
    draft.columns[name] = Column(values, present)
