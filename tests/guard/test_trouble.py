"""Which findings move the guard: those that may put the weights in doubt, and no others."""

import numpy as np
import pytest

from trimtab.detectors.judge import judge_record
from trimtab.guard.recovery.triage import speaks_of_state
from trimtab.testing.curves import record_of
from trimtab.testing.scaler import tr8_104b_twin

pytestmark = pytest.mark.torch


def test_slow_steps_and_frozen_signals_and_a_sinking_scale_do_not_move_the_guard() -> None:
    n = 6900
    columns = {name: values[:n] for name, values in tr8_104b_twin(100).items()}
    columns["step_time_s"] = np.where(np.arange(n) < 800, 1.0, 1.5)
    found = judge_record(record_of(np.arange(1.0, n + 1), columns))
    alarms = {(f.detector, f.kind) for f in found if f.severity != "info"}
    assert {("pace", "slowdown"), ("scale-drift", "scale-collapse")} <= alarms
    assert not [f for f in found if speaks_of_state(f) and f.severity != "info" and f.step < 6000]

    loss = np.full(400, 2.0) + 0.01 * np.random.default_rng(0).standard_normal(400)
    loss[200:] = 2.0
    found = judge_record(record_of(np.arange(1.0, 401.0), {"loss": loss}))
    assert [f.kind for f in found if f.severity != "info"] == ["frozen-signal"]
    assert not any(speaks_of_state(f) for f in found)


def test_a_spike_of_the_loss_does() -> None:
    loss = np.full(400, 2.0) + 0.01 * np.random.default_rng(0).standard_normal(400)
    loss[200:230] += 3.0
    found = judge_record(record_of(np.arange(1.0, 401.0), {"loss": loss}))
    assert any(speaks_of_state(f) and f.severity == "warning" for f in found)
