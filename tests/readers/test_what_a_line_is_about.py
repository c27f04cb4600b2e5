"""Of which data a line of text is, and which of its numbers counts it."""

import json
from pathlib import Path

import pytest

from trimtab.readers import read_run
from trimtab.record import RunRecord

N = 40
LOSS = [round(3 / (1 + 0.05 * i) + 0.5, 4) for i in range(N)]


def read(tmp_path: Path, lines: list[str], name: str = "train.log") -> RunRecord:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return read_run(path)


def logged(record: RunRecord, name: str) -> list[float]:
    return [float(v) for v in record.columns[name].logged()]


def test_scores_are_of_the_data_that_their_line_begins_with(tmp_path: Path) -> None:
    lines = []
    for i, x in enumerate(LOSS):
        lines += [
            f"Epoch {i + 1}/{N}:",
            f"Train - Loss: {x} | Acc: 0.5{i} | AUC: 0.6",
            f"Val - Loss: {x + 0.2:.4f} | Acc: 0.7{i} | AUC: 0.8{i}",
        ]
    record = read(tmp_path, lines)
    assert logged(record, "accuracy") == [float(f"0.5{i}") for i in range(N)]
    assert logged(record, "eval_score") == [float(f"0.7{i}") for i in range(N)]


def test_a_score_of_a_training_line_is_no_held_out_one(tmp_path: Path) -> None:
    record = read(tmp_path, [f"Train: epoch {i} loss {x} mIoU 0.4" for i, x in enumerate(LOSS)])
    assert "eval_score" not in record.columns
    record = read(tmp_path, [f"epoch {i} train loss {x} mIoU 0.4" for i, x in enumerate(LOSS)])
    assert "eval_score" in record.columns


def test_the_validation_of_a_summary_is_read(tmp_path: Path) -> None:
    lines, at = [], []
    for i, x in enumerate(LOSS):
        epoch, batch = divmod(i, 10)
        lines.append(f"Epoch {epoch + 1} | Batch {100 * (batch + 1)}/1000 | Train Loss {x}")
        if batch == 9:
            lines.append(f"Epoch {epoch + 1} | Train Loss {x} | Valid Loss {x + 0.1:.4f}")
            at.append(round(x + 0.1, 4))
    record = read(tmp_path, lines)
    assert logged(record, "loss") == LOSS
    assert logged(record, "val_loss") == at


def test_a_count_of_a_total_goes_before_the_step_of_the_next_line(tmp_path: Path) -> None:
    lines = []
    for i, x in enumerate(LOSS):
        step = 500 * (i + 1)
        lines += [
            f"Training [====>   ] {step}/90000 | 4.6 it/s | loss={x}",
            f"Saved a checkpoint at step {step} to out/step-{step}",
        ]
    record = read(tmp_path, lines)
    assert record.axis == "step"
    assert record.step.tolist() == [500.0 * (i + 1) for i in range(N)]


@pytest.mark.parametrize("sign", [" is ", ": ", " was "])
def test_two_counts_between_a_loss_and_its_value(tmp_path: Path, sign: str) -> None:
    lines = []
    for i, x in enumerate(LOSS):
        where = f"at epoch {i // 4} and iteration {500 * (i % 4)}"
        lines += [f"Loss {where}{sign}{x}", f"NCE Loss {where}{sign}0.9"]
    record = read(tmp_path, lines)
    assert record.axis == "epoch"
    assert logged(record, "loss") == LOSS


def test_a_share_that_is_clipped_beside_a_policy_is_of_its_ratios(tmp_path: Path) -> None:
    row = {"clip_fraction": 0.1, "policy_loss": -0.01, "approx_kl": 0.01}
    record = read(
        tmp_path,
        [json.dumps({"step": i, "loss": x, **row}) for i, x in enumerate(LOSS)],
        "progress.jsonl",
    )
    assert "clipped" not in record.columns
    assert logged(record, "policy_clip_share") == [0.1] * N


def test_a_line_in_front_tells_evaluations_from_training(tmp_path: Path) -> None:
    lines = []
    for i, x in enumerate(LOSS):
        lines += [
            f"epoch: {i},  loss is: {x}, acc is: 0.5{i}",
            "testing in eval mode ...",
            f"epoch: {i},  loss is: {x + 0.3:.4f}, acc is: 0.4{i}",
            "Now continue training",
        ]
    record = read(tmp_path, lines)
    assert logged(record, "loss") == LOSS
    assert logged(record, "val_loss") == [round(x + 0.3, 4) for x in LOSS]
    assert logged(record, "eval_score") == [float(f"0.4{i}") for i in range(N)]
    assert record.step.tolist() == list(range(N))


def test_an_announcement_before_the_next_epoch_is_none(tmp_path: Path) -> None:
    lines = []
    for i, x in enumerate(LOSS):
        lines += [f"epoch: {i},  loss is: {x}", "Evaluating ...", f"score 0.4{i}"]
    record = read(tmp_path, lines)
    assert logged(record, "loss") == LOSS
    assert "val_loss" not in record.columns


def test_a_score_on_lines_of_its_own_is_read(tmp_path: Path) -> None:
    lines, scores = [], []
    for i, x in enumerate(LOSS):
        lines.append(f"step {10 * (i + 1)} loss {x} lr 0.001")
        if i % 8 == 7:
            scores.append(float(f"0.6{i}"))
            lines.append(f"Validation accuracy: {scores[-1]}")
    record = read(tmp_path, [*lines, "test f1: 0.9"])
    assert logged(record, "eval_score") == scores
    at = record.step[record.columns["eval_score"].present]
    assert at.tolist() == [80.0, 160.0, 240.0, 320.0, 400.0]
    # Of a last report it is no series.
    record = read(tmp_path, [*(t for t in lines if "Val" not in t), "Validation accuracy: 0.9"])
    assert "eval_score" not in record.columns
