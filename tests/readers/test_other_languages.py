"""Logs in other languages are read as English ones are, and English ones are left alone."""

import json
from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.errors import ReadError
from trimtab.readers.other_languages import header_in_english, translator

NUM = 40


def losses(seed: int = 0) -> np.ndarray:
    """A loss that falls."""
    return (
        2 * np.exp(-np.arange(NUM) / 12) + 0.3 + 0.01 * np.random.default_rng(seed).normal(size=NUM)
    )


LINES = {
    "German": "Epoche {n}: Verlust {a:.4f}, Validierungsverlust {b:.4f}, Lernrate 1e-3",
    "French": "Epoque {n} | Perte d'entraînement : {a:.4f} | Perte de validation : {b:.4f}",
    "Spanish": "Época {n}/40 - pérdida de entrenamiento: {a:.4f} - pérdida de validación: {b:.4f}",
    "Portuguese": "Época {n}: perda = {a:.4f}, perda de validação = {b:.4f}",
    "Russian": "Эпоха {n}: потери на обучении {a:.4f}, потери на валидации {b:.4f}",
    "Chinese": "第 {n} 轮 训练损失: {a:.4f} 验证损失: {b:.4f} 准确率: 0.5",
    "Japanese": "エポック {n}: 損失 {a:.4f}, 検証損失 {b:.4f}",
    "Korean": "에폭 {n}: 훈련 손실 {a:.4f}, 검증 손실 {b:.4f}",
    "Turkish": "Epoch {n} Eğitim kaybı: {a:.4f} Doğrulama kaybı: {b:.4f}",  # noqa: RUF001
    "Romanian": "pas {n} | pierdere {a:.4f} | validare pierdere {b:.4f}",
}


@pytest.mark.parametrize("language", LINES)
def test_text_is_read_with_its_loss_and_validation(tmp_path: Path, language: str) -> None:
    loss = losses()
    lines = [LINES[language].format(n=i + 1, a=y, b=y + 0.1) for i, y in enumerate(loss)]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    assert record.step.tolist() == list(range(1, NUM + 1))
    np.testing.assert_allclose(record.columns["loss"].values, np.round(loss, 4))
    np.testing.assert_allclose(record.columns["val_loss"].values, np.round(loss + 0.1, 4))
    assert any("put into English" in note for note in record.notes)


@pytest.mark.parametrize(
    "header",
    [
        "época,perda,perda_validação",
        "epoch,训练损失,验证损失",
        "paso,perdida_entrenamiento,perdida_validacion",
        "epoque;perte;perte_validation",
    ],
)
def test_a_table_is_read_by_its_translated_header(tmp_path: Path, header: str) -> None:
    loss, cut = losses(), ";" if ";" in header else ","
    rows = [cut.join([str(i + 1), f"{y:.4f}", f"{y + 0.1:.4f}"]) for i, y in enumerate(loss)]
    path = tmp_path / "history.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    assert {"loss", "val_loss"} <= record.columns.keys()
    assert record.step.tolist() == list(range(1, NUM + 1))


def test_english_logs_and_english_words_are_left_alone() -> None:
    assert translator(["step 1 loss 2.5", "step 2 loss 2.4", "step 3 loss 2.3"] * 4) is None
    assert translator(["10 strata of 3 media, step 5"] * 10) is None
    assert header_in_english(["pas", "media", "train_loss"]) == ["pas", "media", "train_loss"]


@pytest.mark.parametrize("odd", ["KAY\u0130P", "Verlu\u017ft"])
def test_letters_that_only_a_pattern_takes_for_others_stop_nothing(odd: str) -> None:
    epoch, word = ("d\u00f6nem", "kay\u0131p") if odd.startswith("K") else ("Epoche", "Verlust")
    lines = [f"{epoch} {i} {word}: 2.5" for i in range(4)]
    in_english = translator(lines)
    assert in_english is not None
    assert odd in in_english(f"{odd}: 2.5")
    assert "loss" in in_english(lines[0])


def test_a_persons_own_keys_are_words_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    lines = [f"pas {i} | pierdere {y:.4f}" for i, y in enumerate(losses())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = trimtab.analyze(path, columns={"loss": "pierdere", "step": "pas"})
    assert found.runs[0].record.num_loss_rows == NUM
    table = tmp_path / "history.csv"
    rows = [f"{i},{y:.4f}" for i, y in enumerate(losses())]
    table.write_text("\n".join(["Schritt,Verlust", *rows]) + "\n", encoding="utf-8")
    found = trimtab.analyze(table, columns={"loss": "Verlust", "step": "Schritt"})
    assert found.runs[0].record.num_loss_rows == NUM


@pytest.mark.parametrize("name", ["train_loss.txt", "losses.json"])
def test_a_bare_list_of_numbers_is_what_its_file_is_called(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps([*losses()[:30].tolist(), float("nan")]), encoding="utf-8")
    (record,) = trimtab.read(path)
    assert (record.num_loss_rows, record.step[-1]) == (31, 30)
    other = tmp_path / "numbers.json"
    other.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ReadError):
        trimtab.read(other)


def test_fitness_by_generation_is_a_reward(tmp_path: Path) -> None:
    path = tmp_path / "evolution.txt"
    path.write_text(
        "".join(f"10:44:{i:02d}, Gen {i}, Fitness {100 + i}.00, Species 9\n" for i in range(40)),
        encoding="utf-8",
    )
    (record,) = trimtab.read(path)
    assert record.columns["reward"].values[[0, -1]].tolist() == [100, 139]
    assert record.step[-1] == 39


def test_an_epoch_that_stands_twice_begins_a_run_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    loss = [0.77, *losses()[:39].tolist(), *(losses(1)[:39] + 0.1).tolist()]
    epochs = [1, *range(1, 40), *range(1, 40)]
    rows = [f"{e},{y:.4f}" for e, y in zip(epochs, loss, strict=True)]
    path.write_text("Epoch,Avg Loss\n" + "\n".join(rows) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    assert (record.axis, len(record.attempts)) == ("epoch", 3)


def test_an_error_stands_in_for_the_loss(tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    lines = [f"Iteration: {100 * i}\tError: {y:.9f}\n" for i, y in enumerate(losses())]
    path.write_text("Number of tests: 25\n" + "".join(lines), encoding="utf-8")
    (record,) = trimtab.read(path)
    assert (record.num_loss_rows, record.step[-1]) == (NUM, 3900)


def test_a_log_of_held_out_accuracy_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    lines = [
        f"EPOCH {i + 1} ... Validation Accuracy = {0.9 - y / 4:.3f}\n\n"
        for i, y in enumerate(losses())
    ]
    path.write_text("".join(lines), encoding="utf-8")
    (record,) = trimtab.read(path)
    assert (record.axis, record.num_rows, record.num_loss_rows) == ("epoch", NUM, 0)
    assert record.columns["eval_score"].present.all()


REWARDS = {
    "German": ("Episode {n}: Gesamtbelohnung {r:.2f}, Schritte {k}", "episode"),
    "German, count in English": ("Episode {n}: Belohnung {r:.2f}", "episode"),
    "French": ("Épisode {n} - récompense : {r:.2f}", "episode"),
    "Spanish": ("Episodio {n} | Recompensa: {r:.2f} | Epsilon: 0.5", "episode"),
    "Portuguese": ("Episódio {n}, recompensa = {r:.2f}", "episode"),
    "Russian": ("Эпизод {n} завершён за {k} шагов, награда: {r:.2f}", "episode"),
    "Russian, mean": ("Эпоха {n}: средняя награда = {r:.2f}", "epoch"),
    "Chinese": ("回合 {n}, 总奖励: {r:.2f}", "episode"),
    "Chinese, traditional": ("回合 {n}: 平均獎勵 = {r:.2f}", "episode"),
    "Japanese": ("エピソード {n}: 報酬 = {r:.2f}", "episode"),
    "Korean": ("에피소드 {n} | 보상: {r:.2f}", "episode"),
    "Korean, mean": ("에피소드 {n}: 평균 보상 {r:.2f}", "episode"),
}


@pytest.mark.parametrize("prefix", ["", "2025-03-08 18:23:06,366 - INFO - "])
@pytest.mark.parametrize("language", REWARDS)
def test_rewards_of_an_agent_are_read_without_a_loss(
    tmp_path: Path, language: str, prefix: str
) -> None:
    form, _ = REWARDS[language]
    rewards = np.round(np.random.default_rng(0).normal(size=NUM).cumsum(), 2)
    lines = []
    for i, r in enumerate(rewards):
        lines.append(prefix + form.format(n=44 + i, r=r, k=[6, 3, 100][i % 3]))
        if language == "Russian" and i % 3 == 2:
            lines += [f"{prefix}Эпизод {45 + i}: пройдено {k} шагов" for k in (20, 40, 60)]
    path = tmp_path / "finetune.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    np.testing.assert_allclose(record.columns["reward"].logged(), rewards)
    assert record.step[[0, -1]].tolist() == [44, 43 + NUM]


ACCURACIES = {
    "German": "Epoche {n}: Genauigkeit {a:.4f}",
    "French": "Époque {n} - exactitude : {a:.4f}",
    "Portuguese": "Época {n}: acurácia = {a:.4f}",
    "Russian": "Эпоха {n}, точность: {a:.4f}",
    "Chinese": "第 {n} 轮, 准确率: {a:.4f}",
    "Japanese": "エポック {n}: 正解率 {a:.4f}",
    "Korean": "에폭 {n}: 정확도 {a:.4f}",
}


@pytest.mark.parametrize("language", ACCURACIES)
def test_an_accuracy_alone_is_read(tmp_path: Path, language: str) -> None:
    lines = [ACCURACIES[language].format(n=i + 1, a=0.9 - y / 4) for i, y in enumerate(losses())]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    assert record.num_rows == NUM
    assert {"accuracy", "eval_score"} & record.columns.keys()


LEARNING_RATES = {
    "German": "Schritt {n}: Verlust {a:.4f}, Lernrate {lr}",
    "French": "étape {n} : perte {a:.4f}, taux d'apprentissage {lr}",
    "Spanish": "paso {n}: pérdida {a:.4f}, tasa de aprendizaje {lr}",
    "Portuguese": "passo {n}: perda {a:.4f}, taxa de aprendizado {lr}",
    "Russian": "шаг {n}: потери {a:.4f}, скорость обучения {lr}",
    "Chinese": "步数 {n}: 损失 {a:.4f}, 学习率 {lr}",
    "Chinese, traditional": "步數 {n}: 損失 {a:.4f}, 學習率 {lr}",
    "Japanese": "ステップ {n}: 損失 {a:.4f}, 学習率 {lr}",
    "Korean": "스텝 {n}: 손실 {a:.4f}, 학습률 {lr}",
}


@pytest.mark.parametrize("language", LEARNING_RATES)
def test_the_learning_rate_is_read_beside_the_loss(tmp_path: Path, language: str) -> None:
    form = LEARNING_RATES[language]
    lines = [form.format(n=10 * i, a=y, lr=f"{1e-3 * 0.9**i:.2e}") for i, y in enumerate(losses())]
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (record,) = trimtab.read(path)
    np.testing.assert_allclose(record.columns["loss"].logged(), np.round(losses(), 4))
    assert record.columns["lr"].logged()[0] == pytest.approx(1e-3)
    assert (record.axis, record.step[-1]) == ("step", 390)


def test_prose_about_rewards_in_another_language_is_no_log(tmp_path: Path) -> None:
    for text in (
        "Die Polizei setzt eine Belohnung von 500 Euro aus.\n",
        "Награда 1 степени, 2 класса\n",
        "La recompensa de 100 euros se paga en 3 días.\n",
    ):
        path = tmp_path / "notes.txt"
        path.write_text(text * 20, encoding="utf-8")
        with pytest.raises(ReadError):
            trimtab.read(path)


def test_english_words_decide_no_language() -> None:
    said = ["precision 0.9, recall 0.8, media 3", "exactitude 4 test 5"] * 10
    assert translator(said) is None
    assert translator([f"episode {i} reward 2.5 mean 3.1" for i in range(20)]) is None
