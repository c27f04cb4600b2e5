"""Steps down of the loss: passes over the data, or milestones of the rate."""

import numpy as np
import pytest

from trimtab import analyze
from trimtab.detectors.epochs import round_findings, staircase_findings
from trimtab.testing.curves import record_of


@pytest.mark.parametrize("milestones", [False, True])
def test_staircase_is_not_told_where_the_rate_falls_at_each_step(*, milestones: bool) -> None:
    rows = 300
    stage = np.arange(rows) // 100
    loss = 2.5 - 0.5 * stage + 0.02 * np.random.default_rng(0).standard_normal(rows)
    rate = np.where(milestones, 0.1**stage, 1.0) * 0.1
    found = staircase_findings(
        record_of(np.arange(rows, dtype=np.float64), {"loss": loss, "lr": rate})
    )
    assert [f.kind for f in found] == ([] if milestones else ["memorised"])


def test_a_loss_of_two_states_is_no_staircase() -> None:
    rows = np.arange(65.0)
    loss = 0.6 * np.exp(-rows / 900) + 0.001 * np.random.default_rng(3).standard_normal(65)
    for first, last in ((19, 22), (27, 29), (34, 34), (40, 41), (44, 47), (49, 64)):
        loss[first : last + 1] -= 0.045
    assert not staircase_findings(record_of(rows, {"loss": loss}))
    stairs = 0.6 - 0.045 * (rows // 21) + 0.001 * np.random.default_rng(3).standard_normal(65)
    stairs[30:33] += 0.2  # a spike on a stair makes it no other loss
    assert [f.kind for f in staircase_findings(record_of(rows, {"loss": stairs}))] == ["memorised"]


def test_epochs_in_one_order_are_a_note_with_what_it_is() -> None:
    rng = np.random.default_rng(4)
    per, num = 16, 10
    batches = 1 + 0.15 * rng.normal(size=per)
    falls = (
        0.02 + 0.25 * np.exp(-np.arange(per * num) / 3) + 0.03 * np.exp(-np.arange(per * num) / 60)
    )
    loss = np.tile(batches, num) * falls
    epochs = 1 + np.arange(per * num) / per
    steps = np.arange(per * num, dtype=float)
    found = round_findings(record_of(steps, {"loss": loss, "epochs_seen": epochs}))
    (one,) = [f for f in found if f.kind == "repeated-data"]
    assert one.severity == "info"
    assert "each epoch in the same order: they are not shuffled" in one.text


@pytest.mark.parametrize("shuffled", [True, False])
def test_rows_in_the_order_of_their_labels_are_told(shuffled: bool) -> None:
    """Four classes, some batches of each in a row: the loss leaps at each border."""
    rng = np.random.default_rng(5)
    classes = ((1.5, 3), (3.2, 7), (3.9, 6), (2.8, 4))
    shape = np.concatenate([np.geomspace(top, top / 20, num) for top, num in classes])
    loss = np.concatenate([shape * np.exp(-e / 12) for e in range(15)])
    loss = loss * np.exp(0.08 * rng.normal(size=len(loss)))
    if shuffled:
        loss = np.concatenate([rng.permutation(loss[k : k + 20]) for k in range(0, len(loss), 20)])
    found = analyze({"step": np.arange(300.0), "loss": loss}).incidents
    told = [i.causes[0].cause for i in found if i.incident.kind == "repeated-data" and i.causes]
    assert told == ([] if shuffled else ["data-order"])


def test_the_last_digits_of_a_small_loss_are_no_stair() -> None:
    rng = np.random.default_rng(0)
    t = np.arange(300)
    loss = np.round(0.3 * np.exp(-t / 60) * (1 + 0.05 * rng.standard_normal(300)), 2)
    assert not staircase_findings(record_of(t.astype(float), {"loss": loss}))
