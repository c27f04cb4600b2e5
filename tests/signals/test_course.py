"""How much the loss jumps about, and which way a signal goes in each phase of the schedule."""

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.analysis.assemble import make_account
from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.signals.derived import step_std
from trimtab.signals.phases import phases_of, slope_notes, slopes_of

Floats = NDArray[np.float64]


def test_the_rolling_std_is_that_of_the_last_differences() -> None:
    rng = np.random.default_rng(0)
    loss = 3.0 + rng.standard_normal(300).cumsum() * 0.01
    logged = np.ones(300, dtype=np.bool_)
    logged[[40, 41, 130]] = False
    loss[[40, 41, 130]] = math.nan
    loss[200] = math.inf
    rolled = step_std(Column(loss, logged), window_rows=20)
    usable = [i for i in range(300) if logged[i] and math.isfinite(loss[i])]
    for k, i in enumerate(usable):
        by_hand = np.std(np.diff(loss[usable[k - 20 : k + 1]])) if k >= 20 else math.nan
        assert rolled.values[i] == pytest.approx(by_hand, rel=1e-9, nan_ok=True)
    assert math.isnan(rolled.values[200])
    assert rolled.present.tolist() == logged.tolist()
    short = step_std(Column(loss[:5], logged[:5]))
    assert np.isnan(short.values).all()


@pytest.mark.torch
@pytest.mark.covers("S21")
def test_twice_the_batch_makes_the_loss_jump_about_by_a_root_of_two_less() -> None:
    import torch

    def course(batch_size: int) -> float:
        torch.manual_seed(0)
        weights, truth = torch.zeros(8), torch.randn(8)
        losses = []
        for _ in range(4000):
            x = torch.randn(batch_size, 8)
            y = x @ truth + torch.randn(batch_size)
            wrong = x @ weights - y
            losses.append(float(wrong.square().mean()))
            weights -= 2e-3 * 2 * (x.T @ wrong) / batch_size
        column = Column(np.array(losses), np.ones(4000, dtype=np.bool_))
        return float(np.nanmedian(step_std(column, window_rows=64).values[2000:]))

    ratio = course(32) / course(16)
    assert 0.8 / math.sqrt(2) <= ratio <= 1.2 / math.sqrt(2)


def record_of(lr: Floats, hidden: Floats, *, every: int = 1) -> RunRecord:
    builder = RecordBuilder("course", "made up")
    for i in range(len(lr)):
        values: dict[str, Any] = {"loss": 2.0 + 1.0 / (i + 1), "lr": float(lr[i])}
        if i % every == 0:
            values["activation_norm"] = float(hidden[i])
        builder.add(float(i + 1), values)
    return builder.build()


def schedule() -> Floats:
    warm_up, decay = np.linspace(0.01, 1.0, 100), 0.5 + 0.5 * np.cos(np.linspace(0, 3.0, 400))
    return 1e-3 * np.concatenate([warm_up, np.ones(200), decay])


@pytest.mark.covers("S28")
@pytest.mark.parametrize("every", [1, 5])
def test_the_sign_of_the_slope_is_told_for_each_phase_of_the_schedule(every: int) -> None:
    rng = np.random.default_rng(0)
    rises = np.linspace(1.0, 2.0, 100)
    falls = np.linspace(2.0, 1.2, 400)
    hidden = np.concatenate([rises, np.full(200, 2.0), falls])
    hidden *= np.exp(0.01 * rng.standard_normal(700))
    hidden[50] = math.nan
    record = record_of(schedule(), hidden, every=every)
    slopes = slopes_of(record, "activation_norm")
    assert [(s.phase, s.sign) for s in slopes] == [("warm-up", 1), ("constant", 0), ("decay", -1)]
    assert slopes[0].change == pytest.approx(1.0, rel=0.15)
    assert slopes[2].change == pytest.approx(-0.4, rel=0.15)
    (note,) = slope_notes(record)
    assert "rises in the warm-up (1 to " in note
    assert "stays in the constant phase" in note
    assert "falls in the decay" in note
    assert note in make_account(record).notes


@pytest.mark.covers("S28")
def test_a_norm_that_rises_while_the_rate_falls_is_told_as_rising() -> None:
    hidden = np.concatenate([np.linspace(1.0, 2.0, 300), np.linspace(2.0, 3.5, 400)])
    slopes = slopes_of(record_of(schedule(), hidden), "activation_norm")
    assert [(s.phase, s.sign) for s in slopes] == [("warm-up", 1), ("constant", 1), ("decay", 1)]


def test_phases_of_short_odd_and_missing_schedules() -> None:
    assert phases_of(np.ones(5)) == ()
    assert [p.name for p in phases_of(np.ones(50))] == ["constant"]
    assert [p.name for p in phases_of(np.linspace(1, 0, 50))] == ["decay"]
    restarts = np.tile(np.linspace(1, 0.1, 40), 3)  # the step back up is no phase of its own
    assert [(p.name, p.first, p.stop) for p in phases_of(restarts)] == [("decay", 0, 120)]
    stairs = np.repeat([1.0, 0.5, 0.25], 30)
    assert [p.name for p in phases_of(stairs)] == ["constant"]
    record = record_of(schedule(), np.full(700, math.nan))
    assert slopes_of(record, "activation_norm") == ()
    assert slopes_of(record, "weight_norm") == ()
