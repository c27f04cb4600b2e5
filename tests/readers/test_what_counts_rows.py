"""What counts the rows: never the length of an episode, whatever it is called."""

import json
from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

N = 60
LENGTHS = np.random.default_rng(0).integers(20, 200, N).tolist()
TOTALS = np.cumsum(LENGTHS).tolist()


def loss(i: int) -> float:
    return round(3 / (1 + 0.05 * i), 4)


def write(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_is_counted_by_its_episodes_and_not_by_their_lengths(tmp_path: Path) -> None:
    rows = [f"{i},{LENGTHS[i]},{loss(i)}" for i in range(N)]
    record = read_run(write(tmp_path, ["episode,steps,loss", *rows]))
    assert (record.axis, len(record.attempts)) == ("step", 1)
    assert record.step.tolist() == list(range(N))


def test_json_lines_are_counted_by_the_sum_of_the_lengths(tmp_path: Path) -> None:
    rows = [{"steps": LENGTHS[i], "total_env_steps": TOTALS[i], "loss": loss(i)} for i in range(N)]
    record = read_run(write(tmp_path, [json.dumps(row) for row in rows]))
    assert record.step.tolist() == TOTALS


@pytest.mark.parametrize("grows", [False, True])
def test_lengths_alone_count_nothing(tmp_path: Path, grows: bool) -> None:
    # An agent that learns to last has ever longer episodes, and short ones among them.
    factor = np.linspace(1, 9, N) if grows else np.ones(N)
    lengths = (factor * LENGTHS).astype(int).tolist()
    rows = [f"{lengths[i]},{loss(i)}" for i in range(N)]
    record = read_run(write(tmp_path, ["steps,loss", *rows]))
    assert (record.axis, record.num_rows) == ("row", N)
    assert any("'steps' goes up and down" in note for note in record.notes)


def test_a_step_that_falls_at_restarts_still_counts(tmp_path: Path) -> None:
    steps = [*range(30), *range(20, 40), *range(35, 60)]
    rows = [f"{s},{7},{loss(s)}" for s in steps]
    record = read_run(write(tmp_path, ["step,episode,loss", *rows]))
    assert (record.axis, len(record.attempts)) == ("step", 3)


@pytest.mark.parametrize(("num", "ahead"), [(N, 40), (12, 30), (N, 1000)])
def test_two_writers_of_one_table_are_still_parted(tmp_path: Path, num: int, ahead: int) -> None:
    rows = [line for i in range(num) for line in (f"{i + ahead},{loss(i)}", f"{i},{loss(i) + 1}")]
    record = read_run(write(tmp_path, ["step,loss", *rows]))
    assert record.step.tolist() == list(range(ahead, ahead + num))


@pytest.mark.parametrize(
    "form",
    [
        "Ep {i} done in steps={n} | return={r} | q_loss={loss}",
        "Episode {i} steps: {n} reward: {r} loss: {loss}",
        "Epoch {i}: ep_len {n}, steps {n}, loss {loss}",
    ],
)
def test_an_epoch_that_counts_each_row_is_not_divided(tmp_path: Path, form: str) -> None:
    lines = [form.format(i=i, n=LENGTHS[i], r=i / 7, loss=loss(i)) for i in range(N)]
    assert read_run(write(tmp_path, lines)).step.tolist() == list(range(N))


def test_a_limit_that_most_rows_reach_counts_none_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "out.txt"
    ends = np.where(rng.random(50) < 0.9, 1000, rng.integers(60, 900, 50)).tolist()
    path.write_text(
        "".join(
            f"[DQN] Starting Episode {k}/50\n[DQN] Episode {k} - Truncated at step {end}."
            f" Reward: {700 + 90 * rng.normal():.2f}\n"
            for k, end in enumerate(ends, 1)
        )
    )
    record = read_run(path)
    assert record.num_rows == 50
    assert record.step.tolist() == list(range(1, 51))
