"""Excerpts of 3 to 29 rows: noise is no trouble, and quoted trouble is told."""

import numpy as np
import pytest

from trimtab.detectors.excerpt import excerpt_findings
from trimtab.detectors.few_rows import few_rows_findings
from trimtab.testing.curves import record_of

# Losses of single batches, as logged: LightningDOT, Time-MoE and LLaVA issue threads.
NOISE = {
    "batches": [0.528, 0.727, 0.571, 0.393, 0.675, 0.499, 0.594, 0.638, 0.852, 0.860, 0.552],
    "series": [0.1474, 0.1549, 0.1864, 0.1819, 0.156, 0.157, 0.1471, 0.1563, 0.173],
    "five": [0.564, 0.417, 0.647, 0.660, 0.380],
}


def _told(losses: list[float], **more: list[float]) -> list[tuple[str, str]]:
    columns = {"loss": np.array(losses)} | {k: np.array(v) for k, v in more.items()}
    record = record_of(np.arange(float(len(losses))), columns)
    return [(f.kind, f.severity) for f in excerpt_findings(record) if f.signal == "loss"]


@pytest.mark.parametrize("losses", NOISE.values(), ids=NOISE)
def test_the_noise_of_single_batches_is_no_spike(losses: list[float]) -> None:
    assert _told(losses) == []


@pytest.mark.parametrize("n", [3, 5, 8, 13, 20, 29])
def test_noise_of_any_length_is_mostly_left_alone(n: int) -> None:
    rng = np.random.default_rng(n)
    noisy = [np.exp(0.25 * rng.standard_t(4, n)).tolist() for _ in range(200)]
    assert sum(bool(_told(losses)) for losses in noisy) <= 0.12 * len(noisy)
    assert sum(("unrecovered-spike", "critical") in _told(x) for x in noisy) <= 0.03 * len(noisy)


def test_a_rise_far_beyond_the_noise_is_told_with_whether_it_came_back() -> None:
    assert _told([2.21, 2.19, 2.2, 7.8, 7.5, 7.4]) == [("unrecovered-spike", "critical")]
    back = [2.776, 2.773, 2.768, 7.344, 8.716, 7.654, 7.192, 6.849, 2.723, 2.636]  # tr1-13B
    assert _told(back) == [("spike", "warning")]


def test_a_lone_row_that_is_back_at_once_is_a_note() -> None:
    assert _told([0.71, 0.70, 0.72, 0.71, 9.4, 0.70, 0.69]) == [("spike", "info")]


def test_a_logged_batch_size_tells_the_noise_of_a_mean() -> None:
    # BigScience tr8-104B: three quoted rows, one of them 200 steps later.
    losses = [6.445, 11.42, 7.155]
    assert _told(losses) == []
    assert _told(losses, batch_size=[96.0] * 3) == [("unrecovered-spike", "critical")]


def test_short_logs_tell_a_gradient_norm_that_climbs() -> None:
    norm = [0.24, 0.27, 1.36, 1.28, 17.2, 7.1, 21.8, 23.0, 3.8, 14.4]
    loss = [1.36, 0.48, 0.58, 0.70, 0.66, 1.04, 0.66, 0.68, 0.86, 0.82]

    def kinds(loss: list[float]) -> set[str]:
        columns = {"loss": np.array(loss), "grad_norm": np.array(norm)}
        return {f.kind for f in few_rows_findings(record_of(np.arange(10.0), columns))}

    assert kinds(loss) == {"grad-explosion"}
    assert kinds([3.0 - 0.2 * k for k in range(10)]) == set()  # it learns meanwhile


def test_one_answer_to_everything_is_told() -> None:
    loss = np.array([2.02, 1.83, 1.80, 1.79, 1.78, 1.77, 1.76, 1.76])

    def kinds(score: list[float]) -> set[str]:
        columns = {"loss": loss, "eval_score": np.array(score)}
        return {f.kind for f in few_rows_findings(record_of(np.arange(8.0), columns))}

    assert kinds([0.2] * 8) == {"never-learns"}
    assert kinds([20.0] * 8) == {"never-learns"}  # percent
    assert kinds([0.2] * 7 + [0.21]) == set()
    assert kinds([0.83] * 8) == set()  # no share of one class


def test_a_last_validation_far_above_all_before_is_told() -> None:
    val = np.array([0.41, 0.33, 0.27, 0.22, 0.19, 0.17, 0.15, 0.14, 2.81])
    columns = {"loss": np.linspace(0.5, 0.2, 9), "val_loss": val}
    found = few_rows_findings(record_of(np.arange(9.0), columns))
    assert [(f.detector, f.onset_row) for f in found] == [("few-rows-last", 8)]
