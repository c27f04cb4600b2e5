"""A jump of the rate far before the onset counts where the first sign came with it."""

import numpy as np

import trimtab

NUM, AT = 5000, 3000


def _log() -> dict[str, np.ndarray]:
    t = np.arange(NUM)
    rng = np.random.default_rng(7)
    loss = 2.0 + 3.0 * np.exp(-t / 300) + 0.04 * rng.normal(size=NUM)
    norm = np.exp(0.1 * rng.normal(size=NUM))
    rate = 2e-4 * (1 - 0.5 * t / NUM)
    rate[AT:] *= 10
    since = t - AT
    loss += np.where(since >= 300, 0.6 * np.exp(-np.maximum(since - 300, 0) / 400), 0)
    norm[AT : AT + 900] *= 3
    return {"step": t, "loss": loss, "grad_norm": norm, "lr": rate}


def test_a_rate_that_jumped_with_the_first_sign_is_the_cause() -> None:
    found = trimtab.analyze(_log())
    first = next(i for i in found.incidents if i.severity == "critical" or "loss" in i.headline)
    assert first.incident.first_row <= AT + 16 < first.incident.onset_row
    assert first.causes[0].cause == "learning-rate-jump"
