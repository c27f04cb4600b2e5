"""Records of evaluations that only the line in front of them tells from those of training.

    epoch: 1, loss is: 0.37, acc is: 0.87
    testing in eval mode ...
    epoch: 1, loss is: 0.58, acc is: 0.80

Such a line may as well be followed by a result in other words, and then by the next epoch of
training. So the records behind it are of held-out data only where their count is that of the record
before.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.readers.freetext.rows import TextRows
from trimtab.readers.freetext.shapes import Shape

__all__ = ["part_announced"]

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
