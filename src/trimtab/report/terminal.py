"""The analysis of a run on a terminal: what happened, what to do, then the evidence.

All text is built from `rich.text.Text`, never from markup, and log text passes `plain`, so a log
cannot colour, move or clear the reader's terminal. Without a tty rich prints no colour at all.
"""

import io
from collections.abc import Iterator, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from trimtab.analysis.account import RunAccount
from trimtab.record import axis_word
from trimtab.report.overview import Unpadded, shortened
from trimtab.report.shared_notes import loss_source, other_notes
from trimtab.report.wording import (
    MAIN_SIGNALS,
    PLAN_ROWS,
    CauseText,
    IncidentText,
    RemedyText,
    ending_lines,
    final_loss,
    header_sentence,
    info_sentence,
    last_benchmark,
    not_judged,
    read_time,
    tell,
    verdict_word,
)
from trimtab.text import number, plain, signal_label

__all__ = ["TerminalReport", "render_terminal", "rendered_text", "terminal_text"]

_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "cyan"}
_WITHOUT_ALARM = ("healthy", "not-judged")
"""Verdicts that are said though alarms are told: none of these is open."""
_LINES = 60
"""About so many lines are printed of one run; further alarms get a line or two."""
_FEW = 3
"""Alarms that are printed in full, however long."""
_WIDE = 110
"""From this width on, evidence stands beside its cause instead of under it."""


class TerminalReport:
    """The analysis of one run for rich to print, laid out for the width of the terminal."""

    def __init__(
        self, account: RunAccount, *, report: str | None = None, whole: bool = False
    ) -> None:
        """Keep the account.

        Args:
            account: What to tell.
            report: Path of the HTML report, where one was written.
            whole: Every alarm in full, however many lines that takes.
        """
        self.account = account
        self.whole = whole
        self.report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines: header, alarms, one line of the rest, notes."""
        yield Unpadded(Group(*self._lines(console, options)))

    def _lines(self, console: Console, options: ConsoleOptions) -> Iterator[Text | Table | Padding]:
        yield _header(self.account, width=options.max_width)
        if self.account.ending is not None:
            yield _labelled(
                "● ENDED",
                Text("\n".join(ending_lines(self.account.ending))),
                style=_STYLE["critical"],
            )
        if missed := not_judged(self.account):
            yield _labelled("● gaps", Text(missed), style=_STYLE["warning"])
        if source := loss_source(self.account):
            yield Padding(Text(source, "dim"), (0, 0, 0, 2))
        tellings = [t for t in tell(self.account) if t.alarm]
        if tellings and self.account.verdict in _WITHOUT_ALARM:
            yield _verdict_line(self.account)
        yield from self._alarms(tellings, console, options)
        rest = list(_rest(self.account, quiet=not tellings))
        if tellings and rest:
            yield Text()
        yield from rest
        if self.report:
            yield _labelled("report", Text(plain(self.report)))

    def _alarms(
        self, tellings: Sequence[IncidentText], console: Console, options: ConsoleOptions
    ) -> Iterator[Text | Table | Padding]:
        """Yield the alarms in full while there is room, then headlines, then the number left."""
        used, short = 2, 0
        for n, telling in enumerate(tellings):
            head = _first_line(telling)
            body = Padding(_body(telling, wide=options.max_width >= _WIDE), (0, 0, 0, 2))
            size = sum(len(console.render_lines(part, options)) for part in (head, body)) + 1
            fits = (
                self.whole
                or n == 0
                or len(tellings) <= _FEW
                or used + size + 2 * (len(tellings) - n - 1) <= _LINES
            )
            if fits:
                used += size
                yield from (Text(), head, body)
                continue
            room = len(console.render_lines(head, options))
            if used + room > _LINES:
                left = len(tellings) - n
                more = (
                    f"  … and {left} more alarms: --all prints each in full, --html writes a page"
                )
                yield Text(more)
                return
            if not short:
                yield Text()
            used, short = used + room, short + 1
            yield head
        if short:
            yield Text(
                f"  {short} by headline only: --all prints each in full, --html writes a page"
            )


def render_terminal(
    account: RunAccount, *, report: str | None = None, whole: bool = False
) -> TerminalReport:
    """Return the account for `rich.print`; `report` names the HTML file to point to."""
    return TerminalReport(account, report=report, whole=whole)


def terminal_text(
    account: RunAccount, *, width: int = 100, report: str | None = None, whole: bool = False
) -> str:
    """Return the account as plain text of at most `width` columns, without colour."""
    return rendered_text(render_terminal(account, report=report, whole=whole), width=width)


def rendered_text(content: RenderableType, *, width: int) -> str:
    """Return what rich would print of some content, as plain text without colour."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, color_system=None, force_terminal=False, highlight=False
    )
    console.print(content)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _header(account: RunAccount, *, width: int) -> Table:
    """Return the path, then format, attempts and range; a path may stand on a line of its own."""
    path = shortened(account.record.source, limit=max(20, min(60, width - 20)))
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_column(no_wrap=True, overflow="fold")
    line.add_column(ratio=1, overflow="fold")
    facts = Text(f"· {header_sentence(account)}", style="bold")
    said = read_time(account.read_s)
    indent = 2 if len(path) > width // 3 else len(path) + 1
    facts.append(" · " if indent + len(facts) + 3 + len(said) <= width else "\n")
    facts.append(said, style="not bold dim")
    if len(path) > width // 3:
        line = Table.grid()
        line.add_column(ratio=1, overflow="fold")
        line.add_row(Text(path, style="bold"))
        line.add_row(Padding(facts, (0, 0, 0, 2)))
        return line
    line.add_row(Text(path, style="bold"), facts)
    return line


def _first_line(telling: IncidentText) -> Table:
    said = f"{telling.settled}:" if telling.settled else telling.severity.upper()
    style = _STYLE["info" if telling.settled else telling.severity]
    line = Table.grid(padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(no_wrap=True)
    line.add_column(ratio=1, overflow="fold")
    line.add_row(
        Text(f"{'○' if telling.settled else '●'} {said}", style),
        Text(telling.letter, "bold"),
        Text(telling.headline, "bold"),
    )
    return line


def _labelled(label: str, content: Text | Table, *, style: str = "dim") -> Table:
    line = Table.grid(padding=(0, 1))
    line.add_column(width=9, no_wrap=True)
    line.add_column(ratio=1, overflow="fold")
    line.add_row(Text(label, style=style), content)
    return line


def _body(telling: IncidentText, *, wide: bool) -> Table:
    body = Table.grid(padding=(0, 1))
    body.add_column(width=9, no_wrap=True)
    body.add_column(ratio=1, overflow="fold")

    def row(label: str, content: Text | Table) -> None:
        body.add_row(Text(label, style="dim"), content)

    if telling.dismissed:
        row("why", Text(telling.dismissed))
        if telling.what:
            row("what", Text(telling.what))
        return body
    if telling.resolved:
        same = f"as for {telling.same_as}" if telling.same_as else ""
        row("done", Text(same or "\n".join(telling.done)))
    elif telling.same_as:
        row("do", Text(f"as for {telling.same_as}"))
    elif telling.like and any(r.when == "mid-run" for r in telling.remedies):
        mid_run = tuple(r for r in telling.remedies if r.when == "mid-run")[:1]
        row("do", _plan(mid_run, brief=False, history=False))
        row("", Text(f"and as for {telling.like}", style="dim"))
    else:
        for label, when in PLAN_ROWS:
            remedies = tuple(r for r in telling.remedies if r.when == when)
            if remedies:
                row(label, _plan(remedies, brief=when != "mid-run"))
        if not telling.remedies:
            row("do", Text("no remedy is known for this; watch it"))
    if telling.what:
        row("what", Text(telling.what))
    row("first", Text(telling.first or "no sign before the onset in the signals logged"))
    if telling.together:
        row("together", Text(telling.together))
    if telling.same_as or telling.like:
        row("because", Text(f"as for {telling.same_as or telling.like}"))
    else:
        row("because", _causes(telling.causes, wide=wide) if telling.causes else Text("unknown"))
        if telling.next_test and not telling.resolved:
            row(
                "next test",
                Text("\n".join(filter(None, (telling.next_test, telling.next_test_flags)))),
            )
    if telling.done and not telling.resolved:
        row("done", Text("\n".join(telling.done)))
    return body


def _causes(causes: tuple[CauseText, ...], *, wide: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(
        min_width=24, max_width=46 if wide else None, ratio=None if wide else 1, overflow="fold"
    )
    table.add_column(justify="right", no_wrap=True)
    if wide:
        table.add_column(ratio=1, overflow="fold")
    for cause in (c for c in causes if not c.minor):
        rank, title = (
            Text(str(cause.rank)),
            Text(cause.title, style="bold" if cause.rank == 1 else ""),
        )
        confidence = Text(f"{cause.level} {cause.confidence}".strip())
        details = Text(cause.details, style="dim")
        if wide:
            table.add_row(rank, title, confidence, details)
        else:
            table.add_row(rank, title, confidence)
            if cause.details:
                table.add_row(Text(), details, Text())
    minor = [f"{c.title} {c.confidence}" for c in causes if c.minor]
    if not minor:
        return table
    both = Table.grid()
    both.add_column(overflow="fold")
    both.add_row(table)
    both.add_row(Text(f"less likely: {', '.join(minor)}", style="dim"))
    return both


def _plan(remedies: tuple[RemedyText, ...], *, brief: bool, history: bool = True) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for remedy in remedies:
        line = Text(remedy.text, style="" if brief else "bold")
        if remedy.why and not brief:
            line.append(f" — {remedy.why}", style="not bold")
        if remedy.flags and brief:
            line.append(f"  {remedy.flags}", style="green")
        table.add_row(Text(str(remedy.rank)), line)
        if remedy.flags and not brief:
            table.add_row(Text(), Text(remedy.flags, style="green"))
        if remedy.history and history:
            table.add_row(Text(), Text(remedy.history, style="dim"))
    return table


def _verdict_line(account: RunAccount) -> Table:
    """Return the verdict of a run without an open alarm, what it rests on, and where the run ends."""
    record, judgement = account.record, account.judgement
    last = final_loss(record)
    ending = (
        f"loss {number(last[1])} at {axis_word(record)} {number(last[0])}"
        if last
        else (
            f"last {axis_word(record)} {number(float(record.step[-1]))}"
            if record.num_rows
            else "no train loss logged"
        )
    )
    ending = " · ".join(part for part in (ending, last_benchmark(record)) if part)
    found = "no incident that needs action"
    if record.num_rows and not record.num_loss_rows:
        found = f"{number(record.num_rows)} rows, nothing found in the other signals"
    good = judgement.verdict == "healthy"
    basis = judgement.power if good else "" if account.ending is not None else judgement.why
    line = Table.grid(padding=(0, 3, 0, 0))
    line.add_column(no_wrap=True)
    line.add_column(ratio=1, overflow="fold")
    line.add_row(
        Text(f"○ {verdict_word(account)}", "bold green" if good else "bold yellow"),
        Text("\n".join(part for part in (plain(basis), f"{found} · {ending}") if part)),
    )
    return line


def _rest(account: RunAccount, *, quiet: bool) -> Iterator[Text | Table]:
    """Yield what follows the alarms: notes, and in a quiet run the verdict and what it is blind to."""
    record, judgement = account.record, account.judgement
    infos = info_sentence(account)
    if not quiet:
        if infos:
            yield _labelled("○ info", Text(infos), style=_STYLE["info"])
        for note in (*judgement.ignored, *other_notes(account)):
            yield _labelled("○ note", Text(plain(note)))
        return
    yield _verdict_line(account)
    good = judgement.verdict == "healthy"
    if not good:
        for sentence in judgement.not_judged:
            yield _labelled("○ blind", Text(plain(sentence)))
    missing = ", ".join(signal_label(s) for s in MAIN_SIGNALS if s not in record.columns)
    parts = [
        infos,
        f"not logged: {missing}" if missing else "all four main signals logged",
        *(plain(n) for n in (judgement.ignored if good else ())),
        *(plain(n) for n in other_notes(account)),
    ]
    yield _labelled("○ info", Text(" · ".join(p for p in parts if p)))
