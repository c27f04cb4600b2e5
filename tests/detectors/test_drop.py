"""Sudden drops: too good, explained by the learning rate, or understood."""

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.detectors.contract import Finding
from trimtab.detectors.drop import DropDetector
from trimtab.testing.contract import find_all
from trimtab.testing.curves import NoiseKind, lm_curve, make_noise

AT = 2000
Floats = NDArray[np.float64]


def loss_with(drop: float, seed: int, kind: NoiseKind = "gaussian") -> Floats:
    loss = lm_curve(4000) + 0.02 * make_noise(4000, kind, np.random.default_rng(seed))
    loss[AT:] *= 1 - drop
    return loss


def told(loss: Floats, **columns: Floats) -> list[Finding]:
    return list(find_all(DropDetector(), {"loss": loss, **columns}, nan_is_missing=True))


@pytest.mark.covers("S56")
@pytest.mark.parametrize("seed", range(100, 105))
@pytest.mark.parametrize("kind", ["gaussian", "ar1", "t3"])
def test_a_loss_far_below_its_trend_is_too_good(seed: int, kind: NoiseKind) -> None:
    found = told(loss_with(0.3, seed, kind))
    assert {(f.kind, f.severity) for f in found} == {("too-good", "warning")}
    assert AT <= found[0].row < AT + 24
    assert abs(found[0].onset_row - AT) <= 8
    assert found[-1].closed
    assert found[-1].end_row is None
    assert not told(loss_with(0.0, seed, kind))


def test_a_step_of_the_learning_rate_explains_a_drop() -> None:
    lr = np.where(np.arange(4000) < AT - 5, 1e-3, 1e-4)
    found = told(loss_with(0.3, 100), lr=lr)
    assert {(f.kind, f.severity) for f in found} == {("too-good", "info")}
    assert "learning rate" in found[-1].text


@pytest.mark.parametrize(
    ("val_drop", "kind", "severity"), [(0.3, "grokking", "info"), (0.0, "too-good", "warning")]
)
def test_the_next_validation_tells_understanding_from_a_fault(
    val_drop: float, kind: str, severity: str
) -> None:
    val = np.full(4000, np.nan)
    val[99::100] = 3.0
    val[AT:] *= 1 - val_drop
    found = told(loss_with(0.3, 100), val_loss=val)
    assert (found[0].kind, found[0].severity) == ("too-good", "warning")
    assert (found[-1].kind, found[-1].severity, found[-1].closed) == (kind, severity, True)
    assert found[-1].row == AT + 99
    assert len({f.key for f in found}) == 1


def test_a_drop_that_comes_back_is_a_note() -> None:
    loss = loss_with(0.3, 100)
    loss[AT + 40 :] /= 0.7
    found = told(loss)
    assert (found[-1].severity, found[-1].closed) == ("info", True)
    assert found[-1].end_row is not None
    assert AT + 40 <= found[-1].end_row <= AT + 56


def test_coming_down_from_a_spike_is_no_drop() -> None:
    loss = loss_with(0.0, 100)
    loss[AT - 400 : AT] *= 2
    assert not told(loss)


def test_learning_fast_is_no_drop() -> None:
    t = np.arange(4000)
    loss = 2 + 8 / (1 + np.exp((t - 1500) / 60))
    loss += 0.02 * make_noise(4000, "gaussian", np.random.default_rng(100))
    assert not told(loss)
