"""Loaders that run dry every so often, and pauses that are none of theirs."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.data_waits import data_wait_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 640
T = np.arange(N)


def _told(step: Floats, wait: Floats) -> list[str]:
    columns = {"loss": np.ones(N), "step_time_s": step, "data_time_s": wait}
    return [f.text for f in data_wait_findings(record_of(T.astype(float), columns))]


@pytest.mark.parametrize("every", [16, 40])
def test_waits_that_come_again_are_told_with_their_share(every: int) -> None:
    stall = 3.0 * (T % every == 7)
    step, wait = 0.4 + stall, 0.005 + stall
    (text,) = _told(step, wait)
    assert "rows wait for data" in text
    # The same pauses, spent on something else; a wait of every row; and one at the start.
    assert not _told(step, np.full(N, 0.005))
    assert not _told(np.full(N, 0.4), np.full(N, 0.3))
    assert not _told(np.where(T < 20, 3.4, 0.4), np.where(T < 20, 3.0, 0.005))


def test_a_few_and_what_is_no_number_are_none() -> None:
    stall = 3.0 * (T % 200 == 7)
    assert not _told(0.4 + stall, 0.005 + stall)
    assert not _told(np.full(N, np.nan), np.full(N, np.inf))
    assert not _told(np.zeros(N), np.zeros(N))


def test_workers_that_start_with_each_epoch_are_told_where_they_are_dear() -> None:
    def told(wait_s: float) -> list[str]:
        wait = wait_s * (T % 16 == 0)
        columns = {"step_time_s": 1.0 + wait, "data_time_s": 0.02 + wait, "loss": np.ones(N)}
        columns["epochs_seen"] = np.floor(T / 16)
        return [f.text for f in data_wait_findings(record_of(T.astype(float), columns))]

    assert not told(2.5)  # an eighth of the time
    (text,) = told(6.0)
    assert "workers start anew" in text
