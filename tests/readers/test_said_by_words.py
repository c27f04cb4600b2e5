"""Names of columns that no list has as a whole, and which of several names of a signal is read."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run
from trimtab.record import RunRecord
from trimtab.said_by_words import is_setting

N = 40
LOSS = [round(2.0 * 0.95**i + 0.3, 4) for i in range(N)]
SCORE = [round(0.9 - 0.6 * 0.9**i, 4) for i in range(N)]
REWARD = [round(-50 + 2.5 * i + (i % 3), 2) for i in range(N)]


def table(tmp_path: Path, columns: Mapping[str, list[float]]) -> Path:
    path = tmp_path / "history.csv"
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, r)) for r in rows)]) + "\n")
    return path


def read(tmp_path: Path, columns: Mapping[str, list[float]]) -> RunRecord:
    return read_run(table(tmp_path, {"epoch": [float(i) for i in range(N)], **columns}))


def has(record: RunRecord, signal: str, values: list[float]) -> bool:
    return signal in record.columns and record.columns[signal].logged().tolist() == values


@pytest.mark.parametrize(
    "key",
    [
        "mean 100 episode reward", "episode reward mean", "avg return (100)", "reward_mean_100",
        "Average reward over last 100 episodes", "running_reward", "train/mean_episode_return",
        "cumulative_reward_mean",
    ],
)  # fmt: skip
def test_a_mean_of_rewards_is_the_reward(tmp_path: Path, key: str) -> None:
    assert has(read(tmp_path, {key: REWARD}), "reward", REWARD)


@pytest.mark.parametrize("key", ["score (mean of 100)", "Total prey reward", "mean_score_100"])
def test_beside_an_episode_a_mean_of_one_agent_or_of_scores_is_the_reward(
    tmp_path: Path, key: str
) -> None:
    columns = {"Episode": [100.0 * i for i in range(1, N + 1)], key: REWARD}
    record = read_run(table(tmp_path, columns))
    assert has(record, "reward", REWARD)
    assert record.step[-1] == 100.0 * N


def test_several_agents_are_named(tmp_path: Path) -> None:
    columns = {"Episode": [float(i) for i in range(N)], "Total cat reward": REWARD}
    record = read_run(table(tmp_path, {**columns, "Total mouse reward": REWARD}))
    assert record.keys["reward"] == "Total cat reward"
    assert any("left out: 'Total mouse reward'" in note for note in record.notes)


@pytest.mark.parametrize(
    "key", ["max 100 episode reward", "reward_std_100", "mean kl reward", "format reward mean"]
)
def test_of_other_quantities_of_a_reward_none_is_it(tmp_path: Path, key: str) -> None:
    assert "reward" not in read(tmp_path, {"loss": LOSS, key: REWARD}).columns


@pytest.mark.parametrize(
    "key",
    [
        "val_dice_coefficient", "valid_balanced_acc", "val_mask_acc", "val_aupr", "val_auprc",
        "val_precision", "val_binary_accuracy", "val_sparse_categorical_accuracy", "test_macro_auc",
        "val_auc_1",
    ],
)  # fmt: skip
def test_a_score_behind_the_name_of_a_set_is_held_out(tmp_path: Path, key: str) -> None:
    record = read(tmp_path, {"loss": LOSS, key: SCORE})
    assert has(record, "eval_score", SCORE)
    assert not record.unread


@pytest.mark.parametrize("key", ["val_best_acc", "val_f1_threshold", "val_acc_std", "val_auc_loss"])
def test_another_quantity_of_a_score_is_none(tmp_path: Path, key: str) -> None:
    assert "eval_score" not in read(tmp_path, {"loss": LOSS, key: SCORE}).columns


def test_the_score_of_a_set_goes_before_one_without(tmp_path: Path) -> None:
    train = [min(1.0, s + 0.05) for s in SCORE]
    record = read(tmp_path, {"loss": LOSS, "dice": train, "test_dice": train, "val_dice": SCORE})
    assert record.keys["eval_score"] == "val_dice"
    assert any("left out: 'dice', 'test_dice'" in note for note in record.notes)


@pytest.mark.parametrize("key", ["train_balanced_acc", "binary_accuracy", "training_acc"])
def test_an_accuracy_of_training(tmp_path: Path, key: str) -> None:
    assert has(read(tmp_path, {"loss": LOSS, key: SCORE}), "accuracy", SCORE)


@pytest.mark.parametrize("key", ["train_loss_total", "total_train_loss", "train_losses"])
def test_the_whole_goes_before_its_parts(tmp_path: Path, key: str) -> None:
    part = [round(x / 2, 4) for x in LOSS]
    record = read(tmp_path, {key: LOSS, "train_loss_ce": part, "val_loss": LOSS})
    assert has(record, "loss", LOSS)
    assert not any("no column is called" in note for note in record.notes)


def test_two_nets_by_the_words_of_their_losses_and_rates(tmp_path: Path) -> None:
    rate = [2e-4] * 20 + [1e-4] * 20
    gen = [round(5 + 4 * np.sin(i / 5), 4) for i in range(N)]
    record = read(
        tmp_path, {"train_loss_d": LOSS, "train_loss_g": gen, "lr_d": rate[::-1], "lr_g": rate}
    )
    assert has(record, "generator_loss", gen)
    assert has(record, "discriminator_loss", LOSS)
    assert has(record, "lr", rate)


def test_a_generator_that_rises_is_no_alarm(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gen = np.where(np.arange(N) < 20, 55.0, 110.0) + rng.normal(size=N)
    columns = {"train_loss_d": LOSS, "train_loss_g": gen.round(3).tolist()}
    path = table(tmp_path, {"epoch": [float(i) for i in range(N)], **columns})
    loud = [i for i in trimtab.analyze(path).incidents if i.severity != "info"]
    assert not [i for i in loud if i.kind == "divergence"]


@pytest.mark.parametrize("test_loss", [[0.05] * N, LOSS])
def test_validation_goes_before_test(tmp_path: Path, test_loss: list[float]) -> None:
    val = [round(x + 0.1, 4) for x in LOSS]
    record = read(tmp_path, {"train_loss": LOSS, "val_loss": val, "test_loss": test_loss})
    assert has(record, "val_loss", val)


def test_a_constant_goes_behind_what_moves(tmp_path: Path) -> None:
    moves = [round(x + 0.1, 4) for x in LOSS]
    record = read(tmp_path, {"train_loss": LOSS, "val_loss": [0.05] * N, "test_loss": moves})
    assert has(record, "val_loss", moves)


def test_validation_goes_before_test_in_text(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"epoch {i} train_loss {x} test_loss 0.05 val_loss {x + 0.1:.4f}\n"
            for i, x in enumerate(LOSS)
        )
    )
    record = read_run(path)
    assert record.keys["val_loss"] == "val loss"


@pytest.mark.parametrize(
    "key",
    [
        "val_prec", "eval_prec1", "test_prec@5", "val_hr", "val/hit_ratio@10", "test_top5", "val_dsc",
        "recall@50", "hits@3", "hit_ratio@10", "ndcg@k", "validation/main/bleu",
    ],
)  # fmt: skip
def test_a_metric_of_a_set_or_of_a_ranking_is_a_score(tmp_path: Path, key: str) -> None:
    record = read(tmp_path, {"train_loss": LOSS, key: SCORE})
    assert has(record, "eval_score", SCORE)
    assert record.keys["eval_score"] == key


@pytest.mark.parametrize("key", ["val_rec", "cache_hit_rate", "val_hit_count", "hits", "prec@1"])
def test_what_may_be_another_quantity_is_no_score(tmp_path: Path, key: str) -> None:
    assert "eval_score" not in read(tmp_path, {"train_loss": LOSS, key: SCORE}).columns


def test_of_two_domains_each_set_is_its_own(tmp_path: Path) -> None:
    columns = {"train_loss": LOSS, "source_train_acc": SCORE[::-1], "target_val_acc": SCORE}
    record = read(tmp_path, columns)
    assert has(record, "eval_score", SCORE)
    assert has(record, "accuracy", SCORE[::-1])
    assert "eval_score" not in read(tmp_path, {"train_loss": LOSS, "target_acc": SCORE}).columns


def test_a_total_by_its_short_name_goes_before_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        "".join(
            f"Epoch {i} train Loc Loss: {x:.4f} Cls Loss: {x:.4f} Tot Loss: {2 * x:.4f} Accu :0.1\n"
            for i, x in enumerate(LOSS)
        )
    )
    record = read_run(path)
    assert record.keys["loss"] == "tot loss"
    assert record.columns["loss"].values == pytest.approx(2 * np.array(LOSS), abs=1e-4)


def test_a_parameter_of_a_layer_is_no_setting() -> None:
    assert not any(map(is_setting, ("layers.12.attn.weight", "h.3/mlp/weight", "top5 ratio")))


def test_what_is_frozen_or_quantized_is_a_setting() -> None:
    assert all(
        map(is_setting, ("frozen", "quant on", "trainable params m", "swa", "frozen layers"))
    )


def test_of_very_many_names_of_settings_the_first_are_kept(tmp_path: Path) -> None:
    letters = [a + b for a in "abcdefgh" for b in "abcdefgh"]
    rows = [
        {"step": i, "loss": 3 - i / 99, **{f"{k} weight": float(i > 30) for k in letters}}
        for i in range(60)
    ]
    path = tmp_path / "wide.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    record = read_run(path)
    kept = record.keys["stated_setting"].split(", ")
    assert 1 < len(kept) <= 32
    assert kept == [f"{k} weight" for k in letters[: len(kept)]]
