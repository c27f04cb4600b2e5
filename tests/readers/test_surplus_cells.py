"""Rows of a table with one cell more than the header: an index without a name, a last comma."""

from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import ReadError
from trimtab.readers import read_run

N = 40


def loss(i: int) -> float:
    return round(3 / (1 + 0.05 * i), 4)


def write(tmp_path: Path, header: str, form: str) -> Path:
    path = tmp_path / "history.csv"
    rows = [form.format(i=i, e=i + 1, loss=loss(i), val=loss(i) + 0.5) for i in range(N)]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "form", "said"),
    [
        ("epoch,loss,val_loss", "{i},{e},{loss},{val:.4f}", "an index without a name"),
        ("epoch\tloss\tval_loss", "{i}\t{e}\t{loss}\t{val:.4f}", "an index without a name"),
        ("epoch,loss,val_loss", "{e},{loss},{val:.4f},", "ends with a delimiter"),
        ("epoch,loss,val_loss", "{e},{loss},{val:.4f},0.25", "the last has no name"),
        ("epoch,loss,val_loss,", "{e},{loss},{val:.4f}", ""),
    ],
)
def test_cells_are_aligned_with_their_names(
    tmp_path: Path, header: str, form: str, said: str
) -> None:
    path = write(tmp_path, header, form)
    # A resumed run writes the header again.
    path.write_text(path.read_text() + header + "\n" + form.format(i=N, e=N + 1, loss=1, val=2))
    record = read_run(path)
    assert record.axis == "epoch"
    assert record.step.tolist() == list(range(1, N + 2))
    assert record.columns["loss"].logged().tolist() == [*map(loss, range(N)), 1.0]
    assert record.columns["val_loss"].logged()[0] == pytest.approx(loss(0) + 0.5)
    assert any(said in note for note in record.notes) or not said
    assert "" not in record.unread


def test_a_nan_stays_in_its_column(tmp_path: Path) -> None:
    path = write(tmp_path, "step,loss,val_loss", "{i},{e},{loss},{val:.4f}")
    lines = path.read_text().splitlines()
    lines[-1] = f"{N - 1},{N},nan,"
    path.write_text("\n".join(lines) + "\n")
    record = read_run(path)
    assert np.isnan(record.columns["loss"].logged()[-1])
    assert record.columns["val_loss"].present.sum() == N - 1


def test_decimal_commas_are_no_index(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text("step,loss\n" + "".join(f"{i},2,{90 - i}\n" for i in range(N)))
    with pytest.raises(ReadError):
        read_run(path)


def test_an_empty_cell_in_the_middle_of_each_row_has_no_name(tmp_path: Path) -> None:
    # flair writes a tab behind the training loss, and another in front of its scores.
    path = tmp_path / "loss.tsv"
    sets = ("TRAIN", "DEV", "TEST")
    names = [f"{s}_{k}" for s in sets for k in ("LOSS", "PRECISION", "ACCURACY")]
    rows = [
        f"{i}\t11:17:{i:02d}\t0.1\t{loss(i)}\t\t_\t_\t{loss(i) + 0.5:.4f}\t0.7\t0.8\t_\t0.6\t0.7"
        for i in range(N)
    ]
    path.write_text(
        "\n".join(["\t".join(["EPOCH", "TIME", "LEARNING_RATE", *names]), *rows]) + "\n"
    )
    record = read_run(path)
    assert record.columns["loss"].logged().tolist() == [loss(i) for i in range(N)]
    assert record.columns["val_loss"].logged()[0] == pytest.approx(loss(0) + 0.5)
    assert record.keys["val_loss"] == "DEV_LOSS"
    assert record.columns["eval_score"].logged()[0] in (0.7, 0.8)
    assert (record.axis, record.step[-1]) == ("epoch", N - 1)
    assert any("an empty one behind 'TRAIN_LOSS'" in note for note in record.notes)
