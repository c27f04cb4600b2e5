"""All rows of a run on disk as plain numbers, and the few of them that a picture needs.

    write_curves(record, folder)          # in a worker
    run = Curves.open(folder)
    panels = run.panels((0, 1e6), columns=1200)

A file is mapped, not read: the system keeps of it what is looked at, and may drop it. Long
stretches have the lowest and the highest value of each 8, 64, 512 and 4 096 rows beside them, so
that a picture of a million rows touches some ten thousand numbers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypedDict

import numpy as np
import orjson
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.chronicle.stitched import AXES, stitched
from trimtab.errors import ConfigError
from trimtab.record import RunRecord, axis_word
from trimtab.report.panels import Panel, PanelLabels, Stretch, make_panels, step_range
from trimtab.serve.appended import Appended
from trimtab.signals import derive
from trimtab.text import plain

__all__ = [
    "Curves",
    "CurvesMeta",
    "MappedStretch",
    "Window",
    "extremes",
    "interleaved",
    "window",
    "write_curves",
]

Floats = NDArray[np.float64]

LONG_ROWS = 32_768
"""A shorter stretch is looked at whole: that takes less than a millisecond."""
_FACTOR, _LEVELS = 8, 4
_NONE = np.zeros(0)
_NUMBERS, _WORDS = "numbers.f64", "meta.json"
MAX_BAD = 2_000
"""Marks of values that are not finite, for each stretch: a picture has no room for more."""


Place = list[int]
"""First number and how many, in the file of numbers."""


class StretchPlaces(TypedDict):
    """Where the rows of one stretch lie."""

    a: int
    live: bool
    trial: bool
    x: Place
    y: Place
    levels: list[Place]
    bad: Place


class PanelPlaces(PanelLabels):
    """One panel as the page has it, with places instead of rows."""

    stretches: list[StretchPlaces]
    dots: list[StretchPlaces]


class CurvesMeta(TypedDict):
    """What is known of a run beside its numbers."""

    axis: str
    range: list[float]
    attempts: list[dict[str, object]]
    panels: list[PanelPlaces]
    axes: dict[str, list[Place]]
    format: str
    rows: int
    last_step: float | None
    last_loss: float | None


def write_curves(record: RunRecord, folder: Path) -> dict[str, object]:
    """Write the panels of a run with all their rows; return what is told of the run in a list.

    Cost: O(rows x signals) on the host; the file takes some 20 bytes for each value.
    """
    record = derive(record)
    panels = make_panels(RunAccount(record=record, incidents=()), points=1 << 62)
    folder.mkdir(parents=True)
    with (folder / _NUMBERS).open("wb") as file:
        out = _Numbers(file)
        drawn = [_panel(p, out) for p in panels]
        axes = _axes(record, out)
    loss = record.columns.get("loss")
    rows = record.lineage_rows()
    finite = loss.finite_rows(rows) if loss is not None else rows[:0]
    last = int(finite[-1]) if len(finite) else None
    meta: CurvesMeta = {
        "axis": axis_word(record),
        "range": list(step_range(record)),
        "attempts": [{"number": plain(a.number), "trial": a.trial} for a in record.attempts],
        "panels": drawn,
        "axes": axes,
        "format": record.format,
        "rows": record.num_rows,
        "last_step": float(record.step.max()) if record.num_rows else None,
        "last_loss": None if last is None or loss is None else float(loss.values[last]),
    }
    (folder / _WORDS).write_bytes(orjson.dumps(meta, option=orjson.OPT_SERIALIZE_NUMPY))
    return {
        "format": meta["format"],
        "rows": meta["rows"],
        "last_step": meta["last_step"],
        "last_loss": meta["last_loss"],
        "axis": meta["axis"],
    }


class _Numbers:
    """Appends arrays to one file; equal arrays, such as steps of many signals, lie there once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._at = file, 0
        self._known: dict[tuple[int, int], Place] = {}

    def put(self, values: Floats) -> Place:
        """Return [first, length] in numbers of eight bytes."""
        raw = np.ascontiguousarray(values, dtype=np.float64).tobytes()
        key = hash(raw), len(raw)
        if key not in self._known:
            self._file.write(raw)
            self._known[key] = [self._at, len(values)]
            self._at += len(values)
        return self._known[key]


def _panel(panel: Panel, out: _Numbers) -> PanelPlaces:
    return {
        **panel.labels(),
        "stretches": [_stretch(s, out) for s in panel.stretches],
        "dots": [_stretch(s, out) for s in panel.dots],
    }


def _stretch(s: Stretch, out: _Numbers) -> StretchPlaces:
    finite = np.isfinite(s.y)
    y = np.where(finite, s.y, np.nan)  # an infinity is marked, and enters no minimum
    levels: list[Place] = []
    if len(y) > LONG_ROWS:
        low, high = y, y
        for _ in range(_LEVELS):
            low, high = _blocks(low, np.fmin), _blocks(high, np.fmax)
            levels += [out.put(low), out.put(high)]
    return {
        "a": s.attempt,
        "live": s.live,
        "trial": s.trial,
        "x": out.put(s.x),
        "y": out.put(y),
        "levels": levels,
        "bad": out.put(s.x[~finite]),
    }


def _blocks(values: Floats, least: np.ufunc) -> Floats:
    return np.asarray(least.reduceat(values, np.arange(0, len(values), _FACTOR)))


def _axes(record: RunRecord, out: _Numbers) -> dict[str, list[Place]]:
    """Write what tokens and time the steps of the main line stand for, where they are known."""
    found = {}
    for along in AXES:
        if along == "step":
            continue
        try:
            curve = stitched(record, along=along)  # type: ignore[arg-type]
        except ConfigError:
            continue
        usable = np.isfinite(curve.axis)
        at = curve.axis[usable]
        if len(at) > 1 and bool((np.diff(at) >= 0).all()):
            found[along] = [out.put(curve.step[usable]), out.put(at)]
    return found


@dataclass(frozen=True)
class MappedStretch:
    """One stretch of a signal, mapped."""

    attempt: int
    live: bool
    trial: bool
    x: Floats
    y: Floats
    levels: tuple[tuple[Floats, Floats], ...]
    bad: Floats


@dataclass(frozen=True)
class Window:
    """What of a signal is drawn."""

    x: Floats
    """float64 [n], rising; where rows were gathered, the two places within a pixel column."""
    y: Floats
    """float64 [n], NaN where a value was not finite."""
    whole: bool
    """Whether all rows are there."""


class Curves:
    """The rows of one run, mapped."""

    def __init__(self, meta: CurvesMeta, numbers: Floats, appended: Appended | None = None) -> None:
        """Keep them; `open` reads them."""
        self.meta = meta
        self._numbers, self._appended = numbers, appended
        self._panels = {p["name"]: p for p in meta["panels"]}

    @classmethod
    def open(cls, folder: Path) -> "Curves":
        """Map what `write_curves` wrote.

        Raises:
            OSError: It is not there any more.
        """
        meta = orjson.loads((folder / _WORDS).read_bytes())
        file = folder / _NUMBERS
        if not file.stat().st_size:
            return cls(meta, np.zeros(0))
        return cls(meta, np.memmap(file, dtype=np.float64, mode="r"))

    def with_appended(self, appended: Appended) -> "Curves":
        """Return the same rows, and what was appended to the log since."""
        return Curves(self.meta, self._numbers, appended)

    @property
    def range(self) -> tuple[float, float]:
        """First and last step of all attempts."""
        low, high = self.meta["range"]
        return low, high if self._appended is None else max(high, self._appended.step)

    @property
    def signals(self) -> dict[str, str]:
        """Name and title of what was recorded."""
        return {n: p["title"] for n, p in self._panels.items() if p["stretches"]}

    def axes(self) -> tuple[str, ...]:
        """Return along what the main line can be drawn."""
        return ("step", *self.meta["axes"])

    def _array(self, place: Place) -> Floats:
        return self._numbers[place[0] : place[0] + place[1]]

    def parts(
        self, signal: str, key: Literal["stretches", "dots"] = "stretches", by: str = "step"
    ) -> Iterator[MappedStretch]:
        """Yield the stretches of a signal that lie on an axis; none where it was not recorded."""
        panel = self._panels.get(signal)
        places = () if panel is None else panel[key]
        for s in places:
            arrays = [self._array(p) for p in s["levels"]]
            yield MappedStretch(
                attempt=s["a"],
                live=s["live"],
                trial=s["trial"],
                x=self._array(s["x"]),
                y=self._array(s["y"]),
                levels=tuple(zip(arrays[::2], arrays[1::2], strict=True)),
                bad=self._array(s["bad"]),
            )
        # what tokens and times its steps stand for is known once the log is read whole again
        if by == "step" and any(s["live"] for s in places) and self._appended is not None:
            name = "val_loss" if key == "dots" else signal
            x, y = self._appended.rows.get(name, (_NONE, _NONE))
            finite = np.isfinite(y)
            yield MappedStretch(
                attempt=max(s["a"] for s in places if s["live"]),
                live=True,
                trial=False,
                x=x,
                y=np.where(finite, y, np.nan),
                levels=(),
                bad=x[~finite],
            )

    def along(self, by: str, step: Floats) -> Floats:
        """Return where steps of the main line lie on an axis."""
        if by == "step":
            return step
        places = self.meta["axes"][by]
        steps, at = (self._array(p) for p in places)
        return np.asarray(np.interp(step, steps, at))

    def back(self, by: str, at: Floats) -> Floats:
        """Return the steps at places of an axis."""
        if by == "step":
            return at
        places = self.meta["axes"][by]
        steps, there = (self._array(p) for p in places)
        return np.asarray(np.interp(at, there, steps))

    def limits(self, signal: str, by: str) -> tuple[float, float] | None:
        """Return the first and last place of a signal on the main line; None: there is none."""
        ends = [(p.x[0], p.x[-1]) for p in self.parts(signal, by=by) if p.live and len(p.x)]
        if not ends:
            return None
        both = np.array([min(a for a, _ in ends), max(b for _, b in ends)])
        low, high = self.along(by, both).tolist()
        return low, high

    def panels(self, limits: tuple[float, float], *, columns: int) -> list[dict[str, object]]:
        """Return the panels of the page for a range of steps, as its script draws them."""

        def drawn(name: str, key: Literal["stretches", "dots"]) -> list[dict[str, object]]:
            return [_drawn(p, limits, columns) for p in self.parts(name, key) if len(p.x)]

        return [
            {**panel, "stretches": drawn(name, "stretches"), "dots": drawn(name, "dots")}
            for name, panel in self._panels.items()
        ]


def _drawn(part: MappedStretch, limits: tuple[float, float], columns: int) -> dict[str, object]:
    found = window(part, limits, columns=columns)
    bad = part.bad[np.searchsorted(part.bad, limits[0]) : np.searchsorted(part.bad, limits[1])]
    if len(bad) > MAX_BAD:
        bad = bad[np.linspace(0, len(bad) - 1, MAX_BAD).astype(np.intp)]
    return {
        "a": part.attempt,
        "live": part.live,
        "trial": part.trial,
        "x": found.x,
        "y": found.y,
        "bad": np.array(bad),
    }


def window(part: MappedStretch, limits: tuple[float, float], *, columns: int) -> Window:
    """Return the rows of a stretch in a range, and one beyond it on either side.

    Up to 3 x `columns` rows come as they are. Of more, each pixel column gives its lowest and its
    highest finite value; a spike of one row is therefore always there.

    Args:
        part: The stretch.
        limits: First and last step.
        columns: Pixel columns of the picture.

    Cost: O(columns), for any number of rows.
    """
    first, end = _between(part.x, limits)
    if end - first <= 3 * columns:
        return Window(np.array(part.x[first:end]), np.array(part.y[first:end]), whole=True)
    low, high = max(limits[0], float(part.x[first])), min(limits[1], float(part.x[end - 1]))
    edges = np.linspace(low, high, columns + 1)
    x, y = interleaved(edges, *extremes(part, edges))
    held = np.isfinite(y)
    return Window(x[held], y[held], whole=False)


def _between(x: Floats, limits: tuple[float, float]) -> tuple[int, int]:
    """Return the rows in a range, and one more on either side, as [first, end)."""
    first = max(int(np.searchsorted(x, limits[0])) - 1, 0)
    return first, min(int(np.searchsorted(x, limits[1], side="right")) + 1, len(x))


def extremes(part: MappedStretch, edges: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest finite value between neighbouring edges, NaN where none is.

    Where the blocks of a level are used, a value may be counted to the column beside its own if it
    lies within an eighth of a column of the border.

    Args:
        part: The stretch.
        edges: float64 [columns + 1], steps, rising; the last belongs to the last column.
    """
    columns = len(edges) - 1
    rows = np.searchsorted(part.x, edges)
    rows[-1] = np.searchsorted(part.x, edges[-1], side="right")
    empty = rows[1:] <= rows[:-1]
    if bool(empty.all()):
        return np.full(columns, np.nan), np.full(columns, np.nan)
    block, lows, highs = 1, part.y, part.y
    for level, (least, most) in enumerate(part.levels):
        size = _FACTOR ** (level + 1)
        if size * 8 * columns > rows[-1] - rows[0]:
            break
        block, lows, highs = size, least, most
    stop = -(-int(rows[-1]) // block)
    starts = np.minimum(rows[:-1] // block, stop - 1)
    floor, top = np.fmin.reduceat(lows[:stop], starts), np.fmax.reduceat(highs[:stop], starts)
    return np.where(empty, np.nan, floor), np.where(empty, np.nan, top)


def interleaved(edges: Floats, floor: Floats, top: Floats) -> tuple[Floats, Floats]:
    """Return two points for each column; down and up by turns, so that lines between are short."""
    turn = np.arange(len(floor)) % 2 == 0
    x, y = np.empty(2 * len(floor)), np.empty(2 * len(floor))
    x[::2], x[1::2] = edges[:-1], (edges[:-1] + edges[1:]) / 2
    y[::2], y[1::2] = np.where(turn, floor, top), np.where(turn, top, floor)
    return x, y
