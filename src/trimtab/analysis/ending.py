"""How a run ended, where the last lines of its log tell of a crash."""

from importlib import import_module, util

from trimtab.analysis.verdict import Ending
from trimtab.record import RunRecord
from trimtab.text import plain

__all__ = ["ending_of"]


def ending_of(record: RunRecord) -> Ending | None:
    """Return the crash that the last lines of a log tell of; None where they tell of none.

    Args:
        record: What was read; its `tail` holds the last lines of a text log.
    """
    tail = getattr(record, "tail", ())
    if not tail or util.find_spec("trimtab.crash") is None:
        return None
    told = import_module("trimtab.crash").classify(tail)
    if told is None:
        return None
    return Ending(
        why=f"the log ends in a crash: {told.crash_class}",
        crash_class=told.crash_class,
        line=plain(told.line, limit=200),
        line_number=told.line_number,
        who_must_act=told.who_must_act,
        rank=told.rank,
        host=plain(told.host or "", limit=80),
        sure=bool(told.sure),
    )
