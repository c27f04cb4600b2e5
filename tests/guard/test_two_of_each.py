"""Two optimizers and two workers, killed with SIGKILL at random: resumed, they end bit for bit."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.guard.tiny import differences
from tests.guard.two_of_each import STEPS

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


def run(folder: Path, log: Path, *, kill_step: int = 0, kill_after_s: float = 0.0) -> int:
    """Train in a process of its own; return its exit code, negative for a signal."""
    script = [sys.executable, "-m", "tests.guard.two_of_each"]
    given = [str(folder), str(log), str(kill_step), str(kill_after_s)]
    done = subprocess.run([*script, *given], check=False, timeout=120, cwd=ROOT, env=ENVIRONMENT)
    return done.returncode


def losses(log: Path) -> dict[int, str]:
    """The last loss of each step."""
    rows = (line.split() for line in log.read_text().splitlines())
    return {int(step): loss for step, loss in rows}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_killed_run_of_two_optimizers_and_two_workers_ends_bit_for_bit(
    tmp_path: Path, seed: int
) -> None:
    assert run(tmp_path / "whole", tmp_path / "whole.txt") == 0
    draw = random.Random(seed)
    for number in range(2):
        how: dict[str, Any] = {"kill_step": draw.randrange(6, 36)}
        if number == 1:
            how = {"kill_after_s": draw.uniform(0.05, 1.0)}
        assert run(tmp_path / "killed", tmp_path / "killed.txt", **how) in (0, -signal.SIGKILL)
    assert run(tmp_path / "killed", tmp_path / "killed.txt") == 0
    whole, killed = losses(tmp_path / "whole.txt"), losses(tmp_path / "killed.txt")
    assert len(whole) == STEPS
    assert whole == killed
    ends = [torch.load(tmp_path / f"{n}.pt", weights_only=False) for n in ("whole", "killed")]
    assert not differences(*ends)
