"""The page: one file that opens offline, shows the run, and lets a reader zoom into an incident.

Everything that comes from a log passes `sections.text` (HTML), `_embedded` (JSON inside a script
element) or `textContent` (in the browser). The policy in the page forbids every request and runs
only the one script whose hash it names.
"""

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import RunAccount
from trimtab.analysis.timeline import event_sentence
from trimtab.record import axis_word
from trimtab.report.headline import (
    any_alarm,
    context_sentence,
    first_action,
    standing,
    state_sentence,
)
from trimtab.report.heat import Heat, make_heats
from trimtab.report.panels import Panel, Stretch, bands, make_panels, step_range
from trimtab.report.picture import render_picture
from trimtab.report.saved import cost_sentence, saved_sentence
from trimtab.report.sections import (
    cards_html,
    chronicle_html,
    decisions_html,
    judgement_html,
    legend_html,
    lineage_html,
    notes_html,
    text,
)
from trimtab.report.wording import (
    header_sentence,
)
from trimtab.text import number, plain
from trimtab.version import __version__

__all__ = ["page_data", "render_html", "source_hash", "static_text"]


@np.errstate(over="ignore", invalid="ignore")  # losses of 1e308 are ugly, not wrong
def render_html(account: RunAccount, *, title: str, served: str | None = None) -> str:
    """Return the report of one run as one self-contained HTML page.

    The same account and title give the same bytes.

    Args:
        account: The run.
        title: What it is called.
        served: Where `trimtab serve` answers for this run, such as `/run/ID`: the page then asks
            there, and nowhere else, for rows as they come and for more of them when zoomed. None:
            the page asks for nothing.
    """
    style = "".join(static_text(name) for name in ("colours.css", "plot.css", "page.css"))
    names = ("chart.js", "heat.js", "page.js", *(() if served is None else ("live.js",)))
    script = "".join(static_text(name) for name in names)
    data = page_data(account)
    if served is not None:
        data["served"] = served
    return Template(static_text("page.html")).substitute(
        policy=_policy(style, script, served=served is not None),
        bar="" if served is None else _bar(served),
        version=__version__,
        title=text(title),
        style=style,
        facts=text(header_sentence(account)),
        severity=standing(account),
        state=text(state_sentence(account)),
        lead=_lead(account),
        legend=legend_html(account),
        layout="" if any_alarm(account) else "solo",
        picture=render_picture(account, standalone=False),
        cards=cards_html(account),
        sections=_sections(account),
        footer=text(_footer(account, data)),
        data=_embedded(data),
        script=script,
    )


def _lead(account: RunAccount) -> str:
    """Return what stands under the state: what to do, then the cause and what else there is."""
    deed, flags = first_action(account)
    code = f" <code>{text(flags)}</code>" if flags else ""
    do = f'<p class="lead"><b>Do</b> {text(deed)}{code}</p>' if deed else ""
    context = context_sentence(account)
    said = [("Guard", saved_sentence(account)), ("Cost", cost_sentence(account))]
    told = "".join(f'<p class="lead"><b>{name}</b> {text(s)}</p>' for name, s in said if s)
    return (
        do
        + (told if said[0][1] else "")
        + (f'<p class="lead why">{text(context)}</p>' if context else "")
    )


def _bar(served: str) -> str:
    return (
        '<nav class="bar" aria-label="pages"><a href="/">all runs</a>'
        f'<a href="/overlay?runs={text(served.rsplit("/", 1)[-1])}">overlay</a>'
        '<span id="live" role="status"></span></nav>'
    )


def static_text(name: str) -> str:
    """Return a file that is part of every page."""
    return (files("trimtab.report") / "static" / name).read_text(encoding="utf-8")


def _policy(style: str, script: str, *, served: bool) -> str:
    asks = " connect-src 'self';" if served else ""
    return (
        f"default-src 'none'; style-src '{source_hash(style)}'; script-src '{source_hash(script)}';"
        f" img-src data:;{asks} base-uri 'none'; form-action 'none'"
    )


def source_hash(source: str) -> str:
    """Return the hash by which a page's policy allows one style sheet or script, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _embedded(data: object) -> str:
    """Return JSON that no HTML parser can mistake for the end of its script element."""
    raw = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return raw.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _sections(account: RunAccount) -> str:
    parts = (
        lineage_html(account),
        decisions_html(account.events),
        chronicle_html(account.events),
        judgement_html(account.judgement),
        notes_html(account.notes),
    )
    return "\n".join(p for p in parts if p)


def _footer(account: RunAccount, data: dict[str, Any]) -> str:
    record = account.record
    rows = f"{number(record.num_rows)} rows"
    counts = {p["name"]: sum(len(s["y"]) for s in p["stretches"]) for p in data["panels"]}
    drawn = max(counts.values(), default=0)
    if any(counts.get(n, math.inf) < int(c.present.sum()) for n, c in record.columns.items()):
        rows += (
            f", up to {number(drawn)} drawn per signal: of each few rows the lowest and the"
            " highest, around alarms all"
        )
    return f"{rows} · {plain(record.source)} · trimtab {__version__}"


def page_data(account: RunAccount) -> dict[str, Any]:
    """Return what the script draws, as JSON values.

    Stretches name their steps by index into `xs`.
    """
    record = account.record
    steps = _Steps()
    panels = [_panel(p, steps) for p in make_panels(account)]
    heats = make_heats(record, account.layers)
    seen = [bool(np.isfinite(h.medians).any()) for h in heats]
    panels += [_no_heat(h) for h, drawn in zip(heats, seen, strict=True) if not drawn]
    return {
        "axis": axis_word(record),
        "range": list(step_range(record)),
        "attempts": [{"number": plain(a.number), "trial": a.trial} for a in record.attempts],
        "panels": panels,
        "heats": [_heat(h, steps) for h, drawn in zip(heats, seen, strict=True) if drawn],
        "xs": steps.arrays,
        "bands": [
            {
                "letter": b.letter,
                "a": b.attempt,
                "severity": b.severity,
                "precursor": b.precursor,
                "onset": b.onset,
                "peak": b.peak,
                "end": b.end,
                "left": b.left,
                "lasts": b.lasts,
                "signals": list(b.signals),
                "sign": b.precursor_signal,
                "headline": plain(b.headline),
            }
            for b in bands(account)
        ],
        "events": _actions(account),
    }


def _actions(account: RunAccount) -> list[dict[str, object]]:
    """Return what was done, one entry per step."""
    by_step: dict[int, list[str]] = {}
    for e in account.events:
        if e.event == "action":
            by_step.setdefault(e.step, []).append(
                f"{plain(e.attempt)} @ {number(e.step)}: {event_sentence(e)}"
            )
    return [{"step": step, "text": "\n".join(texts)} for step, texts in by_step.items()]


class _Steps:
    """Arrays of steps, each kept once: signals logged together share theirs."""

    def __init__(self) -> None:
        self.arrays: list[list[float | int]] = []
        self._index: dict[bytes, int] = {}

    def index(self, x: NDArray[np.float64]) -> int:
        key = x.tobytes()
        if key not in self._index:
            self._index[key] = len(self.arrays)
            self.arrays.append([int(v) if v.is_integer() else v for v in x.tolist()])
        return self._index[key]


def _no_heat(heat: Heat) -> dict[str, object]:
    """Return a line in place of a picture: in a model without attention its logits have none."""
    panel = Panel(
        name=f"{heat.name} per block", title=heat.title, unit="", scale="linear", stretches=()
    )
    return {**panel.labels(), "strip": "no finite value", "stretches": [], "dots": []}


def _panel(panel: Panel, steps: _Steps) -> dict[str, object]:
    return {
        **panel.labels(),
        "stretches": _stretches(panel.stretches, steps),
        "dots": _stretches(panel.dots, steps),
    }


def _stretches(stretches: Sequence[Stretch], steps: _Steps) -> list[dict[str, object]]:
    return [
        {
            "a": s.attempt,
            "live": s.live,
            "trial": s.trial,
            "x": steps.index(s.x),
            "y": [_value(v) for v in s.y.tolist()],
            "bad": [float(x) for x, y in zip(s.x, s.y, strict=True) if not math.isfinite(y)],
        }
        for s in stretches
    ]


def _heat(heat: Heat, steps: _Steps) -> dict[str, object]:
    return {
        "name": heat.name,
        "title": heat.title,
        "low": heat.low_is_bad,
        "layers": heat.num_layers,
        "medians": [_value(v, digits=4) for v in heat.medians.tolist()],
        "parts": [
            {
                "a": p.attempt,
                "live": p.live,
                "x": steps.index(p.first),
                "last": p.last,
                "rows": p.values.shape[1],
                "v": [_value(v, digits=4) for v in p.values.ravel().tolist()],
            }
            for p in heat.parts
        ],
    }


def _value(value: float, *, digits: int = 9) -> float | None:
    """Return a value with 9 digits, enough for perplexity to 1e-5; NaN and Inf as None."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
