"""The `results.txt` of the YOLO family: fifteen columns without a header.

       7/29     1.93G   0.07636     0.102         0    0.1783        29       416   0.08953 ...

YOLOv3 by Ultralytics, YOLOv5 to its sixth version, YOLOR and YOLOv7 write a line for each epoch: the
epoch and how many there are, the memory of the card, three parts of the loss and their sum, the
labels of the last batch, the size of the images, four measures of held-out data and three parts of
its loss. The fourth measure is the stricter mean precision, in YOLOv3 the F1 score. Newer versions
write `results.csv`, whose names the columns have here.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from trimtab.errors import ReadError
from trimtab.readers.base import Sample, TextLines, take_sample
from trimtab.readers.table import LogTable
from trimtab.record import RunRecord

__all__ = ["YoloResultsReader"]

_EPOCH = r"[ \t]*(\d{1,7})/\d{1,7}[ \t]+(\d{1,6}(?:\.\d{0,6})?(?:e[-+]\d\d)?)G"
_NUMBER = r"[ \t]+([-+]?(?:\d{1,20}(?:\.\d{0,20})?(?:e[-+]\d{1,3})?|nan|inf))"
_ROW = re.compile(_EPOCH + 13 * _NUMBER + r"\s*")
_NAMES = (
    "epoch",
    "gpu_mem",
    *(f"train/{part}_loss" for part in ("box", "obj", "cls")),
    "train/loss",
    "labels",
    "img_size",
    *(f"metrics/{measure}" for measure in ("precision", "recall", "mAP_0.5", "mAP_0.5:0.95")),
    *(f"val/{part}_loss" for part in ("box", "obj", "cls")),
)
_MEAN_PRECISION = _NAMES.index("metrics/mAP_0.5")
_STRICTER = _MEAN_PRECISION + 1
_ROUNDING = 1e-3
"""Of numbers that are written with four digits."""
_MAX_ROWS = 50


class YoloResultsReader:
    """Reads rows of YOLO's results."""

    name = "yolo-results"
    looks_for = "results.txt of YOLOv5 (`7/29 1.93G 0.076 0.102 0 0.178 29 416 ...`)"

    def sniff(self, sample: Sample) -> float:
        """Return 0.97 where every line has the form; the last one may be torn."""
        if sample.is_binary:
            return 0.0
        lines = sample.lines[:_MAX_ROWS]
        rows = lines[:-1] if len(lines) > 1 else lines
        return 0.97 if rows and all(map(_ROW.fullmatch, rows)) else 0.0

    def read(self, path: Path) -> RunRecord:
        """Read the file.

        Raises:
            ReadError: It has no such row, or a line that is none before the last.
        """
        log = LogTable(str(path), self.name)
        names = _names([_ROW.fullmatch(line) for line in take_sample(path).lines])
        broken: list[tuple[int, str]] = []
        last = 0
        for number, line in enumerate(TextLines(path), 1):
            if not line.strip():
                continue
            last = number
            row = _ROW.fullmatch(line)
            if row is None:
                broken.append((number, "no row of results"))
            else:
                log.add(names, _measured(row.groups()), number)
        # Only the very last row can be torn; a short one elsewhere is damage.
        if broken and broken[-1][0] == last:
            broken.pop()
            log.notes.append("the last row was torn in mid-write and left out")
        if log.num_rows == 0:
            raise ReadError(f"{path}: no row of results; looked for {self.looks_for}")
        log.settle_problems(broken, "a number")
        return log.to_record(columnar=True)


def _measured(cells: Sequence[str]) -> tuple[str, ...]:
    """Return the cells of a row, without those of an evaluation that was not made: all are 0."""
    held_out = cells[_MEAN_PRECISION - 2 :]
    none = not any(float(cell) for cell in held_out)
    return (*cells[: _MEAN_PRECISION - 2], *("" if none else cell for cell in held_out))


def _names(rows: list[re.Match[str] | None]) -> tuple[str, ...]:
    """Return the names of the columns; where the fourth measure is no mean precision it is F1.

    A precision over stricter overlaps is never the greater one.
    """
    pairs = [
        (float(row[_MEAN_PRECISION + 1]), float(row[_STRICTER + 1]))
        for row in rows
        if row is not None
    ]
    if any(strict > loose * (1 + _ROUNDING) for loose, strict in pairs):
        return (*_NAMES[:_STRICTER], "metrics/F1", *_NAMES[_STRICTER + 1 :])
    return _NAMES
