"""A log that grows is judged from where the last look ended, to the same findings."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors import judge as module
from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.judge import Judge, JudgedSoFar, JudgeState, judge_record
from trimtab.monitor.follower import first_rows
from trimtab.record import RecordBuilder, RunRecord
from trimtab.testing.curves import lm_curve


def grown(loss: NDArray[np.float64], *, resume: int = 0, norm_from: int = 0) -> RunRecord:
    builder = RecordBuilder("grows", "simulated")
    for i, value in enumerate(loss.tolist()):
        if resume and i == resume:
            builder.start_attempt(parent="1.0", parent_step=float(i - 20))
        step = i - 20.0 if resume and i >= resume else float(i)
        builder.add(step, {"loss": value} | ({"grad_norm": 1.0 + i % 3} if i >= norm_from else {}))
    return builder.build()


@pytest.mark.slow
def test_each_look_finds_what_judging_all_rows_finds() -> None:
    loss = lm_curve(900) + 0.02 * np.random.default_rng(100).standard_normal(900)
    loss[500:520] += 2.0
    loss[700] = np.nan
    so_far = JudgedSoFar()
    for record in (grown(loss), grown(loss, resume=640), grown(loss, norm_from=300)):
        so_far = JudgedSoFar()
        for rows in (40, 48, 300, 505, 639, 641, 800, 900, 450):
            here = first_rows(record, rows)
            assert repr(judge_record(here, so_far=so_far)) == repr(judge_record(here))
    changed = loss.copy()
    changed[100] += 3.0
    whole = judge_record(grown(changed))
    assert repr(judge_record(grown(changed), so_far=so_far)) == repr(whole)


def test_a_look_judges_the_new_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    record, so_far, taken = grown(lm_curve(600)), JudgedSoFar(), list[int]()
    take = module.Judge.update_rows

    def counted(
        self: Judge, state: JudgeState, rows: Rows
    ) -> tuple[JudgeState, tuple[Finding, ...]]:
        taken.append(len(rows))
        return take(self, state, rows)

    monkeypatch.setattr(module.Judge, "update_rows", counted)
    for rows in (500, 520, 600):
        judge_record(first_rows(record, rows), so_far=so_far)
    assert taken == [500, 20, 80]
