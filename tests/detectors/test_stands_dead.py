"""Models, and heads, that give one answer to everything."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab import analyze
from trimtab.detectors.stands_dead import dead_findings
from trimtab.testing.curves import record_of

Floats = NDArray[np.float64]

N = 120
T = np.arange(N)
NOISE = 0.01 * np.random.default_rng(0).standard_normal(N)
LEARNED = 2.0 - 0.6 * (1 - np.exp(-T / 15)) + NOISE


def _told(loss: Floats, **more: Floats) -> list[str]:
    found = dead_findings(record_of(T.astype(float), {"loss": loss, **more}))
    return [f.detector for f in found]


def test_a_loss_that_stands_flat_above_its_lowest_is_of_a_dead_model() -> None:
    loss = np.where(T < 50, LEARNED, 1.9 + 1e-5 * NOISE)
    loss[50] = 6.0
    assert _told(loss) == ["flat-above"]
    found = analyze({"step": T, "loss": loss})
    alarms = [i for i in found.incidents if i.severity != "info"]
    assert alarms[0].causes[0].cause == "uniform-output"


@pytest.mark.parametrize(
    "loss",
    [
        LEARNED,
        np.where(T < 50, LEARNED, LEARNED[49] - 0.02),  # it came to rest at its lowest
        np.where(T < 50, LEARNED, 1.9 + NOISE),  # higher, and it goes on to learn
        np.round(np.where(T < 50, 2 - T / 500, 1.95), 1),  # few digits
        np.where(T < 50, LEARNED, 1.9) - 3.0,
        np.where(T < 110, LEARNED, 1.9),  # not yet for long
    ],
    ids=["learns", "at-its-lowest", "scatters", "few-digits", "negative", "short"],
)
def test_what_rests_scatters_or_has_few_digits_is_alive(loss: Floats) -> None:
    assert not _told(loss)


def test_a_part_at_the_logarithm_of_its_classes_is_told_with_its_cause() -> None:
    part = np.full(N, math.log(2))
    assert _told(LEARNED + part, **{"loss/classes": part}) == ["part-at-chance"]
    assert not _told(LEARNED, **{"loss/classes": np.full(N, 0.7)})
    assert not _told(LEARNED, **{"loss/classes": part + NOISE})
    columns = {"Loss": LEARNED + part, "Classification Loss": part, "Regression Loss": LEARNED}
    found = analyze({"step": T, **columns})
    (incident,) = (i for i in found.incidents if "ln 2" in i.headline)
    assert incident.causes[0].cause == "part-not-trained"


def test_rates_that_ended_full_batches_and_padded_tables_are_alive() -> None:
    loss = np.where(T < 50, LEARNED, 1.9 + 1e-5 * NOISE)
    assert _told(loss, lr=np.full(N, 1e-3)) == ["flat-above"]
    assert not _told(loss, lr=np.where(T < 50, 1e-3, 1e-9))
    assert not _told(loss, kl_weight=np.where(T < 50, 0.1, 1.0))
    assert not _told(np.where(T < 50, LEARNED - NOISE, 1.9 + 1e-5 * NOISE))
    padded = np.where(T < 50, LEARNED, 1.9)
    assert not _told(padded, val_loss=padded + 0.1)
