"""The guard on several ranks: right norms, one verdict, one state, under every layout."""

import dataclasses
import json
import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.guard.crowd import Crew, Job, Layout, die, outcome, run_crowd
from tests.guard.inner import inner
from tests.guard.tiny import differences, events_of, rows_of
from trimtab.guard import Guard
from trimtab.plan.policy import Mode

pytestmark = pytest.mark.torch

LAYOUTS: list[tuple[Layout, int]] = [("ddp", 2), ("fsdp", 2), ("tp", 2), ("fsdp+tp", 4)]


def layouts(*fast: Layout) -> list[Any]:
    """All layouts; those that are not named run with the slow tests."""
    return [
        pytest.param(*case, marks=[] if case[0] in fast else pytest.mark.slow) for case in LAYOUTS
    ]


def agree(folder: Path, world: int, tag: str = "out") -> bool:
    """Whether all ranks ended with the same weights, optimizer state, actions and skips."""
    first = outcome(folder, 0, tag)
    parts = ("model", "optimizer", "actions", "skips")
    return all(
        not differences(
            {k: first[k] for k in parts}, {k: outcome(folder, r, tag)[k] for k in parts}
        )
        for r in range(1, world)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "world"), layouts("ddp"))
@pytest.mark.parametrize("clip", [0.5, pytest.param(None, marks=pytest.mark.slow)])
def test_norms_are_those_of_one_process_under_every_sharding(
    tmp_path: Path, layout: Layout, world: int, clip: float | None
) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    alone.mkdir()
    many.mkdir()
    assert run_crowd(alone, 1, Job("alone", 20, clip=clip)) == [0]
    assert run_crowd(many, world, Job(layout, 20, clip=clip)) == [0] * world
    expected, found = rows_of(alone / "run"), rows_of(many / "run")
    assert len(found) == 20
    names = [
        "loss",
        "grad_norm",
        "activation_norm",
        "lr",
        "samples_seen",
        "tokens_seen",
        "batch_size",
    ]
    for a, b in zip(expected, found, strict=True):
        assert {n: b[n] for n in names} == pytest.approx({n: a[n] for n in names}, rel=2e-4)
    for name in ("update_norm", "adam_v_l1", "adam_v_max"):
        assert [r[name] for r in found if name in r] == pytest.approx(
            [r[name] for r in expected if name in r], rel=2e-3
        )
    assert agree(many, world)


@pytest.mark.slow
@pytest.mark.covers("S234")
@pytest.mark.parametrize(("layout", "world"), layouts("ddp")[:2])
def test_observe_is_bitwise_neutral(tmp_path: Path, layout: Layout, world: int) -> None:
    assert_neutral(tmp_path, world, Job(layout, 15))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "world", "how"),
    [
        ("alone", 1, "recompute"),
        ("alone", 1, "accumulate"),
        *((layout, world, "both") for layout in ("ddp", "fsdp") for world in (2, 4)),
    ],
)
def test_observe_is_bitwise_neutral_with_activation_checkpointing_and_accumulation(
    tmp_path: Path, layout: Layout, world: int, how: str
) -> None:
    job = Job(layout, 12, recompute=how != "accumulate", accumulate=1 if how == "recompute" else 3)
    assert_neutral(tmp_path, world, job)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(
    ("layout", "world", "backend"),
    [("alone", 1, "inductor"), ("ddp", 2, "aot_eager"), ("fsdp", 2, "aot_eager")],
)
def test_observe_is_bitwise_neutral_under_compile(
    tmp_path: Path, layout: Layout, world: int, backend: str
) -> None:
    """Several ranks trace the same and skip only the C++ compiler, which takes minutes there."""
    backend = os.environ.get("COMPILE_BACKEND", backend)
    job = Job(layout, 10, compiled=backend, accumulate=2)
    assert_neutral(tmp_path, world, job, timeout_s=400)


def assert_neutral(tmp_path: Path, world: int, job: Job, timeout_s: float = 120) -> None:
    """The plain loop and the guarded one end with the same bits, after the same losses."""
    plain_job = dataclasses.replace(job, tag="plain", mode=None)
    guarded_job = dataclasses.replace(job, tag="guarded")
    assert run_crowd(tmp_path, world, plain_job, timeout_s=timeout_s) == [0] * world
    assert run_crowd(tmp_path, world, guarded_job, timeout_s=timeout_s) == [0] * world
    for rank in range(world):
        plain, guarded = outcome(tmp_path, rank, "plain"), outcome(tmp_path, rank, "guarded")
        assert plain["losses"] == guarded["losses"]
        assert len(set(plain["losses"])) == job.steps * job.accumulate
        assert differences(plain["model"], guarded["model"]) == []
        assert differences(plain["optimizer"], guarded["optimizer"]) == []
    assert events_of(tmp_path / "run", "fault") == []
    assert len(rows_of(tmp_path / "run")) == job.steps


def spoil_from(first: int, count: int, crew: Crew, sample: int, batch: Tensor) -> Tensor:
    """Random tokens on the last rank only, in `count` samples from `first` on."""
    if first <= sample < first + count and crew.rank == torch.distributed.get_world_size() - 1:
        generator = torch.Generator().manual_seed(sample)
        return torch.randint(0, 13, batch.shape, generator=generator)
    return batch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "world"), [*LAYOUTS[:3], ("ddp", 4), ("fsdp", 4), ("tp", 4), ("fsdp+tp", 4)]
)
def test_bad_data_on_one_rank_is_found_and_left_out_by_all(
    tmp_path: Path, layout: Layout, world: int
) -> None:
    spoil = partial(spoil_from, 220 * 8, 20 * 8)
    job = Job(
        layout, 320, mode="act", spoil_batch=spoil, lr=1e-2, policy={"checkpoint_every_steps": 50}
    )
    assert run_crowd(tmp_path, world, job) == [0] * world
    end = outcome(tmp_path)
    assert end["actions"] == ["roll-back+skip-data"]
    ((first, last),) = end["skips"]
    assert first <= 220 * 8 + 8
    assert last >= 240 * 8 - 1
    assert agree(tmp_path, world)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "world"), layouts("fsdp"))
def test_a_rank_that_is_killed_resumes_bit_equal(
    tmp_path: Path, layout: Layout, world: int
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    assert run_crowd(straight, world, Job(layout, 30)) == [0] * world
    codes = run_crowd(broken, world, Job(layout, 30, spoil=partial(die_at, 17)))
    assert -9 in codes
    assert run_crowd(broken, world, Job(layout, 30)) == [0] * world
    for rank in range(world):
        a, b = outcome(straight, rank), outcome(broken, rank)
        assert a["losses"][10:] == b["losses"]
        assert differences(a["model"], b["model"]) == []
        assert differences(a["optimizer"], b["optimizer"]) == []


@pytest.mark.slow
def test_sharded_checkpoints_are_resumed_from_their_copy_bit_for_bit(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    copying = {"copy_to": str(tmp_path / "copies")}
    assert run_crowd(straight, 2, Job("fsdp", 30)) == [0, 0]
    assert -9 in run_crowd(
        broken, 2, Job("fsdp", 30, spoil=partial(die_at, 27), policy=copying), grace_s=0
    )
    shutil.rmtree(broken / "run")
    assert run_crowd(broken, 2, Job("fsdp", 30, policy=copying)) == [0, 0]
    assert [e.data["checkpoint"] for e in events_of(broken / "run", "resume")] != []
    for rank in range(2):
        a, b = outcome(straight, rank), outcome(broken, rank)
        assert a["losses"][-len(b["losses"]) :] == b["losses"]
        assert len(b["losses"]) < 30
        assert differences(a["model"], b["model"]) == []
        assert differences(a["optimizer"], b["optimizer"]) == []


def die_at(at: int, crew: Crew, step: int) -> None:
    if step == at and crew.rank == 1:
        die()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(("fsdp", 2), ("alone", 1), marks=pytest.mark.slow),
        pytest.param(("fsdp", 2), ("fsdp", 4), marks=pytest.mark.slow),
        pytest.param(("tp", 2), ("alone", 1), marks=pytest.mark.slow),
        pytest.param(("alone", 1), ("fsdp", 2), marks=pytest.mark.slow),
        pytest.param(("ddp", 2), ("ddp", 4), marks=pytest.mark.slow),
        pytest.param(("fsdp+tp", 4), ("fsdp", 2), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    tmp_path: Path, before: tuple[Layout, int], after: tuple[Layout, int]
) -> None:
    straight, moved = tmp_path / "straight", tmp_path / "moved"
    straight.mkdir()
    moved.mkdir()
    assert run_crowd(straight, 1, Job("alone", 30)) == [0]
    assert run_crowd(moved, before[1], Job(before[0], 20)) == [0] * before[1]
    assert run_crowd(moved, after[1], Job(after[0], 30)) == [0] * after[1]
    rows = rows_of(moved / "run", "1.1")
    expected = rows_of(straight / "run")[20:]
    assert [r["step"] for r in rows] == [r["step"] for r in expected]
    assert [r["samples_seen"] for r in rows] == [r["samples_seen"] for r in expected]
    assert [r["loss"] for r in rows] == pytest.approx([r["loss"] for r in expected], rel=1e-3)
    notes = [e.data["text"] for e in events_of(moved / "run", "note")]
    assert any(f"saved on {before[1]} ranks, resumed on {after[1]}" in t for t in notes)


def told_to_stop(crew: Crew, step: int) -> None:
    if step == 13 and crew.rank == 1:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_all_ranks_stop_after_the_same_step_when_one_is_told_to(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    straight.mkdir()
    broken.mkdir()
    assert run_crowd(straight, 2, Job("ddp", 30)) == [0, 0]
    assert run_crowd(broken, 2, Job("ddp", 30, spoil=told_to_stop), grace_s=5) == [143, 143]
    assert json.loads((broken / "run" / "verdict.json").read_text())["resume_step"] == 13
    assert run_crowd(broken, 2, Job("ddp", 30)) == [0, 0]
    a, b = outcome(straight), outcome(broken)
    assert a["losses"][13:] == b["losses"]
    assert differences(a["model"], b["model"]) == []


def nan_loss_at(at: int, crew: Crew, step: int, loss: Tensor) -> Tensor:
    return loss * float("nan") if step == at and crew.rank == 1 else loss


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["observe", "act"])
def test_a_nan_on_one_rank_in_the_last_step_ends_the_run_on_all(tmp_path: Path, mode: Mode) -> None:
    job = Job("ddp", 15, mode=mode, spoil_loss=partial(nan_loss_at, 15))
    assert run_crowd(tmp_path, 2, job, timeout_s=60) == [0, 0]
    assert json.loads((tmp_path / "run" / "verdict.json").read_text())["state"] == "done"


def break_judge(crew: Crew, guard: Guard) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("planted")

    if crew.rank == 1:
        object.__setattr__(inner(guard).parts.judgement, "judge_row", fail)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "world"), layouts("ddp")[:2])  # torch clips no mixed tensors
def test_a_fault_on_one_rank_stands_all_down_and_training_goes_on(
    tmp_path: Path, layout: Layout, world: int
) -> None:
    job = Job(layout, 15, tag="plain", mode=None)
    assert run_crowd(tmp_path, world, job) == [0] * world
    job = Job(layout, 15, mode="act", before=break_judge)
    assert run_crowd(tmp_path, world, job) == [0] * world
    for rank in range(world):
        assert outcome(tmp_path, rank)["losses"] == outcome(tmp_path, rank, "plain")["losses"]
    assert len(rows_of(tmp_path / "run")) == 15


def drift_apart(crew: Crew, step: int) -> None:
    """A bit flip on one rank: its weights are no longer the others'."""
    if step == 5 and crew.rank == 1:
        with torch.no_grad():
            next(iter(crew.model.parameters()))[0] += 1.0


@pytest.mark.slow
def test_a_rank_that_no_longer_trains_the_same_model_is_named(tmp_path: Path) -> None:
    assert run_crowd(tmp_path, 2, Job("ddp", 12, spoil=drift_apart)) == [0, 0]
    rows = rows_of(tmp_path / "run")
    assert [r["step"] for r in rows if r.get("odd_ranks")][:1] == [10]
    told = [e for e in events_of(tmp_path / "run", "note") if "rank 1" in e.data["text"]]
    assert len(told) == 1


def nan_then_apart(crew: Crew, step: int) -> None:
    """One element of rank 1's gradient is NaN after the all-reduce; later its weights differ."""
    if step == 4 and crew.rank == 1:
        gradient = list(crew.model.parameters())[1].grad
        assert gradient is not None
        gradient[0, 0] = float("nan")
    if step == 7:
        drift_apart(crew, 5)


@pytest.mark.slow
def test_a_skipped_nan_on_one_rank_names_rank_and_tensor_and_says_nothing_of_its_weights(
    tmp_path: Path,
) -> None:
    assert run_crowd(tmp_path, 2, Job("ddp", 22, mode="act", spoil=nan_then_apart)) == [0, 0]
    rows = rows_of(tmp_path / "run")
    assert (rows[3]["nonfinite_ranks"], rows[3]["nonfinite_at"]) == ("1", "up.0.weight")
    (skipped,) = events_of(tmp_path / "run", "action")
    assert (
        skipped.data["why"]
        == "the gradient's norm is nan on rank 1, in the gradient of up.0.weight"
    )
    apart = [e for e in events_of(tmp_path / "run", "note") if "same model" in e.data["text"]]
    assert [e.step >= 7 for e in apart] == [True]
