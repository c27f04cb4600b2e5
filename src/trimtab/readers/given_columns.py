"""Columns that a person names: `loss=Verlust,step=Schritt`, where no alias knows a log's words.

What is given holds within `columns_given`, for tables, rows of keys and values (CSV, JSON lines,
stores of trackers) and any number that a text prints behind a name. It is kept in a context
variable, so that two readings at once do not see each other's.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from trimtab.errors import ConfigError
from trimtab.record import RunRecord
from trimtab.vocabulary import SIGNAL_BY_NAME, canonical, normalise

__all__ = [
    "AXES",
    "NAME_IT",
    "all_given",
    "checked_columns",
    "columns_given",
    "given_meaning",
    "missing_among",
    "missing_column",
    "parse_columns",
]

AXES = ("step", "epoch")
"""What a column may be called besides a signal."""

NAME_IT = "where it holds one, say which key: --columns loss=KEY,step=KEY"
"""The way out, for messages on a log whose words nobody knows."""
_NOTHING: Mapping[str, str] = {}
_given: ContextVar[Mapping[str, str]] = ContextVar("columns given", default=_NOTHING)


def parse_columns(text: str) -> dict[str, str]:
    """Return canonical name -> column of `NAME=COLUMN,NAME=COLUMN`.

    Raises:
        ConfigError: A part is not of that form, or a name is neither a signal nor an axis.

    Example:
        >>> parse_columns("loss=Verlust,step=Schritt")
        {'loss': 'Verlust', 'step': 'Schritt'}
        >>> parse_columns("tokens_per_second=Tempo")
        {'throughput': 'Tempo'}
    """
    columns: dict[str, str] = {}
    for part in text.split(",") if text else ():
        name, equals, column = (p.strip() for p in part.partition("="))
        if not (name and equals and column):
            raise ConfigError(
                f"--columns: {part!r} is not NAME=COLUMN; write e.g. loss=Verlust,step=Schritt"
            )
        columns[name] = column
    return checked_columns(columns, told_by="--columns")


def checked_columns(columns: object, *, told_by: str = "columns") -> dict[str, str]:
    """Return canonical name -> column; another name of a signal, as `samples_per_second`, is taken.

    Raises:
        ConfigError: It is no such mapping, or a name is neither a signal nor an axis.
    """
    if not isinstance(columns, Mapping) or not all(
        isinstance(part, str) and part for pair in columns.items() for part in pair
    ):
        raise ConfigError(
            f'{told_by}={columns!r:.60}: expected a mapping such as {{"loss": "training/ce"}}'
        )
    named: dict[str, str] = {}
    for name, column in columns.items():
        known = name if name in SIGNAL_BY_NAME or name in AXES else canonical(name)
        if known is None:
            raise ConfigError(
                f"{told_by}: no signal is called {name!r}; known are step, epoch, loss, val_loss,"
                " lr, grad_norm and the others of docs/beyond-language-models.md"
            )
        named[known] = column
    return named


@contextmanager
def columns_given(columns: Mapping[str, str]) -> Iterator[None]:
    """Read, within it, each of these columns as what it is said to be.

    Args:
        columns: Canonical name of a signal, `step` or `epoch` -> column as the log writes it.
    """
    token = _given.set({normalise(column): name for name, column in columns.items()})
    try:
        yield
    finally:
        _given.reset(token)


def all_given() -> Mapping[str, str]:
    """Return what a person said that keys are: key as `normalise` gives it -> canonical name."""
    return _given.get()


def given_meaning(key: str) -> str | None:
    """Return what a person said that a key is; None for a key that nobody spoke of."""
    given = _given.get()
    # Asked for every key of every row: without columns given it must cost nothing.
    return given.get(normalise(key)) if given else None


def missing_among(keys: Iterable[str]) -> str:
    """Return a sentence about the first signal whose column is not among keys; empty without one.

    Of a log in which nothing else is known: what was given is why.
    """
    keys = list(keys)
    there = {normalise(key) for key in keys}
    for column, name in _given.get().items():
        if name not in AXES and column not in there:
            return _lacks(column, name, keys)
    return ""


def _lacks(column: str, name: str, found: Iterable[str]) -> str:
    return f"no column {column!r} for {name!r}; found {', '.join(map(repr, list(found)[:8]))}"


def missing_column(record: RunRecord) -> str:
    """Return a sentence about the first signal whose column the record lacks; empty without one."""
    for column, name in _given.get().items():
        if name in AXES or normalise(record.keys.get(name, name)) == column:
            continue
        found = sorted({*record.keys.values(), *record.unread})
        return _lacks(column, name, found)
    return ""
