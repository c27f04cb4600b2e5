"""Losses that are no distance to what is learned: of two nets against each other, of an agent.

Such a loss stands in where nothing else is called the loss. It has no good direction and no floor:
adversaries drive each other's up, a policy's is a surrogate that is new at each update, and the
targets of a critic move. A level that it moves to and stays at is no trouble. What is: values that
break, one that repeats for ever, and of a game a loss that runs away. Its magnitude then grows, in
eighths of an attempt, from each to the next over the last half, and at the end it is `RUNAWAY`
times the largest of the first half. A critic that begins at 0 has its rise behind it by then.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from trimtab.detectors.contract import Finding
from trimtab.detectors.record_finding import finding_at
from trimtab.readers.freetext.keys import is_adversarial
from trimtab.readers.tags import is_of_an_agent
from trimtab.record import RunRecord
from trimtab.text import number
from trimtab.vocabulary import canonical, normalise

__all__ = [
    "Training",
    "is_distance",
    "is_of_a_game",
    "no_distances",
    "of_stand_in",
    "runaway_findings",
    "training_of",
]

RUNAWAY = 30.0
"""Times the largest magnitude of the first half. Ours: sound games stay below 5."""
EIGHTHS = 8
FEWEST_ROWS = 32
_GAME_LOSSES = ("generator_loss", "discriminator_loss")
_OF_TERMS = ("recon_loss", "ema_loss", "low_noise_loss", "high_noise_loss")
_DISTANCES = frozenset((None, "loss", "val_loss", "perplexity", "val_perplexity", *_OF_TERMS))
"""What a key names that is read as the loss: itself, what it is the logarithm of, or how far what a
model gives back lies from what it was given."""
_OF_AN_AGENT = frozenset(("reward", "policy_loss", "value_loss", "explained_variance", "update_kl"))
_OF_VALUES = re.compile(r"(?<![a-z])(?:td|q|qf|dqn|bellman)\d?(?![a-z])")
"""Words of the loss of a net of values, which begins at next to nothing and grows."""
Training = Literal["agent", "game", ""]
_ASIDE = re.compile(
    r"\b(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval|avg|average|mean|running|smoothed|epoch|"
    r"batch|iter|step|total|sum|full|final)\b"
)
"""Words of the data and of the mean, which say nothing of the net."""


def is_of_a_game(key: str) -> bool:
    r"""Return whether a key names the loss of one of two nets that are trained against each other.

    Args:
        key: As logged; words such as `train` and `mean` are passed over.

    Example:
        >>> [is_of_a_game(k) for k in ("train_loss_g", "Disc Loss", "train/loss", "val_loss")]
        [True, True, False, False]
    """
    text = normalise(key)
    bare = re.sub(r"[ /]+", " ", _ASIDE.sub("", text)).strip()
    return any(is_adversarial(k) or canonical(k) in _GAME_LOSSES for k in (text, bare) if k)


def is_distance(record: RunRecord) -> bool:
    """Return whether the loss of a record is a distance to what is learned.

    As far as its own name tells; beside a reward and a loss of values, `loss` is the sum of those.
    Where actions are drawn at random by a share that falls, it is that of values, whose targets grow
    with what the agent earns.
    """
    key = record.keys.get("loss", "loss")
    if "reward" in record.columns and (
        "exploration" in record.columns or _OF_VALUES.search(normalise(key))
    ):
        return False
    if canonical(key) not in _DISTANCES or is_of_a_game(key) or is_of_an_agent(key):
        return False
    return not ("reward" in record.columns and "value_loss" in record.columns)


def training_of(record: RunRecord) -> Training:
    """Return what a record shows to be trained: an agent, two nets against each other, or neither.

    By the signals it logs, and by the name of what is read as its loss. Language models that are
    trained as agents are agents, too.
    """
    key = record.keys.get("loss", "")
    if not _OF_AN_AGENT.isdisjoint(record.columns) or is_of_an_agent(key):
        return "agent"
    if not set(_GAME_LOSSES).isdisjoint(record.columns) or is_of_a_game(key):
        return "game"
    return ""


def no_distances(record: RunRecord) -> frozenset[str]:
    """Return which of the losses of a record measure no distance, of training and of held-out data."""
    held_out = record.keys.get("val_loss", "")
    told = set() if is_distance(record) else {"loss"}
    return frozenset(told | ({"val_loss"} if is_of_a_game(held_out) else set()))


def of_stand_in(f: Finding, signals: frozenset[str]) -> Finding:
    """Return a finding on a loss that is no distance as a note; values that break stay alarms."""
    if f.signal not in signals or f.kind in ("non-finite", "frozen-signal"):
        return f
    return replace(f, severity="info")


def runaway_findings(record: RunRecord) -> tuple[Finding, ...]:
    """Return the losses of a game that run away to the end of an attempt, one an attempt at most."""
    return tuple(
        found
        for index in range(len(record.attempts))
        if (found := next(_runaways(record, record.rows_of(index)), None)) is not None
    )


def _runaways(record: RunRecord, span: slice) -> Iterator[Finding]:
    # The targets of a value net grow with what its agent earns.
    if "reward" in record.columns:
        return
    names = [n for n in ("loss", *_GAME_LOSSES) if n in record.columns]
    for name in names:
        if name == "loss" and not is_of_a_game(record.keys.get("loss", "")):
            continue
        rows = record.columns[name].finite_rows(span)
        if len(rows) < FEWEST_ROWS:
            continue
        sizes = np.abs(record.columns[name].values[rows])
        level = [float(np.median(part)) for part in np.array_split(sizes, EIGHTHS)]
        usual = max(level[: EIGHTHS // 2])
        late = level[EIGHTHS // 2 - 1 :]
        if level[-1] < RUNAWAY * usual or not all(a < b for a, b in pairwise(late)):
            continue
        # From the last row that was still as large as the first half at most.
        onset = int(rows[min(int(np.flatnonzero(sizes <= 2 * usual)[-1]) + 1, len(rows) - 1)])
        peak = int(rows[int(np.argmax(sizes))])
        value = float(record.columns[name].values[peak])
        yield finding_at(
            record,
            detector="runaway",
            kind="divergence",
            signal=name,
            severity="critical",
            row=int(rows[-1]),
            onset_row=onset,
            peak_row=peak,
            value=value,
            expected=usual,
            score=min(99.0, level[-1] / max(usual, 1e-300)),
            direction="up" if value > 0 else "down",
            closed=True,
            text=(
                f"{name.replace('_', ' ')} runs away: of size {number(usual)} at first,"
                f" {number(level[-1])} in the last rows, growing to the end"
            ),
        )
