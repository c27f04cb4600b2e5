"""A comparison on a terminal: what differs, by how much, and before and after a change."""

from collections.abc import Iterator, Sequence

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from trimtab.analysis.impact import Impact
from trimtab.analysis.paired import plural
from trimtab.analysis.settings_diff import SettingChange
from trimtab.analysis.side_by_side import Comparison, mean_text
from trimtab.report.overview import Unpadded
from trimtab.text import number, plain

__all__ = ["SideText"]


_ALIKE = 0.05
"""Share by which one must need more to a loss than the other, to be told. Ours."""


class SideText:
    """A comparison as something rich can print."""

    def __init__(
        self,
        sides: Comparison | None,
        impact: Impact | None,
        settings: Sequence[SettingChange],
        *,
        title: str,
        others: Sequence[Comparison] = (),
    ) -> None:
        """Keep what to print; `others` are further runs beside the first one."""
        self.sides, self.impact, self.settings, self.title = sides, impact, settings, title
        self.others = tuple(others)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        del console, options
        yield from self._lines()

    def _lines(self) -> Iterator[RenderableType]:
        yield Text(plain(self.title), "bold")
        if self.sides is not None:
            yield from _sides(self.sides)
        for other in self.others:
            yield Text()
            yield Text(plain(f"{other.a.label} and {other.b.label}"), "bold")
            yield from _sides(other)
        if self.impact is not None:
            yield from _impact(self.impact)
        if self.settings:
            yield Text("settings by canonical name:")
        for x in self.settings:
            yield Text(f"  {x.key}: {plain(x.a or '')} → {plain(x.b or '')}")


def _sides(c: Comparison) -> Iterator[RenderableType]:
    if c.verdict:
        # By the loss of an agent, or on another scale, nothing is amiss.
        parts = c.loss_worse is not None and not c.of_agent and c.scale is None
        told = c.worse or c.apart or c.pace or parts
        mark, style = ("●", "bold yellow") if told else ("○", "")
        yield Text(f"{mark} {plain(c.verdict)}", style)
    if c.first_text:
        yield Text(plain(c.first_text))
    for warning in c.warnings:
        yield Text(f"● {plain(warning)}", "bold yellow")
    for note in c.notes:
        yield Text(plain(note))
    if c.common is not None and c.end_gap is not None:
        yield Text(_summary(c))
        gaps = [(number(g.position), number(g.a), number(g.b), f"{g.gap:+.4g}") for g in c.gaps]
        yield from _table(
            (c.axis, c.a.label, c.b.label, f"gap, {c.unit}" if c.unit else "gap"), gaps
        )
        means = [(m.signal.replace("_", " "), mean_text(m.a), mean_text(m.b), "") for m in c.means]
        yield from _table(("mean of", c.a.label, c.b.label, ""), means)
    changed = [(x.key, x.a or "—", x.b or "—") for x in c.changed]
    if changed:
        yield from _table(("differs", c.a.label, c.b.label), changed)
    else:
        yield Text("no stated or logged setting differs")


def _impact(impact: Impact) -> Iterator[RenderableType]:
    yield Text()
    at = f"{impact.axis} {number(impact.at)}"
    yield Text(f"before and after {at}: {impact.verdict}", "bold")
    rows = [
        (f"{r.signal.replace('_', ' ')}, {r.measure}", mean_text(r.before), mean_text(r.after))
        for r in impact.rows
    ]
    head = (
        f"within {number(impact.window_steps)} {plural(impact.axis)}",
        f"before ({impact.num_before} rows)",
        f"after ({impact.num_after} rows)",
    )
    yield from _table(head, rows)
    yield from _table(("sign", "", ""), [(s.name, s.state, s.text) for s in impact.signs])


def _summary(c: Comparison) -> str:
    low, high = c.common or (0.0, 0.0)
    parts = [f"both from {c.axis} {number(low)} to {number(high)}"]
    unit = f" {c.unit}" if c.unit else ""
    if c.end_gap:
        parts.append(f"at its end {c.b.label} is {c.end_gap:+.4g}{unit} from {c.a.label}")
    slopes = _slopes(c)
    if slopes:
        parts.append(slopes)
    # Where neither is worse by the loss, which comes first to one is noise, or says nothing.
    decides = c.loss_worse is not None and c.worse == c.loss_worse and not c.of_players
    t = c.to_target
    if t is not None and decides and abs(t.ratio - 1) >= _ALIKE:
        parts.append(
            f"loss {number(t.loss)} is reached at {c.axis} {number(t.a)} and {number(t.b)}:"
            f" {c.b.label} needs {t.ratio:.2g} x the {plural(c.axis)}"
        )
    return " · ".join(parts)


def _slopes(c: Comparison) -> str:
    """Return the slopes at the end that noise does not explain; empty where there is none."""
    known = [] if c.slopes is None else [s for s in c.slopes if np.isfinite(s)]
    if c.slopes is None or not known:
        return ""
    per = {"tokens": "10⁹ tokens", "epoch": "epoch"}.get(c.axis, f"1 000 {plural(c.axis)}")
    unit = f"{f' {c.unit}' if c.unit else ''} per {per}"
    if len(known) == len(c.slopes):
        ratio = "" if c.slope_ratio is None else f", ratio {c.slope_ratio:.3g}"
        return f"slopes {known[0]:+.3g} and {known[1]:+.3g}{unit}{ratio}"
    one, other = (c.a, c.b) if np.isfinite(c.slopes[0]) else (c.b, c.a)
    return f"slope {known[0]:+.3g}{unit} of {one.label}; that of {other.label} is within noise"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[RenderableType]:
    table = Table.grid(padding=(0, 3, 0, 0))
    for _ in head:
        table.add_column(overflow="fold")
    table.add_row(*(Text(plain(h), "dim") for h in head))
    for row in rows:
        table.add_row(*(Text(plain(v)) for v in row))
    yield Text()
    yield Unpadded(table)
