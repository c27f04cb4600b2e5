"""Twelve tests that every tool of this kind should have had from day one, lettered (a) to (l).

The letters are those of a survey of such tools: each stands for a failure that one of them shipped.
Where a test stands better beside its like, `ELSEWHERE` says where.
"""

import dataclasses
import importlib.util
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.guard import small_lab
from tests.guard.crowd import Crew, Job, Layout, outcome, run_crowd
from tests.guard.inner import inner
from tests.guard.small_lab import SOUND, guarded
from tests.guard.test_ranks import agree
from tests.guard.tiny import events_of, guard_of, make, rows_of
from trimtab.detectors.contract import Finding
from trimtab.detectors.judge import judge_record
from trimtab.guard import Guard
from trimtab.plan.policy import Policy
from trimtab.plan.trials import DEFAULT_ORDER
from trimtab.testing.curves import lm_curve, make_noise, record_of

if TYPE_CHECKING:
    from trimtab.lab.train import Parts

pytestmark = pytest.mark.torch

ELSEWHERE = {
    "a: a lasting shift of 1 to 3 %": (
        "detectors/test_faults.py",
        "test_a_planted_fault_is_found_in_time",
        "detectors/test_creep.py",
        "test_a_lasting_shift_of_little_more_than_one_per_cent_is_told",
    ),
    "b: a drift of 0.0005 a step": (
        "detectors/test_faults.py",
        "test_a_planted_fault_is_found_in_time",
    ),
    "g: false alarms under AR(1) and t3 noise": (
        "detectors/test_five_events.py",
        "test_at_most_one_false_alarm_in_20000_clean_rows",
    ),
    "j: the scheduler's next step keeps the cut": (
        "guard/test_remedies.py",
        "test_a_cut_rate_stays_cut_through_the_scheduler_and_a_restart",
    ),
    "k: a skipped range is not fed again after a restart": (
        "guard/test_remedies.py",
        "test_skipped_samples_are_never_fed_again_after_a_rollback_a_kill_or_an_epoch",
    ),
    "l: the newest checkpoint is poisoned, an older one is taken": (
        "guard/test_resume.py",
        "test_a_poisoned_checkpoint_is_passed_over",
        "guard/test_grades.py",
        "test_what_was_saved_after_an_onset_that_is_told_later_is_suspect",
    ),
}
"""Item to pairs of a file under tests/ and a test in it."""

Floats = NDArray[np.float64]
AT = 4000


@pytest.mark.parametrize("item", ELSEWHERE)
def test_what_is_tested_elsewhere_is_there(item: str) -> None:
    pairs = iter(ELSEWHERE[item])
    for file, name in zip(pairs, pairs, strict=True):
        path = Path(__file__).parents[1] / file
        spec = importlib.util.spec_from_file_location("looked_at", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        assert callable(getattr(module, name, None)), f"{file} has no {name}"


def quiet(seed: int = 100, rows: int = 9000) -> Floats:
    noise = make_noise(rows, "gaussian", np.random.default_rng(seed))
    return np.asarray(lm_curve(rows) + 0.02 * noise)


def alarms(loss: Floats) -> list[Finding]:
    found = judge_record(record_of(np.arange(1.0, len(loss) + 1), {"loss": loss}))
    return [f for f in found if f.severity != "info"]


def spoil_gradient(guard: Guard, value: float) -> None:
    grad = inner(guard).training.parameters[0].grad
    assert grad is not None
    grad.view(-1)[0] = value


@pytest.mark.parametrize("planted", ["nan loss", "nan gradient", "inf gradient"])
def test_c_one_nan_or_inf_leaves_weights_finite_and_detectors_alive(
    tmp_path: Path, planted: str
) -> None:
    s = make(num_samples=4000)
    guard = guard_of(
        s, tmp_path / "run", steps=125, mode="act", policy=Policy(mode="act", patience_steps=200)
    )
    for batch in guard:
        step = guard.step_number + 1
        loss = s.loss(batch)
        if step == 70 and planted == "nan loss":
            loss = loss * math.nan
        if step == 120:  # the detectors must still see this
            loss = loss * 4
        guard.backward(loss)
        if step == 70 and planted != "nan loss":
            spoil_gradient(guard, math.nan if planted == "nan gradient" else math.inf)
        guard.step()
        assert all(bool(p.isfinite().all()) for p in s.model.parameters())
    rows = rows_of(tmp_path / "run")
    assert [r["step"] for r in rows if r["skipped"]] == [70]
    told = events_of(tmp_path / "run", "finding")
    assert any(e.data["kind"] == "non-finite" and e.step == 70 for e in told)
    assert any(e.data["signal"] == "loss" and e.data["onset"] == 120 for e in told)
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.slow
@pytest.mark.parametrize("asks", [False, True])
def test_d_where_nothing_helps_the_ladder_climbs_and_ends(asks: bool, tmp_path: Path) -> None:
    """What is tried must get stronger, and end, not stay on the first rung.

    Unless it is asked whether updates do it at all: then it is known to be the loop's own.
    """
    parts: list[Parts] = []

    def shake(guard: Guard, loss: Tensor) -> Tensor:
        if guard.step_number + 1 >= 250 and guard.phase != "probe":
            for weight in parts[0].model.parameters():
                weight.data.add_(0.1 * weight.data.std() * torch.randn_like(weight))
        return loss

    scenario = dataclasses.replace(SOUND, steps=700)
    text = small_lab.make_text()
    run = tmp_path / "run"
    arms = tuple(a for a in DEFAULT_ORDER if asks or a != "no-update")
    o = guarded(scenario, text, run, spoil=shake, prepare=parts.append, limit=9000, arms=arms)
    trials = [e.data for e in events_of(run, "attempt") if e.data["trial"]]
    assert (len({t["why"] for t in trials}) >= 4) is not asks
    factors = [math.prod(f for _, f in t.get("lr_cuts") or []) for t in trials]
    assert min(factors) <= 0.25
    assert any("the loop itself" in e.data["why"] for e in events_of(run, "decision")) is asks
    # it stops to act; on the new level it acts again after a calm stretch, and tries no more
    decided = [e.data["what"] for e in events_of(run, "decision")]
    assert "stop acting" in decided
    assert "act again" not in decided[: decided.index("stop acting")]
    assert o.guard.step_number == 700


@pytest.mark.slow
def test_d_a_loss_counted_twice_is_no_plateau_and_is_left_alone(tmp_path: Path) -> None:
    """The same weights give twice the loss on the same data: nothing can be cured, and is tried."""

    def double(guard: Guard, loss: Tensor) -> Tensor:
        return loss * 2 if guard.step_number + 1 >= 250 else loss

    scenario = dataclasses.replace(SOUND, steps=500)
    o = guarded(scenario, small_lab.make_text(), tmp_path / "run", spoil=double)
    decided = [e.data for e in events_of(tmp_path / "run", "decision")]
    (left, *_) = [d for d in decided if d["what"] == "leave alone"]
    assert "the loss is counted differently, x 2 for the same weights" in left["why"]
    assert [e.data["why"] for e in events_of(tmp_path / "run", "attempt")] == ["start"]
    assert o.guard.step_number == 500


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_e_one_lucky_batch_locks_nothing_up(seed: int) -> None:
    loss = quiet(seed)
    loss[AT] *= 0.8
    assert [f for f in alarms(loss) if f.onset_row > AT + 1 or f.kind == "spike"] == []
    loss[AT + 200 : AT + 203] *= 1.5
    assert AT + 200 in {f.onset_row for f in alarms(loss)}


@pytest.mark.parametrize("seed", [100, 101, 102])
def test_f_a_new_regime_is_told_once_and_then_is_the_level_to_judge_by(seed: int) -> None:
    loss = quiet(seed)
    loss[AT:] += 0.3
    told = alarms(loss)
    assert told
    assert all(AT - 64 <= f.onset_row <= AT + 64 for f in told)
    assert max(f.row for f in told) <= AT + 1000, "accepted after a time"
    loss[AT + 3000] *= 1.5
    assert AT + 3000 in {f.onset_row for f in alarms(loss)}, "not blind on the new level"


TIMES = ("step_time_s", "throughput", "host_memory_gib")
"""Signals of the machine, which no two runs have alike."""


def verdicts(run: Path, attempts: tuple[str, ...]) -> list[tuple[Any, ...]]:
    return [
        (
            e.step,
            e.data["kind"],
            e.data["signal"],
            e.data["severity"],
            e.data["onset"],
            e.data["text"],
            e.data["closed"],
        )
        for e in events_of(run, "finding")
        if e.attempt in attempts and e.data["signal"] not in TIMES
    ]


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", [151, 142, 163])
def test_h_killed_in_mid_incident_the_verdicts_are_those_of_an_unbroken_run(
    tmp_path: Path, killed_at: int
) -> None:
    """The loss is three times as high from step 140 on; saved while it was, by hand."""

    def train(run: Path, until: int | None = None, save_at: int = 0) -> None:
        s = make(num_samples=4000)
        guard = guard_of(s, run, steps=230, policy=Policy(checkpoint_every_steps=10**6))
        for batch in guard:
            high = 140 <= guard.step_number + 1 < 200
            guard.backward(s.loss(batch) * (3 if high else 1))
            guard.step()
            if guard.step_number == save_at:
                guard.checkpoint()
                from trimtab.checkpoints.manifest import list_checkpoints, set_grade

                for c in list_checkpoints(run / "checkpoints"):
                    set_grade(c.path, "healthy", "a test: resumed in mid-incident all the same")
            if guard.step_number == until:
                inner(guard).lock.release()
                inner(guard).recorder.close()  # nothing more is written, as after a kill
                return

    train(tmp_path / "straight")
    train(tmp_path / "broken", until=killed_at, save_at=killed_at)
    train(tmp_path / "broken")
    expected = verdicts(tmp_path / "straight", ("1.0",))
    assert any(140 <= v[0] <= killed_at for v in expected), "the incident is open at the kill"
    assert any(v[0] > killed_at for v in expected), "and there is more to be said of it after it"
    assert verdicts(tmp_path / "broken", ("1.0", "1.1")) == expected


def plant_nan(crew: Crew, step: int) -> None:
    """A NaN in one element of the last rank's gradients, after they were reduced."""
    if step == 7 and crew.rank == torch.distributed.get_world_size() - 1:
        grad = next(iter(crew.model.parameters())).grad
        assert grad is not None
        (grad._local_tensor if isinstance(grad, DTensor) else grad)[0, 0] = math.nan


@pytest.mark.parametrize(
    ("layout", "world"),
    [
        ("ddp", 2),
        *(
            pytest.param(layout, world, marks=pytest.mark.slow)
            for layout, world in [
                ("ddp", 4),
                ("fsdp", 2),
                ("fsdp", 4),
                ("tp", 2),
                ("tp", 4),
                ("fsdp+tp", 4),
            ]
        ),
    ],
)
def test_i_an_anomaly_on_one_rank_only_has_one_verdict_on_all(
    tmp_path: Path, layout: Layout, world: int
) -> None:
    job = Job(layout, 12, mode="act", spoil=plant_nan)
    assert run_crowd(tmp_path, world, job) == [0] * world
    rows = rows_of(tmp_path / "run")
    assert [r["step"] for r in rows if r["skipped"]] == [7]
    if layout == "ddp":  # elsewhere a NaN reaches all ranks with the norm
        assert rows[6]["nonfinite_ranks"] == str(world - 1)
    end = outcome(tmp_path)
    assert all(bool(t.isfinite().all()) for t in end["model"].values())
    assert end["actions"] == ["skip-update"]
    assert agree(tmp_path, world)
