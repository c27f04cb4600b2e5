"""The effective curve as a picture: all signals over one axis, a change, another run beside it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.impact import measure_impact
from trimtab.chronicle.stitched import StitchedCurve
from trimtab.errors import ConfigError, MissingExtraError
from trimtab.record import Column, RunRecord, axis_word
from trimtab.report.downsample import extreme_rows
from trimtab.report.html import source_hash, static_text
from trimtab.report.panels import SPECS, Panel, Stretch
from trimtab.report.picture import panels_svg
from trimtab.text import number, plain, signal_label

__all__ = ["SUFFIXES", "CurvePicture", "beside", "change_of", "picture_of", "write_picture"]

SUFFIXES = (".svg", ".png", ".html")
SIGNALS = (
    "loss",
    "grad_norm",
    "activation_norm",
    "loss_scale",
    "lr",
    "adam_v_l1",
    "adam_v_max",
    "clip_share",
)
"""Panels from above; Adam's second moment stands under the rate, whose peak it may share."""
_LOGS = frozenset({"grad_norm", "activation_norm", "loss_scale", "adam_v_l1", "adam_v_max"})
_PEAKS = frozenset({"lr", "adam_v_l1", "adam_v_max"})
_OF_A_CHANGE = ("grad_norm", "activation_norm", "loss_scale", "lr", "loss")
_POINTS = 1_600


@dataclass(frozen=True, kw_only=True)
class CurvePicture:
    """Panels that share an axis, and what is said under them."""

    title: str
    panels: tuple[Panel, ...]
    limits: tuple[float, float]
    word: str
    """What the axis counts."""
    said: tuple[str, ...] = ()


def picture_of(curve: StitchedCurve, *, title: str) -> CurvePicture:
    """Return the signals of a run over one axis, one color an attempt, dead branches faint.

    Raises:
        ConfigError: There are no rows, or none of the signals.
    """
    panels = tuple(p for name in SIGNALS if (p := _panel_of(curve, name)) is not None)
    if not panels:
        raise ConfigError(f"{title}: no rows of {', '.join(SIGNALS)} in this range")
    word = {"step": "step", "tokens": "tokens", "time": "seconds of training"}[curve.along]
    said = [f"{p.title}: {p.note}." for p in panels if p.note]
    share = curve.columns.get("clip_share")
    if share is not None:
        at = np.flatnonzero(share.present & curve.live)
        said.append(f"Clipped in all: {float(share.values[at[-1]]):.1%} of the rows.")
    return CurvePicture(
        title=title, panels=panels, limits=_limits(panels), word=word, said=tuple(said)
    )


def _panel_of(curve: StitchedCurve, name: str) -> Panel | None:
    column = curve.columns.get(name)
    if column is None or not column.present.any():
        return None
    numbers = list(dict.fromkeys(curve.attempt))
    own = np.array([numbers.index(a) for a in curve.attempt])
    cuts = np.flatnonzero((np.diff(own) != 0) | (np.diff(curve.live) != 0)) + 1
    pieces = np.split(np.arange(len(own)), cuts)
    stretches = []
    for rows in pieces:
        there = rows[column.present[rows] & np.isfinite(curve.axis[rows])]
        if len(there):
            budget = max(_POINTS * len(rows) // len(own), 32)
            drawn = there[extreme_rows(column.values[there], budget=budget)]
            stretches.append(
                Stretch(
                    attempt=int(own[there[0]]),
                    live=bool(curve.live[there[0]]),
                    trial=False,
                    x=curve.axis[drawn],
                    y=column.values[drawn],
                )
            )
    panel = Panel(
        name=name,
        title=_title(name),
        unit="",
        scale=_scale(name, stretches),
        stretches=tuple(stretches),
    )
    return _with_peak(panel, curve, column) if name in _PEAKS else panel


def _title(name: str) -> str:
    known = {spec.name: spec.title for spec in SPECS}
    return "Share of rows clipped so far" if name == "clip_share" else known[name]


def _with_peak(panel: Panel, curve: StitchedCurve, column: Column) -> Panel:
    rows = np.flatnonzero(column.present & np.isfinite(column.values) & curve.live)
    if not len(rows):
        return panel
    top = int(rows[int(column.values[rows].argmax())])
    value, at = float(column.values[top]), float(curve.axis[top])
    note = f"largest {number(value)} at {curve.along} {number(at)}"
    return replace(panel, note=note, mark=(at, value))


def _scale(name: str, stretches: Sequence[Stretch]) -> str:
    y = np.concatenate([s.y[np.isfinite(s.y)] for s in stretches]) if stretches else np.zeros(0)
    return "log" if name in _LOGS and len(y) and float(y.min()) > 0 else "linear"


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    ends = [(float(s.x[0]), float(s.x[-1])) for p in panels for s in p.stretches]
    low, high = min(a for a, _ in ends), max(b for _, b in ends)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def change_of(
    record: RunRecord, number_: str, *, window_steps: float | None = None
) -> CurvePicture:
    """Return an attempt and the one before it, laid upon each other at the change.

    The axis counts steps from the change: what stands left of 0 ran under the old settings; right
    of it, the old attempt, where it went on, lies under the new one.

    Args:
        record: The run.
        number_: The attempt that began with the change.
        window_steps: How far to look to each side; None: as far as the shorter side reaches.

    Raises:
        ConfigError: There is no such attempt, or it goes on from none.
    """
    by_number = {a.number: i for i, a in enumerate(record.attempts)}
    if number_ not in by_number:
        there = ", ".join(list(by_number)[:12])
        raise ConfigError(f"--change: no attempt {number_!r} in this run; it has {there}")
    index = by_number[number_]
    child = record.attempts[index]
    if child.parent not in by_number or child.first_row >= child.end_row:
        raise ConfigError(
            f"--change: attempt {number_} goes on from none, so nothing changed there"
        )
    parent = by_number[child.parent]
    at = child.parent_step if child.parent_step is not None else record.step[child.first_row] - 1
    rows = [np.arange(*record.rows_of(i).indices(record.num_rows)[:2]) for i in (parent, index)]
    before = at - float(record.step[rows[0][0]])
    after = float(record.step[rows[1][-1]]) - at
    window = window_steps if window_steps is not None else max(min(before, after), 1.0)
    panels = []
    for name in _OF_A_CHANGE:
        column = record.columns.get(name)
        if column is None:
            continue
        stretches = tuple(_around(record, column, rows, at, window))
        if stretches:
            panels.append(
                Panel(
                    name=name,
                    title=_title(name),
                    unit="",
                    scale=_scale(name, stretches),
                    stretches=stretches,
                )
            )
    if not panels:
        raise ConfigError(f"--change {number_}: none of {', '.join(_OF_A_CHANGE)} is logged there")
    kept = np.concatenate([rows[0][record.step[rows[0]] <= at], rows[1]])
    impact = measure_impact(record, kept, at=math.nextafter(at, math.inf), window_steps=window)
    said = [
        f"{signal_label(r.signal)}, {r.measure}: {number(r.before)} before,"
        f" {number(r.after)} after."
        for r in impact.rows
        if r.measure.startswith("mean")
    ]
    said.append(f"{impact.verdict}")
    title = f"{child.parent} → {number_} at {axis_word(record)} {number(at)}"
    return CurvePicture(
        title=title,
        panels=tuple(panels),
        limits=(-window, window),
        word=f"{axis_word(record)}s from the change",
        said=tuple(said),
    )


def _around(
    record: RunRecord,
    column: Column,
    rows: Sequence[NDArray[np.intp]],
    at: float,
    window: float,
) -> Iterator[Stretch]:
    for k, own in enumerate(rows):
        there = own[column.present[own] & (np.abs(record.step[own] - at) <= window)]
        if len(there):
            drawn = there[extreme_rows(column.values[there], budget=_POINTS)]
            x, y = record.step[drawn] - at, column.values[drawn]
            yield Stretch(attempt=k, live=True, trial=False, x=x, y=y)


def beside(
    curve: StitchedCurve, other: StitchedCurve, *, names: tuple[str, str], at: float | None = None
) -> CurvePicture:
    """Return the losses of two runs over one axis, with the gap at one place of it.

    Args:
        curve: The run.
        other: The other one, such as a smaller model, along the same axis.
        names: What they are called.
        at: Where the gap is read; None: the last place that both reach.

    Raises:
        ConfigError: One of them logs no loss.
    """
    stretches: list[Stretch] = []
    lines: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for k, (one, name) in enumerate(zip((curve, other), names, strict=True)):
        column = one.columns.get("loss")
        usable = np.zeros(0, dtype=np.intp)
        if column is not None:
            usable = np.flatnonzero(column.present & one.live & np.isfinite(one.axis))
        if column is None or not len(usable):
            raise ConfigError(f"{name}: has no loss along {one.along}, so there is no gap to it")
        drawn = usable[extreme_rows(column.values[usable], budget=_POINTS)]
        x, y = one.axis[drawn], column.values[drawn]
        stretches.append(Stretch(attempt=k, live=True, trial=False, x=x, y=y))
        finite = usable[np.isfinite(column.values[usable])]
        lines.append((one.axis[finite], column.values[finite]))
    place = at if at is not None else min(float(x[-1]) for x, _ in lines)
    if not all(len(x) and x[0] <= place <= x[-1] for x, _ in lines):
        raise ConfigError(f"--at {place:g}: one of the two runs has no loss there; give another")
    here, there = (float(np.interp(place, x, y)) for x, y in lines)
    said = (
        f"At {curve.along} {number(place)}: {plain(names[0])} {number(here)},"
        f" {plain(names[1])} {number(there)}; gap {here - there:+.4g}."
    )
    panel = Panel(
        name="loss", title="Loss", unit="", scale="linear", stretches=tuple(stretches), note=""
    )
    return CurvePicture(
        title=f"{plain(names[0])} beside {plain(names[1])}",
        panels=(panel,),
        limits=_limits([panel]),
        word=curve.along,
        said=(said,),
    )


def write_picture(picture: CurvePicture, path: Path) -> str:
    """Write a picture by the ending of its path; return what was written and what it says.

    Raises:
        ConfigError: It cannot be written, or its ending is of no picture.
        MissingExtraError: A PNG is wanted and matplotlib is not installed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            _write_png(picture, path)
        elif path.suffix == ".svg":
            path.write_text(_svg(picture, standalone=True), encoding="utf-8")
        elif path.suffix == ".html":
            path.write_text(_page(picture), encoding="utf-8")
        else:
            raise ConfigError(f"{path}: expected {', '.join(SUFFIXES)}")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from error
    return "\n".join([f"{picture.title}: {len(picture.panels)} panels in {path}", *picture.said])


def _svg(picture: CurvePicture, *, standalone: bool) -> str:
    return panels_svg(
        picture.panels,
        picture.limits,
        word=picture.word,
        label=picture.title,
        standalone=standalone,
    )


_STYLE = """
body { margin: 0 auto; max-width: 76rem; padding: 1rem 1.2rem 3rem; background: var(--paper);
  color: var(--ink);
  font: 15px/1.5 "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; }
"""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="$policy">
<title>$title</title><style>$style</style></head>
<body><main><h1>$title</h1>$picture$said</main></body></html>
"""


def _page(picture: CurvePicture) -> str:
    style = static_text("colours.css") + static_text("plot.css") + _STYLE
    return Template(_PAGE).substitute(
        policy=f"default-src 'none'; style-src '{source_hash(style)}'; base-uri 'none'",
        title=escape(plain(picture.title)),
        style=style,
        picture=_svg(picture, standalone=False),
        said="".join(f"<p>{escape(plain(s))}</p>" for s in picture.said),
    )


def _write_png(picture: CurvePicture, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("a curve as PNG", "plots") from error
    many = len(picture.panels)
    figure = Figure(figsize=(12, 1.2 + 1.9 * many), layout="constrained")
    axes = figure.subplots(many, 1, sharex=True, squeeze=False)[:, 0]
    for ax, panel in zip(axes, picture.panels, strict=True):
        for s in sorted(panel.stretches, key=lambda s: s.live):
            faint = {} if s.live else {"alpha": 0.35}
            ax.plot(s.x, s.y, linewidth=0.9, color=f"C{s.attempt % 10}", **faint)
        if panel.mark is not None:
            ax.plot(*panel.mark, marker="o", markersize=6, fillstyle="none", color="black")
        ax.set_yscale(panel.scale)
        told = _literal(" · ".join(t for t in (panel.title, panel.note) if t))
        ax.set_title(told, loc="left", fontsize=10)
        ax.grid(visible=True, linewidth=0.3)
    axes[-1].set_xlim(*picture.limits)
    axes[-1].set_xlabel("\n".join(_literal(s) for s in (picture.word, *picture.said)), fontsize=9)
    figure.suptitle(_literal(picture.title), fontsize=11)
    figure.savefig(path, dpi=110)


def _literal(said: str) -> str:
    """Return text in which no dollar sign of a log begins a formula."""
    return plain(said, limit=160).replace("$", r"\$")
