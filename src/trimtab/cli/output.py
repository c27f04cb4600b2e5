"""What commands print: one JSON document, or text for people."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from trimtab.errors import ConfigError

__all__ = ["finite", "print_json", "write_file"]

_MAX_DEPTH = 100
_SURROGATE = re.compile("[\ud800-\udfff]")


def print_json(document: dict[str, Any]) -> None:
    """Print exactly one JSON document; NaN and Inf become null, lone surrogates U+FFFD."""
    plain = finite(document)
    text = _SURROGATE.sub(
        "\ufffd", json.dumps(plain, ensure_ascii=False, allow_nan=False, indent=1)
    )
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a terminal that knows fewer characters: escape them
        text = json.dumps(json.loads(text), allow_nan=False, indent=1)
    print(text)


def finite(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON can hold it; what nests deeper than any report is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list | tuple) and depth > _MAX_DEPTH:
        return None
    if isinstance(value, dict):
        return {k: finite(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v, depth + 1) for v in value]
    return value


def write_file(path: Path, text: str) -> None:
    """Write a file that a command was asked for.

    Raises:
        ConfigError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); choose another place for it"
        ) from error
