"""Several runs in a few lines: one each, before any is told at length."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trimtab.chronicle.prose import plain
from trimtab.report.account import RunAccount
from trimtab.report.telling import IncidentTelling, tell, too_short

__all__ = ["OverviewLine", "overview_line", "render_overview", "shortened"]

_STYLE = {"critical": "bold red", "warning": "bold yellow"}


_ASCII = str.maketrans(
    {
        "●": "*",
        "○": "o",
        "·": "|",
        "—": "-",
        "\u2013": "-",
        "\u2212": "-",
        "\u00d7": "x",
        "→": ">",
        "…": "~",
        "∞": "I",
        "\u03c1": "r",
    }
)


def _ascii(text: str) -> str:
    """Return text in ASCII, one column for one column."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


class Unpadded:
    """What is within, without the blanks that fill lines up: they only harm what is copied."""

    def __init__(self, content: RenderableType) -> None:
        """Keep the content."""
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines; signs that cannot be written (LC_ALL=C) would stop the print."""
        for line in Segment.split_lines(console.render(self.content, options)):
            while line and not line[-1].text.strip():
                line.pop()
            if line:
                line[-1] = line[-1]._replace(text=line[-1].text.rstrip())
            for segment in line:
                text = _ascii(segment.text) if options.ascii_only else segment.text
                yield segment._replace(text=text)
            yield Segment.line()


@dataclass(frozen=True, kw_only=True)
class OverviewLine:
    """What one run comes to."""

    path: str
    severity: str
    """critical, warning, or ok."""
    said: str


def overview_line(account: RunAccount, *, path: str) -> OverviewLine:
    """Return the worst of a run: its headline, or that it is healthy."""
    alarms = [t for t in tell(account) if t.alarm]
    if alarms and not alarms[0].settled:
        return OverviewLine(path=path, severity=alarms[0].severity, said=_brief(alarms[0]))
    if alarms:
        return OverviewLine(
            path=path, severity="ok", said=f"{alarms[0].settled}: {_brief(alarms[0])}"
        )
    if not account.record.num_rows:
        return OverviewLine(path=path, severity="ok", said="nothing to judge")
    said = "too short to judge" if too_short(account.record) else "healthy"
    return OverviewLine(path=path, severity="ok", said=said)


def _brief(telling: IncidentTelling) -> str:
    """Return what and since when; the rest is told below."""
    return " · ".join(telling.headline.split(" · ")[:2])


def render_overview(lines: Sequence[OverviewLine], *, width: int) -> "Unpadded":
    """Return one line per run: path, worst severity, headline; a long headline hangs."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for line in lines:
        table.add_row(
            Text(shortened(line.path, limit=max(20, width * 2 // 5))),
            Text(line.severity, _STYLE.get(line.severity, "green")),
            Text(line.said),
        )
    return Unpadded(table)


def shortened(path: str, *, limit: int) -> str:
    """Return a path as one harmless line; of a long one the end, which tells it from others.

    Example:
        >>> shortened("/scratch/project/runs/demo/train.log", limit=16)
        '…/demo/train.log'
    """
    shown = plain(path)
    return shown if len(shown) <= limit else "…" + shown[len(shown) - limit + 1 :]
