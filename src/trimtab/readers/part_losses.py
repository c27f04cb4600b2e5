"""Losses that stand beside the one that is read, where no key is the whole: NaN in any is told.

A detector's log has `box_loss`, `cls_loss` and `dfl_loss`, that of a GAN `D_A` and `G_A`, and none
has their sum. One of them is read as the loss. The others need not fall and are not judged by their
level, but a NaN in one breaks the weights that all of them share: it counts in `nonfinite`. Beside a
whole that is finite a part with NaN is none of its terms, and only a note.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.nan_policy import nan_means_missing
from trimtab.readers.numbers import counted, shown
from trimtab.readers.tags import signal_of_tag
from trimtab.record import Column

__all__ = ["BROKEN_PARTS", "GAN_PAIR", "Watched", "watch_parts"]

BROKEN_PARTS = "nonfinite"
"""The signal that counts parts with NaN or Inf."""
GAN_PAIR = frozenset({"g", "d"})
"""Names of the losses of a generator and its discriminator, which mean so only side by side."""
_MAX_TOLD = 6


@dataclass(frozen=True)
class Watched:
    """Parts whose NaN is told."""

    keys: tuple[str, ...] = ()
    """All of them; none where a whole is read."""
    broken: tuple[Column, str] | None = None
    """How many are NaN or Inf in each row, and the first key that is; None where none ever is."""


def watch_parts(
    loss: str,
    values: Column,
    parts: Mapping[str, Column],
    notes: list[str],
    *,
    is_whole: bool | None = None,
) -> Watched:
    """Return the parts that are watched beside the loss that is read, and what broke.

    Args:
        loss: Key that is read as the loss.
        values: Its values [n_rows]; where they broke as well, the parts add nothing.
        parts: Other keys of losses, not of held-out data, each [n_rows].
        notes: What is looked at, and what broke, is added here.
        is_whole: Whether it is the sum of the parts; None: by its key.

    A part that never was a number, or whose NaN come so regularly that they mean "not recorded",
    counts as missing there.
    """
    is_part = signal_of_tag(loss) != "loss" if is_whole is None else not is_whole
    finite = ~values.present | np.isfinite(values.values)
    broken = {k: bad for k, column in parts.items() if (bad := _broken(column) & finite).any()}
    for key, bad in list(broken.items())[:_MAX_TOLD]:
        said = "" if is_part else f"; {shown(loss)} is what is judged"
        notes.append(f"{shown(key)} is NaN or Inf in {counted(int(bad.sum()), 'row')}{said}")
    if not is_part or not parts:
        return Watched()
    names = ", ".join(map(shown, list(parts)[:_MAX_TOLD])) + (
        " ..." if len(parts) > _MAX_TOLD else ""
    )
    notes.append(f"of {names} only NaN and Inf are told: {shown(loss)} is read as the loss")
    if not broken:
        return Watched(tuple(parts))
    present = np.any([parts[key].present for key in broken], axis=0)
    count = np.sum(list(broken.values()), axis=0, dtype=np.float64)
    column = Column(np.where(present, count, np.nan), present)
    return Watched(tuple(parts), (column, next(iter(broken))))


def _broken(column: Column) -> NDArray[np.bool_]:
    """Return the rows in which a part broke, bool [n_rows]."""
    missing, _ = nan_means_missing(column, is_loss=False)
    bad: NDArray[np.bool_] = column.present & ~np.isfinite(column.values) & ~missing
    return bad
