"""The folder of `trimtab supervise`: its journal, and the log of the command as its attempts.

The supervisor keeps no samples of its own. What the command printed lies in `output.log`, or in a
log that `--log` named; the journal says which rows belong to which start.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trimtab.readers.base import TextLines
from trimtab.readers.journal_seal import seal_state
from trimtab.readers.jsonl import parse_object
from trimtab.record import Ancestor, Attempt, RunRecord, nearest_parent

__all__ = ["by_launches", "supervised_log"]

_ENDS = ("restart", "gave-up", "end")


@dataclass(kw_only=True)
class _Launch:
    number: str
    parent: str | None
    parent_step: float | None
    why: str
    last_step: float | None = None
    """Its last row, by the journal; None: it has none, or still runs."""
    open: bool = True
    settings: dict[str, str] = field(default_factory=dict)


def supervised_log(path: Path) -> Path | None:
    """Return the log of the command that a folder's supervisor runs; None: it is another folder."""
    if (path / "signals").is_dir() or not (path / "journal.jsonl").is_file():
        return None
    log: Path | None = None
    for event in _events(path):
        if event.get("event") == "start" and isinstance(event.get("launch"), str):
            named = event.get("logs")
            logs = [str(text) for text in named] if isinstance(named, list) else []
            log = next((Path(text) for text in logs if Path(text).exists()), path / "output.log")
    return log


def _events(path: Path) -> Iterator[Mapping[str, object]]:
    for line in TextLines(path / "journal.jsonl"):
        event = (
            parse_object(line) if seal_state(line.encode("utf-8", "replace")) != "broken" else None
        )
        if event is not None:
            yield event


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and isinstance(value, int | float) else None


def _launches(path: Path) -> list[_Launch]:
    found: dict[str, _Launch] = {}
    for event in _events(path):
        number = str(event.get("attempt"))
        if event.get("event") == "attempt" and event.get("supervised"):
            parent, settings = event.get("parent"), event.get("settings")
            found[number] = _Launch(
                number=number,
                parent=parent if isinstance(parent, str) else None,
                parent_step=_number(event.get("parent_step")),
                why=str(event.get("why") or ""),
                settings={k: str(v) for k, v in settings.items()}
                if isinstance(settings, dict)
                else {},
            )
        elif event.get("event") in _ENDS and number in found:
            found[number].last_step = _number(event.get("last_step"))
            found[number].open = False
    return list(found.values())


def by_launches(record: RunRecord, path: Path) -> RunRecord:
    """Return a command's log with the attempts of its supervisor's journal.

    Rows up to the last step of a launch are its own, those that follow belong to the next. Where
    the two do not fit, as where the log was begun anew, the record is returned as it is.
    """
    launches = _launches(path)
    attempts: list[Attempt] = []
    index = np.zeros(record.num_rows, dtype=np.int32)
    without_rows: dict[str, Ancestor] = {}
    first = 0
    for here, launch in enumerate(launches):
        rest = record.step[first:]
        end = record.num_rows
        if not launch.open or here + 1 < len(launches):
            there = np.flatnonzero(rest == launch.last_step)  # none where it came to no step
            end = first + int(there[0]) + 1 if there.size else first
        parent, step = nearest_parent(launch.parent, launch.parent_step, without_rows)
        if end == first:
            without_rows[launch.number] = (parent, step)
            continue
        if (np.diff(record.step[first:end]) <= 0).any():
            return record
        attempts.append(
            Attempt(
                number=launch.number,
                parent=parent,
                parent_step=step,
                first_row=first,
                end_row=end,
                settings=launch.settings,
                why=launch.why,
            )
        )
        index[first:end] = len(attempts) - 1
        first = end
    if first < record.num_rows or not attempts:
        return record
    return replace(record, source=str(path), attempt=index, attempts=tuple(attempts))
