"""The resume check: bit-equal where a restart would be, and a name for what is not."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.guard.tiny import (
    Sequences,
    Setup,
    differences,
    events_of,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
    train_plain,
)
from trimtab.guard.loop.resume_check import ReplayPass, compare

pytestmark = pytest.mark.torch


def outcome(tmp_path: Path, s: Setup, **settings: Any) -> dict[str, Any]:
    guard = guard_of(s, tmp_path / "run", steps=30, check_resume=8, **settings)
    train_guarded(s, guard)
    (event,) = events_of(tmp_path / "run", "outcome")
    return dict(event.data)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_run_that_resumes_exactly_is_bit_equal_and_goes_on_as_if_unchecked(
    tmp_path: Path, precision: Any
) -> None:
    plain = make(precision=precision, shuffle=True, dropout=0.2)
    expected = train_plain(plain, 30)
    s = make(precision=precision, shuffle=True, dropout=0.2)
    found = outcome(tmp_path, s)
    assert found["verdict"] == "worked"
    assert found["text"] == "8 steps repeat bit for bit"
    assert [r["loss"] for r in rows_of(tmp_path / "run", "1.1")] == pytest.approx(expected)
    assert differences(state_of(plain), state_of(s)) == []


class Counting(nn.Dropout):
    """Keeps a count of its own that no checkpoint holds."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        return x * (1.0 + 0.05 * (Counting.calls % 3))


def test_a_state_that_is_not_saved_is_found(tmp_path: Path) -> None:
    s = make()
    s.model.dropout = Counting()
    found = outcome(tmp_path, s)
    assert found["verdict"] == "did not"
    assert "do not repeat on the same data" in found["text"]
    assert found["figures"]["relative"] > 1e-4


class Restless(torch.utils.data.Dataset[Tensor]):
    """Gives other tokens each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 42

    def __getitem__(self, index: int) -> Tensor:
        self.asked += 1
        return torch.arange(7) * self.asked % 13


class OwnDice(torch.utils.data.Sampler[int]):
    """Draws from dice of its own, which no checkpoint holds: a new one begins from the start."""

    def __init__(self) -> None:
        self.dice = random.Random(1)

    def __iter__(self) -> Iterator[int]:
        order = list(range(42))
        self.dice.shuffle(order)
        return iter(order)

    def __len__(self) -> int:
        return 42


def with_own_dice() -> Setup:
    s = make()
    s.loader = torch.utils.data.DataLoader(Sequences(42), batch_size=4, sampler=OwnDice())
    return s


@pytest.mark.covers("S87")
def test_a_sampler_that_does_not_come_back_is_found_by_the_check(tmp_path: Path) -> None:
    found = outcome(tmp_path, with_own_dice())
    assert found["verdict"] == "did not"
    assert "the order is not restored" in found["text"]


def test_a_sampler_that_restarts_is_told_at_the_resume_by_the_fingerprint(tmp_path: Path) -> None:
    for until in (15, 20):  # in the second epoch of 11 batches
        s = with_own_dice()
        guard = guard_of(s, tmp_path / "run", steps=30)
        train_guarded(s, guard, until=until)
        guard.checkpoint()
        guard.close()
    (note,) = events_of(tmp_path / "run", "note")
    assert note.data["text"].startswith("the data order changed: epoch 1 was ")


class Unsteady(nn.Dropout):
    """Adds in another order each time, as far as the result shows: off by some rounding."""

    dice = random.Random(2)

    def forward(self, x: Tensor) -> Tensor:
        return x * (1.0 + 3e-6 * self.dice.random())


def test_kernels_that_are_not_deterministic_pass_within_their_tolerance(tmp_path: Path) -> None:
    s = make()
    s.model.dropout = Unsteady()
    found = outcome(tmp_path, s)
    assert found["verdict"] == "worked"
    assert "kernels are not deterministic" in found["text"]
    assert 0 < found["figures"]["relative"] < 1e-4


@pytest.mark.covers("S87")
def test_other_data_and_rounding_are_told_apart(tmp_path: Path) -> None:
    s = make()
    s.loader = torch.utils.data.DataLoader(Restless(), batch_size=4)
    found = outcome(tmp_path, s)
    assert found["verdict"] == "did not"
    assert "the data is not the same from step 1 of 8 on" in found["text"]
    near = compare(ReplayPass([2.0, 1.5], [1, 2], 7), ReplayPass([2.0, 1.50001], [1, 2], 8))
    assert near.kind == "rounding"
    assert near.largest == pytest.approx(1e-5)
    assert near.relative == pytest.approx(5e-6)
    assert compare(ReplayPass([2.0], [1], 7), ReplayPass([2.0], [1], 8)).kind == "rounding"
    assert compare(ReplayPass([2.0], [1], 7), ReplayPass([2.1], [1], 7)).kind == "different"
    assert compare(ReplayPass([2.0], [1], 7), ReplayPass([2.0], [1], 7)).kind == "bit-equal"
