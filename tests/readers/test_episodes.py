"""Returns of an agent, one for each episode, as small programs print them."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run

N = 60
RETURNS = [
    round(200 / (1 + math.exp(-(i - 30) / 8)) + float(x), 1)
    for i, x in enumerate(np.random.default_rng(0).normal(0, 5, N))
]


def write(tmp_path: Path, form: str) -> Path:
    path = tmp_path / "run.log"
    lines = [form.format(i=i, r=r, e=0.99**i, n=i * 37) for i, r in enumerate(RETURNS)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize(
    "form",
    [
        "episode: {i}/1000, score: {r}, e: {e:.2}",
        "episode: {i}   score: {r}   memory length: {n}   epsilon: {e}",
        "Episode {i}\tAverage Score: {r}",
        "Episode {i}\tLast reward: {r}\tAverage reward: {r}",
        "Ep: {i} | Score: {r} | Avg score: 3.0 | eps {e:.3f}",
        "| Reward: {r} | Episode {i}",
        "| Reward: {r} | Episode: {i} |",
        "Score: {r} | Episode {i} | Epsilon {e:.2f}",
    ],
)
def test_the_score_of_an_episode_is_its_reward(tmp_path: Path, form: str) -> None:
    record = read_run(write(tmp_path, form))
    assert record.columns["reward"].logged().tolist() == RETURNS
    assert record.step.tolist() == list(range(N))
    assert "loss" not in record.columns


def test_a_table_of_scores(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("episode", "score"), *enumerate(RETURNS)])
    record = read_run(path)
    assert record.columns["reward"].logged().tolist() == RETURNS
    assert record.step.tolist() == list(range(N))


def test_a_nan_among_the_scores_stays_one(tmp_path: Path) -> None:
    path = write(tmp_path, "episode: {i}, score: {r}, e: {e:.2f}")
    lines = path.read_text().splitlines()
    lines[50] = "episode: 50, score: nan, e: 0.61"
    path.write_text("\n".join(lines) + "\n")
    logged = read_run(path).columns["reward"].logged()
    assert np.flatnonzero(np.isnan(logged)).tolist() == [50]


@pytest.mark.parametrize(
    "form", ["question {i}, score: {r}", "epoch {i}, loss: {e:.3f}, score: {r}"]
)
def test_a_score_without_an_episode_is_no_reward(tmp_path: Path, form: str) -> None:
    try:
        record = read_run(write(tmp_path, form))
    except ReadError:
        return
    assert "reward" not in record.columns
