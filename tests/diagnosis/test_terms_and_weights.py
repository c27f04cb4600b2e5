"""What the log says of the parts of a loss: a weight that jumps, a total that breaks alone."""

import numpy as np

import trimtab

N = 600
STEP = 2.0 * np.arange(1, N + 1)


def _run(weight: np.ndarray, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    recon = 6 + 34 * np.exp(-np.arange(N) / 40) + 0.3 * rng.standard_normal(N)
    kl = np.where(weight > 10, 0.3, 12.0) * (1 + 0.03 * rng.standard_normal(N))
    columns = {"iter": STEP, "elbo_loss": recon + weight * kl, "recon": recon, "kl": kl}
    return {**columns, "beta": weight}


def test_a_weight_that_jumps_is_named_as_the_cause() -> None:
    weight = np.where(np.arange(N) < 300, 1.0, 60.0)
    run = _run(weight)
    run["elbo_loss"] += 100 * (weight > 10)
    (incident, *_) = trimtab.analyze(run).incidents
    (cause, *_) = incident.causes
    assert cause.cause == "setting-changed"
    assert any("the weight of the divergence 1 → 60" in text for text in map(str, cause.evidence))


def test_a_total_that_is_nan_beside_finite_terms_is_no_batch_without_labels() -> None:
    run = _run(np.ones(N), seed=1)
    run["elbo_loss"][350] = np.nan
    (incident, *_) = trimtab.analyze(run).incidents
    assert incident.kind == "non-finite"
    assert incident.causes[0].cause == "undefined-loss"
