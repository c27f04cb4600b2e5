"""What people write into a journal: notes, hypotheses, solutions, bugs, outcomes, marks, results.

A note is one event of `trimtab note`. A hypothesis has a name and a status that later notes of the
same name change; its history stays. A bug names the attempts that it touched: what was concluded
from them is void. An outcome or a mark of a person stands above what the rows show.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from trimtab.chronicle.journal import Event
from trimtab.chronicle.numbering import number_key
from trimtab.text import plain

__all__ = [
    "MARKS",
    "OUTCOMES",
    "STATUSES",
    "Bug",
    "Note",
    "NoteBook",
    "NotedHypothesis",
    "attempts_in",
    "notebook_of",
]

Status = Literal["open", "rejected", "supported"]
STATUSES: Final[tuple[str, ...]] = get_args(Status)
OUTCOMES: Final = ("worked", "did not", "unclear")
MARKS: Final = ("control", "hold", "resume", "ablation", "main")
"""What an attempt is: a control restart, on hold, taken up again, an ablation, of the main line."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """One event of a person, or a line of the guard."""

    t: str
    attempt: str
    step: int
    text: str
    author: str = ""
    image: str = ""
    """Path of a picture, relative to the run directory."""
    solution: bool = False
    status: str = ""
    """Of a hypothesis."""
    crash: str = ""
    """Class of a failure that the note reports, as of `trimtab.crash.CRASH_CLASSES`."""


@dataclass(frozen=True, kw_only=True)
class NotedHypothesis:
    """A guess at a cause, and what became of it."""

    name: str
    history: tuple[Note, ...]

    @property
    def status(self) -> str:
        """`open`, `rejected` or `supported`."""
        return next((n.status for n in reversed(self.history) if n.status), "open")


@dataclass(frozen=True, kw_only=True)
class Bug:
    """A fault in code or setup that touched attempts; conclusions drawn under it are void."""

    name: str
    history: tuple[Note, ...]
    affects: tuple[str, ...]
    """Attempts, or ranges such as `12.0-12.4`."""

    @property
    def fixed(self) -> str:
        """Date on which a note of it was its solution; empty while it is not fixed."""
        return next((n.t[:10] for n in self.history if n.solution), "")


@dataclass(kw_only=True)
class NoteBook:
    """All that people wrote."""

    notes: list[Note] = field(default_factory=list)
    """Notes that are nothing else."""
    hypotheses: dict[str, NotedHypothesis] = field(default_factory=dict)
    bugs: dict[str, Bug] = field(default_factory=dict)
    solutions: list[Note] = field(default_factory=list)
    outcomes: dict[str, tuple[str, Note]] = field(default_factory=dict)
    """Attempt -> outcome and the note that gives it; the last one counts."""
    marks: dict[str, tuple[str, Note]] = field(default_factory=dict)
    whys: dict[str, Note] = field(default_factory=dict)
    """Attempt -> why it was begun, and who decided so."""
    results: list[tuple[str, float, Note]] = field(default_factory=list)
    """Name, value, note: figures of evaluations."""
    failures: list[Note] = field(default_factory=list)

    def bugs_of(self, attempt: str) -> tuple[str, ...]:
        """Return the names of the bugs that touched an attempt."""
        return tuple(
            b.name for b in self.bugs.values() if any(_covers(a, attempt) for a in b.affects)
        )


def _covers(which: str, attempt: str) -> bool:
    first, dash, last = which.partition("-")
    if not dash:
        return which == attempt
    return number_key(first) <= number_key(attempt) <= number_key(last)


def attempts_in(which: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the known attempts that a number or a range `12.0-12.4` names.

    Example:
        >>> attempts_in("11.9-12.0", ("11.8", "11.9", "11.10", "12.0", "12.1"))
        ('11.9', '11.10', '12.0')
    """
    return tuple(a for a in known if _covers(which, a))


def notebook_of(events: Iterable[Event]) -> NoteBook:
    """Return what people wrote, in the order of the journal; fields of another kind are ignored."""
    book = NoteBook()
    for event in events:
        if event.event == "note":
            _take(book, event)
    return book


def _take(book: NoteBook, event: Event) -> None:
    d = event.data
    note = Note(
        t=event.t,
        attempt=event.attempt,
        step=event.step,
        text=plain(d.get("text")),
        author=plain(d.get("author"), limit=80),
        image=plain(d.get("image"), limit=300),
        solution=bool(d.get("solution")),
        status=plain(d.get("status")) if d.get("status") in STATUSES else "",
        crash=plain(d.get("crash"), limit=40),
    )
    plain_note = True
    name = plain(d.get("hypothesis"), limit=80)
    if name:
        before = book.hypotheses.get(name)
        history = (*(before.history if before else ()), note)
        book.hypotheses[name] = NotedHypothesis(name=name, history=history)
        plain_note = False
    name = plain(d.get("bug"), limit=80)
    if name:
        old = book.bugs.get(name)
        affects = tuple(dict.fromkeys((*(old.affects if old else ()), *_texts(d.get("affects")))))
        book.bugs[name] = Bug(
            name=name, history=(*(old.history if old else ()), note), affects=affects
        )
        plain_note = False
    if note.solution:
        book.solutions.append(note)
        plain_note = False
    for attempt in _texts(d.get("affects")) or (note.attempt,):
        if d.get("outcome") in OUTCOMES:
            book.outcomes[attempt] = (str(d["outcome"]), note)
        if d.get("mark") in MARKS:
            book.marks[attempt] = (str(d["mark"]), note)
        if d.get("why") is True:
            book.whys[attempt] = note
            plain_note = False
    figures = d.get("results")
    if isinstance(figures, dict):
        for key, value in figures.items():
            # As the journal writes what JSON has no number for.
            if isinstance(value, int | float) or value in ("nan", "inf", "-inf"):
                book.results.append((plain(key, limit=80), float(value), note))
    if note.crash:
        book.failures.append(note)
    if plain_note:
        book.notes.append(note)


def _texts(value: object) -> tuple[str, ...]:
    return tuple(_each_text(value)) if isinstance(value, list) else ()


def _each_text(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str) and 0 < len(value) <= 40:
            yield value
