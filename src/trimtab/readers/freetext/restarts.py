"""Lines of a text that state a restart: where, and from which step.

    step=600 loss=4.01
    === starting, resume=True from step 600 ===
    step=604 loss=4.12

The steps go on as if nothing had happened, and the line alone says that an attempt begins. What only
loads or goes on, as each evaluation may, needs the step that the next row goes on from.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Restart", "RestartLine", "restarts_of", "states_restart"]

MOST_RESTARTS = 32
"""Lines beyond which they state something else than restarts. Ours."""
_MOST_CHARS = 300
_REACH = 3
"""Usual distances of the rows, up to which a row goes on from a step. Ours."""
_RESUMES = re.compile(
    r"\b(?:resum(?:e|ed|ing)|restart(?:ed|ing)?|relaunch(?:ed|ing)?)\b"
    r"(?:\W{0,3}(?:true|yes|1)\b|[^\n]{0,40}?\b(?:from|checkpoint|ckpt)\b"
    r"|(?: training| run)? at (?:global[_ ])?(?:step|iter|epoch|update))",
    re.IGNORECASE,
)
_GOES_ON = re.compile(
    r"\b(?:(?:load|reload|restor)(?:e|ed|ing)\b[^\n]{0,60}?(?:checkpoint|ckpt|state)"
    r"|(?:continu(?:e|ed|ing)|roll(?:ed|ing)? ?back|start(?:ed|ing)?)\b[^\n]{0,40}?\b(?:from|to|at)\b)",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"\bresum\w*\W{0,3}(?:false|no|none|null|0|''|\"\")|\b(?:no|not|without|never|if|cannot|failed)\b"
    r"|\bbest\b|pretrained|shards|\b(?:saved|saving|save)\b",
    re.IGNORECASE,
)
_COUNT = re.compile(
    r"(?P<what>step|iter(?:ation)?|update|epoch|checkpoint|ckpt)s?[\W_]{0,3}(?P<count>\d[\d,_]{0,15})"
    r"(?P<thousand>k\b)?",
    re.IGNORECASE,
)
_COUNTED = re.compile(
    r"@ {0,2}(?P<count>\d[\d,_]{0,15})(?P<thousand>k)? (?P<what>update|step|iteration)s\b",
    re.IGNORECASE,
)
"""A count before its unit, as fairseq has it: `(epoch 11 @ 60000 updates)`."""


@dataclass(frozen=True)
class RestartLine:
    """A line that states a restart, or may."""

    line: int
    """Its number, from 1."""
    text: str
    surely: bool
    """Whether its words alone say so."""
    count: float | None = None
    of_epochs: bool = False


@dataclass(frozen=True)
class Restart:
    """What is known of an attempt that a line of the text begins."""

    why: str
    step: float | None
    """What it went on from, on the axis of the rows; None where the line does not say."""


def states_restart(line: str, number: int) -> RestartLine | None:
    """Return what a line states of a restart, None for another line.

    Example:
        >>> said = states_restart("=== starting, resume=True from step 600 ===", 152)
        >>> said.surely, said.count
        (True, 600.0)
        >>> states_restart("=== starting, resume=False from step 0 ===", 1) is None
        True
    """
    if len(line) > _MOST_CHARS or _DENIED.search(line):
        return None
    surely = _RESUMES.search(line) is not None
    if not surely and _GOES_ON.search(line) is None:
        return None
    found = list(_COUNTED.finditer(line)) or list(_COUNT.finditer(line))
    if not found:
        return RestartLine(number, line, surely) if surely else None
    # A path may hold the number of a run; what is said last is where it goes on.
    last = found[-1]
    count = float(re.sub(r"[,_]", "", last["count"])) * (1e3 if last["thousand"] else 1.0)
    return RestartLine(number, line, surely, count, last["what"].lower() == "epoch")


def restarts_of(
    stated: Sequence[RestartLine], lines: NDArray[np.int64], place: NDArray[np.float64], axis: str
) -> Mapping[int, Restart]:
    """Return row -> the restart that it begins.

    Args:
        stated: In the order of the text.
        lines: int64 [n_rows], the number of each row's line.
        place: float64 [n_rows], on the axis.
        axis: `step`, `epoch` or `row`.
    """
    found: dict[int, Restart] = {}
    moves = np.diff(place)
    usual = float(np.median(moves[moves > 0])) if (moves > 0).any() else 1.0
    for said in stated:
        row = int(np.searchsorted(lines, said.line))
        if not 0 < row < len(lines):
            continue
        step = None
        if said.count is not None and axis == ("epoch" if said.of_epochs else "step"):
            ahead = place[row] - said.count
            fits = -usual <= ahead <= max(_REACH * usual, 2.0)
            step = min(said.count, float(place[row])) if fits else None
        # Of several lines of one restart the one that names the step says most.
        is_news = row not in found or found[row].step is None
        if is_news and (said.surely or step is not None):
            found[row] = Restart(said.text.strip(), step)
    return found if len(found) <= min(MOST_RESTARTS, len(lines) / _REACH) else {}
