"""Under torchrun: a rank that dies in mid-incident is restarted with the others.

And the run recovers.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trimtab
from tests.guard import elastic_script
from tests.guard.tiny import events_of
from trimtab.checkpoints.manifest import newest_healthy

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS = 150


def torchrun(folder: Path, *, restarts: int) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        f"--max-restarts={restarts}",
        "--monitor-interval=0.2",
        "-m",
        elastic_script.__name__,
        str(folder),
        str(STEPS),
    ]
    paths = [str(root), str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(paths),
        # without it gloo finds the addresses of the dead ranks in the store after a restart
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return subprocess.run(
        command, env=environment, cwd=root, capture_output=True, text=True, timeout=600, check=False
    )


def verdict(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "run" / "verdict.json").read_text("utf-8"))
    return found


def test_a_rank_killed_in_mid_incident_is_restarted_and_the_run_ends_healthy(
    tmp_path: Path,
) -> None:
    ended = torchrun(tmp_path, restarts=2)
    assert ended.returncode == 0, ended.stderr[-3000:]
    died_at, life = map(int, (tmp_path / "died").read_text("utf-8").split())
    assert life == 0
    told = verdict(tmp_path)
    wanted = {
        "schema": 1,
        "state": "done",
        "restart": False,
        "step": STEPS,
        "steps": STEPS,
        "resume_step": STEPS,
        "attempt": told["attempt"],
        # the attempt that was killed in mid-incident keeps it open, offline as here
        "verdict": trimtab.analyze(tmp_path / "run").verdict,
        "degraded": "",
        "faults": [],
        "judged": {"steps": STEPS, "of": STEPS, "not_judged": []},
    }
    assert {name: told[name] for name in wanted} == wanted
    assert not told["in_force"]
    run = tmp_path / "run"
    (resume,) = events_of(run, "resume")
    assert resume.step <= 90, "from before the bad data, whatever was saved later"
    assert resume.step < died_at
    (action,) = events_of(run, "action")
    assert action.data["remedy"] == "roll-back+skip-data"
    newest = newest_healthy(run / "checkpoints")
    assert newest is not None
    assert newest.step == STEPS
    assert events_of(run, "fault") == []


def test_without_restarts_the_verdict_says_that_a_restart_makes_sense_and_from_where(
    tmp_path: Path,
) -> None:
    ended = torchrun(tmp_path, restarts=0)
    assert ended.returncode != 0
    told = verdict(tmp_path)
    # killed with the other rank, or left by the error that its end raised here
    assert told["state"] in ("running", "interrupted")
    assert told["restart"]
    step = told["resume_step"]
    assert isinstance(step, int)
    newest = newest_healthy(tmp_path / "run" / "checkpoints")
    assert newest is not None
    assert 0 < step == newest.step <= 90
