"""How a run ended, where the last lines of its log tell of a crash."""

from trimtab.analysis.verdict import Ending
from trimtab.crash import classify
from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = ["ending_of"]

_LONGEST_LINE = 200


def ending_of(record: RunRecord) -> Ending | None:
    """Return the crash that the last lines of a log tell of; None where they tell of none.

    Args:
        record: What was read; its `tail` holds the last lines of a text log.
    """
    told = classify(record.tail) if record.tail else None
    if told is None:
        return None
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
