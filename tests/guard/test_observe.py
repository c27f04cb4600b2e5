"""In observe, and in act on a healthy run, nothing is changed: not one bit."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, WeightedRandomSampler

from tests.guard.tiny import (
    SCHEDULES,
    Precision,
    Sequences,
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.plan.policy import Policy

pytestmark = pytest.mark.torch

STEPS = 27
"""Two and a half epochs of 11 batches, the last of 2 samples."""


def assert_same(
    tmp_path: Path,
    *,
    steps: int = STEPS,
    clip: float | None = 1.0,
    accumulate: int = 1,
    mode: str = "observe",
    **settings: Any,
) -> None:
    plain = make(**settings)
    expected = train_plain(plain, steps, clip=clip, accumulate=accumulate)
    state = state_of(plain)
    watched = make(**settings)
    policy = Policy(
        snapshot_every_steps=3, checkpoint_every_steps=10, checkpoint_in_background=False
    )
    guard = guard_of(watched, tmp_path / "run", mode=mode, steps=steps, clip=clip, policy=policy)
    assert train_guarded(watched, guard, accumulate=accumulate) == expected
    assert differences(state, state_of(watched)) == []
    assert events_of(tmp_path / "run", "fault", "action") == []
    assert len(set(expected)) == steps


@pytest.mark.parametrize("mode", ["observe", "advise", "act"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_every_precision_is_bitwise_the_plain_loop(
    tmp_path: Path, precision: Precision, mode: str
) -> None:
    assert_same(tmp_path, precision=precision, shuffle=True, mode=mode)


@pytest.mark.parametrize(("shuffle", "generator"), list(product([False, True], repeat=2)))
def test_every_order_is_bitwise_the_loaders(tmp_path: Path, shuffle: bool, generator: bool) -> None:
    assert_same(tmp_path, shuffle=shuffle, generator=generator)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_is_bitwise_the_same(tmp_path: Path, schedule: str) -> None:
    assert_same(tmp_path, schedule=schedule, mode="act")


@pytest.mark.parametrize(
    ("precision", "clip", "accumulate"),
    [  # each two of the three settings meet
        ("fp32", None, 1),
        ("fp16", None, 2),
        ("fp32", 1.0, 2),
        ("fp16", 1.0, 1),
        ("fp32", 0.05, 2),
        ("fp16", 0.05, 1),
    ],
)
def test_clipping_and_accumulation_are_bitwise_the_same(
    tmp_path: Path, precision: Precision, clip: float | None, accumulate: int
) -> None:
    assert_same(tmp_path, precision=precision, clip=clip, accumulate=accumulate)


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # of the plain loop
def test_a_loss_scale_that_overflows_is_bitwise_the_same(tmp_path: Path) -> None:
    assert_same(tmp_path, precision="fp16", init_scale=2.0**30, mode="act")
    skipped = [e for e in events_of(tmp_path / "run", "finding") if e.data["signal"] == "skipped"]
    assert {e.data["severity"] for e in skipped} <= {"info"}, "calibration is no alarm"


def test_a_sampler_that_draws_from_torchs_own_state_is_bitwise_the_same(tmp_path: Path) -> None:
    def weighted() -> Setup:
        s = make()
        sampler = WeightedRandomSampler([1.0 + i % 3 for i in range(42)], 42)
        s.loader = DataLoader(Sequences(42), batch_size=4, sampler=sampler)
        return s

    plain = weighted()
    expected, state = train_plain(plain, STEPS), state_of(plain)
    watched = weighted()
    guard = guard_of(watched, tmp_path / "run", mode="act", steps=STEPS)
    assert train_guarded(watched, guard) == expected
    assert differences(state, state_of(watched)) == []


def test_one_epoch_is_the_default(tmp_path: Path) -> None:
    plain = make(shuffle=True)
    expected, state = train_plain(plain, 11), state_of(plain)
    watched = make(shuffle=True)
    assert train_guarded(watched, guard_of(watched, tmp_path / "run", mode="act")) == expected
    assert differences(state, state_of(watched)) == []


def test_a_loss_that_is_not_finite_is_said_at_once_though_nothing_is_skipped(
    tmp_path: Path,
) -> None:
    s = make(num_samples=4000)
    guard = guard_of(s, tmp_path / "run", steps=60)
    for batch in guard:
        if guard.step_number >= 40:
            with torch.no_grad():
                s.model.output.weight.fill_(torch.inf)
        guard.backward(s.loss(batch))
        guard.step()
    guard.close()
    notes = [e for e in events_of(tmp_path / "run", "note") if "took it in" in str(e.data)]
    assert [e.step for e in notes] == [41]


def test_an_evaluation_between_steps_changes_nothing_that_is_recorded(tmp_path: Path) -> None:
    from tests.guard.tiny import rows_of

    def evaluate(s: Setup) -> None:
        s.model.eval()
        with torch.no_grad():
            s.model(torch.zeros(1, 3, dtype=torch.int64))
        s.model.train()

    rows = []
    for name in ("with", "without"):
        s = make()
        guard = guard_of(s, tmp_path / name, steps=12)
        for batch in guard:
            guard.backward(s.loss(batch))
            if name == "with":
                evaluate(s)
            guard.step()
        rows.append([r["activation_norm"] for r in rows_of(tmp_path / name)])
    assert rows[0] == rows[1]


def test_sparse_gradients_without_clipping_are_measured(tmp_path: Path) -> None:
    from tests.guard.tiny import rows_of

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(13, 4, sparse=True)

        def forward(self, tokens: Tensor) -> Tensor:
            out: Tensor = self.table(tokens).pow(2).mean()
            return out

    from trimtab.guard import Guard

    torch.manual_seed(0)
    model = Bag()
    guard = Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        data=DataLoader(Sequences(12), batch_size=4),
        run=tmp_path / "run",
    )
    for batch in guard:
        guard.backward(model(batch))
        gradient = model.table.weight.grad
        assert gradient is not None
        by_hand = float(gradient.to_dense().norm())
        guard.step()
        assert rows_of(tmp_path / "run")[-1]["grad_norm"] == pytest.approx(by_hand, rel=1e-6)
