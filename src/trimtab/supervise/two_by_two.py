"""Data or state, without a training step: two checkpoints by two sets of batches, forward only.

              fixed batches   suspect window
    before    a               b                 b - a: what is the matter with the data
    after     c               d                 c - a: what is the matter with the state

The command that evaluates is the user's (`evaluate` in [supervise]): the framework's own, on one
replica. It prints one loss, or one for each batch, from which the spread is taken.
"""

import math
import os
import re
import secrets
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from trimtab.supervise.processes import TOKEN_NAME, kill_session
from trimtab.text import number, plain

__all__ = ["Evaluation", "TwoByTwo", "evaluated", "judged"]

Blame = Literal["data", "state", "both", "neither", "unknown"]
_ERRORS = 3.0
"""Standard errors of a difference that are noise. Ours."""
_FLOOR = 0.02
"""Share of the loss below which a difference counts for nothing, also where one number is all that
is printed. Ours: other text of the same source differs by as much."""
_NUMBER = r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?)"
_LOSS = re.compile(
    r"(?<![\w./-])((?:(?:eval|val|valid|test)\w*\s+)?(?:[\w./-]*[_./-])?loss)(?:\s+value)?['\"]?"
    rf"(?:\s*[=:]\s*|\s+)['\"]?({_NUMBER})(?!\w|\.\d)",
    re.IGNORECASE,
)
_NAMES = (r"eval_loss", r"(?:eval|val|valid|test)[a-z]*(?:_lm|_nll)?_loss", r"(?:lm_|nll_)?loss")
"""Whole names of a loss, the surest first; another one is read where it is the only one."""
_TIMES = (1e9, 1e10)
"""A bare number between them is seconds since 1970."""
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

    The losses of one name are read, `eval_loss` first, each time that it stands there; without a
    name, the last lines that hold nothing but numbers with a point.

    Example:
        >>> read_loss("loading ...\n2.0 2.2 2.4").loss
        2.2
        >>> read_loss("{'eval_loss': 2.31, 'aux_loss': 0.02, 'eval_runtime': 9.4}").loss
        2.31
    """
    losses = _named(output)
    losses = _bare(output) if losses is None else losses
    if not losses:
        return None
    if not all(map(math.isfinite, losses)):
        return Evaluation(loss=math.nan, error=None)
    spread = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None
    return Evaluation(loss=statistics.fmean(losses), error=spread)


def _named(output: str) -> list[float] | None:
    """Return the losses of the surest name; None: no loss is named; empty: which is not clear."""
    found: dict[str, list[float]] = {}
    for name, value in _LOSS.findall(output):
        found.setdefault(re.sub(r"[^a-z0-9]+", "_", name.lower()), []).append(float(value))
    for wanted in _NAMES:
        for name, losses in found.items():
            if re.fullmatch(wanted, name):
                return losses
    return next(iter(found.values())) if len(found) == 1 else [] if found else None


def _bare(output: str) -> list[float]:
    """Return the numbers of the last lines that hold nothing else; a count or a time is no loss."""
    found: list[list[float]] = []
    for line in reversed([line for line in output.splitlines() if line.strip()]):
        words = line.replace(",", " ").split()
        if not all(re.fullmatch(_NUMBER, w, re.IGNORECASE) and not _counts(w) for w in words):
            break
        found.insert(0, [float(w) for w in words])
    return [loss for line in found for loss in line]


def _counts(word: str) -> bool:
    return word.lstrip("+-").isdigit() or _TIMES[0] <= float(word) < _TIMES[1]


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
) -> tuple[dict[tuple[str, str], Evaluation], str]:
    """Run the command for each checkpoint and each data; return what was read, and why no more.

    Args:
        command: With {checkpoint} and {data}.
        checkpoints: `before` and `after`, where there is one.
        data: `fixed` and `window`.
        within_s: Time for all of them, seconds.
        aborted: Whether something else has to be done at once.
    """
    deadline = time.monotonic() + within_s
    found: dict[tuple[str, str], Evaluation] = {}
    why = ""
    for state, path in checkpoints.items():
        for name, what in data.items():
            words = [
                w.replace("{checkpoint}", path).replace("{data}", what)
                for w in shlex.split(command)
            ]
            output, missing = _output(words, deadline, aborted)
            cell = read_loss(output)
            if cell is not None:
                found[state, name] = cell
            else:
                why = why or missing or f"it printed no loss that can be told{_last(output)}"
    return found, why


def _output(words: list[str], deadline: float, aborted: Callable[[], bool]) -> tuple[str, str]:
    """Return what a command prints, or why that is not there; all that it started is ended."""
    token = secrets.token_hex(8)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, TOKEN_NAME: token},
            start_new_session=True,
        )
    except OSError as error:
        return "", f"it cannot be started ({error.strerror})"
    why, printed, said = "", b"", b""
    with process:
        try:
            while True:
                try:
                    printed, said = process.communicate(timeout=0.2)
                    break
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= deadline:
                        why = "it did not end within evaluate_within_s"
                    elif aborted():
                        why = "the command ended or a signal came meanwhile"
                    if why:
                        return "", why
        finally:
            kill_session(token, process.pid)
    if process.returncode:
        return "", f"it ended with status {process.returncode}{_last(_text(said))}"
    return _text(printed), ""


def _text(printed: bytes) -> str:
    return printed[-_MOST_BYTES:].decode("utf-8", "replace")


def _last(output: str) -> str:
    """Return the last line of a text as the end of a sentence; empty where there is none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return f": {plain(lines[-1], limit=200)}" if lines else ""
