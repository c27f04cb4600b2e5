"""torchtitan's Trainer killed and resumed, and on two ranks under torchrun.

FSDP2 and tensor parallel on gloo.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchtitan", reason="torchtitan is not installed")
pytest.importorskip("triton", reason="torchtitan 0.3 imports triton on any machine")

from tests.guard.tiny import differences, events_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def launch(folder: Path, *names: str, ranks: int = 1, tp: int = 1) -> int:
    """Run jobs in a process of their own, or under torchrun; return the exit code."""
    run = ["-m", "tests.integrations.titan_jobs", str(folder), str(tp), *names]
    if ranks > 1:
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *run]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *run], cwd=folder, env=env, timeout=1500, check=False, capture_output=True
    ).returncode


def outcome(folder: Path, name: str, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
    return found


def same_end(folder: Path, broken: str, rank: int = 0) -> bool:
    """Whether a resumed run's losses from step 11 on and its weights are those of the straight
    one."""
    a, b = outcome(folder, "straight", rank), outcome(folder, broken, rank)
    assert min(b["losses"]) == 11
    expected = {s: loss for s, loss in a["losses"].items() if s > 10}
    return expected == b["losses"] and not differences(a["weights"], b["weights"])


def test_a_killed_run_resumes_bit_equal_from_the_guards_state_or_torchtitans(
    tmp_path: Path,
) -> None:
    assert launch(tmp_path, "straight") == 0
    assert launch(tmp_path, "killed") == -9
    assert launch(tmp_path, "killed-plain") == -9
    assert launch(tmp_path, "resumed", "adopted") == 0
    assert same_end(tmp_path, "resumed")
    assert same_end(tmp_path, "adopted")  # its checkpoint knew of no guard


@pytest.mark.parametrize("tp", [1, 2], ids=["fsdp", "tp"])
def test_two_ranks_observe_recover_and_resume(tmp_path: Path, tp: int) -> None:
    assert launch(tmp_path, "plain", "straight", ranks=2, tp=tp) == 0
    for rank in range(2):
        plain, seen = outcome(tmp_path, "plain", rank), outcome(tmp_path, "straight", rank)
        assert len(plain["losses"]) == 30
        assert plain["losses"] == seen["losses"]
        assert differences(plain["weights"], seen["weights"]) == []
    assert launch(tmp_path, "killed", ranks=2, tp=tp) != 0
    assert launch(tmp_path, "resumed", "twin", "data", "nan", "lr", ranks=2, tp=tp) == 0
    assert all(same_end(tmp_path, "resumed", rank) for rank in range(2))
    twin = outcome(tmp_path, "twin")["validation"]
    expected = {"data": "roll-back+skip-data", "nan": "skip-update", "lr": "roll-back+lower-lr"}
    for name, remedy in expected.items():
        ends = [outcome(tmp_path, name, rank) for rank in range(2)]
        assert ends[0]["actions"] == ends[1]["actions"] == [remedy]
        assert differences(ends[0]["weights"], ends[1]["weights"]) == []
        assert ends[0]["validation"] / twin < (1.03 if name == "lr" else 1.01)
        assert events_of(tmp_path / name / "trimtab", "fault") == []
