"""Forms of public trainers, written from what they print, each with what once was misread in it."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run
from trimtab.record import RunRecord

N, BREAKS = 80, 60


def loss(i: int) -> float:
    return round(6 * math.exp(-i / 20) + 2 + 0.03 * math.sin(7 * i), 4)


def write(tmp_path: Path, line: Callable[[int], str], name: str = "run.log") -> Path:
    path = tmp_path / name
    path.write_text("".join(line(i) + "\n" for i in range(N)))
    return path


def read(tmp_path: Path, line: Callable[[int], str], name: str = "run.log") -> RunRecord:
    return read_run(write(tmp_path, line, name))


@pytest.mark.parametrize("between", ["", ":"])
def test_tacotron_prints_the_iteration_before_the_value(tmp_path: Path, between: str) -> None:
    def line(i: int) -> str:
        value = "nan" if i == BREAKS else f"{loss(i):.6f}"
        held_out = f"\nValidation loss {i}: {loss(i) + 1:9f}  " if i % 20 == 19 else ""
        return f"Train loss {i}{between} {value} Grad Norm {1.2:.6f} {1.9:.2f}s/it{held_out}"

    record = read(tmp_path, line)
    logged = record.columns["loss"].logged()
    assert np.flatnonzero(np.isnan(logged)).tolist() == [BREAKS]
    assert logged[:5].tolist() == [loss(i) for i in range(5)]
    held_out = record.columns["val_loss"]
    assert record.step[held_out.present].tolist() == [19, 39, 59, 79]
    assert held_out.logged()[0] == pytest.approx(loss(19) + 1)


def test_stylegan_logs_a_mean_with_its_spread(tmp_path: Path) -> None:
    def line(i: int) -> str:
        value = {
            "Loss/scores/fake": {"num": 4096, "mean": -1.0, "std": 0.5},
            "Loss/G/loss": {"num": 4096, "mean": 1.0 + 0.01 * i, "std": 0.4},
            "Loss/D/loss": {"num": 4096, "mean": 0.9, "std": 0.4},
            "Progress/kimg": {"num": 1, "mean": 4.0 * i, "std": 0.0},
        }
        return json.dumps(value)

    record = read(tmp_path, line, "stats.jsonl")
    assert record.step.tolist() == [4.0 * i for i in range(N)]
    assert record.keys["generator_loss"] == record.keys["loss"] == "Loss/G/loss"
    assert record.keys["discriminator_loss"] == "Loss/D/loss"
    assert not any("mean over records" in note for note in record.notes)


def test_rsl_rl_has_its_losses_on_lines_of_their_own(tmp_path: Path) -> None:
    def line(i: int) -> str:
        value = math.nan if i >= BREAKS else 1 / (1 + 0.05 * i)
        return "\n".join(
            (
                "#" * 60,
                f"                 Learning iteration {i}/1500",
                f"            Value function loss: {value:.4f}",
                f"                 Surrogate loss: {-0.01 - 0.001 * math.sin(i):.4f}",
                f"                    Mean reward: {0.1 * i:.2f}",
                "-" * 60,
                f"                Total timesteps: {(i + 1) * 98304}",
            )
        )

    path = write(tmp_path, line)
    record = read_run(path)
    assert record.keys["value_loss"] == "value function loss"
    assert record.columns["nonfinite"].logged().tolist() == [float(i >= BREAKS) for i in range(N)]
    assert "reward" in record.columns
    assert any(i.kind == "non-finite" for i in trimtab.analyze(path).incidents)


def test_parts_on_lines_of_their_own_beside_a_whole(tmp_path: Path) -> None:
    def line(i: int) -> str:
        part = "nan" if i == BREAKS else f"{loss(i) / 2:.5f}"
        return f"GLOBAL_STEP: {25 * i}\n | > decoder_loss: {part}\n | > loss: {loss(i):.5f}"

    record = read(tmp_path, line)
    assert record.keys["loss"] == "loss"
    assert "nonfinite" not in record.columns
    assert any("'decoder loss' is NaN" in note for note in record.notes)


def test_another_stage_is_no_part(tmp_path: Path) -> None:
    def line(i: int) -> str:
        return f"step {i} loss {loss(i):.4f}" if i < N // 2 else f"step {i} dpo_loss {loss(i):.4f}"

    record = read(tmp_path, line)
    assert record.columns["loss"].present.sum() == N // 2
    assert not any("only NaN and Inf" in note for note in record.notes)


def test_deepspeed_chat_prints_its_reward_on_the_next_line(tmp_path: Path) -> None:
    def line(i: int) -> str:
        return (
            f"Epoch: 0 | Step: {i} | PPO Epoch: 1 | Actor Loss: {-0.01 - 0.001 * math.sin(i):.6f}"
            f" | Critic Loss: {1 / (1 + i):.6f} | Unsupervised Loss: 0.0\n"
            f"average reward score: {0.05 * i:.4f}"
        )

    record = read(tmp_path, line)
    assert record.columns["reward"].logged().tolist() == [round(0.05 * i, 4) for i in range(N)]
    assert record.keys["value_loss"] == "critic loss"


def test_cleanrl_prints_returns_in_brackets(tmp_path: Path) -> None:
    record = read(tmp_path, lambda i: f"global_step={(i + 1) * 130}, episodic_return=[{20 + i}.]")
    assert record.columns["reward"].logged().tolist() == [20.0 + i for i in range(N)]
    assert record.step.tolist() == [(i + 1) * 130 for i in range(N)]


def test_a_percentage_in_front_of_a_bar_is_no_step(tmp_path: Path) -> None:
    def line(i: int) -> str:
        return f"steps:  {i}%|#    | {i * 10 + 1}/1200 [00:10<10:01,  1.9it/s, avr_loss={loss(i)}]"

    assert read(tmp_path, line).step.tolist() == [i * 10 + 1 for i in range(N)]


def test_spinning_up_has_words_in_one(tmp_path: Path) -> None:
    def line(i: int) -> str:
        rows = (
            ("Epoch", i),
            ("AverageEpRet", 10 + i),
            ("EpLen", 20 + (7 * i) % 13),
            ("LossPi", -0.01 - 0.001 * math.sin(i)),
            ("LossV", 100 / (1 + i)),
            ("Entropy", 0.68),
        )
        text = "\n".join(f"| {key:>17s} | {value:15.3g} |" for key, value in rows)
        return f"{'-' * 39}\n{text}\n{'-' * 39}"

    record = read(tmp_path, line)
    assert {"reward", "policy_loss", "value_loss", "policy_entropy"} <= set(record.columns)
    assert (record.keys["loss"], record.axis) == ("losspi", "epoch")


def test_trax_parts_the_name_from_the_value_by_a_bar(tmp_path: Path) -> None:
    def line(i: int) -> str:
        step = f"Step {100 * (i + 1):6d}:"
        return (
            f"{step} Ran 100 train steps in 12.34 secs\n"
            f"{step} train CrossEntropyLoss |  {loss(i):.8f}\n"
            f"{step} eval  CrossEntropyLoss |  {loss(i) + 1:.8f}"
        )

    record = read(tmp_path, line)
    assert record.columns["loss"].logged().tolist() == [loss(i) for i in range(N)]
    assert record.columns["val_loss"].logged()[0] == pytest.approx(loss(0) + 1)
    assert record.step[0] == 100


def test_rewards_are_counted_by_the_line_above(tmp_path: Path) -> None:
    def line(i: int) -> str:
        return (
            f"Updates {i}, num timesteps {(i + 1) * 640}, FPS 712 \n"
            f" Last 10 training episodes: mean/median reward {1.2 * i:.1f}/{1.1 * i:.1f},"
            " min/max reward 1.0/200.0\n"
        )

    record = read(tmp_path, line)
    assert record.columns["reward"].logged()[10] == 12.0
    assert record.step.tolist() == list(range(N))
