"""Which settings differ between two runs.

What their logs state, and their config files, key by key.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trimtab.errors import ReadError
from trimtab.readers.base import CUT_STREAM, open_bytes
from trimtab.record import Attempt, RunRecord

__all__ = ["Change", "diff", "flat_config", "stated_settings"]

MAX_SIZE_BYTES = 10_000_000
_MAX_DEPTH = 50
_NO_SETTINGS = frozenset({"grad_norm_was_scaled"})
"""Facts of a record that the reading found, not the run's settings."""
_OPTION = re.compile(
    r"(?<!\S)--?([A-Za-z][\w.\-]*)(?:=|\s+)?((?:\"[^\"]*\"|'[^']*'|(?!--?[A-Za-z])[^\s\\]+)?)"
)


@dataclass(frozen=True)
class Change:
    """One setting that differs; None: not stated on that side."""

    key: str
    a: str | None
    b: str | None


def diff(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the keys whose values differ, and no others; numbers that are equal count as equal.

    Example:
        >>> diff({"lr": "6e-5", "seed": "42"}, {"lr": "0.00006", "seed": "43"})
        (Change(key='seed', a='42', b='43'),)
    """
    keys = sorted({*a, *b})
    return tuple(Change(k, a.get(k), b.get(k)) for k in keys if not _same(a.get(k), b.get(k)))


def _same(a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    try:
        return a is not None and b is not None and float(a) == float(b)
    except ValueError:
        return False


def stated_settings(record: RunRecord, attempt: Attempt | None = None) -> dict[str, str]:
    """Return what a log states of its settings: its facts, and those of one attempt (the last)."""
    facts = {k: f"{v:g}" for k, v in record.facts.items() if k not in _NO_SETTINGS}
    own = attempt or (record.attempts[-1] if record.attempts else None)
    return {**facts, **({} if own is None else dict(own.settings))}


def flat_config(path: Path) -> dict[str, str]:
    """Return the settings of a config file as one level of dotted keys.

    JSON, YAML, TOML, or any text with `--key value` options, such as a launch script. Nothing in it
    is run; variables of a script stay as they are written.

    Raises:
        ReadError: It cannot be read, or holds no settings.
    """
    try:
        if path.stat().st_size > MAX_SIZE_BYTES:
            raise ReadError(f"{path}: larger than {MAX_SIZE_BYTES} bytes; give a config")
        with open_bytes(path) as stream:  # no pipe, no device
            text = stream.read(MAX_SIZE_BYTES).decode("utf-8", errors="replace")
    except CUT_STREAM as error:
        why = getattr(error, "strerror", None) or error
        raise ReadError(f"{path}: cannot be read ({why}); give a config") from error
    for parse in (_json, _toml, _options, _yaml):
        found = parse(text)
        if found:
            return {k: v for k, v in _flat(found) if k}
    raise ReadError(
        f"{path}: no settings found; looked for JSON, TOML, YAML and --key value options"
    )


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _toml(text: str) -> Any:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError):
        return None


def _yaml(text: str) -> Any:
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _options(text: str) -> Any:
    lines = (line.strip() for line in text.replace("\\\n", " ").splitlines())
    code = "\n".join(line for line in lines if not line.startswith("#"))
    found = {key: value.strip("\"'") or "true" for key, value in _OPTION.findall(code)}
    return found if "--" in code else None


def _flat(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        for name, inner in value.items():
            yield from _flat(inner, f"{key}.{name}" if key else str(name), depth + 1)
    elif (
        isinstance(value, list)
        and depth < _MAX_DEPTH
        and any(isinstance(v, dict | list) for v in value)
    ):
        for i, inner in enumerate(value):
            yield from _flat(inner, f"{key}[{i}]", depth + 1)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, default=str)
