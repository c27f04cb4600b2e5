"""Worker processes of a DataLoader: the same batches as without the guard, again and again."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tests.guard.inner import inner
from trimtab.errors import ActError
from trimtab.guard import Guard
from trimtab.plan.policy import Policy


class Noisy(Dataset[Tensor]):
    """Item i with random noise of three generators, as augmentation draws it."""

    def __init__(self, *, noise: bool = True, dies_at: int = -1) -> None:
        self.noise = noise
        self.dies_at = dies_at

    def __len__(self) -> int:
        return 44

    def __getitem__(self, index: int) -> Tensor:
        if index == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        item = torch.full((4,), float(index))
        if self.noise:
            item[1] = torch.rand(())
            item[2] = random.random()
            item[3] = float(np.random.rand())  # noqa: NPY002
        return item


def own_seed(worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, Noisy)
    torch.manual_seed(torch.initial_seed() % 1000 + worker)


def loader_of(**settings: Any) -> DataLoader[Tensor]:
    settings = {"batch_size": 4, "shuffle": True, "num_workers": 2, **settings}
    return DataLoader(settings.pop("dataset", Noisy()), **settings)


def plain(loader: DataLoader[Tensor], steps: int) -> list[Tensor]:
    torch.manual_seed(7)
    seen: list[Tensor] = []
    while len(seen) < steps:
        seen += list(loader)
    return seen[:steps]


def guarded(folder: Path, loader: DataLoader[Tensor], steps: int, **settings: Any) -> Guard:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    torch.manual_seed(7)
    policy = Policy(
        checkpoint_every_steps=5, snapshot_every_steps=5, checkpoint_in_background=False
    )
    return Guard(
        model,
        torch.optim.SGD(model.parameters(), lr=1e-4),
        data=loader,
        steps=steps,
        run=folder / "run",
        **{"mode": "observe", "policy": policy, "say": lambda _: None, **settings},
    )


def train(guard: Guard, until: int | None = None) -> list[Tensor]:
    seen = []
    for batch in guard:
        guard.backward(inner(guard).training.model(batch).square().mean() * 1e-3)
        guard.step()
        seen.append(batch)
        if until is not None and guard.step_number >= until:
            break
    return seen


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"persistent_workers": True},
        {"prefetch_factor": 1, "worker_init_fn": own_seed},
    ],
    ids=["two", "persistent", "worker_init_fn"],
)
def test_workers_draw_what_they_draw_without_the_guard(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    guard = guarded(tmp_path, loader_of(**settings), 25)
    assert same(train(guard), plain(loader_of(**settings), 25))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_going_back_and_resuming_give_the_same_batches(tmp_path: Path, persistent: bool) -> None:
    loader = loader_of(persistent_workers=persistent)
    whole = plain(loader, 25)
    guard = guarded(tmp_path, loader, 25, mode="act")
    assert same(train(guard, until=18), whole[:18])
    guard.roll_back(10, why="test", confirm=True)
    assert guard.step_number == 10
    assert same(train(guard, until=17), whole[10:17])
    guard.close()
    again = guarded(tmp_path, loader_of(persistent_workers=persistent), 25, mode="act")
    assert again.step_number == 15
    assert same(train(again), whole[15:])


@pytest.mark.slow
def test_left_out_samples_are_not_handed_out_and_the_rest_is_as_it_was(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dataset": Noisy(noise=False), "shuffle": False}
    whole = plain(loader_of(**settings), 11)
    guard = guarded(tmp_path, loader_of(**settings), 9)
    seen = train(guard, until=3)
    guard.skip_samples(20, 25, why="test")
    seen += train(guard)
    assert same(seen, [*whole[:5], *whole[7:]])


# torch tells of it once more from the end of the iteration, where nobody can catch it
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_one_clear_error(tmp_path: Path) -> None:
    loader = loader_of(dataset=Noisy(dies_at=20), shuffle=False)
    guard = guarded(tmp_path, loader, 11)
    # torch may raise its own from a signal's handler, in the middle of a step
    with pytest.raises((ActError, RuntimeError), match=r"worker \(pid|worker p") as caught:
        train(guard)
    assert guard.step_number <= 5
    if isinstance(caught.value, ActError):
        assert "lower num_workers" in str(caught.value)


@pytest.mark.slow
def test_an_error_of_the_dataset_is_its_own(tmp_path: Path) -> None:
    class Broken(Noisy):
        def __getitem__(self, index: int) -> Tensor:
            if index == 13:
                raise ValueError("no such sample")
            return super().__getitem__(index)

    guard = guarded(tmp_path, loader_of(dataset=Broken(), shuffle=False), 11)
    with pytest.raises(ValueError, match="no such sample"):
        train(guard)


@pytest.mark.slow
def test_no_process_is_left_after_the_run(tmp_path: Path) -> None:
    import multiprocessing

    before = {p.pid for p in multiprocessing.active_children()}
    guard = guarded(tmp_path, loader_of(persistent_workers=True), 5)
    train(guard)
    assert {p.pid for p in multiprocessing.active_children()} <= before
