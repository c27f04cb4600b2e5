"""Whether the training loss is a cross-entropy, in nats, by the key it is logged under."""

import re

from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = ["loss_in_nats"]

_IN_NATS = re.compile(r"(?:^|[^a-z])(?:lm|ce|nll|cross|xent|token|crossentropyloss)(?:[^a-z]|$)")
"""Keys of a loss that is a cross-entropy, in nats; of another loss the unit is not known."""


def loss_in_nats(record: RunRecord) -> bool:
    """Whether the key of the loss says that it is in nats."""
    key = plain(record.keys.get("loss", "")).lower().replace("_", " ")
    return _IN_NATS.search(key) is not None
