"""What commands print: one JSON document, or text for people."""

import json
import sys
from pathlib import Path
from typing import Any

from trimtab.errors import ConfigError

__all__ = ["print_json", "write_file"]


def print_json(document: dict[str, Any]) -> None:
    """Print exactly one JSON document; it must hold no NaN or Inf."""
    json.dump(document, sys.stdout, ensure_ascii=False, allow_nan=False, indent=1)
    sys.stdout.write("\n")


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
            f"{path}: cannot be written ({error.strerror}); choose another --out"
        ) from error
