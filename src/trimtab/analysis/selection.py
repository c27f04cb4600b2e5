"""Find the incident or attempt that a command line argument names."""

from pathlib import Path

from trimtab.analysis.account import RunAccount
from trimtab.analysis.ordering import letters
from trimtab.diagnosis.experiments import step_text
from trimtab.errors import ConfigError

__all__ = ["choose_incident", "split_attempt"]


def choose_incident(account: RunAccount, text: str) -> int:
    """Return the incident that a person means, by its index in the account.

    Args:
        account: The run.
        text: Its letter, as the reports show it; or its onset; or `KIND@ONSET`.

    Raises:
        ConfigError: None or several fit.
    """
    names = letters(account)
    kind, _, at = text.strip().rpartition("@")
    found = [i for i, name in enumerate(names) if name == text.strip().upper()]
    if not found:
        found = [
            i
            for i, ia in enumerate(account.incidents)
            if step_text(ia.incident.onset) == _number(at) and kind in ("", ia.incident.kind)
        ]
    if len(found) == 1:
        return found[0]
    shown = ", ".join(
        f"{name}"
        f" ({account.incidents[i].incident.kind}@{step_text(account.incidents[i].incident.onset)})"
        for i, name in enumerate(names)
    )
    problem = "names no incident" if not found else f"names {len(found)} incidents"
    raise ConfigError(
        f"{account.record.source}: {text!r} {problem}; "
        + (f"there are {shown}" if shown else "there are none in it")
    )


def _number(text: str) -> str:
    try:
        return step_text(float(text))
    except (ValueError, OverflowError):
        return text


def split_attempt(text: str) -> tuple[str, str]:
    """Return (path, attempt) of `PATH@ATTEMPT`; the attempt is empty where none is named.

    What is there by its whole name is a path.

    Example:
        >>> split_attempt("runs/a.log@1.1"), split_attempt("runs/a@b.log")
        (('runs/a.log', '1.1'), ('runs/a@b.log', ''))
    """
    path, at, attempt = text.rpartition("@")
    named = at and path and attempt.replace(".", "").isdecimal() and not _is_there(text)
    return (path, attempt) if named else (text, "")


def _is_there(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # a name that no disk takes
        return False
