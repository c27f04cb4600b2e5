"""`trimtab compare A B`: two runs or attempts side by side.

`compare A --at STEP`: before and after.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trimtab.analysis.impact import Impact, measure_impact
from trimtab.analysis.selection import split_attempt
from trimtab.analysis.settings_diff import (
    SettingChange,
    flat_config,
    setting_changes,
    stated_settings,
)
from trimtab.analysis.side_by_side import Comparison, Side, compare_sides, make_side, mean_text
from trimtab.chronicle.rundir import RunDirectory
from trimtab.cli.output import print_json, write_file
from trimtab.errors import ConfigError
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.report.overview import Unpadded, shortened
from trimtab.report.side_page import render_page
from trimtab.signals import derive
from trimtab.text import number, plain

__all__ = ["add", "run"]


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser("compare", help="two runs or attempts side by side")
    parser.add_argument(
        "a", metavar="A", help="a log or run directory; A@1.0 means its attempt 1.0"
    )
    parser.add_argument(
        "b", metavar="B", nargs="?", help="the other; without it, A before and after --at"
    )
    parser.add_argument("--by", choices=("step", "tokens"), default="step", help="what is equal")
    parser.add_argument(
        "--at",
        metavar="STEP",
        type=float,
        help="first step under a change; default: where an attempt of B continues its parent",
    )
    parser.add_argument(
        "--window",
        metavar="N",
        type=float,
        default=500.0,
        help="steps to look at on either side of it",
    )
    parser.add_argument(
        "--configs",
        metavar="FILE",
        nargs=2,
        type=Path,
        help="config files of A and B, to compare too",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write a page")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document (docs/formats.md)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read, compare, tell."""
    if not arguments.window > 0:
        raise ConfigError(f"--window {arguments.window:g}: must be above 0")
    if arguments.at is not None and not np.isfinite(arguments.at):
        raise ConfigError(f"--at {arguments.at:g}: not a step; give a number")
    configs: tuple[Path | None, ...] = tuple(arguments.configs or (None, None))
    a = _side(arguments.a, configs[0])
    b = None if arguments.b is None else _side(arguments.b, configs[1])
    if b is not None and a.label == b.label:
        labels = ("a", "b")
        a, b = (_renamed(s, f"{s.label} ({n})") for s, n in zip((a, b), labels, strict=True))
    settings = setting_changes(*arguments.configs) if arguments.configs else ()
    comparison = None if b is None else compare_sides(a, b, by=arguments.by)
    impact = _impact(b or a, arguments)
    if comparison is None and impact is None:
        raise ConfigError(
            f"{arguments.a}: nothing to compare; give a second run, or --at STEP for before and"
            " after"
        )
    title = f"{a.label} and {b.label}" if b is not None else f"{a.label}, before and after"
    if arguments.html is not None:
        write_file(arguments.html, render_page(comparison, impact, b or a, title=title))
    if arguments.json:
        document = _document(comparison, impact, arguments)
        if arguments.configs:
            document["settings"] = [{"key": c.key, "a": c.a, "b": c.b} for c in settings]
        print_json(document)
    else:
        _print(comparison, impact, title)
        _print_settings(settings)
    return 0


def _side(given: str, config: Path | None) -> Side:
    path, attempt = split_attempt(given)
    record = derive(read_run(path))
    chosen = None
    if attempt:
        numbers = [a.number for a in record.attempts]
        if attempt not in numbers:
            raise ConfigError(f"{path}: has no attempt {attempt}; there are {', '.join(numbers)}")
        chosen = record.attempts[numbers.index(attempt)]
    settings = stated_settings(record, chosen)
    launched = RunDirectory(Path(path)).settings
    if launched.is_file():
        own = chosen or (record.attempts[-1] if record.attempts else None)
        settings.update(flat_config(launched))
        settings.update({} if own is None else own.settings)  # a later attempt on other ranks, say
    if config is not None:
        settings.update(flat_config(config))
    label = shortened(path, limit=40) + (f"@{attempt}" if attempt else "")
    return make_side(label, record, settings, attempt=attempt)


def _renamed(side: Side, label: str) -> Side:
    return Side(label=label, record=side.record, rows=side.rows, settings=side.settings)


def _impact(side: Side, arguments: argparse.Namespace) -> Impact | None:
    """Return before and after: at the step given, or where the attempt continues its parent."""
    record = side.record
    at, rows = arguments.at, record.lineage_rows()
    _, attempt = split_attempt(arguments.b or arguments.a)
    if attempt:
        own = record.attempts[record.attempt_index(attempt)]
        start = record.step[own.first_row] if own.first_row < own.end_row else np.inf
        at = at if at is not None else _continues(record, own.parent, own.parent_step, float(start))
        rows = np.concatenate([_ancestor_rows(record, attempt, float(start)), side.rows])
    if at is None:
        return None
    found = measure_impact(record, rows, at=float(at), window_steps=arguments.window)
    empty = not min(found.num_before, found.num_after)
    return None if empty and arguments.at is None else found


def _continues(
    record: RunRecord, parent: str | None, parent_step: float | None, start: float
) -> float | None:
    """Return the first step of an attempt that has a parent in the same log."""
    known = {a.number for a in record.attempts}
    if parent not in known or not np.isfinite(start):
        return None
    return start if parent_step is None else min(start, parent_step + 1)


def _ancestor_rows(record: RunRecord, attempt: str, before: float) -> np.ndarray[Any, Any]:
    """Return the rows of an attempt's parent up to where the attempt began."""
    own = record.attempts[record.attempt_index(attempt)]
    for i, a in enumerate(record.attempts):
        if a.number == own.parent:
            part = record.rows_of(i)
            rows = np.arange(part.start, part.stop)
            return rows[record.step[rows] < before]
    return np.zeros(0, dtype=np.intp)


def _print_settings(settings: Sequence[SettingChange]) -> None:
    """Print the canonical settings in which two configs differ."""
    if settings:
        print("settings by canonical name:")
    for change in settings:
        print(f"  {change.key}: {plain(change.a or '')} → {plain(change.b or '')}")


def _document(
    c: Comparison | None, impact: Impact | None, arguments: argparse.Namespace
) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": 1, "a": arguments.a, "b": arguments.b}
    if c is not None:
        widest = c.widest
        document |= {
            "by": c.by,
            "common": None if c.common is None else list(c.common),
            "end_gap": c.end_gap,
            "widest_gap": None if widest is None else {"at": widest.position, "gap": widest.gap},
            "gaps": [{"at": g.position, "a": g.a, "b": g.b, "gap": g.gap} for g in c.gaps],
            "slopes": None if c.slopes is None else {"a": c.slopes[0], "b": c.slopes[1]},
            "slope_ratio": c.slope_ratio,
            "means": {m.signal: {"a": m.a, "b": m.b} for m in c.means},
            "changed": [{"key": x.key, "a": x.a, "b": x.b} for x in c.changed],
            "warnings": list(c.warnings),
            "notes": list(c.notes),
        }
    document["impact"] = (
        None
        if impact is None
        else {
            "at": impact.at,
            "window_steps": impact.window_steps,
            "rows_before": impact.num_before,
            "rows_after": impact.num_after,
            "table": [
                {"signal": r.signal, "measure": r.measure, "before": r.before, "after": r.after}
                for r in impact.rows
            ],
            "signs": [{"sign": s.name, "state": s.state, "text": s.text} for s in impact.signs],
            "verdict": impact.verdict,
        }
    )
    return document


def _print(c: Comparison | None, impact: Impact | None, title: str) -> None:
    console = Console(highlight=False)
    console.print(Text(plain(title), "bold"))
    if c is not None:
        for warning in c.warnings:
            console.print(Text(f"● {plain(warning)}", "bold yellow"))
        for note in c.notes:
            console.print(Text(plain(note)))
        if c.common is not None and c.end_gap is not None:
            console.print(Text(_summary(c)))
            gaps = [(number(g.position), number(g.a), number(g.b), f"{g.gap:+.4g}") for g in c.gaps]
            _table(console, (c.by, c.a.label, c.b.label, "gap, nats"), gaps)
            means = [
                (m.signal.replace("_", " "), mean_text(m.a), mean_text(m.b), "") for m in c.means
            ]
            _table(console, ("mean of", c.a.label, c.b.label, ""), means)
        changed = [(x.key, x.a or "—", x.b or "—") for x in c.changed]
        if changed:
            _table(console, ("differs", c.a.label, c.b.label), changed)
        else:
            console.print("no setting that both logs or configs state differs")
    if impact is not None:
        console.print()
        console.print(Text(f"before and after {number(impact.at)}: {impact.verdict}", "bold"))
        rows = [
            (f"{r.signal.replace('_', ' ')}, {r.measure}", mean_text(r.before), mean_text(r.after))
            for r in impact.rows
        ]
        _table(
            console,
            (
                f"within {number(impact.window_steps)} steps",
                f"before ({impact.num_before} rows)",
                f"after ({impact.num_after} rows)",
            ),
            rows,
        )
        _table(console, ("sign", "", ""), [(s.name, s.state, s.text) for s in impact.signs])


def _summary(c: Comparison) -> str:
    low, high = c.common or (0.0, 0.0)
    parts = [f"both from {c.by} {number(low)} to {number(high)}"]
    if c.end_gap is not None:
        parts.append(f"at its end {c.b.label} is {c.end_gap:+.4g} nats from {c.a.label}")
    if c.slopes is not None and c.slope_ratio is not None and np.isfinite(c.slope_ratio):
        unit = "10⁹ tokens" if c.by == "tokens" else "1 000 steps"
        parts.append(
            f"slopes {c.slopes[0]:+.3g} and {c.slopes[1]:+.3g} nats per {unit}, ratio"
            f" {c.slope_ratio:.3g}"
        )
    return " · ".join(parts)


def _table(console: Console, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    table = Table.grid(padding=(0, 3, 0, 0))
    for _ in head:
        table.add_column(overflow="fold")
    table.add_row(*(Text(plain(h), "dim") for h in head))
    for row in rows:
        table.add_row(*(Text(plain(v)) for v in row))
    console.print()
    console.print(Unpadded(table), end="")
