"""Data that is read forwards.

Gone back in, skipped and resumed by absolute sample id, in real loaders.
"""

import gc
import io
import tarfile
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tests.guard.inner import inner
from tests.guard.tiny import (
    Sequences,
    differences,
    events_of,
    guard_of,
    make,
    state_of,
    train_guarded,
)
from trimtab.errors import ActError, ConfigError
from trimtab.guard.data.order import DataOrder
from trimtab.guard.data.streams import StreamOrder, open_order

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*set_vital:UserWarning"),
]

NUM, SIZE = 42, 4
"""Samples of an epoch, and of a batch: 10 batches and one of 2."""
Make = Callable[[], Any]


class Counted(IterableDataset[Tensor]):
    """A stream without a state; shuffled by torch's global generator where asked."""

    def __init__(self, *, shuffled: bool = False) -> None:
        self.shuffled = shuffled

    def __iter__(self) -> Iterator[Tensor]:
        worker = get_worker_info()
        first, every = (worker.id, worker.num_workers) if worker is not None else (0, 1)
        order = torch.randperm(NUM).tolist() if self.shuffled else list(range(NUM))
        for i in order[first::every]:
            yield torch.tensor([i, i + 1])


class Unsteady(IterableDataset[Tensor]):
    """A stream that is another one each time."""

    def __init__(self) -> None:
        self.times = 0

    def __iter__(self) -> Iterator[Tensor]:
        self.times += 1
        for i in range(NUM):
            yield torch.tensor([i * self.times, i])


def stateful(workers: int, *, shuffle: bool = True) -> Any:
    module = pytest.importorskip("torchdata.stateful_dataloader")
    items = [torch.tensor([i, i + 1]) for i in range(NUM)]
    return module.StatefulDataLoader(items, batch_size=SIZE, shuffle=shuffle, num_workers=workers)


def hugging() -> Any:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [[i, i + 1] for i in range(NUM)]})
    return DataLoader(rows.to_iterable_dataset(num_shards=3).with_format("torch"), batch_size=SIZE)


STREAMS: dict[str, Make] = {
    "stateful, no workers": lambda: stateful(0),
    "stateful, 2 workers": lambda: stateful(2),
    "hugging face": hugging,
    "no state": lambda: DataLoader(Counted(), batch_size=SIZE),
    "no state, shuffled": lambda: DataLoader(Counted(shuffled=True), batch_size=SIZE),
    "no state, 2 workers": lambda: DataLoader(Counted(), batch_size=SIZE, num_workers=2),
}


def first_of(batch: Any) -> list[int]:
    column = batch["x"] if isinstance(batch, dict) else batch
    return [int(row[0]) for row in column]


def take(order: Any, batches: int) -> list[tuple[list[int], int, int]]:
    """The next batches, through epochs: what each holds, first and last sample id."""
    taken: list[tuple[list[int], int, int]] = []
    while len(taken) < batches:
        found = order.fetch()
        if found is None:
            order.next_epoch()
        else:
            taken.append((first_of(found[0]), *found[1:]))
    return taken


def plain(make_loader: Make, batches: int) -> list[list[int]]:
    """What a loop without a guard sees."""
    loader, seen, epoch = make_loader(), list[list[int]](), 0
    while len(seen) < batches:
        tell = getattr(loader.dataset, "set_epoch", None)
        if tell is not None:
            tell(epoch)
        seen += [first_of(batch) for batch in loader]
        epoch += 1
    return seen[:batches]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if "workers" in n[-9:] and "2" in n else [])
        for n in STREAMS
    ],
)
def test_a_stream_comes_as_without_a_guard_and_again_after_going_back(name: str) -> None:
    torch.manual_seed(4)
    expected = plain(STREAMS[name], 25)
    torch.manual_seed(4)
    order = open_order(STREAMS[name]())
    assert isinstance(order, StreamOrder)
    states = {0: (order.state_dict(), torch.get_rng_state())}
    taken: list[Any] = []
    for number in range(1, 26):
        taken += take(order, 1)
        if number in (3, 11, 14):  # within an epoch, at its end, in the next one
            states[number] = (order.state_dict(), torch.get_rng_state())
    assert [batch for batch, _, _ in taken] == expected
    ends = list(accumulate(len(batch) for batch in expected))
    assert [(a, b) for _, a, b in taken] == [
        (end - len(batch), end - 1) for batch, end in zip(expected, ends, strict=True)
    ]
    for place in (order, open_order(STREAMS[name]())):  # the second one: another process
        for number in (14, 3, 11, 0):
            state, rng = states[number]
            torch.set_rng_state(rng)
            place.load_state_dict(state)
            assert torch.equal(torch.get_rng_state(), rng)
            assert take(place, 6) == taken[number : number + 6]


@pytest.mark.parametrize("name", ["stateful, no workers", "hugging face", "no state"])
def test_samples_are_skipped_by_id_in_each_epoch_and_after_going_back(name: str) -> None:
    torch.manual_seed(4)
    order = open_order(STREAMS[name]())
    state = order.state_dict()
    order.skip(6, 9)
    order.skip(50, 50)
    ids = [(a, b) for _, a, b in take(order, 12)]
    kept = [(0, 3), *((i, i + 3) for i in range(12, 40, 4)), (40, 41), (42, 45), (46, 49), (54, 57)]
    assert ids == kept
    torch.manual_seed(4)
    order.load_state_dict(state)
    assert [(a, b) for _, a, b in take(order, 12)] == kept
    order.unskip(6, 9)
    torch.manual_seed(4)
    order.load_state_dict(state)
    assert take(order, 2)[1][1:] == (4, 7)
    order.load_state_dict(state)
    order.advance(13)
    assert order.position == 42 + 2 * SIZE


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_tar_of_samples_read_by_webdataset(tmp_path: Path) -> None:
    web = pytest.importorskip("webdataset")
    path = tmp_path / "data.tar"
    with tarfile.open(path, "w") as tar:
        for i in range(NUM):
            text = str(i).encode()
            info = tarfile.TarInfo(f"{i:04d}.cls")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))

    def loader() -> Any:
        data = web.WebDataset(str(path), shardshuffle=False).decode().to_tuple("cls")
        return DataLoader(data.map(lambda x: torch.tensor([x[0], 0])), batch_size=SIZE)

    order = open_order(loader())
    first = take(order, 5)
    state = order.state_dict()
    after = take(order, 9)
    order.load_state_dict(state)
    assert take(order, 9) == after
    assert first[0] == ([0, 1, 2, 3], 0, 3)
    again = open_order(loader())
    again.load_state_dict(state)
    assert take(again, 9) == after
    del order, again
    gc.collect()  # that package leaves its files open


def test_a_stream_that_does_not_repeat_is_told(tmp_path: Path) -> None:
    order = open_order(DataLoader(Unsteady(), batch_size=SIZE))
    take(order, 3)
    state = order.state_dict()
    with pytest.raises(ActError, match="batch 3 of epoch 1 is not the one that came before"):
        order.load_state_dict(state)
    short = open_order(DataLoader(Counted(), batch_size=SIZE))
    with pytest.raises(ActError, match="the stream ends after 11 batches, 30 were read"):
        short.load_state_dict(state | {"cursor": 30})
    with pytest.raises(ActError, match="dealt out to 2 ranks, now to 1"):
        short.load_state_dict(state | {"replicas": 2})
    with pytest.raises(ActError, match="position is of data with indices"):
        short.load_state_dict(open_order(make().loader).state_dict())


class Forgetful(IterableDataset[Tensor]):
    """A stream whose state says where it was, and which begins anew all the same."""

    def __init__(self, *, forgets: bool, begins_at: int = 0) -> None:
        self.forgets, self.begins_at, self.at = forgets, begins_at, 0

    def __iter__(self) -> Iterator[Tensor]:
        items = Sequences(4 * NUM)
        for i in range(self.at, 4 * NUM):
            self.at = i + 1
            yield items[i]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = self.begins_at if self.forgets else state["at"]


@pytest.mark.covers("S64")
@pytest.mark.parametrize(("forgets", "begins_at"), [(True, 0), (True, 40), (False, 0)])
def test_samples_that_are_fed_again_after_a_resume_are_an_event(
    tmp_path: Path, forgets: bool, begins_at: int
) -> None:
    told: list[str] = []

    def resumed(until: int | None) -> None:
        s = make()
        s.loader = DataLoader(Forgetful(forgets=forgets, begins_at=begins_at), batch_size=SIZE)
        guard = guard_of(s, tmp_path / "run", steps=30, say=told.append)
        train_guarded(s, guard, until=until)
        if until is not None:
            guard.checkpoint()
        guard.close()

    resumed(14)
    assert not any("fed again" in line for line in told)
    resumed(None)
    notes = [e for e in events_of(tmp_path / "run", "note") if "fed again" in str(e.data["text"])]
    assert [e.step for e in notes] == ([17] if forgets else [])
    assert any("fed again" in line for line in told) is forgets


def test_a_second_epoch_feeds_nothing_again(tmp_path: Path) -> None:
    order = open_order(DataLoader(Forgetful(forgets=False), batch_size=SIZE))
    take(order, 20)
    order.load_state_dict(order.state_dict())
    while order.fetch() is not None:
        pass
    order.next_epoch()
    take(order, 30)
    assert order.take_note() == ""


def test_what_a_stream_cannot_do_is_refused_in_words() -> None:
    order = open_order(DataLoader(Counted(), batch_size=SIZE))
    assert isinstance(order, StreamOrder)
    with pytest.raises(ConfigError, match=r"a stream without any.*skip_samples"):
        order.withhold([(1, 2)], of=NUM)
    with pytest.raises(ConfigError, match="can be read only once"):
        open_order(iter([torch.zeros(2, 2)]))
    with pytest.raises(ConfigError, match="only for data with __getitem__"):
        order.switch(make().loader)
    with pytest.raises(ConfigError, match="expected 0 <= first <= last"):
        order.skip(3, 2)
    assert isinstance(open_order(make().loader), DataOrder)


def test_a_run_on_a_stream_resumes_and_rolls_back_bit_for_bit(tmp_path: Path) -> None:
    class Tokens(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            items = Sequences(NUM)
            for i in range(NUM):
                yield items[i]

    def setup() -> Any:
        s = make()
        s.loader = DataLoader(Tokens(), batch_size=SIZE)
        return s

    whole = setup()
    expected = train_guarded(whole, guard_of(whole, tmp_path / "whole", steps=30))
    broken = setup()
    guard = guard_of(broken, tmp_path / "broken", steps=30)
    first = train_guarded(broken, guard, until=14)
    guard.checkpoint()
    guard.close()
    again = setup()
    guard = guard_of(again, tmp_path / "broken", steps=30, mode="act")
    back = inner(guard).engine.snapshot()
    train_guarded(again, guard, until=20)
    inner(guard).engine.restore(back)
    inner(guard).engine.begin_attempt(parent="1.1", parent_step=14, why="a test", trial=False)
    rest = train_guarded(again, guard)
    assert [*first, *rest] == expected
    assert differences(state_of(whole), state_of(again)) == []
    assert events_of(tmp_path / "broken", "fault") == []
