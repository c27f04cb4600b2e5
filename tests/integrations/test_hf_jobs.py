"""Hugging Face's Trainer killed and resumed, and on two ranks under torchrun.

DDP and FSDP2 on gloo.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from tests.guard.tiny import differences, events_of  # noqa: E402
from tests.integrations.hf_lab import gpt2, rows_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

ROOT = Path(__file__).parents[2]


def launch(folder: Path, *names: str, ranks: int = 1) -> int:
    """Run jobs in a process of their own, or under torchrun; return the exit code."""
    run = ["-m", "tests.integrations.hf_jobs", str(folder), *names]
    if ranks > 1:
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *run]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return subprocess.run(
        [sys.executable, *run], cwd=folder, env=env, timeout=1500, check=False, capture_output=True
    ).returncode


def outcome(folder: Path, name: str, rank: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}-{rank}.pt", weights_only=True)
    return found


def same_end(folder: Path, straight: str, broken: str, since: int, rank: int = 0) -> bool:
    """Whether a resumed run's losses from a step on and its weights are those of the straight
    one."""
    a, b = outcome(folder, straight, rank), outcome(folder, broken, rank)
    assert min(b["losses"]) == since + 1
    expected = {s: loss for s, loss in a["losses"].items() if s > since}
    return expected == b["losses"] and not differences(a["weights"], b["weights"])


def test_a_killed_run_resumes_bit_equal_from_the_guards_state_or_the_trainers(
    tmp_path: Path,
) -> None:
    assert launch(tmp_path, "plain", "straight") == 0
    assert outcome(tmp_path, "plain")["losses"] == outcome(tmp_path, "straight")["losses"]
    for job in ("killed", "killed-own", "killed-plain"):
        assert launch(tmp_path, job) == -9
    assert launch(tmp_path, "resumed", "resumed-own", "adopted") == 0
    assert same_end(tmp_path, "straight", "resumed", since=10)
    assert same_end(tmp_path, "straight", "resumed-own", since=10)
    assert same_end(tmp_path, "straight", "adopted", since=10)  # its checkpoint knew of no guard


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_two_ranks_observe_recover_and_resume(tmp_path: Path, layout: str) -> None:
    if layout == "fsdp":
        gpt2().save_pretrained(tmp_path / "base")
    assert launch(tmp_path, "plain", "straight", ranks=2) == 0
    for rank in range(2):
        plain, guarded = outcome(tmp_path, "plain", rank), outcome(tmp_path, "straight", rank)
        assert plain["losses"] == guarded["losses"]
        assert len(plain["losses"]) == 30
        assert differences(plain["weights"], guarded["weights"]) == []
    assert launch(tmp_path, "killed", ranks=2) != 0
    if layout == "fsdp":  # the Trainer's own limit: it refuses to save what it could resume from
        assert launch(tmp_path, "killed-plain", ranks=2) != 0
        assert not list((tmp_path / "unguarded").glob("checkpoint-*"))
    assert launch(tmp_path, "resumed", "data", "lr", ranks=2) == 0
    assert all(same_end(tmp_path, "straight", "resumed", since=10, rank=r) for r in range(2))
    ends = [outcome(tmp_path, "data", rank) for rank in range(2)]
    assert differences(ends[0]["weights"], ends[1]["weights"]) == []
    for end in ends:
        assert end["actions"] == ["skip-update", "roll-back+skip-data"]
        ((first, last),) = end["skips"]
        assert first <= 159 * 8
        assert last >= 171 * 8 - 1
        assert end["step"] == 280
    rows = rows_of(tmp_path / "data")
    assert [r["step"] for r in rows if r["skipped"]] == [101]  # on all ranks for the NaN of one
    assert events_of(tmp_path / "data" / "trimtab", "fault") == []
    assert [outcome(tmp_path, "lr", rank)["actions"] for rank in range(2)] == [
        ["roll-back+lower-lr"]
    ] * 2
