"""What a logbook says by the lineage: headers of attempts, and tables over all of them."""

import re
from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import quote

from trimtab.chronicle.lineage import Lineage, LineageAttempt, restart_words
from trimtab.chronicle.markdown import md, md_table
from trimtab.chronicle.notes import Bug, Note, NotedHypothesis
from trimtab.chronicle.settings_record import differences_text
from trimtab.text import number, plain, values_text, words

__all__ = [
    "FAILURE_WORDS",
    "attempt_header",
    "attempt_outcomes",
    "duration",
    "note_lines",
    "overview",
    "register",
]

FAILURE_WORDS: Final[Mapping[str, str]] = {
    "cuda_error": "CUDA error",
    "ecc_xid": "ECC or Xid error",
    "env_driver": "driver or environment",
    "hang": "job hanging",
    "lost_gpu": "lost GPU",
    "nccl_error": "NCCL error",
    "nccl_timeout": "NCCL timeout",
    "node_launch": "node not started",
    "numeric": "numeric failure",
    "oom_gpu": "GPU out of memory",
    "oom_host": "host out of memory",
    "preempt_timelimit": "preemption or time limit",
    "python_error": "error in code",
    "user_error": "error of the user",
}
_HARDWARE = frozenset(
    [
        "cuda_error",
        "ecc_xid",
        "env_driver",
        "hang",
        "lost_gpu",
        "nccl_error",
        "nccl_timeout",
        "network",
        "node_launch",
        "oom_host",
        "storage",
    ]
)
"""Classes of failure that are the machine's."""
_MOST_MISSING = 3


def duration(seconds: float | None) -> str:
    """Return seconds for people.

    Example:
        >>> duration(90061), duration(5400), duration(12), duration(None)
        ('1.0 d', '1.5 h', '12 s', '')
    """
    if seconds is None:
        return ""
    for unit, size in (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _steps(first: float | None, last: float | None) -> str:
    if first is None or last is None:
        return ""
    return f"{number(first)}-{number(last)}"


def overview(lineage: Lineage, picture: str = "") -> str:
    """Return the line of restarts and the table of attempts; empty for a run of one attempt."""
    if len(lineage.attempts) < 2:
        return f"![all attempts]({picture})" if picture else ""
    parts = [f"**{md(restart_words(lineage))}**"]
    hardware = {k: n for k, n in lineage.failures.items() if k in _HARDWARE}
    if hardware:
        parts[0] += " · " + md(_tally(hardware))
    if picture:
        parts.append(f"![all attempts]({picture})")
    rows = []
    for a in lineage.attempts:
        origin = plain(a.parent) + (
            f" @ {number(a.parent_step)}" if a.parent_step is not None else ""
        )
        change = differences_text(a.differs) or ("no change" if a.kind == "control" else "")
        rows.append(
            (
                a.number + ("" if a.on_main_line else " †"),
                origin or "scratch",
                _steps(a.first_step, a.last_step),
                a.begun[:10],
                a.kind,
                "; ".join(t for t in (change, a.why or _label(a)) if t),
                _void(a) or a.outcome,
            )
        )
    head = ("attempt", "from", "steps", "begun", "kind", "change, reason", "outcome")
    used = [i for i in range(len(head)) if any(row[i] for row in rows)]
    table = md_table("Attempts", [head[i] for i in used], [[r[i] for i in used] for r in rows])
    parts.append(table)
    if any(not a.on_main_line for a in lineage.attempts):
        parts.append("† not on the main line")
    return "\n\n".join(parts)


def _label(a: LineageAttempt) -> str:
    """Return what its log calls an attempt, where that is more than its number."""
    return "" if a.number in a.label else a.label


def _tally(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{_failure(k)} {n}" for k, n in failures.items())


def _failure(name: str) -> str:
    return FAILURE_WORDS.get(name, name.replace("_", " "))


def _void(a: LineageAttempt) -> str:
    return f"void: bug {', '.join(a.bugs)}" if a.bugs else ""


def attempt_header(a: LineageAttempt, lineage: Lineage) -> str:
    """Return what is known of an attempt, as bullets."""
    return "\n".join(f"- {line}" for line in _header(a, lineage) if line)


_OUTCOME_BY = {
    "rows": "as its rows show",
    "guard": "as the guard judged",
    "supervisor": "as the supervisor judged",
}


def _header(a: LineageAttempt, lineage: Lineage) -> Iterator[str]:
    where = f"steps {_steps(a.first_step, a.last_step)}" if a.last_step is not None else ""
    rows = f"{a.num_rows} rows" if a.num_rows else ""
    yield _joined(_origin(a), where, rows, a.label and f"called {a.label}")
    yield _joined(
        a.nodes and f"Nodes: {a.nodes}",
        a.world_size and f"World size: {a.world_size}",
        a.layout and f"Layout: {a.layout}",
        a.seed and f"Seed: {a.seed}",
        a.config_hash and f"Config: {a.config_hash}{_from(a)}",
    )
    dates = " to ".join(t[:16].replace("T", " ") for t in (a.begun, a.ended) if t)
    yield _joined(dates and f"{dates} UTC", a.state, duration(a.seconds))
    code = a.fact("commit")
    before = lineage.get(a.parent or "")
    earlier = before.fact("commit") if before is not None else ""
    if earlier and code and earlier != code:
        code = f"{earlier[:12]} → {code[:12]}"
    yield _joined(
        code and f"Code: {code[:40]}",
        a.fact("driver") and f"Driver: {a.fact('driver')}",
        a.fact("device") and f"Device: {a.fact('device')}",
        a.fact("hosts") and f"Hosts: {a.fact('hosts')}",
        values_text({k: a.environment[k] for k in ("torch", "cuda") if k in a.environment}),
    )
    if a.parent:
        but = differences_text(a.differs)
        yield f"Same as {md(a.parent)}, but: {md(but)}" if but else ""
        if a.like and a.like != a.parent:
            alike = differences_text(a.but)
            yield f"As {md(a.like)}, but: {md(alike)}" if alike else f"As {md(a.like)}"
        if a.kind == "control":
            yield "Control restart: nothing was changed"
    elif a.like and a.but and len(a.but) <= 6:
        yield f"As {md(a.like)}, but: {md(differences_text(a.but))}"
    for first, last in a.missing[:_MOST_MISSING]:
        yield f"Missing: steps {md(_steps(first, last))} are not in the log"
    if len(a.missing) > _MOST_MISSING:
        yield f"Missing: {len(a.missing) - _MOST_MISSING} more gaps"
    if a.loss_went:
        yield f"Loss through the trouble: {md(a.loss_went)}"
    if a.ended_by:
        yield f"Ended by: {md(_failure(a.ended_by))}"
    if a.lost_steps > 0 and lineage.main_line:
        lost = duration(a.lost_seconds)
        yield f"Given up: {number(a.lost_steps)} steps" + (f", {lost}" if lost else "")
    by = _OUTCOME_BY.get(a.outcome_by, f"says {a.outcome_by}")
    outcome = "did not help" if a.outcome == "did not" else a.outcome
    yield f"Outcome: **{md(outcome)}** ({md(by)})" + (
        f" — {md(a.outcome_why)}" if a.outcome_why else ""
    )
    if a.bugs:
        yield f"**Void**: bug {md(', '.join(a.bugs))}; nothing is concluded from this attempt"


def _from(a: LineageAttempt) -> str:
    names = ", ".join(re.split(r"[/\\\\]", c)[-1] for c in a.config_from)
    return f" ({names})" if names else ""


def _origin(a: LineageAttempt) -> str:
    if a.parent is None:
        return "Started from scratch"
    at = f" at step {number(a.parent_step)}" if a.parent_step is not None else ""
    saved = f" (checkpoint {a.checkpoint})" if a.checkpoint else ""
    return f"{a.kind.capitalize()} from {a.parent}{at}{saved}"


def _joined(*parts: str) -> str:
    return " · ".join(md(p) for p in parts if p)


def attempt_outcomes(lineage: Lineage, outcome: str) -> list[str]:
    """Return rows of attempts begun with a change whose outcome a person or the rows gave.

    Those of a guard have its own outcome events. Under a bug the conclusion is void.
    """
    rows = []
    for a in lineage.attempts:
        if a.outcome != outcome or a.outcome_by == "guard" or a.kind in ("trial",):
            continue
        remedy = differences_text(a.differs) if a.parent else ""
        if a.outcome_by == "rows" and not remedy:
            continue
        told = _void(a) or a.outcome_why
        place = f"{a.number} @ {number(a.last_step)}"
        what = remedy or a.why or a.label or a.kind
        rows.append(f"| {md(what)} | {md(place)} | {md(told) or '—'} |")
    return rows


def register(lineage: Lineage) -> str:
    """Return the tables of hypotheses, bugs, failures, lost time and results."""
    book = lineage.notes
    blocks = (
        md_table(
            "Hypotheses",
            ("hypothesis", "status", "what was said"),
            [(h.name, h.status, _history(h)) for h in book.hypotheses.values()],
        ),
        md_table(
            "Bugs",
            ("bug", "attempts", "what it was", "conclusions"),
            [
                (b.name, _affected(b, lineage), _history(b), _conclusions(b, lineage))
                for b in book.bugs.values()
            ],
        ),
        md_table(
            "Failures",
            ("failure", "times", "of"),
            [
                (_failure(name), count, "the machine" if name in _HARDWARE else "the job")
                for name, count in lineage.failures.items()
            ],
        ),
        md_table(
            "Time lost",
            ("cause", "attempts", "steps given up", "time"),
            [
                (words(FAILURE_WORDS.get(c.replace(" ", "_"), c)), n, number(steps), duration(s))
                for c, n, steps, s in lineage.lost
            ],
        ),
        md_table(
            "Results",
            ("step", "attempt", "figure", "value"),
            [(number(n.step), n.attempt, name, number(v)) for name, v, n in book.results],
        ),
    )
    return "\n\n".join(b for b in blocks if b)


def _affected(bug: Bug, lineage: Lineage) -> str:
    return ", ".join(a.number for a in lineage.attempts if bug.name in a.bugs)


def _conclusions(bug: Bug, lineage: Lineage) -> str:
    """Return what is void, and once the bug is fixed, which changes are to be tested again."""
    if not bug.fixed:
        return "void for these attempts"
    touched = [a for a in lineage.attempts if bug.name in a.bugs and a.differs]
    again = "; ".join(f"{differences_text(a.differs)} ({a.number})" for a in touched)
    return f"fixed {bug.fixed}; void for these attempts" + (again and f"; test again: {again}")


def _history(thing: NotedHypothesis | Bug) -> str:
    return "; ".join(_said(n) for n in thing.history)


def _said(n: Note) -> str:
    status = f" [{n.status}]" if n.status else ""
    return f"{n.t[:10]} {n.author or 'unknown'}: {n.text}{status}"


def note_lines(at: str, d: Mapping[str, object]) -> Iterator[str]:
    """Yield the Markdown bullets of one note."""
    if "text" not in d:
        yield f"{at} note: {md(values_text(d))}"
        return
    kind = "note"
    if d.get("hypothesis"):
        status = f", {plain(d['status'])}" if d.get("status") else ""
        kind = f"hypothesis {plain(d['hypothesis'])}{status}"
    elif d.get("bug"):
        kind = f"bug {plain(d['bug'])}"
    elif d.get("solution"):
        kind = "solution"
    elif d.get("why"):
        kind = "why"
    elif d.get("outcome"):
        kind = f"outcome {plain(d['outcome'])}"
    elif d.get("mark"):
        kind = f"mark {plain(d['mark'])}"
    elif d.get("crash"):
        kind = f"failure, {_failure(plain(d['crash']))}"
    elif d.get("results"):
        kind = f"results {values_text(d['results'])}"
    author = f" by {md(d['author'])}" if d.get("author") else ""
    yield f"{at} {md(kind)}{author}: {md(d['text'])}"
    image = plain(d.get("image"), limit=300)
    if image.startswith("images/") and ".." not in image:
        yield f"  - ![picture]({quote(image)})"
