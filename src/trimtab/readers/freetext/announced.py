"""Records of evaluations that do not say so themselves: the line in front does, or their own total.

    epoch: 1, loss is: 0.37, acc is: 0.87
    testing in eval mode ...
    epoch: 1, loss is: 0.58, acc is: 0.80

Such a line may as well be followed by a result in other words, and then by the next epoch of
training. So the records behind it are of held-out data only where their count is that of the record
before.

    1250/1250 [====] - 33s - loss: 0.44 - acc: 0.84 - val_loss: 0.87 - val_acc: 0.73
    313/313 [====] - 3s - loss: 0.91 - acc: 0.72

A full bar with no heading of an epoch since the one before is that of an evaluation; where no line
heads an epoch, one of another total that stands alone, without the validation that the others have.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.rows import TextRows
from trimtab.readers.freetext.shapes import Shape
from trimtab.readers.numbers import counted
from trimtab.record import HELD_OUT

__all__ = ["part_announced", "part_other_bars"]

_MIN_ROWS = 3
_MIN_TIES = 0.9
"""Evaluations, and the share of them with the count of the record before, to be believed. Ours."""
_NAMES = {"loss": "val_loss", "accuracy": "eval_score"}


def part_announced(rows: TextRows, announced: Sequence[int]) -> tuple[TextRows, list[Shape]]:
    """Return the rows of training, and those of evaluations as a shape of their own.

    Args:
        rows: Of one wording.
        announced: Numbers of the lines that announce an evaluation; they rise.
    """
    counts = [c for _, c in rows.of_kind("epoch", "step") if c.present.all()]
    if not announced or not counts or rows.num < 2 * _MIN_ROWS:
        return rows, []
    before = np.searchsorted(np.array(announced), rows.lines)
    held_out = np.asarray(np.diff(before, prepend=0) > 0)
    for count in counts:
        ties = np.diff(count.values) == 0
        share = np.mean(ties[held_out[1:]]) if held_out[1:].any() else 0.0
        if min(held_out.sum(), (~held_out).sum()) >= _MIN_ROWS and share >= _MIN_TIES:
            return rows.keep(~held_out), [_shape_of(rows.keep(held_out))]
    return rows, []


def part_other_bars(rows: TextRows, headings: NDArray[np.int64]) -> tuple[TextRows, list[Shape]]:
    """Return the rows of training, and those of evaluations that drew a bar of their own.

    The first behind each row of training are held-out data; others, and those beside rows that have
    their validation, are reports, and left out with a note.

    Args:
        rows: Of one wording.
        headings: Numbers of the lines that head an epoch; they rise.
    """
    for field, count in rows.of_kind("counter"):
        total = rows.columns.get(("total", f"of {field.key}"))
        if total is None or not (count.present & total.present).all():
            continue
        if rows.num <= _MIN_ROWS or (count.values != total.values).any():
            continue
        validated = np.zeros(rows.num, dtype=np.bool_)
        for f, column in rows.of_kind("signal"):
            validated |= column.present & (f.name in HELD_OUT)
        if len(headings):
            heads = np.searchsorted(headings, rows.lines)
            report = np.diff(heads, prepend=0) == 0
            # An excerpt begins below its first heading.
            report[0] &= total.values[0] != np.median(total.values[1:])
        else:
            report = _lone_totals(total.values, validated)
        if not report.any() or not (~report).sum() >= _MIN_ROWS:
            continue
        first = report & ~np.append(False, report[:-1])
        evaluated = first & ~np.append(True, report[:-1])
        if not validated.any() and int(evaluated.sum()) >= _MIN_ROWS:
            others, found = report & ~evaluated, [_shape_of(rows.keep(evaluated))]
        else:
            others, found = report, []
        kept = rows.keep(~report)
        if others.any():
            kept.notes.append(_left_out(rows, others))
        return kept, found
    return rows, []


def _lone_totals(total: NDArray[np.float64], validated: NDArray[np.bool_]) -> NDArray[np.bool_]:
    sizes, num = np.unique(total, return_counts=True)
    usual = total[0] if num[sizes == total[0]] == num.max() else sizes[num.argmax()]
    other = total != usual
    alone = other & ~np.append(other[1:], False) & ~np.append(False, other[:-1])
    # A run of another size has a bar of its own, too: only what lacks their validation is none.
    sure = validated[~other].mean() >= _MIN_TIES and not validated[alone].any()
    return alone if sure and not alone[0] else np.zeros(len(total), dtype=np.bool_)


def _left_out(rows: TextRows, others: NDArray[np.bool_]) -> str:
    losses = [c for f, c in rows.of_kind("signal") if f.name == "loss"]
    broken = any((c.present & ~np.isfinite(c.values))[others].any() for c in losses)
    said = f"{counted(int(others.sum()), 'bar')} of evaluations left out, which no epoch heads"
    return said + ("; a loss in them is NaN or Inf" if broken else "")


def _shape_of(rows: TextRows) -> Shape:
    kept = [key for key in rows.columns if key[0] != "signal" or rows.fields[key].name in _NAMES]
    fields = tuple(
        replace(f, key=f"held-out {f.key}", name=_NAMES[f.name]) if f.kind == "signal" else f
        for f in (rows.fields[key] for key in kept)
    )
    values = np.column_stack([rows.columns[key].values for key in kept])
    return Shape(
        fields, array("q", rows.lines.tolist()), array("d", values.ravel().tolist()), rows.num
    )
