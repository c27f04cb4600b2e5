"""Inside a SLURM job: what is read, what is decided, and a real SLURM where there is one."""

import shutil
from pathlib import Path

import pytest

from benchmarks.slurm_drill import SLURM_FAULTS, has_slurm, slurm_drill
from trimtab.chronicle.journal import Event
from trimtab.errors import ConfigError
from trimtab.supervise.slurm import (
    SlurmJob,
    come_back,
    expand_hosts,
    is_requeued,
    next_move,
    signal_steps,
    srun_status,
)

JOB = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[08-10,12],m1", "SLURM_RESTART_COUNT": "2"}


def event(name: str, **data: object) -> Event:
    """Return an event of a supervisor's journal."""
    return Event("2026-03-01T10:00:00.000+00:00", name, "1.0", 7, dict(data))


@pytest.mark.covers("S254")
def test_job_id_and_hosts_are_read_from_the_environment() -> None:
    job = SlurmJob.of_environment(JOB)
    assert job is not None
    assert (job.job_id, job.restart_count) == ("77", 2)
    assert job.hosts == ("gpu08", "gpu09", "gpu10", "gpu12", "m1")
    assert is_requeued(JOB)
    assert not is_requeued({**JOB, "SLURM_RESTART_COUNT": "0"})
    assert SlurmJob.of_environment({}) is None
    assert SlurmJob.of_environment({"SLURM_JOB_ID": "7; rm -rf /"}) is None
    for text in ("n[1-999999999]", "n[a-b]"):
        with pytest.raises(ConfigError, match="n\\["):
            expand_hosts(text)


@pytest.mark.covers("S132")
@pytest.mark.parametrize(
    ("events", "status", "cancelled", "comes_back", "exclude"),
    [
        ([event("end", last_step=50.0)], 143, False, True, ()),
        ([event("end", last_step=50.0)], 0, False, False, ()),
        ([event("end", last_step=50.0)], 143, True, False, ()),
        ([event("gave-up", who="code", excluded=[])], 1, False, False, ()),
        ([event("gave-up", who="node", excluded=["n3"])], 1, False, True, ("n3",)),
        (
            [
                event(
                    "gave-up",
                    who="unknown",
                    excluded=["n3"],
                    line="srun: error: Hostlist is empty!",
                )
            ],
            *(1, False, True, ("n3",)),
        ),
    ],
)
def test_a_job_comes_back_where_that_helps(
    events: list[Event], status: int, cancelled: bool, comes_back: bool, exclude: tuple[str, ...]
) -> None:
    move = next_move(events, status, cancelled=cancelled)
    assert (move.comes_back, move.exclude) == (comes_back, exclude)


@pytest.mark.covers("S131")
def test_a_job_that_makes_no_step_stays_away_after_three_times() -> None:
    events = [event("end", last_step=50.0)]
    for _ in range(3):
        assert next_move(events, 143, cancelled=False).comes_back
        events += [event("note", came_back=True, position=50.0), event("end", last_step=50.0)]
    assert not next_move(events, 143, cancelled=False).comes_back
    events.append(event("end", last_step=60.0))
    assert next_move(events, 143, cancelled=False).comes_back


def test_srun_that_ends_with_0_after_a_lost_host_did_not_succeed() -> None:
    lost = ["step 7 loss 2.0", "srun: error: Node failure on n1"]
    assert [srun_status(c, lost) for c in (0, 2, None)] == [1, 2, None]
    assert srun_status(0, ["I saw srun: error: Node failure on n1 once"]) == 0


def test_outside_of_slurm_nothing_is_signalled_and_nothing_comes_back(tmp_path: Path) -> None:
    assert not signal_steps(("srun", "train"), 15, {})
    assert not signal_steps(("/usr/bin/python", "train.py"), 15, JOB)
    assert come_back("requeue", tmp_path, 143, {}) == ""
    assert come_back("never", tmp_path, 143, JOB) == ""
    assert "stays away" in come_back("requeue", tmp_path, 143, JOB)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("sbatch") is None or not has_slurm(), reason="no SLURM answers")
@pytest.mark.parametrize("name", ["kill", "term", "no-spare"])
def test_under_a_real_slurm_the_run_comes_back_and_ends(name: str) -> None:
    found = slurm_drill([f for f in SLURM_FAULTS if f.name == name], limit_s=90.0)
    assert found[0].right, found[0]
    assert found[0].lost_steps is not None
    assert found[0].lost_steps <= 20
