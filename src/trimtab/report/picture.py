"""The panels as one static SVG: for Markdown, for paper, and for a browser without scripts."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.record import axis_word
from trimtab.report.panels import Band, Panel, Stretch, bands, make_panels, step_range
from trimtab.text import number, plain

__all__ = [
    "LEFT",
    "NUM_COLOURS",
    "RIGHT",
    "PixelScale",
    "axis_svg",
    "curve_svg",
    "nice_ticks",
    "panels_svg",
    "pixels_of",
    "render_picture",
]

NUM_COLOURS = 6
"""Attempts take colours in turn; the style sheet has as many."""

LEFT, RIGHT, TOP, GAP = 64.0, 16.0, 22.0, 10.0
TALL, LOW, STRIP = 190.0, 92.0, 24.0
POINTS = 1_600
"""Per signal: two for each pixel column of the usual width."""


def nice_ticks(low: float, high: float, *, count: int = 4) -> list[float]:
    """Return round numbers within [low, high], about `count` of them.

    Example:
        >>> nice_ticks(0, 1200, count=3), nice_ticks(2.1, 2.9, count=3)
        ([0.0, 500.0, 1000.0], [2.2, 2.4, 2.6, 2.8])
    """
    raw = (high - low) / max(count, 1)
    if not math.isfinite(raw) or raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(
        (m for m, limit in ((1, 1.5), (2, 3.5), (5, 7.5)) if raw < limit * power), 10
    )
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


class PixelScale:
    """Maps values to pixels, top down."""

    def __init__(self, panel: Panel, top: float, height: float) -> None:
        parts = [s.y[np.isfinite(s.y)] for s in (*panel.stretches, *panel.dots)]
        y = np.concatenate(parts) if parts else np.zeros(0)
        self.log = panel.scale == "log"
        if self.log:
            y = y[y > 0]
        low, high = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
        self.low, self.high = (
            (math.log10(low), math.log10(high)) if self.log and len(y) else (low, high)
        )
        pad = (self.high - self.low) * 0.06 or max(abs(self.high) * 0.05, 1e-12)
        self.low, self.high = self.low - pad, self.high + pad
        self.top, self.height = top, height

    def __call__(self, y: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the pixels of values; NaN stays NaN, and zero lies at the foot of a log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            v = (
                np.where(y > 0, np.log10(y), np.where((y <= 0) & np.isfinite(y), self.low, np.nan))
                if self.log
                else y
            )
        pixels: NDArray[np.float64] = self.top + self.height * (self.high - v) / (
            self.high - self.low
        )
        return pixels

    def ticks(self) -> list[float]:
        """Return the values to write at the axis."""
        if not self.log:
            return nice_ticks(self.low, self.high, count=3)
        decades = range(max(-300, math.ceil(self.low)), min(300, math.floor(self.high)) + 1)
        if len(decades) >= 3:
            stride = -(-len(decades) // 4)
            return [10.0**d for d in decades][::stride]
        ticks = log_ticks(self.low, self.high)
        if len(ticks) >= 2:
            return ticks
        return [t for t in nice_ticks(10**self.low, 10**self.high, count=3) if t > 0]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 times powers of ten (1 and 3 where the range is wider); limits are log10.

    Example:
        >>> log_ticks(0.1, 1.2)
        [2.0, 5.0, 10.0]
    """
    steps = (1.0, 3.0) if high - low > 1.2 else (1.0, 2.0, 5.0)
    powers = range(max(-300, math.floor(low)), min(300, math.floor(high)) + 1)
    found = (float(f"{m}e{power}") for power in powers for m in steps)
    return [t for t in found if low <= math.log10(t) <= high]


def render_picture(
    account: RunAccount,
    *,
    signals: Sequence[str] | None = None,
    width: int = 900,
    standalone: bool = True,
) -> str:
    """Return the panels of an account as one SVG image; all share the same step limits.

    Args:
        account: The run.
        signals: Canonical names of the panels wanted, in order; None for all that a page has.
        width: Pixels.
        standalone: Put the style sheet in, light and dark; without it the page's own is used.
    """
    return panels_svg(
        _chosen(account, signals),
        step_range(account.record),
        found=bands(account),
        word=axis_word(account.record),
        label=f"Signals of {plain(account.record.source)}",
        width=width,
        standalone=standalone,
    )


def panels_svg(
    panels: Sequence[Panel],
    limits: tuple[float, float],
    *,
    found: Sequence[Band] = (),
    word: str,
    label: str,
    width: int = 1200,
    standalone: bool = True,
) -> str:
    """Return panels one below the other over one axis, as SVG.

    Args:
        panels: In their order from above.
        limits: First and last place of the axis, the same for all.
        found: Incidents, as shaded bands.
        word: What the axis counts.
        label: What the picture shows, for readers who do not see it.
        width: Pixels.
        standalone: Put the style sheet in.
    """
    y, body = 4.0, []
    for panel in panels:
        height = STRIP if panel.strip else TALL if panel.name == "loss" else LOW
        body.append(_panel(panel, found, limits, y, height, float(width)))
        y += TOP + height + GAP
    body.append(axis_svg(limits, y, float(width), word))
    total = y + 26
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {width} {total:.0f}"'
        f' role="img" aria-label="{escape(label)}">'
    )
    style = f"<style>{_style()}</style>" if standalone else ""
    return head + style + "".join(body) + "</svg>"


def _style() -> str:
    """Return the colours and the rules for plots; colours follow the reader's light or dark."""
    static = files("trimtab.report") / "static"
    return "".join(
        (static / name).read_text(encoding="utf-8") for name in ("colours.css", "plot.css")
    )


def _chosen(account: RunAccount, signals: Sequence[str] | None) -> tuple[Panel, ...]:
    panels = make_panels(account, points=POINTS)
    if signals is None:
        return panels
    by_name = {p.name: p for p in panels}
    return tuple(by_name[s] for s in signals if s in by_name)


def _panel(
    panel: Panel,
    found: Iterable[Band],
    limits: tuple[float, float],
    top: float,
    height: float,
    width: float,
) -> str:
    plot_top = top + TOP
    parts = [
        f'<g data-panel="{panel.name}" data-x0="{limits[0]:g}" data-x1="{limits[1]:g}">',
        f'<text class="title" x="{LEFT}" y="{top + 14}">{escape(panel.title)}</text>',
        (
            f'<text class="unit" x="{width - RIGHT}" y="{top + 14}"'
            f' text-anchor="end">{escape(plain(panel.note or panel.unit))}</text>'
        ),
        (
            f'<rect class="plot" x="{LEFT}" y="{plot_top}" width="{width - LEFT - RIGHT}"'
            f' height="{height}"/>'
        ),
    ]
    if panel.strip:
        parts.append(
            f'<text class="empty" x="{(LEFT + width - RIGHT) / 2}" y="{plot_top + height / 2 + 4}"'
            f' text-anchor="middle">{escape(panel.strip)}</text></g>'
        )
        return "".join(parts)
    scale = PixelScale(panel, plot_top, height)
    for band in found:
        parts.append(_band(band, limits, plot_top, height, width, letter=panel.name == "loss"))
    ticks = scale.ticks()
    for value, pixel in zip(ticks, scale(np.asarray(ticks)), strict=True):
        if plot_top - 1 <= pixel <= plot_top + height + 1:
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{pixel:.1f}"'
                f' y2="{pixel:.1f}"/>'
            )
            parts.append(
                f'<text class="tick" x="{LEFT - 6}" y="{pixel + 4:.1f}"'
                f' text-anchor="end">{number(value)}</text>'
            )
    for stretch in sorted(panel.stretches, key=lambda s: s.live):
        parts.append(curve_svg(stretch, scale, limits, width))
    for stretch in panel.dots:
        parts.append(_dots(stretch, scale, limits, width, "dot"))
    if panel.mark is not None:
        point = Stretch(
            attempt=0,
            live=True,
            trial=False,
            x=np.asarray(panel.mark[:1]),
            y=np.asarray(panel.mark[1:]),
        )
        parts.append(_dots(point, scale, limits, width, "mark"))
    return "".join(parts) + "</g>"


def pixels_of(
    x: NDArray[np.float64], limits: tuple[float, float], width: float
) -> NDArray[np.float64]:
    """Return the pixels of steps on the axis that the panels of a picture share."""
    pixels: NDArray[np.float64] = LEFT + (width - LEFT - RIGHT) * (x - limits[0]) / (
        limits[1] - limits[0]
    )
    return pixels


def curve_svg(
    stretch: Stretch, scale: PixelScale, limits: tuple[float, float], width: float
) -> str:
    """Return one stretch as a line, with a tick at the top wherever it is NaN or Inf."""
    xs, ys = pixels_of(stretch.x, limits, width), scale(stretch.y)
    pen, commands, bad = "M", [], []
    for x, y in zip(xs.tolist(), ys.tolist(), strict=True):
        if math.isfinite(y):
            commands.append(f"{pen}{x:.1f} {y:.1f}")
            pen = "L"
        else:
            pen = "M"
            bad.append(
                f'<line class="bad" x1="{x:.1f}" x2="{x:.1f}" y1="{scale.top}"'
                f' y2="{scale.top + 8}"/>'
            )
    name = (
        f"curve a{stretch.attempt % NUM_COLOURS}{'' if stretch.live else ' dead'}"
        f"{' trial' if stretch.trial else ''}"
    )
    path = f'<path class="{name}" d="{"".join(commands)}"/>' if commands else ""
    dots = (
        _dots(
            stretch,
            scale,
            limits,
            width,
            f"point a{stretch.attempt % NUM_COLOURS}{'' if stretch.live else ' dead'}",
        )
        if _roomy(xs)
        else ""
    )
    return path + dots + "".join(bad)


def _roomy(xs: NDArray[np.float64]) -> bool:
    """Tell whether rows stand far enough apart to be drawn as points on their line."""
    return len(xs) < 2 or float(xs[-1] - xs[0]) / (len(xs) - 1) > 7


def _dots(
    stretch: Stretch, scale: PixelScale, limits: tuple[float, float], width: float, name: str
) -> str:
    xs, ys = pixels_of(stretch.x, limits, width).tolist(), scale(stretch.y).tolist()
    return "".join(
        f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
        for x, y in zip(xs, ys, strict=True)
        if math.isfinite(y)
    )


def _band(
    band: Band,
    limits: tuple[float, float],
    top: float,
    height: float,
    width: float,
    *,
    letter: bool,
) -> str:
    x0, x1 = (float(v) for v in pixels_of(np.asarray([band.onset, band.end]), limits, width))
    first = (
        x0
        if band.precursor is None
        else float(pixels_of(np.asarray([band.precursor]), limits, width)[0])
    )
    name = band.severity + (" left" if band.left or band.lasts else "")
    parts = [
        f'<rect class="band {name}" x="{x0:.1f}" y="{top}" width="{max(x1 - x0, 2):.1f}"'
        f' height="{height}"/>'
    ]
    if first < x0:
        parts.append(
            f'<rect class="band before {name}" x="{first:.1f}" y="{top}" width="{x0 - first:.1f}"'
            f' height="{height}"/>'
        )
    if letter:
        parts.append(
            f'<text class="letter {band.severity}" x="{x0 + 3:.1f}"'
            f' y="{top + 13}">{band.letter}</text>'
        )
    return "".join(parts)


def axis_svg(limits: tuple[float, float], top: float, width: float, word: str) -> str:
    """Return the step axis under a picture."""
    parts = []
    for value in nice_ticks(*limits, count=8):
        x = float(pixels_of(np.asarray([value]), limits, width)[0])
        said = number(value)
        anchor = "end" if x + 4 * len(said) > width else "middle"  # no wider than the picture
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{top + 8}" text-anchor="{anchor}">{said}</text>'
        )
    parts.append(
        f'<text class="unit" x="{width - RIGHT}" y="{top + 22}" text-anchor="end">{word}</text>'
    )
    return "".join(parts)
