"""A training loss too good to be learning, and its look-alikes."""

import numpy as np
import pytest

from trimtab.detectors.memorised import memorised_findings
from trimtab.record import RecordBuilder, RunRecord


def run_of(train_end: float, validation: tuple[float, ...], *, num_rows: int = 200) -> RunRecord:
    fall = np.exp(-np.arange(num_rows) / 20)
    noise = np.exp(0.1 * np.random.default_rng(100).standard_normal(num_rows))
    builder = RecordBuilder("fine-tune", "simulated")
    every = num_rows // len(validation)
    for i in range(num_rows):
        row = {"loss": float((2.0 * fall[i] + train_end) * noise[i])}
        if i % every == every - 1:
            row["val_loss"] = validation[i // every]
        builder.add(i + 1.0, row)
    return builder.build()


def test_a_set_learnt_by_heart_is_a_lasting_warning() -> None:
    (finding,) = memorised_findings(run_of(1e-4, (0.5, 0.32, 0.35, 0.4)))
    assert (finding.kind, finding.severity, finding.end_row) == ("too-good", "warning", None)
    assert (
        finding.onset_row == 124
    )  # halfway from the lowest validation to the next; the loss crossed 0.4 / 20 before
    assert finding.onset_row <= finding.peak_row <= finding.row


def test_it_begins_where_the_training_loss_is_that_low() -> None:
    (finding,) = memorised_findings(run_of(1e-4, (0.32, 0.35, 0.36, 0.4)))
    assert 80 <= finding.onset_row <= 105  # 2 exp(-t / 20) crosses 0.4 / 20 at t = 92


@pytest.mark.parametrize(
    ("train_end", "validation"),
    [
        (0.2, (0.5, 0.32, 0.35, 0.4)),  # overfits as usual
        (1e-4, (0.5, 0.4, 0.35, 0.32)),  # still improves
        (1e-6, (2.0, 0.3, 0.001, 0.004)),  # understood: both are small
        (1e-4, (0.3, 0.4)),  # too little is known
    ],
)
def test_what_is_not(train_end: float, validation: tuple[float, ...]) -> None:
    assert memorised_findings(run_of(train_end, validation)) == ()
