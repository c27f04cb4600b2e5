"""Signals of one kind of training that turn NaN or Inf."""

import math

import numpy as np
import pytest

import trimtab
from trimtab.detectors.lost_signals import lost_signal_findings
from trimtab.testing.curves import record_of

NUM = 60


def _told(name: str, values: np.ndarray) -> list[tuple[int, int | None]]:
    rng = np.random.default_rng(0)
    loss = 1 + 0.5 * np.exp(-np.arange(NUM) / 10) + 0.02 * rng.normal(size=NUM)
    record = record_of(np.arange(float(NUM)), {"loss": loss, name: values})
    return [(f.onset_row, f.end_row) for f in lost_signal_findings(record)]


def _sound(seed: int = 1) -> np.ndarray:
    values: np.ndarray = np.random.default_rng(seed).uniform(0.01, 0.015, size=NUM)
    return values


@pytest.mark.parametrize("name", ["update_kl", "reward", "router_entropy", "amax", "value_loss"])
@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_a_signal_that_breaks_for_good_is_told(name: str, broken: float) -> None:
    values = _sound()
    values[40:] = broken
    assert _told(name, values) == [(40, None)]


def test_one_inf_is_told_with_its_end() -> None:
    values = _sound()
    values[40] = math.inf
    assert _told("update_kl", values) == [(40, 40)]


def test_empty_cells_of_a_table_are_none() -> None:
    values = _sound()
    values[np.arange(NUM) % 5 != 0] = math.nan  # measured at every fifth row
    assert _told("reward", values) == []
    values[40:] = math.nan
    assert [onset for onset, _ in _told("reward", values)] == [40]


def test_what_was_never_finite_or_follows_from_the_loss_is_none() -> None:
    assert _told("update_kl", np.full(NUM, math.nan)) == []
    assert _told("explained_variance", np.where(np.arange(NUM) < 40, 0.5, math.nan)) == []


def test_it_is_an_alarm_of_the_whole_judge() -> None:
    values = _sound()
    values[40:] = math.inf
    loss = 1 + 0.02 * np.random.default_rng(2).normal(size=NUM)
    rows = {"step": np.arange(NUM), "loss": loss, "approx_kl": values}
    (incident,) = trimtab.analyze(rows).incidents
    assert (incident.kind, incident.severity, incident.onset) == ("non-finite", "warning", 40)


def test_a_reward_before_the_first_episode_ends_is_not_lost() -> None:
    values = 10 + np.arange(float(NUM))
    values[:2] = math.nan
    assert _told("reward", values) == []
    values[30:33] = math.nan
    assert len(_told("reward", values)) == 1
    values[:2] = math.inf
    assert len(_told("reward", values)) == 2


def test_a_reward_that_is_never_a_number_is_told() -> None:
    rows = np.arange(45.0)
    nan = np.full(45, np.nan)
    (told,) = lost_signal_findings(record_of(rows, {"reward": nan}))
    assert (told.kind, told.severity, told.signal) == ("non-finite", "warning", "reward")
    assert not lost_signal_findings(record_of(rows[:20], {"reward": nan[:20]}))
    assert not lost_signal_findings(record_of(rows, {"reward": np.append(nan[:44], 3.0)}))
    assert not lost_signal_findings(record_of(rows, {"reward_std": nan}))


def test_validation_that_is_never_finite_beside_its_score_is_told() -> None:
    rows, nan = np.arange(12.0), np.full(12, np.nan)
    score = np.linspace(0.2, 0.8, 12)
    (told,) = lost_signal_findings(record_of(rows, {"val_loss": nan, "eval_score": score}))
    assert (told.kind, told.severity, told.onset_row) == ("non-finite", "warning", 0)
    few = np.where(rows % 5 == 4, score, np.nan)  # the table has a cell for what was not made
    assert not lost_signal_findings(record_of(rows, {"val_loss": nan, "eval_score": few}))
    val = np.where(rows == 11, 0.5, nan)  # made once in twelve rows
    assert not lost_signal_findings(record_of(rows, {"val_loss": val, "eval_score": score}))


@pytest.mark.parametrize("level", [0.104, 0.304])
def test_one_unit_of_the_last_digit_is_no_spike(level: float) -> None:
    for seed in range(4):
        noise = np.random.default_rng(seed).normal(0, 0.0015, 200)
        loss = np.round(level + 0.8 * np.exp(-np.arange(200) / 15) + noise, 2)
        rows = {"step": np.arange(200), "loss": loss}
        assert not [i for i in trimtab.analyze(rows).incidents if i.severity != "info"]
        loss[120:126] += 0.5
        assert [i for i in trimtab.analyze(rows).incidents if i.severity != "info"]


def test_norms_that_are_nan_for_good_are_critical_where_no_loss_is_known() -> None:
    n = 700
    norm = np.where(np.arange(n) < 430, 1.5, np.nan)
    other = np.where(np.arange(n) < 430, 3 * np.exp(-np.arange(n) / 200), np.nan)
    columns = {"step": np.arange(float(n)), "grad_norm": norm, "zork": other}
    (found,) = [i for i in trimtab.analyze(columns).incidents if i.severity != "info"]
    assert (found.incident.kind, found.severity) == ("non-finite", "critical")
    assert "metric-broken" not in [c.cause for c in found.causes[:2]]
