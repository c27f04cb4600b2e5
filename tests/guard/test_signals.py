"""Every signal against a computation by hand, from the objects that train."""

import math
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.guard.tiny import (
    Sequences,
    differences,
    guard_of,
    make,
    rows_of,
    state_of,
    train_guarded,
)
from trimtab.guard.distributed.process_group import Ranks
from trimtab.guard.state.checkpoint_io import load_state, save_state
from trimtab.guard.state.serialization import clone, join, split
from trimtab.guard.state.training_state import Training

pytestmark = pytest.mark.torch


def grad_norm_by_hand(model: torch.nn.Module) -> float:
    return math.sqrt(
        sum(float((p.grad.double() ** 2).sum()) for p in model.parameters() if p.grad is not None)
    )


@pytest.mark.covers("S1")
@pytest.mark.parametrize("clip", [None, 0.5])
def test_fifty_grad_norms_agree_with_the_l2_norm_by_hand(
    tmp_path: Path, clip: float | None
) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=50, clip=clip)
    by_hand = []
    for batch in guard:
        guard.backward(s.loss(batch))
        by_hand.append(grad_norm_by_hand(s.model))
        guard.step()
    measured = [row["grad_norm"] for row in rows_of(tmp_path / "run")]
    assert len(measured) == 50
    assert all(math.isfinite(x) for x in measured)
    assert measured == pytest.approx(by_hand, rel=1e-6)


def test_the_grad_norm_under_a_scaler_is_the_unscaled_one(tmp_path: Path) -> None:
    s = make(precision="fp16", init_scale=1024.0)
    guard = guard_of(s, tmp_path / "run", steps=10)
    by_hand = []
    for batch in guard:
        guard.backward(s.loss(batch))
        assert s.scaler is not None
        by_hand.append(grad_norm_by_hand(s.model) / s.scaler.get_scale())
        guard.step()
    measured = [row["grad_norm"] for row in rows_of(tmp_path / "run")]
    assert measured == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.covers("S4")
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_the_loss_scale_of_every_step_is_recorded_skipped_ones_too(
    tmp_path: Path, mode: str
) -> None:
    s = make(precision="fp16", init_scale=1024.0)
    guard = guard_of(s, tmp_path / "run", steps=20, mode=mode)
    scales = []
    assert s.scaler is not None
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number in (4, 11):
            gradient = s.model.output.weight.grad
            assert gradient is not None
            gradient[0, 0] = math.inf
        scales.append(s.scaler.get_scale())
        guard.step()
    rows = rows_of(tmp_path / "run")
    assert [row["loss_scale"] for row in rows] == scales
    assert len(set(scales)) > 2
    assert [row["step"] for row in rows if row["skipped"]] == [5, 12]


@pytest.mark.covers("S7")
def test_the_ledger_is_the_sum_of_the_batch_sizes_through_a_ramp(tmp_path: Path) -> None:
    class Ramp:
        def __iter__(self) -> Iterator[list[int]]:
            first = 0
            for size in (1, 1, 2, 4, 8, 8, 5):
                yield list(range(first, first + size))
                first += size

        def __len__(self) -> int:
            return 7

    s = make()
    s.loader = DataLoader(Sequences(29), batch_sampler=Ramp())
    sizes: list[int] = []
    guard = guard_of(s, tmp_path / "run", steps=14)
    train_guarded(s, guard, on_batch=lambda _, batch: sizes.append(len(batch)))
    rows = rows_of(tmp_path / "run")
    assert sizes == [1, 1, 2, 4, 8, 8, 5] * 2
    assert [row["batch_size"] for row in rows] == sizes
    totals = [sum(sizes[: i + 1]) for i in range(14)]
    assert [row["samples_seen"] for row in rows] == totals
    assert [row["tokens_seen"] for row in rows] == [7 * n for n in totals]


@pytest.mark.covers("S8")
def test_a_sleep_in_one_step_shows_as_that_steps_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the clock that measures, but by a time
    clock = Clock()  # of our own: the machine may be busy
    monkeypatch.setattr("trimtab.guard.state.step_clock.time", clock)
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=30)
    for batch in guard:
        guard.backward(s.loss(batch))
        clock.now += 0.25  # every step
        if guard.step_number == 16:
            clock.now += 1.5
        guard.step()
    times = [row["step_time_s"] for row in rows_of(tmp_path / "run")]
    assert times == pytest.approx([0.25] * 16 + [1.75] + [0.25] * 13)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.mark.covers("S9")
def test_the_rate_is_read_from_the_optimizers_groups(tmp_path: Path) -> None:
    s = make(schedule="none", lr=3e-3)
    guard = guard_of(s, tmp_path / "run", steps=10)
    for batch in guard:
        guard.backward(s.loss(batch))
        if guard.step_number == 5:
            for group in s.optimizer.param_groups:
                group["lr"] = 7e-4
        guard.step()
    assert [row["lr"] for row in rows_of(tmp_path / "run")] == [3e-3] * 5 + [7e-4] * 5


@pytest.mark.covers("S12")
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_an_inf_gradient_counts_as_skipped_and_a_nan_loss_as_nan(tmp_path: Path, mode: str) -> None:
    s = make(precision="fp16", init_scale=256.0)
    guard = guard_of(s, tmp_path / "run", steps=12, mode=mode)
    for batch in guard:
        loss = s.loss(batch)
        if guard.step_number == 7:
            loss = loss * math.nan
        guard.backward(loss)
        if guard.step_number == 3:
            gradient = s.model.output.weight.grad
            assert gradient is not None
            gradient[0, 0] = math.inf
        guard.step()
    rows = rows_of(tmp_path / "run")
    skipped = [row["skipped"] for row in rows]
    assert sum(skipped[:4]) == skipped[3] == 1.0
    nan = [row["nonfinite"] for row in rows[4:]]
    assert sum(nan) == nan[3] == 1.0
    assert math.isnan(rows[7]["loss"])


@pytest.mark.covers("S14", "S15")
def test_adams_second_moment_is_summed_and_its_largest_element_named(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20)
    names = {id(p): n for n, p in s.model.named_parameters()}
    by_hand: dict[int, tuple[float, float, str]] = {}
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        moments = {names[id(p)]: v["exp_avg_sq"] for p, v in s.optimizer.state.items()}
        top = max(moments, key=lambda n: float(moments[n].max()))
        total = sum(float(v.double().abs().sum()) for v in moments.values())
        by_hand[guard.step_number] = (total, float(moments[top].max()), top)
    rows = {row["step"]: row for row in rows_of(tmp_path / "run")}
    assert sorted(k for k, row in rows.items() if "adam_v_l1" in row) == [1, 10, 20]
    for step in (10, 20):
        total, largest, where = by_hand[step]
        assert rows[step]["adam_v_l1"] == pytest.approx(total, rel=1e-5)
        assert rows[step]["adam_v_max"] == largest
        assert rows[step]["adam_v_max_at"] == where


@pytest.mark.covers("S17", "S18")
def test_clip_flags_and_their_running_mean_on_scripted_norms(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=20, clip=2.0)
    script = [3.0 if i % 3 == 0 else 1.0 for i in range(20)]
    for batch in guard:
        guard.backward(s.loss(batch))
        factor = script[guard.step_number] / grad_norm_by_hand(s.model)
        for p in s.model.parameters():
            assert p.grad is not None
            p.grad *= factor
        guard.step()
    rows = rows_of(tmp_path / "run")
    flags = [float(x > 2.0) for x in script]
    assert [row["clipped"] for row in rows] == flags
    assert sum(row["clipped"] for row in rows[6:12]) / 6 == sum(flags[6:12]) / 6 == 2 / 6
    shares = [row["clip_frequency"] for row in rows]
    assert shares == pytest.approx([sum(flags[: i + 1]) / (i + 1) for i in range(20)])
    counts = [share * (i + 1) for i, share in enumerate(shares)]
    assert all(b >= a - 1e-9 for a, b in pairwise(counts))


def test_the_activation_norm_is_the_rms_of_the_last_hidden_state(tmp_path: Path) -> None:
    s = make(dropout=0.0)
    by_hand: list[float] = []

    def look(_: Any, batch: Tensor) -> None:
        with torch.no_grad():
            m = s.model
            hidden = m.norm(functional.gelu(m.hidden(m.embedding(batch[:, :-1]))))
            by_hand.append(float(hidden.double().pow(2).mean().sqrt()))

    guard = guard_of(s, tmp_path / "run", steps=12)
    train_guarded(s, guard, on_batch=look)
    measured = [row["activation_norm"] for row in rows_of(tmp_path / "run")]
    assert measured == pytest.approx(by_hand, rel=1e-6)


def test_the_update_norm_is_what_the_weights_moved(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path / "run", steps=10)
    moved = 0.0
    for batch in guard:
        before = [p.detach().clone() for p in s.model.parameters()]
        guard.backward(s.loss(batch))
        guard.step()
        change = [p.detach() - b for p, b in zip(s.model.parameters(), before, strict=True)]
        moved = math.sqrt(sum(float((c.double() ** 2).sum()) for c in change))
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows if "update_norm" in row] == [1, 10]
    assert rows[-1]["update_norm"] == pytest.approx(moved, rel=1e-5)


@pytest.mark.covers("S130")
@pytest.mark.parametrize("schedule", ["onecycle", "milestones", "sequential", "chained"])
def test_every_item_of_the_state_dicts_survives_the_round_trip(
    tmp_path: Path, schedule: str
) -> None:
    s = make(precision="fp16", schedule=schedule, shuffle=True)
    train_guarded(s, guard_of(s, tmp_path / "run", steps=12))
    state = clone(state_of(s))
    assert len(state["optimizer"]["state"]) == 7
    (tmp_path / "out").mkdir()
    folder = tmp_path / "out" / "step-00000012"
    training = Training(s.model, s.optimizer, s.scheduler, s.scaler)
    alone = Ranks()
    own = {"rng": None, "data": None}
    save_state(
        {"training": state}, own, folder, step=12, attempt="1.0", aside=tmp_path / "a", ranks=alone
    )
    loaded = load_state(folder, training, ranks=alone)
    assert differences(state, loaded["training"]) == []


def test_values_that_json_lacks_survive_the_round_trip() -> None:
    import collections

    import numpy as np

    state: dict[Any, Any] = {
        "nan": math.nan,
        "inf": -math.inf,
        "none": None,
        "tuple": (1, (2.5, "x")),
        7: [True, b := 3],
        "bf16": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3),
        "keys": np.array([2**32 - 1, 5], dtype=np.uint32),
        "a.b": torch.ones(2),
        "a": {"b": torch.zeros(2)},
        "counts": collections.Counter([6, 6, 11]),
        "strided": torch.arange(6).reshape(2, 3).T,
        "number": np.float64(b),
    }
    again = join(*split(state))
    assert again.pop("keys").tolist() == state.pop("keys").tolist()
    assert float(again.pop("number")) == float(state.pop("number"))
    assert differences(state, again) == []


def test_what_cannot_be_saved_is_named() -> None:
    from trimtab.errors import ActError

    with pytest.raises(ActError, match=r"state\.a\.1 is a object"):
        split({"a": [1, object()]})
