"""A column that is only called a total is the loss where it is the sum of losses."""

from pathlib import Path

import numpy as np
import pytest

import trimtab
from trimtab.errors import ReadError
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


LINES = (
    ("Iter {i}\tTotal {t:.4f}\tRecon {a:.4f}\tClass {b:.4f}\tGradNorm 2.302", 1.0),
    ("Iter {i}  total={t:.4f}  recon={a:.4f}  class={b:.4f}", 0.5),
    ("step {i} | total: {t:.4f} | physics: {a:.4f} | boundary: {b:.4f}", 1.0),
)


@pytest.mark.parametrize(("form", "weight"), LINES)
def test_a_total_printed_beside_its_parts_is_the_loss(
    tmp_path: Path, form: str, weight: float
) -> None:
    one, two = np.round(_fall(3.0, 0.5), 4), np.round(_fall(4.0, 0.2), 4)
    log = tmp_path / "train.log"
    total = one + weight * two
    log.write_text(
        "\n".join(form.format(i=i, t=total[i], a=one[i], b=two[i]) for i in range(120)) + "\n"
    )
    record = read_run(log)
    assert record.keys["loss"] == "total"
    assert record.columns["loss"].logged() == pytest.approx(total, abs=1e-3)
    assert len([n for n in record.columns if n.startswith("loss/")]) == 2
    assert any("is taken for it, as the sum of" in note for note in record.notes)


def test_a_total_beside_a_part_that_is_a_signal_of_its_own(tmp_path: Path) -> None:
    one, two = _fall(3.0, 0.5), _fall(4.0, 0.2)
    table = _table(
        tmp_path / "tasks.csv",
        step=np.arange(120.0),
        total=one + two,
        recon=one,
        **{"class": two},
    )
    record = read_run(table)
    assert record.keys["loss"] == "total"
    assert {"loss/recon", "loss/class"} <= record.columns.keys()


@pytest.mark.parametrize(
    "form",
    [
        "step {i} | total: {t:.4f}s | forward: {a:.4f}s | backward: {b:.4f}s",
        "step {i} | total: {t:.4f} | fwd: {a:.4f} | bwd: {b:.4f}",
        "step {i} | total: 10 | right: 4 | wrong: 6",
    ],
)
def test_a_total_of_times_or_counts_is_no_loss(tmp_path: Path, form: str) -> None:
    one, two = np.round(_fall(3.0, 0.5), 4), np.round(_fall(4.0, 0.2), 4)
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join(form.format(i=i, t=one[i] + two[i], a=one[i], b=two[i]) for i in range(120))
    )
    with pytest.raises(ReadError):
        read_run(log)


def test_a_total_of_held_out_data_beside_it_is_the_validation(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(
        "\n".join(
            f"epoch {i} Total {4 / i:.4f} Recon {3 / i:.4f} KL {1 / i:.4f} Val-Total {5 / i:.4f}"
            for i in range(1, 60)
        )
    )
    record = read_run(log)
    assert (record.keys["loss"], record.keys["val_loss"]) == ("total", "val total")
    assert record.columns["val_loss"].logged()[0] == 5.0
