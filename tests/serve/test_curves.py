"""What is sent of a long curve: a spike of one row is always there, and nothing else is added."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trimtab.record import Column, RecordBuilder, RunRecord
from trimtab.serve.curves import LONG_ROWS, Curves, write_curves
from trimtab.serve.overlay import overlay

Floats = NDArray[np.float64]


def record_of(values: dict[str, Floats], *, restart: int = 0) -> RunRecord:
    build = RecordBuilder("run", "csv")
    num_rows = len(next(iter(values.values())))
    build.start_attempt(number="1.0", parent=None)
    columns = {n: Column(v, np.ones(len(v), dtype=np.bool_)) for n, v in values.items()}
    build.extend(np.arange(1.0, num_rows + 1), columns)
    if restart:
        build.start_attempt(number="1.1", parent="1.0", parent_step=restart)
        for step in range(restart + 1, restart + 11):
            build.add(step, dict.fromkeys(values, 1.0))
    return build.build()


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[Curves, Floats]:
    rng = np.random.default_rng(0)
    loss = rng.normal(3.0, 0.1, 3 * LONG_ROWS)
    loss[70_123], loss[50_000], loss[60_000] = 9.5, np.nan, np.inf
    folder = tmp_path_factory.mktemp("curves") / "0"
    write_curves(record_of({"loss": loss}), folder)
    return Curves.open(folder), loss


@pytest.mark.parametrize("limits", [(1, 98_304), (40_000, 90_000), (69_000, 71_000)])
def test_each_column_has_its_lowest_and_highest_row(
    long: tuple[Curves, Floats],
    limits: tuple[float, float],
) -> None:
    curves, loss = long
    found = overlay({"a": curves}, "loss", first=limits[0], last=limits[1], columns=300)
    y = found.y["a"]
    inside = loss[int(limits[0]) - 1 : int(limits[1])]
    inside = inside[np.isfinite(inside)]
    assert np.nanmax(y) == inside.max() == 9.5
    assert np.nanmin(y) == pytest.approx(inside.min(), abs=1e-12)
    at = found.x[int(np.nanargmax(y))]
    assert at == pytest.approx(70_124, abs=2 * (limits[1] - limits[0]) / 300)
    assert len(found.x) <= 6_000
    assert np.isin(y[np.isfinite(y)], loss).all()  # nothing is made up


def test_few_rows_come_as_they_are(long: tuple[Curves, Floats]) -> None:
    curves, loss = long
    found = overlay({"a": curves}, "loss", first=50_100, last=50_200)
    assert found.whole
    assert found.x.tolist() == list(range(50_099, 50_202))
    assert found.y["a"].tolist() == loss[50_098:50_201].tolist()


def test_the_mean_of_neighbors_is_that_of_all_rows_whatever_is_drawn(
    long: tuple[Curves, Floats],
) -> None:
    curves, loss = long
    clean = np.where(np.isfinite(loss), loss, np.nan)
    for first, last in ((1, 98_304), (49_900, 50_100)):
        found = overlay({"a": curves}, "loss", first=first, last=last, smooth_rows=101, columns=200)
        middle = len(found.x) // 2
        row = int(np.searchsorted(np.arange(1, len(loss) + 1), found.x[middle]))
        expected = np.nanmean(clean[row - 50 : row + 51])
        assert found.y["a"][middle] == pytest.approx(expected, abs=1e-9)


def test_what_a_rollback_undid_is_on_no_main_line(tmp_path: Path) -> None:
    loss = np.full(200, 2.0)
    loss[150:] = 50.0
    write_curves(record_of({"loss": loss}, restart=100), tmp_path / "0")
    curves = Curves.open(tmp_path / "0")
    found = overlay({"a": curves}, "loss")
    assert found.x[-1] == 110
    assert np.nanmax(found.y["a"]) == 2.0
    panel = next(p for p in curves.panels((0, 300), columns=500) if p["name"] == "loss")
    stretches = panel["stretches"]
    assert isinstance(stretches, list)
    assert sorted(bool(s["live"]) for s in stretches) == [False, True, True]


def test_a_signal_or_an_axis_that_a_run_has_not_leaves_the_others(tmp_path: Path) -> None:
    write_curves(record_of({"loss": np.full(50, 2.0)}), tmp_path / "a")
    write_curves(
        record_of({"loss": np.full(50, 2.0), "tokens_seen": np.arange(1.0, 51) * 1000}),
        tmp_path / "b",
    )
    both = {name: Curves.open(tmp_path / name) for name in "ab"}
    found = overlay(both, "loss", by="tokens")
    assert found.left_out == ("a",)
    assert found.x.tolist() == [1000.0 * (i + 1) for i in range(50)]
    assert overlay(both, "no_such_signal").left_out == ("a", "b")
