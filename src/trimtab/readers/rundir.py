"""trimtab's own run directory: signals/ATTEMPT.jsonl, one object per step, and journal.jsonl.

The journal's `attempt` events say how the attempts descend from each other; the samples say what
was measured. A directory whose journal has no such event is read by its sample files alone. The
names of the files are those of `trimtab.chronicle`, which is above the readers and is not
imported here.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from trimtab.bounded_toml import read_toml_text
from trimtab.errors import ReadError
from trimtab.readers.base import TextLines
from trimtab.readers.journal_seal import seal_state
from trimtab.readers.jsonl import flatten, parse_object
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.record import Ancestor, Column, RecordBuilder, RunRecord, nearest_parent
from trimtab.vocabulary import TIMES, canonical, unit_scale

__all__ = ["facts_among", "is_run_directory", "read_facts", "read_run_directory"]

_CLIP_NAMES = frozenset({"clip", "clip_grad", "grad_clip", "max_grad_norm", "gradient_clipping"})
_PLAIN = frozenset({int, float, type(None)})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
MAX_PLAIN_BYTES = 32_000_000
"""A larger file is read line by line: its rows as objects need four times its size."""
_NUMBER = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
"""The number of an attempt; it names a file, so it may hold nothing else."""


@dataclass(frozen=True, kw_only=True)
class _Branch:
    """One attempt, as the journal has it."""

    number: str
    parent: str | None = None
    parent_step: float | None = None
    why: str = ""
    trial: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)


_OF_COMMANDS = ("rollback", "note", "dismiss", "hang", "restart", "gave-up")
"""Events that begin a journal where no guard wrote."""
_FIRST_LINE_BYTES = 1 << 20


def is_run_directory(path: Path) -> bool:
    """Whether a directory is a trimtab run.

    Commands keep a journal beside the logs of any trainer, too: such a run is read by its logs.
    """
    if (path / "signals").is_dir():
        return True
    journal = path / "journal.jsonl"
    if not journal.is_file():
        return False
    try:
        with journal.open("rb") as file:
            first = parse_object(file.readline(_FIRST_LINE_BYTES).decode("utf-8", "replace"))
    except OSError:  # there is one, and the reader says what is wrong with it
        return True
    return first is None or first.get("event") not in _OF_COMMANDS


def read_run_directory(path: Path) -> RunRecord:
    """Read the samples of all attempts, in the order in which the journal opens them.

    Raises:
        ReadError: There are no samples, a sample line is broken, or the disk refuses a file.
    """
    try:
        return _read(path)
    except OSError as error:
        raise ReadError(
            f"{error.filename or path}: cannot be read ({error.strerror}); look at the disk, then"
            " try again"
        ) from error


def _read(path: Path) -> RunRecord:
    builder = RecordBuilder(str(path), "trimtab")
    builder.facts.update(read_facts(path / "run.toml", builder.notes))
    branches = list(_branches(path, builder.notes))
    num_torn = 0
    if (path / "signals").is_symlink():
        builder.notes.append("signals is a link, which is not followed")
        branches = []
    without_rows: dict[str, Ancestor] = {}
    for branch in branches:
        above = nearest_parent(branch.parent, branch.parent_step, without_rows)
        num_before = builder.num_rows
        file = path / "signals" / f"{branch.number}.jsonl"
        if file.is_symlink():
            builder.notes.append(f"signals/{file.name} is a link, which is not followed")
            continue
        if not file.is_file():
            without_rows[branch.number] = above
            continue
        builder.start_attempt(
            number=branch.number,
            parent=above[0],
            parent_step=above[1],
            settings=branch.settings,
            why=branch.why,
            trial=branch.trial,
        )
        if not _add_plain(file, builder):
            num_torn += read_samples(file, builder)
        if builder.num_rows == num_before:
            without_rows[branch.number] = above
    if builder.num_rows == 0:
        raise ReadError(
            f"{path}: no samples in signals/*.jsonl; the run has not logged a step yet, or it is "
            "the wrong directory"
        )
    if num_torn:
        builder.notes.append(f"{counted(num_torn, 'sample line')} torn in mid-write and left out")
    return builder.build()


def _branches(path: Path, notes: list[str]) -> Iterator[_Branch]:
    """Yield the attempts of the journal, then those that only have samples."""
    seen: set[str] = set()
    refused: list[str] = []
    stems: list[str] = []
    for event in _attempt_events(path / "journal.jsonl", notes):
        number = _text(event.get("number") or event.get("attempt"))
        if not _NUMBER.fullmatch(number):
            refused.append(number)
        elif number not in seen:
            seen.add(number)
            yield _branch(number, event)
    for stem in sorted(f.stem for f in (path / "signals").glob("*.jsonl")):
        if not _NUMBER.fullmatch(stem):
            refused.append(stem)
        elif stem not in seen:
            stems.append(stem)
    for stem in sorted(stems, key=_natural):
        yield _Branch(number=stem)
    if refused:
        notes.append(
            f"{counted(len(refused), 'attempt')} left out whose number is not like 1.0: "
            f"{refused[0][:40]!r}"
        )


def _branch(number: str, event: Mapping[str, object]) -> _Branch:
    settings = event.get("settings")
    parent = _text(event.get("parent"))
    try:
        told = {k: str(v) for k, v in settings.items()} if isinstance(settings, dict) else {}
    except RecursionError:
        told = {}
    return _Branch(
        number=number,
        parent=parent if _NUMBER.fullmatch(parent) else None,
        parent_step=_finite(event.get("parent_step")),
        why=_text(event.get("why")),
        trial=bool(event.get("trial")),
        settings=told,
    )


def _text(value: object) -> str:
    return str(value) if isinstance(value, str | int | float) else ""


def _finite(value: object) -> float | None:
    """Return a number as a float; None for NaN, Inf and what no float can hold."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _attempt_events(journal: Path, notes: list[str]) -> Iterator[Mapping[str, object]]:
    if not journal.is_file():
        notes.append("there is no journal.jsonl; how the attempts descend is not known")
        return
    for line in TextLines(journal):
        if seal_state(line.encode("utf-8", "replace")) == "broken":
            continue
        event = parse_object(line)
        if event is not None and event.get("event") == "attempt":
            yield event


def _add_plain(file: Path, builder: RecordBuilder) -> bool:
    """Add all rows at once where every line is an object of numbers and the steps rise.

    Returns:
        False where a line is anything else, or the file is large; nothing was added then.
    """
    if file.stat().st_size > MAX_PLAIN_BYTES:
        return False
    lines = file.read_bytes().split(b"\n")
    try:
        rows = orjson.loads(b"[" + b",".join(lines[:-1]) + b"]")
    except orjson.JSONDecodeError:
        return False
    if lines[-1] or len(rows) != len(lines) - 1 or {type(r) for r in rows} != {dict}:
        return False
    shapes = dict.fromkeys(tuple(r) for r in rows)
    keys = dict.fromkeys(k for shape in shapes for k in shape)
    found = {key: [r.get(key) for r in rows] for key in keys}
    for key, values in found.items():
        if any(type(v) is str for v in values):
            found[key] = [_WORDS.get(v, v) if type(v) is str else v for v in values]
    if not all({type(v) for v in values} <= _PLAIN for values in found.values()):
        return False
    steps = [v for v in found.pop("step", []) if v is not None]
    at = np.array(steps, dtype=np.float64)
    if len(at) != len(rows) or not np.isfinite(at).all() or not (np.diff(at) > 0).all():
        return False
    names = {key: canonical(key) for key in found}
    known = [name for name in names.values() if name is not None]
    if len(set(known)) < len(known):
        return False
    columns: dict[str, Column] = {}
    for key, values in found.items():
        name = names[key]
        present = np.array([v is not None for v in values])
        if name is None:
            builder.unread[key] = builder.unread.get(key, 0) + int(present.sum())
            continue
        builder.keys.setdefault(name, key)
        scale = unit_scale(key) if name in TIMES else 1.0
        columns[name] = Column(np.array(values, dtype=np.float64) * scale, present)
    builder.extend(at, columns)
    return True


def read_samples(file: Path, builder: RecordBuilder) -> int:
    """Add the rows of one attempt; return how many lines were torn.

    A torn line is one that does not parse: the process died while writing it, and a
    later one continued after it. A row whose step is not finite is left out, too.
    """
    num_torn = num_nowhere = 0
    for number, line in enumerate(TextLines(file), 1):
        data = parse_object(line)
        if data is None:
            num_torn += bool(line.strip())
            continue
        step = data.pop("step", None)
        if not isinstance(step, int | float):
            raise ReadError(
                f"{file}:{number}: step is {repr(step)[:60]}, expected a number; correct the line"
            )
        place = _finite(step)
        if place is None:
            num_nowhere += 1
            continue
        values = {n: v for n, v in _known(data, file, number, builder) if v is not None}
        builder.add(place, values)
    if num_nowhere:
        builder.notes.append(
            f"{file.name}: {counted(num_nowhere, 'row')} without a finite step left out"
        )
    return num_torn


def _known(
    data: dict[str, object], file: Path, line: int, builder: RecordBuilder
) -> Iterator[tuple[str, float | None]]:
    for key, value in flatten(data):
        name = canonical(key)
        if name is None:
            # NaN and Inf are written as words; they are numbers, too
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number or (isinstance(value, str) and value in _WORDS):
                builder.unread[key] = builder.unread.get(key, 0) + 1
            continue
        try:
            number = parse_number(value)
        except BadNumberError as error:
            raise ReadError(
                f"{file}:{line}: {key} is {error}, expected a number; correct the line"
            ) from error
        builder.keys.setdefault(name, key)
        if number is not None and name in TIMES:
            number *= unit_scale(key)
        yield name, number


def read_facts(settings: Path, notes: list[str]) -> dict[str, float]:
    """Return the numbers among the settings in a `run.toml`, by their last name.

    Args:
        settings: The file; without one there are no settings.
        notes: Takes what is to be said of a file that cannot be read.
    """
    try:
        if not settings.is_file():
            return {}
        data = read_toml_text(settings.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        notes.append(f"run.toml cannot be read ({error}); its settings are left out")
        return {}
    return facts_among(data)


def facts_among(settings: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers among settings, nested or not, by their last name."""
    facts: dict[str, float] = {}
    for key, value in flatten(dict(settings)):
        name = key.rpartition("/")[2]
        number = None if isinstance(value, bool) else _finite(value)
        if number is not None:
            facts.setdefault("clip" if name in _CLIP_NAMES else name, number)
    return facts


def _natural(text: str) -> list[tuple[int, str]]:
    """Sort key under which 1.10 comes after 1.9."""
    return [(int(t), "") if t.isdecimal() else (-1, t) for t in re.split(r"(\d+)", text)]
