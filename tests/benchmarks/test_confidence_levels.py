"""The levels of confidence: measured on labelled logs, and what is stated agrees with them."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cli import main
from benchmarks.confidence_levels import StatedAlarm, choose_bar, level_figures
from tests.benchmarks.labelled import label, write_manifest
from tests.benchmarks.test_detect import write_log
from trimtab.detectors.confidence import (
    LEVELS,
    MEASURED_DETECTORS,
    calibrated,
    level_name,
    level_of,
)
from trimtab.detectors.judge import DETECTORS
from trimtab.detectors.offline import HINDSIGHT
from trimtab.report.wording import confidence_word
from trimtab.testing.curves import Fault, simulate_run

NAMES = [d.name for d in DETECTORS] + [*MEASURED_DETECTORS, "never-heard-of"]


def test_sure_is_said_only_where_the_lower_bound_supports_it() -> None:
    low, likely, sure = LEVELS
    assert sure.low >= 0.9
    assert likely.low >= 0.75
    assert sure.num_alarms >= 100
    assert sure.num_repositories >= 20
    for level in LEVELS:
        assert level.low <= level.hit_rate <= level.high
        assert level.floor <= level.hit_rate
        assert level.measured
    assert low.stated < likely.stated < sure.stated
    assert low.hit_rate < likely.hit_rate < sure.hit_rate


@given(st.sampled_from(NAMES), st.floats(min_value=0) | st.none())
def test_the_number_and_the_level_agree(detector: str, score: float | None) -> None:
    at = math.nan if score is None else score
    number = calibrated(detector, at)
    assert 0 < number < 1
    assert level_of(number).name == level_name(detector, at)
    assert confidence_word(number).startswith(level_name(detector, at))


def test_a_rule_that_was_never_measured_is_not_sure() -> None:
    assert level_name("never-heard-of", 1e9) == "likely"
    assert HINDSIGHT
    assert all(level_name(f"creep-{n}", 1e9) == "low" for n in (16, 64))


def alarm(fold: int, *, right: bool, score: float = 40.0, detector: str = "spike") -> StatedAlarm:
    return StatedAlarm(fold, detector, score, right)


def test_a_repository_is_counted_under_a_bar_chosen_without_it() -> None:
    """Alarms of 8 to 16 are right everywhere but in fold 0, and 40 is right everywhere."""
    good = [alarm(f, right=True, score=s) for f in range(1, 12) for s in (9.0, 40.0)]
    odd = [alarm(0, right=False, score=9.0) for _ in range(6)]
    assert choose_bar(good) == 8.0
    assert choose_bar([*good, *odd]) > 8.0
    figures = {f.name: f for f in level_figures([*good, *odd])}
    # without fold 0 the bar is 8, so its six wrong alarms count as sure ones
    assert figures["sure"].num_alarms >= 6 + 11
    assert figures["sure"].hit_rate is not None
    assert figures["sure"].hit_rate < 1.0
    assert figures["all"].num_repositories == 12


@pytest.mark.slow
def test_the_command_measures_a_folder_of_labelled_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for n in range(3):
        fault = Fault(kind="spike", step=900, size=4.0)
        write_log(tmp_path / f"r{n}.jsonl", simulate_run(num_steps=1200, seed=n, faults=(fault,)))
        common = {"n_records": 1200, "n_steps": 1200, "x_first": 1, "x_last": 1200}
        found = label("loss_spike_fast", 900, peak=901, recovery=920)
        lines.append(
            {
                "id": f"r{n}",
                "verdict": "incident",
                "local_path": f"r{n}.jsonl",
                "repo": f"repo-{n}",
                "incidents": [found],
                **common,
            }
        )
    write_manifest(tmp_path, *lines)
    assert main(["calibration", "--corpus", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["low", "likely", "sure", "all"]
    assert int(out.splitlines()[4].split()[1]) >= 3
