"""Returns of an agent, one for each episode, as small programs print them."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

import trimtab
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


@pytest.mark.parametrize(
    "key",
    [
        "Reward moyen (100 ep)",
        "Reward (100 ep)",
        "Mean reward (last 100)",
        "Avg Reward (last 100 episodes)",
        "Average reward over last 100 episodes",
        "avg score (100)",
        "Score (avg 100)",
        "Reward promedio",
        "Cart reward (100 ep)",
    ],
)
def test_what_says_over_how_many_a_mean_is_taken_is_no_value(tmp_path: Path, key: str) -> None:
    record = read_run(write(tmp_path, f"Episode {{i:4d}}/1000 | {key}: {{r}}"))
    assert record.columns["reward"].logged().tolist() == RETURNS
    assert (record.axis, record.step.tolist()) == ("step", list(range(N)))


@pytest.mark.parametrize("key", ["Max reward (100 ep)", "Reward threshold", "Reward (agent 1)"])
def test_another_quantity_of_a_reward_is_none(tmp_path: Path, key: str) -> None:
    with pytest.raises(ReadError):
        read_run(write(tmp_path, f"Episode {{i:4d}}/1000 | {key}: {{r}}"))


def test_a_few_rewards_that_episodes_count_are_read(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [f"Episode {50 * i}/400 | Mean reward (100 ep): {23 - i}.5" for i in range(1, 9)]
    path.write_text("\n".join([*lines, "Finished. Final mean reward (100 ep): 15.5"]) + "\n")
    assert read_run(path).columns["reward"].logged().tolist() == [23 - i + 0.5 for i in range(1, 9)]
    path.write_text("\n".join(lines[:4]) + "\n")
    with pytest.raises(ReadError):
        read_run(path)


def test_lengths_alone_are_read_and_not_judged(tmp_path: Path) -> None:
    path = write(tmp_path, "Episode {i}\tLast length: {n:5d}\tAverage length: {r}")
    record = read_run(path)
    assert record.columns["episode_length"].logged().tolist() == RETURNS
    assert record.keys["episode_length"] == "average length"
    found = trimtab.analyze(path)
    assert (found.verdict, found.incidents) == ("not-judged", ())


def test_a_length_beside_a_reward_is_the_episode_s(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, "Episode {i} reward: {r} length: {n}"))
    assert record.columns["reward"].logged().tolist() == RETURNS
    assert record.columns["episode_length"].logged().tolist() == [37 * i for i in range(N)]
    record = read_run(write(tmp_path, "Episode {i} score: {r} memory length: {n}"))
    assert "episode_length" not in record.columns


def test_the_same_mean_on_lines_of_its_own_does_not_take_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    lines = [f"Step {1000 * i} | Avg Reward (last 10): {r} | x: 0.2" for i, r in enumerate(RETURNS)]
    best = [f"  saved the best model (avg reward: {r})" for r in RETURNS]
    text = "\n".join(
        f"{line}\n{told}" if i % 3 == 0 else line
        for i, (line, told) in enumerate(zip(lines, best, strict=True))
    )
    path.write_text(text + "\n")
    record = read_run(path)
    assert record.columns["reward"].logged().tolist() == RETURNS
