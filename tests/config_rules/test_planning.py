"""Time, memory, checkpoints, epochs, trend of a gain: against independent arithmetic."""

import math
import random

import pytest

from tests.config_rules.settings_by_hand import make_settings
from trimtab.config_rules.budget import Machine, plan_config
from trimtab.config_rules.planning import epoch_ledger, gain_trend, goodput, memory, time_needed
from trimtab.errors import ConfigError


def test_the_second_epoch_begins_at_the_planned_step() -> None:
    # OPT: 180 B tokens in batches of 2 M. People there said about 93k; the published figures
    # give 85.8k.
    ledger = epoch_ledger(180e9, 2**21, 300e9)
    (step,) = ledger.steps
    assert (step - 1) * 2**21 < 180e9 <= step * 2**21
    assert step == pytest.approx(93_000, rel=0.1)
    assert ledger.epoch_at(step - 1) == 1
    assert ledger.epoch_at(step) == 2
    assert epoch_ledger(300e9, 2**21, 300e9).steps == ()


@pytest.mark.covers("S209")
def test_time_against_the_deadline() -> None:
    needed = time_needed(300e9, 105_219, deadline_days=90, spent_days=30)
    assert needed.days == pytest.approx(33.0, abs=0.01)
    assert not needed.is_late
    assert time_needed(300e9, 105_219, deadline_days=90, spent_days=60).is_late
    assert not time_needed(300e9, 1.0).is_late
    slower = time_needed(300e9, 105_219, goodput_share=0.5)
    assert slower.days == pytest.approx(2 * needed.days)


@pytest.mark.covers("S197")
def test_precision_is_given_up_from_duplicates_to_adam() -> None:
    names = [p.name for p in memory(1e9).parts]
    assert names[0] == "duplicate fp32 parameters"
    assert names[-1] == "fp32 Adam moments"


@pytest.mark.covers("S268")
def test_the_price_of_an_fp32_master_copy_in_gib() -> None:
    (master,) = [p for p in memory(175e9).parts if "master" in p.name]
    assert master.gib == pytest.approx(175e9 * 4 / 1024**3)
    assert memory(8e9, devices=8, device_gib=80).fits is True
    assert memory(175e9, devices=8, device_gib=80).fits is False
    assert memory(175e9).fits is None


def test_the_interval_loses_least() -> None:
    plan = goodput(1024, 60)

    def lost(interval: float) -> float:
        return 60 / interval + (interval / 2 + 600) / (plan.failure_hours * 3600)

    assert lost(plan.interval_s) == pytest.approx(plan.lost_share)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert lost(plan.interval_s * factor) > plan.lost_share


def test_spares_cover_99_of_100_repair_times() -> None:
    plan = goodput(16384, 30, repair_hours=48)
    expected = 48 / plan.failure_hours
    draw = random.Random(0)

    def failures() -> int:
        at, count = draw.expovariate(expected), 0
        while at < 1:
            at, count = at + draw.expovariate(expected), count + 1
        return count

    short = sum(failures() > plan.spare_nodes for _ in range(4000)) / 4000
    assert short < 0.02
    fewer = sum(failures() > plan.spare_nodes - 4 for _ in range(4000)) / 4000
    assert fewer > 0.01
    assert goodput(1e7, 30).spare_nodes > 0


@pytest.mark.covers("S202")
def test_the_gain_of_a_change_over_three_sizes() -> None:
    sizes = (125e6, 1.3e9, 13e9)
    assert gain_trend([(s, 0.03) for s in sizes]).verdict == "persists"
    assert gain_trend([(s, 0.03) for s in sizes]).adopt
    vanishing = gain_trend(list(zip(sizes, (0.06, 0.03, 0.005), strict=True)))
    assert vanishing.verdict == "vanishes"
    assert not vanishing.adopt
    assert gain_trend(list(zip(sizes, (0.06, 0.045, 0.032), strict=True))).verdict == "shrinks"
    assert not gain_trend(list(zip(sizes, (0.06, 0.045, 0.032), strict=True))).adopt
    with pytest.raises(ConfigError, match="three"):
        gain_trend([(125e6, 0.1), (1.3e9, 0.1)])
    with pytest.raises(ConfigError, match="finite"):
        gain_trend([(125e6, 0.1), (1.3e9, math.nan), (13e9, 0.1)])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_numbers_must_be_positive(bad: float) -> None:
    for ask in (
        lambda: memory(bad),
        lambda: goodput(bad, 60),
        lambda: epoch_ledger(bad, 1, 1),
        lambda: time_needed(bad, 1),
    ):
        with pytest.raises(ConfigError, match="positive"):
            ask()


@pytest.mark.parametrize(
    ("framework", "dtype", "expected"),
    [
        ("megatron", "bf16", 18),
        ("nemo", "bf16", 18),
        ("deepspeed", "fp16", 16),
        ("megatron-deepspeed", "bf16", 16),
        ("torchtitan", "bf16", 16),
        ("hf-trainer", "bf16", 16),
        ("something new", "bf16", 22),
        ("megatron", "fp32", 16),
    ],
)
def test_memory_is_what_the_framework_keeps(framework: str, dtype: str, expected: float) -> None:
    run = make_settings(framework, params=1e9, dtype=dtype)
    found = plan_config(run, Machine(devices=8))["memory"]
    assert found["bytes_per_param"] == expected
    assert found["gib"] == pytest.approx(expected * 1e9 / 1024**3)
    assert found["assumed"]
    names = [p["name"] for p in found["parts"]]
    assert ("duplicate fp32 parameters" in names) == (expected == 22)


def test_memory_of_an_adapter_is_not_that_of_its_model() -> None:
    plan = plan_config(make_settings("axolotl", params=70e9, adapter=True), Machine(devices=8))
    assert "memory" not in plan
    assert plan["missing"] == ["memory: only an adapter is trained, and its size is not stated"]
