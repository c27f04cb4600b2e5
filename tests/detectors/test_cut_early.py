"""A rate that is cut to next to nothing while the loss still falls."""

import numpy as np
import pytest

from trimtab import analyze

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
