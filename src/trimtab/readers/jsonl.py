"""One JSON object per line, as loggers of every kind write it.

Nested keys are joined with `/`. `NaN`, `Infinity` (also bare `nan`, `inf`, and as strings) are
values; null is missing. A last line that was torn while it was written is left out and counted.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import orjson

from trimtab.limits import MAX_JSON_DEPTH
from trimtab.readers.base import SAMPLE_SIZE_BYTES, Sample, TextLines
from trimtab.readers.long_form import LongForm, fill_series
from trimtab.readers.numbers import counted
from trimtab.readers.table import LogTable, is_known_key
from trimtab.record import RunRecord
from trimtab.vocabulary import canonical

__all__ = ["JsonlReader", "as_json", "flatten", "parse_object"]

_COMPOSITE_STEPS = frozenset({"step", "global_step", "iteration"})
_WIDTHS = frozenset({"std", "num", "count", "var"})
_STATISTICS = _WIDTHS | {"mean", "min", "max", "sum", "median"}
"""Names of what an object may say of one value; the widths show that it does."""
_MAX_PREFIX_LENGTH = 200
_MANY_ROWS = 20
_FEW_TEXTS = 0.01
"""Share of lines without a brace below which they are damage, not what others printed."""
_BARE = re.compile(r"(?<=[:,\[\s])([-+]?)(nan|inf(?:inity)?)(?=\s*[,}\]])", re.IGNORECASE)
_QUOTED = re.compile(r"'([^'\"\\\n]*)'")
_OF_WORD = {"None": "null", "True": "true", "False": "false"}
_WORD = re.compile(r"(?<=[:,\[\s])(?:None|True|False)(?=\s*[,}\]])")
_LAST_COMMA = re.compile(r",(?=\s*[}\]])")


def parse_object(line: str) -> dict[str, object] | None:
    """Return the JSON object on a line, None where there is none."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        # orjson is strict and fast; only the few lines that it refuses are looked at again. A comma
        # at the end comes from lists written row by row.
        data = _parse_loosely(line.rstrip().removesuffix(","))
    return data if isinstance(data, dict) else None


def _parse_behind_prefix(line: str) -> dict[str, object] | None:
    """Return the object on a line, also behind what a logger puts in front (`DLLL {...}`)."""
    if not line.lstrip().startswith("{"):
        start = line.find('{"', 0, _MAX_PREFIX_LENGTH)
        return parse_object(line[start:]) if start > 0 else None
    return parse_object(line)


def as_json(text: str) -> str:
    """Return what Python prints of dicts and lists as JSON, as far as its marks tell.

    Example:
        >>> as_json("{'loss': nan, 'skipped': None,}")
        '{"loss": NaN, "skipped": null}'
    """
    text = _QUOTED.sub(r'"\1"', text)
    text = _BARE.sub(_spell, _WORD.sub(lambda m: _OF_WORD[m[0]], text))
    return _LAST_COMMA.sub("", text)


def _parse_loosely(line: str) -> object:
    """Parse JSON with NaN and Infinity, which the standard forbids and loggers write."""
    if not line.lstrip().startswith("{"):
        return None
    try:
        return json.loads(line)
    except RecursionError:
        return None
    except ValueError:
        pass
    try:
        return json.loads(_BARE.sub(_spell, line))
    except (ValueError, RecursionError):
        return None


def _spell(match: re.Match[str]) -> str:
    sign = "-" if match[1] == "-" else ""
    return "NaN" if match[2].lower() == "nan" else f"{sign}Infinity"


def flatten(
    data: dict[str, object], prefix: str = "", *, depth: int = 0
) -> Iterator[tuple[str, object]]:
    """Yield (key, value) of all scalars of nested objects, keys joined with `/`.

    Lists are left out, and what lies deeper than any logger nests; but for a lone number, and the
    step: `[2, 40]` is the second epoch and its 40th batch.
    """
    for key, value in data.items():
        if isinstance(value, dict) and _is_spread(key, value):
            yield f"{prefix}{key}", value["mean"]
            yield from ((f"{prefix}{key}/{k}", v) for k, v in value.items() if k != "mean")
        elif isinstance(value, dict):
            if depth < MAX_JSON_DEPTH:
                yield from flatten(value, f"{prefix}{key}/", depth=depth + 1)
        elif not isinstance(value, list):
            yield f"{prefix}{key}", value
        elif key in _COMPOSITE_STEPS and 0 < len(value) <= 3:
            names = ("step",) if len(value) == 1 else ("epoch", "batch", "of")
            yield from zip((f"{prefix}{key}/{n}" for n in names), value, strict=False)
        elif len(value) == 1 and type(value[0]) in (int, float):
            yield f"{prefix}{key}", value[0]  # `{"loss": [0.34]}`, as a fit of one epoch returns it


def _is_spread(key: str, value: dict[str, object]) -> bool:
    """Whether an object says of one value how it is spread: `{"num": 64, "mean": 1.1, "std": .4}`."""
    return (
        _STATISTICS.issuperset(value)
        and "mean" in value
        and not _WIDTHS.isdisjoint(value)
        # Known by the name of its mean it is kept as it is.
        and canonical(f"{key}/mean") is None
    )


def _is_flat(line: str) -> bool:
    """Whether an object has neither objects nor lists in it; False also where a text looks so."""
    # Two searches of the text cost less than a look at each value of the object.
    return line.find("{") == line.rfind("{") and "[" not in line


class JsonlReader:
    """Reads JSON lines."""

    name = "jsonl"
    looks_for = 'JSON lines (`{"step": 10, "loss": 2.5}`)'

    def sniff(self, sample: Sample) -> float:
        """Return 0.9 where (nearly) every line is an object and some key is known."""
        lines = sample.lines[:200]
        if sample.is_binary or not lines:
            return 0.0
        if not lines[0].lstrip().startswith("{") and '{"' not in lines[0][:_MAX_PREFIX_LENGTH]:
            return 0.0
        objects = [_parse_behind_prefix(line) for line in lines]
        found = [o for o in objects if o is not None]
        # One line less, since the sample or the writer may have cut the last one.
        if not found or len(found) < 0.9 * (len(lines) - 1):
            return 0.0
        known = any(is_known_key(k) for o in found for k, _ in flatten(o)) or LongForm.told_by(
            found[0]
        )
        if not known and any("loss" in str(v) for o in found for v in o.values()):
            return 0.0  # lines of text, wrapped by what collected them
        certain = known and len(found) >= _MANY_ROWS and len(found) == len(lines)
        if certain and all(line.startswith("{") for line in lines):
            return 0.96
        return 0.9 if known else 0.3 if len(found) > 1 or len(lines[0]) < SAMPLE_SIZE_BYTES else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: A line is broken, or no key is known.
        """
        table = LogTable(str(path), self.name)
        lines = TextLines(path)
        broken: list[tuple[int, str]] = []
        long_form: LongForm | None = None
        texts: list[tuple[int, str]] = []
        number = last = 0
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            last = number
            data = _parse_behind_prefix(line)
            if data is None:
                what = f"not a JSON object: {line[:60]!r}, expected one object per line"
                (broken if "{" in line else texts).append((number, what))
                continue
            # The first row decides: long and wide rows do not mix in one file.
            if table.num_rows == 0 and long_form is None:
                long_form = LongForm.told_by(data)
            if long_form is not None:
                long_form.add(data)
                continue
            if _is_flat(line):
                table.add(tuple(data), tuple(data.values()), number)
            else:
                pairs = list(flatten(data))
                table.add(tuple(k for k, _ in pairs), [v for _, v in pairs], number)
        if long_form is not None:
            fill_series(table, long_form.series)
        # Only the very last line can be torn by the writer; damage elsewhere counts as such.
        if broken and broken[-1][0] == last:
            broken.pop()
            table.notes.append("the last line was torn in mid-write and left out")
        if len(texts) < _FEW_TEXTS * number:
            broken = sorted([*broken, *texts])  # one here and there is damage
        else:
            told = counted(len(texts), "line")
            table.notes.append(f"{told} of text among the JSON lines left out")
        table.notes.extend(lines.notes())
        table.settle_problems(broken, "a number")
        return table.to_record(columnar=False)
