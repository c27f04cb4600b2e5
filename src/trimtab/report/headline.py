"""The top of a report: the state of the run, what to do, and a count of the rest."""

from collections import Counter

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.resolution import left_behind, resolved
from trimtab.record import RunRecord, axis_word
from trimtab.report.wording import (
    capital,
    confidence_word,
    ending_lines,
    final_loss,
    not_judged,
    tell,
    verdict_word,
)
from trimtab.text import number, plain, reworded

__all__ = ["any_alarm", "context_sentence", "first_action", "standing", "state_sentence"]


def any_alarm(account: RunAccount) -> bool:
    """Tell whether there is an alarm on any branch that is not dismissed."""
    return bool(_alarms(account))


def standing(account: RunAccount) -> str:
    """Return the worst severity on the final lineage; `good` or `unknown` without an alarm.

    `unknown`: the run is not judged. A run that ended badly is `critical`.
    """
    here = {ia.incident.severity for ia in _here(account)}
    if account.ending is not None:
        return "critical"
    quiet = "unknown" if account.judgement.verdict == "not-judged" else "good"
    return next((s for s in ("critical", "warning") if s in here), quiet)


def state_sentence(account: RunAccount) -> str:
    """Return what is the matter, since when and how sure; of a quiet run, where it stands."""
    missed = not_judged(account)
    ended = "" if account.ending is None else f"{capital(ending_lines(account.ending)[0])}. "
    return ended + _state(account) + (f" Not all of it was judged: {missed}." if missed else "")


def _state(account: RunAccount) -> str:
    record = account.record
    if not record.num_rows:
        return "Nothing to judge: the log holds no rows."
    here = _here(account)
    if here:
        incident = here[0].incident
        what, *rest = reworded(incident.headline).split(" · ")
        parts = [capital(what), *rest[:1]]
        if len(record.attempts) > 1:
            parts.append(f"attempt {plain(incident.attempt)}")
        return " · ".join([*parts, confidence_word(incident.confidence)])
    where = _where(record)
    judgement = account.judgement
    if not record.num_loss_rows:
        return f"{where} No incident in the other signals that needs action."
    if judgement.verdict == "not-judged" and not not_judged(account):
        return f"{where} {capital(verdict_word(account))}: {plain(judgement.why)}."
    on = " on the final lineage" if _gone(account) else ""
    return f"{where} No incident that needs action{on}."


def context_sentence(account: RunAccount) -> str:
    """Return the likely cause, what else there is, and where the run stands; may be empty."""
    here, gone, parts = _here(account), _gone(account), []
    if here:
        parts += [_cause(here[0]), _counted(here[1:])]
    if gone:
        many = (
            f"{_numbers(gone)} on branches that were given up, the worst at"
            f" {number(gone[0].incident.onset)}"
        )
        parts.append(f"{many}.")
        parts += [] if here else [_cause(gone[0])]
    if here:
        parts.append(_where(account.record))
    elif account.judgement.verdict == "healthy":
        parts.append(f"Healthy: {account.judgement.power}.")
    return " ".join(p for p in parts if p)


def first_action(account: RunAccount) -> tuple[str, str]:
    """Return (what to do now about the worst incident, the flags for it).

    Empty where nothing is.
    """
    worst = next((t for t in tell(account) if t.alarm and not t.settled and not t.given_up), None)
    if worst is None or worst.done:
        return "", ""
    now = [r for r in worst.remedies if r.when == "mid-run"][:2]
    return "; then ".join(r.text for r in now), " ".join(r.flags for r in now if r.flags)


def _here(account: RunAccount) -> list[IncidentAccount]:
    """Return the alarms on the final lineage that are not dealt with, the worst first."""
    past = resolved(account)
    dealt = [ia for i, ia in enumerate(account.incidents) if i in past]
    alarms = [ia for ia in _alarms(account) if not any(ia is d for d in dealt)]
    return [ia for ia in alarms if not left_behind(account.record, ia.incident)]


def _gone(account: RunAccount) -> list[IncidentAccount]:
    return [ia for ia in _alarms(account) if left_behind(account.record, ia.incident)]


def _alarms(account: RunAccount) -> list[IncidentAccount]:
    return [ia for ia in account.incidents if ia.incident.severity != "info" and not ia.dismissed]


def _where(record: RunRecord) -> str:
    last = final_loss(record)
    if last is None:
        return "No train loss is recorded."
    attempt = f", attempt {plain(record.attempts[-1].number)}" if len(record.attempts) > 1 else ""
    return f"Loss {number(last[1])} at {axis_word(record)} {number(last[0])}{attempt}."


def _cause(ia: IncidentAccount) -> str:
    causes = ia.diagnosis.causes
    if not causes:
        return ""
    return (
        f"Most likely cause: {plain(causes[0].title or causes[0].cause)}"
        f" ({causes[0].confidence:.2f})."
    )


def _counted(others: list[IncidentAccount]) -> str:
    return f"Beside it {_numbers(others)}." if others else ""


def _numbers(alarms: list[IncidentAccount]) -> str:
    count = Counter(ia.incident.severity for ia in alarms)
    parts = []
    if count["critical"]:
        parts.append(f"{count['critical']} critical incident{'s' if count['critical'] > 1 else ''}")
    if count["warning"]:
        parts.append(f"{count['warning']} warning{'s' if count['warning'] > 1 else ''}")
    return " and ".join(parts)
