"""A loss that climbs slowly and then steeply: dated where the climb began, and called by its name."""

import numpy as np
import pytest

from trimtab.detectors.offline import all_findings
from trimtab.incidents import group_findings
from trimtab.signals import derive
from trimtab.testing.curves import record_of


@pytest.mark.parametrize("tau", [25, 40, 80])
def test_an_exponential_divergence_is_dated_before_its_steep_end(tau: int) -> None:
    draw = np.random.default_rng(tau)
    rows, begins = 400 + 3 * tau, 320
    t = np.arange(rows, dtype=np.float64)
    loss = 2.5 + 4.0 * np.exp(-t / 40) + 0.03 * draw.standard_normal(rows)
    climb = 0.06 * np.expm1(np.maximum(t - begins, 0) / tau * 2)
    record = record_of(t, {"loss": loss + np.minimum(climb, 3.0)})
    incidents = group_findings(derive(record), all_findings(derive(record)))
    worst = max(incidents, key=lambda i: i.severity == "critical")
    assert worst.kind in ("divergence", "unrecovered-spike")
    # where it stands 0.3 over the curve, 10 sigma, it has long begun
    visible = begins + tau / 2 * np.log1p(0.3 / 0.06)
    assert begins - 16 <= worst.onset_row <= visible
