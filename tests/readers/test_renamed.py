"""A loss that goes on under another key, or not at all: read on, or said not to be judged."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import trimtab
from benchmarks.logs.event_logs import write_event_file
from trimtab.readers.renamed import renamed

N = 400
_NOISE = 0.03 * np.random.default_rng(0).standard_normal(N)


def loss_at(i: int) -> float:
    return float(2 + 4 * (1 + i / 20) ** -0.4 + _NOISE[i])


def _verdict(path: Path, lines: list[str]) -> tuple[str, int, str]:
    path.write_text("\n".join(lines) + "\n")
    (run,) = trimtab.analyze(path).runs
    return run.verdict, run.record.num_loss_rows, run.judgement.why


def _json(key: str) -> Callable[[int], str]:
    def row(i: int) -> str:
        here: dict[str, object] = {"step": i, key: loss_at(i), "lr": 1e-4}
        if key.startswith("train."):
            here = {"step": i, "lr": 1e-4, "train": {"loss": loss_at(i)}}
        return json.dumps(here)

    return row


@pytest.mark.parametrize("then", ["train_loss", "train/loss", "train.loss"])
def test_a_loss_that_goes_on_under_another_key_is_read_on(tmp_path: Path, then: str) -> None:
    first, second = _json("loss"), _json(then)
    lines = [(first if i < N // 2 else second)(i) for i in range(N)]
    verdict, rows, _ = _verdict(tmp_path / "log.jsonl", lines)
    assert (verdict, rows) == ("healthy", N)


def test_columns_of_a_table_that_follow_each_other_are_one_loss(tmp_path: Path) -> None:
    half = N // 2
    lines = ["step,train_loss,loss,lr"]
    lines += [
        f"{i},{loss_at(i)},,1e-4" if i < half else f"{i},,{loss_at(i)},1e-4" for i in range(N)
    ]
    assert _verdict(tmp_path / "log.csv", lines)[:2] == ("healthy", N)


def test_a_mean_at_the_end_is_none_of_it(tmp_path: Path) -> None:
    rows = [str({"loss": round(loss_at(i), 4), "epoch": i / N}) for i in range(N)]
    rows.append(str({"train_runtime": 100.0, "train_loss": 2.9, "epoch": 1.0}))
    assert _verdict(tmp_path / "log.txt", rows)[1] == N


def test_another_level_under_another_key_is_said_to_be_unread(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": i, "loss": loss_at(i)})
        if i < N // 2
        else json.dumps({"step": i, "train_loss": 512 * loss_at(i)})
        for i in range(N)
    ]
    verdict, rows, why = _verdict(tmp_path / "log.jsonl", lines)
    assert (verdict, rows) == ("not-judged", N // 2)
    assert "'train_loss'" in why


@pytest.mark.parametrize(
    "rows",
    [
        lambda i: json.dumps({"step": i, "lr": 1e-4} | ({"loss": loss_at(i)} if i < 200 else {})),
        lambda i: f"step {i} loss {loss_at(i):.3f} lr 1e-4" if i < 200 else f"step {i} lr 1e-4",
        lambda i: f"step {i} {'loss' if i < 200 else 'ppl'} {loss_at(i):.3f} lr 1e-4",
    ],
)
def test_a_training_that_goes_on_without_its_loss_is_not_judged(
    tmp_path: Path, rows: Callable[[int], str]
) -> None:
    verdict, read, why = _verdict(tmp_path / "train.log", [rows(i) for i in range(N)])
    assert (verdict, read) == ("not-judged", 200)
    assert "no loss" in why


def test_rows_appended_with_another_column_are_not_judged_with_the_rest(tmp_path: Path) -> None:
    lines = ["step,loss,lr"]
    lines += [f"{i},{loss_at(i)},1e-4" + (",0.8" if i >= N // 2 else "") for i in range(N)]
    verdict, _, why = _verdict(tmp_path / "log.csv", lines)
    assert verdict == "not-judged"
    assert "left out" in why


def test_evaluations_behind_the_last_loss_are_no_training(tmp_path: Path) -> None:
    lines = [json.dumps({"step": i, "loss": loss_at(i), "lr": 1e-4}) for i in range(N)]
    lines += [json.dumps({"step": N + i, "val_loss": 2.5, "accuracy": 0.5}) for i in range(60)]
    assert _verdict(tmp_path / "log.jsonl", lines)[2].find("no loss is logged") == -1


def test_keys_that_stand_among_the_others_are_left_out() -> None:
    place, values = np.arange(100), np.linspace(3, 2, 100)
    found = renamed("loss", "loss", place, values, {"train_loss": (place[50:], values[50:])})
    assert (found.joined, found.note) == ((), "")


@pytest.mark.parametrize("then", ["lm_loss", "total_loss"])
def test_what_may_be_another_loss_is_not_joined_and_not_called_healthy(
    tmp_path: Path, then: str
) -> None:
    first, second = _json(then), _json("loss")
    lines = [(first if i < N // 2 else second)(i) for i in range(N)]
    verdict, rows, why = _verdict(tmp_path / "log.jsonl", lines)
    assert (verdict, rows) == ("not-judged", N // 2)
    assert "another" in why


@pytest.mark.parametrize("both", [0, 1])
def test_keys_that_take_turns_are_read_whole(tmp_path: Path, both: int) -> None:
    rows = [
        {"step": i, "train_loss" if 130 <= i < 260 else "loss": loss_at(i)}
        | ({"train_loss": loss_at(i), "loss": loss_at(i)} if both and i == 130 else {})
        for i in range(N)
    ]
    assert _verdict(tmp_path / "log.jsonl", [json.dumps(r) for r in rows])[:2] == ("healthy", N)


def test_tags_of_two_event_files_that_follow_each_other_are_one_loss(tmp_path: Path) -> None:
    half, loss = N // 2, np.array([loss_at(i) for i in range(N)])
    folder = tmp_path / "run"
    folder.mkdir()
    for number, (tag, part) in enumerate(
        [("loss", slice(0, half)), ("train/loss", slice(half, N))]
    ):
        write_event_file(
            folder / f"events.out.tfevents.{1_700_000_000 + 1000 * number}.host",
            {tag: loss[part], "lr": np.full(half, 1e-4)},
            np.arange(N)[part],
            first_wall_s=1.7e9 + 1000 * number,
        )
    (run,) = trimtab.analyze(folder).runs
    assert run.record.num_loss_rows == N
    assert run.verdict == "healthy"
    assert not any("left out" in note for note in run.notes)


@pytest.mark.parametrize(
    "rows",
    [
        lambda i: (
            f"step {i} loss {loss_at(i):.3f} lr 1e-4"
            if i < 200
            else f"[{i}] {loss_at(i):.3f} 1.7e-4"
        ),
        lambda i: (
            json.dumps({"step": i, "loss": loss_at(i)})
            if i < 200
            else f"Iter({i}) total={loss_at(i):.3f}"
        ),
        lambda i: (
            f"| {i:6} | {loss_at(i):.4f} | 1e-4 |" if i < 200 else f"| {i:6} |   None | 1e-4 |"
        ),
    ],
)
def test_lines_that_count_on_behind_the_last_record_are_said_not_to_be_read(
    tmp_path: Path, rows: Callable[[int], str]
) -> None:
    lines = [rows(i) for i in range(N)]
    if lines[0].startswith("|"):
        lines.insert(0, "|  step  |  loss  |  lr  |")
    verdict, read, why = _verdict(tmp_path / "train.log", lines)
    assert (verdict, read) == ("not-judged", 200)
    assert "200 lines count on behind the last record" in why


@pytest.mark.parametrize(
    "behind",
    [
        [f"Test: [{i}/60] acc {0.5 + i / 500:.3f}" for i in range(60)],
        [f"class_{i:02d}  0.{80 + i % 9}  0.{70 + i % 9}" for i in range(60)],
        [f"checkpoint-{i * 40} removed, {i} left" for i in range(60)],
    ],
)
def test_what_follows_a_training_is_no_unread_part(tmp_path: Path, behind: list[str]) -> None:
    lines = [f"step {i} loss {loss_at(i):.3f} lr 1e-4" for i in range(N)]
    assert _verdict(tmp_path / "train.log", lines + behind)[0] == "healthy"
