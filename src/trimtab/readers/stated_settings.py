"""Settings that a log states under names of its own: `label_smoothing`, `aux_weight`, `img_size`.

Nobody can list them. A key is one if a word of it says so (`is_setting`), and if its values are
held and changed, as settings are, instead of measured (`changes_of_held`). Several are read as one
signal that counts their changes; where that is held too shortly, or each has steps of its own, it
is the one that is changed most often.
"""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.record import Column
from trimtab.said_by_words import is_setting
from trimtab.trend import changes_of_held
from trimtab.vocabulary import canonical, normalise

__all__ = [
    "ANNOUNCED",
    "STAGE",
    "STATED_SETTING",
    "may_state_setting",
    "settings_in",
    "stated_setting",
]

STATED_SETTING = "stated_setting"
ANNOUNCED = "announced "
"""Before what a line of text announces, in the key of its column."""
STAGE = "stage"
"""The signal that is one of them, too: where it changes, the data do."""


_NOTHING: Mapping[str, Column] = {}
_NAMES = frozenset({"task", "dataset", "corpus", "data source"}) | {
    f"{of}{what}{steps}"
    for of in ("gradient ", "grad ", "")
    for what in ("accumulation", "accum")
    for steps in (" steps", " iter", "")
}
"""What is learned, or from what, and of how many parts a step is, where that is held and changed."""


def may_state_setting(key: str) -> bool:
    """Whether a key may be a setting by its words: one that names no signal, or a stage."""
    name = normalise(key)
    return name in _NAMES or is_setting(name) or canonical(key) == STAGE


def stated_setting(values: Mapping[str, NDArray[np.float64]]) -> str | None:
    """Return the key of a setting that was changed, None where none was.

    Args:
        values: float64 [n] for each key that no signal takes, those that are logged.
    """
    return _most_often(_changes(values))


def _changes(
    values: Mapping[str, NDArray[np.float64]], surely: Collection[str] = ()
) -> dict[str, NDArray[np.intp]]:
    """Return where each setting is changed; those that never are, and what is measured, left out."""
    found = {
        k: changes_of_held(v) for k, v in values.items() if k in surely or may_state_setting(k)
    }
    return {k: at for k, at in found.items() if len(at)}


def _most_often(changes: Mapping[str, NDArray[np.intp]]) -> str | None:
    return max(changes, key=lambda k: len(changes[k]), default=None)


def settings_in(
    columns: Mapping[str, Column], announced: Mapping[str, Column] = _NOTHING
) -> tuple[str, Column] | None:
    """Return the keys of the settings that were changed, joined by a comma, and their signal.

    Args:
        columns: Of each key that no signal takes, all of the same rows.
        announced: What changes though no column holds it, whatever it is called.
    """
    columns = {**columns, **announced}
    changes = _changes({k: c.logged() for k, c in columns.items()}, announced.keys())
    most = _most_often(changes)
    if most is None or len(changes) == 1:
        return None if most is None else (most, columns[most])
    num_rows = len(columns[most].values)
    steps = np.zeros(num_rows)
    for key, at in changes.items():
        steps[np.flatnonzero(columns[key].present)[at]] = 1.0
    count = np.cumsum(steps)
    if len(changes_of_held(count)) < int(steps.sum()):
        return most, columns[most]
    return ", ".join(sorted(changes)), Column(count, np.ones(num_rows, dtype=np.bool_))
