"""Rewards of the samples of a step in a list, and the mean over them where it is stated."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

NUM = 12
MEANS = np.round(np.random.default_rng(0).normal(size=NUM), 4)


def lines_of(mean: str) -> list[str]:
    """A GRPO loop of its own: the rewards of each step, and every ten steps a summary."""
    lines = []
    for step in range(1, 10 * NUM + 1):
        lines.append(f"  Step {step}: generating 2 candidates for prompt 1/1...")
        lines.append(f"  Generated 2 candidates in {150 + step % 7}.3s, rendering...")
        lines.append(f"  Rewards: [-1.0, 0.{step:04d}85742] ({step % 3}/2 rendered)")
        if step % 10 == 0:
            lines.append(mean.format(s=step, x=MEANS[step // 10 - 1]))
    return lines


@pytest.mark.parametrize(
    "mean",
    [
        "GRPO step {s}/500 | loss: 0.0000 | mean_reward: {x} | KL: 0.0001 | lr: 0.000001",
        "GRPO step {s}/500 | mean_reward: {x} | KL: 0.0001",
        "step {s}: mean_reward = {x}",
        "Step {s} | Mean reward: {x}",
    ],
)
def test_the_mean_is_read_where_it_is_stated(tmp_path: Path, mean: str) -> None:
    path = tmp_path / "grpo_log.txt"
    path.write_text("\n".join(lines_of(mean)) + "\n")
    record = read_run(path)
    assert record.keys["reward"] == "mean reward"
    assert record.columns["reward"].logged().tolist() == MEANS.tolist()
    assert record.step[record.columns["reward"].present].tolist() == list(range(10, 121, 10))


def test_a_mean_on_a_line_behind_that_of_the_loss_is_read(tmp_path: Path) -> None:
    path = tmp_path / "grpo_log.txt"
    mean = "step {s} loss: 0.0{s}\nmean_reward: {x}"
    path.write_text("\n".join(lines_of(mean)) + "\n")
    record = read_run(path)
    assert record.columns["reward"].logged().tolist() == MEANS.tolist()
