"""The analysis in words: the sentences that the terminal, the page and the picture share."""

import math
import re
from dataclasses import dataclass

import numpy as np

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.ordering import letters, listed_order
from trimtab.analysis.resolution import left_behind, resolved
from trimtab.analysis.timeline import done_after
from trimtab.analysis.verdict import Ending
from trimtab.detectors.confidence import level_of
from trimtab.detectors.few_rows import FEWEST_ROWS
from trimtab.diagnosis.cause_levels import cause_level
from trimtab.diagnosis.causes import UNKNOWN
from trimtab.diagnosis.patterns import name_pattern
from trimtab.incidents import Incident
from trimtab.plan.plan import Plan, PlannedRemedy
from trimtab.plan.remedy_table import REMEDY_BY_ID
from trimtab.record import RunRecord, axis_word
from trimtab.report.shared_notes import once
from trimtab.text import OTHER, number, plain, reworded, signal_label, values_text

__all__ = [
    "MAIN_SIGNALS",
    "PLAN_ROWS",
    "CauseText",
    "IncidentText",
    "RemedyText",
    "capital",
    "confidence_word",
    "ending_lines",
    "final_loss",
    "header_sentence",
    "info_sentence",
    "last_benchmark",
    "not_judged",
    "read_time",
    "tell",
    "verdict_line",
    "verdict_word",
]

PLAN_ROWS = (("do", "mid-run"), ("consider", "unsure"), ("next run", "from scratch"))
"""The label of remedies, by when they can be applied."""

MINOR = 0.05
"""Causes with less confidence than this are named in one line after the others. Ours."""

MAX_CAUSES = 4
"""Causes shown with their evidence; the others are named in that line, too. Ours."""

MAIN_SIGNALS = ("loss", "grad_norm", "activation_norm", "loss_scale")


@dataclass(frozen=True, kw_only=True)
class CauseText:
    """One cause in words."""

    rank: int
    title: str
    confidence: str
    evidence: tuple[str, ...]
    against: tuple[str, ...]
    test: str
    level: str = ""
    """How sure it is, as measured: low, likely or very likely; of the first cause alone."""
    minor: bool
    """Of low confidence: named without its evidence."""

    @property
    def details(self) -> str:
        """Evidence for and against in one line."""
        parts = [
            "; ".join(self.evidence),
            f"against: {'; '.join(self.against)}" if self.against else "",
        ]
        return "; ".join(p for p in parts if p)


@dataclass(frozen=True, kw_only=True)
class RemedyText:
    """One remedy in words."""

    rank: int
    text: str
    why: str
    flags: str
    cost: str
    undo: str
    when: str
    """mid-run, from scratch or unsure."""
    worked: tuple[str, ...]
    """Runs where it helped, with what happened and the source."""
    failed: tuple[str, ...]
    """Runs where it did not."""

    @property
    def history(self) -> str:
        """Runs where it helped and where it did not, by name."""
        parts = [
            f"{label} {_names(runs)}"
            for label, runs in (("worked for", self.worked), ("did not help", self.failed))
            if runs
        ]
        return " · ".join(parts)


def _names(runs: tuple[str, ...]) -> str:
    return ", ".join(dict.fromkeys(run.split(": ")[0] for run in runs))


@dataclass(frozen=True, kw_only=True)
class IncidentText:
    """One incident in words."""

    letter: str
    severity: str
    alarm: bool
    headline: str
    attempt: str
    what: str
    first: str
    together: str
    causes: tuple[CauseText, ...]
    remedies: tuple[RemedyText, ...]
    next_test: str
    next_test_flags: str
    """Command or flags that run it; may be empty."""
    same_as: str
    """Letter of an earlier listed incident with the same causes and plan; usually empty."""
    done: tuple[str, ...]
    like: str = ""
    """Letter of an earlier listed incident with the same leading cause and remedies."""
    pattern: str = ""
    """Name that the field gives to a curve of this form; usually empty."""
    given_up: bool = False
    """It began on a discarded branch."""
    resolved: bool = False
    """Resolved: its branch was discarded for one on which the remedy worked."""
    dismissed: str = ""
    """The reason a person gave for dismissing it; empty: it is not dismissed."""

    @property
    def settled(self) -> str:
        """`dismissed` or `dealt with`; empty for an alarm that is open."""
        return "dismissed" if self.dismissed else "dealt with" if self.resolved else ""


def capital(text: str) -> str:
    """Return a sentence with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def confidence_word(confidence: float) -> str:
    """Return a confidence as its measured level, with the share of such alarms that was right."""
    level = level_of(confidence)
    word = "low confidence" if level.name == "low" else level.name
    return f"{word} ({level.hit_rate:.0%})"


def _place(incident: Incident) -> tuple[int, int]:
    return (incident.onset_row, incident.peak_row)


def header_sentence(account: RunAccount) -> str:
    """Return format, attempts, range and signals in one line."""
    record = account.record
    parts = [plain(record.format)]
    trials = sum(a.trial for a in record.attempts)
    attempts = len(record.attempts) - trials
    runs = sum(a.parent is None for a in record.attempts)
    if runs > 1:
        parts.append(f"{runs} runs in this file")
    parts.append(
        f"{attempts} attempt{'s' * (attempts != 1)}"
        + (f" and {trials} trial{'s' * (trials != 1)}" if trials else "")
    )
    if record.num_rows:
        first, last = float(np.min(record.step)), float(np.max(record.step))
        parts.append(f"{axis_word(record)}s {number(first)}\u2013{number(last)}")
    count = len(record.columns)
    parts.append(f"{count} signal{'s' * (count != 1)}")
    return " · ".join(parts)


def read_time(seconds: float) -> str:
    """Return how long the reading took, in words."""
    return (
        f"read in {seconds:.1f} s"
        if seconds >= 0.1
        else f"read in {max(1, round(1000 * seconds))} ms"
    )


def final_loss(record: RunRecord) -> tuple[float, float] | None:
    """Return (step, loss) of the last train loss on the final lineage, NaN included."""
    column = record.columns.get("loss")
    rows = record.lineage_rows()
    if column is None:
        return None
    rows = rows[column.present[rows]]
    return (float(record.step[rows[-1]]), float(column.values[rows[-1]])) if len(rows) else None


def last_benchmark(record: RunRecord) -> str:
    """Return the last value of a benchmark or another score on held-out data; empty: none."""
    column = record.columns.get("eval_score")
    rows = record.lineage_rows()
    rows = rows[column.present[rows]] if column is not None else rows[:0]
    if column is None or not len(rows):
        return ""
    value, step = float(column.values[rows[-1]]), float(record.step[rows[-1]])
    key = record.keys.get("eval_score", "eval_score")
    return f"{key} {number(value)} at {axis_word(record)} {number(step)}"


def verdict_word(account: RunAccount) -> str:
    """Return the verdict of a run without an open alarm, as a report calls it."""
    judgement, record = account.judgement, account.record
    if judgement.verdict != "not-judged":
        return judgement.verdict.replace("-", " ")
    if not record.num_rows:
        return "nothing to judge"
    if not record.num_loss_rows:
        return "no loss is logged"
    if record.num_loss_rows < FEWEST_ROWS:
        return "too short to judge"
    missed = account.coverage is not None and not account.coverage.whole
    return "not all of it was judged" if missed else "not judged"


def verdict_line(account: RunAccount) -> str:
    """Return the verdict with what it rests on, in one line: the status of a run."""
    judgement = account.judgement
    word = judgement.verdict.replace("-", " ")
    return plain(" · ".join(p for p in (word, judgement.why, judgement.power) if p))


_WHO = {
    "transient": "nobody, a restart is enough",
    "node": "the operator of the cluster",
    "code": "the author of the code",
    "config": "the author of the config",
    "data": "the owner of the data",
    "numeric": "the person who trains",
    "unknown": "not known",
}
"""Who must act, by the word of the crash table."""


def ending_lines(ending: Ending) -> tuple[str, ...]:
    """Return how a run ended badly: what ended it, and where; who must act, and how; the line."""
    where = [f"rank {ending.rank}"] * (ending.rank is not None)
    where += [f"host {plain(ending.host)}"] * bool(ending.host)
    first = " · ".join(p for p in (plain(ending.why), ", ".join(where)) if p)
    who = _WHO.get(ending.who_must_act, plain(ending.who_must_act))
    act = f"to act: {who}" if who else ""
    act = " · ".join(part for part in (act, plain(ending.do)) if part)
    return tuple(part for part in (first, act, plain(ending.line)) if part)


def not_judged(account: RunAccount) -> str:
    """Return what of a guarded run was not judged, in a clause; empty where all of it was."""
    return "" if account.coverage is None else account.coverage.text()


def info_sentence(account: RunAccount) -> str:
    """Return the incidents that need no action, counted by kind, in one line; empty if none."""
    by_kind: dict[str, list[Incident]] = {}
    for ia in account.incidents:
        if ia.incident.severity == "info":
            by_kind.setdefault(ia.incident.kind, []).append(ia.incident)
    parts = []
    for kind, incidents in by_kind.items():
        steps = ", ".join(_where(i) for i in sorted(incidents, key=_place)[:3])
        more = ", …" if len(incidents) > 3 else ""
        name = plain(kind).replace("-", " ")
        # A number that nobody knows is told by its name.
        unknown = {i.signals[0] for i in incidents if i.signals[0].startswith(OTHER)}
        of = f": {', '.join(sorted(map(signal_label, unknown))[:3])}" if unknown else ""
        parts.append(
            f"{len(incidents)} {name}{'' if len(incidents) == 1 or name.endswith('s') else 's'}"
            f"{of} ({axis_word(account.record)} {steps}{more})"
        )
    return " · ".join(parts)


def _where(incident: Incident) -> str:
    """Return where a note is; a stretch that is over from when to when."""
    if incident.kind != "plateau" or incident.end is None:
        return number(incident.onset)
    return f"{number(incident.onset)} to {number(incident.end)}"


_GIVEN_UP = "its steps were discarded by a rollback that worked"


def tell(account: RunAccount) -> tuple[IncidentText, ...]:
    """Return every incident in words, in the order of their letters."""
    done, past, named = done_after(account), resolved(account), letters(account)
    tellings: list[IncidentText] = []
    explained: dict[tuple[object, object], str] = {}
    alike: dict[tuple[object, ...], str] = {}
    for i in listed_order(account):
        letter, ia = named[i], account.incidents[i]
        remedies = _remedies(ia.plan, axis_word(account.record))
        known = explained.setdefault((ia.diagnosis, done.get(i) if i in past else remedies), letter)
        like = alike.setdefault(_gist(ia), letter)
        telling = IncidentText(
            like=like if like != letter and ia.diagnosis.causes else "",
            letter=letter,
            severity=ia.incident.severity,
            alarm=ia.incident.severity != "info",
            headline=_headline(ia.incident, account.record),
            attempt=plain(ia.incident.attempt),
            what=_what(ia.incident),
            first=_first(ia.incident, account.record),
            together=_together(ia.incident),
            causes=_causes(ia),
            remedies=remedies,
            next_test=plain(ia.diagnosis.next_test or ia.plan.next_test),
            next_test_flags=plain(ia.plan.next_test_flags),
            same_as=known if known != letter and ia.diagnosis.causes else "",
            done=done.get(i) or ((_GIVEN_UP,) if i in past else ()),
            pattern=_pattern(account.record, ia.incident),
            given_up=left_behind(account.record, ia.incident),
            resolved=i in past,
            dismissed=plain(ia.dismissed),
        )
        tellings.append(telling)
    return tuple(tellings)


def _gist(ia: IncidentAccount) -> tuple[object, ...]:
    """Return what makes two incidents alike.

    The leading cause and what to do, whatever its numbers.
    """
    lead = ia.diagnosis.causes[0].cause if ia.diagnosis.causes else ""
    return lead, frozenset((r.remedy, r.when) for r in ia.plan.remedies if r.when == "mid-run")


def _pattern(record: RunRecord, incident: Incident) -> str:
    if incident.attempt not in {a.number for a in record.attempts}:
        return ""
    name = name_pattern(record, incident)
    return "" if name == "none of these" else name


def _headline(incident: Incident, record: RunRecord) -> str:
    parts = [reworded(incident.headline)]
    if len(record.attempts) > 1:
        gone = " (given up)" if left_behind(record, incident) else ""
        parts.append(f"attempt {plain(incident.attempt)}{gone}")
    if incident.severity != "info":
        parts.append(confidence_word(incident.confidence))
    return " · ".join(parts)


def _what(incident: Incident) -> str:
    kinds = (incident.kind, *incident.also)
    later = [f for f in incident.findings if f.kind in kinds and f.onset_row >= incident.onset_row]
    texts = [f.text for f in once(later or incident.findings, plain(incident.headline))]
    told = dict.fromkeys(reworded(t) for t in texts[:6])
    return " · ".join([t for t in told if t not in plain(incident.headline)][:4])


def _first(incident: Incident, record: RunRecord) -> str:
    if incident.precursor is None or incident.precursor_row is None:
        return ""
    ahead = incident.onset - incident.precursor
    when = f"{axis_word(record)} {number(incident.precursor)}"
    if ahead > 0:
        when += f", {number(ahead)} before the onset"
    early = [f for f in incident.findings if f.onset_row == incident.precursor_row]
    text = " · ".join(dict.fromkeys(reworded(f.text) for f in early[:2]))
    return f"{when}: {text}" if text else when


def _together(incident: Incident) -> str:
    return " · ".join(
        f"{signal_label(a)} and {signal_label(b)} \u03c1 {rho:.2f}".replace("-", "\u2212")
        for a, b, rho in incident.correlations
    )


def _causes(ia: IncidentAccount) -> tuple[CauseText, ...]:
    return tuple(
        CauseText(
            rank=rank,
            title=plain(c.title or c.cause),
            confidence=f"{c.confidence:.2f}" if math.isfinite(c.confidence) else "—",
            evidence=tuple(reworded(e) for e in c.evidence),
            against=tuple(reworded(e) for e in c.against),
            test=plain(c.test),
            level=_level_word(c.confidence) if rank == 1 and c.cause != UNKNOWN else "",
            minor=rank > MAX_CAUSES or (rank > 1 and c.confidence < MINOR),
        )
        for rank, c in enumerate(ia.diagnosis.causes, start=1)
    )


def _remedies(plan: Plan, axis: str) -> tuple[RemedyText, ...]:
    return tuple(
        RemedyText(
            rank=rank,
            text=_remedy_text(r, axis),
            why=plain(r.why),
            flags=plain(r.flags),
            cost=plain(r.cost),
            undo=plain(r.undo),
            when=r.when,
            worked=tuple(plain(w) for w in r.worked),
            failed=tuple(plain(f) for f in r.failed),
        )
        for rank, r in enumerate(plan.remedies, start=1)
    )


def _level_word(share: float) -> str:
    # The highest level begins at a share of .65, beside which "sure" reads as too much.
    level = cause_level(share).name
    return "very likely" if level == "sure" else level


_LABELS = {"evidence: delays only?": "may only put the trouble off: runs disagree on its use"}
"""Labels of remedies that say little by themselves, in words."""


def _remedy_text(remedy: PlannedRemedy, axis: str) -> str:
    known = REMEDY_BY_ID.get(remedy.remedy)
    text = known.title if known is not None else plain(remedy.remedy).replace("-", " ")
    said = {k: v for k, v in remedy.values.items() if not (isinstance(v, str) and v in text)}
    if axis != "step":  # the values are positions on the axis, whatever their names
        said = {re.sub(r"_step$", f"_{axis}", k): v for k, v in said.items()}
    values = re.sub(r"\bstep\b", axis, values_text(said))
    text = f"{text}: {values}" if values else text
    labels = [_LABELS.get(label, label) for label in remedy.labels]
    return f"{text} [{'; '.join(labels)}]" if labels else text
