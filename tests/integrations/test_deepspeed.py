"""The guard around a DeepSpeed engine: the real package on the CPU, a tiny GPT on real text.

One process for each run: an engine leaves groups and settings behind that the next one would find.
"""

import dataclasses
import importlib.util
import multiprocessing
import os
import re
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("deepspeed") is None:
    pytest.skip("needs deepspeed: pip install 'trimtab[deepspeed]'", allow_module_level=True)

from tests.guard.crowd import outcome, run_crowd
from tests.guard.tiny import differences, events_of
from tests.integrations.deepspeed_jobs import (
    BAD_DATA,
    BAD_LR,
    HEALTHY,
    Job,
    all_losses_of,
    losses_of,
    work,
)
from trimtab.checkpoints.sidecar import read_stamp

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
SHORT = dataclasses.replace(HEALTHY, steps=12, warmup_steps=4)
STAGES = [(0, "fp32"), (1, "fp32"), (2, "bf16"), (3, "fp32")]


def go(folder: Path, job: Job, world: int = 1) -> dict[str, Any]:
    """Run a job to its end, or to its kill; return what the first rank wrote."""
    folder.mkdir(exist_ok=True)
    codes = run_crowd(folder, world, job, work=work, timeout_s=500, grace_s=60)
    if job.kill_at is not None:
        assert codes[0] == -9
        return {}
    assert codes == [0] * world
    return outcome(folder, 0, job.tag)


@pytest.fixture(scope="module", autouse=True)
def nursery() -> None:
    """Spare each rank the imports.

    Without effect where other tests have started the fork server.
    """
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tests.integrations.deepspeed_nursery"])
    forkserver.ensure_running()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> float:
    return float(go(tmp_path_factory.mktemp("sound"), Job(stage=1, mode=None))["validation"])


@pytest.mark.parametrize(("stage", "precision"), STAGES)
def test_a_healthy_run_is_bit_for_bit_the_one_without_a_guard(
    tmp_path: Path, stage: int, precision: str
) -> None:
    job = Job(SHORT, stage=stage, precision=precision, mode=None, accumulate=2)
    plain = go(tmp_path / "plain", job)
    guarded = go(tmp_path / "guarded", dataclasses.replace(job, mode="observe"))
    assert losses_of(tmp_path / "guarded", "out") == losses_of(tmp_path / "plain", "out")
    assert len(losses_of(tmp_path / "plain", "out")) == 12
    assert differences(plain["weights"], guarded["weights"]) == []
    assert events_of(tmp_path / "guarded" / "run", "fault") == []


@pytest.mark.parametrize(("stage", "precision"), STAGES)
def test_bad_data_is_left_out_and_an_update_with_a_nan(
    tmp_path: Path, stage: int, precision: str, sound: float
) -> None:
    found = go(tmp_path, Job(BAD_DATA, stage=stage, precision=precision, nan_at=100))
    assert found["actions"] == ["skip-update", "roll-back+skip-data"]
    assert found["skips"] == [(1112, 1207)]
    assert found["validation"] == pytest.approx(sound, rel=0.02)
    _repeats(tmp_path)
    assert events_of(tmp_path / "run", "fault") == []


def _repeats(folder: Path, rank: int = 0) -> None:
    """Between the state gone back to and the first sign, the same steps again, bit for bit."""
    losses = all_losses_of(folder, "out", rank)
    for step in range(131, 140):
        assert len(losses[step]) > 1
        assert losses[step][-1] == losses[step][0]


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_recover_from_bad_data_and_from_a_nan_on_one_of_them(
    tmp_path: Path, stage: int, sound: float
) -> None:
    found = go(tmp_path, Job(BAD_DATA, stage=stage, nan_at=100), world=2)
    other = outcome(tmp_path, 1, "out")
    assert found["actions"] == other["actions"] == ["skip-update", "roll-back+skip-data"]
    assert differences(found["weights"], other["weights"]) == []
    assert found["validation"] == pytest.approx(sound, rel=0.02)
    for rank in (0, 1):
        _repeats(tmp_path, rank)
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.parametrize(("stage", "precision"), STAGES)
def test_a_wrong_rate_is_cut_and_no_tag_of_the_steps_given_up_is_the_latest(
    tmp_path: Path, stage: int, precision: str, sound: float
) -> None:
    job = Job(BAD_LR, stage=stage, precision=precision, tags_every=5, tags_until=140)
    found = go(tmp_path, job)
    assert found["actions"] == ["roll-back+lower-lr"]
    assert found["validation"] / sound <= 1.05
    _repeats(tmp_path)
    latest = (tmp_path / "tags" / "latest").read_text(encoding="utf-8")
    assert latest == "global_step130"
    stamp = read_stamp(tmp_path / "tags" / "global_step140")
    assert stamp is not None
    assert stamp.grade == "poisoned"
    assert events_of(tmp_path / "run", "fault") == []


@pytest.mark.parametrize(("stage", "world"), [(0, 1), (1, 2), (3, 2)])
def test_killed_and_started_again_a_run_goes_on_bit_for_bit(
    tmp_path: Path, stage: int, world: int
) -> None:
    job = Job(SHORT, stage=stage, policy={"checkpoint_every_steps": 4})
    plain = go(tmp_path / "plain", dataclasses.replace(job, mode=None), world)
    run = tmp_path / "guarded"
    go(run, dataclasses.replace(job, tag="killed", kill_at=6), world)
    resumed = go(run, dataclasses.replace(job, tag="resumed"), world)
    _goes_on(tmp_path / "plain", run, first=5)
    assert differences(plain["weights"], resumed["weights"]) == []


def test_a_checkpoint_right_after_an_evaluation_holds_the_weights(tmp_path: Path) -> None:
    """Stage 3 leaves weights gathered after a forward pass without a backward pass."""
    job = Job(SHORT, stage=3, evaluate_at=5)
    plain = go(tmp_path / "plain", dataclasses.replace(job, mode=None))
    run = tmp_path / "guarded"
    go(run, dataclasses.replace(job, tag="killed", kill_at=7))
    resumed = go(run, dataclasses.replace(job, tag="resumed"))
    _goes_on(tmp_path / "plain", run, first=6)
    assert differences(plain["weights"], resumed["weights"]) == []


def _goes_on(plain: Path, run: Path, *, first: int) -> None:
    expected, found = losses_of(plain, "out"), losses_of(run, "resumed")
    assert sorted(found) == list(range(first, 13))
    assert found == {step: expected[step] for step in found}


def test_a_run_goes_on_bit_for_bit_from_the_engines_own_tag(tmp_path: Path) -> None:
    job = Job(SHORT, stage=1, tags_every=4)
    go(tmp_path / "run", dataclasses.replace(job, tag="whole"))
    tags = tmp_path / "run" / "tags"
    stamp = read_stamp(tags / "global_step8")
    assert stamp is not None
    assert (stamp.step, stamp.grade) == (8, "healthy")
    assert (tags / "latest").read_text(encoding="utf-8") == "global_step12"
    go(tmp_path / "run", dataclasses.replace(job, tag="again", load_tag="global_step8"))
    expected, found = (losses_of(tmp_path / "run", tag) for tag in ("whole", "again"))
    assert sorted(found) == list(range(9, 13))
    assert found == {step: expected[step] for step in found}


def test_the_guard_costs_at_most_five_lines() -> None:
    text = (ROOT / "examples" / "deepspeed_gpt.py").read_text(encoding="utf-8")
    marked = [line for line in text.splitlines() if line.endswith("# trimtab")]
    assert 2 <= len(marked) <= 5
    assert f"end in `# trimtab`: {len(marked)} of them" in text


def test_the_example_recovers_from_its_fault(tmp_path: Path) -> None:
    losses = []
    for options in (["--run", "here"], ["--off"]):
        done = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "deepspeed_gpt.py"), *options],
            cwd=tmp_path,
            text=True,
            capture_output=True,
            timeout=500,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
        found = re.search(r"validation loss (\S+) after 240 steps", done.stdout)
        assert found is not None, done.stdout
        losses.append(float(found[1]))
    remedies = [e.data["remedy"] for e in events_of(tmp_path / "here", "action")]
    assert remedies == ["roll-back+lower-lr"]
    assert losses[0] < losses[1]
