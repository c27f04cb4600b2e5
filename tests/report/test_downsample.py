import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from trimtab.report.downsample import extreme_rows


@pytest.mark.covers("S172")
@given(arrays(np.float64, st.integers(5, 3000), elements=st.floats(-1e6, 1e6)), st.integers(4, 400))
def test_the_extremes_and_the_ends_stay(values: NDArray[np.float64], budget: int) -> None:
    rows = extreme_rows(values, budget=budget)
    assert values[rows].max() == values.max()
    assert values[rows].min() == values.min()
    assert rows[0] == 0
    assert rows[-1] == len(values) - 1
    assert (np.diff(rows) > 0).all()
    assert len(rows) <= max(budget, 4) + 4


@given(
    arrays(
        np.float64,
        st.integers(500, 3000),
        elements=st.floats(-1e6, 1e6),
        fill=st.floats(-1e6, 1e6),
    ),
    st.integers(40, 400),
    st.sets(st.integers(0, 499), max_size=10),
    st.sampled_from([np.nan, np.inf, -np.inf]),
)
def test_non_finite_rows_stay_where_they_were_and_hide_no_extreme(
    values: NDArray[np.float64], budget: int, places: set[int], bad: float
) -> None:
    values = values.copy()
    values[list(places)] = bad
    rows = extreme_rows(values, budget=budget)
    kept, finite = values[rows], values[np.isfinite(values)]
    assert set(rows[~np.isfinite(kept)].tolist()) == places
    assert kept[np.isfinite(kept)].max() == finite.max()
    assert kept[np.isfinite(kept)].min() == finite.min()


def test_many_non_finite_rows_are_seen_in_every_part_of_the_log() -> None:
    values = np.zeros(100_000)
    values[::3] = np.nan
    rows = extreme_rows(values, budget=1000)
    bad = rows[~np.isfinite(values[rows])]
    assert len(rows) <= 1600
    assert np.diff(bad).max() <= 400


@pytest.mark.parametrize("row", [0, 1, 777, 77_777, 149_998, 149_999])
def test_one_spike_in_150_000_rows_is_drawn(row: int) -> None:
    values = np.random.default_rng(0).normal(2.0, 0.01, 150_000)
    values[row] = 9.0
    assert row in extreme_rows(values, budget=1000)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_row_is_drawn_and_hides_no_spike(bad: float) -> None:
    values = np.zeros(10_000)
    values[5000], values[5001], values[5002] = bad, 7.0, -7.0
    rows = extreme_rows(values, budget=100)
    assert {5000, 5001, 5002} <= set(rows.tolist())


def test_kept_rows_are_kept_and_short_records_are_whole() -> None:
    keep = np.zeros(10_000, dtype=np.bool_)
    keep[3000:3500] = True
    assert set(range(3000, 3500)) <= set(
        extreme_rows(np.zeros(10_000), budget=100, keep=keep).tolist()
    )
    assert extreme_rows(np.arange(50.0), budget=100).tolist() == list(range(50))
    assert extreme_rows(np.zeros(0), budget=100).tolist() == []
