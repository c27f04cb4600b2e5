"""Genetic algorithms: the average fitness of a generation is a reward, the best one is none."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.readers import read_run

NUM = 60
FITNESS = np.round(np.random.default_rng(0).normal(size=NUM).cumsum() * 10, 2)


def write(tmp_path: Path, text: str, name: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "key",
    ["AvgFitness", "MeanFitness", "mean_fitness", "Average Fitness", "avg_fitness", "fitness_mean"],
)
@pytest.mark.parametrize("generation", ["Generation", "generation", "gen"])
def test_the_average_fitness_of_a_table_is_its_reward(
    tmp_path: Path, key: str, generation: str
) -> None:
    rows = [f"{i + 1},{FITNESS[: i + 1].max()},{x},0,757" for i, x in enumerate(FITNESS)]
    text = "\n".join([f"{generation},BestFitness,{key},MaxKills,MaxSurvival", *rows])
    record = read_run(write(tmp_path, text + "\n", "training_log.csv"))
    assert record.columns["reward"].logged().tolist() == FITNESS.tolist()
    assert record.keys["reward"] == key
    assert record.step[[0, -1]].tolist() == [1, NUM]


@pytest.mark.parametrize(
    "form",
    [
        "Generation {i}: AvgFitness = {x}, BestFitness = {b}",
        "Generation {i}: BestFitness = {b}, AvgFitness = {x}",
        "Gen {i} | Best Fitness: {b} | Mean Fitness: {x}",
        "[Generation {i}] meanFitness={x} bestFitness={b}",
        "generation {i} best_fitness {b} mean_fitness {x}",
    ],
)
def test_the_average_fitness_of_a_text_is_its_reward(tmp_path: Path, form: str) -> None:
    lines = [
        form.format(i=i + 1, x=x, b=FITNESS[: i + 1].max() + 1.5) for i, x in enumerate(FITNESS)
    ]
    record = read_run(write(tmp_path, "\n".join(lines) + "\n", "out.txt"))
    assert record.columns["reward"].logged().tolist() == FITNESS.tolist()
    assert record.step[[0, -1]].tolist() == [1, NUM]


@pytest.mark.parametrize(
    "form", ["{i},{b},{x}", "Generation {i}: AvgFitness = {x}, BestFitness = {b}"]
)
def test_restarts_are_kept_also_behind_one_generation(tmp_path: Path, form: str) -> None:
    # A population that was started anew at once leaves one row of its own.
    counts = [*range(1, 11), 1, *range(1, 50)]
    rows = [form.format(i=i, b=0.5, x=x) for i, x in zip(counts, FITNESS, strict=True)]
    head = ["Generation,BestFitness,AvgFitness"] if form.startswith("{i},") else []
    record = read_run(write(tmp_path, "\n".join([*head, *rows]) + "\n", "training_log"))
    assert record.columns["reward"].logged().tolist() == FITNESS.tolist()
    assert record.step.tolist() == counts
    assert [a.first_row for a in record.attempts] == [0, 10, 11]


def test_rewards_of_several_episodes_at_one_step_are_one_attempt(tmp_path: Path) -> None:
    # Environments side by side end their episodes at the same step, over and over.
    rows = [f"{2000 * (i // 4)},{x}" for i, x in enumerate(FITNESS)]
    record = read_run(write(tmp_path, "step,reward\n" + "\n".join(rows) + "\n", "rewards.csv"))
    assert len(record.attempts) == 1
