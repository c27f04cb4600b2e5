"""Hostile logs end within seconds and little memory, in a record, a note or one sentence."""

import json
import time
import tracemalloc
from pathlib import Path

import pytest

from trimtab.errors import ReadError
from trimtab.limits import LIMITS, MAX_CELL_CHARS, MAX_COLUMNS, MAX_LINE_CHARS, limits_table
from trimtab.readers import read_each, read_run

ROWS = range(1, 60)
TEXT = "".join(f"step {i} loss {2.5 - i * 0.001:.3f} lr 1e-4\n" for i in ROWS)
CSV = "step,loss\n" + "".join(f"{i},{2.5 - i * 0.001:.3f}\n" for i in ROWS)
JSONL = "".join(f'{{"step": {i}, "loss": {2.5 - i * 0.001:.3f}}}\n' for i in ROWS)
MEGATRON = "".join(
    f" iteration {i:8d}/  100 | consumed samples: {i * 8:12d} | elapsed time per iteration (ms): 9.0"
    f" | learning rate: 1.0E-04 | lm loss: {2.5 - i * 0.001:.6E} | loss scale: 1.0 |"
    " grad norm: 0.5 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    for i in ROWS
)
LOGS = {"text": TEXT, "csv": CSV, "jsonl": JSONL, "megatron": MEGATRON}
DIGITS = "9" * 16_000
CELLS = {
    "zeros of a csv": "step,loss\n" + "".join(f"{i},0.{'0' * 16_000}1\n" for i in ROWS),
    "digits of a csv": "step,loss\n" + "".join(f"{i},{DIGITS}\n" for i in ROWS),
    "commas of a csv": "step;loss\n" + "".join(f"{i};1,{DIGITS}\n" for i in ROWS),
    "digits of a header": f"step,{DIGITS} loss\n" + "".join(f"{i},2.5\n" for i in ROWS),
    "digits of a text": "".join(f"step {i} loss {DIGITS} lr 1e-4\n" for i in ROWS),
    "digits of a json": "".join(f'{{"step": {i}, "loss": {DIGITS}}}\n' for i in ROWS),
    "a text as a number": "".join(json.dumps({"step": i, "loss": DIGITS}) + "\n" for i in ROWS),
    "digits of mlperf": "".join(
        f':::MLLOG {{"time_ms":{i},"key":"train_loss","value":{DIGITS},"metadata":{{"step_num":1}}}}\n'
        for i in ROWS
    ),
    "brackets of a text": "".join(f"step {i} loss 2.5 {'(9' * 8_000}\n" for i in ROWS),
    "pairs of a text": "".join(f"step {i} loss 2.5 {'a=9 ' * 4_000}\n" for i in ROWS),
    "nested json": '{"loss":' * 10_000,
    "nested lists": "[" * 100_000 + "\n",
}


@pytest.mark.parametrize("name", CELLS)
def test_a_hostile_cell_costs_little(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(CELLS[name])
    start = time.process_time()
    ((_, found),) = read_each(path)
    assert time.process_time() - start < 2.0
    assert not isinstance(found, ReadError) or len(str(found)) < 600


@pytest.mark.parametrize(
    ("form", "unit"), [*((form, "9") for form in LOGS), ("text", '{"loss":'), ("csv", "loss 1 ")]
)
def test_a_line_without_end_is_left_out_and_noted(form: str, unit: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    log = LOGS[form]
    long = unit * (3 * MAX_LINE_CHARS // len(unit))
    path.write_text(log + long + "\n" + log.removeprefix("step,loss\n").replace("2.4", "2.3"))
    tracemalloc.start()
    start = time.process_time()
    try:
        record = read_run(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert time.process_time() - start < 5.0
    assert peak < 12 * MAX_LINE_CHARS
    assert record.num_rows == 2 * len(ROWS)
    assert "1 line of more than 4,194,304 characters left out" in record.notes


@pytest.mark.parametrize("form", LOGS)
def test_a_long_last_line_is_torn_and_noted(form: str, tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(LOGS[form] + "x" * (MAX_LINE_CHARS + 1))
    record = read_run(path)
    assert record.num_rows == len(ROWS)
    assert any("1 line of more than" in note for note in record.notes)


def test_a_number_of_too_many_characters_is_a_bad_value(tmp_path: Path) -> None:
    path = tmp_path / "train.csv"
    path.write_text(CSV + f"60,1.{'0' * MAX_CELL_CHARS}\n")
    with pytest.raises(ReadError, match=r"train\.csv:61: loss is '1\.0+, expected") as caught:
        read_run(path)
    assert len(str(caught.value)) < 400


@pytest.mark.slow
def test_names_without_end_are_left_out_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    lines = [
        json.dumps({"step": i, "loss": 2.5, **{f"k{i}_{j}": 1 for j in range(400)}}) for i in ROWS
    ]
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert record.num_rows == len(ROWS)
    assert f"more than {MAX_COLUMNS:,} names; the others are left out" in record.notes


def test_folders_without_end_are_one_error(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(CSV)
    deep = tmp_path.joinpath(*["d"] * 400)
    deep.mkdir(parents=True)
    (deep / "train.csv").write_text(CSV)
    (_, error), (_, record) = read_each(tmp_path)
    assert isinstance(error, ReadError)
    assert "folders deep" in str(error)
    assert not isinstance(record, ReadError)


def test_a_fault_of_a_reader_loses_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.jsonl").write_text(JSONL)

    def broken(*_: object) -> None:
        raise IndexError("no\x1b[31m such row")

    monkeypatch.setattr("trimtab.readers.csv_table.CsvReader.read", broken)
    (_, error), (_, record) = read_each(tmp_path)
    assert isinstance(error, ReadError)
    assert "a fault of trimtab's own (IndexError: no" in str(error)
    assert not isinstance(record, ReadError)


def test_the_documentation_lists_every_limit() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    assert limits_table() in page
    assert len(LIMITS) >= 16
