"""A column that is only called a total is the loss where it is the sum of losses."""

from pathlib import Path

import numpy as np

import trimtab
from trimtab.readers import read_run

DRAW = np.random.default_rng(7)


def _table(path: Path, **columns: np.ndarray) -> Path:
    rows = zip(*columns.values(), strict=True)
    lines = [",".join(columns), *(",".join(f"{v:.5f}" for v in row) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _fall(start: float, floor: float, *, rows: float = 25) -> np.ndarray:
    return start * np.exp(-np.arange(120) / rows) + floor + DRAW.normal(0, 0.02 * start, 120)


def test_the_total_of_tasks_is_the_loss_and_they_are_its_parts(tmp_path: Path) -> None:
    depth, classes = _fall(6.0, 0.5), _fall(1.6, 0.2)
    table = _table(
        tmp_path / "tasks.csv",
        step=np.arange(120.0) * 20,
        total=depth + 2 * classes,
        l_depth=depth,
        l_cls=classes,
    )
    record = read_run(table)
    assert record.keys["loss"] == "total"
    assert {"loss/l_depth", "loss/l_cls"} <= record.columns.keys()
    assert any("sum of others" in note for note in record.notes)


def test_a_part_that_rises_while_the_total_falls_is_told(tmp_path: Path) -> None:
    depth, worse = _fall(6.0, 0.3, rows=80), 0.7 + np.arange(120) / 300 + DRAW.normal(0, 0.02, 120)
    table = _table(
        tmp_path / "tasks.csv",
        step=np.arange(120.0) * 20,
        total=depth + worse,
        l_depth=depth,
        l_binary=worse,
    )
    told = trimtab.analyze(table).incidents
    assert any("l_binary" in f.text for i in told for f in i.incident.findings)


def test_a_total_of_something_else_is_no_loss(tmp_path: Path) -> None:
    """Of samples, of hours: no sum of the losses."""
    depth, classes = _fall(6.0, 0.5), _fall(1.6, 0.2)
    table = _table(
        tmp_path / "tasks.csv",
        step=np.arange(120.0) * 20,
        total=np.linspace(1e3, 9e3, 120),
        l_depth=depth,
        l_cls=classes,
    )
    assert read_run(table).keys["loss"] in ("l_depth", "l_cls")


def test_an_average_over_training_is_the_loss_and_one_of_its_parts_is_not(tmp_path: Path) -> None:
    lines = []
    for step in range(0, 4000, 50):
        one, two = 0.4 * np.exp(-step / 900) + 0.01, 0.9 * np.exp(-step / 900) + 0.02
        lines += [
            f"2023-11-02 22:01:40 INFO     Training average positive_sample_loss at step {step}: {one:.6f}",
            f"2023-11-02 22:01:40 INFO     Training average negative_sample_loss at step {step}: {two:.6f}",
            f"2023-11-02 22:01:40 INFO     Training average loss at step {step}: {(one + two) / 2:.6f}",
        ]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines) + "\n")
    assert read_run(log).keys["loss"] == "training average loss"
