"""Keys and lines that mean another thing than they seem to."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

SB3 = """---------------------------------
| rollout/           |          |
|    ep_rew_mean     | {reward:.2f} |
| time/              |          |
|    total_timesteps | {step} |
| train/             |          |
|    entropy_loss    | {entropy:.4f} |
|    loss            | {loss:.3f} |
|    value_loss      | 20.6     |
---------------------------------
"""


def _entropy(num: int) -> np.ndarray:
    rows = np.arange(num)
    entropy: np.ndarray = 0.69 * np.where(rows < 60, 1 - rows / 400, 0.004)
    return entropy


def test_the_entropy_loss_of_an_agent_is_minus_the_entropy(tmp_path: Path) -> None:
    text = "".join(
        SB3.format(reward=10 + 0.1 * i, step=2048 * (i + 1), entropy=-h, loss=3 + 0.01 * (i % 7))
        for i, h in enumerate(_entropy(120))
    )
    (tmp_path / "log.txt").write_text(text)
    entropy = read_run(tmp_path / "log.txt").columns["policy_entropy"].values
    assert entropy == pytest.approx(_entropy(120), abs=1e-4)
    headlines = [i.headline for i in trimtab.analyze(tmp_path / "log.txt").incidents]
    assert any("the policy's entropy collapses" in text for text in headlines)


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("key", ["train/entropy_loss", "losses/entropy_loss"])
def test_the_same_in_a_table_whatever_its_sign(tmp_path: Path, key: str, sign: int) -> None:
    rows = [
        {"step": i, "loss": 3 - 0.01 * i, "reward": 0.1 * i, key: sign * h}
        for i, h in enumerate(_entropy(60).tolist())
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    entropy = read_run(tmp_path / "log.jsonl").columns["policy_entropy"].values
    assert entropy == pytest.approx(_entropy(60))


def test_an_entropy_that_crosses_zero_is_not_judged(tmp_path: Path) -> None:
    rows = [
        {"step": i, "loss": 3 - 0.01 * i, "reward": 0.1 * i, "train/entropy_loss": 0.05 * i - 1}
        for i in range(60)
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    record = read_run(tmp_path / "log.jsonl")
    assert "policy_entropy" not in record.columns
    assert record.unread["train/entropy_loss"] == 60


@pytest.mark.parametrize("form", ["jsonl", "csv", "text"])
def test_a_divergence_beside_a_reconstruction_is_that_of_a_code(tmp_path: Path, form: str) -> None:
    rows = [
        {"step": i, "train/loss": 9.0 - i / 20, "train/recon": 7.0 - i / 20, "train/kl": 2.0}
        for i in range(40)
    ]
    if form == "jsonl":
        text = "\n".join(json.dumps(row) for row in rows)
    elif form == "csv":
        text = "\n".join([",".join(rows[0]), *(",".join(map(str, r.values())) for r in rows)])
    else:
        text = "\n".join(" ".join(f"{k}={v}" for k, v in row.items()) for row in rows)
    (tmp_path / f"log.{form}").write_text(text)
    record = read_run(tmp_path / f"log.{form}")
    assert "policy_kl" not in record.columns
    assert "latent_kl" in record.columns


def test_the_rate_of_an_optimizer_with_a_number_is_the_rate(tmp_path: Path) -> None:
    lines = [
        f"1epoch:train:{100 * i + 1}-{100 * i + 100}batch: loss={9 - i / 10:.3f},"
        f" optim_step_time=0.08, optim0_lr0={1e-5 * (i + 1):.3e}, train_time=1.82"
        for i in range(30)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    rates = read_run(tmp_path / "log.txt").columns["lr"].values
    assert rates == pytest.approx([1e-5 * (i + 1) for i in range(30)])


def _bars(num_epochs: int) -> str:
    states = [
        f"\r{k}/44 [{'=' * k}>{'.' * (44 - k)}] - ETA: 0s - loss: {{a:.4f}}" for k in (0, 11, 33)
    ]
    full = f"\r44/44 [{'=' * 45}] - 0s 2ms/step - loss: {{b:.4f}} - val_loss: {{c:.4f}}\n"
    bars = [
        f"Epoch {e + 1}/{num_epochs}\n"
        + "".join([*states, full]).format(a=3 - e / 20, b=2.9 - e / 20, c=3.1 - e / 20)
        for e in range(num_epochs)
    ]
    return "".join(bars)


def test_the_last_state_of_a_bar_is_the_row(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(_bars(25))
    record = read_run(tmp_path / "log.txt")
    assert record.step.tolist() == list(range(1, 26))
    assert record.columns["loss"].values == pytest.approx([2.9 - e / 20 for e in range(25)])
    assert record.columns["val_loss"].present.all()


def test_of_few_epochs_every_state_of_the_bar_is_a_row(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text(_bars(3))
    assert read_run(tmp_path / "log.txt").num_loss_rows == 12


def test_the_best_round_that_is_printed_again_is_no_row(tmp_path: Path) -> None:
    lines = [
        f"[{i}]\ttraining's binary_logloss: {1 / i:.4f}\tvalid_1's binary_logloss: {0.1 + 1 / i:.4f}"
        for i in range(1, 61)
    ]
    text = "\n".join([*lines, "Early stopping, best iteration is:", lines[39]])
    (tmp_path / "log.txt").write_text(text)
    record = read_run(tmp_path / "log.txt")
    assert record.num_loss_rows == 60
    assert len(record.attempts) == 1


def test_an_evaluation_that_names_its_step_by_its_place_is_read(tmp_path: Path) -> None:
    lines = [
        f"Eval @ {500 * i}: eval_loss = {0.4 + 1 / i:.4f}, eval_acc = {1 - 1 / (i + 2):.4f}"
        for i in range(1, 26)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    record = read_run(tmp_path / "log.txt")
    assert record.step.tolist() == [500.0 * i for i in range(1, 26)]
    assert record.columns["val_loss"].values[0] == pytest.approx(1.4)


def test_a_reward_without_a_loss_is_said_to_be_judged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [
        f"[INFO] Ball. Step: {12000 * i}. Mean Reward: {90 * (1 - np.exp(-i / 20)) + rng.normal():.3f}."
        for i in range(1, 81)
    ]
    (tmp_path / "log.txt").write_text("\n".join(lines))
    found = trimtab.analyze(tmp_path / "log.txt")
    assert found.verdict == "not-judged"
    assert "the reward was judged by itself" in found.judgement.why
