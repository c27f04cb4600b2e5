"""Parquet and Arrow files: the text column alone, a batch at a time. Needs the `data` extra."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trimtab.data_scan.block import DataBlock, Unit
from trimtab.data_scan.table_process import read_blocks
from trimtab.data_scan.unpack import check_regular
from trimtab.errors import MissingExtraError, ReadError

__all__ = ["Columns"]


class Columns:
    """The rows of one Parquet or Arrow file; unit: the row. The cursor counts batches."""

    unit: Unit = "document"
    context = None

    def __init__(self, path: Path, field: str | None = None, by: str | None = None) -> None:
        """Remember the path.

        Raises:
            MissingExtraError: pyarrow is not there.
        """
        if not _has_pyarrow():
            raise MissingExtraError(f"Reading {path.name}", "data")
        self.path, self.field, self.by = path, field, by
        self.total = 0
        self.notes: list[str] = []

    def blocks(self, cursor: int, next_id: int) -> Iterator[tuple[DataBlock, int]]:
        """Yield one block per record batch of at most 1024 rows.

        Raises:
            ReadError: The file is damaged, or reading it takes more than it may.
        """
        check_regular(self.path)
        try:
            for starts, data, num_null, origins, done in read_blocks(
                self.path, self.field, self.by, cursor
            ):
                ids = np.arange(next_id, next_id + len(starts) - 1, dtype=np.int64)
                next_id += len(ids)
                yield DataBlock(data, starts, ids, starts, num_null, len(data), origins), done
        except OSError as error:
            raise ReadError(
                f"{self.path}: cannot be read as a table ({str(error)[:200]}); check the file"
            ) from error


def _has_pyarrow() -> bool:
    # Not imported here: the process that reads imports it, and this one stays small.
    if "pyarrow" in sys.modules:
        return sys.modules["pyarrow"] is not None
    return importlib.util.find_spec("pyarrow") is not None
