"""Signs judged over stretches of rows are those judged row by row."""

import numpy as np
import pytest

from trimtab.detectors.contract import Finding, Rows
from trimtab.detectors.domain import DomainDetector
from trimtab.detectors.domain_signs import DOMAIN_DETECTORS


@pytest.mark.parametrize("length", [1, 7, 100, 4096])
@pytest.mark.parametrize("detector", DOMAIN_DETECTORS, ids=lambda d: d.name)
def test_a_stretch_gives_the_same_state_and_findings(detector: DomainDetector, length: int) -> None:
    rng = np.random.default_rng(3)
    num, signals = 1500, len(detector.signals)
    values = 1 + 0.1 * rng.normal(size=(num, signals))
    values[900:] = values[900:] * np.where(np.arange(signals) % 2, 4.0, 0.1)
    values[rng.random(size=values.shape) < np.linspace(0, 0.95, signals)] = np.nan
    index = np.arange(num)
    rows = Rows(index, np.arange(num, dtype=np.float64), values, np.isfinite(values))
    one = many = detector.start()
    by_row, by_stretch = list[Finding](), list[Finding]()
    for k in range(num):
        one, found = detector.update(one, rows.row(k))
        by_row += found
    for first in range(0, num, length):
        many, found = detector.update_rows(many, rows.part(first, min(num, first + length)))
        by_stretch += found
    assert many == one
    assert by_stretch == by_row


def test_preferences_that_are_learned_after_all_were_no_trouble() -> None:
    (detector,) = (d for d in DOMAIN_DETECTORS if "preference_accuracy" in d.signals)
    rng = np.random.default_rng(4)
    accuracy = np.where(np.arange(600) < 250, 0.5, 0.68) + rng.normal(size=600) * 0.03
    found = _told(detector, accuracy[:250])
    assert {(f.detector, f.severity) for f in found} == {("sign-preference-stuck", "warning")}
    last = _told(detector, accuracy)[-1]
    assert (last.severity, last.end_row is None) == ("info", False)


def _told(detector: DomainDetector, accuracy: np.ndarray) -> list[Finding]:
    place = detector.signals.index("preference_accuracy")
    values = np.full((len(accuracy), len(detector.signals)), np.nan)
    values[:, place] = accuracy
    index = np.arange(len(accuracy))
    rows = Rows(index, index.astype(np.float64), values, np.isfinite(values))
    return list(detector.update_rows(detector.start(), rows)[1])
