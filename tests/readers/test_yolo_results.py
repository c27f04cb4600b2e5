"""The table without a header that YOLOv5 writes for each epoch."""

from pathlib import Path

import numpy as np

from trimtab.readers import read_run

N = 30


def rows_of(*, f1: bool = False) -> list[str]:
    rng, rows = np.random.default_rng(0), []
    for epoch in range(N):
        box, obj = 0.1 - 0.0016 * epoch, 0.093 - 0.0002 * epoch
        loose = 0.005 + 0.017 * epoch
        last = loose * (1.2 if f1 else 0.5)
        cells = [box, obj, 0, box + obj, rng.integers(10, 60), 416, 0.3, 0.02 * epoch, loose, last]
        cells += [box, 0.055, 0]
        memory = f"{1.86 if epoch == 0 else 1.93:.3g}G"
        rows.append(
            f"{f'{epoch}/{N - 1}':>10s}{memory:>10s}" + "".join(f"{c:10.4g}" for c in cells)
        )
    return rows


def write(tmp_path: Path, rows: list[str]) -> Path:
    path = tmp_path / "results.txt"
    path.write_text("\n".join(rows))
    return path


def test_the_columns_are_known_by_their_places(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, rows_of()))
    assert (record.axis, record.num_rows, record.step[-1]) == ("epoch", N, N - 1)
    assert record.keys["loss"] == "train/loss"
    np.testing.assert_allclose(record.columns["loss"].logged()[0], 0.193)
    assert record.keys["eval_score"] == "metrics/mAP_0.5:0.95"
    assert record.keys["loss/box"] == "train/box_loss"


def test_where_the_fourth_measure_is_greater_it_is_no_stricter_precision(tmp_path: Path) -> None:
    record = read_run(write(tmp_path, rows_of(f1=True)))
    assert record.keys["eval_score"] == "metrics/mAP_0.5"


def test_a_torn_last_row_is_left_out(tmp_path: Path) -> None:
    rows = rows_of()
    record = read_run(write(tmp_path, [*rows[:-1], rows[-1][:70]]))
    assert record.num_rows == N - 1
    assert any("torn" in note for note in record.notes)


def test_a_nan_in_a_part_is_kept(tmp_path: Path) -> None:
    rows = [
        row[:20] + f"{'nan':>10s}" * 4 + row[60:] if k > 20 else row
        for k, row in enumerate(rows_of())
    ]
    record = read_run(write(tmp_path, rows))
    assert np.isnan(record.columns["loss"].values[21:]).all()


def test_a_resumed_run_goes_on_and_a_broken_line_is_told(tmp_path: Path) -> None:
    rows = [*rows_of(), *rows_of()[10:]]
    record = read_run(write(tmp_path, rows))
    assert (record.num_rows, len(record.attempts)) == (N + 20, 2)
    path = write(tmp_path, [*rows, *rows[20:25], "7/29 1.93G", *rows[25:]])
    assert any("56" in note for note in read_run(path).notes)


def test_epochs_that_were_not_evaluated_hold_no_scores(tmp_path: Path) -> None:
    rows = [r[:-70] + 7 * f"{0:10.4g}" for r in rows_of()]
    record = read_run(write(tmp_path, rows))
    assert record.columns["loss"].present.all()
    assert "eval_score" not in record.columns
    mixed = read_run(write(tmp_path, [*rows[:-1], rows_of()[-1]]))
    assert mixed.columns["eval_score"].present.tolist() == [False] * (N - 1) + [True]
