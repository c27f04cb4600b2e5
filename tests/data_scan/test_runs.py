"""The finder of repeated n-grams, against the definition spelled out."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.data_scan.runs import MIN_REPEATS, find_runs

pytestmark = pytest.mark.filterwarnings("error")


def by_definition(
    data: list[int], edges: list[int], min_length: int, max_span: int
) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for a, b in pairwise(edges):
        inside: list[tuple[int, int, int]] = []
        for span in range(1, max_span + 1):
            i = a + span
            while i < b:
                j = i
                while j < b and data[j] == data[j - span]:
                    j += 1
                start, end = i - span, j
                long = end - start >= max(MIN_REPEATS * span, min_length) and j > i
                told = any(x <= start and end <= y and span % s == 0 for x, y, s in inside)
                if long and not told:
                    inside.append((start, end, span))
                i = max(j, i + 1)
        found += inside
    return sorted(found)


pieces = st.lists(
    st.tuples(
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.integers(1, 300),
        st.lists(st.integers(0, 3), max_size=30),
    ),
    min_size=1,
    max_size=5,
)


@given(pieces, st.lists(st.floats(0, 1), max_size=3), st.sampled_from([0, 50, 100]))
def test_it_finds_what_the_definition_finds(
    parts: list[tuple[list[int], int, list[int]]], cuts: list[float], min_length: int
) -> None:
    data = [x for span, size, rest in parts for x in [*(span * 300)[:size], *rest]]
    edges = sorted({0, len(data), *(int(c * len(data)) for c in cuts)})
    runs = find_runs(np.array(data), np.array(edges), min_length=min_length, max_span=5)
    found = list(zip(runs.starts.tolist(), runs.ends.tolist(), runs.spans.tolist(), strict=True))
    assert found == by_definition(data, edges, min_length, 5)


@pytest.mark.parametrize("span", [1, 2, 7, 13])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_thirty_two_repeats_count_and_one_element_less_does_not(
    span: int, dtype: type[np.generic]
) -> None:
    rng = np.random.default_rng(span)
    noise = rng.integers(100, 200, 500)
    run = np.tile(np.arange(1, span + 1), MIN_REPEATS)
    for cut, expected in ((0, 1), (1, 0)):
        data = np.concatenate((noise, run[cut:], noise)).astype(dtype)
        assert len(find_runs(data, np.array([0, len(data)])).starts) == expected


def test_a_run_does_not_cross_from_one_document_into_the_next() -> None:
    data = np.zeros(62, np.uint8)
    assert len(find_runs(data, np.array([0, 62])).starts) == 1
    assert len(find_runs(data, np.array([0, 31, 62])).starts) == 0


def test_nothing_at_all_is_no_run() -> None:
    assert len(find_runs(np.zeros(0, np.uint8), np.array([0])).starts) == 0
