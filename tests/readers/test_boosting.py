"""What gradient boosting writes beside its output: CatBoost's document and tables."""

import json
import math
from pathlib import Path

import trimtab
from trimtab.readers import read, read_run
from trimtab.record import RunRecord


def losses(num: int) -> list[float]:
    return [0.2 + 0.5 * math.exp(-i / 20) for i in range(num)]


def document(
    num: int = 40, *, sets: tuple[str, ...] = ("test",), period: int = 1
) -> dict[str, object]:
    learn = [{"best_value": "Min", "name": "MultiClass"}, {"best_value": "Max", "name": "AUC"}]
    rows: list[dict[str, object]] = []
    for i, loss in enumerate(losses(num)):
        row: dict[str, object] = {"iteration": i, "passed_time": 0.1 * i, "remaining_time": 1.0}
        if i % period == 0:
            row["learn"] = [loss, 1 - loss]
            row |= {name: [loss + 0.1, 0.8 - loss] for name in sets}
        rows.append(row)
    meta = {
        "test_sets": list(sets),
        "test_metrics": learn if sets else [],
        "learn_metrics": learn,
        "launch_mode": "Train",
        "parameters": "",
        "iteration_count": 1000,
        "learn_sets": ["learn"],
        "name": "experiment",
    }
    return {"meta": meta, "iterations": rows}


def saved(folder: Path, text: str, name: str = "catboost_training.json") -> RunRecord:
    path = folder / name
    path.write_text(text)
    return read_run(path)


def test_the_names_of_the_values_stand_in_the_heading(tmp_path: Path) -> None:
    record = saved(tmp_path, json.dumps(document()))
    assert (record.axis, record.num_loss_rows) == ("step", 40)
    assert dict(record.keys) == {
        "loss": "learn MultiClass",
        "accuracy": "learn AUC",
        "val_loss": "test MultiClass",
        "eval_score": "test AUC",
    }
    assert record.columns["loss"].values.tolist() == losses(40)
    assert record.columns["val_loss"].values[0] == losses(40)[0] + 0.1
    assert record.step[:3].tolist() == [0.0, 1.0, 2.0]


def test_without_held_out_data_the_training_alone_is_read(tmp_path: Path) -> None:
    record = saved(tmp_path, json.dumps(document(sets=())))
    assert dict(record.keys) == {"loss": "learn MultiClass", "accuracy": "learn AUC"}
    assert trimtab.analyze(tmp_path / "catboost_training.json").verdict == "healthy"


def test_of_several_held_out_sets_the_first_is_judged(tmp_path: Path) -> None:
    record = saved(tmp_path, json.dumps(document(sets=("test0", "test1"))))
    assert record.keys["val_loss"] == "test0 MultiClass"
    assert record.unread["test1 MultiClass"] == 40


def test_an_iteration_without_metrics_is_no_row(tmp_path: Path) -> None:
    record = saved(tmp_path, json.dumps(document(period=4)))
    assert record.step[:3].tolist() == [0.0, 4.0, 8.0]
    assert record.num_loss_rows == 10


def test_a_document_that_breaks_off(tmp_path: Path) -> None:
    text = json.dumps(document(), indent=1)
    record = saved(tmp_path, text[: int(len(text) * 0.8)])
    assert record.keys["loss"] == "learn MultiClass"
    assert 25 < record.num_loss_rows < 40


def test_the_tables_beside_it(tmp_path: Path) -> None:
    rows = "".join(f"{i}\t{loss:.9g}\n" for i, loss in enumerate(losses(40)))
    record = saved(tmp_path, "iter\tLogloss\n" + rows, "learn_error.tsv")
    assert (record.axis, record.keys["loss"], record.num_loss_rows) == ("step", "Logloss", 40)


def test_a_folder_of_it_is_one_run(tmp_path: Path) -> None:
    saved(tmp_path, json.dumps(document()))
    rows = "".join(f"{i}\t{loss:.9g}\n" for i, loss in enumerate(losses(40)))
    for name in ("learn_error.tsv", "test_error.tsv"):
        saved(tmp_path, "iter\tMultiClass\tLogloss\n" + rows.replace("\n", "\t0.5\n"), name)
    (tmp_path / "time_left.tsv").write_text("iter\tPassed\tRemaining\n0\t10\t900\n1\t20\t890\n")
    records = read(tmp_path)
    assert [Path(r.source).name for r in records] == ["catboost_training.json"]
