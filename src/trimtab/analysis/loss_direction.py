"""Whether a lower training loss is a better one: not of two nets against each other, or an agent.

What a generator loses its discriminator wins, a policy's loss is a surrogate that is new at each
update, and the targets of a critic move. Runs part by such losses, and neither is worse for it.
"""

import numpy as np

from trimtab.detectors.stand_in import is_of_a_game, training_of
from trimtab.readers.tags import is_of_an_agent
from trimtab.record import RunRecord
from trimtab.vocabulary import canonical

__all__ = ["no_good_direction"]

_PLAYERS = ("generator_loss", "discriminator_loss")
_OF_AGENTS = ("policy_loss", "value_loss")
_SUM_ERROR = 0.02
"""Share of its size by which a loss may differ from what is called its sum: rounding. Ours."""


def no_good_direction(record: RunRecord, signal: str = "loss") -> bool:
    """Whether a loss of a record, of training or `val_loss`, has no good direction.

    By the name that it is logged under; of what is only called the loss, by its values: the sum of
    what two nets lose against each other.
    """
    key = record.keys.get(signal, "")
    if is_of_a_game(key) or is_of_an_agent(key) or canonical(key) in _OF_AGENTS:
        return True
    return signal == "loss" and training_of(record) == "game" and _is_sum_of_players(record)


def _is_sum_of_players(record: RunRecord) -> bool:
    """Whether the loss is the sum, or the mean, of those of the two nets."""
    whole, *nets = (record.columns.get(n) for n in ("loss", *_PLAYERS))
    if whole is None or nets[0] is None or nets[1] is None:
        return False
    rows = np.flatnonzero(whole.present & nets[0].present & nets[1].present)
    loss, total = whole.values[rows], nets[0].values[rows] + nets[1].values[rows]
    good = np.isfinite(loss) & np.isfinite(total)
    if not good.any():
        return False
    size = float(np.median(np.abs(loss[good])))
    return any(
        float(np.median(np.abs(loss[good] - share * total[good]))) <= _SUM_ERROR * size
        for share in (1.0, 0.5)
    )
