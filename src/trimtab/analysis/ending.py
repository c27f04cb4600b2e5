"""How a run ended, where the last lines of its log tell of a crash.

An ending is what stands at the end: behind a fault after which training went on the run did not
end, whatever the words of it. `crash.classify` knows the records of the usual trainers; here the
readers say what is a row, since they know the form of this log.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trimtab.analysis.verdict import Ending
from trimtab.crash import CrashReport, classify, named_faults
from trimtab.crash.lines import (
    clean,
    exception_name,
    is_close,
    is_frame,
    names_a_failure,
    progress,
    shape_of,
)
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.readers.base import open_bytes
from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = ["earlier_ends", "ending_of"]

_LONGEST_LINE = 200
_WENT_ON_STEPS = 3
"""Steps behind a fault that show training to go on; a bar that is closed draws its last one."""
_SOON_LINES = 3
"""Lines behind a fault among which the next row stands where the program handled it itself."""
_MOST_FAULTS = 6
"""Faults of the last lines that are looked at, whatever came of them."""
_LINES_BEFORE = 400
"""Lines before a fault from which the form of the rows behind it is learned."""


def ending_of(record: RunRecord) -> Ending | None:
    """Return the crash that the last lines of a log tell of; None where they tell of none.

    Args:
        record: What was read; its `tail` holds the last lines of a text log.
    """
    # Rows with NaN are judged as rows: a log in which they merely go on does not end in a crash.
    told = classify(record.tail, broken_rows_end=False) if record.tail else None
    if told is None or _went_on(record, told) or _handled(record, told):
        return None
    broken = classify(record.tail)
    if broken is not None and broken.pattern == "nan-records":
        # The numbers broke first: the line at the end is what became of it.
        told = replace(
            broken,
            line=told.line,
            line_number=told.line_number,
            rank=told.rank,
            host=told.host,
            origin=told.origin,
        )
    return Ending(
        why=plain(f"the log ends in a crash ({told.crash_class}): {told.why}"),
        crash_class=told.crash_class,
        line=plain(told.line, limit=_LONGEST_LINE),
        line_number=told.line_number,
        who_must_act=told.who_must_act,
        do=plain(told.do),
        rank=told.rank,
        host=plain(told.host or "", limit=80),
        sure=told.sure,
    )


def _went_on(record: RunRecord, told: CrashReport) -> bool:
    """Tell whether rows of later steps stand behind the fault, in the form of this log."""
    behind = record.tail[told.line_number :]
    if _closed(record, told):
        return True
    if len(behind) < _WENT_ON_STEPS:
        return False
    found = _read(behind)
    if found is None:
        return False
    places = _num_places(found)
    if not places:
        return False
    # All rows of the log behind it: a warning of the start.
    return places >= (2 if found.num_loss_rows >= record.num_loss_rows else _WENT_ON_STEPS)


def _closed(record: RunRecord, told: CrashReport) -> bool:
    """Tell whether new rows stand behind the fault, and behind them an ordinary end.

    Rows alone may be those of another rank, or of a bar that is closed.
    """
    before = record.tail[max(told.line_number - 1 - _LINES_BEFORE, 0) : told.line_number - 1]
    behind = record.tail[told.line_number :]
    close = max((i for i, text in enumerate(behind) if is_close(text)), default=0)
    if not close or any(names_a_failure(x) or exception_name(x) for x in behind[close + 1 :]):
        return False
    old, new, all_of_them = (
        _num_places(_read((*before, *lines))) for lines in ((), behind[:close], behind)
    )
    return old < new == all_of_them


def _num_places(found: RunRecord | None) -> int:
    """Return how many steps with a train loss were read."""
    loss = None if found is None else found.columns.get("loss")
    if found is None or loss is None:
        return 0
    places = len(np.unique(found.step[loss.present]))
    # Rows without a step of their own may be one row drawn again.
    return places if found.axis == "step" else min(places, len(np.unique(loss.logged())))


def _read(lines: Sequence[str]) -> RunRecord | None:
    """Return what some lines of a log hold; None where they are no log by themselves."""
    with tempfile.TemporaryDirectory(prefix="trimtab-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "lines.log"
        path.write_text("\n".join((*lines, "")), encoding="utf-8", errors="replace")
        try:
            return read_run(path)
        except ReadError:
            return None


def earlier_ends(record: RunRecord) -> tuple[str, ...]:
    """Return how earlier attempts ended, a sentence for each fault that the last lines name.

    The rows behind the fault begin where an attempt begins: what was handled is told apart.
    """
    if len(record.attempts) < 2:
        return ()
    loss = record.columns.get("loss")
    if loss is None:
        return ()
    starts = set[float]()
    for place in range(1, len(record.attempts)):
        rows = record.rows_of(place)
        starts.update(record.step[rows][loss.present[rows]][:1].tolist())
    said: dict[float, str] = {}
    for told in named_faults(record.tail)[:_MOST_FAULTS]:
        behind = _read(record.tail[told.line_number :])
        if behind is None or "loss" not in behind.columns:
            continue
        start = float(behind.step[behind.columns["loss"].present][0])
        if start in starts and start not in said:
            line = plain(told.line, limit=_LONGEST_LINE)
            said[start] = f"an earlier attempt ended with {told.crash_class}: {line}" + _where(
                record, told
            )
    return tuple(said.values())


def _where(record: RunRecord, told: CrashReport) -> str:
    """Return at which line of the file a line of its end stands; empty where it cannot be read."""
    wanted = told.line.strip()
    left = sum(clean(text).strip() == wanted for text in record.tail[told.line_number - 1 :])
    try:
        with open_bytes(Path(record.source)) as stream:
            lines = enumerate(stream, start=1)
            told_at = [
                n for n, raw in lines if clean(raw.decode(errors="replace")).strip() == wanted
            ]
    except (ReadError, OSError, EOFError):
        return ""
    return f", at line {told_at[-left]}" if len(told_at) >= left else ""


def _handled(record: RunRecord, told: CrashReport) -> bool:
    """Tell whether the program has shown that it goes on after this very fault, and spoke again.

    What a restart repeated is told apart: its rows fall back, or its start stands before them.
    """
    tail, last = record.tail, told.line_number - 1
    if len(record.attempts) != 1 or not _speaks(tail[last + 1 :]):
        return False
    shape = shape_of(tail[last].strip())
    return any(
        shape_of(text.strip()) == shape
        and any(map(progress, tail[place + 1 : min(place + 1 + _SOON_LINES, last)]))
        for place, text in enumerate(tail[:last])
    )


def _speaks(lines: Sequence[str]) -> bool:
    return any(not is_frame(text) and not names_a_failure(text) for text in lines)
