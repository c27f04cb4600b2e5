"""Lightning runs of their own processes: killed and resumed, and two ranks under DDP on gloo."""

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("lightning")

import torch

from tests.guard.crowd import outcome, run_crowd
from tests.guard.tiny import differences, events_of
from tests.integrations import lightning_crowd
from tests.integrations.lightning_jobs import STREAMS, Job, end_of, losses_of, work
from tests.integrations.lightning_lab import BAD_DATA
from trimtab.checkpoints.sidecar import read_stamp, verify_stamped
from trimtab.plan.policy import Mode

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 60
PATIENT_S = 400.0


@dataclasses.dataclass(frozen=True)
class Crowd:
    """Ranks, and how they share the model."""

    world: int
    sharded: bool = False


def go(folder: Path, job: Job, crowd: Crowd) -> None:
    killed, world = job.kill_at is not None, crowd.world
    job = dataclasses.replace(job, sharded=crowd.sharded)
    codes = run_crowd(folder, world, job, work=work, timeout_s=PATIENT_S)
    assert codes[0] == (-9 if killed else 0)
    assert killed or codes == [0] * world


CROWDS = {"alone": Crowd(1), "DDP": Crowd(2), "FSDP2": Crowd(2, sharded=True)}


@pytest.fixture(scope="module", params=list(CROWDS.values()), ids=list(CROWDS))
def unbroken(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Crowd]:
    """A guarded run that nobody disturbs, and the same without a guard."""
    folder, crowd = tmp_path_factory.mktemp("unbroken"), request.param
    go(folder, Job(STEPS, "plain", mode=None), crowd)
    go(folder, Job(STEPS, "guarded"), crowd)
    return folder, crowd


def stopped_and_resumed(folder: Path, mode: Mode | None, crowd: Crowd) -> Path:
    """Kill a run and go on from Lightning's own checkpoint of step 32; return its path."""
    folder.mkdir()
    go(folder, Job(STEPS, "killed", mode=mode, own_checkpoints=16, kill_at=47), crowd)
    path = folder / "own" / "step=32.ckpt"
    go(folder, Job(STEPS, "resumed", mode=mode, ckpt_path=str(path)), crowd)
    return path


def assert_goes_on(folder: Path, reference: Path, tag: str, crowd: Crowd, first: int) -> None:
    for rank in range(crowd.world):
        expected, found = (losses_of(*x, rank) for x in ((reference, "guarded"), (folder, tag)))
        assert sorted(found) == list(range(first, STEPS + 1))
        assert found == {step: expected[step] for step in found}
        assert differences(end_of(reference, "guarded", rank), end_of(folder, tag, rank)) == []


def test_killed_and_started_again_a_run_goes_on_bit_for_bit(
    tmp_path: Path, unbroken: tuple[Path, Crowd]
) -> None:
    reference, crowd = unbroken
    for rank in range(crowd.world):
        assert losses_of(reference, "guarded", rank) == losses_of(reference, "plain", rank)
    go(tmp_path, Job(STEPS, "killed", kill_at=47), crowd)
    go(tmp_path, Job(STEPS, "resumed"), crowd)
    assert_goes_on(tmp_path, reference, "resumed", crowd, first=41)
    assert events_of(tmp_path / "run", "fault") == []


def test_lightnings_own_checkpoint_goes_on_bit_for_bit_only_with_the_guard(
    tmp_path: Path, unbroken: tuple[Path, Crowd]
) -> None:
    """Lightning saves no random states and no place in the data.

    With dropout, mid-epoch, it differs.
    """
    reference, crowd = unbroken
    path = stopped_and_resumed(tmp_path / "with", "act", crowd)
    assert_goes_on(tmp_path / "with", reference, "resumed", crowd, first=33)
    if crowd.world == 1:
        stopped_and_resumed(tmp_path / "without", None, crowd)
        found, expected = losses_of(tmp_path / "without", "resumed"), losses_of(reference, "plain")
        assert sorted(found) == list(range(33, STEPS + 1))
        assert all(found[step] != expected[step] for step in found)
    stamp = read_stamp(path)
    assert stamp is not None
    assert (stamp.step, stamp.grade, verify_stamped(path)) == (32, "healthy", "")
    aside = [p.name for p in (tmp_path / "with" / "run" / "aside").iterdir()]
    assert aside == ["step-00000040"]  # ours, of the way that was left


@pytest.mark.parametrize("kind", ["trainer", "fabric"])
def test_two_ranks_recover_from_bad_data_and_from_a_nan_on_one_of_them(
    tmp_path: Path, kind: str
) -> None:
    sound = dataclasses.replace(BAD_DATA, corruption=None)
    clean = lightning_crowd.Job(sound, "sound", trainer=kind == "trainer", guarded=False)
    faulty = lightning_crowd.Job(BAD_DATA, "faulty", trainer=kind == "trainer", nan_at=100)
    for job in (clean, faulty):
        folder = tmp_path / job.tag
        folder.mkdir()
        codes = run_crowd(folder, 2, job, work=lightning_crowd.work, timeout_s=PATIENT_S)
        assert codes == [0, 0]
    theirs = outcome(tmp_path / "sound", 0, "sound")
    ours, other = (outcome(tmp_path / "faulty", rank, "faulty") for rank in (0, 1))
    assert ours["actions"] == other["actions"] == ["skip-update", "roll-back+skip-data"]
    assert ours["skips"] == other["skips"] == [(1112, 1207)]
    assert all(torch.equal(a, b) for a, b in zip(ours["weights"], other["weights"], strict=True))
    assert ours["validation"] == pytest.approx(theirs["validation"], rel=0.01)
    assert events_of(tmp_path / "faulty" / "run", "fault") == []


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_goes_on_bit_for_bit_where_it_was_killed(tmp_path: Path, stream: str) -> None:
    if stream != "IterableDataset":
        pytest.importorskip(stream)
    # it ends and begins anew; if that is the step it resumes from, torchdata's draws another order
    job = Job(STEPS, stream=stream, num_samples=4 * (44 if stream == "torchdata" else 40))
    alone = CROWDS["alone"]
    go(tmp_path, dataclasses.replace(job, tag="whole"), alone)
    (tmp_path / "run").rename(tmp_path / "whole")
    for kill_at, tag in ((17, "first"), (47, "second"), (None, "last")):
        go(tmp_path, dataclasses.replace(job, tag=tag, kill_at=kill_at), alone)
    whole = losses_of(tmp_path, "whole")
    for tag, first, last in (("first", 1, 17), ("second", 11, 47), ("last", 41, STEPS)):
        found = losses_of(tmp_path, tag)
        assert sorted(found) == list(range(first, last + 1))
        assert found == {step: whole[step] for step in found}
    assert differences(end_of(tmp_path, "whole"), end_of(tmp_path, "last")) == []
    assert events_of(tmp_path / "run", "fault") == []
