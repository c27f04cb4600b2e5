"""Spikes that heal and come back are counted; single odd batches and early signs are told apart."""

import dataclasses

import pytest

from trimtab.detectors.contract import Finding
from trimtab.guard.recovery.recurrence import RecurringSpikes
from trimtab.guard.recovery.triage import speaks_of_trial
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch


def spike(onset: int, *, kind: str = "spike", closed: bool = False, value: float = 9.0) -> Finding:
    return Finding(
        detector="spike",
        kind=kind,
        signal="loss",
        severity="warning",
        row=onset,
        step=float(onset),
        onset_row=onset,
        onset=float(onset),
        peak_row=onset,
        peak=float(onset),
        end_row=None,
        end=None,
        value=value,
        expected=2.0,
        score=20.0,
        direction="up",
        closed=closed,
        text="",
    )


def after(*onsets: int, policy: Policy | None = None) -> RecurringSpikes:
    seen = RecurringSpikes()
    for onset in onsets:
        findings = [spike(onset), spike(onset, closed=True)]
        seen, _ = seen.take_in(policy or POLICY, findings)
    return seen


POLICY = Policy()


def test_recurrence_says_of_the_third_spike_within_the_horizon_that_it_is_one_too_many() -> None:
    assert not after(100).returns(POLICY, spike(300))
    assert after(110, 200).returns(POLICY, spike(300))
    assert not after(110, 200).returns(POLICY, spike(300, closed=True))
    assert not after(110, 200).returns(POLICY, spike(400))  # the first is 300 steps back
    longer = Policy(spike_horizon_steps=300)
    assert after(110, 200, policy=longer).returns(longer, spike(400))
    none = Policy(spikes_trained_through=0)
    assert after(policy=none).returns(none, spike(300))
    assert after(110, 200).first_of(POLICY, spike(300)) == 110
    assert after(110, 200).first_of(POLICY, spike(400)) == 200


def test_recurrence_counts_a_single_row_that_stands_out_as_far_as_a_spike() -> None:
    seen, _ = after(100).take_in(POLICY, [spike(150, kind="batch-outlier", value=2.9)])
    assert not seen.returns(POLICY, spike(210))
    seen, _ = seen.take_in(POLICY, [spike(150, kind="batch-outlier", value=3.1)])
    assert seen.returns(POLICY, spike(210))
    row = spike(180, kind="batch-outlier", value=3.1, closed=True)
    seen, (found,) = seen.take_in(POLICY, [row])
    assert (found.kind, found.severity, found.closed) == ("spike", "warning", False)
    assert seen.returns(POLICY, found)
    assert seen.take_in(POLICY, [row]) == (seen, (row,))  # counted once


def test_single_rows_of_a_loss_below_zero_are_no_spikes_that_return() -> None:
    row = dataclasses.replace(spike(110, kind="batch-outlier", value=5.0), expected=-12.0)
    seen, _ = RecurringSpikes().take_in(POLICY, [row])
    seen, _ = seen.take_in(POLICY, [dataclasses.replace(row, onset=200.0, onset_row=200)])
    assert seen.onsets == ()
    assert not seen.returns(POLICY, spike(300))


def test_recurrence_of_another_branch_begins_anew_and_other_signals_do_not_count() -> None:
    other = dataclasses.replace(spike(300), signal="grad_norm")
    assert not after(110, 200).returns(POLICY, other)
    assert not RecurringSpikes().returns(POLICY, spike(300))
    norms = [dataclasses.replace(spike(n), signal="grad_norm") for n in (310, 320)]
    seen, _ = RecurringSpikes().take_in(POLICY, norms)
    assert not seen.returns(POLICY, spike(330))


def test_recurrence_counts_a_row_in_which_norm_and_hidden_state_stand_out_together() -> None:
    seen = RecurringSpikes()
    for onset in (110, 200):
        for signal in ("grad_norm", "activation_norm"):
            seen, _ = seen.take_in(POLICY, [dataclasses.replace(spike(onset), signal=signal)])
    assert seen.onsets == (110, 200)
    assert seen.returns(POLICY, spike(300))


def test_spikes_whole_periods_apart_are_what_the_loop_does_in_turn() -> None:
    assert not after(26, 76).returns(POLICY, spike(101))
    assert after(26, 76).returns(POLICY, spike(102))


def test_recurrence_stays_bounded_however_many_spikes_there_are() -> None:
    seen = after(*range(0, 3000, 3))
    assert len(seen.onsets) <= max(POLICY.spike_horizon_steps, 256)
    assert seen.returns(POLICY, spike(3001))


def test_a_trial_fails_by_the_loss_or_by_what_leads_it() -> None:
    assert speaks_of_trial(spike(1))
    assert speaks_of_trial(dataclasses.replace(spike(1), detector="saturation", signal="x"))
    assert not speaks_of_trial(dataclasses.replace(spike(1), signal="grad_norm"))
