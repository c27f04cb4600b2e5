"""Blocks of a table, read as columns: cells are found in the bytes, not split line by line.

Only what is laid out evenly is read so, without quotes and with as many cells in each row as in the
header; for any other block the caller goes line by line.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from trimtab.readers.base import is_plain, open_bytes
from trimtab.readers.clock_columns import times_of

__all__ = ["BlockColumn", "byte_blocks", "even_block"]

_BLOCK_BYTES = 1 << 18
"""What numbers a block has fits into the cache of a processor core: a third faster than a MiB."""
_FIRST_BYTES = 1 << 16
_MAX_LINE_BYTES = 1 << 20
_MAX_WIDTH = 40
"""Longer cells are no numbers as loggers write them."""
_SHARE_OF_ALL = 5
"""A column read by itself costs as much as so many of all columns read at once."""
_ODD = b'"_\0'
"""Bytes of blocks that are read line by line: quotes, and what Python takes for digits."""


@dataclass(frozen=True)
class BlockColumn:
    """One column of a block."""

    values: NDArray[np.float64]
    """float64 [n_rows]."""
    present: NDArray[np.bool_]
    """bool [n_rows]; an empty cell is absent."""
    is_local: bool = False
    """Whether the values are times, from text that names no zone."""


def byte_blocks(path: Path) -> Iterator[bytes] | None:
    """Return whole lines of a plain file, about a MiB at a time; None for a compressed one.

    The first block is small: its lines show what the table is. A line of more than a MiB, or
    a NUL byte, ends the iteration with a `ValueError`.
    """
    with open_bytes(path) as stream:
        if not is_plain(stream):
            return None
    return _blocks(path)


def _blocks(path: Path) -> Iterator[bytes]:
    rest = b""
    size = _FIRST_BYTES
    with open_bytes(path) as stream:
        while chunk := stream.read(size):
            data = rest + chunk
            end = data.rfind(b"\n") + 1
            rest = data[end:]
            if len(rest) > _MAX_LINE_BYTES:
                raise ValueError("a line is too long for a block")
            if b"\0" in data:
                raise ValueError("NUL bytes: damage, to be looked at line by line")
            if end:
                size = _BLOCK_BYTES
                yield data[:end]
    if rest:
        yield rest


def even_block(
    block: bytes,
    delimiter: str,
    num_cells: int,
    wanted: Sequence[int],
    times: Collection[int] = (),
) -> tuple[dict[int, BlockColumn], NDArray[np.intp], int] | None:
    """Return the wanted columns of a block, how many cells of each are filled, and its rows.

    Args:
        block: Whole lines.
        delimiter: One character.
        num_cells: Cells of each row.
        wanted: Columns that are read as numbers.
        times: Those of them that may as well be text of a date and a time.

    Returns:
        None where the block is not even, or a wanted cell is no plain number.
    """
    if any(odd in block for odd in _ODD_BYTES):
        return None
    if b"\r" in block:
        if block.count(b"\r") != block.count(b"\r\n"):
            return None
        block = block.replace(b"\r\n", b"\n")
    if _SHARE_OF_ALL * len(wanted) >= num_cells:
        values = _all_numbers(block, delimiter, num_cells)
        if values is not None:
            # An empty cell is null in JSON, and NaN here; the word `nan` is none of its numbers.
            present = ~np.isnan(values)
            columns = {i: BlockColumn(values[:, i], present[:, i]) for i in wanted}
            return columns, np.count_nonzero(present, axis=0), len(values)
    data = np.frombuffer(block, np.uint8)
    marks = np.flatnonzero((data == ord(delimiter)) | (data == 10))
    if not len(marks) or len(marks) % num_cells or marks[-1] != len(data) - 1:
        return None
    ends = marks.reshape(-1, num_cells)
    if np.count_nonzero(data == 10) != len(ends) or not (data[ends[:, -1]] == 10).all():
        return None
    starts = np.empty_like(ends)
    starts.ravel()[1:] = ends.ravel()[:-1] + 1
    starts[0, 0] = 0
    widths = ends - starts
    columns = {}
    for index in wanted:
        column = _numbers(data, starts[:, index], widths[:, index])
        if column is None and index in times:
            column = _times(block, starts[:, index], ends[:, index])
        if column is None:
            return None
        columns[index] = column
    return columns, np.count_nonzero(widths, axis=0), len(ends)


def _all_numbers(block: bytes, delimiter: str, num_cells: int) -> NDArray[np.float64] | None:
    """Return all cells of a block, float64 [n_rows, n_cells]; None where one is no number.

    They are read as a list in JSON: that is the fastest exact reading of numbers at hand.
    """
    sign = delimiter.encode()
    # What is left without the numbers shows that all rows are even, and that nothing else is there.
    skeleton = block.translate(None, _OF_NUMBERS)
    if skeleton != (sign * (num_cells - 1) + b"\n") * skeleton.count(b"\n"):
        return None
    block = block.removesuffix(b"\n")
    text = (block if sign == b"," else block.replace(sign, b",")).replace(b"\n", b",")
    if b",," in text or text[:1] == b"," or text[-1:] == b",":
        text = b"," + text + b","
        text = text.replace(b",,", b",null,").replace(b",,", b",null,")[1:-1]
    try:
        cells = orjson.loads(b"[" + text + b"]")
    except orjson.JSONDecodeError:
        return None
    try:
        values = np.fromiter(cells, np.float64, len(cells))
    except (TypeError, OverflowError):  # null
        values = np.array(cells, dtype=np.float64)
    return values.reshape(-1, num_cells)


_OF_NUMBERS = b"0123456789.+-eE "
_ODD_BYTES = tuple(bytes([b]) for b in _ODD)


def _numbers(
    data: NDArray[np.uint8], starts: NDArray[np.intp], widths: NDArray[np.intp]
) -> BlockColumn | None:
    present = widths > 0
    width = int(widths.max(initial=0))
    if not width:
        return BlockColumn(np.full(len(starts), np.nan), present)
    if width > _MAX_WIDTH:
        return None
    places = np.minimum(starts[:, None] + np.arange(width), len(data) - 1)
    cells = np.where(np.arange(width) < widths[:, None], data[places], 0).astype(np.uint8)
    texts = cells.view(f"S{width}")[:, 0]
    values = np.full(len(starts), np.nan)
    try:
        values[present] = texts[present].astype(np.float64)
    except ValueError:
        return None
    return BlockColumn(values, present)


def _times(block: bytes, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> BlockColumn | None:
    """Return cells that are times, None where one is not."""
    text = block.decode("latin-1")
    said = times_of([text[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)])
    return None if said is None else BlockColumn(said[0], ends > starts, said[1])
