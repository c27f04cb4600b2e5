"""Which of the lines that a job printed last is the fault, and what it means."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

from trimtab.crash.lines import (
    clean,
    exception_name,
    host_of,
    is_calm,
    is_finish,
    is_frame,
    is_own_finish,
    is_python_warning,
    is_record_object,
    is_traceback_start,
    names_a_failure,
    nan_progress,
    progress,
    rank_of,
    shape_of,
    torchrun_rank,
)
from trimtab.crash.stack import names_a_frame, raised_name, raised_where
from trimtab.crash.table import (
    LEVELS,
    CrashPattern,
    Level,
    WhoMustAct,
    class_texts,
    crash_patterns,
)

__all__ = ["CrashReport", "classify", "named_faults"]

MAX_LINES: Final = 4000
"""Lines read, from the end."""

_LINES_PER_SHAPE: Final = 40
"""Lines looked at of those that differ in their numbers only, the first ones: a log is records."""

_MAX_TEXT: Final = 256 * 1024
"""Characters searched in all, from the end."""

_SURVIVED_RECORDS: Final = 2
"""Records of training after an error from which on the run went on in spite of it."""

_SURVIVED_LINES: Final = 100
"""Other lines after an error, neither stack nor error, from which on it was survived."""

_MINOR_LINES: Final = 12
"""The same for a warning or a side matter."""

_ECHO_LINES: Final = 3
"""Lines behind a traceback among which a word of a planned end is no proof of one."""

_MESSAGE_LINES: Final = 12
"""Indented lines of its message, behind the line that names the exception."""

_HANDLES = re.compile(r"continu|skip|saved|could not|ignor|retry|retri", re.IGNORECASE)
"""What a program says that has caught an error."""

_LOGS = re.compile(r"\b(?:ERROR|WARN|WARNING)\b")

_CONTEXT: Final = 40
"""Lines around the fault that may name its rank and its host."""

_LAST_LINES: Final = 30
"""Lines at the end of a log of which one that names a failure in unknown words ended the job."""

_WORD = re.compile(r"[a-z]+")
_STOPS = re.compile(r"stop|abort|exit|terminat|fail|error|skip", re.IGNORECASE)
"""What a record with NaN says besides where the program does something about it."""

_WRAPPERS: Final = frozenset(
    {"ChildFailedError", "SignalException", "CalledProcessError", "SystemExit", "RayTaskError"}
)

Origin = Literal["here", "elsewhere", "unknown"]


@dataclass(frozen=True, kw_only=True)
class CrashReport:
    """What ended a run, as its last lines tell it."""

    crash_class: str
    """One of `trimtab.crash.CRASH_CLASSES`; `unknown`: it failed, in words that no row knows."""
    who_must_act: WhoMustAct
    """`transient` (a restart is enough), `node`, `code`, `config`, `data`, `numeric`, `unknown`."""
    line: str
    """The line that says it, cleaned; text of the log: escape it before printing."""
    line_number: int
    """Its place in the lines given, from 1."""
    rank: int | None
    """The rank that failed first, where stated; the local one if only that is."""
    host: str | None
    """The host where it failed, where stated."""
    origin: Origin
    """`here`: the line is the fault; `elsewhere`: the echo of one on another rank or host."""
    sure: bool
    """Whether a wording names the fault; False: read from an exit code or an unknown error."""
    says: str
    """What ended the run, in one sentence."""
    do: str
    """What to do about it."""
    pattern: str
    """The row of the table that decided."""

    @property
    def why(self) -> str:
        """What ended the run and how the line tells, in one sentence."""
        if self.origin == "elsewhere":
            return f"{self.says}; the line is the echo of a fault on another rank or host"
        if not self.sure and self.origin != "here" and self.crash_class not in _NAMED_BY_ITS_END:
            return f"{self.says}; the line does not name the fault itself"
        return self.says


_NAMED_BY_ITS_END = ("unknown", "preempt_timelimit")
"""Classes of which the line says all there is: an interrupt or a time limit is the fault itself."""


@dataclass(frozen=True, kw_only=True)
class _Hit:
    """A row of the table found in a line."""

    index: int
    crash_class: str
    act: WhoMustAct
    level: Level
    pattern: str
    do: str | None

    @property
    def order(self) -> tuple[int, int]:
        return LEVELS.index(self.level), self.index


def classify(
    lines: Sequence[str],
    *,
    patterns: Sequence[CrashPattern] | None = None,
    broken_rows_end: bool = True,
) -> CrashReport | None:
    """Say what ended the run that printed these lines last; None where nothing tells.

    The fault is the first line, among those nearest to a fault by the table's levels (a named
    cause, an error, the job's end, an echo), after which training did not go on. An error that
    was followed by further records of training, or by the planned end, is no fault: it was
    handled. Lines that only warn count if nothing follows them.

    Args:
        lines: The last lines of a log, in its order, with or without line ends. Of more than
            4,000 the last ones are read; of a longer line the first and the last characters.
        patterns: Rows to use instead of the table's, the more special first.
        broken_rows_end: Whether records with NaN at the very end tell of the end by themselves, as
            they do of a job that is known to be over.

    Returns:
        The report, or None: nothing at the end tells of a failure. A traceback that is cut, a
        `SystemExit`, or an end in words that no row knows is the class `unknown`.

    NaN in two records of training or more at the very end is the class `numeric`.
    Cost: O(lines x rows) substring searches, some 20 ms for 2,000 lines; nothing is kept.

    Example:
        >>> report = classify(["step 8 loss 2.1", "RuntimeError: CUDA out of memory. Tried ..."])
        >>> report.crash_class, report.who_must_act, report.line_number
        ('oom_gpu', 'config', 2)
    """
    skipped = max(len(lines) - MAX_LINES, 0)
    texts = [clean(line) for line in lines[skipped:]]
    rows = crash_patterns() if patterns is None else patterns
    hits = _alive(texts, list(_hits(texts, rows)))
    broken = _broken_numbers(texts) if broken_rows_end else None
    if broken is not None:
        hits.append(broken)
    hits = hits or _alive(texts, _unknown_ends(texts))
    if not hits:
        return None
    best = min(hits, key=lambda hit: hit.order)
    return _report(best, texts, skipped)


def named_faults(lines: Sequence[str]) -> list[CrashReport]:
    """Return every fault that these lines name, in their order, whatever came of it.

    Args:
        lines: The last lines of a log, in its order; of more than 4,000 the last ones are read.
    """
    skipped = max(len(lines) - MAX_LINES, 0)
    texts = [clean(line) for line in lines[skipped:]]
    hits = sorted(_hits(texts, crash_patterns()), key=lambda hit: hit.index)
    return [_report(hit, texts, skipped) for hit in hits if hit.level == "cause"]


def _hits(texts: list[str], rows: Sequence[CrashPattern]) -> Iterator[_Hit]:
    """Yield at most one match a line: the first row that fits it, else any exception."""
    searched = _Searched(texts, _looked_at(texts))
    taken: set[int] = set()
    for pattern in rows:
        for index in searched.places(pattern):
            text = texts[index]
            if index in taken or not (pattern.regex is None or pattern.regex.search(text)):
                continue
            if pattern.place is not None and not (
                exception_name(text) and pattern.place.search(raised_where(texts, index))
            ):
                continue
            taken.add(index)
            if pattern.crash_class == "numeric" and _only_logs(text):
                continue
            if not (is_calm(text) and pattern.level in ("error", "end", "minor")):
                quoted = index > 0 and names_a_frame(texts[index - 1])
                yield _of_pattern(pattern, index, text, quoted=quoted)
    yield from _exceptions(texts, taken)


class _Searched:
    """The lines as one lower-case text, so that a search runs over all of them at once."""

    def __init__(self, texts: list[str], places: list[int]) -> None:
        self._places = places
        low = [texts[place].lower() for place in places]
        self._whole = "\n".join(low)
        self._starts = list(accumulate((len(text) + 1 for text in low), initial=0))
        self._words = " ".join(set(_WORD.findall(self._whole)))

    def places(self, pattern: CrashPattern) -> list[int]:
        """Return the lines that hold one of the texts the pattern needs, in their order."""
        found: set[int] = set()
        for needle, core in zip(pattern.any, pattern.cores, strict=True):
            if core in self._words:
                found.update(self._of(needle))
        return sorted(found)

    def _of(self, needle: str) -> Iterator[int]:
        at = self._whole.find(needle)
        while at >= 0:
            row = bisect_right(self._starts, at) - 1
            yield self._places[row]
            at = self._whole.find(needle, self._starts[row + 1])


def _looked_at(texts: list[str]) -> list[int]:
    """Return the places of the lines to search, of each shape the first ones."""
    seen: Counter[str] = Counter()
    kept: list[int] = []
    size = 0
    for index, text in enumerate(texts):
        shape = shape_of(text)
        seen[shape] += 1
        if seen[shape] <= _LINES_PER_SHAPE and text and not is_record_object(text):
            kept.append(index)
    for place in range(len(kept) - 1, -1, -1):
        size += len(texts[kept[place]])
        if size > _MAX_TEXT:
            return kept[place + 1 :]
    return kept


def _of_pattern(pattern: CrashPattern, index: int, text: str, *, quoted: bool) -> _Hit:
    level: Level = pattern.level
    # A line of code in a traceback quotes what may be raised: the error has a line of its own.
    if level != "echo" and (is_python_warning(text) or quoted):
        level = "minor"
    return _Hit(
        index=index,
        crash_class=pattern.crash_class,
        act=pattern.act,
        level=level,
        pattern=pattern.id,
        do=pattern.do,
    )


def _only_logs(text: str) -> bool:
    """Return whether a line is a record with NaN that says nothing of an end."""
    return nan_progress(text) and not exception_name(text) and not _STOPS.search(text)


def _exceptions(texts: list[str], taken: set[int]) -> Iterator[_Hit]:
    """Yield the exceptions of Python that no row names, where a traceback stands before them."""
    traceback = -_CONTEXT * 2
    ignored = False
    raised: tuple[int, str] | None = None
    for index, text in enumerate(texts):
        if is_traceback_start(text):
            traceback = index
            ignored = index > 0 and "Exception ignored in" in texts[index - 1]
            raised = raised_name(texts, index)
        name = raised[1] if raised is not None and raised[0] == index else exception_name(text)
        if name is None or index in taken or ignored:
            continue
        if name.rsplit(".", 1)[-1] in _WRAPPERS:
            continue
        near = index - traceback <= 2 * _CONTEXT
        yield _Hit(
            index=index,
            crash_class="python_error",
            act="code",
            level="error" if near or text.startswith(name) else "minor",
            pattern="exception",
            do=None,
        )


def _alive(texts: list[str], hits: list[_Hit]) -> list[_Hit]:
    """Return the matches after which training did not go on."""
    if not hits:
        return []
    found = {hit.index for hit in hits}
    records = others = 0
    after: dict[int, tuple[int, int]] = {}
    for index in range(len(texts) - 1, min(found) - 1, -1):
        text = texts[index]
        if index in found:
            after[index] = (records, others)
        elif is_finish(text):
            records += 0 if _said_whatever_came(texts, index) else _SURVIVED_RECORDS
        elif progress(text):
            records += not nan_progress(text)
        elif not is_frame(text):
            others += 1
        if records >= _SURVIVED_RECORDS or others >= _SURVIVED_LINES:
            break
    return [hit for hit in hits if hit.index in after and not _survived(hit, *after[hit.index])]


def _said_whatever_came(texts: list[str], finish: int) -> bool:
    """Return whether a planned end is said right behind a traceback: a shell says so regardless.

    Not where the program speaks of the error itself: it has a logger tell it, or says that it goes on.
    """
    first = max(finish - _ECHO_LINES - _MESSAGE_LINES, 0)
    raised = next((i for i in range(finish - 1, first - 1, -1) if exception_name(texts[i])), None)
    if raised is None or is_own_finish(texts[finish]):
        return False
    between = [t for t in texts[raised + 1 : finish] if not is_frame(t)]
    if len(between) > _ECHO_LINES or any(map(_HANDLES.search, between)):
        return False
    stack = range(raised - 1, max(raised - 2 * _CONTEXT, 0) - 1, -1)
    start = next((i for i in stack if is_traceback_start(texts[i])), None)
    if start is None or any(map(progress, texts[start:finish])):
        return False
    return not _LOGS.search(texts[start - 1] if start else "") and not _LOGS.search(texts[start])


def _unknown_ends(texts: list[str]) -> list[_Hit]:
    """Return what tells of a failure in the last lines, where no row of the table knows it."""
    last = range(max(len(texts) - _LAST_LINES, 0), len(texts))
    found = [index for index in last if names_a_failure(texts[index])]
    cut = next((i for i in range(len(texts) - 1, -1, -1) if is_traceback_start(texts[i])), -1)
    ignored = cut > 0 and "Exception ignored in" in texts[cut - 1]
    if cut >= 0 and not ignored and all(map(is_frame, texts[cut + 1 :])):
        found.append(cut)
    return [
        _Hit(
            index=index,
            crash_class="unknown",
            act="unknown",
            level="minor",
            pattern="unknown",
            do=None,
        )
        for index in found
    ]


def _survived(hit: _Hit, records: int, others: int) -> bool:
    if records >= _SURVIVED_RECORDS:
        return True
    return others >= (_MINOR_LINES if hit.level == "minor" else _SURVIVED_LINES)


def _broken_numbers(texts: list[str]) -> _Hit | None:
    """Return the first of the NaN records that stand at the end, if two or more do."""
    first, count = -1, 0
    plain: set[str] = set()
    for index in range(len(texts) - 1, -1, -1):
        shape = shape_of(texts[index])
        if shape in plain:
            continue
        if not progress(texts[index]):
            plain.add(shape)
            continue
        if not nan_progress(texts[index]):
            break
        first, count = index, count + 1
    if count < 2:
        return None
    return _Hit(
        index=first,
        crash_class="numeric",
        act="numeric",
        level="cause",
        pattern="nan-records",
        do=None,
    )


def _report(hit: _Hit, texts: list[str], skipped: int) -> CrashReport:
    text = texts[hit.index]
    about = class_texts()[hit.crash_class]
    return CrashReport(
        crash_class=hit.crash_class,
        who_must_act=hit.act,
        line=text.strip(),
        line_number=skipped + hit.index + 1,
        rank=_rank(texts, hit.index),
        host=_host(texts, hit.index),
        origin=_origin(hit),
        sure=hit.level == "cause",
        says=about.says,
        do=hit.do or about.do,
        pattern=hit.pattern,
    )


def _origin(hit: _Hit) -> Origin:
    if hit.level == "echo" or hit.crash_class == "nccl_timeout":
        return "elsewhere"
    return "unknown" if hit.level in ("end", "minor") else "here"


def _rank(texts: list[str], index: int) -> int | None:
    """Return the rank of the line, of torchrun's summary, or of the lines about it."""
    own = rank_of(texts[index])
    if own is not None:
        return own
    for text in texts[index + 1 :]:
        rank = torchrun_rank(text)
        if rank is not None:
            return rank
    around = [*reversed(texts[max(index - _CONTEXT, 0) : index]), *texts[index + 1 :][:_CONTEXT]]
    return next((rank for text in around if (rank := rank_of(text)) is not None), None)


def _host(texts: list[str], index: int) -> str | None:
    around = [texts[index], *texts[index + 1 :][:_CONTEXT]]
    return next((host for text in around if (host := host_of(text)) is not None), None)
