"""A log on disk -> RunRecord, the format told by content.

    record = read_run("train.log")
    records = read("runs/")  # a directory of logs; a directory with journal.jsonl is one run

To add a format, write a `Reader` and put it into `READERS`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.base import Reader, take_sample
from trimtab.readers.csv_table import CsvReader
from trimtab.readers.jsonl import JsonlReader
from trimtab.readers.megatron import MegatronReader
from trimtab.readers.rundir import is_run_directory, read_run_directory
from trimtab.record import RunRecord

__all__ = ["READERS", "Reader", "find_reader", "read", "read_each", "read_run"]

READERS: tuple[Reader, ...] = (MegatronReader(), JsonlReader(), CsvReader())
"""Built-in formats; of equally sure ones the first reads."""

MIN_CONFIDENCE = 0.2
_SKIPPED_DIRECTORIES = frozenset({"checkpoints", "aside", "__pycache__"})


def find_reader(path: Path) -> Reader:
    """Return the reader that is surest that the file is of its format.

    Raises:
        ReadError: The file is missing, empty or binary, or nobody knows it.
    """
    sample = take_sample(path)
    surest, reader = max(((r.sniff(sample), -i) for i, r in enumerate(READERS)), default=(0.0, 0))
    if surest >= MIN_CONFIDENCE:
        return READERS[-reader]
    what = "binary data of no known format" if sample.is_binary else "no records that can be read"
    raise ReadError(
        f"{path}: {what}; looked for {'; '.join(r.looks_for for r in READERS)}; give a training log"
    )


def read_run(path: str | os.PathLike[str]) -> RunRecord:
    """Read one run: a log file, or a trimtab run directory.

    Raises:
        ReadError: It cannot be read, or it is a directory with several logs.
    """
    records = read(path)
    if len(records) != 1:
        names = ", ".join(r.source for r in records[:3])
        raise ReadError(f"{path}: holds {len(records)} logs ({names} ...); name one of them")
    return records[0]


def read(path: str | os.PathLike[str]) -> list[RunRecord]:
    """Read a log, or every log in a directory; files there that are no logs are passed over.

    Raises:
        ReadError: A named file cannot be read, or a directory holds no log.
    """
    records: list[RunRecord] = []
    errors: list[ReadError] = []
    for _, outcome in read_each(path):
        if isinstance(outcome, RunRecord):
            records.append(outcome)
        else:
            errors.append(outcome)
    if records:
        return records
    if len(errors) == 1:
        raise errors[0]
    raise ReadError(
        f"{path}: no log among {len(errors)} files; looked for a trimtab run (journal.jsonl), "
        f"{'; '.join(r.looks_for for r in READERS)}"
    )


def read_each(path: str | os.PathLike[str]) -> Iterator[tuple[str, RunRecord | ReadError]]:
    """Yield (path, record or why there is none) for a file, or for all files in a directory.

    One bad file does not hide the others. A directory inside that is a trimtab run is one record.
    """
    root = Path(path)
    for file in _runs_under(root) if root.is_dir() else (root,):
        try:
            yield str(file), _read_one(file)
        except ReadError as error:
            yield str(file), error


def _read_one(path: Path) -> RunRecord:
    if path.is_dir():
        return read_run_directory(path)
    return find_reader(path).read(path)


def _runs_under(directory: Path) -> Iterator[Path]:
    """Yield run directories and files below, in order of name; hidden ones are left out."""
    if is_run_directory(directory):
        yield directory
        return
    for entry in sorted(directory.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            if entry.name not in _SKIPPED_DIRECTORIES:
                yield from _runs_under(entry)
        elif entry.is_file():
            yield entry
