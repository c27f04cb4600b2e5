"""Rises at one place of a period, of which many are missing, are one event."""

import numpy as np

import trimtab


def test_parts_of_thirty_rows_each_are_told_once() -> None:
    rng = np.random.default_rng(0)
    k = np.arange(4000)
    loss = (0.3 + 2 * np.exp(-(k % 30) / 6)) * np.exp(-k / 3000)
    found = trimtab.analyze({"step": k, "loss": loss * (1 + 0.05 * rng.normal(size=len(k)))})
    alarms = [i for i in found.incidents if i.severity != "info"]
    assert len(alarms) <= 2
    assert any("the data comes in that order" in i.headline for i in alarms)


def test_spikes_at_any_place_stay_their_own() -> None:
    rng = np.random.default_rng(1)
    k = np.arange(2000)
    loss = 2 + 2 * np.exp(-k / 300) + 0.02 * rng.normal(size=len(k))
    for at in np.sort(rng.choice(np.arange(200, 1900, 41), 12, replace=False)).tolist():
        loss[at + int(rng.integers(20)) :][:5] += 1.5
    found = trimtab.analyze({"step": k, "loss": loss})
    assert sum(i.severity != "info" for i in found.incidents) >= 9
