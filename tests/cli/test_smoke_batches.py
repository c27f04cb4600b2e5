"""`trimtab smoke --batches` through the command line."""

import json
from pathlib import Path

import pytest

from trimtab.cli import main


def write(path: Path, *rows: dict[str, object]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_batches_of_which_nothing_is_trained_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "b.jsonl", {"input_ids": [5, 6, 7], "labels": [-100, -100, -100]})
    assert main(["smoke", "--batches", file]) == 1
    assert "no label counts" in capsys.readouterr().out
    assert main(["smoke", "--batches", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["passed"] is False
    assert document["findings"][0]["rule"] == "nothing-trained"


def test_batches_in_order_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        tmp_path / "b.jsonl",
        {"input_ids": [[5, 6, 7], [8, 9, 10]], "labels": [[-100, 6, 7], [-100, 9, 10]]},
    )
    assert main(["smoke", "--batches", file]) == 0
    assert "66.7% of 6 tokens in 2 rows count" in capsys.readouterr().out


def test_what_was_not_checked_and_the_sample_are_printed_without_a_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "b.jsonl", {"input_ids": [5, 6, 7], "labels": [-100] * 3})
    assert main(["smoke", "--batches", file]) == 1
    out = capsys.readouterr().out
    assert "5 6 7" in out
    assert "roles" in out
    assert "--tokenizer" in out
    assert main(["smoke", "--batches", file, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["sample"] == "5 6 7"
    assert len(document["not_checked"]) == 1


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"text": 1}', '{"input_ids": 3}'])
def test_what_holds_no_batch_is_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.jsonl").write_text(text)
    assert main(["smoke", "--batches", str(tmp_path / "b.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "b.jsonl" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"input_ids": [1, 2, 3], "labels": "abc"}, "'labels' is 'abc'"),
        ({"input_ids": [[1, 2, 3]], "labels": {"a": 1}}, "'labels' is {'a': 1}"),
        ({"input_ids": [1, 2, 3], "attention_mask": 5}, "'attention_mask' is 5"),
        ({"input_ids": [1, 2, float("inf")]}, "'input_ids' holds inf"),
        ({"input_ids": [1, [2], 3]}, "'input_ids' holds [2]"),
        ({"input_ids": {"0": [1, 2]}}, "'input_ids' is {'0': [1, 2]}"),
        ({"input_ids": [1, 2, 3], "labels": [1, 2]}, "'labels' differ in shape"),
    ],
)
def test_a_batch_of_something_else_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: dict[str, object], said: str
) -> None:
    file = write(tmp_path / "b.jsonl", {"input_ids": [1, 2]}, row)
    assert main(["smoke", "--batches", file]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line
    assert "batch 1" in line
