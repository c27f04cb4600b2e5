"""A long warm-up at the loss of a guess is a slow start."""

import numpy as np
import pytest

from trimtab.detectors.judge import judge_record
from trimtab.testing.curves import record_of

NUM, WARM_UP, HOLD = 3000, 258, 400


def _slow(hold: int) -> dict[str, np.ndarray]:
    t = np.arange(NUM)
    rng = np.random.default_rng(11)
    loss = 3.5 + 6.9 * np.exp(-np.maximum(t - hold, 0) / 150) + 0.03 * rng.normal(size=NUM)
    rate = 1.2e-4 * np.minimum((t + 1) / WARM_UP, 1.0)
    return {"loss": loss, "lr": rate, "grad_norm": 0.6 + 0.05 * rng.normal(size=NUM)}


def test_what_a_warm_up_holds_back_gets_as_long_again() -> None:
    record = record_of(np.arange(float(NUM)), _slow(HOLD))
    assert [f for f in judge_record(record) if f.kind == "never-learns"] == []


@pytest.mark.parametrize("hold", [NUM, 2000])
def test_longer_than_that_is_told(hold: int) -> None:
    record = record_of(np.arange(float(NUM)), _slow(hold))
    first = next(f for f in judge_record(record) if f.kind == "never-learns")
    assert first.severity == "warning"
    assert 2 * WARM_UP <= first.row <= 2 * WARM_UP + 64
