"""One incident on a page of its own: what, since when, how sure, the plan, what came of it."""

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.ordering import letters
from trimtab.analysis.timeline import answers, event_sentence
from trimtab.record import RunRecord, axis_word
from trimtab.report.saved import cost_sentence, saved_of
from trimtab.report.sections import cards_html, text
from trimtab.text import number, plain, signal_label

__all__ = ["incident_html"]

_AROUND = 64
"""Finite rows before the first sign whose median stands for the level before it. Ours."""
_MOST_SIGNALS = 12


def incident_html(account: RunAccount, letter: str) -> str:
    """Return the inside of the page about one incident; KeyError where there is none of it."""
    named = letters(account)
    index = next((i for i, n in enumerate(named) if n == letter), None)
    if index is None:
        raise KeyError(letter)
    ia = account.incidents[index]
    events = answers(account).get(index, ())
    card = cards_html(account, only=letter).replace("<h3>", "<h1>").replace("</h3>", "</h1>")
    parts = [card, _evidence(account.record, ia)]
    if events:
        items = "".join(
            f'<tr><td class="nowrap">{text(e.t[:19].replace("T", " "))}</td>'
            f'<td class="nowrap">{text(e.attempt)}</td><td class="n">{text(number(e.step))}</td>'
            f"<td>{text(plain(event_sentence(e), limit=600))}</td></tr>"
            for e in events
        )
        head = '<tr><th>time (UTC)</th><th>attempt</th><th class="n">step</th><th>done</th></tr>'
        cost = cost_sentence(account)
        told = f"<p>{text(saved_of(account, ia, events))}</p>"
        told += f"<p><b>Cost of the run so far</b> {text(cost)}</p>" if cost else ""
        parts.append(f"<h2>What was done, and what it saved</h2>{told}<table>{head}{items}</table>")
    return "\n".join(parts)


def _evidence(record: RunRecord, ia: IncidentAccount) -> str:
    """Return a table of the signals that moved: before, at the onset, at the peak, at the end."""
    incident = ia.incident
    names = list(dict.fromkeys(("loss", "grad_norm", *incident.signals)))[:_MOST_SIGNALS]
    first = incident.first_row
    start = next((a.first_row for a in record.attempts if a.number == incident.attempt), 0)
    rows = []
    for name in names:
        column = record.columns.get(name)
        if column is None or not column.present.any():
            continue
        before = column.finite_rows(slice(start, first))[-_AROUND:]
        values = sorted(column.values[before].tolist())
        level = number(values[len(values) // 2]) if values else "—"
        at = [
            number(float(column.values[row])) if row is not None and column.present[row] else "—"
            for row in (incident.onset_row, incident.peak_row, incident.end_row)
        ]
        cells = "".join(f'<td class="n">{text(v)}</td>' for v in (level, *at))
        rows.append(f"<tr><td>{text(plain(signal_label(name)))}</td>{cells}</tr>")
    if not rows:
        return ""
    axis = axis_word(record)
    end = "—" if incident.end is None else number(incident.end)
    places = (
        f"before {axis} {number(incident.first_step)}",
        f"onset {number(incident.onset)}",
        f"peak {number(incident.peak)}",
        "not over" if incident.end is None else f"end {end}",
    )
    head = "<th>signal</th>" + "".join(f'<th class="n">{text(p)}</th>' for p in places)
    return f"<h2>Evidence</h2><table><tr>{head}</tr>{''.join(rows)}</table>"
