"""The table of crash wordings: `patterns.toml` as typed rows."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Final, Literal, get_args

__all__ = [
    "CRASH_CLASSES",
    "ClassText",
    "CrashPattern",
    "Level",
    "WhoMustAct",
    "class_texts",
    "crash_patterns",
]

WhoMustAct = Literal["transient", "node", "code", "config", "data", "numeric", "unknown"]
"""Who has to act; `transient`: nobody, a restart is enough."""

Level = Literal["cause", "error", "end", "echo", "minor"]
"""How near a line is to the fault: its name, an error, the job's end, an echo, a side matter."""

LEVELS: Final[tuple[str, ...]] = get_args(Level)

CRASH_CLASSES: Final[tuple[str, ...]] = (
    "checkpoint",
    "cuda_error",
    "data_error",
    "ecc_xid",
    "env_driver",
    "hang",
    "lost_gpu",
    "nccl_error",
    "nccl_timeout",
    "network",
    "node_launch",
    "numeric",
    "oom_gpu",
    "oom_host",
    "preempt_timelimit",
    "python_error",
    "storage",
    "unknown",
    "user_error",
)


@dataclass(frozen=True, kw_only=True)
class ClassText:
    """What a class means, in a sentence, and what to do about it."""

    says: str
    do: str


@dataclass(frozen=True, kw_only=True)
class CrashPattern:
    """One wording and its meaning."""

    id: str
    crash_class: str
    act: WhoMustAct
    level: Level
    any: tuple[str, ...]
    """Lower-case texts; a line without all of them is not looked at."""
    source: str | None = None
    """The regular expression as written; None: one of `any` is enough."""
    where: str | None = None
    """An expression for where an exception was raised (`trimtab.crash.stack`); None: anywhere."""
    do: str | None = None
    """What to do, if the class's advice is not enough."""

    @cached_property
    def cores(self) -> tuple[str, ...]:
        """The longest word of each of `any`: a text without it cannot hold the whole."""
        return tuple(max(re.findall("[a-z]+", needle), key=len) for needle in self.any)

    @cached_property
    def regex(self) -> re.Pattern[str] | None:
        """The compiled expression; compiled only when a line holds one of `any`."""
        return re.compile(self.source, re.IGNORECASE) if self.source else None

    @cached_property
    def place(self) -> re.Pattern[str] | None:
        """The compiled expression of `where`."""
        return re.compile(self.where, re.IGNORECASE) if self.where else None


@cache
def _document() -> Mapping[str, Any]:
    return tomllib.loads((files("trimtab.crash") / "patterns.toml").read_text("utf-8"))


@cache
def class_texts() -> Mapping[str, ClassText]:
    """Return the sentence and the advice of each class, by its name."""
    return {name: ClassText(**row) for name, row in _document()["class"].items()}


@cache
def crash_patterns() -> tuple[CrashPattern, ...]:
    """Return every row, in the order of the file: of several that fit a line the first counts."""
    return tuple(
        CrashPattern(
            id=row["id"],
            crash_class=row["class"],
            act=row["act"],
            level=row["level"],
            any=tuple(row["any"]),
            source=row.get("regex"),
            where=row.get("where"),
            do=row.get("do"),
        )
        for row in _document()["pattern"]
    )
