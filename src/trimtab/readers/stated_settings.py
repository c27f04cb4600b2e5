"""Settings that a log states under names of its own: `label_smoothing`, `aux_weight`, `img_size`.

Nobody can list them. A key is one if a word of it says so (`is_setting`), and if its values are
held and changed, as settings are, instead of measured (`changes_of_held`). Of several the one that
is changed most often is read: where two are changed in the same row, one place says it all.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from trimtab.said_by_words import is_setting
from trimtab.trend import changes_of_held
from trimtab.vocabulary import normalise

__all__ = ["STATED_SETTING", "may_state_setting", "stated_setting"]

STATED_SETTING = "stated_setting"


def may_state_setting(key: str) -> bool:
    """Whether a key that names no signal may be a setting by its words."""
    return is_setting(normalise(key))


def stated_setting(values: Mapping[str, NDArray[np.float64]]) -> str | None:
    """Return the key of a setting that was changed, None where none was.

    Args:
        values: float64 [n] for each key that no signal takes, those that are logged.
    """
    changes = {k: len(changes_of_held(v)) for k, v in values.items() if may_state_setting(k)}
    return max((k for k, n in changes.items() if n), key=lambda k: changes[k], default=None)
