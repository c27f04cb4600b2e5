"""MLflow's file store: a directory per run, a file per metric, a line per value.

    mlruns/EXPERIMENT/RUN/meta.yaml
    mlruns/EXPERIMENT/RUN/metrics/train/loss      1700000000000 2.31 100

A line is the time in ms, the value, and (since MLflow 1.0) the step.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from trimtab.errors import ReadError
from trimtab.readers.numbers import BadNumberError, counted, parse_number
from trimtab.readers.series import TagSeries, WantedTags, record_of_series, with_clock
from trimtab.record import RunRecord

__all__ = ["is_mlflow_run", "read_mlflow_run"]

_FORMAT = "mlflow"
_MAX_METRIC_SIZE_BYTES = 1 << 31


def is_mlflow_run(directory: Path) -> bool:
    """Whether a directory is a run of an MLflow file store."""
    return (directory / "metrics").is_dir() and (directory / "meta.yaml").is_file()


def read_mlflow_run(directory: Path) -> RunRecord:
    """Read a run of an MLflow file store.

    Raises:
        ReadError: No metric is known, or none can be read.
    """
    root = directory / "metrics"
    series: dict[str, TagSeries] = {}
    seen: list[str] = []
    wanted = WantedTags()
    notes: list[str] = []
    for path in sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink()):
        tag = path.relative_to(root).as_posix()
        seen.append(tag)
        if not wanted(tag):
            continue
        values, num_bad = _read_metric(path)
        if num_bad:
            notes.append(f"{tag}: {counted(num_bad, 'line')} that are no values left out")
        if values:
            series[tag] = _series(values)
    return record_of_series(
        str(directory), _FORMAT, with_clock(series), notes=notes, tags_seen=seen
    )


def _read_metric(path: Path) -> tuple[list[tuple[float, float, float]], int]:
    """Return (time, step, value) of each line, and how many lines are malformed."""
    try:
        if path.stat().st_size > _MAX_METRIC_SIZE_BYTES:
            raise ReadError(f"{path}: a metric of more than 2 GiB; is it an artifact?")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ReadError(f"{path}: cannot be read ({error.strerror}); check its rights") from error
    values: list[tuple[float, float, float]] = []
    num_bad = 0
    for index, cells in enumerate(_cells(text)):
        try:
            numbers = [parse_number(cell) for cell in cells[:3]]
        except BadNumberError:
            num_bad += 1
            continue
        time, value, step = (*numbers, None, None, None)[:3]
        if time is None or value is None:
            num_bad += 1
            continue
        values.append((time, float(index) if step is None else step, value))
    return values, num_bad


def _cells(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.strip():
            yield line.split()


def _series(values: list[tuple[float, float, float]]) -> TagSeries:
    table = np.array(values, dtype=np.float64)
    order = np.argsort(table[:, 0], kind="stable")
    return TagSeries(table[order, 0], table[order, 1], table[order, 2])
