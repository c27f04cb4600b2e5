"""Fabric loops under the guard, killed with SIGKILL and started again.

Alone, under DDP, under FSDP2.
"""

from pathlib import Path

import pytest

pytest.importorskip("lightning")

from tests.guard.crowd import run_crowd
from tests.guard.tiny import differences, events_of
from tests.integrations.fabric_jobs import Job, work
from tests.integrations.lightning_jobs import end_of, losses_of

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 40
PATIENT_S = 400.0
WORLD = {"auto": 1, "ddp": 2, "fsdp2": 2}


def go(folder: Path, job: Job) -> None:
    killed = job.kill_at is not None
    codes = run_crowd(folder, WORLD[job.strategy], job, work=work, timeout_s=PATIENT_S)
    assert codes[0] == (-9 if killed else 0)
    assert killed or not any(codes)


@pytest.mark.parametrize("strategy", WORLD)
def test_killed_at_several_steps_a_loop_goes_on_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    """Before the first checkpoint, right after one, within an epoch and over its end (11 batches,
    or 6)."""
    go(tmp_path, Job(STEPS, "plain", guarded=False, strategy=strategy))
    tags = {"a": (1, 7), "b": (1, 10), "c": (11, 29), "d": (21, None)}
    for tag, (_, kill_at) in tags.items():
        go(tmp_path, Job(STEPS, tag, kill_at=kill_at, strategy=strategy))
    for rank in range(WORLD[strategy]):
        plain = losses_of(tmp_path, "plain", rank)
        assert sorted(plain) == list(range(1, STEPS + 1))
        for tag, (first, last) in tags.items():
            found = losses_of(tmp_path, tag, rank)
            until = max(found)  # a rank that was not killed may be a step behind or ahead
            assert sorted(found) == list(range(first, until + 1))
            assert rank or until == (last or STEPS)
            assert found == {step: plain[step] for step in found}
        assert differences(end_of(tmp_path, "plain", rank), end_of(tmp_path, "d", rank)) == []
    assert events_of(tmp_path / "run", "fault") == []
