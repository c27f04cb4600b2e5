"""The bench of the guard's cost: its arithmetic, and that it says a figure for all it names."""

import numpy as np
import pytest

pytestmark = pytest.mark.torch


def test_a_ratio_is_that_of_ten_steps_so_that_what_is_rare_counts() -> None:
    from benchmarks.guard_cost import block_ratios, interval

    plain = [1.0] * 40
    guarded = [1.5 if i % 10 == 9 else 1.0 for i in range(40)]
    ratios = block_ratios(guarded, plain)
    assert ratios == pytest.approx([1.05] * 4)
    assert interval(ratios) == pytest.approx((1.05, 1.05))
    assert len(block_ratios(guarded[:3], plain[:3])) == 1
    rng = np.random.default_rng(1)
    low, high = interval(1.02 + 0.01 * rng.standard_normal(200))
    assert 1.015 < low < high < 1.025


@pytest.mark.slow
def test_a_missing_peer_is_a_line_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import probe_cost

    monkeypatch.setattr(probe_cost, "is_installed", lambda package: not package)
    monkeypatch.setattr(probe_cost, "PROBES", ("hidden", "attention"))
    monkeypatch.setattr(
        probe_cost, "_variants", lambda: {"guard, no probes": ("hidden",), "attention": ()}
    )
    lines: list[str] = []
    found = probe_cost.run_probe_bench(rounds=4, say=lines.append)
    missing = [line for line in lines if "not installed" in line]
    assert len(missing) == 2
    named = {row["variant"]: row for row in found["probes"]}
    assert named["trainscope, its defaults"] == {
        "variant": "trainscope, its defaults",
        "installed": False,
    }
    for name in ("attention", "OLMo-core SkipStep + StabilityMonitor (re-implemented)"):
        assert named[name]["low"] <= named[name]["share"] <= named[name]["high"]
        assert any(name in line and "%" in line for line in lines)


@pytest.mark.slow
def test_the_reduction_is_timed_on_one_two_and_four_ranks() -> None:
    from benchmarks.rank_cost import run_rank_bench

    lines: list[str] = []
    found = run_rank_bench(say=lines.append)["reduction"]
    assert [row["ranks"] for row in found] == [1, 2, 4]
    assert all(row["step_us"] > 0 and row["reading_us"] > 0 for row in found)
    assert len(lines) == 4
