"""The figures on made-up runs small enough to be counted by hand."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.predictions import Claim
from benchmarks.reliability import calibration_error, reliability
from benchmarks.scoring import score, score_run
from tests.benchmarks.labelled import claim, label, line, runs_of, said


def figures_of(
    folder: Path, run: dict[str, Any], *claims: Claim, rows: int = 1000
) -> dict[str, Any]:
    return score(runs_of(folder, run), [said(run["id"], *claims, rows=rows)])


SPIKY = line("spiky", "incident", incidents=[label("loss_spike_fast", 4000, recovery=4050)])


def test_the_whole_table_by_hand(tmp_path: Path) -> None:
    """Five labels of the headline in three runs, three of them met.

    Two alarms of five are false.
    """
    runs = runs_of(
        tmp_path,
        line(
            "a",
            "incident",
            incidents=[
                label("loss_spike_fast", 4000, recovery=4050),
                label("loss_scale_drop", 6000),
                label("plateau", 8000, recovery=9000, confidence="medium"),
            ],
        ),
        line("b", "incident", incidents=[label("nan_loss", 2000), label("level_shift", 100)]),
        line("c", "incident", incidents=[label("grad_norm_spike", 5000)]),
        line("quiet", "clean", 3000),
        line("tails", "heavy_tail_negative", 1000),
    )
    found = score(
        runs,
        [
            said("a", claim("spike", 4030), claim("spike", 6050), claim("shift", 7500)),
            said("b", claim("non-finite", 2000)),
            said("c", claim("grad-spike", 5000, severity="info"), rows=900),
            said("quiet", claim("spike", 50), rows=3000),
            said("tails"),
        ],
    )
    assert found["labels"] == 5
    assert found["recall"] == pytest.approx(3 / 5)
    assert found["recall_same_family"] == pytest.approx(2 / 5)  # the scale drop was called a spike
    assert found["recall_at_onset"] == pytest.approx(2 / 5)
    assert found["recall_with_notes"] == pytest.approx(4 / 5)
    assert found["recall_of_runs"] == pytest.approx(2 / 3)
    assert found["kind_accuracy"] == pytest.approx(2 / 3)
    assert (found["true_alarms"], found["false_alarms"]) == (3, 2)
    assert found["precision"] == pytest.approx(3 / 5)
    assert found["precision_of_runs"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert found["f1"] == pytest.approx(3 / 5)
    assert found["f1_same_family"] == pytest.approx(2 * 0.6 * 0.4 / 1.0)
    assert found["false_per_10k"] == pytest.approx(1e4 / 4000)
    assert found["false_per_10k_by_verdict"]["heavy_tail_negative"] == 0
    assert found["silent_negatives"] == 0.5
    assert found["false_by_family"] == {"spike": 1}
    assert found["read_rate"] == pytest.approx(4 / 5)
    assert found["not_read"] == ["c"]
    assert found["by_family"]["scale"] == {"labels": 1, "met": 1, "named": 0}
    assert found["by_family_less_sure"] == {"plateau": {"labels": 1, "met": 0, "named": 0}}
    # 3 records late, 5 late, 0
    assert (found["onset_error"], found["onset_error_signed"]) == (3.0, 3.0)
    assert found["onset_error_p90"] == pytest.approx(4.6)
    assert found["alarmed_share"] == pytest.approx(4 / 3000)  # an instant counts as one record
    low, high = found["f1_90"]
    assert low < found["f1"] < high


@pytest.mark.parametrize(
    ("onset", "end", "met"),
    [
        (3900, None, True),
        (3899, None, False),
        (4150, None, True),
        (4151, None, False),
        (3700, 3900, True),
    ],
)
def test_an_alarm_may_lie_one_per_cent_beside_its_label(
    tmp_path: Path, onset: float, end: float | None, met: bool
) -> None:
    assert figures_of(tmp_path, SPIKY, claim("spike", onset, end=end))["recall"] == met


def test_an_interval_that_covers_everything_meets_nothing(tmp_path: Path) -> None:
    for onset, end, met in ((0, 9000, 0), (4000, 9000, 1), (2500, 4500, 1), (0, 2100, 0)):
        found = figures_of(tmp_path, SPIKY, claim("spike", onset, end=end))
        assert (found["recall"], found["precision"]) == (met, met), (onset, end)
    wide = line("wide", "incident", incidents=[label("unstable", 5000, recovery=8000)])
    assert figures_of(tmp_path, wide, claim("spike", 2000, end=8000))["recall"] == 1  # half inside


def test_the_end_is_the_peak_where_none_is_known(tmp_path: Path) -> None:
    assert figures_of(tmp_path, SPIKY, claim("spike", 3000, peak=3950))["recall"] == 1
    assert figures_of(tmp_path, SPIKY, claim("spike", 3000, peak=3950, end=3100))["recall"] == 0


def test_a_lasting_condition_may_be_met_anywhere_by_its_own_family(tmp_path: Path) -> None:
    flat = line("flat", "incident", incidents=[label("plateau", 500)])
    assert figures_of(tmp_path, flat, claim("plateau", 9000))["recall"] == 1
    assert figures_of(tmp_path, flat, claim("spike", 9000))["recall"] == 0
    ended = line("flat", "incident", incidents=[label("plateau", 500, recovery=800)])
    assert figures_of(tmp_path, ended, claim("plateau", 9000))["recall"] == 0


def test_instability_may_be_called_a_spike(tmp_path: Path) -> None:
    wild = line("wild", "incident", incidents=[label("unstable", 500)])
    found = figures_of(tmp_path, wild, claim("spike", 9000))
    assert (found["recall"], found["recall_same_family"]) == (1, 1)
    assert found["recall_at_onset"] == 0


def test_rows_decide_where_steps_restart(tmp_path: Path) -> None:
    again = line(
        "again",
        "incident",
        x_last=2000.0,
        incidents=[label("loss_spike_slow", 100, recovery=200, onset_row=710, end_row=720)],
    )
    found = figures_of(tmp_path, again, claim("spike", 1900, onset_row=712, end_row=715))
    assert (found["recall"], found["onset_error_signed"]) == (1, 2.0)
    assert figures_of(tmp_path, again, claim("spike", 1900, onset_row=750))["recall"] == 0


def test_further_places_of_an_event_excuse_an_alarm_and_earn_no_recall(tmp_path: Path) -> None:
    many = label("loss_spike_fast", 1000, also=[5000], also_rows=[[800, 810]])
    run = line("many", "incident", incidents=[many])
    for at in (claim("spike", 5000), claim("spike", 9999, onset_row=805)):
        found = figures_of(tmp_path, run, at)
        assert (found["recall"], found["true_alarms"], found["false_alarms"]) == (0, 1, 0)


def test_a_second_name_of_an_event_is_not_counted_again(tmp_path: Path) -> None:
    twice = line(
        "twice",
        "incident",
        incidents=[label("nan_loss", 1000), label("frozen_metric", 1000, same_event=True)],
    )
    assert figures_of(tmp_path, twice)["by_family_not_core"] == {}


def test_alarms_after_a_break_count_for_nothing(tmp_path: Path) -> None:
    broken = line("broken", "incident", incidents=[label("loss_spike_nonrecovering", 3000)])
    found = figures_of(tmp_path, broken, claim("drift", 9500), claim("spike", 500))
    assert (found["true_alarms"], found["false_alarms"]) == (0, 1)
    assert found["recall"] == 0


def test_what_is_not_labelled_in_a_sampled_run_is_not_false(tmp_path: Path) -> None:
    sampled = SPIKY | {"sample_labels": True}
    found = figures_of(tmp_path, sampled, claim("spike", 9000))
    assert (found["precision"], found["false_alarms"]) == (None, 0)


def test_benign_events_of_a_healthy_run_excuse_an_alarm_there(tmp_path: Path) -> None:
    events = [label("throughput_stall", 1000), label("loss_scale_drop", 5000)]
    run = line("stalls", "clean_loss", incidents=events)
    assert figures_of(tmp_path, run, claim("hang", 1000))["silent_negatives"] == 1
    scale = figures_of(
        tmp_path, run, claim("scale-collapse", 5000)
    )  # a core label: `info` is right
    assert (scale["silent_negatives"], scale["precision"]) == (0, 1)
    for confidence, silent in (("medium", 1), ("low", 0)):
        norm = label("grad_norm_spike", 5000, confidence=confidence)
        run = line("norms", "clean", incidents=[norm])
        assert figures_of(tmp_path, run, claim("spike", 5000))["silent_negatives"] == silent


def test_silence_on_a_log_that_was_not_read_earns_nothing(tmp_path: Path) -> None:
    runs = runs_of(tmp_path, line("a", "clean"), line("b", "clean"), SPIKY)
    found = score(runs, [said("a", rows=None)])
    assert (found["silent_negatives"], found["false_per_10k"]) == (None, None)
    assert (found["read_rate"], found["recall"], found["f1"]) == (0, 0, None)
    assert found["runs_without_prediction"] == 2


@pytest.mark.parametrize(("rows", "good"), [(1000, True), (981, True), (979, False), (510, True)])
def test_rows_may_be_two_per_cent_off_any_accepted_count(
    tmp_path: Path, rows: int, good: bool
) -> None:
    (run,) = runs_of(tmp_path, line("a", "clean", rows_accept=[1000, 505]))
    assert score_run(run, said("a", rows=rows)).read_rightly == good


def test_runs_without_a_loss_only_must_not_crash(tmp_path: Path) -> None:
    runs = runs_of(
        tmp_path,
        line("rewards", "no_loss", n_records=0),
        line("odd", "ambiguous"),
        line("a", "clean"),
    )
    found = score(
        runs, [said("rewards", claim("spike", 9)), said("odd", claim("spike", 9)), said("a")]
    )
    assert found["alarms_without_a_loss"] == 1
    assert (found["false_alarms"], found["read_rate"]) == (0, 1)


def test_confidence_against_what_came_true(tmp_path: Path) -> None:
    found = score_run(
        runs_of(tmp_path, SPIKY)[0],
        said(
            "spiky",
            claim("spike", 4000, confidence=0.95),
            claim("spike", 9000, confidence=0.65),
            claim("spike", 4010, confidence=0.65),
            claim("spike", 9000, confidence=1.0),
            claim("spike", 9000, confidence=0.1, severity="info"),
            claim("spike", 4000),
        ),
    )
    bins = {b.low: b for b in reliability([found])}
    assert (bins[0.6].num_alarms, bins[0.6].share_true) == (2, 0.5)
    assert (bins[0.9].num_alarms, bins[0.9].share_true) == (2, 0.5)
    assert bins[0.9].confidence == pytest.approx(0.975)
    assert (bins[0.0].num_alarms, bins[0.0].share_true) == (0, None)
    assert calibration_error([*bins.values()]) == pytest.approx((2 * 0.15 + 2 * 0.475) / 4)
    assert calibration_error([]) is None
