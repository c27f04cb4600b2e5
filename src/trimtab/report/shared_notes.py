"""Notes that would repeat: which column is the loss, and one reference level for each rise."""

import math
import re
from collections.abc import Sequence

from trimtab.analysis.account import RunAccount
from trimtab.detectors.contract import Finding
from trimtab.incidents import JOIN_ROWS
from trimtab.text import plain, reworded

__all__ = ["loss_source", "once", "other_notes"]

_LOSS_NOTE = "loss is read from "
_PLAIN_LOSS = re.compile(r"(?:train(?:ing)?[/_. -])?(?:lm[ _])?loss", re.IGNORECASE)


def loss_source(account: RunAccount) -> str:
    """Return which column is the loss where its name does not say so; else an empty text."""
    note = next((n for n in account.notes if n.startswith(_LOSS_NOTE)), "")
    key = account.record.keys.get("loss", "")
    if note or not key or _PLAIN_LOSS.fullmatch(key):
        return plain(note)
    return plain(f"loss is read from {key!r}")


def other_notes(account: RunAccount) -> tuple[str, ...]:
    """Return all notes but the one on the loss, which is shown under the first line."""
    return tuple(n for n in account.notes if not n.startswith(_LOSS_NOTE))


def once(findings: Sequence[Finding], headline: str) -> list[Finding]:
    """Return the findings without those that measure one rise of a signal against another level.

    The headline's figures count first, then the earliest telling.
    """
    told = sorted(findings, key=lambda f: reworded(f.text) not in headline)
    kept: list[Finding] = []
    for f in told:
        again = (
            (k.signal, k.direction) == (f.signal, f.direction)
            and abs(k.onset_row - f.onset_row) <= JOIN_ROWS
            and math.isfinite(f.value)
            for k in kept
        )
        if not any(again):
            kept.append(f)
    return kept
