"""JSON documents, printed dicts and MLPerf lines."""

import contextlib
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import ReadError
from trimtab.readers import find_reader, read_run
from trimtab.record import RunRecord


def read_text(tmp_path: Path, text: str) -> RunRecord:
    path = tmp_path / "some log"
    path.write_text(text)
    return read_run(path)


def cells(record: RunRecord, name: str) -> list[float | None]:
    column = record.columns[name]
    return [float(v) if p else None for v, p in zip(column.values, column.present, strict=True)]


# --- JSON documents ----------------------------------------------------------------------------


def trainer_state(num: int = 5) -> dict[str, object]:
    history: list[dict[str, object]] = [
        {"epoch": i / 10, "loss": 3.0 - i / 10, "learning_rate": 1e-4, "step": 10 * i}
        for i in range(1, num + 1)
    ]
    history.insert(2, {"epoch": 0.2, "eval_loss": 3.1, "eval_runtime": 3.0, "step": 20})
    history.append({"epoch": 0.5, "train_loss": 2.7, "train_runtime": 9.0, "step": 10 * num})
    return {"best_metric": None, "global_step": 10 * num, "log_history": history}


@pytest.mark.parametrize("indent", [None, 2])
def test_trainer_state(tmp_path: Path, indent: int | None) -> None:
    record = read_text(tmp_path, json.dumps(trainer_state(2000), indent=indent))
    assert (record.format, record.axis, record.num_loss_rows) == ("hf-trainer-state", "step", 2000)
    assert record.step[:3].tolist() == [10, 20, 30]
    assert cells(record, "val_loss")[:3] == [None, 3.1, None]


def test_a_trainer_state_cut_off_in_mid_write(tmp_path: Path) -> None:
    text = json.dumps(trainer_state(50), indent=2)
    record = read_text(tmp_path, text[: len(text) // 2])
    assert 20 < record.num_loss_rows < 30
    assert "the document breaks off; the rows before the break were read" in record.notes


def test_values_by_step_with_missing_ones(tmp_path: Path) -> None:
    values: dict[str, object] = {str(s): 10.0 - s / 10 for s in (1, 5, 10)}
    loss = {"start_step": 1, "end_step": 20, "step_interval": 5}
    document = {
        "lm loss": {**loss, "values": {**values, "15": "nan", "20": "nan"}},
        "iteration-time": {**loss, "values": {"1": "nan", "5": 2.0, "10": 2.5}},
        "mem-allocated-bytes": {**loss, "values": {"1": 1e9}},
    }
    record = read_text(tmp_path, json.dumps(document))
    assert (record.format, record.step.tolist()) == ("golden-values", [1, 5, 10])
    assert cells(record, "step_time_s") == [None, 2.0, 2.5]
    assert '"nan" as a string in 3 values, taken as not recorded' in record.notes


def test_values_by_step_of_other_writers(tmp_path: Path) -> None:
    listed = {"lm loss": {"start_step": 0, "end_step": 15, "step_interval": 5, "values": [3, 2, 1]}}
    assert read_text(tmp_path, json.dumps(listed)).step.tolist() == [0, 5, 10]
    plain = {"reduced_train_loss": {"0": 3.0, "1": float("nan")}, "consumed": 4}
    record = read_text(tmp_path, json.dumps(plain))
    assert math.isnan(record.columns["loss"].values[1])


def test_columns_and_rows(tmp_path: Path) -> None:
    columns = {"config": {"lr": 1}, "history": {"loss": [3.0, 2.0, 1.0], "val_loss": [3.5, 2.5]}}
    record = read_text(tmp_path, json.dumps(columns))
    assert (record.axis, cells(record, "val_loss")) == ("row", [3.5, 2.5, None])
    rows = [{"step": i, "loss": 1.0} for i in range(4)]
    assert read_text(tmp_path, json.dumps(rows)).num_loss_rows == 4
    assert read_text(tmp_path, json.dumps({"x": {"runs": rows}}, indent=1)).axis == "step"


def test_json_lines_are_no_document(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text('{"step": 1, "loss": 2.0}\n')
    assert find_reader(path).name == "jsonl"
    path.write_text('{"step": 1, "loss": {"a": [1]}}\n{"step": 2, "loss": 2.0}\n' * 3)
    assert find_reader(path).name == "jsonl"


def test_documents_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"no known signal|no records that can be read"):
        read_text(tmp_path, json.dumps({"a": [1, 2], "b": {"c": "d"}}))
    with pytest.raises(ReadError, match=r"some log:\d+: no whole JSON document"):
        read_text(tmp_path, '{\n "log_history": [\n  {"loss": ')


@given(st.data())
def test_mutated_documents_give_a_record_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = list(json.dumps(trainer_state(4)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.sampled_from('{}[]",:0e-N\n '))
    path = tmp_path_factory.getbasetemp() / "mutated"
    path.write_text("".join(text))
    with contextlib.suppress(ReadError):
        assert read_run(path).num_rows >= 1


# --- printed dicts -----------------------------------------------------------------------------

BAR = "  1%|1         | {}/1000 [00:10<09:10,  1.1it/s]\r"


def test_printed_dicts_between_progress_bars(tmp_path: Path) -> None:
    text = "{'learning_rate': 1e-05, 'seed': 10, 'epochs': 3, 'loss_type': 'mse'}\n"
    for i in range(1, 6):
        text += BAR.format(i) + f"{{'loss': {3.0 - i}, 'grad_norm': nan, 'epoch': {i / 10}}}\n"
    text += "{'eval_loss': 2.5, 'epoch': 0.5}\n"
    text += "{'train_runtime': 9.0, 'train_loss': 2.0, 'epoch': 0.5}\n"
    record = read_text(tmp_path, text)
    assert (record.format, record.axis, record.num_loss_rows) == ("hf-stdout", "step", 5)
    assert cells(record, "val_loss") == [None] * 4 + [2.5]
    assert all(math.isnan(v) for v in record.columns["grad_norm"].values)


def test_dicts_with_a_step_and_wrapped_values(tmp_path: Path) -> None:
    text = ""
    for i in range(1, 4):
        text += f"step done {{'global_step': {i}, 'loss': tensor({i}.5, device='cuda:0'), "
        text += f"'lr': '1e-05', 'grad_norm': np.float64({i}.0)}}\n"
    record = read_text(tmp_path, text)
    assert (record.axis, record.step.tolist()) == ("step", [1, 2, 3])
    assert cells(record, "loss") == [1.5, 2.5, 3.5]
    assert cells(record, "lr") == [1e-5] * 3


def test_rounded_epochs_count_rows_and_a_fall_begins_an_attempt(tmp_path: Path) -> None:
    text = ""
    for _ in range(2):
        for i in range(40):
            text += f"{{'loss': {4.0 - i / 40}, 'epoch': {i / 400:.2f}}}\n"
        text += "{'eval_loss': 2.5, 'epoch': 0.1}\n"
        text += "{'train_runtime': 9.0, 'train_loss': 2.0, 'epoch': 0.1}\n"
    record = read_text(tmp_path, text)
    assert (record.axis, record.num_rows) == ("row", 80)
    assert [(a.number, a.first_row, a.end_row) for a in record.attempts] == [
        ("1.0", 0, 40),
        ("1.1", 40, 80),
    ]
    assert record.columns["val_loss"].present.nonzero()[0].tolist() == [39, 79]


def test_a_dict_inside_a_dict(tmp_path: Path) -> None:
    text = "".join(
        f"{{'loss': {3.0 - i}, 'rewards': {{'mean': 0.1}}, 'epoch': {i}}}\n" for i in range(3)
    )
    assert cells(read_text(tmp_path, text), "loss") == [3, 2, 1]


def test_settings_alone_are_no_record(tmp_path: Path) -> None:
    with pytest.raises(ReadError):
        read_text(tmp_path, "{'learning_rate': 1e-05, 'loss': 'mse'}\nnothing\n")


# --- MLPerf ------------------------------------------------------------------------------------


def mllog(key: str, value: object, **metadata: object) -> str:
    event = {"namespace": "", "time_ms": 1, "event_type": "POINT_IN_TIME"}
    return ":::MLLOG " + json.dumps({**event, "key": key, "value": value, "metadata": metadata})


def test_tracked_stats(tmp_path: Path) -> None:
    lines = ["+ echo start", mllog("global_batch_size", 96, lineno=1)]
    for i in range(1, 4):
        stats = {"loss": 3.0 - i, "loss_box": 0.5, "throughput": 9.0}
        lines += [f"other text loss: {i}", *[mllog("tracked_stats", stats, step=50 * i)] * 2]
        lines.append(mllog("throughput", 9.0, step=50 * i))
    record = read_text(tmp_path, "\n".join(lines))
    assert (record.format, record.step.tolist()) == ("mllog", [50, 100, 150])
    assert cells(record, "loss") == [2, 1, 0]


def test_rows_counted_by_samples(tmp_path: Path) -> None:
    lines = [mllog("submission_benchmark", "gpt3"), mllog("global_batch_size", 8)]
    lines += [mllog("train_loss", 3.0 - i, samples_count=8 * i) for i in range(1, 4)]
    lines.append(mllog("eval_accuracy", 2.5, samples_count=16))
    record = read_text(tmp_path, "\n".join(lines))
    assert record.step.tolist() == [8, 16, 24]
    assert record.notes == ("rows are counted by samples; 8 samples make a step",)
    assert cells(record, "val_loss") == [None, 2.5, None]
    assert cells(record, "samples_seen")[0] == 8


def test_a_step_that_no_float_holds_is_one_clear_error(tmp_path: Path) -> None:
    pairs = [[10**400 + i, 0.5] for i in range(4)]
    with pytest.raises(ReadError, match=r"^(?!.*fault of trimtab)"):
        read_text(tmp_path, json.dumps({"loss": pairs}))


def test_lists_of_one_number_are_that_number(tmp_path: Path) -> None:
    loss = [round(0.3 * 0.9**k + 0.1, 5) for k in range(30)]
    path = tmp_path / "training_history.json"
    path.write_text(json.dumps([{"loss": [v], "val_loss": [v + 0.1], "w": [1, 2]} for v in loss]))
    record = read_run(path)
    assert record.columns["loss"].logged().tolist() == loss
    assert "val_loss" in record.columns
