"""The skip list as a file: it is read as written, and other files are refused with a reason."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import ConfigError, ReadError
from trimtab.plan.skiplist import (
    SkipList,
    SkipSource,
    merge_ranges,
    read_skip_list,
    write_skip_list,
)

LIST = SkipList(
    (
        SkipSource(path="a\udcff.jsonl", unit="document", size=10, ids=((2, 3), (9, 9))),
        SkipSource(path="b.npy", unit="sample", size=5, ids=((0, 1),), context=2048),
    )
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    write_skip_list(tmp_path / "new" / "skip.json", LIST)
    read = read_skip_list(tmp_path / "new" / "skip.json")
    assert [s.ids for s in read.sources] == [s.ids for s in LIST.sources]
    assert read.sources[1] == LIST.sources[1]
    assert (read.size, read.num_skipped) == (15, 5)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["skip.json"]


def test_ranges_of_several_sources_are_those_of_one_dataset_after_the_other() -> None:
    assert LIST.ranges == ((2, 3), (9, 11))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9))))
def test_merged_ranges_hold_the_same_numbers_and_do_not_touch(pairs: list[tuple[int, int]]) -> None:
    ranges = [(a, a + n) for a, n in pairs]
    merged = merge_ranges(ranges)
    assert {i for a, b in merged for i in range(a, b + 1)} == {
        i for a, b in ranges for i in range(a, b + 1)
    }
    assert all(b + 1 < c for (_, b), (c, _) in pairwise(merged))


@pytest.mark.parametrize("ids", [((3, 2),), ((-1, 2),), ((5, 10),), ((1, 4), (4, 5))])
def test_ranges_out_of_order_or_of_bounds_are_refused(ids: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(ConfigError, match=r"expected rising ranges within 0\.\.9"):
        SkipSource(path="a", unit="document", size=10, ids=ids)


SOURCE = {"path": "a", "unit": "document", "size": 10, "ids": [[1, 2]]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "no JSON"),
        ("[]", "no skip list of schema 1"),
        ({"schema": 2, "kind": "skip-list", "sources": []}, "no skip list of schema 1"),
        ({"schema": 1, "kind": "skip-list"}, "malformed"),
        ({"schema": 1, "kind": "skip-list", "sources": [{**SOURCE, "ids": [[1]]}]}, "malformed"),
        (
            {"schema": 1, "kind": "skip-list", "sources": [{**SOURCE, "ids": [[1, "2"]]}]},
            "whole numbers",
        ),
        (
            {"schema": 1, "kind": "skip-list", "sources": [{**SOURCE, "ids": [[1, True]]}]},
            "whole numbers",
        ),
        (
            {"schema": 1, "kind": "skip-list", "sources": [{**SOURCE, "ids": [[5, 50]]}]},
            "within 0..9",
        ),
        ({"schema": 1, "kind": "skip-list", "sources": ["a"]}, "malformed"),
    ],
)
def test_what_is_no_skip_list_is_refused(tmp_path: Path, document: object, message: str) -> None:
    path = tmp_path / "skip.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(ReadError, match=message):
        read_skip_list(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"none\.json: cannot be read"):
        read_skip_list(tmp_path / "none.json")
