"""The comparison of two runs as one page that opens offline, without any script."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trimtab.analysis.impact import Impact
from trimtab.analysis.paired import plural
from trimtab.analysis.side_by_side import Comparison, Side, mean_text
from trimtab.record import axis_word
from trimtab.report.compare import Curve, Drawing
from trimtab.report.html import source_hash, static_text
from trimtab.report.panels import Panel, Stretch, in_nats, unit_of
from trimtab.report.sections import text
from trimtab.text import number

__all__ = ["render_page"]

_PANELS = (
    ("loss", "Loss", 230.0),
    ("grad_norm", "Gradient norm", 110.0),
    ("activation_norm", "Activation norm", 110.0),
    ("loss_scale", "Loss scale", 90.0),
    ("lr", "Learning rate", 90.0),
)
_POINTS = 1_600
_OWN_STYLE = """
main.two { display: block; max-width: 980px; margin: 0 auto; padding: 16px; }
.two .fault { stroke: currentColor; stroke-dasharray: 4 3; opacity: 0.6; }
.two table { border-collapse: collapse; margin: 8px 0 20px; font-size: 14px; }
.two td, .two th { padding: 3px 14px 3px 0; text-align: left; vertical-align: top; }
.two .warn { font-weight: 600; }
.two [class^="key"]::before { content: "\\2014\\2002"; font-weight: 900; }
.two .key0::before { color: var(--a0, #3b6fb6); } .two .key1::before { color: var(--a1, #c2662d); }
.two .key2::before { color: var(--a2); } .two .key3::before { color: var(--a3); }
.two .key4::before { color: var(--a4); } .two .key5::before { color: var(--a5); }
"""


def render_page(
    c: Comparison | None,
    impact: Impact | None,
    side: Side,
    *,
    title: str,
    others: Sequence[Comparison] = (),
) -> str:
    """Return the page.

    Args:
        c: Two runs beside each other; None for a change within one.
        impact: Before and after a change, where one is known.
        side: The run that the change lies in, and the second of two.
        title: Of the page.
        others: Further runs beside the first one, drawn with it.
    """
    style = "".join(static_text(n) for n in ("colours.css", "plot.css", "page.css")) + _OWN_STYLE
    policy = (
        f"default-src 'none'; style-src '{source_hash(style)}'; base-uri 'none'; form-action 'none'"
    )
    sides = (side,) if c is None else (c.a, c.b, *(o.b for o in others))
    told_of = [o for o in (c, *others) if o is not None]
    told = [s for o in told_of for s in (o.verdict, o.first_text) if s]
    body = [
        f"<h1>{text(title)}</h1>",
        *(f"<p>{text(t)}</p>" for t in told),
        *(f'<p class="warn">{text(w)}</p>' for o in told_of for w in o.warnings),
        *(f"<p>{text(note)}</p>" for note in (c.notes if c else ())),
        f"<p>{text(impact.verdict)}</p>" if impact else "",
        "<p>"
        + " ".join(f'<span class="key{i % 6}">{text(s.label)}</span>' for i, s in enumerate(sides))
        + "</p>",
        _picture(sides, impact, c, side),
        _tables(c, impact),
        *(f"<h2>{text(o.b.label)}</h2>{_tables(o, None)}" for o in others),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>"
        f'<body><main class="two">{"".join(body)}</main></body></html>\n'
    )


def _picture(
    sides: tuple[Side, ...], impact: Impact | None, c: Comparison | None, side: Side
) -> str:
    steps = [s.record.step[s.rows] for s in sides if len(s.rows)]
    if not steps:
        return ""
    low, high = min(float(x.min()) for x in steps), max(float(x.max()) for x in steps)
    if impact is not None and c is None:
        low, high = (
            max(low, impact.at - impact.window_steps),
            min(high, impact.at + impact.window_steps),
        )
    limits = (low, high) if high > low else (low - 0.5, high + 0.5)
    draw = Drawing(limits, 940.0, None if impact is None else impact.at, mark="changed at")
    language = all(in_nats(s.record) for s in sides)
    for name, title, height in _PANELS:
        curves = [_curve(s, name, i % 6) for i, s in enumerate(sides)]
        stretches = tuple(
            Stretch(attempt=k.colour, live=True, trial=False, x=k.x, y=k.y)
            for k in curves
            if len(k.x)
        )
        if stretches:
            panel = Panel(
                name=name,
                title=title,
                unit=unit_of(name, language=language),
                scale="linear",
                stretches=stretches,
            )
            draw.panel(replace(panel, scale=_scale(panel)), height, label=name == "loss")
    return draw.finish(axis_word(side.record if c is None else c.a.record))


def _curve(side: Side, name: str, colour: int) -> Curve:
    column = side.record.columns.get(name)
    rows = side.rows[:0] if column is None else side.rows[column.present[side.rows]]
    y = np.zeros(0) if column is None else column.values[rows]
    return Curve(colour=colour, x=side.record.step[rows], y=y)


def _scale(panel: Panel) -> str:
    y = np.concatenate([s.y[np.isfinite(s.y)] for s in panel.stretches])
    wide = len(y) > 0 and float(y.min()) > 0 and float(y.max()) > 3 * float(np.median(y))
    return "log" if wide else "linear"


def _tables(c: Comparison | None, impact: Impact | None) -> str:
    parts = []
    if impact is not None:
        rows = [
            (f"{r.signal.replace('_', ' ')}, {r.measure}", mean_text(r.before), mean_text(r.after))
            for r in impact.rows
        ]
        parts.append(
            _table(
                f"Within {number(impact.window_steps)} {plural(impact.axis)} of {number(impact.at)}",
                ("", "before", "after"),
                rows,
            )
        )
        parts.append(
            _table(
                "Signs of a calmer run",
                ("", "", ""),
                [(s.name, s.state, s.text) for s in impact.signs],
            )
        )
    if c is not None:
        parts.append(
            _table(
                f"At equal {plural(c.axis)}",
                (c.axis, c.a.label, c.b.label, f"gap, {c.unit}" if c.unit else "gap"),
                [tuple(number(v) for v in (g.position, g.a, g.b, g.gap)) for g in c.gaps],
            )
        )
        parts.append(
            _table(
                "Means over what both have",
                ("signal", c.a.label, c.b.label),
                [(m.signal.replace("_", " "), mean_text(m.a), mean_text(m.b)) for m in c.means],
            )
        )
        parts.append(
            _table(
                "Settings that differ",
                ("key", c.a.label, c.b.label),
                [(x.key, x.a or "—", x.b or "—") for x in c.changed],
            )
        )
    return "".join(parts)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    top = "".join(f"<th>{text(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{text(v)}</td>" for v in row) + "</tr>" for row in rows)
    return f"<h2>{text(title)}</h2><table><tr>{top}</tr>{body}</table>"
