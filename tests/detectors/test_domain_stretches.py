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
