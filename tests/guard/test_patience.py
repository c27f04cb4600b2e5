"""A spike on its way back is given time, unless the rate jumped just before it."""

import pytest

from trimtab.detectors.contract import Finding
from trimtab.guard.recovery.grace_period import Patience
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def finding(
    signal: str, onset: int, *, detector: str = "spike", severity: str = "critical"
) -> Finding:
    return Finding(
        detector=detector,
        kind="spike",
        signal=signal,
        severity=severity,
        row=onset,
        step=onset,  # type: ignore[arg-type]
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


def after_a_healing_spike(*, rate_raised: int | None) -> tuple[Patience, Finding]:
    patience = Patience(Policy(patience_steps=4, healing_steps=32), lambda _what, _why: None)
    spike = finding("loss", 100)
    for step in range(90, 112):
        found = [spike] if step == 100 else []
        if step == rate_raised:
            found.append(finding("lr", step, detector="lr-change", severity="info"))
        loss = 2.0 if step < 100 else 2.0 + 4.0 * 0.8 ** (step - 100)
        patience.take_in(loss, step, found)
    return patience, spike


@pytest.mark.parametrize(
    ("rate_raised", "waits"), [(None, True), (99, False), (100, False), (40, False), (10, True)]
)
def test_a_loss_that_comes_back_is_waited_for_unless_its_cause_stays(
    rate_raised: int | None, waits: bool
) -> None:
    if rate_raised is not None and rate_raised < 90:
        patience, spike = after_a_healing_spike(rate_raised=None)
        patience.take_in(
            2.0, rate_raised, [finding("lr", rate_raised, detector="lr-change", severity="info")]
        )
        for step in range(100, 112):
            patience.take_in(2.0 + 4.0 * 0.8 ** (step - 100), step, ())
    else:
        patience, spike = after_a_healing_spike(rate_raised=rate_raised)
    assert patience.lasts(spike, 112) is waits
    assert not patience.lasts(spike, 200)
    patience.forget()
    assert not patience.lasts(spike, 112)
