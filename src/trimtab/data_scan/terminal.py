"""The terminal output of the scan: a line per source, then the findings, most severe first."""

from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from trimtab.data_scan.engine import ScanResult
from trimtab.data_scan.findings import DataFinding, Figures, corpus_tokens, figures
from trimtab.text import visible

__all__ = ["render_scan"]

_MARK = {"error": ("✗", "bold red"), "warning": ("!", "yellow"), "info": ("·", "dim")}
_MOST_SOURCES = 40
_WIDTHS = (11, 10, 6, 6, 9, 9, 9, 9, 9)
_MOST_ORIGINS = 12


def render_scan(result: ScanResult) -> RenderableType:
    """Return table, findings and the plan of epochs."""
    rows: list[RenderableType] = [_sources(result), Text("")] if result.sources else []
    rows += [_finding(f, several=len(result.sources) > 1) for f in result.findings]
    if not result.findings and result.sources and not result.errors:
        rows.append(Text("nothing found", style="green"))
    elif not result.findings and result.sources:
        rows.append(Text("nothing found in what could be read", style="yellow"))
    notes = [*result.notes, *(f"{a.path}: {note}" for a in result.sources for note in a.notes)]
    rows += [Text(f"· {visible(note)}", style="dim") for note in notes[:_MOST_SOURCES]]
    if len(notes) > _MOST_SOURCES:
        rows.append(
            Text(f"· and {len(notes) - _MOST_SOURCES} more remarks (--json has all)", style="dim")
        )
    if result.epochs is not None and result.epochs.epochs <= 1:
        rows.append(
            Text(
                f"· the plan uses {result.epochs.epochs:.1%} of the corpus; nothing comes twice",
                style="dim",
            )
        )
    return Group(*rows)


def _sources(result: ScanResult) -> Text:
    columns = ("units", "MB", "bits", "zstd", "escapes", "repeats", "html", "same", "near")
    lines = [
        f"{'source':<26}" + "".join(f"{c:>{w}}" for c, w in zip(columns, _WIDTHS, strict=True))
    ]
    for account in result.sources[:_MOST_SOURCES]:
        row = figures(account)
        lines.append(_line("/".join(Path(row["path"]).parts[-2:])[-25:], row))
        origins = row["origins"] if len(row["origins"]) > 1 else []
        lines += [_line(f"  {o['name'] or '(no source)'}"[:25], o) for o in origins[:_MOST_ORIGINS]]
        if len(origins) > _MOST_ORIGINS:
            lines.append(f"  … and {len(origins) - _MOST_ORIGINS} more (--json has all)")
    if len(result.sources) > _MOST_SOURCES:
        lines.append(f"… and {len(result.sources) - _MOST_SOURCES} more (--json has all)")
    tokens, estimated = corpus_tokens(result.sources)
    about = "about " if estimated else ""
    lines.append(
        f"{about}{tokens:,} tokens{' (4 bytes of text each)' if estimated else ''}; bits: entropy"
        " per byte or token; zstd: compressed size; same, near: share of documents like an"
        " earlier one"
    )
    return Text("\n".join(lines))


def _line(name: str, row: Figures) -> str:
    """Return the line of a file, or of what in it is from one origin."""
    shares = ("escapes", "repeats", "markup", "exact_duplicates", "near_duplicates")
    cells = (
        f"{row['units']:,}",
        f"{row['bytes'] / 1e6:,.1f}",
        _number(row.get("entropy_bits")),
        _number(row["compression"]),
        *(_share(row[f"share_{k}"]) for k in shares),
    )
    return f"{visible(name):<26}" + "".join(
        f" {c:>{w - 1}}" for c, w in zip(cells, _WIDTHS, strict=True)
    )


def _finding(found: DataFinding, *, several: bool) -> RenderableType:
    sign, style = _MARK[found.severity]
    where = f"  {visible(found.where)}" if found.where and several else ""
    lines = [
        Text(f"{sign} ", style=style)
        + Text(visible(found.message), style="bold")
        + Text(where, style="dim")
    ]
    lines += [Text(f"    {_example(e)}", style="dim") for e in found.examples]
    lines.append(Text(f"    {found.instead}", style="cyan"))
    lines.append(Text(f"    {found.why} ({found.source})", style="dim"))
    return Group(*lines)


def _example(example: object) -> str:
    if not isinstance(example, dict):
        return ""
    place = f"{example.get('id')}+{example.get('offset')}"
    return f"{place:>14}  {visible(str(example.get('text', '')))}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.2%}"
