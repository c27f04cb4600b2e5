"""What `watch` says in hindsight of a log that grows: when it has stood, or when the log stands."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.account import IncidentAccount, RunAccount
from trimtab.detectors.offline import all_findings, settling_rows
from trimtab.detectors.record_finding import finding_at
from trimtab.diagnosis.diagnose import Diagnosis
from trimtab.errors import ReadError
from trimtab.incidents import group_findings
from trimtab.monitor.follower import Watcher, first_rows
from trimtab.plan.plan import Plan
from trimtab.record import Attempt, Column, RunRecord
from trimtab.signals import derive


def record_of(losses: NDArray[np.float64]) -> RunRecord:
    num = len(losses)
    return RunRecord(
        source="run.jsonl",
        format="test",
        axis="step",
        attempt=np.zeros(num, np.int32),
        step=np.arange(num, dtype=np.float64),
        columns={"loss": Column(losses, np.ones(num, np.bool_))},
        attempts=(Attempt(number="1.1", first_row=0, end_row=num),),
    )


def test_what_only_hindsight_says_is_told_when_it_has_stood_and_taken_back_when_it_stays_away() -> (
    None
):
    record = record_of(np.full(600, 2.0))
    alarm = seen_in_hindsight(record)

    def at(rows: int, *, seen: bool, settled: bool = False) -> list[str]:
        account = RunAccount(record=first_rows(record, rows), incidents=(alarm,) if seen else ())
        return [n.event for n in watcher.take(account, settled=settled)]

    watcher = Watcher(Path("run.jsonl"), lambda: record, lambda *_: ReadError("unused"))
    assert at(260, seen=False) == []
    assert at(300, seen=True) == at(320, seen=True) == []
    assert at(332, seen=True) == ["found"]
    assert at(340, seen=False) == at(350, seen=True) == at(360, seen=False) == []
    assert at(392, seen=False) == ["withdrawn"]
    assert at(400, seen=True) == at(410, seen=False) == at(440, seen=True) == []
    assert at(440, seen=True, settled=True) == ["found"]


def seen_in_hindsight(record: RunRecord) -> IncidentAccount:
    finding = finding_at(
        record,
        detector="hindsight",
        kind="spike",
        signal="loss",
        severity="warning",
        row=80,
        onset_row=50,
        end_row=52,
        value=3.0,
        expected=2.0,
        score=12.0,
        closed=True,
        text="loss 2 → 3 (in hindsight)",
    )
    (incident,) = group_findings(record, [replace(finding, in_hindsight=True)])
    return IncidentAccount(incident=incident, diagnosis=Diagnosis(causes=()), plan=Plan())


def test_hindsight_leaves_the_last_rows_of_a_log_that_grows_alone() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 300)
    noise[200:206] += 3.0
    record = derive(record_of(2.0 + noise))

    def bursts(rows: int, *, grows: bool) -> list[int]:
        found = all_findings(first_rows(record, rows), grows=grows)
        return [f.onset_row for f in found if f.detector == "hindsight"]

    assert bursts(220, grows=True) == []
    assert bursts(220, grows=False) == bursts(240, grows=True) == [200]
    assert [settling_rows(n) for n in (8, 96, 300, 10**6)] == [6, 12, 32, 32]


def test_few_rows_of_a_log_that_grows_ask_for_no_action_yet() -> None:
    record = record_of(np.array([2.0, 1.9, 1.8, 3.0, 3.1, 3.2, 3.1, 3.0, 3.2, 3.1, 3.0, 3.1]))
    told = {g: {f.severity for f in all_findings(record, grows=g)} for g in (True, False)}
    assert told == {True: {"warning"}, False: {"critical"}}
