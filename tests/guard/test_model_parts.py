"""Ranks that hold different parts of a model: stages of a pipeline, experts; one run, one verdict.

The truth is the same model in one process: same seed, same data.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.guard.crowd import run_crowd
from tests.guard.model_parts import Job, work
from tests.guard.tiny import events_of, rows_of
from trimtab import analyze

pytestmark = pytest.mark.torch

SOURCES = Path(__file__).resolve().parents[2] / "src"
EXAMPLE = SOURCES.parent / "examples" / "pipeline_gpt.py"
run_parts = partial(run_crowd, work=work, timeout_s=200)


def both(tmp_path: Path, world: int, job: Job) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of the run on several ranks and of the same in one process."""
    alone, many = tmp_path / "alone", tmp_path / "many"
    alone.mkdir()
    many.mkdir()
    assert run_parts(alone, 1, job) == [0]
    assert run_parts(many, world, job) == [0] * world
    return rows_of(many / "run"), rows_of(alone / "run")


def layers_of(run: Path) -> list[dict[str, Any]]:
    """What was measured by block, step after step."""
    lines = (run / "signals" / "layers" / "1.0.jsonl").read_text().splitlines()
    assert len(lines) == 3
    return [json.loads(line) for line in lines]


def assert_same(
    found: list[dict[str, Any]], expected: list[dict[str, Any]], late: tuple[str, ...] = ()
) -> None:
    """Rows are alike; `late`: what is not known in the first step."""
    assert len(found) == len(expected) == 24
    names = ["loss", "grad_norm", "samples_seen", "tokens_seen", "batch_size"]
    for a, b in zip(found, expected, strict=True):
        assert {n: a[n] for n in names} == pytest.approx({n: b[n] for n in names}, rel=2e-4)
        # of the last micro-batch, as of the last forward pass anywhere
        assert a["activation_norm"] == pytest.approx(b["activation_norm"], rel=0.1)
    for name in ("weight_norm", "update_norm", "adam_v_l1", "adam_m_l1", "adam_v_max"):
        mine = [(r["step"], r[name]) for r in found if name in r]
        theirs = {r["step"]: r[name] for r in expected if name in r}
        if name in late:  # that a copy is one is known by the first gradients
            mine = [(s, v) for s, v in mine if s > 1]
        assert len(mine) == len(theirs) - (name in late)
        assert [v for _, v in mine] == pytest.approx([theirs[s] for s, _ in mine], rel=2e-3)
    assert not [r for r in found if "odd_ranks" in r or "nonfinite_ranks" in r]


@pytest.mark.parametrize(
    ("world", "job"),
    [
        (2, Job(num_stages=2)),
        pytest.param(4, Job(num_stages=4, renumber=True, schedule="gpipe"), marks=pytest.mark.slow),
        pytest.param(4, Job(num_stages=2, clip=None), marks=pytest.mark.slow),
        pytest.param(4, Job(num_stages=2, shard=True), marks=pytest.mark.slow),
        (2, Job(experts=True)),
        pytest.param(4, Job(experts=True, clip=None), marks=pytest.mark.slow),
        (2, Job(num_stages=2, uniform=True, renumber=True)),
        (2, Job(num_stages=2, uniform=True, renumber=True, alike=True)),
        pytest.param(2, Job(num_stages=2, frozen=True), marks=pytest.mark.slow),
        pytest.param(
            4,
            Job(num_stages=4, zero_head=True, renumber=True, schedule="gpipe"),
            marks=pytest.mark.slow,
        ),
        pytest.param(2, Job(num_stages=2, tied=True), marks=pytest.mark.slow),
        pytest.param(2, Job(num_stages=2, chunks=2), marks=pytest.mark.slow),
    ],
    ids=[
        "two stages",
        "four alike",
        "stages and replicas",
        "stages and shards",
        "experts",
        "4 ep",
        "uniform",
        "uniform and alike",
        "frozen",
        "zero head",
        "tied",
        "interleaved",
    ],
)
def test_rows_are_those_of_one_process(tmp_path: Path, world: int, job: Job) -> None:
    found, expected = both(tmp_path, world, job)
    assert_same(found, expected, ("weight_norm", "update_norm") if job.uniform or job.tied else ())
    if not job.uniform:
        start = events_of(tmp_path / "many" / "run", "start")[0]
        assert start.data["settings"]["pipeline_parallel_size"] == job.num_stages
    told = [e.data["text"] for e in events_of(tmp_path / "many" / "run", "note")]
    assert any(text.startswith("ranks hold ") for text in told)
    many, alone = (layers_of(tmp_path / which / "run") for which in ("many", "alone"))
    for a, b in zip(many, alone, strict=True):
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=2e-3), a["step"]
        assert a["activation_rms"] == pytest.approx(b["activation_rms"], rel=0.2), a["step"]
    for name in ("expert_load_max", "router_entropy"):
        assert [r[name] for r in found if name in r] == pytest.approx(
            [r[name] for r in expected if name in r], rel=2e-3
        )


def assert_same_part(this: Path, that: Path, rank: int) -> None:
    a, b = (
        torch.load(folder / f"out-{rank}.pt", weights_only=True)["model"] for folder in (this, that)
    )
    assert a.keys() == b.keys()
    assert all(torch.equal(a[k], b[k]) for k in a)


def _break_first_stage(rank: int, step: int, model: nn.Module) -> None:
    if rank == 0 and step == 20:
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(8.0)


def _nan_in_middle(rank: int, step: int, model: nn.Module) -> None:
    if rank == 0 and step == 20:
        with torch.no_grad():
            next(model.parameters())[0] = torch.nan


def test_a_fault_in_one_stage_is_one_verdict_of_the_run(tmp_path: Path) -> None:
    job = Job(num_stages=2, steps=40, spoil=_break_first_stage)
    assert run_parts(tmp_path, 2, job) == [0, 0]
    found = analyze(tmp_path / "run")
    assert found.verdict != "healthy"
    onset = next(i.incident.onset for i in found.incidents if i.severity == "critical")
    assert onset in (19, 20, 21)
    said = (tmp_path / "said.txt").read_text()
    assert said.count("recording to") == 1


def test_a_value_that_is_not_finite_on_one_stage_names_it(tmp_path: Path) -> None:
    job = Job(num_stages=2, steps=30, spoil=_nan_in_middle)
    assert run_parts(tmp_path, 2, job) in ([3, 3], [0, 0])
    rows = rows_of(tmp_path / "run")
    assert math.isnan(rows[19]["grad_norm"])
    assert rows[19]["nonfinite_at"]


def _spoil_weights_once(rank: int, step: int, model: nn.Module) -> None:
    if rank == 0 and step == 60 and not hasattr(model, "spoiled"):
        model.spoiled = True  # type: ignore[assignment]
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(4.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "job"),
    [
        (4, Job(num_stages=2)),
        (4, Job(num_stages=2, shard=True)),
        (2, Job(experts=True)),
    ],
    ids=["stages and replicas", "stages and shards", "experts"],
)
def test_act_takes_all_parts_back_to_the_bit(tmp_path: Path, world: int, job: Job) -> None:
    job = dataclasses.replace(job, mode="act", steps=140)
    sound, faulty = tmp_path / "sound", tmp_path / "faulty"
    sound.mkdir()
    faulty.mkdir()
    assert run_parts(sound, world, job) == [0] * world
    spoiled = dataclasses.replace(job, spoil=_spoil_weights_once)
    assert run_parts(faulty, world, spoiled) == [0] * world
    assert not events_of(sound / "run", "action")
    assert [e.data["remedy"] for e in events_of(faulty / "run", "action")] == ["roll-back"]
    for rank in range(world):
        assert_same_part(sound, faulty, rank)


@pytest.mark.parametrize(
    "job",
    [
        Job(num_stages=2),
        pytest.param(
            Job(num_stages=2, uniform=True, renumber=True, alike=True), marks=pytest.mark.slow
        ),
        pytest.param(Job(experts=True), marks=pytest.mark.slow),
    ],
    ids=["stages", "uniform and alike", "experts"],
)
def test_parts_go_on_from_their_checkpoint_bit_for_bit(tmp_path: Path, job: Job) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    whole.mkdir()
    cut.mkdir()
    assert run_parts(whole, 2, job) == [0, 0]
    assert run_parts(cut, 2, dataclasses.replace(job, stop_at=13)) == [0, 0]
    assert run_parts(cut, 2, job) == [0, 0]
    for rank in range(2):
        assert_same_part(whole, cut, rank)


@pytest.mark.slow
def test_sharded_stages_go_on_and_other_numbers_of_ranks_are_refused(tmp_path: Path) -> None:
    job = Job(num_stages=2, shard=True)
    assert run_parts(tmp_path, 4, Job(num_stages=2, shard=True, stop_at=13)) == [0] * 4
    assert run_parts(tmp_path, 4, job) == [0] * 4
    assert [r["step"] for r in rows_of(tmp_path / "run", "1.1")] == [*range(9, 25)]
    other = tmp_path / "other"
    other.mkdir()
    assert run_parts(other, 2, Job(num_stages=2, stop_at=13)) == [0, 0]
    assert run_parts(other, 4, Job(num_stages=2)) != [0] * 4


def test_a_step_without_a_loss_anywhere_is_refused(tmp_path: Path) -> None:
    assert run_parts(tmp_path, 2, Job(num_stages=2, no_loss=True)) != [0, 0]


def _drop_on_last(rank: int, step: int, model: nn.Module) -> None:
    if rank == 1 and step == 10:
        next(model.parameters()).requires_grad_(False)


def test_a_setting_that_changes_on_one_rank_alone_is_told(tmp_path: Path) -> None:
    assert run_parts(tmp_path, 2, Job(num_stages=2, spoil=_drop_on_last)) == [0, 0]
    notes = [e.data["text"] for e in events_of(tmp_path / "run", "note")]
    assert any("requires_grad" in n and "on rank 1 and not on rank 0" in n for n in notes)
    (changed,) = events_of(tmp_path / "run", "setting-changed")
    assert changed.data["setting"] == "requires_grad"
    assert str(changed.data["where"]).endswith("rank 1")


def test_an_example_needs_five_lines() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "end in `# trimtab`: 5 of them" in text
    assert sum(line.endswith("# trimtab") for line in text.splitlines()) == 5


@pytest.mark.slow
def test_the_example_recovers_from_its_rate(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *command, str(EXAMPLE), "--folder", "here"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    actions = [e.data["remedy"] for e in events_of(tmp_path / "here", "action")]
    assert actions == ["roll-back+lower-lr"]
    assert "worked" in done.stderr
    assert "is slow" not in done.stderr
