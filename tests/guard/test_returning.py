"""Spikes that heal and come back are counted; single odd batches and early signs are told apart."""

import dataclasses

import pytest

from trimtab.detectors.contract import Finding
from trimtab.guard.recovery.recurrence import Returning
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


def after(*onsets: int, **policy: int) -> Returning:
    seen = Returning(Policy(**policy))  # type: ignore[arg-type]
    for onset in onsets:
        seen.take_in([spike(onset), spike(onset, closed=True)])
    return seen


def test_the_third_spike_within_the_horizon_is_one_too_many() -> None:
    assert not after(100).returns(spike(300))
    assert after(100, 200).returns(spike(300))
    assert not after(100, 200).returns(spike(300, closed=True))
    assert not after(100, 200).returns(spike(400))  # the first is 300 steps back
    assert after(100, 200, spike_horizon_steps=300).returns(spike(400))
    assert after(spikes_trained_through=0).returns(spike(300))
    assert after(100, 200).first_of(spike(300)) == 100
    assert after(100, 200).first_of(spike(400)) == 200


def test_a_single_row_counts_where_it_stands_out_as_far_as_a_spike() -> None:
    seen = after(100)
    seen.take_in([spike(150, kind="batch-outlier", value=2.9)])
    assert not seen.returns(spike(200))
    seen.take_in([spike(150, kind="batch-outlier", value=3.1)])
    assert seen.returns(spike(200))
    row = spike(180, kind="batch-outlier", value=3.1, closed=True)
    (told,) = seen.take_in([row])
    assert (told.kind, told.severity, told.closed) == ("spike", "warning", False)
    assert seen.returns(told)
    assert seen.take_in([row]) == (row,)  # told once


def test_another_branch_begins_anew_and_other_signals_do_not_count() -> None:
    seen = after(100, 200)
    other = dataclasses.replace(spike(300), signal="grad_norm")
    assert not seen.returns(other)
    seen.forget()
    assert not seen.returns(spike(300))
    seen.take_in([dataclasses.replace(spike(n), signal="grad_norm") for n in (310, 320)])
    assert not seen.returns(spike(330))


def test_a_trial_fails_by_the_loss_or_by_what_leads_it() -> None:
    assert speaks_of_trial(spike(1))
    assert speaks_of_trial(dataclasses.replace(spike(1), detector="saturation", signal="x"))
    assert not speaks_of_trial(dataclasses.replace(spike(1), signal="grad_norm"))
