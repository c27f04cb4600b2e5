"""Results by case, one JSON line each: a measurement that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import trimtab
from trimtab.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

__all__ = ["Totals", "spread"]

Row = dict[str, object]
T = TypeVar("T")


class Totals:
    """The results of one measurement."""

    def __init__(self, path: Path, *, follows_code: bool = True) -> None:
        """Read what is there for the code as it is now; a torn last line is left out.

        Args:
            path: Made where it is not there.
            follows_code: False: results do not depend on trimtab's sources, and all count.

        Raises:
            ConfigError: The file cannot be read or made.
        """
        self.path = path
        self._code = _code() if follows_code else ""
        self.rows: dict[str, Row] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.seek(0)
                data = file.read()
                if data and not data.endswith(b"\n"):
                    file.write(b"\n")
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot be used for results ({error.strerror}); give another --out"
            ) from error
        for line in data.splitlines():
            try:
                row = json.loads(line)
                if row["code"] == self._code:
                    self.rows[str(row["case"])] = row
            except (ValueError, KeyError, TypeError):
                continue

    def add(self, row: Row) -> None:
        """Keep the result of one case."""
        row = {**row, "code": self._code}
        with self.path.open("ab") as file:
            file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        self.rows[str(row["case"])] = row


def _code() -> str:
    """Return a checksum of trimtab's sources: results of other code are not carried over."""
    digest = hashlib.sha256()
    for path in sorted(Path(trimtab.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def spread(
    cases: Sequence[T], number: int | None, seed: int, *, of: Callable[[T], Hashable]
) -> list[T]:
    """Return so many of the cases, of each group in turn, drawn by a seed; None: all of them."""
    if number is None or number >= len(cases):
        return list(cases)
    draw = random.Random(seed)
    groups: dict[Hashable, list[T]] = {}
    for case in cases:
        groups.setdefault(of(case), []).append(case)
    for group in groups.values():
        draw.shuffle(group)
    in_turn = list(groups.values())
    draw.shuffle(in_turn)
    found: list[T] = []
    for turn in range(max(len(group) for group in in_turn)):
        found += [group[turn] for group in in_turn if turn < len(group)]
        if len(found) >= number:
            break
    return found[:number]
