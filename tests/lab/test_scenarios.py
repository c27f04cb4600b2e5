"""The table of scenarios, their schedule and their twins; none of it may need torch."""

import dataclasses
import subprocess
import sys

import pytest

from trimtab.errors import ConfigError
from trimtab.lab.config import ModelConfig
from trimtab.lab.scenarios import (
    ACCEPTANCE,
    SCENARIOS,
    LrFault,
    Scenario,
    get_scenario,
    healthy_twin,
    learning_rate,
    training_settings,
)


def _scenario(lr_fault: LrFault | None = None) -> Scenario:
    return Scenario(
        name="test",
        title="A test",
        expect="untouched",
        expected_minutes=1.0,
        steps=1000,
        warmup_steps=100,
        peak_lr=2e-3,
        lr_fault=lr_fault,
    )


def test_scenarios_list_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from trimtab.lab.scenarios import SCENARIOS\n"
        "print(*(s.name for s in SCENARIOS))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [scenario.name for scenario in SCENARIOS]


def test_table_has_what_the_lab_promises() -> None:
    expect = {scenario.name: scenario.expect for scenario in SCENARIOS}
    assert len(expect) == len(SCENARIOS)
    assert expect["healthy"] == "untouched"
    assert expect["bad-data-late"] == "recovers"
    assert expect["lr-after-warmup"] == "recovers"
    assert all(scenario.steps >= 1000 for scenario in SCENARIOS if scenario not in ACCEPTANCE)


def test_acceptance_covers_every_mechanism_and_enough_sound_runs() -> None:
    faulty = [s for s in ACCEPTANCE if s.expect == "recovers"]
    kinds = {s.corruption.kind for s in faulty if s.corruption is not None}
    assert kinds == {"random", "repeat", "shuffle"}
    places = {(s.state_fault.place, s.ranks) for s in faulty if s.state_fault is not None}
    assert places >= {("weight", 1), ("exp_avg", 1), ("exp_avg_sq", 1), ("gradient", 2)}
    assert {s.precision for s in faulty} == {"fp32", "fp16"}
    sound = [s for s in ACCEPTANCE if s.fault_step is None]
    assert len(sound) >= 6
    settings = [repr(training_settings(s)) for s in ACCEPTANCE]
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_faults_set_in_after_warmup_and_before_the_end_or_are_a_rate_wrong_throughout(
    scenario: Scenario,
) -> None:
    if scenario.expect == "recovers" or scenario.name.startswith("benign-spike"):
        assert scenario.fault_step is not None
        throughout = scenario.lr_fault is not None and scenario.fault_step == 1
        assert throughout or scenario.warmup_steps < scenario.fault_step <= scenario.steps - 50
    else:
        assert scenario.fault_step is None


@pytest.mark.parametrize(
    ("step", "expected"),
    [(1, 2e-5), (50, 1e-3), (100, 2e-3), (550, 1.1e-3), (1000, 2e-4), (2000, 2e-4)],
)
def test_schedule_warms_up_then_follows_a_cosine(step: int, expected: float) -> None:
    # By hand: half way down the cosine lies the mean of the peak and a tenth of it.
    assert learning_rate(_scenario(), step) == pytest.approx(expected, rel=1e-12)


def test_a_growing_lr_fault_adds_a_share_of_its_first_value_each_step() -> None:
    faulty = _scenario(LrFault(first_step=101, multiplier=2.0, growth_per_step=0.1))
    assert learning_rate(faulty, 100) == learning_rate(_scenario(), 100)
    for step, factor in ((101, 2.0), (106, 3.0), (601, 102.0)):
        sound = learning_rate(_scenario(), step)
        assert learning_rate(faulty, step) == pytest.approx(factor * sound, rel=1e-12)


def test_lr_fault_multiplies_from_its_first_step_on() -> None:
    faulty = _scenario(LrFault(first_step=300, multiplier=20.0))
    assert learning_rate(faulty, 299) == learning_rate(_scenario(), 299)
    for step in (300, 700, 1000):
        sound = learning_rate(_scenario(), step)
        assert learning_rate(faulty, step) == pytest.approx(20.0 * sound, rel=1e-12)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_twin_differs_in_the_fault_alone(scenario: Scenario) -> None:
    twin = healthy_twin(scenario)
    assert twin.fault_step is None
    assert twin.expect == "untouched"
    back = dataclasses.replace(
        twin,
        title=scenario.title,
        expect=scenario.expect,
        corruption=scenario.corruption,
        lr_fault=scenario.lr_fault,
        state_fault=scenario.state_fault,
    )
    assert back == scenario
    assert healthy_twin(twin) is twin


def test_unknown_scenario_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match="lr-after-warmup"):
        get_scenario("lr-after-warm-up")


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="warmup_steps is 1000"):
        dataclasses.replace(_scenario(), warmup_steps=1000)
    with pytest.raises(ConfigError, match="multiplier is 0"):
        LrFault(first_step=1, multiplier=0.0)
    with pytest.raises(ConfigError, match="growth_per_step is -1"):
        LrFault(first_step=1, multiplier=1.0, growth_per_step=-1.0)
    with pytest.raises(ConfigError, match="ranks is 3 and batch_size is 16"):
        dataclasses.replace(_scenario(), ranks=3)
    with pytest.raises(ConfigError, match="num_heads is 4"):
        ModelConfig(width=66)
