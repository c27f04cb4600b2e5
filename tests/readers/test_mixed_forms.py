"""A log that goes on in another form is read whole, or says how much of it is not."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import trimtab
from trimtab.readers import read_run
from trimtab.readers.writers import PARTLY


def text(first: int, end: int) -> str:
    return "".join(
        f"step {i} | loss {9 - 0.01 * i:.4f} | lr 1e-4 | norm 1.{i % 7}\n"
        for i in range(first, end)
    )


def other_key(first: int, end: int) -> str:
    return text(first, end).replace("loss", "train loss")


def json_lines(first: int, end: int) -> str:
    rows = ({"step": i, "loss": round(9 - 0.01 * i, 4), "lr": 1e-4} for i in range(first, end))
    return "".join(json.dumps(row) + "\n" for row in rows)


def dicts(first: int, end: int) -> str:
    return "".join(
        f"{{'loss': {9 - 0.01 * i:.4f}, 'learning_rate': 1e-4, 'epoch': {i / 50:.2f}}}\n"
        for i in range(first, end)
    )


def megatron(first: int, end: int) -> str:
    return "".join(
        f" iteration {i:8d}/  500000 | consumed samples: {i * 512} | elapsed time per iteration (ms):"
        f" 1000.1 | learning rate: 1.0E-04 | lm loss: {9 - 0.01 * i:.6E} | grad norm: 1.023 |\n"
        for i in range(first, end)
    )


Form = Callable[[int, int], str]


@pytest.mark.parametrize("num", [60, 300])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (text, json_lines),
        (json_lines, text),
        (text, dicts),
        (dicts, text),
        (megatron, json_lines),
        (json_lines, megatron),
        (megatron, text),
        (text, other_key),
    ],
)
def test_both_halves_are_read_or_one_is_said_not_to_be(
    tmp_path: Path, one: Form, other: Form, num: int
) -> None:
    path = tmp_path / "train.log"
    path.write_text(one(1, num + 1) + other(num + 1, 2 * num + 1))
    record = read_run(path)
    # Within a line or two: what a reader needs at the seam.
    whole = record.num_loss_rows >= 2 * num - 2
    assert whole or any(note.startswith(PARTLY) for note in record.notes)
    (run,) = trimtab.analyze(path).runs
    assert run.verdict == ("healthy" if whole else "not-judged")


@pytest.mark.parametrize("form", [text, json_lines, dicts, megatron])
def test_a_log_of_one_form_says_nothing_of_it(tmp_path: Path, form: Form) -> None:
    path = tmp_path / "train.log"
    held_out = "{'eval_loss': 2.0, 'epoch': 1.0}\n" if form is dicts else ""
    path.write_text("".join(form(i, i + 4) + held_out for i in range(1, 400, 4)))
    record = read_run(path)
    assert record.num_loss_rows == 400
    assert not any(n.startswith(PARTLY) or "another form" in n for n in record.notes)


def test_dicts_of_another_training_behind_the_first_are_told_with_their_keys(
    tmp_path: Path,
) -> None:
    lines = [f"  step {10 * i}/600  loss={12 / (1 + i):.4f}  lr=1.9e-04" for i in range(1, 61)]
    rows = [
        {"loss": 90.5 + i, "grad_norm": 8.25, "rewards/fbeta/mean": 0.125 * i, "epoch": 0.01 * i}
        for i in range(4)
    ]
    path = tmp_path / "train.log"
    path.write_text("\n".join([*lines, "PHASE: GRPO", *map(str, rows)]) + "\n")
    record = read_run(path)
    assert record.num_loss_rows == 60
    (note,) = [n for n in record.notes if "a second run" in n]
    assert note.startswith("4 records of another form")
    assert "'grad_norm'" in note


def test_one_run_that_is_printed_in_two_forms_is_no_second_run(tmp_path: Path) -> None:
    lines = []
    for k in range(200):
        loss = 2.5 - k / 150 + 0.0371 * (k % 7)
        lines.append(f"step {k} loss={loss:.2f} gn=0.5{k % 10}")
        if k % 10 == 9:
            lines.append(str({"loss": round(loss, 4), "learning_rate": 1e-4, "epoch": k / 100}))
    path = tmp_path / "train.log"
    path.write_text("\n".join(lines) + "\n")
    assert not [n for n in read_run(path).notes if "another form" in n]
