"""What makes a score of training sink on purpose: harder data, a penalty, a stage, another score."""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.readers.stated_settings import STAGE, STATED_SETTING
from trimtab.record import RunRecord
from trimtab.signals.robust import median
from trimtab.text import OTHER
from trimtab.vocabulary import canonical

__all__ = ["as_designed", "sinks_by_design", "unless_designed"]

Rows = NDArray[np.intp]

_LOST = frozenset({"sign-accuracy-lost", "sign-reward-lost"})
"""Signs that see row by row that a score is lost."""
_BY_NAME = re.compile(r"domain|membership|advers|discrim|curios|intrinsic|self[ _-]?play")
"""Words of scores of what is to be unlearned, or runs dry, or is won against oneself."""
_HARDER = re.compile(
    r"difficult|curricul|sparsit|penal|shap|coef|hard|mask|aug|magnitude|strength|level|temperat|"
    r"noise|ratio|prob|weight|stage|phase|elo|rating|opponent"
)
_SURELY = re.compile(
    r"difficult|curricul|sparsit|penal|shaping|hard[ _-]|mask|augment|aug[ _-]|magnitude|strength|"
    r"curios|intrinsic|opponent|(?:^|[^a-z])elo(?:[^a-z]|$)|acc[ _-]task|task[ _-]acc|return|success"
)
_OF_HELD_OUT = re.compile(r"sparsity|curricul|difficult")
"""What is taken away, or made harder, so that a score on held-out data sinks with it."""
_BETTER = re.compile(r"(?:^|[^a-z])(?:acc|success|score|solved|win|return|elo|f1|map|ep)")
_LEVELS, _FEWEST, _GAINS = 6, 3, 0.05
"""Levels that go one way, of a schedule; values that tell one; and the share of its first level that
another score gains. Ours."""


def as_designed(record: RunRecord, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Return findings, those of scores that are lost on purpose as notes."""
    return tuple(
        _noted(f) if f.detector in _LOST and f.severity != "info" and _is_designed(record, f) else f
        for f in findings
    )


def unless_designed(
    record: RunRecord, f: Finding, since: Rows, *, held_out: bool = False
) -> Finding:
    """Return a finding of a score that sinks, as a note where it does on purpose.

    Args:
        record: What was logged.
        f: The finding; its signal is the score.
        since: Rows from its best on.
        held_out: Whether the score is one on held-out data.
    """
    return _noted(f) if sinks_by_design(record, f.signal, since, held_out=held_out) else f


def _noted(f: Finding) -> Finding:
    return replace(f, severity="info", text=f"{f.text}; the log says what makes it harder")


def _is_designed(record: RunRecord, f: Finding) -> bool:
    span = record.rows_of(int(record.attempt[f.onset_row]))
    rows = record.columns[f.signal].finite_rows(slice(f.onset_row, span.stop))
    return len(rows) > 1 and sinks_by_design(record, f.signal, rows)


def sinks_by_design(record: RunRecord, signal: str, since: Rows, *, held_out: bool = False) -> bool:
    """Whether something that the log holds makes a score lower, over some rows, on purpose.

    Args:
        record: What was logged.
        signal: The score.
        since: Rows from its best on.
        held_out: Whether it is one on held-out data, which fewer settings lower, and which another
            score that gains does not excuse.
    """
    surely, harder = (_OF_HELD_OUT, _OF_HELD_OUT) if held_out else (_SURELY, _HARDER)
    settings = (STATED_SETTING, STAGE, "kl_weight") if not held_out else ()
    if _BY_NAME.search(record.keys.get(signal, signal).lower()):
        return True
    # Of a key that no column holds it is not known what it does: its words have to do.
    held = {record.keys.get(name, name) for name in record.columns}
    if any(surely.search(key.lower()) for key in record.unread if key not in held):
        return True
    span = slice(int(since[0]), int(since[-1]) + 1)
    for name, column in record.columns.items():
        if name == signal:
            continue
        y = column.values[column.finite_rows(span)]
        if len(y) < 2 * _FEWEST:
            continue
        key = record.keys.get(name, name).lower()
        named = name.startswith(OTHER) or held_out
        if name in settings or (named and harder.search(key)):
            levels = np.array([median(part) for part in np.array_split(y, min(_LEVELS, len(y)))])
            moves = np.diff(levels)
            if moves.any() and ((moves >= 0).all() or (moves <= 0).all()):
                return True
        if not held_out and _gains(name, key, y):
            return True
    return False


def _gains(name: str, key: str, y: NDArray[np.float64]) -> bool:
    """Whether what is held out, or another score, gets better."""
    part = max(_FEWEST, len(y) // 4)
    first, last = median(y[:part]), median(y[-part:])
    if name in ("val_loss", "eval_error"):
        return last < (1 - _GAINS) * first
    scored = name == "eval_score" or canonical(name.removeprefix(OTHER)) == "eval_score"
    if scored or (name.startswith(OTHER) and _BETTER.search(key)):
        return last > first + _GAINS * abs(first) and last > first
    return False
