"""Losses on several held-out sets, where only the sets are named: `val c4`, `eval: en 2.9 de 3.5`.

What is called by its data alone may be a score as well. It is a loss here if it begins as high as
the training loss there, does not rise as that falls, and most of the sets move with it; and there
are at least two of them.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.scores_by_course import rises
from trimtab.readers.tags import of_training, set_of_tag, trained_beside
from trimtab.record import Column
from trimtab.said_by_words import HELD_OUT_SETS, LOSS_FUNCTIONS

__all__ = ["accuracy_is_held_out", "losses_by_set", "name_of_set", "set_alone", "since_then"]

_LEAST_SETS, _MOST_SETS = 2, 64
_FEWEST = 5
_AS_HIGH = 2.0
"""Times the training loss, up to which a set's begins as high. Ours."""
_MOVES_WITH = 0.5
"""Rank correlation with the training loss, and the share of the sets that have it. Ours."""
_SET_IN_FRONT = re.compile(
    rf"(?:{'|'.join(sorted(HELD_OUT_SETS))})[ _/.:-](?P<set>[A-Za-z0-9][\w.-]{{0,40}})",
    re.IGNORECASE,
)


def name_of_set(word: str) -> str:
    """Return `val_loss/SET` for a word that may be a set of data; empty for any other.

    Example:
        >>> [name_of_set(w) for w in ("de", "kl", "top1", "loss")]
        ['val_loss/de', '', '', '']
    """
    found = set_of_tag(f"val/{word}/loss") if word.lower() not in LOSS_FUNCTIONS else None
    return found or ""


def set_alone(key: str) -> str:
    """Return `val_loss/SET` for a key that names held-out data and a set of it, and nothing else.

    Example:
        >>> [set_alone(k) for k in ("val c4", "dev_books", "val_acc", "train c4")]
        ['val_loss/c4', 'val_loss/books', '', '']
    """
    found = _SET_IN_FRONT.fullmatch(key.strip())
    return name_of_set(found["set"]) if found is not None else ""


def accuracy_is_held_out(keys: Sequence[str], loss: str, val_loss: str, accuracy: str) -> bool:
    """Whether a bare accuracy is of the data of the validation loss in front of it.

    So model cards have it: both losses say in words what they are of, and no other key does.

    Args:
        keys: All of a row, in their order.
        loss: That of the training loss.
        val_loss: That of the validation loss.
        accuracy: That of the accuracy.

    Example:
        >>> card = ["Training Loss", "Epoch", "Validation Loss", "Accuracy"]
        >>> accuracy_is_held_out(card, card[0], card[2], card[3])
        True
        >>> accuracy_is_held_out([*card, "Val F1"], card[0], card[2], card[3])
        False
    """
    in_words = {k for k in keys if of_training(k) or trained_beside(k)}
    return (
        in_words == {loss, val_loss}
        and of_training(loss)
        and keys.index(val_loss) < keys.index(accuracy)
    )


def since_then(loss: Column) -> NDArray[np.float64]:
    """Return the last finite loss up to each row, float64 [n_rows]; NaN before the first."""
    known = loss.present & np.isfinite(loss.values)
    last = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
    return np.where(last >= 0, loss.values[np.maximum(last, 0)], np.nan)


def losses_by_set(
    sets: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]],
) -> list[str]:
    """Return the names of the sets whose values are losses; none where fewer than two are.

    Args:
        sets: By name, values and the training loss there, float64 [n] each.
    """
    moved: list[str] = []
    near: list[str] = []
    for name, (values, loss) in sets.items():
        known = np.isfinite(values) & np.isfinite(loss)
        v, x = values[known], loss[known]
        if len(v) < _FEWEST or not (v > 0).all() or not (x > 0).all():
            continue
        begins = float(np.median(v[:3] / x[:3]))
        both = Column(v, np.ones(len(v), np.bool_)), Column(x, np.ones(len(v), np.bool_))
        if not 1 / _AS_HIGH <= begins <= _AS_HIGH or rises(*both):
            continue
        near.append(name)
        a, b = (np.argsort(np.argsort(y, kind="stable"), kind="stable") for y in (v, x))
        if float(np.corrcoef(a, b)[0, 1]) >= _MOVES_WITH:
            moved.append(name)
    enough = len(moved) >= max(_LEAST_SETS, _MOVES_WITH * len(near))
    return sorted(near)[:_MOST_SETS] if enough else []
