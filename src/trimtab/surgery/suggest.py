"""Where a run should go back to: before the first sign of its trouble, as its own logs show it.

The logs in the run's folder are analysed as `trimtab inspect` does. Rollbacks of the same run that
did not hold are known from its records: with each of them the target lies further back.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trimtab.analysis.account import IncidentAccount
from trimtab.analysis.source import account_or_fault, read_source
from trimtab.checkpoints.layouts import CheckpointLayout
from trimtab.detectors.judge import make_judge
from trimtab.errors import ReadError, TrimtabError
from trimtab.kinds import severity_rank
from trimtab.plan.rollback import CheckpointInfo, Grade, RollbackCandidate, choose_target
from trimtab.surgery.records import RollbackRecord
from trimtab.text import number

__all__ = ["Suggestion", "suggest"]


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """What the logs say of where to go back to."""

    first_sign: float | None = None
    """First sign of the trouble, step; None: no alarm was found, or no log."""
    onset: float | None = None
    """Where the trouble showed, step."""
    kind: str = ""
    """Kind of the incident."""
    headline: str = ""
    log: str = ""
    """Where it stands."""
    candidates: tuple[RollbackCandidate, ...] = ()
    """The checkpoints, best first."""
    target: int | None = None
    notes: tuple[str, ...] = ()


def suggest(
    root: Path,
    layout: CheckpointLayout,
    records: Sequence[RollbackRecord],
    *,
    archives: Sequence[Path] = (),
) -> Suggestion:
    """Return the checkpoints of a run ranked as targets, by what its logs show.

    Args:
        root: The run.
        layout: Its checkpoints.
        records: Its rollbacks so far.
        archives: Folders with copies of older curves, which are not looked at.

    Nothing is written. Cost: that of reading and judging the logs.
    """
    notes: list[str] = []
    worst: tuple[str, IncidentAccount] | None = None
    num_logs = 0
    for log, alarm in _incidents(root, archives, notes):
        num_logs += 1
        if alarm is not None and (worst is None or _weight(alarm) > _weight(worst[1])):
            worst = log, alarm
    if worst is None:
        notes.append(
            "no alarm in the logs of the run" if num_logs else "no log in the run's folder is known"
        )
        return Suggestion(notes=tuple(notes))
    path, told = worst
    incident = told.incident
    first_sign = incident.first_step
    failed = [r for r in records if _came_back(r, incident.onset)]
    whole = [_info(c.step, c.grade, c.path) for c in layout.checkpoints if c.complete]
    choice = choose_target(
        _one_per_step(whole),
        # A try that did not hold is counted from where the trouble showed, as people do: its
        # target lay before that, or nobody would have taken it.
        incident.onset if failed else first_sign,
        len(failed),
        failed_distance=incident.onset - failed[-1].to_step if failed else None,
        resumed_at=failed[-1].to_step if failed else None,
        # it comes sooner than one of the tries before had come to
        sooner=any(incident.onset < (r.from_step or 0) for r in failed),
    )
    best = choice.target
    return Suggestion(
        first_sign=first_sign,
        onset=incident.onset,
        kind=told.kind,
        headline=told.headline,
        log=path,
        candidates=choice.candidates,
        target=None if best is None else best.step,
        notes=tuple(notes)
        + tuple(
            f"the rollback to {r.to_step} did not hold: the trouble came back at"
            f" {number(incident.onset)}"
            for r in failed
        ),
    )


def _incidents(
    root: Path, archives: Sequence[Path], notes: list[str]
) -> Iterator[tuple[str, IncidentAccount | None]]:
    """Yield the open alarms of each log, or None for a log without one."""
    judge = make_judge((), None)
    try:
        for path, found in read_source(root):
            if isinstance(found, ReadError) or any(Path(path).is_relative_to(a) for a in archives):
                continue
            account = account_or_fault(found, path, judge=judge)
            if isinstance(account, ReadError):
                notes.append(str(account))
                continue
            if account.record.axis != "step":
                continue
            alarms = [i for i in account.incidents if i.is_open_alarm]
            yield path, None
            yield from ((path, alarm) for alarm in alarms)
    except TrimtabError as error:
        notes.append(str(error))


def _weight(incident: IncidentAccount) -> tuple[int, float]:
    return severity_rank(incident.severity), incident.onset


def _came_back(record: RollbackRecord, onset: float) -> bool:
    """Whether trouble at `onset` is that which a rollback was made for, come back."""
    left = record.from_step
    if record.state != "applied" or left is None or onset < record.to_step:
        return False
    return onset <= left + (left - record.to_step)


def _info(step: int, grade: Grade | Literal[""], path: Path) -> CheckpointInfo:
    return CheckpointInfo(step=step, grade=grade or "healthy", path=str(path))


def _one_per_step(infos: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    return list({i.step: i for i in infos}.values())
