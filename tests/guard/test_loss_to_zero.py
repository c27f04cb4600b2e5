"""A loss that comes down to where most batches cost nothing, as hinge and triplet losses do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from trimtab.detectors.judge import judge_record
from trimtab.guard import Guard
from trimtab.guard.recovery.expectation import expected_loss
from trimtab.guard.recovery.trial_verdict import conclude_trial, settings_at_fault
from trimtab.guard.yardstick.sequential import PairedTest
from trimtab.plan.trials import Trial
from trimtab.record import RecordBuilder, RunRecord

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

pytestmark = pytest.mark.torch

STEPS, BATCH, CLASSES = 420, 32, 10


def mostly_nothing(seed: int, rows: int = 400) -> NDArray[np.float64]:
    """Fall from 0.5 within 20 rows to where one batch in ten costs up to 0.01."""
    rng = np.random.default_rng(seed)
    rare = np.where(rng.random(rows) < 0.1, 0.01 * rng.random(rows), 0.0)
    return 0.5 * np.exp(-np.arange(rows) / 4.0) * (1 + 0.1 * rng.normal(size=rows)) + rare


def record_of(losses: NDArray[np.float64]) -> RunRecord:
    builder = RecordBuilder("made", "made")
    for i, loss in enumerate(losses):
        builder.add(float(i + 1), {"loss": float(loss)})
    return builder.build()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1e3, 0.0), (1.0, -4.0), (1e-3, 1e-3)])
def test_a_batch_that_costs_something_is_no_spike(scale: float, shift: float) -> None:
    for seed in range(6):
        found = judge_record(record_of(scale * mostly_nothing(seed) + shift))
        assert not [f for f in found if f.severity != "info"]


@pytest.mark.parametrize("shift", [0.0, -4.0])
def test_a_rise_that_is_a_share_of_the_fall_is_found(shift: float) -> None:
    losses = mostly_nothing(0) + shift
    losses[300:] += 0.2
    found = judge_record(record_of(losses))
    assert [f for f in found if f.severity != "info" and f.onset == 301]


def test_a_branch_is_judged_by_a_share_of_the_fall() -> None:
    losses = mostly_nothing(1)
    expected = expected_loss(record_of(losses), 352)
    assert expected.sigma >= 0.004
    case: Any = SimpleNamespace(
        expect=expected,
        losses=tuple(losses[352:]),
        alarmed=False,
        first_sign=353,
        from_step=352,
        incident=SimpleNamespace(first_step=353, kind="spike", onset=353, findings=()),
        control={353 + i: 0.3 for i in range(40)},
        seen_step=392,
        lr_jump=None,
    )
    assert conclude_trial(case, Trial(name="as it was"), tolerance=0.01).held
    # a batch that costs nothing, with the change and without it, is no evidence against the branch
    case.losses = (0.0,) * 40
    case.control = {353 + i: 0.0 if i == 25 else 0.3 for i in range(40)}
    assert settings_at_fault(case, Trial(name="back"), tolerance=0.01)


def test_fixed_batches_that_mostly_cost_nothing_raise_no_alarm_by_one_that_does() -> None:
    test, of_function = PairedTest(), PairedTest()
    for t, x in enumerate([0.3, 0.05, *[0.0] * 10, 0.003, 0.0, 0.002]):
        assert not test.take_in(t, [x, 0.0], sigma=0.005).alarms
        assert not of_function.take_in(t, [x], sigma=np.inf).alarms
    assert test.take_in(15, [0.2, 0.1], sigma=0.005).alarms
    assert of_function.take_in(15, [0.2], sigma=np.inf).alarms


def trained(run: Path, *, decays: bool) -> tuple[Guard, float, int]:
    """Train with a triplet loss; return the guard, the held-out loss and the passes."""
    torch.manual_seed(0)
    draws = torch.Generator().manual_seed(6)
    centers = 1.5 * torch.randn(CLASSES, 16, generator=draws)
    labels = torch.randint(0, CLASSES, (STEPS * BATCH + 512,), generator=draws)
    inputs = centers[labels] + 0.4 * torch.randn(len(labels), 16, generator=draws)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = model(x)
        apart, same = torch.cdist(out, out), y[:, None] == y[None]
        farthest, nearest = (apart * same).amax(1), (apart + 1e3 * same).amin(1)
        return torch.relu(farthest - nearest + 0.5).mean()

    loader = DataLoader(TensorDataset(inputs[:-512], labels[:-512]), batch_size=BATCH)
    guard = Guard(model, optimizer, data=loader, steps=STEPS, run=run, mode="act")
    passes = 0
    for x, y in guard:
        passes += 1
        if decays and guard.step_number == 299 and guard.phase != "probe":
            decays, optimizer.param_groups[0]["weight_decay"] = False, 1.0
        guard.backward(loss_of(x, y))
        guard.step()
    with torch.no_grad():
        return guard, float(loss_of(inputs[-512:], labels[-512:])), passes


def test_a_healthy_run_is_left_as_it_is_and_a_setting_at_fault_is_put_back(tmp_path: Path) -> None:
    twin, healthy, passes = trained(tmp_path / "twin", decays=False)
    assert not twin.actions
    assert passes <= 1.05 * STEPS
    guard, loss, _ = trained(tmp_path / "run", decays=True)
    assert [a["remedy"] for a in guard.actions] == ["roll-back+put-back"]
    assert loss == pytest.approx(healthy, abs=0.003)
