"""Pieces of the page that need no script: cards, lineage, decisions, chronicle, notes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from trimtab.analysis.account import RunAccount
from trimtab.analysis.timeline import event_sentence
from trimtab.analysis.verdict import RunJudgement
from trimtab.chronicle.journal import Event
from trimtab.masking import masked
from trimtab.record import Attempt, RunRecord, axis_word
from trimtab.report.panels import step_range
from trimtab.report.picture import NUM_COLOURS
from trimtab.report.wording import (
    PLAN_ROWS,
    CauseText,
    IncidentText,
    RemedyText,
    capital,
    tell,
)
from trimtab.text import number, plain, signal_label, values_text, verdict_text, words

__all__ = [
    "cards_html",
    "chronicle_html",
    "decisions_html",
    "judgement_html",
    "legend_html",
    "lineage_html",
    "notes_html",
    "text",
]

MAX_EVENTS = 2_000
"""Rows of a table of events; the journal itself has all."""


def text(value: object) -> str:
    """Return log text as harmless HTML; digits grouped by blanks stay together on a line."""
    return escape(re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "\u202f", plain(value)), quote=True)


def cards_html(account: RunAccount, *, prefix: str = "", only: str = "") -> str:
    """Return the incident cards, A first; those that need no action are folded away.

    `prefix` keeps ids apart where a page shows several runs; so it does in the other sections.
    `only`: the letter of the one card that is wanted.
    """
    order = tell(account)
    if only:
        return "".join(_card(t, prefix) for t in order if t.letter == only)
    alarms = [_card(t, prefix) for t in order if t.alarm and not t.dismissed]
    quiet = [_card(t, prefix) for t in order if not t.alarm or t.dismissed]
    if not alarms and not quiet:
        return ""
    fold = ""
    if quiet:
        many = "s" if len(quiet) > 1 else ""
        fold = (
            f"<details><summary>{len(quiet)} incident{many} that need{'' if many else 's'} no"
            f" action</summary>{''.join(quiet)}</details>"
        )
    return "".join(alarms) + fold


def _next_test(t: IncidentText) -> str:
    flags = f'<code class="flags">{text(t.next_test_flags)}</code>' if t.next_test_flags else ""
    return text(t.next_test) + flags if t.next_test else ""


def _card(t: IncidentText, prefix: str) -> str:
    same = f"as for {t.same_as}" if t.same_as else ""
    plan = [("do", same)] if same else _plan_rows(t)
    # who reads this at night is not told to mend what the run left behind long ago
    past = t.given_up and t.alarm and not t.done
    deeds = ("nothing is left to do: its branch was given up",) if past else t.done
    later = _folded("to consider, and for the next run", plan[1:]) if not deeds else ""
    done = _list(deeds)
    because = same or (_causes(t.causes) if t.alarm or t.causes else "")
    rows = [
        *([("done", done)] if done else plan[:1]),
        ("because", because),
        ("next test", "" if same or t.resolved or past else _next_test(t)),
        ("first", text(t.first or ("no sign before the onset" if t.alarm else ""))),
        ("what", text(t.what)),
        ("together", text(t.together)),
        ("later", later),
        *(
            [("plan", _folded("remedies for this, by hand", plan))]
            if done and not t.resolved
            else []
        ),
    ]
    body = "".join(f"<dt>{label}</dt><dd>{html}</dd>" for label, html in rows if html)
    if t.dismissed:
        body = f"<dt>dismissed</dt><dd>{text(t.dismissed)}</dd>{body}"
    severity = "info" if t.dismissed else text(t.severity)
    pattern = f"<span>{text(t.pattern)}</span>" if t.pattern else ""
    return (
        f'<article class="card {severity}" id="{text(prefix)}incident-{t.letter}"'
        f' data-letter="{t.letter}" tabindex="0">'
        f'<header><span class="badge">{t.letter}</span><span'
        f' class="severity">{severity}</span>{pattern}</header>'
        f"<h3>{text(capital(t.headline))}</h3><dl>{body}</dl></article>"
    )


def _causes(causes: tuple[CauseText, ...]) -> str:
    if not causes:
        return "unknown"
    minor = ", ".join(f"{c.title} {c.confidence}" for c in causes if c.minor)
    rest = f'<li class="why">less likely: {text(minor)}</li>' if minor else ""
    return "<ol>" + "".join(_cause(c) for c in causes if not c.minor) + rest + "</ol>"


def _cause(c: CauseText) -> str:
    share = 0.0 if c.confidence == "—" else min(max(float(c.confidence), 0.0), 1.0) * 100
    bar = (
        '<svg viewBox="0 0 100 3" preserveAspectRatio="none" aria-hidden="true"><rect'
        f' class="track" width="100" height="3"/><rect class="fill" width="{share:.0f}"'
        ' height="3"/></svg>'
    )
    why = f'<span class="why">{text(c.details)}</span>' if c.details else ""
    return f'<li class="cause"><b>{text(c.title)}</b><span>{c.confidence}</span>{bar}{why}</li>'


def _plan_rows(t: IncidentText) -> list[tuple[str, str]]:
    if not t.remedies:
        return [("do", "no remedy is known for this; watch it" if t.alarm else "")]
    rows = []
    for label, when in PLAN_ROWS:
        remedies = [r for r in t.remedies if r.when == when]
        if remedies:
            rows.append((label, f"<ol>{''.join(_remedy(r) for r in remedies)}</ol>"))
    return rows


def _folded(summary: str, plan: Iterable[tuple[str, str]]) -> str:
    """Return rows of a plan that are not what to do now: to be looked up."""
    parts = "".join(f'<p class="why">{label}</p>{html}' for label, html in plan if html)
    return f"<details><summary>{summary}</summary>{parts}</details>" if parts else ""


def _remedy(r: RemedyText) -> str:
    why = f' <span class="why">{text(r.why)}</span>' if r.why else ""
    flags = f'<code class="flags">{text(r.flags)}</code>' if r.flags else ""
    costs = " · ".join(
        p for p in (f"cost: {r.cost}" if r.cost else "", f"undo: {r.undo}" if r.undo else "") if p
    )
    lines = [
        costs,
        *(f"worked for {w}" for w in r.worked),
        *(f"did not help {f}" for f in r.failed),
    ]
    summary = text(r.history or "cost and undo")
    fold = f"<details><summary>{summary}</summary>{_list(lines)}</details>" if any(lines) else ""
    return f"<li>{r.rank} <b>{text(r.text)}</b>{why}{flags}{fold}</li>"


def _list(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{text(line)}</li>" for line in lines if line)
    return f"<ul>{items}</ul>" if items else ""


def legend_html(account: RunAccount) -> str:
    """Return which colour is which attempt, where there are several, and what faint lines are."""
    attempts = account.record.attempts
    if len(attempts) < 2:
        return ""
    live = set(account.record.final_lineage())
    items = []
    for i, a in enumerate(attempts[:12]):
        items.append(
            '<i><svg width="14" height="9" aria-hidden="true"><line class="curve'
            f" a{i % NUM_COLOURS}{'' if i in live else ' dead'}"
            f'{" trial" if a.trial and i not in live else ""}"'
            ' x1="0" x2="14" y1="5"'
            f' y2="5"/></svg>{_short(a.number)}{_trial_word(a, kept=i in live)}</i>'
        )
    more = f"<i>and {len(attempts) - 12} more</i>" if len(attempts) > 12 else ""
    return (
        f'<span class="legend">{"".join(items)}{more}<i>faint: not on the final lineage</i></span>'
    )


def _trial_word(a: Attempt, *, kept: bool) -> str:
    return "" if not a.trial else " (trial, kept)" if kept else " (trial)"


def lineage_html(account: RunAccount, *, prefix: str = "") -> str:
    """Return the tree of attempts as a table: parent, steps, why, and what was set differently."""
    record = account.record
    if len(record.attempts) < 2 and not any(a.settings or a.why for a in record.attempts):
        return ""
    if len(record.attempts) == 1:
        only = record.attempts[0]
        told = " · ".join(p for p in (plain(only.why), _differences(only, None)) if p)
        return f'<h2>Settings</h2><p id="{text(prefix)}lineage" class="settings">{text(told)}</p>'
    live, limits = set(record.attempt[record.lineage_rows()].tolist()), step_range(record)
    by_number = {a.number: a for a in record.attempts}
    rows = []
    for i, a in enumerate(record.attempts):
        first, last = _ends(record, a)
        bar = _bar(i, (first, last), limits, a, live=i in live)
        changed = _differences(a, by_number.get(a.parent or ""))
        rows.append(
            (
                (
                    '<td class="nowrap"><span'
                    f' class="tree">{_branch(a, by_number)}</span><b>{_short(a.number)}</b></td>'
                ),
                f'<td class="nowrap">{_parent(a)}</td>',
                f'<td class="n">{text(number(first))}\u2013{text(number(last))}</td>',
                f'<td class="bars">{bar}</td>',
                f"<td>{text(_fate(record, i))}</td>",
                f"<td>{text(a.why)}</td>",
                f"<td>{text(changed)}</td>",
            )
        )
    titles = (
        "<th>attempt</th>",
        "<th>parent</th>",
        f'<th class="n">{axis_word(record)}s</th>',
        '<th class="bars"></th>',
        "<th>fate</th>",
        "<th>why</th>",
        "<th>set differently</th>",
    )
    filled = [k for k in range(len(titles)) if any(row[k] != "<td></td>" for row in rows)]
    table = "".join(f"<tr>{''.join(row[k] for k in filled)}</tr>" for row in (titles, *rows))
    return f'<h2>Lineage</h2><table id="{text(prefix)}lineage">{table}</table>'


def _short(number: str) -> str:
    return text(plain(number, limit=24))


def _branch(a: Attempt, by_number: Mapping[str, Attempt]) -> str:
    depth = _depth(a, by_number)
    return "  " * max(depth - 1, 0) + ("└ " if depth else "")


def _parent(a: Attempt) -> str:
    if a.parent is None:
        return "—"
    at = "" if a.parent_step is None else f" @ {text(number(a.parent_step))}"
    return _short(a.parent) + at


def _fate(record: RunRecord, index: int) -> str:
    """Return whether an attempt is on the final lineage, and up to where."""
    rows = record.lineage_rows()
    rows = rows[record.attempt[rows] == index]
    attempt = record.attempts[index]
    if not len(rows):
        return "trial" if attempt.trial else "given up"
    if rows[-1] + 1 < attempt.end_row:
        return f"kept to {number(float(record.step[rows[-1]]))}, then given up"
    return "final lineage"


def _depth(a: Attempt, by_number: Mapping[str, Attempt]) -> int:
    seen = {a.number}
    parent = by_number.get(a.parent or "")
    while parent is not None and parent.number not in seen and len(seen) < 12:
        seen.add(parent.number)
        parent = by_number.get(parent.parent or "")
    return len(seen) - 1


def _ends(record: RunRecord, a: Attempt) -> tuple[float | None, float | None]:
    if a.end_row <= a.first_row:
        return None, None
    return float(record.step[a.first_row]), float(record.step[a.end_row - 1])


def _bar(
    index: int,
    ends: tuple[float | None, float | None],
    limits: tuple[float, float],
    a: Attempt,
    *,
    live: bool,
) -> str:
    first, last = ends
    if first is None or last is None:
        return ""
    span = (limits[1] - limits[0]) or 1.0
    x0, x1 = (1000 * (v - limits[0]) / span for v in (first, last))
    name = f"bar a{index % NUM_COLOURS}{'' if live else ' dead'}"
    height = 4 if a.trial else 8
    return (
        '<svg viewBox="0 0 1000 14" preserveAspectRatio="none" aria-hidden="true"><line'
        f' class="rail" x1="0" x2="1000" y1="7" y2="7"/><rect class="{name}" x="{x0:.1f}"'
        f' y="{7 - height / 2:g}" width="{max(x1 - x0, 4):.1f}" height="{height}"/></svg>'
    )


def _differences(a: Attempt, parent: Attempt | None) -> str:
    before = parent.settings if parent is not None else {}
    changed = [
        f"{k} {f'{masked(before[k], name=k)} → ' if k in before else ''}{masked(v, name=k)}"
        for k, v in a.settings.items()
        if before.get(k) != v
    ]
    return ", ".join(plain(c) for c in changed)


def decisions_html(events: Sequence[Event], *, prefix: str = "") -> str:
    """Return the table of decisions: what, why, evidence, what was done, what came of it."""
    groups: list[list[Event]] = []
    for event in events:
        if event.event == "decision" or (event.event in ("action", "outcome") and not groups):
            groups.append([event])
        elif event.event in ("action", "outcome"):
            groups[-1].append(event)
    if not groups:
        return ""
    head = (
        "<tr><th>attempt</th><th"
        ' class="n">step</th><th>decided</th><th>why</th><th>done</th><th>came of it</th></tr>'
    )
    return (
        "<h2>Decisions</h2><table"
        f' id="{text(prefix)}decisions">{head}{"".join(_decision(g) for g in groups)}</table>'
    )


def _decision(group: Sequence[Event]) -> str:
    first = group[0]
    d = first.data if first.event == "decision" else {}
    evidence = d.get("evidence") or ()
    why = "; ".join(
        [
            plain(d.get("why", "")),
            *(plain(e) for e in (evidence if isinstance(evidence, list | tuple) else [evidence])),
        ]
    ).strip("; ")
    done = "<br>".join(text(event_sentence(e)) for e in group if e.event == "action")
    outcome = "<br>".join(_outcome(e) for e in group if e.event == "outcome")
    return (
        f'<tr><td class="nowrap">{_short(first.attempt)}</td><td'
        f' class="n">{text(number(first.step))}</td><td>{text(d.get("what", "—"))}</td>'
        f"<td>{text(why)}</td><td>{done}</td><td>{outcome}</td></tr>"
    )


def _outcome(event: Event) -> str:
    verdict = plain(event.data.get("verdict", "unclear"))
    name = {"worked": "worked", "did not": "did-not"}.get(verdict, "unclear")
    shown, said = verdict_text(event.data)
    figures = values_text(event.data.get("figures"))
    parts = (
        words(event.data.get("remedy", "")),
        said,
        figures,
    )
    return f'<b class="{name}">{text(shown)}</b> {text(" · ".join(p for p in parts if p))}'


def chronicle_html(events: Sequence[Event], *, prefix: str = "") -> str:
    """Return the journal as a table; findings and checkpoints are folded away."""
    if not events:
        return ""
    main = [e for e in events if e.event not in ("finding", "checkpoint")]
    rest = [e for e in events if e.event in ("finding", "checkpoint")]
    fold = (
        f"<details><summary>{number(len(rest))} findings and"
        f" checkpoints</summary>{_events(rest)}</details>"
        if rest
        else ""
    )
    return f'<h2>Chronicle</h2><div id="{text(prefix)}chronicle">{_events(main)}</div>{fold}'


def _events(events: Sequence[Event]) -> str:
    rows = "".join(
        f'<tr><td class="nowrap">{text(e.t[:19].replace("T", " "))}</td><td'
        f' class="nowrap">{_short(e.attempt)}</td><td class="n">{text(number(e.step))}</td>'
        f"<td>{text(e.event)}</td><td>{text(plain(event_sentence(e), limit=600))}</td></tr>"
        for e in events[-MAX_EVENTS:]
    )
    left = (
        f'<p class="quiet">The last {number(MAX_EVENTS)} of {number(len(events))}; the journal has'
        " all.</p>"
        if len(events) > MAX_EVENTS
        else ""
    )
    return (
        f"{left}<table><tr><th>time (UTC)</th><th>attempt</th><th"
        f' class="n">step</th><th>event</th><th></th></tr>{rows}</table>'
    )


def notes_html(notes: Iterable[str]) -> str:
    """Return what the reader of the log had to assume, convert or leave out."""
    items = "".join(f"<li>{text(n)}</li>" for n in notes)
    return f'<h2>Notes on the log</h2><ul class="notes">{items}</ul>' if items else ""


def judgement_html(judgement: RunJudgement) -> str:
    """Return what the verdict rests on, and what could not be judged."""
    signals = ", ".join(signal_label(s) for s in judgement.rests_on.signals) or "no signal"
    said = [f"{number(judgement.rests_on.rows)} train-loss rows; judged: {signals}"]
    said += [part for part in (judgement.power, *judgement.not_judged) if part]
    items = "".join(f"<li>{text(s)}</li>" for s in said)
    heading = f"<h2>What the verdict rests on: {text(judgement.verdict)}</h2>"
    return f'{heading}<ul class="notes">{items}</ul>'
