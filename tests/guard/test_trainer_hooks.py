"""What trainers do around the step.

Clip before it, log further signals with it, ask where the data is.
"""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from tests.guard.crowd import Crew, Job, run_crowd
from tests.guard.tiny import Sequences, differences, guard_of, make, rows_of, state_of
from trimtab.guard import Guard
from trimtab.guard.data.order import DataOrder

pytestmark = pytest.mark.torch


def test_clipping_ahead_of_the_step_is_clipping_in_it(tmp_path: Path) -> None:
    ends = []
    for ahead in (False, True):
        s = make(precision="fp16")
        guard = guard_of(s, tmp_path / str(ahead), steps=8, clip=None if ahead else 0.5)
        norms = []
        for batch in guard:
            guard.backward(s.loss(batch))
            if ahead:
                norms.append(guard.clip_gradients(0.5))
            guard.step()
        ends.append(state_of(s))
        rows = rows_of(tmp_path / str(ahead))
        assert [r["clipped"] for r in rows] == [float(r["grad_norm"] > 0.5) for r in rows]
        assert not ahead or norms == [r["grad_norm"] for r in rows]
    assert differences(ends[0], ends[1]) == []


def test_signals_of_a_trainer_stand_in_the_row_of_their_step(tmp_path: Path) -> None:
    s = make()
    guard = guard_of(s, tmp_path, steps=4)
    for batch in guard:
        if guard.step_number % 2:
            guard.note_signals(reward=0.5 * guard.step_number, kl=float("nan"), loss=99.0)
        guard.backward(s.loss(batch))
        guard.step()
    rows = rows_of(tmp_path)
    assert [r.get("reward") for r in rows] == [None, 0.5, None, 1.5]
    assert "kl" not in rows[0]
    assert rows[1]["kl"] != rows[1]["kl"]
    assert all(r["loss"] < 99 for r in rows)


def note(names: dict[int, str], crew: Crew, step: int) -> None:
    assert crew.guard is not None
    if step > 2:
        crew.guard.note_signals(**{names[crew.rank]: float(crew.rank)})


@pytest.mark.slow
@pytest.mark.parametrize(("other", "recorded"), [("reward", 0.5), ("kl", None)])
def test_signals_are_means_over_ranks_and_left_out_where_ranks_differ(
    tmp_path: Path, other: str, recorded: float | None
) -> None:
    job = Job("ddp", 4, spoil=partial(note, {0: "reward", 1: other}))
    assert run_crowd(tmp_path, 2, job) == [0, 0]
    assert [r.get("reward") for r in rows_of(tmp_path / "run")] == [None, None, recorded, recorded]


class Seeded(RandomSampler):
    """Shuffles by epoch, as accelerate's sampler does; only it knows its epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.generator = torch.Generator().manual_seed(self.epoch)
        yield from super().__iter__()
        self.epoch += 1


def test_an_epoch_by_seed_is_drawn_again_by_its_number() -> None:
    def order() -> DataOrder:
        data = Sequences(12)
        return DataOrder(DataLoader(data, batch_sampler=BatchSampler(Seeded(data), 4, False)))

    straight = order()
    for _ in range(4):
        straight.fetch()
    straight.next_epoch()
    straight.fetch()
    state, expected = straight.state_dict(), straight.fetch()
    resumed = order()
    resumed.load_state_dict(state)
    found = resumed.fetch()
    assert found is not None
    assert expected is not None
    assert isinstance(found[0], torch.Tensor)
    assert isinstance(expected[0], torch.Tensor)
    assert torch.equal(found[0], expected[0])


def test_a_guard_says_where_it_is_in_the_data(tmp_path: Path) -> None:
    s = make(num_samples=12, batch_size=4)
    guard = guard_of(s, tmp_path, steps=5)
    guard.skip_samples(8, 11, why="test")
    seen = []
    assert isinstance(guard, Guard)
    for batch in guard:
        guard.backward(s.loss(batch))
        guard.step()
        seen.append((round(guard.data_epoch, 2), guard.epoch_is_over))
    assert seen == [(0.33, False), (0.67, True), (1.33, False), (1.67, False), (2.0, True)]
