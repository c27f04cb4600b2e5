"""Data or state, without a training step: two checkpoints by two sets of batches, forward only.

              fixed batches   suspect window
    before    a               b                 b - a: what is the matter with the data
    after     c               d                 c - a: what is the matter with the state

The command that evaluates is the user's (`evaluate` in [supervise]): the framework's own, on one
replica. It prints one loss, or one for each batch, from which the spread is taken.
"""

import math
import re
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.text import number

__all__ = ["Evaluation", "TwoByTwo", "evaluated", "judged"]

Blame = Literal["data", "state", "both", "neither", "unknown"]
_ERRORS = 3.0
"""Standard errors of a difference that are noise. Ours."""
_FLOOR = 0.02
"""Share of the loss below which a difference counts for nothing, also where one number is all that
is printed. Ours: other text of the same source differs by as much."""
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
_LOSS = re.compile(rf"\b(?:\w+_)?loss\b['\"]?\s*[=:]\s*['\"]?({_NUMBER})\b", re.IGNORECASE)
_MOST_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One cell."""

    loss: float
    """Mean, nats; NaN and Inf are values."""
    error: float | None
    """Its standard error; None: one number was printed."""


@dataclass(frozen=True, kw_only=True)
class TwoByTwo:
    """What the four numbers say."""

    blame: Blame
    text: str


def read_loss(output: str) -> Evaluation | None:
    r"""Return the loss that an evaluation printed; None where it printed none.

    Example:
        >>> read_loss("loading ...\n2.0 2.2 2.4").loss
        2.2
        >>> read_loss("{'eval_loss': 2.31, 'eval_runtime': 9.4}").loss
        2.31
    """
    named = _LOSS.findall(output)
    lines = [line for line in output.splitlines() if line.strip()]
    words = named[-1:] if named else lines[-1].replace(",", " ").split() if lines else []
    try:
        losses = [float(word) for word in words]
    except ValueError:
        return None
    if not losses:
        return None
    spread = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None
    if not all(map(math.isfinite, losses)):
        return Evaluation(loss=math.nan, error=None)
    return Evaluation(loss=statistics.fmean(losses), error=spread)


def judged(cells: Mapping[tuple[str, str], Evaluation]) -> TwoByTwo:
    """Return what differs: under `before` and `after`, on `fixed` and `window`.

    Example:
        >>> cell = lambda loss: Evaluation(loss=loss, error=0.02)
        >>> told = judged({("before", "fixed"): cell(2.0), ("before", "window"): cell(5.0),
        ...                ("after", "fixed"): cell(2.02), ("after", "window"): cell(5.1)})
        >>> told.blame
        'data'
    """
    base = cells.get(("before", "fixed"))
    if base is None or not math.isfinite(base.loss):
        return TwoByTwo(blame="unknown", text="the checkpoint from before gives no loss")
    window, after = cells.get(("before", "window")), cells.get(("after", "fixed"))
    bad_data = window is not None and _worse(window, base)
    bad_state = after is not None and _worse(after, base)
    blame: Blame = "both" if bad_data and bad_state else "data" if bad_data else "state"
    if not bad_data and not bad_state:
        blame = "neither" if window is not None and after is not None else "unknown"
    said = {
        "data": "the window is bad under a state that is sound: the data",
        "state": "the state is worse on batches that are sound: the state",
        "both": "the window is bad under the state from before, and it harmed the state",
        "neither": "neither the window nor the state stands out",
        "unknown": "what there is shows nothing, and a part is missing",
    }[blame]
    rows = []
    for state in ("before", "after"):
        shown = [f"{data} {_shown(cells.get((state, data)))}" for data in ("fixed", "window")]
        rows.append(f"{state}: {', '.join(shown)}")
    return TwoByTwo(blame=blame, text=f"{said} ({'; '.join(rows)})")


def _worse(cell: Evaluation, base: Evaluation) -> bool:
    if not math.isfinite(cell.loss):
        return True
    spread = math.hypot(cell.error or 0.0, base.error or 0.0)
    return cell.loss - base.loss > max(_ERRORS * spread, _FLOOR * abs(base.loss))


def _shown(cell: Evaluation | None) -> str:
    if cell is None:
        return "not read"
    return number(cell.loss) + ("" if cell.error is None else f" ± {number(cell.error)}")


def evaluated(
    command: str,
    checkpoints: Mapping[str, str],
    data: Mapping[str, str],
    *,
    within_s: float,
    aborted: Callable[[], bool],
) -> dict[tuple[str, str], Evaluation]:
    """Run the command for each checkpoint and each data; return what could be read.

    Args:
        command: With {checkpoint} and {data}.
        checkpoints: `before` and `after`, where there is one.
        data: `fixed` and `window`.
        within_s: Time for all of them, seconds.
        aborted: Whether something else has to be done at once.
    """
    deadline = time.monotonic() + within_s
    found: dict[tuple[str, str], Evaluation] = {}
    for state, path in checkpoints.items():
        for name, what in data.items():
            words = [
                w.replace("{checkpoint}", path).replace("{data}", what)
                for w in shlex.split(command)
            ]
            output = _output(words, deadline, aborted)
            cell = None if output is None else read_loss(output)
            if cell is not None:
                found[state, name] = cell
    return found


def _output(words: list[str], deadline: float, aborted: Callable[[], bool]) -> str | None:
    """Return what a command prints; None where it fails, or there is no time for it."""
    try:
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            while True:
                try:
                    printed = process.communicate(timeout=0.2)[0]
                except subprocess.TimeoutExpired:
                    if time.monotonic() < deadline and not aborted():
                        continue
                    process.kill()
                    return None
                done = process.returncode == 0
                return printed[-_MOST_BYTES:].decode("utf-8", "replace") if done else None
    except OSError:
        return None
