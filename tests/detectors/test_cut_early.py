"""A rate that is cut to next to nothing while the loss still falls."""

import numpy as np
import pytest

from trimtab import analyze
from trimtab.detectors.cut_early import cut_early_findings
from trimtab.testing.curves import record_of

Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def _told(loss: Floats, lr: Floats) -> list[float]:
    found = analyze({"epoch": np.arange(float(len(loss))), "loss": loss, "lr": lr})
    return [
        i.incident.onset
        for i in found.incidents
        if any("while the loss still fell" in f.text for f in i.incident.findings)
    ]


def _learned(lr: Floats, seed: int, *, tau: float) -> Floats:
    """A loss that comes down by the sum of the rates, in units of the highest."""
    noise = np.random.default_rng(seed).normal(0, 0.006, len(lr))
    return 0.3 + 2 * np.exp(-np.cumsum(lr / lr.max()) / tau) + noise


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("num_rows", "cut"), [(60, 4), (200, 20), (1000, 100)])
def test_a_cut_of_a_rate_that_still_teaches_is_told(num_rows: int, cut: int, seed: int) -> None:
    lr = np.where(np.arange(num_rows) < cut, 2e-3, 2e-6)
    (onset,) = _told(_learned(lr, seed, tau=cut), lr)
    assert onset == cut


@pytest.mark.parametrize("seed", range(4))
def test_a_cut_after_the_loss_has_settled_or_goes_on_falling_is_left_alone(seed: int) -> None:
    rows = np.arange(200)
    lr = np.where(rows < 40, 1e-3, 1e-5)
    assert not _told(_learned(lr, seed, tau=6), lr)
    tuned = np.where(rows < 20, _learned(lr, seed, tau=20), 0.9 * np.exp(-(rows - 20) / 120))
    assert not _told(tuned + np.random.default_rng(seed).normal(0, 0.01, 200), lr)
    cosine = 1e-3 * (1 + np.cos(np.pi * rows / 200)) / 2
    assert not _told(_learned(cosine, seed, tau=20), cosine)


def test_a_schedule_that_is_over_at_a_third_of_the_run_is_told() -> None:
    rng = np.random.default_rng(0)
    n = 1000
    for share, told in ((0.35, True), (0.6, False)):
        end = int(share * n)
        k = np.arange(float(n))
        rate = np.where(k < end, 5e-4 * 0.5 * (1 + np.cos(np.pi * np.minimum(k, end) / end)), 0)
        rate = np.maximum(rate, 1e-6)
        loss = 3.4 + 5 * np.exp(-np.minimum(k, end) / 80) + 0.03 * rng.normal(size=n)
        found = cut_early_findings(record_of(k, {"loss": loss, "lr": rate}))
        assert [abs(f.onset_row - end) < 20 for f in found] == [True] * told
        # where the loss goes on it is a small rate, and no end
        found = cut_early_findings(record_of(k, {"loss": 5 * np.exp(-k / 400), "lr": rate}))
        assert not found
