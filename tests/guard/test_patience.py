"""A spike on its way back is given time, unless the rate jumped just before it."""

import dataclasses

import pytest

from trimtab.detectors.contract import Finding
from trimtab.guard.recovery.grace_period import GracePeriod
from trimtab.plan.policy import Policy
from trimtab.vocabulary import Severity

pytestmark = pytest.mark.torch


def finding(
    signal: str, onset: int, *, detector: str = "spike", severity: Severity = "critical"
) -> Finding:
    return Finding(
        detector=detector,
        kind="spike",
        signal=signal,
        severity=severity,
        row=onset,
        step=onset,
        onset_row=onset,
        onset=onset,
        peak_row=onset,
        peak=onset,
        end_row=None,
        end=None,
        value=4.0,
        expected=2.0,
        score=20.0,
        closed=False,
        text="",
    )


POLICY = Policy(patience_steps=4, healing_steps=32)


def after_a_healing_spike(*, rate_raised: int | None) -> tuple[GracePeriod, Finding]:
    grace = GracePeriod()
    spike = finding("loss", 100)
    for step in range(90, 112):
        found = [spike] if step == 100 else []
        if step == rate_raised:
            found.append(finding("lr", step, detector="lr-change", severity="info"))
        loss = 2.0 if step < 100 else 2.0 + 4.0 * 0.8 ** (step - 100)
        grace, _ = grace.take_in(POLICY, loss, step, found)
    return grace, spike


@pytest.mark.parametrize(
    ("rate_raised", "waits"), [(None, True), (99, False), (100, False), (40, False), (10, True)]
)
def test_grace_period_waits_for_a_loss_that_comes_back_unless_its_cause_stays(
    rate_raised: int | None, waits: bool
) -> None:
    if rate_raised is not None and rate_raised < 90:
        grace, spike = after_a_healing_spike(rate_raised=None)
        raised = finding("lr", rate_raised, detector="lr-change", severity="info")
        grace, _ = grace.take_in(POLICY, 2.0, rate_raised, [raised])
        for step in range(100, 112):
            grace, _ = grace.take_in(POLICY, 2.0 + 4.0 * 0.8 ** (step - 100), step, ())
    else:
        grace, spike = after_a_healing_spike(rate_raised=rate_raised)
    assert grace.lasts(POLICY, spike, 112) is waits
    assert not grace.lasts(POLICY, spike, 200)
    assert not GracePeriod().lasts(POLICY, spike, 112)


def test_grace_period_journals_when_a_wait_begins_and_when_it_was_right() -> None:
    spike = finding("loss", 100)
    grace, decisions = GracePeriod().take_in(POLICY, 6.0, 100, [spike])
    assert [what for what, _ in decisions] == ["wait"]
    assert "step 104" in decisions[0][1]
    assert "136 at most" in decisions[0][1]
    healed = dataclasses.replace(spike, closed=True)
    grace, decisions = grace.take_in(POLICY, 2.0, 120, [healed])
    assert [what for what, _ in decisions] == ["train through"]
    assert "20 steps" in decisions[0][1]
    assert not grace.lasts(POLICY, spike, 121)
