"""Metrics of held-out data by their own names: which way is good, and a collapse of each is told."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.readers import read_run

NUM = 120
SCORES = (
    "f1", "macro_f1", "dice", "mIoU", "psnr", "ssim", "rouge_l", "BLEU", "val_auc", "auroc",
    "recall", "precision", "ndcg", "success_rate", "mAP50", "eval_f1", "test_top5",
    "validation_bleu", "exact_match",
)  # fmt: skip
ERRORS = ("wer", "val_cer", "eval_wer")


def _course(seed: int = 0) -> np.ndarray:
    """Return a share of what can be won, which is lost for good at two thirds."""
    t = np.arange(NUM)
    noise = 0.01 * np.random.default_rng(seed).normal(size=NUM)
    won: np.ndarray = 0.8 * (1 - np.exp(-t / 15)) * np.where(t < 76, 1.0, 0.3) + 0.05 + noise
    return won


def _write(path: Path, key: str, values: np.ndarray) -> Path:
    loss = 0.6 + 1.5 * np.exp(-np.arange(NUM) / 40)
    rows = zip(loss.tolist(), values.tolist(), strict=True)
    path.write_text(
        "\n".join(f"epoch {e} train_loss {x:.4f} {key} {v:.4f}" for e, (x, v) in enumerate(rows))
    )
    return path


def _alarms(path: Path) -> list[str]:
    return [i.headline for i in trimtab.analyze(path).incidents if i.severity != "info"]


@pytest.mark.parametrize("key", SCORES)
def test_a_score_that_is_lost_is_told(tmp_path: Path, key: str) -> None:
    path = _write(tmp_path / "log.txt", key, _course())
    assert read_run(path).keys["eval_score"]
    assert ["the held-out score falls" in text for text in _alarms(path)] == [True]


@pytest.mark.parametrize("key", ERRORS)
def test_an_error_rate_that_comes_back_is_told(tmp_path: Path, key: str) -> None:
    path = _write(tmp_path / "log.txt", key, 60 - 55 * _course())
    assert ["the held-out error rises" in text for text in _alarms(path)] == [True]


@pytest.mark.parametrize("key", ["acc1", "accuracy"])
def test_an_accuracy_without_a_set_that_is_lost_is_told(tmp_path: Path, key: str) -> None:
    path = _write(tmp_path / "log.txt", key, 100 * _course())
    assert ["the accuracy falls" in text for text in _alarms(path)] == [True]


@pytest.mark.parametrize("key", [*SCORES, *ERRORS, "acc1"])
def test_what_gets_better_is_quiet(tmp_path: Path, key: str) -> None:
    won = 0.05 + 0.8 * (1 - np.exp(-np.arange(NUM) / 15))
    won += 0.01 * np.random.default_rng(1).normal(size=NUM)
    path = _write(tmp_path / "log.txt", key, 60 - 55 * won if key in ERRORS else won)
    assert _alarms(path) == []


@pytest.mark.parametrize("key", ["val_ppl", "valid_perplexity"])
def test_validation_in_perplexity_is_validation(tmp_path: Path, key: str) -> None:
    values = np.exp(1 + 2 * np.exp(-np.arange(NUM) / 30))
    record = read_run(_write(tmp_path / "log.txt", key, values))
    assert "perplexity" not in record.columns
    assert record.columns["val_perplexity"].values == pytest.approx(values, abs=1e-4)
    judgement = trimtab.analyze(tmp_path / "log.txt").judgement
    assert "validation" not in str(judgement.not_judged)


def test_of_several_metrics_the_one_that_says_most_is_read(tmp_path: Path) -> None:
    keys = [f"metrics/{k}(B)" for k in ("precision", "recall", "mAP50", "mAP50-95")]
    rows = [",".join(map(str, (e, 3 - 0.1 * e, *(0.1 + 0.02 * e,) * 4))) for e in range(20)]
    (tmp_path / "results.csv").write_text("\n".join([",".join(["epoch", "loss", *keys]), *rows]))
    assert read_run(tmp_path / "results.csv").keys["eval_score"] == "metrics/mAP50-95(B)"


def test_a_share_again_behind_the_held_out_loss_is_held_out(tmp_path: Path) -> None:
    row = "Epoch {e} | Train Loss: {a:.3f} | {n}: {b:.4f} | Val Loss: {c:.3f} | {n}: {d:.4f}"
    for name, signal in (("Acc", "accuracy"), ("Token Acc", "token_accuracy")):
        path = tmp_path / "train.log"
        shown = [
            row.format(e=e, n=name, a=2 - 0.05 * e, b=0.1 + 0.03 * e, c=2.1, d=0.2 + 0.02 * e)
            for e in range(12)
        ]
        path.write_text("\n".join(shown) + "\n")
        record = read_run(path)
        assert record.columns[signal].values[2] == pytest.approx(0.16)
        assert record.columns["eval_score"].values[2] == pytest.approx(0.24)
