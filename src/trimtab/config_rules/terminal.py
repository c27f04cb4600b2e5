"""The terminal output of preflight.

Most severe findings first, each with what to type beside it and its source below.
"""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from trimtab.config_rules.advice import Advice, reach
from trimtab.config_rules.lint import ConfigFinding
from trimtab.config_rules.presets import PresetDifference
from trimtab.config_rules.references import ReferenceTable
from trimtab.config_rules.rules import ConfigRule, rule_table
from trimtab.config_rules.rules.rule import compact
from trimtab.config_rules.rules.shape import depth_words
from trimtab.configs.facts import Facts
from trimtab.configs.settings import Settings
from trimtab.plan.remedies import Remedy
from trimtab.readers.numbers import counted

__all__ = [
    "render_advice",
    "render_config",
    "render_difference",
    "render_findings",
    "render_points",
    "render_remedies",
    "render_rules",
]

_MARK = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "info": ("·", "dim")}
_NARROW = 100
"""Below this width what to type stands under the finding, not beside it."""


def render_config(
    settings: Settings,
    findings: Sequence[ConfigFinding],
    *,
    fine: Sequence[ConfigRule],
    others: int = 0,
    params: float | None = None,
    everything: bool = False,
    width: int = 120,
) -> RenderableType:
    """Return one config: what it is, what was found, what is satisfied.

    Args:
        settings: One config.
        findings: What is to be shown: all, or those of one phase.
        fine: Rules that are satisfied.
        others: Findings of the other phase, which are not shown.
        params: Parameters, where the user gave them.
        everything: Also remarks in full, satisfied rules, and those that are checked elsewhere.
        width: Columns of the terminal.
    """
    rows: list[RenderableType] = [_headline(settings, params), Text("")]
    # What was not read is shown always: silence about it would look like a sound config.
    shown = [f for f in findings if everything or f.severity != "info" or f.rule == "READ"]
    rows.append(render_findings(shown, width))
    quiet = [f for f in findings if f not in shown]
    counts = [f"{counted(len(fine), 'rule')} satisfied"]
    if others:
        counts.append(f"{counted(others, 'finding')} of the other phase")
    if quiet:
        named = ", ".join(f"{f.rule} {f.title}" for f in quiet)
        counts.append(f"{counted(len(quiet), 'remark')} on {named}")
    if not everything:
        counts.append("trimtab preflight --all")
    rows.append(Text("· " + " · ".join(counts), style="dim"))
    if everything:
        rows.append(_everything(settings, findings, fine, params))
    return Group(*rows)


def _headline(settings: Settings, params: float | None) -> Text:
    run = Facts(settings, params=params)
    hidden, layers = run.positive("hidden"), run.positive("layers")
    parts = [settings.framework]
    if run.params is not None:
        parts.append(f"{compact(run.params)} parameters")
    if run.other_architecture:
        parts.append(run.other_architecture)
    elif hidden and layers:
        parts.append(
            f"{counted(round(layers), 'layer')} × {hidden:.0f}, depth risk {depth_words(hidden, layers)}"
        )
    refused = any(d.name == "dtype" and d.kind == "conflict" for d in settings.doubts)
    if dtype := run.get("dtype"):
        parts.append("bf16 and fp16" if refused else str(dtype))
    if run.is_tuning:
        parts.append(str(run.get("objective") or "fine-tuning"))
    parts += [
        note for note in settings.note if note.startswith(("shape taken from", "composed with"))
    ]
    return Text(f"{settings.path}\n", style="bold") + Text(" · ".join(parts), style="not bold")


def render_findings(findings: Iterable[ConfigFinding], width: int) -> Grid:
    """Return findings with what to type beside them; under them where the terminal is narrow."""
    grid = Grid.grid(padding=(0, 1))
    grid.add_column(width=1)
    grid.add_column(ratio=3)
    if width >= _NARROW:
        grid.add_column(ratio=2)
    for found in findings:
        sign, style = _MARK[found.severity]
        message, typed = Text(found.message), Text(found.instead, style="bold cyan")
        below = Text(f"{found.rule} · {found.source}", style="dim")
        if width >= _NARROW:
            grid.add_row(Text(sign, style=style), Group(message, below), typed)
        else:
            grid.add_row(Text(sign, style=style), Group(message, typed, below))
    return grid


def _everything(
    settings: Settings,
    findings: Sequence[ConfigFinding],
    fine: Sequence[ConfigRule],
    params: float | None,
) -> RenderableType:
    rows: list[RenderableType] = [Text("\nsatisfied", style="bold")]
    rows += [Text(f"  {r.id:<11} {r.title}") for r in fine]
    spoke = {f.rule for f in findings} | {r.id for r in fine}
    rows.append(Text("\nnot determined by this config", style="bold"))
    rows += [
        Text(f"  {r.id:<11} {r.title}")
        for r in rule_table().values()
        if r.check is not None and r.needs and r.id not in spoke
    ]
    rows.append(Text("\nchecked elsewhere", style="bold"))
    rows += [
        Text(f"  {r.id:<11} {r.title}  (by {r.elsewhere})")
        for r in rule_table().values()
        if r.elsewhere is not None
    ]
    if findings:
        rows.append(Text("\nwhy, and at what price", style="bold"))
    rows += [Text(f"  {f.rule:<11} {f.why}. Price: {f.cost} ({f.when})") for f in findings]
    known = reach(settings, params)
    if known:
        rows.append(Text("\nsize over the largest at which it was verified", style="bold"))
        rows += [Text(f"  {name:<18} {ratio:.2g} ×") for name, ratio in known.items()]
    if settings.note:
        rows.append(Text("\nassumed while reading", style="bold"))
        rows += [Text(f"  {note}") for note in settings.note]
    return Group(*rows)


def render_rules() -> RenderableType:
    """Return every rule with its source, and where it is checked."""
    grid = Grid.grid(padding=(0, 2))
    for rule in rule_table().values():
        where = f"by {rule.elsewhere}" if rule.elsewhere is not None else "from the config"
        grid.add_row(
            Text(rule.id),
            Group(Text(rule.title), Text(rule.source, style="dim")),
            Text(where),
            Text(rule.when or ""),
        )
    return grid


def render_difference(
    theirs: str, source: str, differences: Sequence[PresetDifference], warning: str = ""
) -> RenderableType:
    """Return the settings that differ from another config's or a preset's, below a warning."""
    grid = Grid.grid(padding=(0, 3))
    for row in differences:
        grid.add_row(
            Text(row.setting), Text(_value(row.ours)), Text(_value(row.theirs), style="cyan")
        )
    head = Text(
        f"against {theirs}"
        + (f" ({source})" if source else "")
        + ("" if differences else ": no difference"),
        style="bold",
    )
    told = [Text(f"! {warning}", style="yellow")] if warning else []
    return Group(Text(""), head, *told, Padding(grid, (0, 2)))


def _value(value: object) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30:
        return compact(value)
    return str(value)[:60]


def render_advice(advice: Sequence[Advice]) -> RenderableType:
    """Return what to set, with formula and source."""
    grid = Grid.grid(padding=(0, 3))
    for row in advice:
        grid.add_row(
            Text(row.setting),
            Text(row.value, style="bold cyan"),
            Group(*(Text(t, style=s) for t, s in ((row.formula, ""), (row.source, "dim")) if t)),
        )
    return grid


def render_remedies(remedies: Sequence[Remedy]) -> RenderableType:
    """Return remedies with cost, time, and where they helped."""
    rows: list[RenderableType] = []
    for remedy in remedies:
        rows.append(
            Text(f"{remedy.id}: {remedy.title}", style="bold")
            + Text(f"  ({remedy.when})", style="not bold")
        )
        rows.append(Text(f"  costs   {remedy.cost}"))
        rows += [
            Text(f"  {what:<7} {e}", style="dim")
            for what, group in (("worked", remedy.worked), ("failed", remedy.failed))
            for e in group
        ]
    return Group(*rows)


def render_points(tables: Sequence[tuple[ReferenceTable, float | None]]) -> RenderableType:
    """Return the tables with their points, and the value read off at a size."""
    rows: list[RenderableType] = []
    for table, value in tables:
        read = f": {compact(value)}" if value is not None else ""
        rows.append(Text(f"{table.name} ({table.unit}){read}", style="bold"))
        rows.append(Text(f"  {table.source}", style="dim"))
        rows += [
            Text(f"  {compact(p.params):>8}  {compact(p.value):>9}  {p.run}") for p in table.points
        ]
    return Group(*rows)
