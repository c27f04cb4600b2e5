"""The order in which incidents are told: what is severe, then what lasts, before what is over."""

import numpy as np

from trimtab import analyze
from trimtab.analysis.ordering import listed_order


def test_what_lasts_is_told_before_a_later_spike_that_is_over() -> None:
    rng = np.random.default_rng(0)
    steps = np.arange(1500.0)
    loss = 2 + 3 * np.exp(-steps / 200) + 0.02 * rng.normal(size=1500)
    loss[1300:1306] += (0.8, 1.2, 0.9, 0.6, 0.4, 0.2)
    val = np.full(1500, np.nan)
    val[::50] = 2.1 + 3 * np.exp(-steps[::50] / 200) + np.maximum(steps[::50] - 500, 0) * 1e-3
    account = analyze({"step": steps, "loss": loss - 1e-4 * steps, "val_loss": val}).runs[0]
    told = [account.incidents[i].incident for i in listed_order(account)]
    alarms = [i for i in told if i.severity == "warning"]
    assert [i.kind for i in alarms] == ["overfitting", "spike"]
    assert alarms[0].onset < alarms[1].onset
