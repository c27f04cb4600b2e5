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
from trimtab.crash import CrashReport, classify
from trimtab.crash.lines import is_frame, names_a_failure, progress, shape_of
from trimtab.errors import ReadError
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = ["ending_of"]

_LONGEST_LINE = 200
_WENT_ON_STEPS = 3
"""Steps behind a fault that show training to go on; a bar that is closed draws its last one."""
_SOON_LINES = 3
"""Lines behind a fault among which the next row stands where the program handled it itself."""


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
    if len(behind) < _WENT_ON_STEPS:
        return False
    with tempfile.TemporaryDirectory(prefix="trimtab-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "behind.log"
        path.write_text("\n".join((*behind, "")), encoding="utf-8", errors="replace")
        try:
            found = read_run(path)
        except ReadError:
            return False
    loss = found.columns.get("loss")
    if loss is None:
        return False
    places = len(np.unique(found.step[loss.present]))
    if found.axis != "step":
        # Rows without a step of their own may be one row drawn again.
        places = min(places, len(np.unique(loss.logged())))
    # All rows of the log behind it: a warning of the start.
    return places >= (2 if found.num_loss_rows >= record.num_loss_rows else _WENT_ON_STEPS)


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
