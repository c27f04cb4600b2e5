"""Simulated runs: the faults are where they were planted, and nothing else differs."""

import numpy as np
import pytest

from trimtab.testing.curves import Fault, FaultKind, NoiseKind, make_noise, simulate_run


@pytest.mark.parametrize(
    "kind", ["spike", "slow-spike", "unrecovered-spike", "shift", "drift", "nan", "inf"]
)
def test_a_fault_changes_nothing_before_it_and_shows_at_its_step(kind: FaultKind) -> None:
    fault = Fault(kind=kind, step=500, size=2.0)
    sick, twin = simulate_run(seed=4, faults=[fault]), simulate_run(seed=4)
    a, b = sick.columns["loss"].values, twin.columns["loss"].values
    np.testing.assert_array_equal(a[:499], b[:499])
    onset = 500 if kind == "drift" else 499
    assert not np.array_equal(a[onset : onset + 1], b[onset : onset + 1])
    norms = sick.columns["grad_norm"].values / twin.columns["grad_norm"].values
    np.testing.assert_array_equal(norms[:497], 1.0)
    if kind not in ("nan", "inf", "drift"):
        assert norms[497] == pytest.approx(20.0)


def test_how_the_kinds_end() -> None:
    twin = simulate_run(seed=5, noise="none").columns["loss"].values
    added = {
        kind: (
            simulate_run(seed=5, noise="none", faults=[Fault(kind=kind, step=500, size=2.0)])
            .columns["loss"]
            .values
            - twin
        )
        for kind in ("spike", "slow-spike", "unrecovered-spike", "shift", "drift")
    }
    assert added["spike"][504:].max() == pytest.approx(0.0)
    assert 0.3 < added["slow-spike"][650] < 1.0
    assert added["slow-spike"][-1] == pytest.approx(0.0, abs=1e-4)
    assert added["unrecovered-spike"][-1] == pytest.approx(0.8)
    assert added["shift"][-1] == pytest.approx(2.0)
    assert added["drift"][1499] == pytest.approx(2.0)


def test_a_scale_collapse_halves_and_skips() -> None:
    run = simulate_run(faults=[Fault(kind="scale-collapse", step=100, duration_steps=7)])
    scale = run.columns["loss_scale"].values
    assert scale[98] == 65536
    assert scale[99] == 32768
    assert set(scale[105:]) == {512.0}
    assert np.flatnonzero(run.columns["skipped"].values).tolist() == list(range(99, 106))


@pytest.mark.parametrize("kind", ["gaussian", "ar1", "t3"])
def test_noise_has_unit_variance_and_its_own_law(kind: NoiseKind) -> None:
    noise = make_noise(200_000, kind, np.random.default_rng(0))
    assert abs(noise.mean()) < 0.05
    # the variance of t3 noise converges slowly: its fourth moment is infinite
    assert noise.std() == pytest.approx(1.0, abs=0.15 if kind == "t3" else 0.03)
    lag1 = float(np.corrcoef(noise[1:], noise[:-1])[0, 1])
    assert lag1 == pytest.approx(0.9 if kind == "ar1" else 0.0, abs=0.02)
    assert (np.abs(noise).max() > 8) == (kind == "t3")
