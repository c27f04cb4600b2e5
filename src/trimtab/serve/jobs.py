"""What takes long, reading and judging, in processes of its own: the server answers meanwhile."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from trimtab.analysis.ordering import letters
from trimtab.analysis.source import account_or_fault
from trimtab.errors import ReadError
from trimtab.masking import masked_text
from trimtab.readers import read_each
from trimtab.record import RunRecord
from trimtab.report.headline import standing, state_sentence
from trimtab.report.html import render_html
from trimtab.report.incident_page import incident_html
from trimtab.report.overview import overview_line
from trimtab.report.saved import cost_sentence, saved_sentence
from trimtab.serve.appended import ReadMark
from trimtab.serve.curves import write_curves
from trimtab.text import plain

__all__ = ["JudgedRun", "ReadRun", "judge_source", "read_source"]

MAX_INCIDENT_PAGES = 100


@dataclass(frozen=True, kw_only=True)
class ReadRun:
    """What one run of a source holds, or why it cannot be read."""

    name: str
    """Source as the readers call it: the path, and the run within where there are several."""
    folder: str = ""
    """Where `Curves.open` finds its rows; empty where it cannot be read."""
    error: str = ""
    facts: dict[str, object] = field(default_factory=dict)
    mark: ReadMark | None = None
    """Up to where it was read; None where what is appended cannot be read alone."""


@dataclass(frozen=True, kw_only=True)
class JudgedRun:
    """What became of one run."""

    name: str
    folder: str = ""
    """Where `page.html` and `incident-A.html` are."""
    error: str = ""
    verdict: str = ""
    standing: str = ""
    """critical, warning, good or unknown."""
    said: str = ""
    """The worst of it in one line."""
    state: str = ""
    incidents: tuple[tuple[str, str, str], ...] = ()
    """Letter, severity, headline."""
    saved: str = ""
    cost: str = ""


def _records(source: str) -> Iterator[tuple[str, RunRecord | ReadError]]:
    try:
        yield from read_each(source)
    except (ReadError, OSError) as error:
        yield source, ReadError(str(error))


def read_source(source: str, folder: str) -> tuple[ReadRun, ...]:
    """Read a source and write the rows of its runs into folders below `folder`."""
    found = []
    begun = ReadMark.before(source)
    for k, (name, outcome) in enumerate(_records(source)):
        if isinstance(outcome, ReadError):
            found.append(ReadRun(name=name, error=_told(outcome)))
            continue
        place = Path(folder) / str(k)
        try:
            facts = write_curves(outcome, place)
        except OSError as error:
            reason = f"{place}: cannot be written ({error.strerror}); make room there"
            found.append(ReadRun(name=name, error=reason))
            continue
        mark = begun.after(outcome) if begun is not None and name == source else None
        found.append(ReadRun(name=name, folder=str(place), facts=facts, mark=mark))
    return tuple(found)


def judge_source(
    source: str, ids: dict[str, tuple[str, str]], folder: str
) -> tuple[JudgedRun, ...]:
    """Judge the runs of a source and write their pages.

    Args:
        source: What is read.
        ids: (id, title) of each run by its name.
        folder: Below it each run gets a folder.
    """
    os.nice(5)  # the server and the readers go first
    found = []
    for name, outcome in _records(source):
        if name not in ids:
            continue
        if isinstance(outcome, ReadError):
            found.append(JudgedRun(name=name, error=_told(outcome)))
            continue
        found.append(_judge(outcome, name, *ids[name], place=Path(folder) / ids[name][0]))
    return tuple(found)


def _judge(record: RunRecord, name: str, run: str, title: str, *, place: Path) -> JudgedRun:
    account = account_or_fault(record, name)
    if isinstance(account, ReadError):
        return JudgedRun(name=name, error=_told(account))
    place.mkdir(parents=True, exist_ok=True)
    page = render_html(account, title=title, served=f"/run/{run}")
    (place / "page.html").write_text(page, encoding="utf-8")
    named = letters(account)
    for letter in sorted(named, key=lambda n: (len(n), n))[:MAX_INCIDENT_PAGES]:
        inside = incident_html(account, letter)
        (place / f"incident-{letter}.html").write_text(inside, encoding="utf-8")
    told = [
        (letter, ia.severity, plain(ia.headline, limit=300))
        for letter, ia in zip(named, account.incidents, strict=True)
    ]
    (place / "incidents.json").write_bytes(orjson.dumps(told))
    line = overview_line(account, path=name)
    return JudgedRun(
        name=name,
        folder=str(place),
        verdict=account.verdict,
        standing=standing(account),
        said=masked_text(plain(line.said, limit=300)),
        state=masked_text(state_sentence(account)),
        incidents=tuple(sorted(told, key=lambda t: (len(t[0]), t[0]))[:20]),
        saved=saved_sentence(account),
        cost=cost_sentence(account),
    )


def _told(error: ReadError) -> str:
    return masked_text(plain(str(error), limit=400))
