"""The numbers of a run that has no guard: judged as `watch` judges them, answered by restart.

A restart costs minutes of every device, so waiting comes first: an incident is answered when it
lasts. What is answered, and by what change, is `answer_numbers`, a function of what was judged.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.analysis.self_test import SelfTester
from trimtab.analysis.source import account_or_fault
from trimtab.errors import TrimtabError
from trimtab.kinds import severity_rank
from trimtab.monitor.follower import Watcher
from trimtab.plan.policy import Policy
from trimtab.readers import read_newest
from trimtab.supervise.resume import LaunchFlags, rate_of

__all__ = ["Judged", "NumberJudge", "NumericAnswer", "answer_numbers"]

_WARNING_PATIENCE = 5
"""A warning is waited for so many times longer than a critical incident. Ours: BLOOM's 2022 spike
healed by itself in about 30 steps."""
_BROKEN = ("non-finite", "silent-nan", "scale-collapse")
"""Kinds that no later step heals."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one look found."""

    account: RunAccount
    fresh: tuple[IncidentAccount, ...]
    """Alarms that were not told before."""


@dataclass(frozen=True, kw_only=True)
class NumericAnswer:
    """What to do about the numbers."""

    told: IncidentAccount
    before: float
    """Step of the first sign: a checkpoint to go back to lies before it."""
    rate_factor: float | None
    """What the rate is multiplied with; None: it stays."""
    why: str


def answer_numbers(
    account: RunAccount,
    policy: Policy,
    *,
    num_before: int,
    argv: Sequence[str],
    framework: LaunchFlags | None,
) -> NumericAnswer | None:
    """Return the answer to the worst incident of the newest attempt; None: wait.

    Args:
        account: The log as judged now, without hindsight.
        policy: With the patience and the factors of the rate.
        num_before: Numeric restarts so far: each goes one factor further down.
        argv: The command; where it names no rate, none is changed.
        framework: Whose flags it takes.
    """
    record = account.record
    if not record.num_rows:
        return None
    newest = record.attempts[int(record.attempt[-1])].number
    for told in account.incidents:
        incident = told.incident
        if incident.attempt != newest or incident.end_row is not None or not told.is_open_alarm:
            continue
        lasted = record.num_rows - 1 - incident.onset_row
        patience = 1 if incident.kind in _BROKEN else policy.patience_steps
        if incident.severity != "critical" and incident.kind not in _BROKEN:
            patience *= _WARNING_PATIENCE
        if lasted < patience:
            continue
        first = incident.onset if incident.precursor is None else incident.precursor
        factors = policy.lr_factors
        factor = factors[min(num_before, len(factors) - 1)]
        can_cut = rate_of(argv, framework) is not None
        return NumericAnswer(
            told=told,
            before=min(first, incident.onset),
            rate_factor=factor if can_cut else None,
            why=f"{incident.headline} · lasts for {lasted} rows",
        )
    return None


class NumberJudge(threading.Thread):
    """Judges a growing log at intervals, away from the thread that hands output on."""

    def __init__(self, path: Path, every_s: float, tell: Callable[[Judged], None]) -> None:
        """Keep what to judge, how often, and whom to tell; a fault of the judge ends nothing."""
        super().__init__(daemon=True)
        self._every_s, self._tell = every_s, tell
        self._stop_asked = threading.Event()
        self._one_at_a_time = threading.Lock()
        self.trouble = ""
        tester = SelfTester(hindsight=False)
        self._watcher = Watcher(
            path,
            lambda: read_newest(path),
            lambda record: account_or_fault(record, str(path), hindsight=False, tester=tester),
            hang_factor=0.0,
        )

    def stop(self) -> None:
        """End it before its next look."""
        self._stop_asked.set()

    def last_words(self) -> RunAccount | None:
        """Judge what the command printed to its end, and tell; None where that cannot be judged."""
        return self._look()

    def run(self) -> None:
        """Look again and again."""
        wait = self._every_s
        while not self._stop_asked.wait(wait):
            began = time.monotonic()
            self._look()
            # Reading a long log takes its time: at most a tenth of it goes into reading.
            wait = max(self._every_s, 9 * (time.monotonic() - began))

    def _look(self) -> RunAccount | None:
        with self._one_at_a_time:
            try:
                notices = self._watcher.poll(time.time())
            except (TrimtabError, OSError) as error:
                self.trouble = str(error)
                return None
            account = self._watcher.account
            if account is not None and self._watcher.changed:
                least = severity_rank("warning")
                found = [n.told for n in notices if n.told is not None and n.event == "found"]
                fresh = tuple(t for t in found if severity_rank(t.severity) >= least)
                self._tell(Judged(account=account, fresh=fresh))
            return account
