"""Items that a skip list names are never fed.

Under any shuffle, after restarts, on every rank's share.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tests.guard.tiny import LENGTH, VOCAB, Setup, events_of, guard_of, make, train_guarded
from trimtab.data_scan import ScanSettings, scan
from trimtab.data_scan.report import skip_list_of
from trimtab.data_scan.sources import ReadSettings
from trimtab.errors import ConfigError, ReadError
from trimtab.guard.data.order import DataOrder
from trimtab.plan.policy import Policy
from trimtab.plan.skiplist import SkipList, SkipSource, write_skip_list

pytestmark = pytest.mark.torch


class Watched(Dataset[Tensor]):
    """Remembers which items were asked for."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.fed: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        self.fed.append(index)
        return self.rows[index]


def watched(rows: Tensor | None = None, *, shuffle: bool = True) -> tuple[Setup, Watched]:
    s = make()
    if rows is None:
        rows = torch.arange(40)[:, None].add(torch.arange(LENGTH + 1) * 3) % VOCAB
    data = Watched(rows)
    s.loader = DataLoader(data, batch_size=4, shuffle=shuffle)
    return s, data


def written(path: Path, *ranges: tuple[int, int], size: int = 40) -> Path:
    source = SkipSource(path="d.npy", unit="sample", size=size, ids=ranges)
    write_skip_list(path, SkipList((source,)))
    return path


BAD = {3, 10, 11, 12, 39}


def test_listed_items_are_never_fed_whatever_the_shuffle(tmp_path: Path) -> None:
    s, data = watched()
    guard = guard_of(s, tmp_path / "run", steps=30, mode="act")
    skip = written(tmp_path / "skip.json", (3, 3), (10, 12), (39, 39))
    assert guard.skip_list(skip, why="backslashes") == 5
    assert guard.skip_list(skip) == 0  # again changes nothing
    shapes: list[int] = []
    train_guarded(s, guard, on_batch=lambda _g, batch: shapes.append(len(batch)))
    assert set(shapes) == {4}  # others stand in
    assert set(data.fed) == set(range(40)) - BAD
    (event,) = [e for e in events_of(tmp_path / "run", "action") if e.data["remedy"] == "skip-data"]
    assert (event.data["values"]["num_samples"], event.data["why"]) == (5, "backslashes")


def test_they_stay_out_after_a_restart_that_does_not_name_the_list(tmp_path: Path) -> None:
    s, _ = watched()
    policy = Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=40, mode="act", policy=policy)
    guard.skip_list(written(tmp_path / "skip.json", (3, 3), (10, 12), (39, 39)))
    train_guarded(s, guard, until=13)
    guard.close()
    (tmp_path / "skip.json").unlink()
    s, data = watched()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=40, mode="act", policy=policy))
    assert len(data.fed) > 80
    assert not BAD & set(data.fed)


def test_a_batch_that_holds_nothing_else_is_filled_from_the_next(tmp_path: Path) -> None:
    s, data = watched(shuffle=False)
    guard = guard_of(s, tmp_path / "run", steps=10)
    guard.skip_samples(12, 15, why="a test")
    guard.skip_list(written(tmp_path / "skip.json", (8, 11)))
    train_guarded(s, guard)
    assert data.fed[8:12] == [16, 17, 18, 19]  # not 12 to 15: their place in the order is skipped
    assert not set(range(8, 16)) & set(data.fed)


@pytest.mark.parametrize("rank", [0, 1])
def test_on_several_ranks_each_keeps_its_number_of_batches(rank: int) -> None:
    data = Watched(torch.zeros(40, 3))
    sampler: DistributedSampler[Any] = DistributedSampler(data, 2, rank, shuffle=True)
    order = DataOrder(DataLoader(data, batch_size=4, sampler=sampler))
    assert order.withhold([(0, 18)], of=40) == 19
    ids = []
    while (batch := order.fetch()) is not None:
        ids.append(batch[1:])
    assert ids == [(0, 7), (8, 15), (16, 23), (24, 31), (32, 39)]
    assert set(data.fed) == {i for i in sampler if i > 18}


def test_a_list_that_counts_other_items_is_refused(tmp_path: Path) -> None:
    s, _ = watched()
    guard = guard_of(s, tmp_path / "run", steps=10)
    with pytest.raises(ConfigError, match="counts 41 items, the dataset has 40"):
        guard.skip_list(written(tmp_path / "a.json", (3, 3), size=41))
    with pytest.raises(ConfigError, match="leaves out all 40 items"):
        guard.skip_list(written(tmp_path / "b.json", (0, 39)))
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ReadError, match="no skip list"):
        guard.skip_list(tmp_path / "c.json")
    assert not (tmp_path / "run" / "skip.json").exists()
    guard.close()


def test_what_the_scan_found_is_what_the_guard_leaves_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, VOCAB, (200, 64))
    rows[[17, 150]] = 4
    np.save(tmp_path / "d.npy", rows.astype(np.uint16))
    result = scan([str(tmp_path / "d.npy")], ScanSettings(reading=ReadSettings()))
    skip = tmp_path / "skip.json"
    write_skip_list(skip, skip_list_of(result))
    s, data = watched(torch.from_numpy(rows))
    guard = guard_of(s, tmp_path / "run", steps=100)
    assert guard.skip_list(skip) == 2
    train_guarded(s, guard)
    assert set(range(200)) - set(data.fed) == {17, 150}


def fed_by_pass(data: Watched, rest: int) -> list[set[int]]:
    """Return the items of the first pass, of which `rest` were fed, and of those behind it."""
    first, later = data.fed[:rest], data.fed[rest:]
    return [set(first), *(set(later[i : i + 40]) for i in range(0, len(later), 40))]


def test_what_a_skip_leaves_out_stays_out_of_later_passes(tmp_path: Path) -> None:
    s, data = watched()
    policy = Policy(checkpoint_every_steps=5, checkpoint_in_background=False)
    guard = guard_of(s, tmp_path / "run", steps=40, mode="act", policy=policy)
    guard.skip_samples(8, 11, why="of another language")  # the third batch of ten
    train_guarded(s, guard, until=22)
    guard.close()
    first, second, *_ = fed_by_pass(data, 36)
    left = set(range(40)) - first
    assert len(left) == 4
    assert second == first
    notes = [e.data["text"] for e in events_of(tmp_path / "run", "note")]
    assert any("4 samples that were skipped in pass 1" in text for text in notes)
    s, data = watched()
    train_guarded(s, guard_of(s, tmp_path / "run", steps=40, mode="act", policy=policy))
    assert not left & set(data.fed)
    assert len(data.fed) > 60


def test_a_skip_that_is_taken_back_or_too_large_takes_nothing_out_of_later_passes() -> None:
    def items(skip: tuple[int, int], *, undo: bool) -> set[int]:
        rows = torch.zeros(40, 3)
        order = DataOrder(DataLoader(Watched(rows), batch_size=4, shuffle=True))
        order.skip(*skip)
        while order.fetch() is not None:
            pass
        order.next_epoch()
        if undo:
            order.unskip(*skip)
        dataset = order.dataset
        assert isinstance(dataset, Watched)
        dataset.fed.clear()
        while order.fetch() is not None:
            pass
        return set(dataset.fed)

    assert len(items((8, 11), undo=False)) == 36
    assert len(items((8, 11), undo=True)) == 40
    assert len(items((8, 19), undo=False)) == 40  # more than a tenth of the data


class TensorRows:
    """A batch sampler that names items by tensors, as `torch.randperm` gives them."""

    batch_size = 4

    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Iterator[list[Tensor]]:
        return iter([list(row) for row in torch.randperm(40).reshape(10, 4)])


def test_items_that_a_sampler_names_by_tensors_stay_out_of_later_passes() -> None:
    loader: Any = DataLoader(Watched(torch.zeros(40, 3)), batch_sampler=TensorRows())
    order = DataOrder(loader)
    order.skip(8, 11)
    fed = [set[int](), set[int]()]
    for items in fed:
        loader.dataset.fed.clear()
        while order.fetch() is not None:
            pass
        items |= {int(i) for i in loader.dataset.fed}
        order.next_epoch()
    assert fed[0] == fed[1]
    assert len(fed[0]) == 36


def test_a_skip_of_more_than_a_tenth_says_that_it_comes_again() -> None:
    order = DataOrder(DataLoader(Watched(torch.zeros(40, 3)), batch_size=4))
    order.skip(8, 19)
    while order.fetch() is not None:
        pass
    order.next_epoch()
    assert "12 samples that were skipped in pass 1 over the data come again" in order.take_note()
    assert not order.take_note()
