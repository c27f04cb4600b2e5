"""The effective curve: the rows that led to the final weights, without overlap.

    curve = stitched(record)
    curve.to_csv(Path("curve.csv"))

A row that a rollback undid is a dead branch: left out, or kept and labeled on demand.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trimtab.chronicle.event_file import write_event_file
from trimtab.chronicle.lineage import Lineage, lineage_of
from trimtab.errors import ConfigError, MissingExtraError
from trimtab.record import Column, RunRecord

__all__ = ["AXES", "Along", "StitchedCurve", "cumulative_clip_share", "stitched", "write_curve"]

Along = Literal["step", "tokens", "time"]
AXES: tuple[str, ...] = get_args(Along)


@dataclass(frozen=True, kw_only=True)
class StitchedCurve:
    """Rows of a run on one axis, in its order."""

    along: Along
    axis: NDArray[np.float64]
    """float64 [n]: steps, tokens seen, or seconds of training on the main line; rises unless dead
    branches are in it."""
    step: NDArray[np.float64]
    attempt: tuple[str, ...]
    """Number of the attempt of each row."""
    live: NDArray[np.bool_]
    """bool [n], whether the row is on the main line."""
    columns: Mapping[str, Column]
    """Signals [n], and `clip_share`: the share of the rows so far, on this line, that were clipped.
    """
    wall_s: NDArray[np.float64]
    """float64 [n], seconds since 1970 as logged, NaN where they are not."""

    def to_csv(self) -> str:
        """Return the rows as CSV with a head; absent values are empty, NaN and Inf are words."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(
            [
                "attempt",
                "step",
                *([] if self.along == "step" else [self.along]),
                "live",
                *self.columns,
            ]
        )
        writer.writerows(self._rows())
        return text.getvalue()

    def _rows(self) -> Iterator[list[str]]:
        columns = list(self.columns.values())
        for i, attempt in enumerate(self.attempt):
            row = [attempt, f"{self.step[i]:.15g}"]
            if self.along != "step":
                row.append(f"{self.axis[i]:.15g}" if math.isfinite(self.axis[i]) else "")
            row.append(str(int(self.live[i])))
            for column in columns:
                row.append(repr(float(column.values[i])) if column.present[i] else "")
            yield row

    def to_parquet(self, path: Path) -> None:
        """Write the rows as Parquet; absent values are null, NaN stays NaN.

        Raises:
            MissingExtraError: pyarrow is not installed.
        """
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("a curve as Parquet", "data") from error
        table: dict[str, object] = {
            "attempt": pa.array(list(self.attempt)),
            "step": pa.array(self.step),
        }
        if self.along != "step":
            table[self.along] = pa.array(self.axis, mask=~np.isfinite(self.axis))
        table["live"] = pa.array(self.live)
        for name, column in self.columns.items():
            table[name] = pa.array(column.values, mask=~column.present)
        pq.write_table(pa.table(table), path)

    def to_tensorboard(self, folder: Path) -> None:
        """Write a clean TensorBoard log: one event file of the main line, one for each dead branch.

        Dead branches lie in folders of their own, `dead-ATTEMPT`, which TensorBoard shows as runs.
        """
        self._event_file(folder, np.flatnonzero(self.live))
        for number in dict.fromkeys(self.attempt):
            dead = [i for i, a in enumerate(self.attempt) if a == number and not self.live[i]]
            if dead:
                self._event_file(folder / f"dead-{number}", np.array(dead, dtype=np.intp))

    def _event_file(self, folder: Path, rows: NDArray[np.intp]) -> None:
        if not len(rows):
            return
        folder.mkdir(parents=True, exist_ok=True)
        wall = self.wall_s[rows]
        wall = np.where(np.isfinite(wall), wall, np.arange(len(rows), dtype=np.float64))
        columns = {
            n: Column(c.values[rows], c.present[rows])
            for n, c in self.columns.items()
            if c.present[rows].any() and n != "wall_time_s"
        }
        step = self.step if self.along == "step" else self.axis
        whole = np.nan_to_num(step[rows]).astype(np.int64)
        name = f"events.out.tfevents.{int(wall[0]) if wall[0] > 1 else 0:010d}.trimtab"
        write_event_file(folder / name, whole, wall, columns)


def stitched(
    record: RunRecord,
    *,
    lineage: Lineage | None = None,
    along: Along = "step",
    first: float | None = None,
    last: float | None = None,
    dead: bool = False,
) -> StitchedCurve:
    """Return the effective curve of a run.

    Args:
        record: The run.
        lineage: Its lineage, where the journal knows more than the record (marks, ablations).
        along: What the axis counts: optimizer steps, tokens seen, or seconds of training on the
            line (the time of each step summed up; pauses between attempts are left out).
        first: Leave out rows before this point of the axis.
        last: Leave out rows behind it.
        dead: Also give the rows that a rollback undid; each attempt stays together.

    Raises:
        ConfigError: The run logs neither tokens nor times, and `along` asks for them.

    Missing rows stay missing: nothing is interpolated. Cost: O(rows).
    """
    tree = lineage_of((), record) if lineage is None else lineage
    rows, live = _rows(record, tree, dead=dead)
    axis = _axis(record, rows, live, along)
    keep = np.ones(len(rows), dtype=np.bool_)
    if first is not None:
        keep &= axis >= first
    if last is not None:
        keep &= axis <= last
    clip = cumulative_clip_share(record, tree, rows, live)
    columns = {
        name: Column(c.values[rows][keep], c.present[rows][keep])
        for name, c in record.columns.items()
        if c.present[rows][keep].any()
    }
    if clip.present[keep].any():
        columns["clip_share"] = Column(clip.values[keep], clip.present[keep])
    wall = record.columns.get("wall_time_s")
    wall_s = np.full(len(rows), np.nan) if wall is None else wall.values[rows]
    rows = rows[keep]
    return StitchedCurve(
        along=along,
        axis=axis[keep],
        step=record.step[rows],
        attempt=tuple(record.attempts[i].number for i in record.attempt[rows].tolist()),
        live=live[keep],
        columns=columns,
        wall_s=wall_s[keep],
    )


def _rows(
    record: RunRecord, tree: Lineage, *, dead: bool
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    rows: list[NDArray[np.intp]] = []
    lives: list[NDArray[np.bool_]] = []
    for index, attempt in enumerate(record.attempts):
        told = tree.get(attempt.number)
        until = told.kept_until if told is not None else None
        part = record.rows_of(index)
        own = np.arange(part.start, part.stop, dtype=np.intp)
        live = np.zeros(len(own), dtype=np.bool_) if until is None else record.step[own] <= until
        rows.append(own if dead else own[live])
        lives.append(live if dead else live[live])
    if not rows:
        return np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.bool_)
    return np.concatenate(rows), np.concatenate(lives)


def _axis(
    record: RunRecord, rows: NDArray[np.intp], live: NDArray[np.bool_], along: Along
) -> NDArray[np.float64]:
    if along == "step":
        return record.step[rows]
    if along == "tokens":
        for name in ("tokens_seen", "samples_seen"):
            column = record.columns.get(name)
            if column is not None and column.present[rows].any():
                return np.where(column.present[rows], column.values[rows], np.nan)
        raise ConfigError(
            f"{record.source}: logs neither tokens nor samples seen; give --by step or --by time"
        )
    return _training_seconds(record, rows, live)


def _training_seconds(
    record: RunRecord, rows: NDArray[np.intp], live: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return seconds of training up to each row: what its line took, without pauses."""
    times, wall = record.columns.get("step_time_s"), record.columns.get("wall_time_s")
    if times is None and wall is None:
        raise ConfigError(f"{record.source}: logs no times; give --by step or --by tokens")
    found = np.zeros(len(rows))
    total = 0.0  # of the live line so far
    attempts = record.attempt[rows]
    bounds = [0, *(np.flatnonzero(np.diff(attempts)) + 1).tolist(), len(rows)]
    for begin, end in pairwise(bounds):
        if begin == end:
            continue
        own = rows[begin:end]
        took = _seconds_per_row(record, own, times, wall)
        base = total if live[begin] else _time_at(record, rows, found, live, begin)
        found[begin:end] = base + np.cumsum(took)
        kept = live[begin:end]
        if kept.any():
            total = float(found[begin:end][kept][-1])
    return found


def _time_at(
    record: RunRecord,
    rows: NDArray[np.intp],
    found: NDArray[np.float64],
    live: NDArray[np.bool_],
    begin: int,
) -> float:
    """Return the time of the last live row before the first step of a dead branch."""
    before = np.flatnonzero(live[:begin] & (record.step[rows[:begin]] < record.step[rows[begin]]))
    return float(found[before[-1]]) if len(before) else 0.0


def _seconds_per_row(
    record: RunRecord, own: NDArray[np.intp], times: Column | None, wall: Column | None
) -> NDArray[np.float64]:
    gaps = np.diff(record.step[own])
    usual = float(np.median(gaps)) if len(gaps) else 1.0
    spans = np.concatenate([[usual], gaps])
    if times is not None and (at := times.finite_rows(own)).size:
        middle = float(np.median(times.values[at]))
        each = np.where(
            np.isfinite(times.values[own]) & times.present[own], times.values[own], middle
        )
        return np.asarray(each * spans)
    if wall is not None and wall.present[own].sum() > 1:
        clock = np.interp(own, own[wall.present[own]], wall.values[own][wall.present[own]])
        took = np.diff(clock)
        return np.concatenate([[float(np.median(took))], np.maximum(took, 0.0)])
    return np.zeros(len(own))


def cumulative_clip_share(
    record: RunRecord, tree: Lineage, rows: NDArray[np.intp], live: NDArray[np.bool_]
) -> Column:
    """Return the share of the rows so far whose gradient was clipped; the last is `flags.mean()`.

    A row's flag is what was logged (`clipped`), else whether its norm lies above the clip of its
    attempt. Rows without either have no value. Dead rows count among themselves.
    """
    flags = np.full(len(rows), np.nan)
    logged = record.columns.get("clipped")
    norm = record.columns.get("grad_norm")
    clips = [_clip(tree, a.number, record.facts) for a in record.attempts]
    limit = np.array([math.nan if c is None else c for c in clips])[record.attempt[rows]]
    if norm is not None:
        known = norm.present[rows] & ~np.isnan(norm.values[rows]) & (limit > 0)
        flags[known] = norm.values[rows][known] > limit[known]
    if logged is not None:
        told = logged.present[rows] & np.isfinite(logged.values[rows])
        flags[told] = logged.values[rows][told] > 0
    values = np.full(len(rows), np.nan)
    for part in (live, ~live):
        own = np.flatnonzero(part & ~np.isnan(flags))
        if len(own):
            values[own] = np.cumsum(flags[own]) / np.arange(1, len(own) + 1)
    return Column(values, ~np.isnan(flags))


def _clip(tree: Lineage, attempt: str, facts: Mapping[str, float]) -> float | None:
    told = tree.get(attempt)
    try:
        return float(told.settings["clip"]) if told is not None else facts.get("clip")
    except (KeyError, ValueError):
        return facts.get("clip")


def write_curve(curve: StitchedCurve, path: Path) -> str:
    """Write a curve by the ending of its path: `.csv`, `.parquet`, else a TensorBoard folder.

    Returns:
        What was written, in words.

    Raises:
        ConfigError: It cannot be written, or a folder there holds event files already.
        MissingExtraError: pyarrow is not installed.
    """
    rows = f"{len(curve.step)} rows of {len(set(curve.attempt))} attempts"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".csv":
            path.write_text(curve.to_csv(), encoding="utf-8")
            return f"{rows} in {path}"
        if path.suffix == ".parquet":
            curve.to_parquet(path)
            return f"{rows} in {path}"
        if path.suffix:
            raise ConfigError(
                f"{path}: expected .csv, .parquet, .svg, .png, .html, or a folder for TensorBoard"
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path}: is not an empty folder; give a new one")
        curve.to_tensorboard(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return f"{rows} as TensorBoard log in {path}"
