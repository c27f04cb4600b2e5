"""Several runs at a glance: one line each."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trimtab.analysis.account import RunAccount
from trimtab.kinds import severity_rank
from trimtab.report.wording import IncidentText, ending_lines, tell, verdict_word
from trimtab.text import plain

__all__ = ["OverviewLine", "overview_line", "render_overview", "shortened", "shortened_together"]

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
    """Content without trailing blanks, which would end up in copied text."""

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
    """The summary of one run."""

    path: str
    severity: str
    """critical, warning, `?` for a run that is not judged, or ok."""
    said: str


def overview_line(account: RunAccount, *, path: str) -> OverviewLine:
    """Return the worst of a run: how it ended, its headline, or its verdict."""
    if account.ending is not None:
        return OverviewLine(path=path, severity="critical", said=ending_lines(account.ending)[0])
    alarms = [t for t in tell(account) if t.alarm]
    if alarms and not alarms[0].settled:
        return OverviewLine(path=path, severity=alarms[0].severity, said=_brief(alarms[0]))
    judgement, said = account.judgement, verdict_word(account)
    if judgement.verdict == "healthy" and judgement.self_test is not None:
        said += f" · self-test {judgement.self_test.seen}/{judgement.self_test.injected}"
    elif said in ("not judged", "not all of it was judged"):
        said = f"not judged: {judgement.why}"
    if alarms:
        settled = f"{alarms[0].settled}: {_brief(alarms[0])}"
        said = settled if judgement.verdict == "healthy" else f"{said} · {settled}"
    blind = judgement.verdict == "not-judged"
    return OverviewLine(path=path, severity="?" if blind else "ok", said=said)


def _brief(telling: IncidentText) -> str:
    """Return what and since when; the rest is told below."""
    return " · ".join(telling.headline.split(" · ")[:2])


def render_overview(lines: Sequence[OverviewLine], *, width: int) -> "Unpadded":
    """Return one line per run: path, worst severity, headline; a long headline hangs.

    Of runs equally bad the order is kept; the worst come last, where a screen that scrolled ends.
    """
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, overflow="fold")
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    names = shortened_together([line.path for line in lines], limit=max(20, width * 2 // 5))
    for line, name in sorted(
        zip(lines, names, strict=True), key=lambda pair: severity_rank(pair[0].severity)
    ):
        table.add_row(
            Text(name),
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


def shortened_together(paths: Sequence[str], *, limit: int) -> tuple[str, ...]:
    """Return paths as harmless lines, without the parts that all of them share.

    A common beginning and a common end are left out first, in whole parts; a path that is still
    too long loses its middle.

    Example:
        >>> paths = ["/scratch/runs/lr-3e-4/train.log", "/scratch/runs/lr-6e-4/train.log"]
        >>> shortened_together(paths, limit=20)
        ('…/lr-3e-4/train.log', '…/lr-6e-4/train.log')
    """
    shown = [plain(path) for path in paths]
    parts = [text.split("/") for text in shown]
    least = min((len(p) for p in parts), default=0)
    same = [len({p[i] for p in parts}) == 1 for i in range(least - 1)]
    first = same.index(False) if False in same else len(same)
    if max(map(len, shown), default=0) > limit and first and len(shown) > 1:
        shown = ["/".join(("…", *p[first:])) for p in parts]
        ends = [len({p[-1 - i] for p in parts}) == 1 for i in range(least - first)]
        last = ends.index(False) if False in ends else 0
        if max(map(len, shown)) > limit and last:
            shown = ["/".join(("…", *p[first : len(p) - last], "…")) for p in parts]
    return tuple(_cut(text, limit) for text in shown)


def _cut(text: str, limit: int) -> str:
    """Return a text without its middle where it is too long: both ends tell it from others."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return text[:head] + "…" + text[len(text) - (limit - 1 - head) :]
