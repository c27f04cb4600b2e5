"""Lines of a text that announce another phase, or another setting, without a loss.

    === phase 2: seq_len 1024 ===
    Starting curriculum stage 3 (resolution 256)
    Unfreezing backbone at epoch 5

What the loss is made of is another thing from the next row on. A line must say that something
begins or changes, and what; it occurs rarely: what is printed for each epoch announces nothing.
Nor does a drop of the learning rate: the loss is made of the same as before.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimtab.readers.freetext.keys import is_held_out
from trimtab.readers.stated_settings import ANNOUNCED
from trimtab.record import Column

__all__ = ["ChangeLine", "changes_of", "states_change"]

_MOST_LINES, _MOST_OF_A_WORDING, _MOST_REPEATS = 32, 8, 2
"""Rows beyond which such lines, those of one wording, and those of one text announce nothing. Ours.
"""
_MOST_CHARS = 200
_TO = r"(?:\W|\b(?:to|from|is|of|now|the|at)\b){0,12}"
_NAME = (
    r"(?!(?:epoch|step|iter|of|at|for|in|is|on|the|train|training|took|time|and|with)\b)[a-z]\w*"
)
_STAGE = rf"\b(?P<stage>phase|stage|curriculum)(?:[ _-](?:stage|phase|level))?[\s:=#(-]{{1,3}}(?:\d+|{_NAME})"
_SIZE = (
    r"\b(?P<size>(?:image|img|crop|input|batch)[ _-]?size|resolution"
    rf"|(?:seq|sequence|context)[ _-]?len(?:gth)?){_TO}\d"
)
_DATA = rf"\b(?P<data>dataset|data set|data mixture|mixture|task){_TO}(?:\d|{_NAME})"
_MOVES = (
    r"\b(?:switch|chang|mov|advanc|progress|transition|enter|increas|decreas|grow|shrink|reduc|"
    r"rais|lower|doubl|halv|enabl|disabl|activat)(?:e|es|ed|ing|ding|ping|s)?\b"
)
_OBJECTIVE = (
    r"\b(?P<objective>criterion|objective|loss function|label[ _-]?smoothing|mixup|cutmix"
    r"|(?:data )?augmentations?|dropout|teacher[ _-]forcing)"
)
_MIXTURE = r"\b(?P<mixture>(?:data[ _-]?)?mix(?:ture)?|data ?set|data (?:source|stage))\b"
_BEGINS = r"\b(?:start|begin|launch)(?:s|ing|ning)?\b"
_HEAD = r"^(?:\[[^\]\n]{0,40}\]|\b(?:INFO|DEBUG|NOTICE)\b|[^A-Za-z\[])*+"
"""What a logger writes before a message: times, names in brackets, a level."""
_PATTERNS = tuple(
    re.compile(text, re.IGNORECASE)
    for text in (
        rf"{_HEAD}{_STAGE}",
        rf"\bdata {_STAGE} {_BEGINS}",
        rf"(?:{_MOVES}|{_BEGINS})[^\n]{{0,40}}?{_STAGE}",
        rf"{_MOVES}[^\n]{{0,40}}?(?:{_SIZE}|{_DATA})",
        rf"(?:{_MOVES}|\bturn(?:s|ed|ing)? o(?:n|ff)\b)[^\n]{{0,20}}?{_OBJECTIVE}",
        rf"(?:{_MOVES}|{_BEGINS})[^\n]{{0,20}}?\b(?P<optimizer>l-?bfgs)\b",
        rf"{_MIXTURE} (?:is |was )?(?:now |being )?{_MOVES}",
        r"\b(?P<frozen>(?:un)?(?:freez(?:e|ing)|froze(?:n)?))\b[^\n]{0,20}?[a-z]{3}",
    )
)
_HINT = re.compile(
    r"(?i:phase|stage|curric|size|resol|len|data|mix|task|fr[eo]+z|criter|objectiv|loss func|smooth"
    r"|augment|dropout|forcing|bfgs)"
)
"""A part of a word that every pattern needs: `cutmix`, `sequence length`, `unfreezing`."""
_DENIED = re.compile(
    r"\b(?:no|not|without|never|if|cannot|failed|will|would|done|finish(?:ed)?|complete[d]?|end(?:s|ed)?"
    r"|took|elapsed|warn\w*|errors?|sav(?:ed|ing)|load(?:ed|ing)|loss(?! function)|resum\w*|skip\w*|cach\w*|log(?:ging|s)?|tracker|rng|workers?|disk|ssd|dir\w*|path|copy|pipeline|gc|fork"
    r"|seeded|frequency|refresh\w*)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ChangeLine:
    """A line that announces a change."""

    line: int
    """Its number, from 1."""
    what: str
    """What changes: `phase`, `sequence length`."""
    text: str


def states_change(line: str, number: int) -> ChangeLine | None:
    """Return what a line announces, None for another line.

    Example:
        >>> said = states_change("=== phase 2: seq_len 1024 ===", 81)
        >>> said.what, states_change("Starting validation phase 2", 9) is None
        ('phase', True)
    """
    # Most lines have no word of any pattern, and there may be very many of them.
    if len(line) > _MOST_CHARS or _HINT.search(line) is None:
        return None
    found = next((m for p in _PATTERNS if (m := p.search(line)) is not None), None)
    if found is None or _DENIED.search(line) or is_held_out(line):
        return None
    kind, word = next((k, w) for k, w in found.groupdict().items() if w)
    what = "frozen layers" if kind == "frozen" else re.sub(r"[ _-]+", " ", word.lower())
    return ChangeLine(number, what, line.strip())


def changes_of(
    stated: Sequence[ChangeLine], lines: NDArray[np.int64]
) -> tuple[dict[str, Column], list[str]]:
    """Return how often each thing has changed so far, by `announced THING`, and notes.

    Args:
        stated: In the order of the text.
        lines: int64 [n_rows], the number of each row's line.
    """
    placed = [(int(np.searchsorted(lines, said.line)), said) for said in stated]
    placed = [(row, said) for row, said in placed if 0 < row < len(lines)]
    of_text, of_wording = dict[str, set[int]](), dict[str, set[int]]()
    for row, said in placed:
        of_text.setdefault(said.text, set()).add(row)
        of_wording.setdefault(_wording(said.text), set()).add(row)
    kept = [
        (row, said)
        for row, said in placed
        if len(of_text[said.text]) <= _MOST_REPEATS
        and len(of_wording[_wording(said.text)]) <= _MOST_OF_A_WORDING
    ]
    if len({row for row, _ in kept}) > _MOST_LINES:
        return {}, []
    columns: dict[str, Column] = {}
    for what in dict.fromkeys(said.what for _, said in kept):
        steps = np.zeros(len(lines))
        steps[[row for row, said in kept if said.what == what]] = 1.0
        columns[ANNOUNCED + what] = Column(np.cumsum(steps), np.ones(len(lines), np.bool_))
    notes = [f"line {said.line} announces a change: {said.text!r}" for _, said in kept]
    return columns, notes


def _wording(text: str) -> str:
    return re.sub(r"\d+", "#", text)
