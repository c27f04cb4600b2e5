"""Runs of one configuration beside each other: the guarded one with its branches, others as curves.

One SVG: loss, a strip under it (what the guard did, or the distance from a reference), gradient
norm and learning rate, all on the same step axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.analysis.timeline import TimelineBar, timeline_bars
from trimtab.record import axis_word
from trimtab.report.downsample import extreme_rows
from trimtab.report.panels import Panel, Stretch, make_panels, step_range
from trimtab.report.picture import LEFT, RIGHT, PixelScale, axis_svg, curve_svg, pixels_of
from trimtab.report.sections import text
from trimtab.signals.robust import RUNNING_WINDOW_STEPS, running_median
from trimtab.text import number

__all__ = ["GUARDED", "Curve", "Drawing", "render_comparison"]

GUARDED = 0
"""Colour of the guarded run, whatever attempt; the style sheet's a0."""

LEAST_DISTANCE = 0.01
"""Nats per token that the axis of distances reaches at least, so that round-off looks like nothing.
"""

POINTS = 1_600
TOP, GAP, TALL, LOW = 20.0, 12.0, 230.0, 74.0
STRIP, ROW = 96.0, 17.0
CHARACTER = 5.7
"""Mean width of a character of the labels, pixels."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The loss of a run that is shown for comparison."""

    colour: int
    x: NDArray[np.float64]
    """Steps, rising."""
    y: NDArray[np.float64]


def render_comparison(
    account: RunAccount,
    others: Sequence[Curve],
    *,
    limits: tuple[float, float] | None = None,
    distances: bool = False,
    fault_step: float | None = None,
    width: int = 700,
) -> str:
    """Return the guarded run and others as one SVG that takes its colours from the page.

    Args:
        account: The guarded run.
        others: Loss curves of other runs; the first is the reference for distances.
        limits: First and last step to show; None for the whole run.
        distances: Show under the loss how far each run is above the reference; otherwise what the
            guard did.
        fault_step: Step at which the fault sets in, marked on all panels.
        width: Pixels.
    """
    limits = limits or step_range(account.record)
    panels = {p.name: p for p in make_panels(account, points=POINTS)}
    every = timeline_bars(account.events)
    deeds = tuple(d for d in every if _touches(d, limits))
    loss = replace(
        panels["loss"],
        dots=(),
        stretches=(*(_stretch(c.colour, c.x, c.y) for c in others), *_own(panels["loss"])),
    )
    strip = max(STRIP, ROW * len(deeds) + 8)
    draw = Drawing(limits, float(width), fault_step)
    draw.panel(_log_where_wide(loss, limits), TALL, label=True, deeds=deeds)
    if distances:
        draw.panel(_distances(account, others), strip, least=LEAST_DISTANCE)
    else:
        draw.strip(deeds, strip, num_elsewhere=len(every) - len(deeds))
    for name in ("grad_norm", "lr"):
        if not panels[name].empty:
            own = replace(panels[name], stretches=_own(panels[name]), mark=None)
            draw.panel(_log_where_wide(own, limits) if name == "lr" else own, LOW)
    return draw.finish(axis_word(account.record))


def _touches(deed: TimelineBar, limits: tuple[float, float]) -> bool:
    low, high = sorted((deed.first, deed.last))
    return low <= limits[1] and high >= limits[0]


def _own(panel: Panel) -> tuple[Stretch, ...]:
    """Return the guarded run's stretches in one colour: what was given up, then the final lineage.

    The final lineage is one line: attempts that continue each other leave no gap.
    """
    given_up = tuple(replace(s, attempt=GUARDED) for s in panel.stretches if not s.live)
    live = sorted((s for s in panel.stretches if s.live), key=lambda s: float(s.x[0]))
    if not live:
        return given_up
    x, y = (np.concatenate(parts) for parts in ([s.x for s in live], [s.y for s in live]))
    return (*given_up, _stretch(GUARDED, x, y))


def _stretch(colour: int, x: NDArray[np.float64], y: NDArray[np.float64]) -> Stretch:
    return Stretch(attempt=colour, live=True, trial=False, x=x, y=y)


def _log_where_wide(panel: Panel, limits: tuple[float, float]) -> Panel:
    """Return the panel with a log scale where its largest value is over three times a usual one."""
    shown = [s.y[np.isfinite(s.y)] for s in (_crop(s, limits) for s in panel.stretches)]
    y = np.concatenate(shown) if shown else np.zeros(0)
    wide = len(y) > 0 and float(y.min()) > 0 and float(y.max()) > 3 * float(np.median(y))
    return replace(panel, scale="log" if wide else "linear")


def _crop(stretch: Stretch, limits: tuple[float, float]) -> Stretch:
    inside = (stretch.x >= limits[0]) & (stretch.x <= limits[1])
    return replace(stretch, x=stretch.x[inside], y=stretch.y[inside])


def _thinned(stretch: Stretch) -> Stretch:
    """Return at most as many points as pixels can show; extremes are kept."""
    rows = extreme_rows(stretch.y, budget=POINTS)
    return replace(stretch, x=stretch.x[rows], y=stretch.y[rows])


def _distances(account: RunAccount, others: Sequence[Curve]) -> Panel:
    """Return how far each run's loss is above the reference's at the same step.

    The axis ends at three times the largest distance at the end, so that the ending can be read;
    the excursion before it stands in the panel above.
    """
    reference, record = others[0], account.record
    rows = record.lineage_rows()
    curves = [
        *others[1:],
        Curve(colour=GUARDED, x=record.step[rows], y=record.columns["loss"].values[rows]),
    ]
    stretches = []
    for curve in curves:
        same, here, there = np.intersect1d(curve.x, reference.x, return_indices=True)
        gap = running_median(curve.y[here] - reference.y[there])
        stretches.append(_stretch(curve.colour, same, gap))
    ends = np.array([abs(float(s.y[-1])) for s in stretches if len(s.y)])
    top = max(3 * float(ends[np.isfinite(ends)].max(initial=0.0)), 0.1)
    cut = any(bool(np.any(np.abs(s.y) > top)) for s in stretches)
    limited = tuple(replace(s, y=np.clip(s.y, -top / 2, top)) for s in stretches)
    return Panel(
        name="distance",
        title="Loss above the healthy run's",
        unit=f"running median of {RUNNING_WINDOW_STEPS} steps"
        + (f", cut off at {top:.2g}" if cut else ""),
        scale="linear",
        stretches=limited,
    )


class Drawing:
    """Panels under each other."""

    def __init__(
        self,
        limits: tuple[float, float],
        width: float,
        fault_step: float | None,
        *,
        mark: str = "fault from",
    ) -> None:
        self.limits, self.width, self.fault_step, self.mark = limits, width, fault_step, mark
        self.y = 0.0
        self.parts: list[str] = []

    def x_of(self, step: float) -> float:
        """Return the pixel of a step."""
        return float(pixels_of(np.asarray([step]), self.limits, self.width)[0])

    def shows(self, step: float | None) -> bool:
        """Tell whether a step lies within the limits."""
        return step is not None and self.limits[0] <= step <= self.limits[1]

    def panel(
        self,
        panel: Panel,
        height: float,
        *,
        label: bool = False,
        deeds: Sequence[TimelineBar] = (),
        least: float = 0.0,
    ) -> None:
        """Draw one panel under what is there."""
        stretches = tuple(s for s in (_crop(s, self.limits) for s in panel.stretches) if len(s.x))
        stretches = tuple(_thinned(s) for s in stretches)
        panel = replace(panel, stretches=stretches)
        self._frame(panel.name, panel.title, panel.unit, height)
        scale = PixelScale(panel, self.y, height)
        if least:
            scale.low, scale.high = min(scale.low, -least), max(scale.high, least)
        for value in scale.ticks():
            pixel = float(scale(np.asarray([value]))[0])
            self.parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{self.width - RIGHT}" y1="{pixel:.1f}"'
                f' y2="{pixel:.1f}"/><text class="tick" x="{LEFT - 6}" y="{pixel + 4:.1f}"'
                f' text-anchor="end">{number(value)}</text>'
            )
        self._fault(height, label=label)
        self.parts += [curve_svg(s, scale, self.limits, self.width) for s in stretches]
        for deed in deeds:
            if deed.kind == "kept":
                self._kept(deed.first, stretches, scale)
        self.y += height + GAP
        self.parts.append("</g>")

    def _frame(self, name: str, title: str, unit: str, height: float) -> None:
        right = self.width - RIGHT
        self.parts.append(
            f'<g data-panel="{name}"><text class="title" x="{LEFT}"'
            f' y="{self.y + 14}">{text(title)}</text><text class="unit" x="{right}"'
            f' y="{self.y + 14}" text-anchor="end">{text(unit)}</text><rect class="plot" x="{LEFT}"'
            f' y="{self.y + TOP}" width="{right - LEFT}" height="{height}"/>'
        )
        self.y += TOP

    def _fault(self, height: float, *, label: bool) -> None:
        if self.fault_step is None or not self.shows(self.fault_step):
            return
        x = self.x_of(self.fault_step)
        self.parts.append(
            f'<line class="fault" x1="{x:.1f}" x2="{x:.1f}" y1="{self.y}" y2="{self.y + height}"/>'
        )
        if label:
            left = x > self.width * 0.8
            self.parts.append(
                f'<text class="fault-word" x="{x + (-5 if left else 5):.1f}" y="{self.y + 14}"'
                f' text-anchor="{"end" if left else "start"}">{text(self.mark)}'
                f" {number(self.fault_step)}</text>"
            )

    def _kept(self, step: float, stretches: Sequence[Stretch], scale: PixelScale) -> None:
        own = [s for s in stretches if s.attempt == GUARDED and s.live]
        for s in own:
            at = np.flatnonzero(s.x == step)
            if len(at) and np.isfinite(s.y[at[0]]):
                y = float(scale(s.y[at[:1]])[0])
                self.parts.append(
                    f'<circle class="kept" cx="{self.x_of(step):.1f}" cy="{y:.1f}"'
                    f' r="4"><title>gone back to {number(step)}</title></circle>'
                )
                return

    def strip(self, deeds: Sequence[TimelineBar], height: float, *, num_elsewhere: int) -> None:
        """Draw what was done as bars and arrows."""
        note = f"{num_elsewhere} more outside these steps: see Decisions" if num_elsewhere else ""
        self._frame("deeds", "What the guard did", note, height)
        self._fault(height, label=False)
        for i, deed in enumerate(deeds):
            self._deed(deed, self.y + 4 + ROW * (i + 0.5))
        if not deeds:
            self.parts.append(
                f'<text class="empty" x="{self.width / 2}" y="{self.y + height / 2 + 4}"'
                ' text-anchor="middle">nothing: left alone</text>'
            )
        self.y += height + GAP
        self.parts.append("</g>")

    def _deed(self, deed: TimelineBar, y: float) -> None:
        low, high = self.x_of(self.limits[0]), self.x_of(self.limits[1])
        x0, x1 = (min(max(self.x_of(v), low), high) for v in (deed.first, deed.last))
        if deed.kind == "back":  # from the later step to the earlier one
            mark = (
                f'<path class="arrow" d="M{x0:.1f} {y}L{x1 + 2:.1f} {y}M{x1 + 7:.1f}'
                f' {y - 4}L{x1 + 1:.1f} {y}L{x1 + 7:.1f} {y + 4}"/>'
            )
        else:
            mark = (
                f'<rect class="deed {deed.kind}" x="{x0:.1f}" y="{y - 4}"'
                f' width="{max(x1 - x0, 3):.1f}" height="8"/>'
            )
        left, right = min(x0, x1) - low, high - max(x0, x1)
        before = left > right
        room = int((max(left, right) - 10) / CHARACTER)
        said = deed.text if len(deed.text) <= room else deed.text[: max(room - 1, 0)] + "…"
        x, anchor = (min(x0, x1) - 7, "end") if before else (max(x0, x1) + 7, "start")
        self.parts.append(
            f'<g><title>{text(deed.text)}</title>{mark}<text class="word" x="{x:.1f}" y="{y + 4}"'
            f' text-anchor="{anchor}">{text(said)}</text></g>'
        )

    def finish(self, word: str) -> str:
        """Draw the axis and return the picture."""
        self.parts.append(axis_svg(self.limits, self.y, self.width, word))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" viewBox="0 0 {self.width:.0f}'
            f' {self.y + 26:.0f}" role="img" aria-label="Loss, gradient norm and learning'
            f' rate">{"".join(self.parts)}</svg>'
        )
